"""The catalog whose truth is MariaDB behaves as a metastore does, with writes that an ABORT undoes."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from lab.workload.catalog import CatalogError, WorkloadCatalog, version_of
from lab.workload.judge import judge, newest_version
from lab.workload.log import WorkloadLog, WorkloadLogLost
from stream.sources.mariadb.connection import ConnectionSettings

NONE_OPEN = 2**63 - 1


def test_a_committed_write_is_the_table_and_an_aborted_one_never_was(catalog: WorkloadCatalog) -> None:
    """COMMIT makes the staged image the table's, ABORT leaves the committed one; the list says which ids count."""
    catalog.create_table("d.t")
    first, second = catalog.open_txn(), catalog.open_txn()
    assert catalog.alloc_write_id(first, "d.t") == 1
    assert catalog.alloc_write_id(second, "d.t") == 2
    assert catalog.alloc_write_id(first, "d.t") == 1
    assert catalog.write_table("d.t", {"a": 1}, first) == 2
    staged = catalog.read_table("d", "t")
    assert staged is not None
    assert version_of(staged.image) == 1
    catalog.commit(first)
    catalog.write_table("d.t", {"a": 2}, second)
    catalog.abort(second)
    found = catalog.read_table("d", "t")
    assert found is not None
    assert version_of(found.image) == 2
    assert found.write_ids == f"d.t:2:{NONE_OPEN}::2"


def test_a_list_collapses_while_nothing_is_committed(catalog: WorkloadCatalog) -> None:
    """As at a real metastore: without a committed id the list ends at its lowest exception."""
    catalog.create_table("d.t")
    txns = [catalog.open_txn() for _ in range(3)]
    for txn in txns:
        catalog.alloc_write_id(txn, "d.t")
    catalog.abort(txns[0])
    assert catalog.valid_write_ids("d.t") == "d.t:1:2::1"
    catalog.commit(txns[1])
    assert catalog.valid_write_ids("d.t") == "d.t:3:3:3:1"


def test_a_writer_sees_its_own_write_but_not_later_ids_of_others(catalog: WorkloadCatalog) -> None:
    """In its own transaction a list has the own id as valid, and a read with that list gives the staged image."""
    catalog.create_table("d.t")
    txn, later = catalog.open_txn(), catalog.open_txn()
    catalog.alloc_write_id(txn, "d.t")
    catalog.alloc_write_id(later, "d.t")
    version = catalog.write_table("d.t", {}, txn)
    own = catalog.valid_write_ids("d.t", own_txn=txn)
    assert own == f"d.t:1:{NONE_OPEN}::"
    found = catalog.read_table("d", "t", own)
    assert found is not None
    assert version_of(found.image) == version
    assert found.write_ids == own
    assert newest_version(catalog, found.table_id, own) == version
    assert newest_version(catalog, found.table_id, catalog.valid_write_ids("d.t")) == 1


def test_two_transactions_cannot_both_have_a_write_staged_on_a_table(catalog: WorkloadCatalog) -> None:
    """Writes are exclusive, so that versions rise in commit order and a version says what it holds."""
    catalog.create_table("d.t")
    first, second = catalog.open_txn(), catalog.open_txn()
    for txn in (first, second):
        catalog.alloc_write_id(txn, "d.t")
    catalog.write_table("d.t", {}, first)
    with pytest.raises(CatalogError) as refused:
        catalog.write_table("d.t", {}, second)
    assert refused.value.code == "write_conflict"
    catalog.commit(first)
    assert catalog.write_table("d.t", {}, second) == 3


def test_a_rename_moves_the_ids_and_a_new_table_of_the_name_starts_anew(catalog: WorkloadCatalog) -> None:
    """The list follows the table, also for open writers; DROP and CREATE give another id and a new list."""
    table_id = catalog.create_table("d.t")
    txn = catalog.open_txn()
    catalog.alloc_write_id(txn, "d.t")
    catalog.rename_table("d.t", "e.u")
    assert catalog.table_id("e.u") == table_id
    assert catalog.valid_write_ids("e.u") == "e.u:1:1:1:"
    catalog.commit(txn)
    catalog.drop_table("e.u")
    assert catalog.read_table("e", "u") is None
    assert catalog.create_table("e.u") != table_id
    assert catalog.valid_write_ids("e.u") == f"e.u:0:{NONE_OPEN}::"


