"""Images of before a void, for reads that demand nothing and ask for them. No socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.evidence import demand_of
from consumers.owner.meaning import fingerprint
from consumers.owner.protocol import SCHEMA_CHANGED, Fill, Get, OwnerRow
from consumers.owner.rows import answer_rows, fill_row, last_known_row
from stream.wire.events import ABSENT
from tests.consumers.histories import event, frame, gtid, key, marker, start, value
from tests.consumers.owning import KEYSPACE, Owner, schema, vector

BY_ID = fingerprint([("id", "int", True)])
OLD = b'{"id":1,"v":"old"}'


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """Row 1 with a value, row 2 deleted; then a DDL voids the table."""
    owner = Owner(tmp_path)
    owner.fold(start(), schema(2), value(1, OLD, 3), frame([(key(2), ABSENT, b"", 4)]), marker(4))
    owner.fold(void(5), schema(6), marker(6))
    yield owner
    owner.partition.store.close(commit=False)


def void(ordinal: int, table: str = "shop.items", **more: Any) -> bytes:
    """A void of a table, as a DDL is told."""
    return event("TableVoid", ordinal, table=table, reason="ALTER TABLE", **more)


def ask(owner: Owner, number: int = 1, token: str = "", *, last_known: bool = True, not_before_ms: int = 0) -> OwnerRow:
    """What the owner answers."""
    request = Get(
        1, KEYSPACE, 0, [key(number)], token, 0, {"shop.items": BY_ID}, "", not_before_ms, last_known=last_known
    )
    [row] = answer_rows(owner.partition, request, demand_of(token, not_before_ms=not_before_ms))
    return row


def test_an_image_of_before_a_ddl_is_readable_and_never_fresh(owner: Owner) -> None:
    """Who asks for it gets the bytes that were folded, as `eventual`, at the position that they are of."""
    row = ask(owner)
    assert (row.served, row.image, row.freshness) == (True, OLD, "eventual")
    assert (row.lo, row.hi) == (gtid(3), gtid(3))
    assert "before a void at ordinal 5" in row.why


def test_nobody_else_gets_it(owner: Owner) -> None:
    """Neither who does not ask, nor who demands anything: even a place or time that the image is of."""
    assert not ask(owner, last_known=False).served
    assert not ask(owner, token=vector(1)).served
    assert not ask(owner, token=vector(3)).served
    assert not ask(owner, not_before_ms=1).served
    assert not ask(owner, 2).served
    assert not ask(owner, 3).served


def test_what_the_source_was_read_for_since_goes_before_it(owner: Owner) -> None:
    """A fill, and an event, are newer."""
    stamp = ask(owner, last_known=False).stamp
    assert fill_row(owner.partition, Fill(1, KEYSPACE, 0, key(1), b'{"id":1}', gtid(6), gtid(6), 1, stamp)).accepted
    assert ask(owner).image == b'{"id":1}'
    owner.fold(value(1, b'{"id":1,"w":2}', 7), marker(7))
    assert ask(owner).image == b'{"id":1,"w":2}'


def test_an_image_that_no_void_has_met_is_no_last_known_one(owner: Owner) -> None:
    """Nothing says then that it is old: a reader is told what is folded, or to read the source."""
    store = owner.partition.store
    assert last_known_row(store.visible, key(1), store.get(key(1)), 0) is not None
    owner.fold(value(1, b'{"id":1,"v":"new"}', 7), marker(7))
    assert store.get(key(1)) is not None
    assert last_known_row(store.visible, key(1), store.get(key(1)), 0) is None


def test_an_image_of_a_lost_history_is_no_last_known_one(owner: Owner) -> None:
    """Nobody knows that it was ever the row's; and a void of everything in the same history is like a table's."""
    owner.fold(void(7, "*"), marker(7))
    assert ask(owner).image == OLD
    owner.fold(start(epoch=2, sequence=9), schema(2, epoch=2), marker(2, epoch=2, sequence=9))
    assert not ask(owner).served


def test_an_image_is_not_given_for_a_key_that_means_something_else_now(owner: Owner) -> None:
    """After a change of the primary key the bytes of a key may be another row's."""
    columns = [{"name": "id", "kind": "text", "exact": True}]
    owner.fold(void(7), schema(8, columns=columns), marker(8))
    row = ask(owner)
    assert (row.served, row.image, row.code) == (False, None, SCHEMA_CHANGED)
