"""Rows by indexed columns: what an owner answers, from when on it holds, and when it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.fold.messages import fold_messages
from consumers.owner.client import OwnerClient
from consumers.owner.meaning import fingerprint
from consumers.owner.protocol import SCHEMA_CHANGED, GetRange, RangeRows
from consumers.owner.ranges import answering, indexed
from consumers.owner.ranges.indexed import meaning_with
from consumers.store.index import Index, values_of
from stream.wire.events import ABSENT, VALUE, VOID
from stream.wire.keys import row_key
from tests.consumers.fold.test_backfills import begun, complete, topology
from tests.consumers.histories import event, frame, gtid, marker, start
from tests.consumers.owner.test_ranges import answered
from tests.consumers.owning import Owner, schema, vector

TABLE = "shop.items"
INDEX = Index(TABLE, ("state", "size"))
COLUMNS = [
    {"name": "id", "kind": "int", "exact": True},
    {"name": "state", "kind": "text", "exact": True},
    {"name": "size", "kind": "int", "exact": True},
]
KEY = fingerprint([("id", "int", True)])
MEANING = meaning_with(KEY, [("state", "text", True), ("size", "int", True)])


def item(number: int) -> bytes:
    """The key of an item."""
    return row_key(TABLE, [number])


def rows(first: int, *items: tuple[int, str | None]) -> bytes:
    """A frame in which items of size 1 get a state, or (None) are deleted; each is a transaction."""
    return frame(
        [
            (item(number), VALUE, b'{"id":%d,"state":"%s","size":1}' % (number, state.encode()), at)
            if state is not None
            else (item(number), ABSENT, b"", at)
            for at, (number, state) in enumerate(items, first)
        ]
    )


def whole_owner(directory: Path, *items: tuple[int, str | None], **described: Any) -> Owner:
    """An owner with a table that is whole at 0-1-100, and its index complete."""
    owner = Owner(directory, indexes=[INDEX])
    about = schema(2, TABLE, **({"columns": COLUMNS, "primary_key": ["id"]} | described))
    owner.fold(start(), topology("shop/0"), about, begun(3, TABLE))
    if items:
        owner.fold(rows(4, *items))
    owner.fold(complete(100, TABLE), marker(100))
    owner.partition.store.commit()
    return owner


def asked(state: str, **more: Any) -> GetRange:
    """A request for the first ten items in a state, of size 1."""
    equal = values_of([state, 1])
    request = GetRange(0, "shop", 0, 1, TABLE.encode() + b"\0", 0, limit=10, meaning=MEANING, equal=equal)
    request.index = ["state", "size"]
    for name, value in more.items():
        setattr(request, name, value)
    return request


def test_rows_that_have_the_values_come_in_the_order_of_the_key(tmp_path: Path) -> None:
    """And their number, and the pages behind a row."""
    items = [(10, "a"), (9, "b"), (2, "a"), (100, "a")]
    found = answered(whole_owner(tmp_path / "1", *items), asked("a", vector=vector(100)))
    assert (found.keys, found.served, found.freshness) == ([item(2), item(10), item(100)], True, "fresh")
    assert (found.hi, found.watermark) == (gtid(100), gtid(100))
    assert answered(whole_owner(tmp_path / "2", *items), asked("a", limit=0)).count == 3
    page = answered(whole_owner(tmp_path / "3", *items), asked("a", limit=1, after=item(2)))
    assert (page.keys, page.more) == ([item(10)], True)
    assert answered(whole_owner(tmp_path / "4", *items), asked("c", vector=vector(100))).served


def test_a_row_that_left_or_is_deleted_is_not_given_and_moves_the_answer(tmp_path: Path) -> None:
    """The answer holds from the last change of the table on."""
    owner = whole_owner(tmp_path, (1, "a"), (2, "a"), (3, "a"))
    owner.fold(rows(101, (1, "b"), (2, None)), marker(110))
    found = answered(owner, asked("a", vector=vector(105)))
    assert (found.keys, found.hi, found.watermark) == ([item(3)], gtid(102), gtid(110))


def total(number: int, value: str) -> tuple[bytes, int, bytes, int]:
    """An item of size 1 in state a with a total; the ordinal is its number plus 3."""
    return item(number), VALUE, b'{"id":%d,"state":"a","size":1,"total":%b}' % (number, value.encode()), number + 3


def totals(directory: Path) -> Owner:
    """An owner with a whole table of items with totals. NULL is before all others."""
    columns = [*COLUMNS, {"name": "total", "kind": "decimal", "exact": False}]
    owner = Owner(directory, indexes=[INDEX])
    about = schema(2, TABLE, columns=columns, primary_key=["id"])
    owner.fold(start(), topology("shop/0"), about, begun(3, TABLE))
    owner.fold(frame([total(at, each) for at, each in enumerate(['"10.0"', "null", '"9.5"', '"-1.0"', '"9.5"'], 1)]))
    owner.fold(complete(100, TABLE), marker(100))
    owner.partition.store.commit()
    return owner


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(
    ("more", "numbers"),
    [
        ({}, [2, 4, 3, 5, 1]),
        ({"descending": True}, [1, 5, 3, 4, 2]),
        ({"limit": 2}, [2, 4]),
        ({"after": item(2), "after_values": b"[null]"}, [4, 3, 5, 1]),
        ({"after": item(3), "after_values": b'["9.5"]'}, [5, 1]),
        ({"after": item(5), "after_values": b'["9.50"]', "descending": True}, [3, 4, 2]),
        ({"limit": 0}, []),
    ],
)
def test_rows_come_in_the_order_of_another_column(
    tmp_path: Path, more: dict[str, Any], numbers: list[int], indexed: bool
) -> None:
    """And of the key where its values are equal, in both directions, page by page."""
    owner = totals(tmp_path)
    request = asked("a", vector=vector(100), order=["total"], **more)
    if not indexed:
        request.index, request.equal = [], b""
    meaning = MEANING if indexed else KEY
    request.meaning = meaning_with(meaning, [("total", "decimal", False)], "order")
    found = answered(owner, request)
    assert (found.served, found.keys) == (True, [item(number) for number in numbers]), found.why
    assert found.count == (len(numbers) if request.limit else 5)


def test_columns_of_an_index_are_not_taken_for_those_of_an_order(tmp_path: Path) -> None:
    """A request by an index that nobody keeps goes to the source; the next one by the same column does not."""
    owner, total = totals(tmp_path), [("total", "decimal", False)]
    by_index = asked("a", index=["total"], equal=b'["9.5"]', meaning=meaning_with(KEY, total))
    ordered = asked("a", index=[], equal=b"", order=["total"], meaning=meaning_with(KEY, total, "order"))

    async def use(client: OwnerClient) -> None:
        assert [(await client.answer(request, RangeRows)).served for request in (by_index, ordered)] == [False, True]

    owner.run(use)


@pytest.mark.parametrize(
    ("columns", "role", "code"),
    [
        ([("total", "decimal", False)], "index", SCHEMA_CHANGED),
        ([("total", "int", False)], "order", SCHEMA_CHANGED),
        ([], "", SCHEMA_CHANGED),
    ],
)
def test_an_order_by_columns_that_mean_something_else_is_refused(
    tmp_path: Path, columns: list[tuple[str, str, bool]], role: str, code: str
) -> None:
    """An owner that did not know of orders would give the first rows by key: it sees another meaning."""
    request = asked("a", vector=vector(100), order=["total"])
    request.index, request.equal = [], b""
    request.meaning = meaning_with(KEY, columns, role) if columns else KEY
    found = answered(totals(tmp_path), request)
    assert (found.served, found.code) == (False, code)


@pytest.mark.parametrize("values", [b"", b"[]", b"[1,2]", b"{", b'["x"]'])
def test_a_page_of_another_order_is_not_known(tmp_path: Path, values: bytes) -> None:
    """Whoever made it up: the source answers."""
    request = asked("a", order=["total"], after=item(1), after_values=values)
    request.meaning = meaning_with(MEANING, [("total", "decimal", False)], "order")
    found = answered(totals(tmp_path), request)
    assert (found.served, found.needs_source) == (False, True)


@pytest.mark.parametrize("change", [(1, "b"), (1, None), (5, "a"), (1, "a")])
def test_a_row_that_came_left_or_changed_after_the_marker_waits_for_the_next(
    tmp_path: Path, change: tuple[int, str | None]
) -> None:
    """What it was at the watermark is not known any more."""
    owner = whole_owner(tmp_path, (1, "a"))
    owner.fold(rows(101, change))
    found = answered(owner, asked("a"))
    assert (found.served, found.needs_source) == (False, False)
    assert "marker" in found.why


@pytest.mark.parametrize("change", [(1, "b"), (1, None), (5, "a"), (1, "a")])
def test_a_row_that_changes_while_it_is_looked_up_makes_the_answer_wait(
    tmp_path: Path, change: tuple[int, str | None]
) -> None:
    """Entries are visible before the head and before what is said of the table. Even a row that has left is met."""
    owner = whole_owner(tmp_path, (1, "a"))
    store = owner.partition.store
    [folded] = fold_messages(store.state, [(store.state.head.offset, rows(101, change))])
    store._active.put(folded.entries)
    found = answered(owner, asked("a"))
    assert (found.served, found.needs_source) == (False, False)
    assert "marker" in found.why


def test_values_that_a_row_had_in_between_are_no_gap(tmp_path: Path) -> None:
    """Of a row that got and lost a value in one step no entry is left: the answer begins at the table's last change."""
    owner = whole_owner(tmp_path, (1, "a"))
    owner.fold(rows(101, (7, "c")), rows(102, (7, "b")), marker(105), marker(120))
    found = answered(owner, asked("c", vector=vector(101)))
    assert (found.keys, found.hi, found.watermark) == ([], gtid(102), gtid(120))


