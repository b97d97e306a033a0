"""A session at the simulated server, and the execution of its statements."""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Final, cast

from pymysql.constants import ER

from lab.simulation.mariadb.answers import Answer, table_of
from lab.simulation.mariadb.information_schema import SHOWN, shown
from lab.simulation.mariadb.log import events
from lab.simulation.mariadb.selecting import Selecting, fixed_answer
from lab.simulation.mariadb.sql.definitions import CreateTable, DropTables, SchemaChange
from lab.simulation.mariadb.sql.parsing import (
    Administration,
    Begin,
    Delete,
    End,
    Insert,
    Select,
    Set,
    Show,
    Statement,
    Union,
    Update,
    Xa,
    parsed,
)
from lab.simulation.mariadb.sql.syntax import Call, Expression, Name, UnknownStatement, Variable
from lab.simulation.mariadb.storage.columns import Stored
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.expressions import Scope, like
from lab.simulation.mariadb.storage.schema_changes import names_of, resolved
from lab.simulation.mariadb.storage.tables import Table
from lab.simulation.mariadb.transacting import Transacting
from lab.simulation.mariadb.transactions import Steps
from lab.simulation.mariadb.variables import SessionVariables
from lab.simulation.mariadb.writing import Writing

if TYPE_CHECKING:
    from lab.simulation.mariadb.server import SimulatedServer

STATEMENT_TIMEOUT: Final = 1969
CANT_WRITE: Final = 1792
"""Errors that PyMySQL has no names for."""


