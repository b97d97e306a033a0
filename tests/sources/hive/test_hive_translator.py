"""Notification events become transactions, and an unreadable one voids only what it may have touched."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any, TypeGuard

import pytest

from lab.simulation.hive.metastore import Metastore
from stream.sources.hive.events import IGNORED, WRITES
from stream.sources.hive.messages import HiveMessageError, TableObject, decode_message
from stream.sources.hive.translator import HiveTranslator
from stream.sources.hive.write_id_registry import WriteIdRegistry
from stream.wire.events import (
    EVERY_TABLE,
    AllocateWriteId,
    BindName,
    CommitTransaction,
    ObjectImage,
    ObjectSet,
    OpenTransaction,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from tests.conformance.samples import rows
from tests.lab.workload.folded import Folded


def _translated(server: Metastore, **options: Any) -> list[SourceTransaction]:
    translator = HiveTranslator(**options)
    found = [translator.translate(row) for row in server.log]
    return [transaction for transaction in found if transaction is not None]


def _event(event_id: int, event_type: str, table: str | None = None, **message: Any) -> dict[str, Any]:
    row = {"eventId": event_id, "eventTime": 1, "eventType": event_type, "db": "S" if table else None, "table": table}
    return row | {"message": message}


def test_a_commit_carries_the_table_and_write_ids_that_it_ends(server: Metastore) -> None:
    """A COMMIT carries the (table id, write id) pairs that its transaction allocated since its OPEN."""
    server.end(2, commit=True)
    *_, allocated, committed = _translated(server)
    assert allocated.changes == [AllocateWriteId(1, 1, 1), AllocateWriteId(1, 2, 2)]
    assert committed.changes == [CommitTransaction(2, ((1, 2),))]
    assert committed.closed == (2,)
    assert committed.gtid == committed.position == "HiveEvent/4"


def test_a_transaction_whose_open_was_not_seen_is_left_to_be_looked_up(server: Metastore) -> None:
    """If the OPEN was not seen, allocations may be missing, so the transaction is listed for a look-up."""
    server.end(1, commit=True)
    translator = HiveTranslator(names={"s.a": 1})
    for row in server.log[2:]:
        translator.translate(row)
    assert translator.unresolved == [1]


def test_a_restart_continues_with_the_open_transactions_of_the_topic(server: Metastore) -> None:
    """The open transactions in the topic suffice to end them after a restart."""
    before = _translated(server)
    known = {opened.txn: opened for transaction in before for opened in transaction.opened}
    assert known[1] == OpenTransaction(1, ((1, 1),))
    server.end(1, commit=False)
    translator = HiveTranslator(open_transactions=known.values(), names={"s.a": 1})
    ended = translator.translate(server.log[-1])
    assert ended is not None
    assert ended.closed == (1,)
    assert [getattr(change, "write_ids", None) for change in ended.changes] == [((1, 1),)]


def test_an_id_from_before_its_table_is_told_with_the_create() -> None:
    """CTAS: the ALLOC comes before the CREATE. A source that starts between that and the COMMIT must end it."""
    server = Metastore()
    server.open_txns(1)
    server.allocate("s.a", [1])
    server.create("s.a", "full")
    known = {opened.txn: opened for transaction in _translated(server) for opened in transaction.opened}
    assert known[1] == OpenTransaction(1, ((1, 1),))


def test_an_id_from_before_the_server_showed_its_table_is_told_with_it() -> None:
    """As with the CREATE, if that was not seen."""
    server = Metastore()
    server.open_txns(1)
    server.allocate("s.a", [1])
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    translator.bind(TableObject("s.a", 7, True, True, b"{}"))
    assert translator.writers_of("s.a") == (OpenTransaction(1, ((7, 1),)),)


def test_the_same_event_is_translated_once_and_a_gap_voids_everything(server: Metastore) -> None:
    """A repeated event is ignored, and a gap in the event ids voids everything."""
    translator = HiveTranslator()
    for row in server.log:
        assert translator.translate(row) is not None
        assert translator.translate(row) is None
    later = translator.translate(_event(9, "CREATE_DATABASE"))
    assert later is not None
    assert later.changes == [VoidTable("*", "events 4 to 8 are missing from the log")]


def test_one_missing_event_is_a_gap(server: Metastore) -> None:
    """It may have been a write, an ALLOC or a COMMIT of any table."""
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    following = translator.translate(_event(4, "CREATE_DATABASE"))
    assert following is not None
    assert following.changes == []
    later = translator.translate(_event(6, "CREATE_DATABASE"))
    assert later is not None
    assert later.changes == [VoidTable("*", "events 5 to 5 are missing from the log")]


def test_a_gap_is_told_of_every_open_transaction(server: Metastore) -> None:
    """What a transaction allocated in the gap is unknown, also after a restart: the published map says so."""
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    found = translator.translate(_event(90, "OPEN_TXN", txnIds=[7], timestamp=1))
    assert found is not None
    assert {each.txn: each.seen_open for each in found.opened} == {1: False, 2: False, 7: True}


@pytest.mark.parametrize("is_missing", [False, True])
def test_after_a_void_of_everything_a_table_may_be_transactional(is_missing: bool) -> None:
    """Its conversion may be what could not be read. As an external table it would show what is not committed."""
    server, folded = Metastore(), Folded(1)
    folded.start("HiveEvent/0")
    server.create("s.out", "external")
    server.convert("s.out")
    if is_missing:
        server.log.pop()
    else:
        server.log[-1]["message"] = "{"
    server.open_txns(1)
    server.allocate("s.out", [1])
    server.write("s.out", "INSERT", 1)
    for row in server.log[1:]:
        row["eventId"] += is_missing
    folded.publish(_translated(server))
    shown = TableImage(1, "s.out", "transactional", "image", image=b"{}", write_ids="s.out:10000001:10000001:10000001:")
    shown.lo = shown.hi = "HiveEvent/9"
    folded.publish([SourceTransaction("HiveEvent/9", "HiveEvent/9", 1, [shown])])
    table = folded.table(1)
    assert table is not None
    assert [write_id for _, write_id in table.pending] == [10_000_001]


def test_every_event_type_of_the_sample_is_known() -> None:
    """Every event of a real log is understood, so none voids a table."""
    translator = HiveTranslator()
    for row in rows("hive_log"):
        transaction = translator.translate(row)
        assert transaction is not None
        assert not any(isinstance(change, VoidTable) for change in transaction.changes)


def test_each_table_is_found_by_its_id_under_the_name_that_it_has(server: Metastore) -> None:
    """After every event: renames, drops, names that another table takes, and ids that have no name."""
    server.create("s.b", "external")
    server.rename("s.a", "s.c")
    server.rename("s.b", "s.a")
    server.drop("s.c")
    server.create("s.c", "full")
    for log in (server.log, rows("hive_log")):
        translator, seen = HiveTranslator(), {0}
        for row in log:
            translator.translate(row)
            bound = {table_id: name for name, table_id in translator.tables.items()}
            seen |= bound.keys()
            assert {each: translator.name_of(each) for each in seen} == {each: bound.get(each, "") for each in seen}
        assert len(seen) > 3


WRITING = [
    "ADD_PARTITION",
    "ALTER_PARTITION",
    "ALTER_PARTITIONS",
    "DROP_PARTITION",
    "INSERT",
    "ACID_WRITE_EVENT",
    "BATCH_ACID_WRITE_EVENT",
    "UPDATE_TBL_COL_STAT_EVENT",
    "DELETE_TBL_COL_STAT_EVENT",
    "UPDATE_PART_COL_STAT_EVENT",
    "DELETE_PART_COL_STAT_EVENT",
    "UPDATE_PART_COL_STAT_EVENT_BATCH",
    "ADD_PRIMARYKEY",
    "ADD_FOREIGNKEY",
    "ADD_UNIQUECONSTRAINT",
    "ADD_NOTNULLCONSTRAINT",
    "ADD_DEFAULTCONSTRAINT",
    "ADD_CHECKCONSTRAINT",
    "DROP_CONSTRAINT",
    "COMMIT_COMPACTION_EVENT",
    "RELOAD",
]
"""Of ``EventMessage.EventType``, the events that change what a metastore says of a table."""


_KEY_OF_A = '{"1":{"str":"s"},"2":{"str":"b"},"4":{"str":"S"},"5":{"str":"A"}}'
"""An ``SQLForeignKey`` of ``s.a`` to ``s.b``."""


def test_a_foreign_key_is_of_the_table_that_has_it(server: Metastore) -> None:
    """The event is named after the other table. One that cannot be read may be of any."""
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    added = translator.translate(_event(4, "ADD_FOREIGNKEY", "B", foreignKeyListJson=[_KEY_OF_A]))
    assert added is not None
    assert ObjectImage("constraints", 1, (), "written") in added.changes
    for number, keys in enumerate(([], None, ["{}"], ["rubbish"], "text"), 5):
        damaged = translator.translate(_event(number, "ADD_FOREIGNKEY", "B", foreignKeyListJson=keys))
        assert damaged is not None
        assert [getattr(each, "table", "") for each in damaged.changes] == [EVERY_TABLE]


def test_every_event_that_changes_a_table_is_among_the_writes() -> None:
    """One that is taken for harmless would leave the image from before it servable."""
    assert set(WRITING) == WRITES
    assert not WRITES & IGNORED


@pytest.mark.parametrize("event_type", WRITING)
def test_a_write_to_a_known_table_makes_its_image_awaited(server: Metastore, event_type: str) -> None:
    """After a write to a table or a part of it, the table's entry waits for a new image."""
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    written = translator.translate(_event(4, event_type, "A", writeId=2, foreignKeyListJson=[_KEY_OF_A]))
    assert written is not None
    assert written.changes[0] == TableImage(1, "s.a", "transactional", "written", txn=2, write_id=2)
    assert all(isinstance(each, ObjectImage | ObjectSet) and each.table_id == 1 for each in written.changes[1:])


