"""What readers find while the thread that folds, or the one that commits, is between two of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from consumers.fold.columns import fold_columns
from consumers.fold.entry import HEAD, encode_transaction_tag
from consumers.fold.objects import object_key, objects_prefix, set_key
from consumers.fold.state import Changes
from consumers.store.index import Extraction, values_of
from consumers.store.indexing import Hints
from consumers.store.memtable import Memtable
from consumers.store.store import PartitionStore
from stream.wire.events import VALUE, VOID
from tests.consumers.histories import SHARD, frame, gtid, start
from tests.consumers.store.test_indexes import BY_NAME, TABLE, fold, having, item, named, open_at

PREFIX, SET = objects_prefix("partition", 7), set_key("partition", 7)
OBJECT = object_key("partition", 7, '["a"]')


def entry(ordinal: int, name: str) -> bytes:
    """Of an item with this name."""
    tag = encode_transaction_tag(SHARD, 1, gtid(ordinal), 0)
    return HEAD.pack(VALUE, ordinal) + tag + b'{"name":"%s"}' % name.encode()


def opened_as(kind: type[PartitionStore], directory: Path) -> Any:
    """A store of this kind, with an index."""
    return kind.open(directory, keyspace="shop", partition=3, topic_id="topic-1", indexes=[BY_NAME])


class Freezing(PartitionStore):
    """Freezes its memtable right after a reader has taken the first of the two, once it is told to."""

    freezes = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in ("_active", "_frozen") and super().__getattribute__("freezes"):
            self.freezes = False
            assert self.freeze()
        return found


LOOKS: dict[str, Callable[[PartitionStore], bool]] = {
    "get": lambda store: store.get(item(1)) is not None,
    "begins": lambda store: store.begins([item(1)]) != [None],
    "between": lambda store: len(store.between(item(1), item(2), 9)) == 1,
    "having": lambda store: having(store, "a") == [item(1)],
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_row_is_found_whose_memtable_is_frozen_during_the_look(tmp_path: Path, look: str) -> None:
    """It moves from the one memtable to the other: who took them the other way round would see it in neither."""
    store = opened_as(Freezing, tmp_path)
    fold(store, start(), named((1, "a")))
    store.freezes = True
    assert LOOKS[look](store)
    assert not store.freezes, "it was frozen meanwhile"
    store.close()


def test_a_row_without_an_image_is_found_at_each_step_of_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That no image is unknown is remembered of the files before it: until that is forgotten, the memtable has it."""
    store = open_at(tmp_path, BY_NAME)
    fold(store, start(), frame([(item(1), VOID, b"", 2)]))
    looks: list[list[bytes] | None] = []

    def looking(step: Callable[..., Any]) -> Callable[..., Any]:
        def look_first(*arguments: Any) -> Any:
            looks.append(having(store, "a"))
            return step(*arguments)

        return look_first

    for part, name in ((store._rocks, "ingest"), (store.indexing, "written"), (store.dropping, "written")):
        monkeypatch.setattr(part, name, looking(getattr(part, name)))
    store.commit()
    assert looks == [[item(1)]] * 3
    store.close()


class Watched(PartitionStore):
    """Keeps how new the newest entries are that it tells of when a head becomes visible."""

    told: list[tuple[int, int]]

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "visible" and "told" in self.__dict__:
            newest = self.indexing.settled.get(TABLE)
            self.told.append((value.lineages[SHARD].ordinal, newest.ordinal if newest is not None else 0))
        super().__setattr__(name, value)


def test_the_last_change_of_a_table_is_told_before_the_head_that_covers_it(tmp_path: Path) -> None:
    """Who takes the head first, and then asks for the last change, proves nothing by one from before it."""
    store = opened_as(Watched, tmp_path)
    fold(store, start())
    store.told = []
    fold(store, named((1, "a")))
    head = store.state.head
    lineages = {SHARD: head.lineages[SHARD]._replace(ordinal=3)}
    store.apply(Changes(head.offset + 1, {item(1): entry(3, "b")}, lineages))
    assert store.told == [(2, 2), (3, 3)]
    store.close()


