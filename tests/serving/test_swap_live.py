"""A swap of consumers under a front's reads, over real servers and processes: nobody notices it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from consumers.fold.state import FOLD_VERSION
from serving.client import ClientError, Session
from tests.consumers.process.test_swapping import NEXT_FOLD, fold_of
from tests.patience import PATIENCE_S
from tests.serving.stack import ServingStack, eventually, settled

ROWS = range(81, 89)
WAIT_MS = 20_000
"""What a loaded machine may take from a write to either group's store."""


class Reader:
    """Writes rows and reads each back through the front, without end. ``answered``: (served from, why) → count."""

    def __init__(self, stack: ServingStack, session: Session) -> None:
        self.answered: Counter[tuple[str, str]] = Counter()
        self._stack, self._session = stack, session
        self._stopping = threading.Event()

    def run(self) -> None:
        """Until `stop`. A read that is refused or wrong is counted as such."""
        turn = 0
        with self._session.wrap(self._stack.connect(), shard=self._stack.shard) as connection:
            while not self._stopping.is_set():
                turn += 1
                number = ROWS[turn % len(ROWS)]
                with connection.cursor() as cursor:
                    cursor.execute("REPLACE INTO accounts VALUES (%s, %s, 'swapped')", (number, turn))
                self.answered[self._read(number, f"{turn}.00")] += 1

    def _read(self, number: int, balance: str) -> tuple[str, str]:
        try:
            row = self._session.get_row(self._stack.keyspace, "accounts", number, max_wait_ms=WAIT_MS)
        except ClientError as error:
            return "refused", str(error)
        right = row.freshness == "fresh" and row.value is not None and row.value["balance"] == balance
        return (row.served_from, "" if row.served_from == "cache" else row.why) if right else ("wrong", str(row))

    def stop(self) -> None:
        """Ends `run`."""
        self._stopping.set()

    def more(self, than: int) -> bool:
        """Whether there are at least five more answers than that."""
        return self.answered.total() >= than + 5


@contextmanager
def reading(stack: ServingStack, session: Session) -> Iterator[Reader]:
    """A reader at work."""
    reader = Reader(stack, session)
    thread = threading.Thread(target=reader.run)
    thread.start()
    try:
        yield reader
    finally:
        reader.stop()
        thread.join(2 * PATIENCE_S)


def swap(stack: ServingStack, address: str) -> None:
    """`freshet swap`, which succeeds."""
    command = [sys.executable, "-m", "freshet", "--config", str(stack.config), "swap", stack.keyspace, "--to", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


def is_owner(stack: ServingStack, address: str) -> bool:
    """Whether the front has learnt of this owner."""
    return owner_of(stack) == address


def owner_of(stack: ServingStack) -> str:
    """The address of the owner that the front knows of the first partition."""
    return str(stack.get(f"/v1/locations/{stack.keyspace}/0").json()["address"])


@pytest.mark.slow
def test_no_read_through_a_front_is_refused_or_goes_to_the_source_during_a_swap(
    stack: ServingStack, session: Session
) -> None:
    """To consumers of the next fold version and back, under a session that reads its writes: each from the cache."""
    before = owner_of(stack)
    stack.run(*(f"REPLACE INTO accounts VALUES ({number}, 0, 'swapped')" for number in ROWS))
    session.adopt(settled(stack))
    after = stack.add_standby(NEXT_FOLD)
    try:
        with reading(stack, session) as reader:
            for address in (after, before, after, before):
                swap(stack, address)
                eventually(partial(is_owner, stack, address), what="the front's knowledge of the swap")
                eventually(partial(reader.more, reader.answered.total()), what="reads from the other one")
            assert reader.answered.total() >= 20
        assert set(reader.answered) == {("cache", "")}
    finally:
        stack.stop("standby")
    assert fold_of(stack.directory / "stores-standby", stack.keyspace) == FOLD_VERSION + 1