@pytest.mark.parametrize("event_type", sorted(IGNORED))
def test_what_touches_no_table_only_moves_the_position(event_type: str) -> None:
    """Events of objects without entries only move the position."""
    transaction = HiveTranslator().translate(_event(1, event_type))
    assert transaction is not None
    assert (transaction.changes, transaction.position) == ([], "HiveEvent/1")


@pytest.mark.parametrize(
    ("row", "scope"),
    [
        (_event(1, "ALTER_TABLE", "a", tableObjBeforeJson="{"), "*"),  # a rename's columns hold the new name only
        (_event(1, "ALLOC_WRITE_ID_EVENT", "a", dbName="s", tableName="a", txnIdList=[1], writeIdList=[]), "s.a"),
        (_event(1, "COMMIT_TXN", txnid="x"), "*"),
        (_event(1, "OPEN_TXN", fromTxnId=5, toTxnId=1), "*"),
        (_event(1, "SOMETHING_NEW", "a"), "s.a"),
        (_event(1, "SOMETHING_NEW"), "*"),
        (_event(1, "CREATE_TABLE", "a") | {"message": "H4sI-not base64"}, "s.a"),
        (_event(1, "DROP_TABLE", "a") | {"message": None}, "s.a"),
    ],
)
def test_an_event_that_cannot_be_read_voids_what_it_may_have_touched(row: dict[str, Any], scope: str) -> None:
    """An unreadable event voids its table if it names one, else everything, and the stream continues."""
    transaction = HiveTranslator().translate(row)
    assert transaction is not None
    assert [change.table for change in transaction.changes if isinstance(change, VoidTable)] == [scope]


