"""Entries that a store drops: what is left on disk, what it compares as, and what a crash leaves behind."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.fold.backfills import whole_tables
from consumers.fold.entry import ABSENT, VALUE, decode_entry
from consumers.fold.state import Head
from consumers.store import dropping
from consumers.store.dropping import NOTE, Dropping, LastDropped, Sweep, note_to_sweep_again
from consumers.store.errors import StoreCorruptError, StoreError, store_error
from consumers.store.memtable import Memtable
from consumers.store.rocks.database import Rocks
from consumers.store.store import PartitionStore, StoreView
from stream.wire.codec import encode
from tests.consumers.fold.test_backfills import TABLE, begun, complete, topology
from tests.consumers.histories import SHARD, Folded, event, frame, gtid, key, marker, start, value
from tests.consumers.storing import crash

MANY = 20
ROWS = frame([(key(number), VALUE, b"{}", 3 + number) for number in range(MANY)])
WHOLE = (start(), topology(SHARD), begun(2), ROWS, complete(30), marker(30))


def open_at(directory: Path) -> PartitionStore:
    """A store of one partition."""
    return PartitionStore.open(directory, keyspace="shop", partition=0, topic_id="topic-1")


def fold(store: PartitionStore, *messages: bytes) -> None:
    """Folds messages at the next offsets."""
    store.fold(list(enumerate(messages, store.state.head.offset)))


def deleted(*numbers: int, first: int) -> bytes:
    """A frame that deletes rows."""
    return frame([(key(number), ABSENT, b"", at) for at, number in enumerate(numbers, first)])


def held(store: PartitionStore) -> set[int]:
    """The rows of which RocksDB holds an entry."""
    return {number for number in range(MANY) if store._rocks.get(key(number)) is not None}


def test_a_commit_leaves_nothing_of_deleted_rows(tmp_path: Path) -> None:
    """Neither of those that were durable nor of those that were not, and it says which deletion was the last."""
    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE)
        store.commit()
        fold(store, deleted(1, 2, first=31), value(99, b"{}", 33), deleted(99, first=34), marker(34))
        assert store.get(key(1)) is not None
        store.commit()
        assert held(store) == set(range(MANY)) - {1, 2}
        assert store.get(key(99)) is None
        assert store.dropping.last(TABLE, SHARD) == LastDropped(1, 34, gtid(34))
    with closing(open_at(tmp_path)) as store:
        assert store.dropping.last(TABLE, SHARD) == LastDropped(1, 34, gtid(34))


def test_stores_that_have_dropped_and_that_have_not_compare_as_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rebuild, and a store that commits at other times, have other tombstones. Also when a table is whole no more."""
    messages = (
        *WHOLE,
        deleted(1, 2, first=31),
        marker(32),
        deleted(3, first=33),
        event("TableVoid", 34, table=TABLE, reason="DDL"),
    )
    with closing(open_at(tmp_path / "one")) as one:
        for message in messages:
            fold(one, message)
            one.commit()
        assert one.get(key(1)) is None
        digest = one.digest()
    monkeypatch.setattr(Dropping, "to_drop", lambda *_: set())
    with closing(open_at(tmp_path / "other")) as other:
        fold(other, *messages)
        other.commit()
        assert other.get(key(1)) is not None
        assert other.digest() == digest
        assert decode_entry(dict(other.items())[key(3)]).kind == ABSENT
        checkpoint = tmp_path / "checkpoint"
        other.checkpoint(checkpoint)
        with StoreView(checkpoint) as view:
            assert view.digest() == digest


@pytest.mark.parametrize("commits", [True, False], ids=["a commit after each message", "one commit a night"])
def test_a_table_that_is_emptied_and_filled_each_night_holds_its_rows(tmp_path: Path, commits: bool) -> None:
    """With new keys each time, those of before never come again: ranges would have to look at all of them."""
    with closing(open_at(tmp_path)) as store:
        fold(store, start(), topology(SHARD))
        for night in range(4):
            at = 100 * night
            numbers = range(5 * night, 5 * night + 5)
            for message in (
                event("TableVoid", at + 10, table=TABLE, reason="TRUNCATE"),
                begun(at + 11),
                frame([(key(number), VALUE, b"{}", at + 20 + number) for number in numbers]),
                complete(at + 50),
                marker(at + 50),
            ):
                fold(store, message)
                if commits:
                    store.commit()
            if not commits:
                store.commit()
            assert held(store) == set(numbers)
            assert store.dropping.last(TABLE, SHARD) is None


def test_rows_that_come_and_are_voided_between_two_commits_leave_nothing(tmp_path: Path) -> None:
    """A sweep looks at what is in RocksDB: they would get there with it, and stay."""
    with closing(open_at(tmp_path)) as store:
        void = event("TableVoid", 31, table=TABLE, reason="TRUNCATE")
        new = frame([(key(number), VALUE, b"{}", 40 + number) for number in range(3)])
        fold(store, *WHOLE, void, begun(32), new, complete(50), marker(50))
        store.commit()
        assert held(store) == {0, 1, 2}


