"""Writers of a table of whom something is lost: its image waits for what they may have written."""

from __future__ import annotations

import pytest

from consumers.fold.catalog_state import TableState
from consumers.fold.state import Lineage
from consumers.owner.evidence import demand_of
from consumers.owner.protocol import FillTable, OwnerTable
from consumers.owner.tables import answer_table, fill_table, judge_table_fill
from tests.consumers.owner.test_owner_objects import Catalog, seen
from tests.consumers.owner.test_owner_tables import NAME, SHARD, at, bind, mark
from tests.consumers.owning import KEYSPACE
from tokens.writeid_state import WriteIds

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


@pytest.mark.parametrize("is_known", [False, True])
def test_whoever_is_open_may_have_written_before_the_first_event(held: Catalog, *, is_known: bool) -> None:
    """The image waits for their ends. With the CREATE all is known: who has an open id has written nothing."""
    listed = f"{NAME}:2:2:2:"
    if is_known:
        bound(held, f"{NAME}:1:{OPEN}::")
        held.event("AllocWriteId", {"table_id": 7, "txn": 72, "write_id": 2, "reallocated": False})
    else:
        held.ordinal += 1
        held.fold(bind(held.ordinal, 7))
    held.table("image", b'"v1"', kind="transactional", write_ids=listed)
    held.event("AllocWriteId", {"table_id": 7, "txn": 72, "write_id": 2, "reallocated": False})
    assert ask(held, listed).served is is_known
    held.table("image", b'"v2"', kind="transactional", write_ids=listed)
    assert ask(held, listed).served is is_known
    held.event("AbortTxn", {"txn": 72, "write_ids": [{"table_id": 7, "write_id": 2}], "reconciled": False})
    assert ask(held, listed).image == b'"v2"'


def test_whoever_is_open_may_have_written_what_was_lost(held: Catalog) -> None:
    """Another one's write, with its own write id, and its end do not end the wait for the one whose write is lost."""
    bound(held, f"{NAME}:0:{OPEN}::")
    for txn, write_id in ((71, 1), (72, 2)):
        held.event("AllocWriteId", {"table_id": 7, "txn": txn, "write_id": write_id, "reallocated": False})
    lose(held)
    held.table("written", b'"v1"', kind="transactional", txn=72, write_id=2)
    held.event("AbortTxn", {"txn": 72, "write_ids": [{"table_id": 7, "write_id": 2}], "reconciled": False})
    assert not ask(held, f"{NAME}:2:1:1:2").served
    held.table("image", b'"v1"', kind="transactional", write_ids=f"{NAME}:2:1:1:2")
    assert "write id 1" in ask(held, f"{NAME}:2:1:1:2").why
    held.event("CommitTxn", {"txn": 71, "write_ids": [{"table_id": 7, "write_id": 1}]})
    assert ask(held, f"{NAME}:2:{OPEN}::2").image == b'"v1"'


def test_who_gets_another_id_instead_is_waited_for_until_its_end(held: Catalog) -> None:
    """The COMMIT names the new id alone, and the list had not told whose the first one was."""
    held.ordinal += 1
    held.fold(bind(held.ordinal, 7))
    held.table("image", b'"v1"', kind="transactional", write_ids=f"{NAME}:1:1:1:")
    for write_id in (1, 2):
        again = write_id == 2
        held.event("AllocWriteId", {"table_id": 7, "txn": 71, "write_id": write_id, "reallocated": again})
    assert not ask(held, f"{NAME}:2:2:2:").served
    held.event("CommitTxn", {"txn": 71, "write_ids": [{"table_id": 7, "write_id": 2}]})
    assert ask(held, f"{NAME}:2:{OPEN}::").image == b'"v1"'


def test_ids_that_begin_again_are_waited_for_until_the_servers_list(held: Catalog) -> None:
    """A table of another catalog has taken them along. The end of who held one names this table no more."""
    held.ordinal += 1
    held.fold(bind(held.ordinal, 7))
    held.table("image", b'"v1"', kind="transactional", write_ids=f"{NAME}:3:3:3:")
    held.event("WriteIdsReset", {"table_id": 7, "write_ids": f"{NAME}:0:{OPEN}::", "committed": False})
    assert not ask(held, f"{NAME}:0:{OPEN}::").served
    held.table("image", b'"v2"', kind="transactional", write_ids=f"{NAME}:0:{OPEN}::")
    assert ask(held, f"{NAME}:0:{OPEN}::").image == b'"v2"'


