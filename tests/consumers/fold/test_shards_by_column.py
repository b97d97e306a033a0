"""Shards that share a partition are folded by column while no key is written by two of them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from consumers.fold import columns
from consumers.fold import state as fold_state
from consumers.fold.entry import decode_entry
from consumers.fold.messages import fold_message, fold_messages
from consumers.fold.state import Head, PartitionState, Writers, head_entries
from consumers.store.memtable import Memtable
from stream.wire.events import VALUE, VOID
from tests.consumers.fold.test_backfills import begun, complete
from tests.consumers.fold.test_fold_together import Outcome, Records, by_column, one_by_one
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import SHARD, frame, key, marker, start

OTHER = "shop/1"
BEGIN: Records = [(0, start()), (1, topology(SHARD, OTHER)), (2, start(shard=OTHER))]


class Asking:
    """Folds by column, and keeps which keys were looked up, by run."""

    def __init__(self) -> None:
        self.asked: list[list[bytes]] = []
        self.entries = Memtable()
        self.state = PartitionState(Head(), self.entries.get, self._begins)

    def _begins(self, keys: list[bytes]) -> list[bytes | None]:
        self.asked.append(sorted(keys))
        return self.entries.begins(keys)

    def fold(self, records: Records) -> list[int]:
        """How many messages each step took."""
        steps = []
        with patch.object(columns, "RUN_BYTES_MIN", 1_000):
            for changes in fold_messages(self.state, records):
                self.entries.put(changes.entries, changes.gone)
                self.state.apply(changes)
                steps.append(changes.messages)
        return steps

    def outcome(self) -> Outcome:
        """As of `one_by_one`."""
        return self.entries.built(), head_entries(self.state.head), []


def _turns(first: int, last: int, keys: int = 8, image: bytes = b"x") -> Records:
    """Rows of the two shards in turn. With an even number of keys no key is written by both."""
    return [
        (at, frame([(key(at % keys), VALUE, image * 40, at)], shard=(SHARD, OTHER)[at % 2]))
        for at in range(first, last)
    ]


EVEN, ODD = (sorted(map(key, each)) for each in ((0, 2, 4, 6), (1, 3, 5, 7)))


def test_shards_that_share_a_partition_are_folded_by_column_while_they_keep_apart() -> None:
    """One step for both, with one look-up; a key that the other shard has written is left to the plain fold."""
    folded = Asking()
    records = [*BEGIN, *_turns(3, 40)]
    assert folded.fold(records) == [1, 1, 1, 37]
    assert folded.asked == [EVEN, ODD]
    meeting = _turns(40, 80, keys=7, image=b"y")
    assert max(folded.fold(meeting)) < 40
    assert folded.outcome() == one_by_one([*records, *meeting])


def test_a_key_is_looked_up_once_while_one_shard_writes_it() -> None:
    """A look-up of every key in every run made four shards less than half as fast as one."""
    folded = Asking()
    records = [*BEGIN, *_turns(3, 40), *_turns(40, 80, image=b"y")]
    folded.fold(records[:40])
    folded.asked.clear()
    assert folded.fold(records[40:]) == [40]
    assert folded.asked == []
    assert folded.outcome() == one_by_one(records)


def test_keys_whose_writers_are_forgotten_are_looked_up_where_their_rows_are() -> None:
    """The rows of both shards lie together in the memtable; each still tells its own."""
    folded = Asking()
    records = [*BEGIN, *_turns(3, 40), *_turns(40, 80, image=b"y")]
    folded.fold(records[:40])
    folded.asked.clear()
    folded.state.writers.clear()
    assert folded.fold(records[40:]) == [40]
    assert folded.asked == [EVEN, ODD]
    assert folded.outcome() == one_by_one(records)


def test_a_key_that_the_plain_fold_gave_to_another_shard_is_looked_up_again() -> None:
    """What was known of its writer is over, also for the shard that wrote it before."""
    folded = Asking()
    meeting = frame([(key(1), VALUE, b"z" * 40, 40)], shard=SHARD)
    assert 40 % 2 == 0, "an even row is SHARD's, and key 1 is OTHER's until then"
    later = _turns(41, 80, image=b"y")
    records = [*BEGIN, *_turns(3, 40)]
    folded.fold(records)
    folded.fold([(40, meeting)])
    folded.asked.clear()
    folded.fold(later)
    assert key(1) in {each for keys in folded.asked for each in keys}
    assert folded.outcome() == one_by_one([*records, (40, meeting), *later])


def test_what_is_known_of_writers_is_bounded() -> None:
    """The oldest keys are looked up again; that costs time only."""
    writers = Writers()
    with patch.object(fold_state, "WRITERS_MAX", 3):
        writers.learn([b"a", b"b"], b"one")
        writers.learn([b"c", b"d"], b"two")
    assert writers.unknown({b"a", b"b"}, b"one") == {b"a"}
    assert writers.unknown({b"c", b"d"}, b"two") == set()
    assert writers.unknown({b"x", b"d"}, b"one") is None
    assert writers.unknown({b"x"}, b"three") == {b"x"}
    writers.forget([b"d"])
    assert writers.unknown({b"x", b"d"}, b"one") == {b"x", b"d"}


def _two_shards(frames: list[tuple[str, bytes]]) -> tuple[Records, Records]:
    """Beginnings of two shards, and ``frames``; offsets have gaps, as Kafka's transactions leave them."""
    other = "shop/1"
    begin: Records = [(0, start()), (1, topology(SHARD, other)), (2, start(shard=other))]
    return begin, [(10 + 10 * at, message) for at, (_, message) in enumerate(frames)]


