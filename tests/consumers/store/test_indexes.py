"""Indexes of a store: which keys it gives for values, over commits, restarts, and a store that went on without them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.fold.columns import fold_columns
from consumers.fold.entry import ABSENT, VALUE, VOID
from consumers.fold.state import Changes
from consumers.store import indexing
from consumers.store.errors import StoreNewerError
from consumers.store.index import CACHED_MAX, INDEX, UNKNOWN, Extraction, Index, _prefix, _reader, values_of
from consumers.store.manifest import INDEXED_VERSION, read_manifest
from consumers.store.rocks.database import Rocks
from consumers.store.store import PartitionStore, StoreView
from stream.wire.keys import row_key
from tests.consumers.histories import frame, marker, start
from tests.consumers.storing import crash

TABLE = "shop.items"
BY_NAME = Index(TABLE, ("name",))


def open_at(directory: Path, *indexes: Index) -> PartitionStore:
    """A store that keeps ``indexes``."""
    return PartitionStore.open(directory, keyspace="shop", partition=3, topic_id="topic-1", indexes=indexes)


def item(number: int, table: str = TABLE) -> bytes:
    """The key of an item."""
    return row_key(table, [number])


def named(*rows: tuple[int, str | None], first: int = 2, table: str = TABLE) -> bytes:
    """A frame in which items get names, or (None) are deleted."""
    return frame(
        [
            (item(number, table), VALUE if name is not None else ABSENT, b'{"name":"%s"}' % (name or "").encode(), at)
            if name is not None
            else (item(number, table), ABSENT, b"", at)
            for at, (number, name) in enumerate(rows, first)
        ]
    )


def fold(store: PartitionStore, *messages: bytes) -> None:
    """Folds messages at the next offsets."""
    store.fold(list(enumerate(messages, store.state.head.offset)))


def having(store: PartitionStore, *values: object, index: Index = BY_NAME) -> list[bytes] | None:
    """The keys that the store gives, in order."""
    found = store.having(index, values_of(values), 100)
    return None if found is None else sorted(found)


def test_keys_are_found_before_and_after_a_commit_and_over_a_restart(tmp_path: Path) -> None:
    """In the memtable, in the frozen one, in RocksDB; and of a crash's tail when it is folded again."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a"), (2, "b"), (3, "a")))
    assert having(store, "a") == [item(1), item(3)]
    store.commit()
    assert having(store, "a") == [item(1), item(3)]
    fold(store, named((2, "a"), first=5))
    assert having(store, "a") == [item(1), item(2), item(3)]
    store.freeze()
    fold(store, named((4, "a"), first=6))
    assert having(store, "a") == [item(1), item(2), item(3), item(4)]
    store.write()
    crash(store)
    store = open_at(tmp_path, BY_NAME)
    assert having(store, "a") == [item(1), item(2), item(3)]
    fold(store, named((4, "a"), first=6))
    assert having(store, "a") == [item(1), item(2), item(3), item(4)]
    store.close()


def test_rows_that_had_a_value_stay(tmp_path: Path) -> None:
    """Whoever looks must meet a row that has left, and one that is deleted. Other values don't give it."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a"), (2, "a")))
    store.commit()
    fold(store, named((1, "b"), (2, None), first=4))
    store.commit()
    assert having(store, "a") == [item(1), item(2)]
    assert having(store, "b") == [item(1)]
    assert having(store, "c") == []
    store.close()


def test_entries_that_no_row_has_any_more_are_removed_when_they_disturb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next commits, some with each: of a row that has the value again they stay, wherever that is written."""
    monkeypatch.setattr(indexing, "OUTDATED_TOGETHER", 4)
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named(*((number, "a") for number in range(12))), frame([(item(20), VOID, b"", 15)]))
    store.commit()
    fold(store, named(*((number, None if number % 2 else "b") for number in range(10)), (20, "c"), first=20))
    store.commit()
    assert having(store, "a") == sorted(map(item, (*range(12), 20)))
    store.indexing.note_outdated(BY_NAME, values_of(["a"]))
    fold(store, named((0, "a"), first=40))
    store.freeze()
    fold(store, named((1, "a"), first=41))
    store.write()
    assert item(2) in (having(store, "a") or ())
    for at in range(50, 54):
        fold(store, named((30, "d"), first=at))
        store.commit()
    assert having(store, "a") == sorted(map(item, (0, 1, 10, 11)))
    crash(store)
    store = open_at(tmp_path, BY_NAME)
    assert having(store, "a") == sorted(map(item, (0, 1, 10, 11)))
    assert having(store, "b") == sorted(map(item, (0, 2, 4, 6, 8)))
    store.close()


