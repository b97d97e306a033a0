"""A follower beside the owner, over real servers and processes: the cache answers while the owner is dead or paused."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest

from serving.client import Row, Session
from tests.serving.stack import ServingStack, eventually, settled

PAUSED_S = 3.0
"""A read of a paused owner's row takes less: this is the owner's own time-out."""
WAIT_MS = 10_000
"""What a loaded machine may take from a write to the follower's store."""


@pytest.fixture
def followed(stack: ServingStack) -> Iterator[ServingStack]:
    """The stack with a follower of both partitions that fronts know."""
    stack.add_follower()
    yield stack
    stack.stop("follower")


def counted(stack: ServingStack, what: str = "follower_answers") -> float:
    """Questions that followers have answered so far, or that owners have not (``owner_failures``)."""
    lines = stack.get("/metrics").text.splitlines()
    [line] = [each for each in lines if each.startswith(f"freshet_serve_{what}_total ")]
    return float(line.split()[1])


def written(stack: ServingStack, session: Session, name: str) -> None:
    """One more write of the session, to a row of each partition."""
    with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
        for number in (71, 72, 73, 74):
            cursor.execute("REPLACE INTO accounts VALUES (%s, 1, %s)", (number, name))


def read(stack: ServingStack, session: Session) -> list[Row]:
    """The rows of `written`, each in one read that waits for the cache."""
    return [session.get_row(stack.keyspace, "accounts", number, max_wait_ms=WAIT_MS) for number in (71, 72, 73, 74)]


def names(rows: list[Row]) -> set[object]:
    """The names in rows."""
    return {row.value["name"] for row in rows if row.value is not None}


def test_a_session_reads_its_writes_from_the_follower_while_the_owner_is_dead_or_paused(
    followed: ServingStack, session: Session
) -> None:
    """No read goes to the source, none is refused, none is stale, and the first one doesn't wait for the owner.

    A paused owner that goes on knows nothing of what was written meanwhile: what it says is proved, or not given.
    """
    written(followed, session, "before")
    session.adopt(settled(followed))
    assert names(read(followed, session)) == {"before"}

    owner, failures = followed.pid_of("consume"), counted(followed, "owner_failures")
    os.kill(owner, signal.SIGSTOP)
    try:
        written(followed, session, "paused")
        began = time.monotonic()
        first = session.get_row(followed.keyspace, "accounts", 71, max_wait_ms=100)
        assert time.monotonic() - began < PAUSED_S
        eventually(lambda: counted(followed, "owner_failures") > failures, what="the owner's time-out")
        rows = read(followed, session)
    finally:
        os.kill(owner, signal.SIGCONT)
    assert {row.served_from for row in rows} == {"cache"}
    assert names([first, *rows]) == {"paused"}
    assert counted(followed) > 0
    assert names(read(followed, session)) == {"paused"}  # whoever answers: the owner has just woken up

    eventually(lambda: followed.get("/readyz").is_success, what="the owner's return")
    followed.kill("consume")
    try:
        before = counted(followed)
        written(followed, session, "killed")
        rows = read(followed, session)
        assert {row.served_from for row in rows} == {"cache"}
        assert names(rows) == {"killed"}
        assert counted(followed) > before
        strict = followed.get(f"/v1/rows/{followed.keyspace}/accounts/71", consistency="leader", token=session.token)
        assert strict.json()["served_from"] == "source"
    finally:
        followed.start("consume")
        eventually(lambda: followed.get("/readyz").is_success, what="the owner's return")


def test_any_instance_answers_and_proves_it(followed: ServingStack, session: Session) -> None:
    """Owner and follower take turns; each answer holds what the session wrote just before, whoever gives it."""
    session.adopt(settled(followed))
    before = counted(followed)
    for turn in range(10):
        written(followed, session, f"turn {turn}")
        path = f"/v1/rows/{followed.keyspace}/accounts/72"
        found = followed.get(path, consistency="any", token=session.token, max_wait_ms=str(WAIT_MS)).json()
        assert (found["row"]["name"], found["freshness"]) == (f"turn {turn}", "fresh")
    assert before + 5 <= counted(followed)
    refused = followed.get(f"/v1/rows/{followed.keyspace}/accounts/72", consistency="some")
    assert (refused.status_code, refused.json()["code"]) == (400, "bad_parameter")