def test_a_message_is_read_in_every_form_a_server_gives() -> None:
    """Messages are accepted as mappings, as JSON text, and as gzipped JSON in base64 (Hive 4's default)."""
    message = {"txnid": 7}
    packed = base64.b64encode(gzip.compress(json.dumps(message).encode())).decode()
    for form in (message, json.dumps(message), packed):
        assert decode_message(form, "gzip(json-2.0)") == message
    with pytest.raises(HiveMessageError):
        decode_message(packed[:-8])


def test_a_rename_that_was_not_seen_frees_the_old_name(server: Metastore) -> None:
    """A table that is shown with another name than before has no longer the old one, else that would be served."""
    server.rename("s.a", "w.b")
    renamed = server.log.pop()
    server.alter("w.b")
    server.log[-1]["eventId"] = renamed["eventId"] + 1
    changes = _translated(server)[-1].changes
    assert isinstance(changes[0], VoidTable)
    assert BindName("w.b", 1, "s.a") in changes


def test_a_table_may_live_on_where_its_name_was_left(server: Metastore) -> None:
    """After a rename that was not seen, a DROP of its database, or of the name's next table, does not drop it."""
    for dropping in ("DROP_DATABASE", "DROP_TABLE"):
        seen = Metastore(
            [*server.log], {**server.txns}, [*server.rows], {**server.next_ids}, {**server.tables}, {}, 2, 1
        )
        seen.rename("s.a", "w.b")
        if dropping == "DROP_TABLE":
            seen.create("s.a", "full")
            del seen.log[-2:]
            seen.drop("s.a")
            seen.log[-1]["eventId"] = 6
        else:
            seen.drop_database("s")
            del seen.log[-2]
        dropped = [change.table_id for each in _translated(seen) for change in each.changes if _is_drop(change)]
        assert 1 not in dropped