def test_an_invalid_operation_is_refused_with_its_reason(catalog: WorkloadCatalog) -> None:
    """Each refusal has a code, and changes nothing in the truth or its log."""
    catalog.create_table("d.x", "external")
    catalog.create_table("d.t")
    txn = catalog.open_txn()
    before = catalog.position()[0]
    refusals: dict[str, Callable[[], object]] = {
        "no_such_table": lambda: catalog.drop_table("d.none"),
        "table_exists": lambda: catalog.rename_table("d.x", "d.t"),
        "no_such_transaction": lambda: catalog.commit(99),
        "bad_write": lambda: catalog.write_table("d.t", {}),
    }
    for code, operation in refusals.items():
        with pytest.raises(CatalogError) as refused:
            operation()
        assert refused.value.code == code
    with pytest.raises(CatalogError):
        catalog.write_table("d.t", {}, txn)
    assert catalog.position()[0] == before


def test_event_ids_have_no_gaps_and_are_in_commit_order(
    new_session: Callable[[], WorkloadCatalog], server: ConnectionSettings, database: str
) -> None:
    """Concurrent sessions that also fail leave a log whose ids count up by one: a tail can't miss an event."""
    sessions = [new_session() for _ in range(4)]
    sessions[0].create_schema()
    sessions[0].create_table("d.t")

    def work(session: WorkloadCatalog) -> None:
        for _ in range(10):
            txn = session.open_txn()
            session.alloc_write_id(txn, "d.t")
            try:
                session.write_table("d.t", {}, txn)
            except CatalogError:
                session.abort(txn)
            else:
                session.commit(txn)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions]
    for thread in threads:
        thread.start()
    with WorkloadLog(server, database, 0) as tail:
        seen = []
        while any(thread.is_alive() for thread in threads):
            seen += tail.read(7)
        while rows := tail.read():
            seen += rows
    assert [row.event_id for row in seen] == list(range(1, len(seen) + 1))
    ends = [row.txn for row in seen if row.event_type in ("COMMIT", "ABORT")]
    assert sorted(ends) == sorted(set(ends))
    assert len(ends) == 40


def test_a_log_that_does_not_go_on_where_its_reader_is_is_lost(
    catalog: WorkloadCatalog, server: ConnectionSettings, database: str
) -> None:
    """A truth that was restored to an earlier state, or a log that was cut, is noticed, not read over."""
    catalog.create_table("d.t")
    with WorkloadLog(server, database, 5) as ahead, pytest.raises(WorkloadLogLost):
        ahead.read()
    catalog.create_table("d.u")
    with catalog.snapshot() as read:
        read.rows("SELECT 1")
    with WorkloadLog(server, database, 0) as behind, behind.catalog._operation() as change:
        change.run("DELETE FROM catalog_log WHERE event_id=%s", 1)
    with WorkloadLog(server, database, 0) as behind, pytest.raises(WorkloadLogLost):
        behind.read()


def test_the_judge_knows_an_answer_that_missed_a_write(catalog: WorkloadCatalog) -> None:
    """An image older than the newest version inside the demand is wrong, whichever part of the demand holds it."""
    table_id = catalog.create_table("d.t")
    old = catalog.read_table("d", "t")
    assert old is not None
    before = catalog.valid_write_ids("d.t")
    txn = catalog.open_txn()
    catalog.alloc_write_id(txn, "d.t")
    catalog.write_table("d.t", {}, txn)
    assert not judge(catalog, table_id, old.image, catalog.valid_write_ids("d.t"), catalog.position()[0]).wrong
    catalog.commit(txn)
    assert not judge(catalog, table_id, old.image, before).wrong
    assert judge(catalog, table_id, old.image, catalog.valid_write_ids("d.t")).wrong
    assert judge(catalog, table_id, old.image, before, catalog.position()[0]).wrong