def test_a_tombstone_that_was_durable_before_its_marker_goes_with_the_next_commit(tmp_path: Path) -> None:
    """At most one commit is in between, however many rows the table has."""
    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE)
        store.commit()
        fold(store, deleted(1, 2, first=31))
        store.commit()
        assert held(store) == set(range(MANY))
        fold(store, marker(32), value(2, b"{}", 33))
        store.commit()
        assert held(store) == set(range(MANY)) - {1}
        assert store.dropping._left == set()


def test_what_a_crash_has_left_behind_is_swept(tmp_path: Path) -> None:
    """The process that knew of the tombstone is gone."""
    store = open_at(tmp_path)
    fold(store, *WHOLE)
    store.commit()
    fold(store, deleted(1, first=31))
    store.commit()
    crash(store)
    with closing(open_at(tmp_path)) as store:
        fold(store, marker(31))
        store.commit()
        assert held(store) == set(range(MANY)) - {1}


def test_a_sweep_goes_over_a_table_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part with each commit, on from there after a restart, and a row that has come again stays."""
    monkeypatch.setattr(dropping, "SWEPT_TOGETHER", 8)
    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE[:4], deleted(*range(0, MANY, 2), first=24))
        store.commit()
        assert len(held(store)) == MANY
        fold(store, complete(40), marker(40), value(0, b"{}", 41))
        store.commit()
        assert 0 in held(store)
        assert 10 < len(held(store)) < MANY
    ordinal = 42
    for _ in range(2):
        with closing(open_at(tmp_path)) as store:
            fold(store, marker(ordinal))
            store.commit()
            ordinal += 1
    with closing(open_at(tmp_path)) as store:
        assert held(store) == {0, *range(1, MANY, 2)}
        [sweep] = store.dropping._sweeps.values()
        assert sweep.is_over


def test_an_older_tombstone_that_goes_later_does_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is told of the last one that was dropped is the latest of all, in whatever order commits come upon them."""
    monkeypatch.setattr(dropping, "SWEPT_TOGETHER", 8)
    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE[:4], deleted(*range(0, MANY, 2), first=24))
        store.commit()
        fold(store, complete(40), deleted(1, first=41), marker(41))
        for ordinal in (42, 43, 44):
            store.commit()
            assert store.dropping.last(TABLE, SHARD) == LastDropped(1, 41, gtid(41))
            fold(store, marker(ordinal))
        assert held(store) == set(range(3, MANY, 2))


def test_a_table_that_is_not_whole_keeps_its_tombstones(tmp_path: Path) -> None:
    """They are all that says that a row is gone."""
    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE[:4], deleted(1, first=24), marker(24))
        store.commit()
        assert held(store) == set(range(MANY))
        assert store._rocks.get(NOTE) is None


def test_rows_that_were_folded_by_column_are_dropped_too(tmp_path: Path) -> None:
    """Their entries are not built before they are written."""
    numbers = range(20_000)
    wide = b'{"v":"%s"}' % (b"x" * 40)
    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE)
        fold(store, frame([(key(number), VALUE, wide, 31 + number) for number in numbers]))
        store.commit()
        rows = [(key(n), ABSENT, b"", 30_000 + n) if n % 2 else (key(n), VALUE, wide, 30_000 + n) for n in numbers]
        fold(store, frame(rows))
        assert any(type(each) is int for each in store._active.entries.values())
        assert len(store._active.tombstones()) == 10_000
        fold(store, marker(60_000))
        store.commit()
        assert {number for number in numbers if store.get(key(number)) is not None} == set(numbers[::2])


def test_a_damaged_note_is_a_damaged_store(tmp_path: Path) -> None:
    """Without it a reader would not learn up to where rows were deleted."""
    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE, deleted(1, first=31), marker(31))
        store.commit()
        assert not store.is_dirty
        store._rocks.ingest(Memtable(), tmp_path / "x.sst", {NOTE: b"{}"})
    with pytest.raises(StoreCorruptError, match="dropped"):
        open_at(tmp_path)