def test_values_of_several_columns_names_of_any_kind_and_null() -> None:
    """Values are those of the image, byte for byte. A row with NULL has no entry."""
    both = Extraction(Index(TABLE, ("größe", "a b")))
    assert both.values('{"id":1,"a b":"ü\\"","größe":-5}'.encode()) == '[-5,"ü\\""]'.encode()
    assert values_of([-5, 'ü"']) == '[-5,"ü\\""]'.encode()
    assert both.values('{"a b":null,"größe":1}'.encode()) == b""
    for image in (b'{"a b":1}', b"", b"[1]", b'{"a b"', b"\xff", b"[" * 5_000):
        assert both.values(image) == UNKNOWN


def test_rows_without_a_known_image_are_given_for_each_value(tmp_path: Path) -> None:
    """Such a row may have any value."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), frame([(item(1), VOID, b"", 2), (item(2), VALUE, b'{"other":1}', 3)]))
    store.commit()
    assert having(store, "a") == [item(1), item(2)]
    store.close()


def test_a_row_that_is_written_while_somebody_looks_is_found_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That no image was unknown is remembered up to the next commit, and that may end during the look."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), frame([(item(1), VOID, b"", 2)]))
    look = store._rocks.scan_index

    def slow(start: bytes, limit: int) -> list[bytes]:
        found = look(start, limit)
        if start == Extraction(BY_NAME).unknown:
            store.commit()
        return found

    monkeypatch.setattr(store._rocks, "scan_index", slow)
    assert [having(store, "a") for _ in range(2)] == [[item(1)]] * 2
    store.close()


def test_a_row_that_comes_late_is_not_the_last_change_of_its_table(tmp_path: Path) -> None:
    """What an index finds is proved as of the last change: else it would be proved as of one before it."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a"), first=5), named((2, "b"), first=3))
    assert having(store, "b") == [item(2)]
    assert store.indexing.settled[TABLE].ordinal == 5
    store.close()


def test_values_that_begin_alike_and_tables_that_do_are_apart(tmp_path: Path) -> None:
    """Neither 1 and 10, nor a table whose name begins with another's."""
    longer = Index(f"{TABLE}2", ("name",))
    store = open_at(tmp_path, BY_NAME, longer)
    fold(store, start(), named((1, "1"), (2, "10"), (3, "1,")), named((1, "1"), first=5, table=longer.table))
    store.commit()
    assert having(store, "1") == [item(1)]
    assert having(store, "1", index=longer) == [item(1, longer.table)]
    assert having(store, "1", index=Index(TABLE, ("id",))) is None
    store.close()