class Session:
    """A session. `execute` runs in the thread of whoever reads its answer."""

    def __init__(self, server: SimulatedServer, process: str, on_end: Callable[[], None]) -> None:
        self._server = server
        self._on_end = on_end
        self.process = process
        self.database = ""
        self.is_over = False
        self.variables = SessionVariables(server)
        self._transacting = Transacting(server, self.variables)
        self._executed = self._execute  # bound once: each access makes a function
        server.sessions.append(self)

    def end(self) -> None:
        """End the session: its transaction is rolled back."""
        self.is_over = True
        self._on_end()
        self._transacting.roll_back()
        if self in self._server.sessions:
            self._server.sessions.remove(self)

    @property
    def status(self) -> int:
        """The status flags of an answer."""
        return self._transacting.status

    # -- statements ----------------------------------------------------------------------------------------------------

    def execute(self, sql: str) -> Steps[Answer]:
        """Execute one statement. Raises `ServerError`, `UnknownStatement`."""
        self._server.catch_up()
        statement = parsed(sql)
        self._transacting.set_deadline()
        return (yield from self._guarded(statement, sql))

    def _guarded(self, statement: Statement, sql: str) -> Steps[Answer]:
        transaction = self._transacting.current
        savepoint = transaction.savepoint() if transaction is not None else None
        try:
            answer = yield from self._executed(statement, sql)
        except ServerError as error:
            if error.code == ER.LOCK_DEADLOCK:
                self._transacting.roll_back()
            elif transaction is not None and savepoint is not None and self._transacting.current is transaction:
                transaction.back_to(savepoint)
            if not self._transacting.is_explicit:
                self._transacting.roll_back()
            if error.code == ER.LOCK_WAIT_TIMEOUT and self._server.waits.now >= self._transacting.deadline:
                raise ServerError(
                    STATEMENT_TIMEOUT, "Query execution was interrupted (max_statement_time exceeded)", "70100"
                ) from error
            raise
        if not self._transacting.is_explicit:
            yield from self._transacting.commit()
        return answer

    @singledispatchmethod
    def _execute(self, statement: object, sql: str) -> Steps[Answer]:
        """Runs a statement of one kind."""
        yield from self._change_schema(cast("SchemaChange", statement), sql)
        return Answer()

    @_execute.register
    def _(self, statement: Begin, _sql: str) -> Steps[Answer]:
        yield from self._transacting.commit()
        self._transacting.begin(read_only=statement.read_only, consistent=statement.consistent)
        return Answer()

    @_execute.register
    def _(self, statement: End, _sql: str) -> Steps[Answer]:
        if statement.commits:
            yield from self._transacting.commit()
        else:
            self._transacting.roll_back()
        return Answer()

    @_execute.register
    def _(self, statement: Set, sql: str) -> Steps[Answer]:
        if statement.statement is None:
            for name, expression in statement.values:
                yield from self._set(name, self._evaluated(expression))
            return Answer()
        before = dict(self.variables.own)
        try:
            for name, expression in statement.values:
                yield from self._set(name, self._evaluated(expression))
            self._transacting.set_deadline()
            return (yield from self._executed(statement.statement, sql))
        finally:
            self.variables.own = before

    def _evaluated(self, expression: Expression) -> Stored:
        if expression == Call("default", ()):
            return "DEFAULT"
        return cast("Stored", Scope(self.variables, {}, None).value(expression))

    def _set(self, name: Variable, value: Stored) -> Steps[None]:
        self.variables.assign(name, value)
        if name.scope != "@" and name.name == "autocommit" and value:
            yield from self._transacting.commit()

    @_execute.register
    def _(self, statement: Show, _sql: str) -> Steps[Answer]:
        if statement.what == "CREATE TABLE":
            name = resolved(statement.table, self.database)
            table = yield from self._transacting.open(name)
            return table_of(("Table", "Create Table"), [(name[1], table.show_create())])
        names = SHOWN[statement.what]
        rows = []
        all_rows = self.variables.shown() if statement.what == "VARIABLES" else shown(statement.what, self._server)
        for row in all_rows:
            scope = Scope(self.variables, dict(zip(map(str.lower, names), row, strict=True)), None)
            if like(str(row[0]), statement.like) and scope.is_true(statement.where):
                rows.append(row)
        return table_of(names, rows)

    @_execute.register
    def _(self, statement: Administration, _sql: str) -> Steps[Answer]:
        if statement.what == "FLUSH BINARY LOGS":
            self._server.rotate()
        elif statement.what == "RESET MASTER":
            self._server.lose_log()
        else:
            self.database = statement.database
        return Answer()
        yield

    @_execute.register
    def _(self, statement: Select, sql: str) -> Steps[Answer]:
        return fixed_answer(sql) or (yield from self._selecting().select((statement,)))

    @_execute.register
    def _(self, statement: Union, _sql: str) -> Steps[Answer]:
        return (yield from self._selecting().select(statement.selects))

    def _selecting(self) -> Selecting:
        return Selecting(self._server, self.variables, self._transacting, self.database)

    # -- writes --------------------------------------------------------------------------------------------------------

    @_execute.register
    def _(self, statement: Insert, sql: str) -> Steps[Answer]:
        table, writing = yield from self._writing(statement.table)
        affected = yield from writing.insert(table, statement)
        self._log(
            writing, table, sql, deletes=statement.replaces, updates=statement.replaces or bool(statement.updates)
        )
        return Answer(affected)

    @_execute.register
    def _(self, statement: Update, sql: str) -> Steps[Answer]:
        table, writing = yield from self._writing(statement.table)
        affected = yield from writing.update(table, statement)
        self._log(writing, table, sql, deletes=False, updates=True)
        return Answer(affected)

    @_execute.register
    def _(self, statement: Delete, sql: str) -> Steps[Answer]:
        table, writing = yield from self._writing(statement.table)
        affected = yield from writing.delete(table, statement)
        self._log(writing, table, sql, deletes=True, updates=False)
        return Answer(affected)

    def _writing(self, name: Name) -> Steps[tuple[Table, Writing]]:
        transaction = self._transacting.begun()
        if transaction.read_only:
            raise ServerError(CANT_WRITE, "Cannot execute statement in a READ ONLY transaction", "25006")
        if self._server.variables["read_only"] == "ON" and self._server.source is not None:
            raise ServerError(
                ER.OPTION_PREVENTS_STATEMENT,
                "The MariaDB server is running with the --read-only option so it cannot execute this statement",
            )
        table = yield from self._transacting.open(resolved(name, self.database))
        strict = "STRICT" in str(self.variables.variable("", "sql_mode"))
        until = self._transacting.until("innodb_lock_wait_timeout")
        server, variables = self._server, self.variables
        return table, Writing(
            server.databases, server.locks, transaction, variables, until, variables.zone, strict=strict
        )

    def _log(self, writing: Writing, table: Table, sql: str, *, deletes: bool, updates: bool) -> None:
        server = self._server
        if self.variables.variable("", "binlog_format") == "STATEMENT":
            logged = events.query(server.timestamp, server.id, self.database, sql, placed=False)
            self._transacting.begun().log.append(logged)
        else:
            writing.log(table, server.timestamp, server.id, deletes=deletes, updates=updates)

    # -- changes of the schema -----------------------------------------------------------------------------------------

    def _change_schema(self, change: SchemaChange, sql: str) -> Steps[None]:
        yield from self._transacting.commit()
        server = self._server
        owner = object()
        names = names_of(change, self.database, server.databases)
        try:
            yield from server.locks.take_tables(owner, names, self._transacting.until("lock_wait_timeout"))
            if isinstance(change, CreateTable) and change.if_not_exists and server.databases.find(names[0]) is not None:
                return
            if isinstance(change, DropTables):
                quoted = ",".join(f"`{database}`.`{table}`" for database, table in names)
                sql = f"DROP TABLE {'IF EXISTS ' * change.if_exists}{quoted} /* generated by server */"
            gtid = server.next_gtid(int(self.variables.number("gtid_domain_id")))
            now = server.timestamp
            group = (events.gtid(now, gtid, events.DDL), events.query(now, server.id, self.database, sql))
            number = server.commit(gtid, group, change=(change, self.database))
            self.variables.committed(gtid)
            yield from self._transacting.shown(number)
        finally:
            server.locks.release(owner)

    # -- XA ------------------------------------------------------------------------------------------------------------

    @_execute.register
    def _(self, statement: Xa, _sql: str) -> Steps[Answer]:
        xid = statement.gtrid, statement.bqual
        match statement.verb:
            case "RECOVER":
                rows: list[tuple[Stored, ...]] = [
                    (1, len(gtrid), len(bqual), gtrid + bqual) for gtrid, bqual in self._server.invisible_xids
                ]
                return table_of(("formatID", "gtrid_length", "bqual_length", "data"), rows)
            case "START":
                self._transacting.start_xa(xid)
            case "END":
                pass
            case "PREPARE":
                yield from self._transacting.prepare(xid)
            case "COMMIT" | "ROLLBACK":
                yield from self._transacting.end_xa(xid, commits=statement.verb == "COMMIT")
            case _:
                raise UnknownStatement(f"XA {statement.verb}")
        return Answer()
