"""Nothing is committed past a dead letter that is not in its topic: not by the loop, a checkpoint, or a hand-over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from consumers.owner.partitions import CATCHING_UP, DEAD_LETTERS, Partition
from consumers.owner.protocol import OwnerError
from consumers.process import assignment, burying, pausing
from consumers.process.loop import Consumption, ConsumptionSettings
from consumers.process.run import make_checkpoint
from consumers.store.store import PartitionStore
from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.kafka.dead_letters import DeadLetter
from tests.consumers.histories import marker, start, value
from tests.consumers.owning import KEYSPACE, Owner
from tests.consumers.process.test_burying import Away
from tests.patience import PATIENCE_S

LONG_AFTER = 1e12
"""A time at which a commit is long due."""


class Held:
    """A partition with one committed event, and one message that could not be folded."""

    def __init__(self, data_dir: Path) -> None:
        owner = Owner(data_dir)
        self.data_dir = data_dir
        self.partition: Partition = owner.partition
        self.partition.ready = False
        self.output = Away()
        settings = ConsumptionSettings(kafka=KafkaCluster("127.0.0.1:1"), keyspaces=(KEYSPACE,), data_dir=data_dir)
        self.consumption = Consumption(settings, owner.ownership, self.output, lambda _: None)
        self.consumption._pauses.consumer = SimpleNamespace(
            pause=lambda _: None, resume=lambda _: None, seek=lambda _: None
        )
        owner.fold(start())
        self.partition.store.commit()

    def fold(self, *messages: bytes) -> None:
        """Folds messages as the loop does."""
        offset = self.partition.store.state.head.offset
        last: Any = SimpleNamespace(leader_epoch=lambda: 3)
        self.consumption._fold_run(self.partition, list(enumerate(messages, offset)), last)

    def durable(self) -> int:
        """Where the next process would go on."""
        store = PartitionStore.open(self.data_dir, keyspace=KEYSPACE, partition=0, topic_id="t")
        try:
            return store.committed_offset
        finally:
            store.close(commit=False)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    """A partition whose dead letters nobody writes so far, with no patience."""
    monkeypatch.setattr(pausing, "BURY_S", 0.0)
    monkeypatch.setattr(assignment, "BURY_S", 0.0)
    held = Held(tmp_path)
    yield held
    held.consumption._committer.close()


def test_the_loop_commits_nothing_until_the_letter_is_written(held: Held) -> None:
    """The commit would begin the next process behind the letter; once it is written, it is begun."""
    held.fold(value(1, b"a", 2), b"garbage", marker(3))
    partition = held.partition
    assert (partition.state, partition.dead_letters_pending) == (DEAD_LETTERS, True)
    held.consumption._commit(partition, LONG_AFTER)
    assert partition.committing is None
    held.output.burials[0].set_result(None)
    held.consumption._commit(partition, LONG_AFTER)
    assert (partition.state, partition.dead_letters_pending) == (CATCHING_UP, False)
    assert partition.committing is not None
    partition.committing.result()
    held.consumption._assignment.release([partition])
    assert held.durable() == 4


def test_a_burial_that_was_given_up_leaves_the_letter_pending(held: Held) -> None:
    """An error of the broker is no letter in the topic."""
    held.fold(b"garbage")
    held.output.burials[0].set_exception(OSError("away"))
    held.consumption._commit(held.partition, LONG_AFTER)
    assert held.partition.committing is None
    held.consumption._assignment.release([held.partition])
    assert held.durable() == 1


@pytest.mark.parametrize(("written", "offset"), [(False, 1), (True, 2)])
def test_a_partition_that_is_given_up_commits_only_what_is_accounted_for(
    held: Held, written: bool, offset: int
) -> None:
    """The next owner finds an unwritten letter again, and folds nothing twice where it is written."""
    held.fold(b"garbage")
    if written:
        held.output.burials[0].set_result(None)
    held.consumption._assignment.release([held.partition])
    assert held.durable() == offset
    assert held.consumption.ownership.get(KEYSPACE, 0) is None


def test_a_checkpoint_past_the_letter_is_refused(held: Held, tmp_path: Path) -> None:
    """A checkpoint commits, so it has to wait."""
    held.fold(b"garbage")
    with pytest.raises(OwnerError) as caught:
        make_checkpoint(tmp_path / "checkpoints", held.partition)
    assert caught.value.code == "too_busy"
    held.output.burials[0].set_result(None)
    assert held.consumption._pauses.is_buried(held.partition)
    assert make_checkpoint(tmp_path / "checkpoints", held.partition).offset == 2


def test_what_was_folded_before_an_error_of_the_fold_is_not_committed(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fold that fails half-way has told of no letters, so some may be in what it folded."""
    fold = held.partition.store.fold

    def fail_after(records: Any) -> Any:
        fold(records)
        raise MemoryError

    monkeypatch.setattr(held.partition.store, "fold", fail_after)
    with pytest.raises(MemoryError):
        held.fold(b"garbage")
    held.consumption._assignment.release([held.partition])
    assert held.durable() == 1


def test_without_letters_nothing_is_held(held: Held) -> None:
    """The ordinary batch is committed at once."""
    held.fold(value(1, b"a", 2))
    assert not held.partition.dead_letters_pending
    held.consumption._assignment.release([held.partition])
    assert held.durable() == 2


class Failing:
    """Writes dead letters. The first one fails once, when it has been given all of them."""

    made: ClassVar[list[Failing]] = []
    fails: ClassVar[list[str]] = []

    def __init__(self, *_: object) -> None:
        self.made.append(self)
        self.sent: list[object] = []
        self.is_flushed = False

    def send(self, letter: object) -> None:
        """Not written before `flush`."""
        self.sent.append(letter)

    def flush(self) -> None:
        """Writes, or fails."""
        if self.fails:
            raise KafkaUnreachable(self.fails.pop())
        self.is_flushed = True


def test_letters_are_all_sent_anew_until_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A publisher that failed may have lost some of them, and would not send again what it has sent."""
    made = list[Failing]()
    monkeypatch.setattr(Failing, "made", made)
    monkeypatch.setattr(Failing, "fails", ["away"])
    monkeypatch.setattr(burying, "DeadLetterPublisher", Failing)
    monkeypatch.setattr(burying, "RETRY_S", 0.01)
    burials = burying.Burials(KafkaCluster("127.0.0.1:1"))
    letters = [DeadLetter("topic", 0, offset, "code", "reason") for offset in range(2)]
    burials.bury("shop", letters).result(PATIENCE_S)
    burials.close()
    assert [(each.sent, each.is_flushed) for each in made] == [(letters, False), (letters, True)]