def test_a_table_without_open_ids_never_waits_for_writers(held: Catalog) -> None:
    """Whatever was lost: its first image is served, and one that has no list whoever holds ids of its name."""
    held.ordinal += 1
    held.fold(bind(held.ordinal, 7))
    held.table("image", b'"v1"', kind="transactional", write_ids=f"{NAME}:3:{OPEN}::2")
    assert ask(held, f"{NAME}:3:{OPEN}::2").image == b'"v1"'
    lose(held)
    held.event("AllocWriteId", {"table_id": 7, "txn": 71, "write_id": 4, "reallocated": False})
    held.table("image", b'"v2"', kind="external")
    assert answer_table(held.partition, NAME, 7, demand_of(seen(held.ordinal))).image == b'"v2"'


@pytest.mark.parametrize(
    ("opened", "behind", "written", "accepted"),
    [("1", 0, None, True), ("1", 1, None, False), ("", 1, None, True), ("1", 1, 0, True), ("1", 2, 1, False)],
)
def test_what_an_open_writer_may_have_written_meanwhile_is_not_kept(
    held: Catalog, opened: str, behind: int, written: int | None, *, accepted: bool
) -> None:
    """The metastore shows what is uncommitted. Once all that it may show is folded, its writers are known."""
    bound(held, f"{NAME}:0:{OPEN}::")
    held.event("AllocWriteId", {"table_id": 7, "txn": 71, "write_id": 1, "reallocated": False})
    held.table("written", None, kind="transactional", txn=72, write_id=2)
    held.event("CommitTxn", {"txn": 72, "write_ids": [{"table_id": 7, "write_id": 2}]})
    read, listed = at(held.ordinal + behind), f"{NAME}:2:{opened or OPEN}:{opened}:"
    stamp = ask(held, listed).stamp
    offer = FillTable(0, "shop", 0, 7, NAME, "transactional", b'"v2"', listed, read, read, stamp)
    offer.written = "" if written is None else at(held.ordinal + written)
    assert fill_table(held.partition, offer).accepted is accepted


@pytest.mark.parametrize(("listed", "accepted"), [("1:1:1:", False), ("1:2::1", False), (f"1:{OPEN}::", True)])
def test_before_a_tables_first_event_only_a_list_without_open_ids_is_kept(
    held: Catalog, listed: str, *, accepted: bool
) -> None:
    """Nobody knows here what its writers have written."""
    held.ordinal += 1
    held.fold(bind(held.ordinal, 7))
    held.fold(mark(held.ordinal))
    found = ask(held, f"{NAME}:{listed}")
    read = at(held.ordinal)
    offer = FillTable(0, "shop", 0, 7, NAME, "transactional", b"{}", f"{NAME}:{listed}", read, read, found.stamp)
    assert fill_table(held.partition, offer).accepted is accepted


@pytest.mark.parametrize(
    ("later", "written", "accepted"), [(0, None, True), (1, None, False), (1, 0, True), (2, 1, False)]
)
def test_what_may_be_written_since_the_list_is_not_kept(
    held: Catalog, later: int, written: int | None, *, accepted: bool
) -> None:
    """A list without an open id does not know who has begun after it: the image may show what is uncommitted.

    Events of other tables, which a session takes away, say nothing of that.
    """
    bound(held, f"{NAME}:0:{OPEN}::")
    held.table("written", None, kind="transactional", txn=71, write_id=1)
    held.event("CommitTxn", {"txn": 71, "write_ids": [{"table_id": 7, "write_id": 1}]})
    lo, hi, listed = at(held.ordinal), at(held.ordinal + later), f"{NAME}:1:{OPEN}::"
    offer = FillTable(0, "shop", 0, 7, NAME, "transactional", b'"v2"', listed, lo, hi, ask(held, listed).stamp)
    offer.written = "" if written is None else at(held.ordinal + written)
    assert fill_table(held.partition, offer).accepted is accepted


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


@pytest.mark.parametrize(("read_at", "accepted"), [(6, True), (7, True), (5, False)])
def test_ids_that_a_server_listed_before_the_image_was_read_take_no_images_place(read_at: int, accepted: bool) -> None:
    """Only a list of since then shows that the folded one lacks what the server gave out without an event."""
    state = TableState(7, SHARD, 1, 6, NAME, exists=True, created=1, ids=WriteIds(hwm=5), image=b"{}", image_ordinal=6)
    state.lo = state.hi = at(6)
    offer = FillTable(
        0, KEYSPACE, 0, 7, NAME, "transactional", b"{}", f"{NAME}:6:{OPEN}::", at(read_at), at(read_at), b""
    )
    verdict = judge_table_fill(state, offer, SHARD, Lineage(1, 6, 4, at(4), 0, at(0)))
    assert (verdict.accepted, "already has an image" in verdict.why) == (accepted, not accepted)
