"""Objects that are read by name while their owner folds: an answer is of one moment, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consumers.fold.objects import object_key
from stream.wire.keys import object_name
from tests.consumers.owner.test_owner_objects import LIST, Catalog, seen
from tests.consumers.owner.test_owner_tables import NAME, at
from tokens import Position


def folding_before(held: Catalog, key: bytes, fold: Callable[[], None]) -> list[int]:
    """Folds messages just before the answer reads ``key``."""
    store: Any = held.partition.store
    real, done = store.get, list[int]()

    def get(asked: bytes) -> bytes | None:
        if asked == key and not done:
            done.append(1)
            fold()
        found: bytes | None = real(asked)
        return found

    store.get = get
    return done


def test_hi_covers_what_is_shown(held: Catalog) -> None:
    """Else the next read of the session could go back behind it."""
    held.fill(1)
    held.event("NameBinding", {"name": "sales.x", "table_id": 99, "previous_name": ""})
    there, absent = object_name(("d0", "0")), object_name(("zz", "9"))
    done = folding_before(
        held, object_key("partition", 7, there), lambda: held.object("image", "d0", "0", image=b'"NEW"')
    )
    before = held.ordinal
    found = held.ask(names=[there, absent], vector=seen(before))
    assert done
    assert not found.served or Position.parse(found.hi).at_or_past(Position.parse(at(held.ordinal))), (
        found.freshness,
        found.images,
        found.hi,
        "the shown image is of",
        at(held.ordinal),
    )


def test_nothing_of_an_open_transaction_is_shown(held: Catalog) -> None:
    """It writes between the look at the table and the look at its partition."""
    held.fill(1, kind="transactional")
    there = object_name(("d0", "0"))

    def write() -> None:
        held.event("AllocWriteId", {"table_id": 7, "txn": 5, "write_id": 1, "reallocated": False})
        held.table("written", None, kind="transactional", txn=5, write_id=1)
        held.object("image", "d0", "0", image=b'"UNCOMMITTED"')

    wanted = {"write_ids": LIST, "vector": seen(2)}
    assert held.ask(names=[there], **wanted).served
    done = folding_before(held, object_key("partition", 7, there), write)
    found = held.ask(names=[there], **wanted)
    assert done
    after = held.ask(names=[there], **wanted)
    assert "still pending" in after.why
    assert not found.served, (found.freshness, found.images)


def test_statistics_of_another_write_are_not_compliant(held: Catalog) -> None:
    """They are of write 2, and the table that was looked at is of write 1."""

    def accurate(n: int) -> bytes:
        return b'{"writeId":%d,"parameters":{"COLUMN_STATS_ACCURATE":"{\\"BASIC_STATS\\":\\"true\\"}"}}' % n

    one, two = (f"{NAME}:{n}:9223372036854775807::" for n in (1, 2))
    held.fill(kind="transactional", write_ids=one)
    held.table("image", accurate(1), kind="transactional", write_ids=one)
    held.object("image", kind="statistics", image=b'"of write 1"')

    def write() -> None:
        held.table("image", accurate(2), kind="transactional", write_ids=two)
        held.object("image", kind="statistics", image=b'"of write 2"')

    done = folding_before(held, object_key("statistics", 7, "[]"), write)
    found = held.ask("statistics", names=["[]"], write_ids=one, vector=seen(2))
    assert done
    steady = held.ask("statistics", names=["[]"], write_ids=one, vector=seen(2))
    assert steady.compliant == [False]
    assert not found.served or found.compliant == [b"of write 1" in (found.images[0] or b"")]
