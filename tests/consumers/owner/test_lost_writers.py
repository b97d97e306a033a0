"""Writers of a table of whom something is lost: its image waits for what they may have written."""

from __future__ import annotations

import pytest

from consumers.owner.evidence import demand_of
from consumers.owner.protocol import FillTable, OwnerTable
from consumers.owner.tables import answer_table, fill_table
from tests.consumers.owner.test_owner_objects import Catalog, seen
from tests.consumers.owner.test_owner_tables import NAME, at, bind, mark

OPEN = 9223372036854775807


def bound(held: Catalog, listed: str) -> None:
    """The table is created and has its name."""
    held.ordinal += 1
    held.fold(bind(held.ordinal, 7))
    held.table("created", b'"v0"', kind="transactional", write_ids=listed)


def lose(held: Catalog) -> None:
    """The next event can't be read."""
    held.ordinal += 1
    assert held.partition.store.fold([(held.offset, b"poison")])
    held.offset += 1
    held.fold(mark(held.ordinal))


def ask(held: Catalog, listed: str) -> OwnerTable:
    """A read with a list."""
    return answer_table(held.partition, NAME, 7, demand_of(seen(held.ordinal), listed, 7))


@pytest.mark.parametrize("end", ["commit", "reset"])
def test_a_lost_staged_write_is_not_forgotten(held: Catalog, end: str) -> None:
    """Another writer's COMMIT makes the table servable again; then the one whose write is lost commits."""
    bound(held, f"{NAME}:0:{OPEN}::")
    for txn, write_id in ((71, 1), (72, 2)):
        held.event("AllocWriteId", {"table_id": 7, "txn": txn, "write_id": write_id, "reallocated": False})
    lose(held)
    held.table("written", b'"v1"', kind="transactional", txn=71, write_id=1, staged=True)
    held.event("CommitTxn", {"txn": 71, "write_ids": [{"table_id": 7, "write_id": 1}]})
    assert ask(held, f"{NAME}:2:2:2:").image == b'"v1"'
    if end == "commit":
        held.event("CommitTxn", {"txn": 72, "write_ids": [{"table_id": 7, "write_id": 2}]})
    else:
        held.event("WriteIdsReset", {"table_id": 7, "write_ids": f"{NAME}:2:{OPEN}::", "committed": True})
    assert not ask(held, f"{NAME}:2:{OPEN}::").served


def test_the_servers_list_names_the_unknown_writer(held: Catalog) -> None:
    """A write without an id waits for anybody, after its ALLOC was lost. The list shows an open id: it is its."""
    bound(held, f"{NAME}:1:{OPEN}::")
    lose(held)
    held.table("written", None, kind="transactional")
    held.table("image", b'"uncommitted"', kind="transactional")
    assert not ask(held, f"{NAME}:2:2:2:").served
    held.event("WriteIdsReset", {"table_id": 7, "write_ids": f"{NAME}:2:2:2:", "committed": True})
    assert not ask(held, f"{NAME}:2:2:2:").served
    held.event("CommitTxn", {"txn": 9, "write_ids": [{"table_id": 7, "write_id": 2}]})
    assert ask(held, f"{NAME}:2:{OPEN}::").served


def test_a_fill_of_the_old_name_is_no_answer_for_the_new_one(held: Catalog) -> None:
    """A fill over no state at all survives a rename: nothing that its stamp covers has changed."""
    held.ordinal += 1
    held.fold(bind(held.ordinal, 7))
    held.fold(mark(held.ordinal))
    found = answer_table(held.partition, NAME, 7, demand_of(""))
    fill = FillTable(0, "shop", 0, 7, NAME, "external", b'{"tableName":"orders"}', "", at(5), at(5), found.stamp)
    assert fill_table(held.partition, fill).accepted
    held.event("NameBinding", {"name": "sales.new", "table_id": 7, "previous_name": NAME})
    held.fold(mark(9))
    assert not answer_table(held.partition, "sales.new", 7, demand_of(seen(9))).served


@pytest.mark.parametrize(("listed", "is_over"), [("0:{}::", False), ("1:1:1:", False), ("1:{}::", True), ("", False)])
def test_only_a_list_that_knows_the_writer_says_that_it_has_ended(held: Catalog, listed: str, is_over: bool) -> None:
    """What it wrote is not kept as the table before its COMMIT. A list from before its id does not name it as open."""
    bound(held, f"{NAME}:0:{OPEN}::")
    held.event("AllocWriteId", {"table_id": 7, "txn": 71, "write_id": 1, "reallocated": False})
    held.table("written", None, kind="transactional", txn=71, write_id=1)
    read = at(held.ordinal)
    found, ids = ask(held, f"{NAME}:1:{OPEN}::"), f"{NAME}:{listed.format(OPEN)}" if listed else ""
    fill = FillTable(0, "shop", 0, 7, NAME, "transactional", b'"v1"', ids, read, read, found.stamp)
    assert fill_table(held.partition, fill).accepted is is_over