def test_what_was_folded_before_a_restart_is_known_from_the_watermark_on(tmp_path: Path) -> None:
    """And not before the watermark has passed it."""
    owner = whole_owner(tmp_path, (1, "a"))
    owner.fold(marker(110), rows(111, (2, "b")))
    owner.partition.store.close()
    again = Owner(tmp_path, indexes=[INDEX])
    again.fold(marker(110))
    early = answered(again, asked("a"))
    assert (early.served, early.needs_source) == (False, True)
    again = Owner(tmp_path, indexes=[INDEX])
    again.fold(marker(112))
    found = answered(again, asked("a", vector=vector(112)))
    assert (found.keys, found.hi) == ([item(1)], gtid(112))


def test_a_void_a_new_epoch_and_a_row_without_an_image_are_not_known(tmp_path: Path) -> None:
    """As in a range of keys. A table that is whole again has its old rows no more."""
    void: dict[str, Any] = {"table": TABLE, "reason": "test", "gtid": gtid(120), "position": gtid(120), "timestamp": 1}
    owner = whole_owner(tmp_path / "void", (1, "a"), (2, "a"))
    owner.fold(event("TableVoid", 120, **void), marker(120))
    assert answered(owner, asked("a")).needs_source
    owner = whole_owner(tmp_path / "again", (1, "a"), (2, "a"))
    owner.fold(event("TableVoid", 120, **void), begun(121, TABLE), rows(122, (2, "a")), complete(123, TABLE))
    owner.fold(marker(130))
    assert answered(owner, asked("a", vector=vector(123))).keys == [item(2)]
    owner = whole_owner(tmp_path / "unknown", (1, "a"))
    owner.fold(frame([(item(3), VOID, b"", 101)]), marker(110))
    found = answered(owner, asked("b"))
    assert (found.served, "image" in found.why) == (False, True)


