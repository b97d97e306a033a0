"""What a poll holds is folded in bounded steps: memory follows the settings, not the size of the messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.fold import columns
from consumers.fold.columns import in_slices
from consumers.fold.runs import Messages, Record, bytes_of
from consumers.process import committing, loop
from consumers.process.loop import Consumption, ConsumptionSettings
from stream.kafka.connection import KafkaCluster
from stream.wire.events import ABSENT
from tests.consumers.histories import frame, key, start, value
from tests.consumers.owning import KEYSPACE, Owner

TOPIC = "events"
COMMIT_ROWS = 4


@dataclass
class Arrived:
    """A message as the client hands it out."""

    at: int
    body: bytes

    def topic(self) -> str:
        """Its topic."""
        return TOPIC

    def partition(self) -> int:
        """Its partition."""
        return 0

    def offset(self) -> int:
        """Its offset."""
        return self.at

    def value(self) -> bytes:
        """Its bytes."""
        return self.body

    def leader_epoch(self) -> int:
        """Of the broker that wrote it."""
        return 3


@pytest.fixture
def consumption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Consumption]:
    """The loop with one partition, small commits and small slices."""
    monkeypatch.setattr(loop, "Message", Arrived)
    monkeypatch.setattr(loop, "BATCH_BYTES", 1_000)
    owner = Owner(tmp_path)
    settings = ConsumptionSettings(
        kafka=KafkaCluster("127.0.0.1:1"), keyspaces=(KEYSPACE,), data_dir=tmp_path, commit_rows=COMMIT_ROWS
    )
    made: Any = Consumption(settings, owner.ownership, SimpleNamespace(close=lambda: None), lambda _: None)
    made._search.found[TOPIC] = KEYSPACE, "t"
    made._consumer = SimpleNamespace(commit=lambda **_: None)
    owner.fold(start())
    yield made
    made._committer.close()


def test_commits_do_not_wait_for_the_end_of_a_large_batch(consumption: Any) -> None:
    """Else a batch of large frames would hold many times the rows after which a commit is due."""
    messages = [Arrived(at, value(at, b"x" * 400, at + 1)) for at in range(1, 41)]
    consumption._fold_batch(messages)
    [partition] = consumption.ownership
    assert partition.store.state.head.offset == 41
    assert partition.commits >= 3
    assert partition.store.pending_rows < 4 * COMMIT_ROWS


def test_rows_that_are_nearly_empty_count_with_the_arrays_that_they_need(consumption: Any) -> None:
    """Millions of changes of one key are few bytes of messages and one entry, but not little memory."""
    rows = 20_000
    [partition] = consumption.ownership
    store = partition.store
    store.commit()
    store.fold(
        [
            (
                1,
                frame(
                    [(key(1), ABSENT, b"", number) for number in range(2, rows + 2)],
                    gtids=["x"],
                    transactions=[rows],
                    timestamps=[1],
                ),
            )
        ]
    )
    assert store.pending_rows == 1
    assert store.pending_bytes > 40 * rows


def test_partitions_share_the_memory_of_a_process(consumption: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many partitions each commits after fewer bytes."""
    [partition] = consumption.ownership
    consumption._commit(partition, 0.0)
    monkeypatch.setattr(committing, "PROCESS_BYTES_MAX", 64_000)
    partition.store.commit()
    partition.committed_at = 1e9
    consumption._committer.share(1)
    partition.store.fold([(1, value(1, b"x" * 10_000, 2))])
    consumption._commit(partition, 1.0)
    assert partition.committing is None
    consumption._committer.share(8)
    consumption._commit(partition, 1.0)
    assert partition.committing is not None


def test_the_next_poll_takes_as_many_messages_as_fit(consumption: Any) -> None:
    """Large messages make small polls, and small ones make large polls again."""
    consumption._fold_batch([Arrived(at, value(at, b"x" * 400, at + 1)) for at in range(1, 11)])
    assert consumption._poll_messages in (1, 2)
    consumption._fold_batch([Arrived(at, value(at, b"x", at + 1)) for at in range(11, 13)])
    assert consumption._poll_messages > 5
    assert consumption._poll_messages <= loop.BATCH_MESSAGES


def test_slices_hold_all_records_in_order() -> None:
    """A slice ends as soon as it is large enough; a message without a value counts nothing."""
    records: list[Record] = [(1, b"abc"), (2, b"def"), (3, None), (4, b"x" * 50), (5, b"a")]
    offsets, values = zip(*records, strict=True)
    assert list(in_slices(offsets, values, 5)) == [(records[:2], 6), (records[2:4], 50), (records[4:], 1)]


def test_large_slices_are_given_in_one_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what the fold by column is fastest with; one message without a value leaves its slice as it is."""
    monkeypatch.setattr(columns, "RUN_BYTES_MIN", 6)
    records: list[Record] = [(1, b"abc"), (2, b"def"), (3, None), (4, b"x" * 50), (7, b"a")]
    offsets, values = zip(*records, strict=True)
    (one, _), (other, _), (last, _) = in_slices(offsets, values, 6)
    assert [type(each) for each in (one, other, last)] == [Messages, list, list]
    assert list(one) == records[:2]
    assert bytes_of(one) == 6