def test_what_is_folded_by_column_is_a_prefix_of_the_log() -> None:
    """Also if a frame of one shard is left to the plain fold, and frames of the other shard follow it."""
    frames = []
    for at in range(12):
        shard = (SHARD, "shop/1")[at % 2]
        more: dict[str, Any] = {"origins": ["old/0 1 MariaDB/1-1-3"]} if at == 6 else {}
        frames.append((shard, frame([(key(at), VALUE, b"x" * 40, at + 2)], shard=shard, **more)))
    begin, records = _two_shards(frames)
    state = PartitionState(Head(), lambda _: None)
    for offset, message in begin:
        assert message is not None
        state.apply(fold_message(state, offset, message))
    with patch.object(columns, "RUN_BYTES_MIN", 1):
        changes = next(iter(fold_messages(state, records)))
    assert isinstance(changes.entries, columns.RowEntries)
    assert (changes.messages, changes.offset) == (6, records[5][0] + 1)
    assert set(changes.entries) == set(map(key, range(6)))
    assert by_column([*begin, *records], set()) == one_by_one([*begin, *records])


def test_shards_that_begin_the_same_key_in_one_run_are_compared() -> None:
    """Neither has an entry before the run, so only the run itself tells that they meet."""
    frames = []
    for at in range(6):
        shard = (SHARD, "shop/1")[at % 2]
        frames.append((shard, frame([(key(at // 2), VALUE, b"x" * 40, at + 2)], shard=shard)))
    begin, records = _two_shards(frames)
    found = by_column([*begin, *records], set())
    assert found == one_by_one([*begin, *records])
    assert decode_entry(found[0][key(1)]).kind == VOID


def test_long_keys_are_looked_up_each_time() -> None:
    """What is known of writers is bounded in bytes, too."""
    writers, long = Writers(), b"x" * (fold_state.WRITTEN_KEY_MAX + 1)
    writers.learn([b"a", long], b"one")
    assert writers.unknown({b"a", long}, b"one") == {long}


def test_what_was_known_of_writers_before_a_map_is_over_when_the_map_is() -> None:
    """While there is a map nobody looks who has written a key: the other shard may have, meanwhile."""
    both, halves = (SHARD, OTHER), {SHARD: "-80", OTHER: "80-"}
    mapped = [(40 + at, topology(*both, shard=each, ordinal=40, ranges=halves)) for at, each in enumerate(both)]
    meeting = [(42 + at, frame([(key(1), VALUE, b"z" * 40, 50 + at)])) for at in range(30)]
    without = [(80 + at, topology(*both, shard=each, ordinal=90)) for at, each in enumerate(both)]
    records: Records = [*BEGIN, *_turns(3, 40), *mapped, *meeting, *without, *_turns(101, 109, image=b"yyyy")]
    folded = Asking()
    folded.fold(records)
    assert folded.outcome() == one_by_one(records)


def test_keys_that_another_shard_may_have_deleted_are_not_folded_by_column() -> None:
    """Its tombstones of a table that was whole may be dropped: whether a row is newer than one of them is unknown."""
    whole = [start(), topology(SHARD), begun(2), complete(4), marker(4), topology(SHARD, OTHER), start(shard=OTHER)]
    records: Records = [*enumerate(whole), *_turns(7, 15, image=b"yyyy")]
    folded = Asking()
    folded.fold(records)
    assert folded.outcome() == one_by_one(records)
    assert decode_entry(folded.entries.built()[key(1)]).kind == VOID