def test_an_order_that_only_the_source_knows_matters_to_several_rows_only(tmp_path: Path) -> None:
    """A row that is alone needs none: that is a look-up by a unique value in a table with a text key."""
    columns = [{"name": "id", "kind": "text", "exact": True}, *COLUMNS[1:]]
    key = fingerprint([("id", "text", True)])
    meaning = meaning_with(key, [("state", "text", True), ("size", "int", True)])
    items = [(1, "a"), (2, "b"), (3, "b")]
    for state, served in (("a", True), ("b", False)):
        owner = whole_owner(tmp_path / state, *items, columns=columns)
        found = answered(owner, asked(state, meaning=meaning))
        assert found.served is served, found.why
    owner = whole_owner(tmp_path / "count", *items, columns=columns)
    assert answered(owner, asked("b", meaning=meaning, limit=0)).count == 2


def test_other_columns_than_the_owner_knows_are_refused(tmp_path: Path) -> None:
    """Another kind, and a request of the key's meaning alone, as one that doesn't name the index would be."""
    other = meaning_with(KEY, [("state", "int", True), ("size", "int", True)])
    for number, meaning in enumerate((other, KEY, b"")):
        found = answered(whole_owner(tmp_path / str(number), (1, "a")), asked("a", meaning=meaning))
        assert (found.served, found.code) == (False, SCHEMA_CHANGED)


def test_an_owner_of_before_refuses_by_the_meaning(tmp_path: Path) -> None:
    """It ignores the fields that it doesn't know, and would give the whole table."""
    found = answered(whole_owner(tmp_path, (1, "a"), (2, "b")), asked("a", index=[], equal=b""))
    assert (found.served, found.code) == (False, SCHEMA_CHANGED)


def test_an_index_that_is_not_kept_or_too_many_entries_go_to_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason names the index."""
    unknown = asked("a", index=["size"], equal=b"[1]", meaning=meaning_with(KEY, [("size", "int", True)]))
    found = answered(whole_owner(tmp_path / "1", (1, "a")), unknown)
    assert (found.needs_source, f"{TABLE}(size)" in found.why) == (True, True)
    monkeypatch.setattr(answering, "LOOKED_MAX", 2)
    found = answered(whole_owner(tmp_path / "2", (1, "a"), (2, "a"), (3, "a")), asked("a"))
    assert (found.needs_source, "more than 2 rows" in found.why) == (True, True)


def test_values_that_most_rows_have_left_are_looked_up_again_once_their_entries_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a queue, whose rows are new and then gone. Also where too many were met for an answer."""
    monkeypatch.setattr(answering, "LOOKED_MAX", 8)
    monkeypatch.setattr(indexed, "OUTDATED_MIN", 3)
    for number, left in enumerate((6, 12)):
        owner = whole_owner(tmp_path / str(number), *((each, "a") for each in range(left + 2)))
        owner.fold(rows(101, *((each, None if each % 2 else "b") for each in range(left))), marker(120))
        owner.partition.store.commit()

        async def use(client: OwnerClient, owner: Owner = owner, left: int = left) -> None:
            store, equal = owner.partition.store, values_of(["a", 1])
            assert (await client.answer(asked("a", vector=vector(120)), RangeRows)).served is (left == 6)
            assert len(store.having(INDEX, equal, 100) or ()) == left + 2
            owner.fold(rows(121, (50, "b")), marker(130))
            store.commit()
            assert len(store.having(INDEX, equal, 100) or ()) == 2
            found = await client.answer(asked("a", vector=vector(130)), RangeRows)
            assert (found.keys, found.served) == ([item(left), item(left + 1)], True)

        owner.run(use)