def _is_drop(change: object) -> TypeGuard[TableImage]:
    return isinstance(change, TableImage) and change.change == "dropped"


def test_a_rename_binds_the_new_name_and_frees_the_old(server: Metastore) -> None:
    """A rename binds the new name to the same table id and unbinds the old name. Before that its image is awaited."""
    server.rename("s.a", "w.b")
    changes = _translated(server)[-1].changes
    [image] = [each for each in changes if isinstance(each, TableImage)]
    assert (image.name, image.change) == ("w.b", "written")
    assert changes.index(image) < changes.index(BindName("w.b", 1, "s.a"))


@pytest.mark.parametrize("known", [False, True])
def test_a_write_of_a_table_that_is_not_known_is_told(known: bool) -> None:
    """The event only names it. A source that has read the table before must read it again: it is in no change."""
    translator = HiveTranslator(names={"d.t": 7} if known else {})
    event = {"eventId": 5, "eventTime": 1, "eventType": "DELETE_TBL_COL_STAT_EVENT", "dbName": "d", "tableName": "t"}
    found = translator.translate(event | {"message": '{"server":"","dbName":"d","tableName":"t"}'})
    assert found is not None
    assert (bool(found.changes), translator.unbound) == (known, [] if known else ["d.t"])
    translator.translate(event | {"eventId": 6, "eventType": "CREATE_ISCHEMA", "message": "{}"})
    assert translator.unbound == [], "of the last event"


def _of(name: str, table_id: int, event_id: int, event_type: str, before: str = "") -> dict[str, Any]:
    """An event of the external table ``db/table``, which was called ``before`` if it is an ALTER_TABLE."""

    def shown(of: str) -> str:
        db, _, table = of.partition("/")
        fields = {"1": {"str": table}, "2": {"str": db}, "25": {"i64": table_id}}
        return json.dumps(fields)

    db, _, table = name.partition("/")
    message = {
        "tableObjJson": shown(name),
        "tableObjBeforeJson": shown(before or name),
        "tableObjAfterJson": shown(name),
    }
    return _event(event_id, event_type, table, **message) | {"db": db}


def test_a_database_with_a_dot_is_not_mistaken_for_another() -> None:
    """``a.b.t`` is ``t`` of ``a.b`` as well as ``b.t`` of ``a``: what is done to the former spares the latter."""
    translator = HiveTranslator()

    def told(*row: Any) -> list[Any]:
        transaction = translator.translate(_of(*row))
        assert transaction is not None
        return [*transaction.changes]

    assert BindName("a.b.t", 1) in told("a/b.t", 1, 1, "CREATE_TABLE")
    told("a/x", 2, 2, "CREATE_TABLE")
    assert told("a.b/t", 3, 3, "CREATE_TABLE") == []
    assert told("a.b/t", 3, 4, "ALTER_TABLE") == []
    left_name = told("a.b/y", 2, 5, "ALTER_TABLE", "a/x")
    assert BindName("a.x", 0) in left_name, "it has left its name"
    about = [each.change for each in left_name if isinstance(each, TableImage)]
    assert about == ["written"], "what is known of its id is old, and it is not dropped: the fold would keep it so"
    back = told("a/z", 3, 6, "ALTER_TABLE", "a.b/t")
    assert [each for each in back if isinstance(each, BindName)] == [BindName("a.z", 3)]
    assert told("a.b/y", 2, 7, "DROP_TABLE") == []
    left = translator.translate(_event(8, "DROP_DATABASE", None) | {"db": "a.b"})
    assert left is not None
    assert not [each for each in left.changes if isinstance(each, BindName | VoidTable)]
    assert translator.tables == {"a.b.t": 1, "a.z": 3}


def test_a_foreign_key_to_a_database_with_a_dot_is_of_the_table_that_has_it(server: Metastore) -> None:
    """The event is named after the other table, which nobody is told of; the constraints are those of ``s.a``."""
    translator = HiveTranslator()
    for row in server.log:
        translator.translate(row)
    added = translator.translate(_event(4, "ADD_FOREIGNKEY", "t", foreignKeyListJson=[_KEY_OF_A]) | {"db": "a.b"})
    assert added is not None
    assert ObjectImage("constraints", 1, (), "written") in added.changes