def test_a_store_commits_again_after_it_could_not_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What looks for tombstones reads before the ingest, which used to be the one to open the database."""

    def fail(*_: Any) -> None:
        raise store_error(OSError(24, "Too many open files"), str(tmp_path))

    with closing(open_at(tmp_path)) as store:
        fold(store, *WHOLE)
        store.commit()
        fold(store, deleted(1, first=31))
        store.commit()
        fold(store, value(50, b"{}", 32), marker(32))
        with monkeypatch.context() as trouble:
            trouble.setattr(Rocks, "_open", fail)
            with pytest.raises(StoreError):
                store._rocks.reopen()
            with pytest.raises(StoreError):
                store.commit()
        assert store.commit() is not None
        assert held(store) == set(range(MANY)) - {1}


def test_tombstones_that_no_line_will_cover_are_not_looked_at_again(tmp_path: Path) -> None:
    """Those of a shard that was succeeded: each commit would look for all of them."""
    other = "shop/new"
    topology_of = {"shard": other, "epoch": 1, "ordinal": 1, "shards": [other]}
    with closing(open_at(tmp_path)) as store:
        fold(store, start(), topology(SHARD), marker(1), deleted(*range(5), first=2), marker(7))
        store.commit()
        fold(
            store,
            encode("Topology", {**topology_of, "ancestors": [{"shard": SHARD, "epoch": 1}], "succeeded": []}),
            start(shard=other),
            event("TableBackfill", 2, shard=other, table=TABLE, complete=False),
            frame([(key(9), VALUE, b"{}", 3)], shard=other),
            event("TableBackfill", 4, shard=other, table=TABLE, complete=True),
            marker(4, shard=other),
        )
        store.commit()
        assert store.dropping._left == set()
        assert store.dropping._sweeps[TABLE, other].is_over


def test_two_readers_of_one_memtable_do_not_sort_its_keys_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are answered in threads. Keys that are there twice would hide as many others."""
    memtable = Memtable()
    memtable.put({b"s.t\0%06d" % number: b"v" for number in range(5_000)})
    look, others = memtable._newest, [1]

    def look_beside_another(without: int) -> list[bytes]:
        found = look(without)
        if others.pop() if others else 0:
            memtable.between(b"", b"\xff")
        return found

    monkeypatch.setattr(memtable, "_newest", look_beside_another)
    assert len(memtable.between(b"", b"\xff")) == 5_000
    assert len(memtable.between(b"", b"\xff")) == 5_000
    assert len(memtable._sorted) == 5_000


@pytest.mark.parametrize(("epoch", "complete", "goes_on"), [(1, 5, True), (1, 9, False), (2, 5, False)])
def test_a_table_that_is_whole_anew_is_swept_anew(epoch: int, complete: int, goes_on: bool) -> None:
    """The tombstones of its next backfill lie before the place that the last sweep has reached."""
    swept = Sweep(SHARD, 1, 5, "ff", is_over=True)
    sweeping = Dropping(SimpleNamespace(get=lambda _: None))
    sweeping._sweeps["shop.items", SHARD] = swept
    whole: Any = SimpleNamespace(epoch=epoch, complete=complete)
    assert (sweeping._sweep_of(("shop.items", SHARD), whole) == swept) is goes_on


def commit(sweeping: Dropping, head: Head) -> bytes | None:
    """Commits nothing but what the head says; the note that goes with it."""
    sweeping.to_drop(head.copy(), Memtable())
    return sweeping.note().get(NOTE)


def test_a_commit_looks_at_each_whole_table_only_when_another_one_may_be_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables are many: each commit of a row would take as long as all of them. The note is written when it changes."""
    looked: list[Head] = []

    def look(head: Head) -> Any:
        looked.append(head)
        return whole_tables(head)

    monkeypatch.setattr(dropping, "whole_tables", look)
    folded = Folded(*WHOLE)
    sweeping = Dropping(SimpleNamespace(get=lambda _: None, scan=lambda *_: iter(())))
    note = commit(sweeping, folded.state.head)
    assert note is not None
    assert commit(sweeping, folded.state.head) == note, "the one before has failed"
    sweeping.written()
    folded.fold(value(1, b"{}", 31))
    folded.fold(marker(31))
    assert commit(sweeping, folded.state.head) is None
    sweeping.written()
    assert len(looked) == 1
    folded.fold(event("TableVoid", 32, table=TABLE, reason="DDL"))
    assert commit(sweeping, folded.state.head) is None
    sweeping.written()
    assert (len(looked), sweeping._sweeps) == (2, {})
    folded.fold(begun(33))
    folded.fold(complete(34))
    assert commit(sweeping, folded.state.head) is None
    sweeping.written()
    folded.fold(marker(34))
    note = commit(sweeping, folded.state.head)
    assert note is not None
    assert [sweep[2] for _, sweep in json.loads(note)["sweeps"]] == [34]


def test_who_commits_for_others_has_all_tables_swept_again() -> None:
    """Its own tombstones lie behind a sweep that has ended. What was dropped stays told of."""
    note = {"last": [["shop.items", SHARD, 1, 7, "p"]], "sweeps": [["shop.items", [SHARD, 1, 5, "", True]]]}
    told = note_to_sweep_again({NOTE: json.dumps(note).encode()})  # type: ignore[arg-type]
    assert json.loads(told[NOTE]) == note | {"sweeps": []}
    assert note_to_sweep_again({}) == {}  # type: ignore[arg-type]