class Asked(Hints):
    """Somebody asks for the first time right after it was looked whether anybody has, once it is told to."""

    asks = False

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "_seen" and super().__getattribute__("asks"):
            self.asks, self._seen = False, True
        return found


def test_a_commit_has_the_entries_of_all_its_rows_though_somebody_begins_to_ask_for_them() -> None:
    """Who asks looks through the rows, and has not come to all of them yet: an index would lack the others for good."""
    making = Extraction(BY_NAME)
    hints = Asked({making.table: [making]}, {})
    memtable = Memtable(hints)
    memtable.put({item(1): entry(2, "a")})
    hints.asks = True
    assert hints.keys(memtable) == [making.begin_of(values_of(["a"])) + b"[1]"]
    assert not hints.asks


class Looked(dict[bytes, Any]):
    """The entries of a memtable, with a look after each step of a `put`."""

    def __init__(self, look: Callable[[], object]) -> None:
        super().__init__()
        self._look, self.seen = look, list[object]()

    def update(self, *more: Any) -> None:
        """As of any dictionary."""
        super().update(*more)
        self.seen.append(self._look())


def test_who_meets_that_an_object_is_gone_meets_its_set_as_it_is_after_that() -> None:
    """By the set a list knows that something has changed: it would lack the object, and be as late as before."""
    memtable = Memtable()
    memtable.put({SET: b"1", OBJECT: b"1"})
    entries = Looked(lambda: (memtable.get(SET), memtable.get(OBJECT)))
    entries |= memtable.entries
    memtable.entries = entries
    memtable.put({SET: b"2"}, [PREFIX])
    assert entries.seen == [(b"2", b"1"), (b"2", b"")]


def test_rows_that_were_folded_by_column_can_be_read_as_soon_as_they_are_there(tmp_path: Path) -> None:
    """The columns that build them are there before."""
    store = open_at(tmp_path)
    fold(store, start())
    image = b'{"name":"%s"}' % (b"x" * 200)
    rows = frame([(item(number), VALUE, image, number + 2) for number in range(300)])
    folded, _ = fold_columns(store.state, [(store.state.head.offset, rows)], 0)
    assert folded is not None, "the run is long enough to be folded by column"
    memtable = Memtable()
    memtable.entries = entries = Looked(lambda: memtable.get(item(0)))
    memtable.put(folded.entries)
    assert entries.seen
    assert all(entries.seen)
    store.close()


class PutMeanwhile(dict[bytes, Any]):
    """Entries that another thread adds to at the first look: of a list, after as many keys."""

    def __init__(self, held: dict[bytes, Any], more: dict[bytes, Any], keys: int = 0) -> None:
        super().__init__(held)
        self._more, self._keys = more, keys

    def _put(self) -> None:
        more, self._more = self._more, {}
        self.update(more)

    def get(self, key: bytes, default: Any = None) -> Any:
        """As of any dictionary; then the others are put."""
        found = super().get(key, default)
        self._put()
        return found

    def __reversed__(self) -> Iterator[bytes]:
        keys = super().__reversed__()
        yield from islice(keys, self._keys)
        self._put()
        yield from keys if self._keys else super().__reversed__()


def test_an_object_that_comes_back_during_a_look_is_not_gone() -> None:
    """Its set was emptied: it had no entry when it was looked for, and has one when that is found out."""
    memtable = Memtable()
    memtable.put({SET: b"1"}, [PREFIX])
    memtable.entries = PutMeanwhile(memtable.entries, {OBJECT: b"2"})
    assert [memtable.get(OBJECT) for _ in range(2)] == [b"2"] * 2


@pytest.mark.parametrize("keys", [0, 1])
def test_a_list_has_each_key_from_before_while_others_are_put(keys: int) -> None:
    """The newest are counted from the end, which moves; and Python refuses to go on over what has changed."""
    memtable = Memtable()
    memtable.put({item(number): b"x" for number in range(9)})
    memtable.entries = PutMeanwhile(memtable.entries, {item(9): b"x"}, keys)
    assert sorted(memtable.between(b"", b"\xff")) == [item(number) for number in range(10)]