def test_an_index_is_built_of_what_the_store_holds_a_part_with_each_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers nothing before it is complete, goes on after a restart, and takes in what changes meanwhile."""
    monkeypatch.setattr(indexing, "BUILT_TOGETHER", 4)
    store = open_at(tmp_path)
    fold(store, start(), named(*((number, "a") for number in range(10))))
    store.close()
    store = open_at(tmp_path, BY_NAME)
    for ordinal in (20, 21):
        fold(store, named((ordinal, "a"), (ordinal - 20, "b"), first=ordinal * 2))
        store.commit()
        assert having(store, "a") is None
    store.close()
    store = open_at(tmp_path, BY_NAME)
    assert having(store, "a") is None
    for ordinal in (100, 101):
        fold(store, marker(ordinal))
        store.commit()
    found = having(store, "a")
    assert found is not None
    assert set(found) >= {*(item(number) for number in range(2, 10)), item(20), item(21)}
    assert having(store, "b") == [item(0), item(1)]
    store.close()


def test_a_store_that_went_on_without_its_index_builds_it_anew(tmp_path: Path) -> None:
    """What was folded then has no entry. The offset that is written with the index shows it."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a")))
    store.close()
    store = open_at(tmp_path)
    fold(store, named((2, "a"), first=10))
    store.close()
    store = open_at(tmp_path, BY_NAME)
    assert having(store, "a") is None
    fold(store, marker(20))
    store.commit()
    assert having(store, "a") == [item(1), item(2)]
    store.close()


def test_indexes_are_no_part_of_the_state(tmp_path: Path) -> None:
    """Items and digest are those of a store without them, in the owner and in a view of its directory."""
    states = []
    for name, indexes in (("with", (BY_NAME,)), ("without", ())):
        store = open_at(tmp_path / name, *indexes)
        fold(store, start(), named((1, "a"), (2, "b")))
        store.commit()
        fold(store, named((1, "c"), first=10))
        state = [dict(store.items()), store.digest()]
        store.close()
        with StoreView(store.directory) as view:
            states.append([*state, dict(view.items()), view.digest(), list(view.items(b"\x01"))])
            assert (view.get(INDEX) is not None) == bool(indexes)
    assert states[0] == states[1]


def test_the_manifest_keeps_an_older_freshet_away(tmp_path: Path) -> None:
    """It would compare entries of indexes with a rebuild. A store without an index stays readable to it."""
    for name, indexes, expected in (("with", (BY_NAME,), INDEXED_VERSION), ("without", (), 1)):
        store = open_at(tmp_path / name, *indexes)
        store.close()
        manifest = read_manifest(store.directory)
        assert manifest is not None
        assert manifest.format_version == expected
    assert issubclass(StoreNewerError, Exception)


def changed_four_times(store: PartitionStore) -> None:
    """Folds four names of each of 500 items in one run, by column."""
    fold(store, start())
    rows = [(number % 500, f"n{number}") for number in range(2_000)]
    frames = [named(*rows[at : at + 500], first=2 + at) for at in range(0, 2_000, 500)]
    folded, _ = fold_columns(store.state, list(enumerate(frames, store.state.head.offset)), 0)
    assert isinstance(folded, Changes), "the run is long enough to be folded by column"
    fold(store, *frames)


def test_rows_that_are_folded_by_column_are_found_by_their_last_value(tmp_path: Path) -> None:
    """A commit makes the entries of the images that it writes: built from the columns, without the rows' entries."""
    store = open_at(tmp_path, BY_NAME)
    changed_four_times(store)
    store.commit()
    assert having(store, "n1507") == [item(7)]
    assert having(store, "n7") == [], "the value is that of no image in the store"
    assert store.indexing.settled[TABLE].ordinal == 2_001
    store.close()


