"""What a log's events say of rows that foreign keys change, over transactions that are cut off, prepared or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.cascades import family as family_module
from stream.sources.mariadb.cascades.children import Knowledge
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.gtid import GtidPosition
from stream.wire.events import NO_ROW, VALUE, VOID, DescribeTable, RowChange, SourceTransaction, VoidTable
from stream.wire.keys import row_key
from tests.sources.mariadb.test_family import C, P, delete_parent, known, row
from tests.sources.mariadb.test_log_reading import XID as NAME
from tests.sources.mariadb.test_log_reading import event, gtid, prepared, query, statement, voided, xa_commit
from tests.sources.mariadb.test_single_rows import MARIADB, NAMES, XID, Log, Schema, table_map
from tests.sources.mariadb.test_single_rows import row as logged

CHILD = row_key("d.c", [1])
DELETES = MARIADB.kinds[2]


def deleted(name: str) -> list[bytes]:
    """Row 1 of a table, by a statement that names the table below ``d.p`` too."""
    number = NAMES.index(name) + 1
    below = [table_map(NAMES.index("c") + 1, "c")] if name == "p" else []
    return [table_map(number, name), *below, MARIADB.rows(number, DELETES, [logged(1, b"x")])]


def moved(name: str) -> list[bytes]:
    """Row 1 of a table gets the key 2."""
    number = NAMES.index(name) + 1
    return [table_map(number, name), MARIADB.rows(number, MARIADB.kinds[1], [logged(1, b"x"), logged(2, b"x")])]


def updated(name: str) -> list[bytes]:
    """Row 1 of a table, in a column that refers to nothing."""
    number = NAMES.index(name) + 1
    return [table_map(number, name), MARIADB.rows(number, MARIADB.kinds[1], [logged(1, b"x"), logged(1, b"y")])]


class Told:
    """A reader that knows that row 1 of ``d.c`` is all there is of it, as a source that gives on what it reads."""

    def __init__(self, found: Sequence[bytes], schema: Schema | None = None) -> None:
        self.schema, self.family = schema or Schema(), Family()
        self.schema._cascades_at = GtidPosition({})
        log: Any = Log(found, lambda: 0)
        reader = BinlogReader(log, self.schema, MARIADB.start, family=self.family)
        self.family.children.begin("d.c")
        self.family.fill("d.c", [RowChange(CHILD, VALUE, b'{"id":1,"v":"x"}')])
        self.family.children.complete("d.c")
        self.given: list[SourceTransaction] = []
        with suppress(EOFError):
            for each in filter(None, reader.transactions()):
                self.given.append(each)
                self.family.commit()


def test_a_full_disk_where_rows_below_are_to_be_void_voids_what_the_transaction_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes on as where rows of the log find no room. The source ended, at each start."""

    def full(*_: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(TransactionRows, "void", full)
    [said] = Told([gtid(5), *deleted("p"), XID]).given
    assert {each.table for each in said.changes if isinstance(each, VoidTable)} == {"d.c", "d.p"}
    assert not [each for each in said.changes if isinstance(each, RowChange)]


class Visible(Schema):
    """Reads see each XA transaction as soon as it is committed."""

    def is_visible(self, _: object) -> bool:
        return True


def test_what_a_crash_cut_off_has_deleted_no_row_below() -> None:
    """The server has the row still, and it goes with its parent later."""
    found = [gtid(5), *deleted("c"), event(events.FORMAT_DESCRIPTION), gtid(5), *deleted("p"), XID]
    [said] = Told(found).given
    assert [each for each in said.changes if each != RowChange(row_key("d.p", [1]), 0)][:1] == [RowChange(CHILD, VOID)]


def test_what_one_statement_changed_says_nothing_of_what_the_next_one_changes_below() -> None:
    """A row that both change would be unclear: the whole table would be void for it."""
    [said] = Told([gtid(5), *updated("c"), *deleted("p"), XID]).given
    assert RowChange(CHILD, VOID) in list(said.changes)
    assert not voided(said)


def test_what_a_transaction_said_of_rows_is_let_go_with_it() -> None:
    """It is in the file then. In memory all rows that were ever changed would be held, as long as the source runs."""
    children = Told([gtid(5), *updated("c"), XID]).family.children
    assert (children._pending, children._referring) == ({}, {})


def test_what_is_prepared_has_deleted_no_row_yet() -> None:
    """It may be rolled back. Until then the row is there, and goes with its parent."""
    told = Told([*prepared(5, NAME, *deleted("c")), gtid(6), *deleted("p"), XID])
    assert RowChange(CHILD, VOID) in list(told.given[-1].changes)


def test_a_commit_voids_the_tables_whose_rows_went_by_foreign_keys_when_it_was_prepared() -> None:
    """The log has neither these rows nor their number any more."""
    told = Told([*prepared(5, NAME, *deleted("p")), *xa_commit(6)], Visible())
    assert [voided(each) for each in told.given] == [set(), {"d.p", "d.c"}]


def test_a_commit_voids_what_an_unfinished_statement_may_have_changed_when_it_was_prepared() -> None:
    """The log names a table without rows, and does not say that the statement ends: those below it may have changed."""
    told = Told([*prepared(5, NAME, table_map(NAMES.index("p") + 1, "p")), *xa_commit(6)], Visible())
    assert [voided(each) for each in told.given] == [set(), {"d.p", "d.c"}]


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_what_was_prepared_is_forgotten_with_its_end(end: str) -> None:
    """Its name may be used again: of a transaction that was prepared before the source began nothing is known."""
    name = f"X'{NAME[1].hex()}',X'',{NAME[0]}"
    told = Told([*prepared(5, NAME, *deleted("p")), *statement(6, f"XA {end} {name}"), *xa_commit(7)], Visible())
    assert [voided(each) for each in told.given][1:] == [{"d.p", "d.c"} if end == "COMMIT" else set(), {"*"}]


def test_a_table_whose_schema_is_known_again_is_followed_again() -> None:
    """Else all of it would be void for each row that goes with its parent."""
    schema = Schema()
    schema.catalog.doubt("d.c", schema.live["d.c"], GtidPosition.parse("MariaDB/0-1-5"))
    told = Told([gtid(5), XID], schema)
    assert told.family.relative("d.c") is not None


def test_rows_are_not_told_between_ddl_and_the_position_where_the_schema_is_known() -> None:
    """Their map may be the same as before: what it does not say of a column may be another."""

    class Later(Schema):
        def reread(self, database: str, table: str) -> None:
            self.catalog.doubt(f"{database}.{table}", self.live["d.a"], GtidPosition.parse("MariaDB/0-1-8"))

    inserted = [table_map(1, "a"), MARIADB.rows(1, MARIADB.kinds[0], [logged(1, b"x")]), XID]
    told = Told([gtid(5), *inserted, *statement(6, "ALTER TABLE a FORCE"), gtid(7), *inserted], Later())
    assert [sum(type(each) is RowChange for each in said.changes) for said in told.given] == [1, 0, 0]


def test_a_dropped_database_takes_foreign_keys_along() -> None:
    """They may have led from its tables to others, or the other way."""
    asked: list[Any] = []

    class Asked(Schema):
        def reread_cascades(self, names: Any = None) -> None:
            asked.append(names)

    Told(statement(5, "DROP DATABASE d"), Asked())
    assert asked == [None]


def test_names_of_a_server_without_upper_case_are_read_so() -> None:
    """Whatever a statement writes: both the database's and the table's."""
    schema = Schema()
    schema.lower_case_names = True
    [said] = Told(statement(5, "ALTER TABLE D.A ADD c INT"), schema).given
    assert voided(said) == {"d.a"}
    assert {each.table for each in said.changes if isinstance(each, DescribeTable)} == {"d.a"}


@pytest.mark.parametrize(("collation", "is_read"), [(45, True), (8, False), (0, False)])
def test_a_statement_in_another_character_set_names_no_table(collation: int, is_read: bool) -> None:
    """Its letters may be those of another name in UTF-8."""
    schema = Schema()
    schema.charsets = type(schema.charsets)({45: "utf8mb4", 8: "latin1"}, {}, frozenset())
    status = b"\4" + collation.to_bytes(2, "little") * 3
    plain = query("ALTER TABLE ü FORCE")
    head, rest = plain[: events.HEADER_SIZE + 11], plain[events.HEADER_SIZE + 13 :]
    found = head + len(status).to_bytes(2, "little") + status + rest
    [said] = Told([gtid(5, flags=events.STANDALONE), found], schema).given
    assert voided(said) == ({"d.ü"} if is_read else {"*"})


def test_an_update_whose_rows_are_only_partly_logged_afterwards_voids_its_table() -> None:
    """Each of its two images says by itself which columns it has."""
    whole = MARIADB.rows(1, MARIADB.kinds[1], [logged(1, b"x"), logged(1, b"y")])
    at = events.HEADER_SIZE + 9
    assert whole[at : at + 2] == b"\3\3"
    partly = whole[:at] + b"\3\1" + whole[at + 2 :]
    [said] = Told([gtid(5), table_map(1, "a"), partly, XID]).given
    assert [type(each) for each in said.changes] == [VoidTable]


# -- what is known of rows ---------------------------------------------------------------------------------------------


def test_rows_that_were_put_back_to_a_savepoint_are_not_known() -> None:
    """Nothing in the log says which of them."""
    family = known()
    relative = family.relative(C)
    assert relative is not None
    family.changed(relative, None, row(C, 12, 1))
    family.rolled_back()
    assert family.children.knowledge(C) is Knowledge.NOTHING


def test_a_statement_that_changes_too_many_parents_voids_the_table_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were not kept have rows below them too."""
    monkeypatch.setattr(family_module, "CHANGES_MAX", 1)
    family = known()
    relative = family.relative(P)
    assert relative is not None
    family.changed(relative, row(P, 2), None)
    assert delete_parent(family, 1) == {}


@pytest.mark.parametrize("name", ["a", "c"])
def test_a_row_that_gets_another_key_was_not_there_under_it(name: str) -> None:
    """Also where the table has foreign keys: a change stream would tell the other row's values as those of before."""
    log: Any = Log([gtid(5), *moved(name), XID], lambda: 0)
    reader = BinlogReader(log, Schema(), MARIADB.start, family=Family(), keeps_before=True)
    [told] = list(islice(reader.transactions(), 1))
    assert told is not None
    befores = {change.key: change.before for change in told.changes if isinstance(change, RowChange)}
    assert befores == {row_key(f"d.{name}", [1]): b'{"id":1,"v":"x"}', row_key(f"d.{name}", [2]): NO_ROW}