def _shown(*columns: str, keys: tuple[str, ...] = ()) -> str:
    """The external table ``s.a`` with these columns, as an event shows it."""

    def listed(names: tuple[str, ...]) -> dict[str, Any]:
        fields = [{"1": {"str": name}, "2": {"str": "int"}} for name in names]
        return {"lst": ["rec", len(fields), *fields]}

    struct = {"1": {"str": "a"}, "2": {"str": "s"}, "7": {"rec": {"1": listed(columns)}}, "8": listed(keys)}
    return json.dumps({**struct, "25": {"i64": 7}})


def _written_by_alter(*steps: tuple[str, str], **message: Any) -> set[str]:
    """What the last of these alters, (before, after), made of what belongs to the table: kinds that were written."""
    translator = HiveTranslator()
    translator.translate(_event(1, "CREATE_TABLE", "a", tableObjJson=steps[0][0]))
    last = None
    for at, (before, after) in enumerate(steps, 2):
        row = _event(at, "ALTER_TABLE", "a", tableObjBeforeJson=before, tableObjAfterJson=after, **message)
        last = translator.translate(row)
    assert last is not None
    return {change.kind for change in last.changes if isinstance(change, ObjectImage | ObjectSet)}


OF_COLUMNS = {"constraints", "statistics", "aggregate_statistics"}
OF_PARTITIONS = {"partition", "partition_statistics", "aggregate_statistics"}


def test_an_alter_that_leaves_the_columns_leaves_constraints_and_statistics() -> None:
    """Else each parameter that is set would have them read again, and each reader go to the metastore meanwhile."""
    x, y, keyed = _shown("x"), _shown("x", "y"), _shown("x", keys=("p",))
    assert _written_by_alter((x, x)) == set(), "a table without partition columns has no partitions"
    assert _written_by_alter((keyed, keyed)) == OF_PARTITIONS, "a cascade leaves no event"
    assert _written_by_alter((x, y)) == OF_COLUMNS
    assert _written_by_alter((x, y), (y, x)) == OF_COLUMNS
    assert _written_by_alter((x, y), (y, y)) == set()


def test_an_alter_that_read_older_columns_may_change_constraints_and_statistics() -> None:
    """Of two alters at once, the one that is logged later may show the columns that it read, and bring them back."""
    x, y = _shown("x"), _shown("x", "y")
    assert _written_by_alter((x, y), (x, x)) == OF_COLUMNS


def test_a_truncation_and_an_alter_of_a_table_whose_columns_are_not_known_write_all() -> None:
    """A truncation ends statistics. A source that has just started knows the names of tables, not their columns."""
    x = _shown("x")
    assert _written_by_alter((x, x), isTruncateOp="true") == OF_COLUMNS
    assert _written_by_alter((x, x), isTruncateOp="false") == set()
    translator = HiveTranslator(names={"s.a": 7})
    first, second = (
        translator.translate(_event(at, "ALTER_TABLE", "a", tableObjBeforeJson=x, tableObjAfterJson=x)) for at in (1, 2)
    )
    assert first is not None
    assert {each.kind for each in first.changes if isinstance(each, ObjectImage)} == OF_COLUMNS
    assert second is not None
    assert not [each for each in second.changes if isinstance(each, ObjectImage)]


@pytest.mark.parametrize("what", ["renamed", "dropped"])
def test_a_restart_knows_nothing_of_ids_that_another_catalog_took_away(server: Metastore, what: str) -> None:
    """Else the COMMIT would say that the table here, whose ids begin again from 1, has that id."""
    if what == "renamed":
        server.rename("s.a", "s.b")
    else:
        server.drop("s.a")
    server.log[-1]["catName"] = "other" if what == "renamed" else "hive"
    catalog = "hive" if what == "renamed" else "other"
    for row in server.log[:-1]:
        row["catName"] = catalog
    before = _translated(server, catalog=catalog)
    known = {opened.txn: opened for transaction in before for opened in transaction.opened}
    server.end(1, commit=True)
    translator = HiveTranslator(open_transactions=known.values(), names={"s.a": 1}, catalog=catalog)
    ended = translator.translate(server.log[-1])
    assert ended is not None
    assert ended.changes == [CommitTransaction(1, ())]


def test_ids_that_outlive_a_drop_have_ended_with_their_transactions() -> None:
    """A table that is made anew has the ids of the one before: one that was committed meanwhile would stay open."""
    ids = WriteIdRegistry()
    for number in (1, 2):
        ids.allocate("s.a", number, number)
    ids.drop("s.a")
    assert ids.end(1, committed=True) == [], "it is not certain whose they are"
    assert ids.allocate("s.a", 3, 3).survived_drop
    known = ids.get("s.a")
    assert known is not None
    assert known.open == [(2, 2), (3, 3)]