@pytest.mark.parametrize("asked_before", [False, True])
def test_rows_by_column_without_a_value_have_no_entry_or_one_of_their_own(tmp_path: Path, asked_before: bool) -> None:
    """One with NULL, one that is deleted, and one whose image is not known, among many that have values."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start())
    names = {number: b'{"name":"n%d","pad":"%s"}' % (number, b"x" * 200) for number in range(500)}
    rows = [(item(number), VALUE, image, number + 2) for number, image in names.items()]
    rows[10] = (item(10), VALUE, b'{"name":null}', 12)
    rows[20] = (item(20), ABSENT, b"", 22)
    rows[30] = (item(30), VOID, b"", 32)
    rows[40] = (item(40), VALUE, b'{"other":1}', 42)
    folded, _ = fold_columns(store.state, [(store.state.head.offset, frame(rows))], 0)
    assert isinstance(folded, Changes), "the run is long enough to be folded by column"
    if asked_before:
        having(store, "n1")
    fold(store, frame(rows))
    store.commit()
    assert having(store, "n1") == sorted([item(1), item(30), item(40)])
    assert having(store, "n10") == having(store, "n20") == sorted([item(30), item(40)])
    assert having(store, None) == sorted([item(30), item(40)])
    store.close()


def test_who_asks_before_the_commit_finds_rows_that_are_folded_by_column(tmp_path: Path) -> None:
    """Rows are looked through when somebody asks, and from then on as they come, over the commit too."""
    store = open_at(tmp_path, BY_NAME)
    changed_four_times(store)
    for _ in range(2):
        assert having(store, "n1507") == [item(7)]
        store.commit()
    fold(store, named((7, "new"), first=3_000))
    assert (having(store, "new"), having(store, "n1507")) == ([item(7)], [item(7)])
    store.commit()
    assert having(store, "new") == [item(7)]
    store.close()


def test_of_many_changes_of_each_row_a_commit_writes_the_last_ones_entries(tmp_path: Path) -> None:
    """Also if somebody asks meanwhile: else a busy table that is asked would leave an entry of each change behind."""
    store = open_at(tmp_path, BY_NAME)
    assert having(store, "n7") == []
    changed_four_times(store)
    assert having(store, "n7") == [item(7)]
    store.commit()
    assert (having(store, "n7"), having(store, "n1507")) == ([], [item(7)])
    store.close()


def test_rows_are_looked_through_no_longer_than_somebody_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question makes the memtable after it eager too, and not all those that follow without another question."""
    store, looked = open_at(tmp_path, BY_NAME), list[int]()
    monkeypatch.setattr(indexing.Hints, "_add_entries", lambda *_: looked.append(1))
    fold(store, start())
    having(store, "new")
    for ordinal, expected in ((3_000, 1), (3_001, 0)):
        store.commit()
        fold(store, named((7, "new"), first=ordinal))
        assert len(looked) == expected
        looked.clear()
    store.close()


def test_a_look_while_the_store_is_closed_does_not_keep_it_open(tmp_path: Path) -> None:
    """Who looks after the close has begun makes an iterator, which holds RocksDB's lock: nobody could open it again."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a")))
    store.commit()
    rocks, db = store._rocks, store._rocks._db

    class Closing:
        """The database, as another thread looks into it right before it is closed."""

        def iter(self) -> Any:
            """As it does."""
            return db.iter()

        def close(self) -> None:
            """Another thread looks first."""
            assert having(store, "a") == [item(1)]
            db.close()

    rocks._db = Closing()
    rocks.close()
    again = Rocks(rocks.path)
    again.close()


def test_the_last_change_of_a_table_may_be_of_a_later_epoch(tmp_path: Path) -> None:
    """Its ordinals begin anew: what an index finds would be proved as of a history that is over."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a"), first=50), start(epoch=2))
    fold(store, frame([(item(2), VALUE, b'{"name":"b"}', 2)], epoch=2))
    settled = store.indexing.settled[TABLE]
    assert (settled.epoch, settled.ordinal) == (2, 2)
    store.close()


def test_a_row_that_is_being_looked_through_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ask at once: the second one must not take what the first has not come to yet for nothing."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), named((1, "a")))
    hints: Any = store._active.hints
    adds, left = hints._add_entries, list[int]()

    def add(entries: Any) -> None:
        left.append(len(hints._noted))
        adds(entries)

    monkeypatch.setattr(hints, "_add_entries", add)
    assert having(store, "a") == [item(1)]
    assert left == [1], "what is noted says to the second one that it has to wait"
    assert not hints._noted
    store.close()


def test_columns_that_are_asked_for_once_are_not_kept_for_ever() -> None:
    """They come from requests: a process would keep a type for each list of them until it ends."""
    for number in range(CACHED_MAX + 10):
        Extraction(Index(TABLE, (f"asked{number}",)))
    assert _reader.cache_info().currsize == _prefix.cache_info().currsize == CACHED_MAX
