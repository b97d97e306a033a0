"""A session at the simulated server: its variables, its transaction, and the execution of its statements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import singledispatchmethod
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from pymysql.constants import ER, FIELD_TYPE, SERVER_STATUS

from lab.simulation.mariadb.information_schema import SHOWN, rows_of, shown
from lab.simulation.mariadb.log import events
from lab.simulation.mariadb.sql.definitions import CreateTable, DropTables, SchemaChange
from lab.simulation.mariadb.sql.parsing import (
    Administration,
    Begin,
    Delete,
    End,
    Insert,
    Select,
    Selected,
    Set,
    Show,
    Statement,
    Union,
    Update,
    Xa,
    conditions,
    parsed,
)
from lab.simulation.mariadb.sql.syntax import Call, ColumnName, Expression, Literal, Name, UnknownStatement, Variable
from lab.simulation.mariadb.storage.columns import Column, Stored
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.expressions import Scope, check_texts, like, row_scope, unknown_column
from lab.simulation.mariadb.storage.schema_changes import names_of, no_such_table, resolved
from lab.simulation.mariadb.storage.tables import Row, Table
from lab.simulation.mariadb.transactions import Blocked, Steps, Transaction
from lab.simulation.mariadb.writing import LATEST, Writing, bound_key

if TYPE_CHECKING:
    from lab.simulation.mariadb.server import SimulatedServer

READ_ONLY_TRANSACTION: Final = 0x2000
STATEMENT_TIMEOUT: Final = 1969
CANT_WRITE: Final = 1792
"""Errors that PyMySQL has no names for."""
NEVER: Final = float("inf")

SESSION_DEFAULTS: Final[dict[str, Stored]] = {
    "autocommit": 1,
    "time_zone": "SYSTEM",
    "sql_mode": "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_AUTO_CREATE_USER,NO_ENGINE_SUBSTITUTION",
    "sql_select_limit": (1 << 64) - 1,
    "sql_big_selects": 1,
    "max_statement_time": 0,
    "lc_time_names": "en_US",
    "div_precision_increment": 4,
    "default_week_format": 0,
    "system_versioning_asof": "DEFAULT",
    "sql_quote_show_create": 1,
    "query_cache_type": 0,
    "completion_type": 0,
    "lock_wait_timeout": 86_400,
    "innodb_lock_wait_timeout": 50,
    "tx_isolation": "REPEATABLE-READ",
    "names": "utf8mb4",
    "collation_connection": "utf8mb4_general_ci",
}
"""The variables that a session has of its own, besides those that begin as the server's."""
_FROM_SERVER: Final = frozenset({"binlog_format", "gtid_domain_id"})


class ResultColumn(NamedTuple):
    """A column of a result: its name, its type's number, and whether it is text."""

    name: str
    type: int
    is_text: bool


class Answer(NamedTuple):
    """What a statement answers. ``columns`` is None if it answers no rows."""

    affected: int = 0
    columns: tuple[ResultColumn, ...] | None = None
    rows: Sequence[Sequence[bytes | None]] = ()


class Session:
    """A session. `execute` runs in the thread of whoever reads its answer."""

    def __init__(self, server: SimulatedServer, process: str, on_end: Callable[[], None]) -> None:
        self._server = server
        self._on_end = on_end
        self.process = process
        self.database = ""
        self.is_over = False
        self.last_gtid = ""
        self._values: dict[str, Stored] = {}
        self._user_values: dict[str, Stored] = {}
        self._transaction: Transaction | None = None
        self._is_explicit = False
        self._xa: tuple[bytes, bytes] | None = None
        self._deadline = NEVER
        server.sessions.append(self)

    def end(self) -> None:
        """End the session: its transaction is rolled back."""
        self.is_over = True
        self._on_end()
        self._roll_back()
        if self in self._server.sessions:
            self._server.sessions.remove(self)

    @property
    def status(self) -> int:
        """The status flags of an answer."""
        found = SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT if self.variable("", "autocommit") else 0
        if (self._transaction is not None and self._is_explicit) or self._xa is not None:
            found |= SERVER_STATUS.SERVER_STATUS_IN_TRANS
        if self._transaction is not None and self._transaction.read_only:
            found |= READ_ONLY_TRANSACTION
        return found

    # -- what expressions ask ------------------------------------------------------------------------------------------

    def variable(self, scope: str, name: str) -> Stored:
        """The value of a variable. Raises `UnknownStatement`."""
        if scope == "@":
            return self._user_values.get(name)
        computed = self._computed(name)
        if computed is not None:
            return computed
        if scope != "global" and name in self._values:
            return self._values[name]
        known = self._server.variables
        if name in known:
            value = known[name]
            return int(value == "ON") if value in ("ON", "OFF") else value
        if name in SESSION_DEFAULTS:
            return SESSION_DEFAULTS[name]
        raise UnknownStatement(f"variable {name}")

    def _computed(self, name: str) -> Stored:
        server = self._server
        match name:
            case "server_id":
                return server.id
            case "last_gtid":
                return self.last_gtid
            case "gtid_binlog_pos":
                return server.log.position
            case "gtid_binlog_state":
                return server.log.state_text
            case "gtid_slave_pos":
                return ",".join("-".join(map(str, gtid)) for _, gtid in sorted(server.slave_position.items()))
        return None

    @property
    def zone(self) -> timedelta:
        """The session's time zone: how far it is ahead of UTC."""
        text = str(self.variable("session", "time_zone"))
        if text == "SYSTEM":
            return timedelta(seconds=self._server.behaviour.zone_s)
        hours, minutes = text.lstrip("+-").split(":")
        return timedelta(hours=int(hours), minutes=int(minutes)) * (-1 if text.startswith("-") else 1)

    def local_time(self) -> datetime:
        """The server's time in the session's zone."""
        return datetime.fromtimestamp(self._server.time_s, UTC).replace(tzinfo=None) + self.zone

    def unix_time(self) -> Decimal:
        """Seconds since 1970, with fractions."""
        return Decimal(f"{self._server.time_s:.6f}")

    def position_at(self, file: str, offset: int) -> str | None:
        """``BINLOG_GTID_POS``."""
        return self._server.log.position_at(file, offset)

    # -- statements ----------------------------------------------------------------------------------------------------

    def execute(self, sql: str) -> Steps[Answer]:
        """Execute one statement. Raises `ServerError`, `UnknownStatement`."""
        self._server.catch_up()
        statement = parsed(sql)
        limit = float(cast("float", self.variable("", "max_statement_time")))
        self._deadline = self._server.waits.now + limit if limit else NEVER
        return (yield from self._guarded(statement, sql))

    def _guarded(self, statement: Statement, sql: str) -> Steps[Answer]:
        transaction = self._transaction
        savepoint = transaction.savepoint() if transaction is not None else None
        try:
            answer = yield from self._execute(statement, sql)
        except ServerError as error:
            if error.code == ER.LOCK_DEADLOCK:
                self._roll_back()
            elif transaction is not None and savepoint is not None and self._transaction is transaction:
                transaction.back_to(savepoint)
            if not self._is_explicit:
                self._roll_back()
            if error.code == ER.LOCK_WAIT_TIMEOUT and self._server.waits.now >= self._deadline:
                raise ServerError(
                    STATEMENT_TIMEOUT, "Query execution was interrupted (max_statement_time exceeded)", "70100"
                ) from error
            raise
        if not self._is_explicit:
            yield from self._commit()
        return answer

    @singledispatchmethod
    def _execute(self, statement: object, sql: str) -> Steps[Answer]:
        """Runs a statement of one kind."""
        yield from self._change_schema(cast("SchemaChange", statement), sql)
        return Answer()

    @_execute.register
    def _(self, statement: Begin, _sql: str) -> Steps[Answer]:
        yield from self._commit()
        self._transaction = Transaction(statement.read_only)
        self._is_explicit = True
        if statement.consistent:
            self._transaction.snapshot = self._server.committed
        return Answer()

    @_execute.register
    def _(self, statement: End, _sql: str) -> Steps[Answer]:
        if statement.commits:
            yield from self._commit()
        else:
            self._roll_back()
        return Answer()

    @_execute.register
    def _(self, statement: Set, sql: str) -> Steps[Answer]:
        if statement.statement is None:
            for name, expression in statement.values:
                yield from self._set(name, self._evaluated(expression))
            return Answer()
        before = dict(self._values)
        try:
            for name, expression in statement.values:
                yield from self._set(name, self._evaluated(expression))
            limit = float(cast("float", self.variable("", "max_statement_time")))
            self._deadline = self._server.waits.now + limit if limit else NEVER
            return (yield from self._execute(statement.statement, sql))
        finally:
            self._values = before

    def _evaluated(self, expression: Expression) -> Stored:
        if expression == Call("default", ()):
            return "DEFAULT"
        return cast("Stored", Scope(self, {}, None).value(expression))

    def _set(self, name: Variable, value: Stored) -> Steps[None]:
        if name.scope == "@":
            self._user_values[name.name] = value
        elif name.scope == "global":
            if name.name not in self._server.variables:
                raise UnknownStatement(f"SET GLOBAL {name.name}")
            is_switch = self._server.variables[name.name] in ("ON", "OFF")
            shown_value = ("ON" if value in (1, "ON") else "OFF") if is_switch else value
            self._server.variables[name.name] = cast("str | int", shown_value)
        elif name.name in SESSION_DEFAULTS or name.name in _FROM_SERVER:
            self._values[name.name] = value
            if name.name == "autocommit" and value:
                yield from self._commit()
        else:
            raise UnknownStatement(f"SET {name.name}")

    @_execute.register
    def _(self, statement: Show, _sql: str) -> Steps[Answer]:
        if statement.what == "CREATE TABLE":
            name = resolved(statement.table, self.database)
            table = yield from self._open(name)
            return _texts(("Table", "Create Table"), [(name[1], table.show_create())])
        names = SHOWN[statement.what]
        rows = []
        for row in shown(statement.what, self._server):
            scope = Scope(self, dict(zip(map(str.lower, names), row, strict=True)), None)
            if like(str(row[0]), statement.like) and scope.is_true(statement.where):
                rows.append(row)
        return _texts(names, rows)

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

    # -- reads ---------------------------------------------------------------------------------------------------------

    @_execute.register
    def _(self, statement: Select, _sql: str) -> Steps[Answer]:
        return (yield from self._select((statement,)))

    @_execute.register
    def _(self, statement: Union, _sql: str) -> Steps[Answer]:
        return (yield from self._select(statement.selects))

    def _select(self, selects: Sequence[Select]) -> Steps[Answer]:
        """All tables are locked before the snapshot is made."""
        tables: list[Table | None] = []
        for select in selects:
            name = resolved(select.table, self.database) if select.table else None
            is_stored = name is not None and name[0].lower() != "information_schema"
            tables.append((yield from self._open(cast("Name", name))) if is_stored else None)
        columns: tuple[ResultColumn, ...] = ()
        rows: list[tuple[bytes | None, ...]] = []
        for select, table in zip(selects, tables, strict=True):
            if table is not None:
                made, found = yield from self._select_rows(select, table)
            else:
                made, found = yield from self._select_told(select)
            columns = columns or made
            rows += found
        return Answer(len(rows), columns, rows)

    def _select_rows(
        self, select: Select, table: Table
    ) -> Steps[tuple[tuple[ResultColumn, ...], list[tuple[bytes | None, ...]]]]:
        check_texts(table, select.where)
        chosen = select.columns or tuple(Selected(ColumnName(c.name), c.name) for c in table.columns)
        columns = [_column_of(each.expression, table) for each in chosen]
        for each in chosen:
            if isinstance(each.expression, ColumnName) and table.index(each.expression.name) < 0:
                raise unknown_column(each.expression.name, "SELECT")
        found: list[tuple[bytes | None, ...]] = []
        for row in (yield from self._rows(select, table)):
            scope = row_scope(self, table, row)
            values = (scope.value(each.expression) for each in chosen)
            found.append(
                tuple(
                    _wire(value) if column is None else column.select(value, self.zone)
                    for value, column in zip(values, columns, strict=True)
                )
            )
        made = tuple(
            ResultColumn(each.label, FIELD_TYPE.VAR_STRING, is_text=True)
            if column is None
            else ResultColumn(column.name, column.result_type, is_text=bool(column.charset))
            for each, column in zip(chosen, columns, strict=True)
        )
        return made, found

    def _rows(self, select: Select, table: Table) -> Steps[list[Row]]:
        if any(condition == Literal(0) for condition in conditions(select.where)):
            return []
        transaction = self._begun()
        if not select.locks:
            if transaction.snapshot is None or self.variable("", "tx_isolation") == "READ-COMMITTED":
                transaction.snapshot = self._server.committed
            if table.since > transaction.snapshot:
                raise ServerError(ER.TABLE_DEF_CHANGED, "Table definition has changed, please retry transaction")
        snapshot = LATEST if select.locks else transaction.snapshot or 0
        bound = bound_key(table, select.where)
        found = []
        for key in [bound] if bound is not None else transaction.keys(table):
            row = transaction.row(table, key, snapshot)
            if select.locks and (bound is not None or row is not None):
                yield from self._server.locks.take_row(transaction, table, key, self._until("innodb_lock_wait_timeout"))
                row = transaction.row(table, key, snapshot)
            if row is not None and row_scope(self, table, row).is_true(select.where):
                found.append(row)
        return found

    def _select_told(self, select: Select) -> Steps[tuple[tuple[ResultColumn, ...], list[tuple[bytes | None, ...]]]]:
        """A SELECT from information_schema or from no table."""
        rows: list[dict[str, Stored]] = [{}]
        if select.table is not None:
            rows = [row for row in rows_of(select.table[1], self._server.databases) if _told(self, row, select)]
            named = {(str(row["table_schema"]), str(row["table_name"])) for row in rows if "table_schema" in row}
            for name in sorted(named):
                yield from self._glance(name)
            rows = [row for row in rows_of(select.table[1], self._server.databases) if _told(self, row, select)]
            rows.sort(key=lambda row: tuple(cast("str", row[name.lower()]) for name in select.order))
        values = [[Scope(self, row, None).value(each.expression) for each in select.columns] for row in rows]
        made = tuple(
            ResultColumn(each.label, *_kind_of([row[at] for row in values])) for at, each in enumerate(select.columns)
        )
        return made, [tuple(map(_wire, row)) for row in values]

    def _glance(self, name: Name) -> Steps[None]:
        """Wait until nobody changes a table."""
        visitor = object()
        yield from self._server.locks.share_table(visitor, name, self._until("lock_wait_timeout"))
        self._server.locks.release(visitor)

    def _open(self, name: Name) -> Steps[Table]:
        """The table, which stays as it is until the transaction ends."""
        yield from self._server.locks.share_table(self._begun(), name, self._until("lock_wait_timeout"))
        table = self._server.databases.find(name)
        if table is None:
            raise no_such_table(name)
        return table

    def _until(self, limit: str) -> float:
        seconds = float(cast("float", self.variable("", limit)))
        return min(self._server.waits.now + seconds, self._deadline)

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
        transaction = self._begun()
        if transaction.read_only:
            raise ServerError(CANT_WRITE, "Cannot execute statement in a READ ONLY transaction", "25006")
        if self._server.variables["read_only"] == "ON" and self._server.source is not None:
            raise ServerError(
                ER.OPTION_PREVENTS_STATEMENT,
                "The MariaDB server is running with the --read-only option so it cannot execute this statement",
            )
        table = yield from self._open(resolved(name, self.database))
        strict = "STRICT" in str(self.variable("", "sql_mode"))
        until = self._until("innodb_lock_wait_timeout")
        server = self._server
        return table, Writing(server.databases, server.locks, transaction, self, until, self.zone, strict=strict)

    def _log(self, writing: Writing, table: Table, sql: str, *, deletes: bool, updates: bool) -> None:
        server = self._server
        if self.variable("", "binlog_format") == "STATEMENT":
            self._begun().log.append(events.query(server.timestamp, server.id, self.database, sql, placed=False))
        else:
            writing.log(table, server.timestamp, server.id, deletes=deletes, updates=updates)

    def _begun(self) -> Transaction:
        """The open transaction; with autocommit, the statement's own."""
        if self._transaction is None:
            self._transaction = Transaction()
            self._is_explicit = not self.variable("", "autocommit")
        return self._transaction

    def _commit(self) -> Steps[None]:
        transaction, self._transaction, self._is_explicit = self._transaction, None, False
        if transaction is None:
            return
        server = self._server
        if not transaction.log:
            server.locks.release(transaction)
            return
        gtid = server.next_gtid(int(cast("int", self.variable("", "gtid_domain_id"))))
        now = server.timestamp
        group = (
            events.gtid(now, gtid, events.TRANSACTIONAL),
            *transaction.log,
            events.xid(now, server.id, len(server.history)),
        )
        changes = [(table.name, key, row) for (table, key), row in transaction.writes.items()]
        number = server.commit(gtid, group, changes, owner=transaction)
        self.last_gtid = "-".join(map(str, gtid))
        yield from self._shown(number)

    def _shown(self, number: int) -> Steps[None]:
        while self._server.committed < number:
            yield Blocked(lambda: False, self._server.visible_at(number))

    def _roll_back(self) -> None:
        transaction, self._transaction, self._is_explicit = self._transaction, None, False
        if transaction is not None:
            self._server.locks.release(transaction)

    # -- changes of the schema -----------------------------------------------------------------------------------------

    def _change_schema(self, change: SchemaChange, sql: str) -> Steps[None]:
        yield from self._commit()
        server = self._server
        owner = object()
        names = names_of(change, self.database, server.databases)
        try:
            yield from server.locks.take_tables(owner, names, self._until("lock_wait_timeout"))
            if isinstance(change, CreateTable) and change.if_not_exists and server.databases.find(names[0]) is not None:
                return
            if isinstance(change, DropTables):
                quoted = ",".join(f"`{database}`.`{table}`" for database, table in names)
                sql = f"DROP TABLE {'IF EXISTS ' * change.if_exists}{quoted} /* generated by server */"
            gtid = server.next_gtid(int(cast("int", self.variable("", "gtid_domain_id"))))
            now = server.timestamp
            group = (events.gtid(now, gtid, events.DDL), events.query(now, server.id, self.database, sql))
            number = server.commit(gtid, group, change=(change, self.database))
            self.last_gtid = "-".join(map(str, gtid))
            yield from self._shown(number)
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
                return _texts(("formatID", "gtrid_length", "bqual_length", "data"), rows)
            case "START":
                self._transaction, self._is_explicit, self._xa = Transaction(), True, xid
            case "END":
                pass
            case "PREPARE":
                self._prepare(xid)
            case "COMMIT" | "ROLLBACK":
                yield from self._end_xa(xid, commits=statement.verb == "COMMIT")
            case _:
                raise UnknownStatement(f"XA {statement.verb}")
        return Answer()

    def _prepare(self, xid: tuple[bytes, bytes]) -> None:
        transaction, self._transaction, self._is_explicit = self._transaction, None, False
        if transaction is None or self._xa != xid:
            raise ServerError(ER.XAER_NOTA, "XAER_NOTA: Unknown XID", "XAE04")
        server = self._server
        server.prepared[xid] = transaction
        gtid = server.next_gtid(int(cast("int", self.variable("", "gtid_domain_id"))))
        now = server.timestamp
        group = (
            events.gtid(now, gtid, events.PREPARED_XA, _packed_xid(xid)),
            *transaction.log,
            events.query(now, server.id, "", f"XA END {_printed_xid(xid)}", placed=False),
            events.xa_prepare(now, server.id, *xid),
        )
        server.commit(gtid, group)
        self.last_gtid = "-".join(map(str, gtid))

    def _end_xa(self, xid: tuple[bytes, bytes], *, commits: bool) -> Steps[None]:
        server = self._server
        transaction = server.prepared.pop(xid, None)
        if transaction is None:
            raise ServerError(ER.XAER_NOTA, "XAER_NOTA: Unknown XID", "XAE04")
        self._xa = None
        gtid = server.next_gtid(int(cast("int", self.variable("", "gtid_domain_id"))))
        now, verb = server.timestamp, "COMMIT" if commits else "ROLLBACK"
        group = (
            events.gtid(now, gtid, events.COMPLETED_XA, _packed_xid(xid)),
            events.query(now, server.id, "", f"XA {verb} {_printed_xid(xid)}"),
        )
        writes = transaction.writes.items() if commits else ()
        changes = [(table.name, key, row) for (table, key), row in writes]
        number = server.commit(gtid, group, changes, owner=transaction, xid=xid if commits else None)
        self.last_gtid = "-".join(map(str, gtid))
        yield from self._shown(number)


def _packed_xid(xid: tuple[bytes, bytes]) -> bytes:
    return bytes([len(xid[0]), len(xid[1])]) + xid[0] + xid[1]


def _printed_xid(xid: tuple[bytes, bytes]) -> str:
    return f"X'{xid[0].hex()}',X'{xid[1].hex()}',1"


def _told(session: Session, row: dict[str, Stored], select: Select) -> bool:
    return Scope(session, row, None).is_true(select.where)


def _column_of(expression: Expression, table: Table) -> Column | None:
    """The column that an element of a select list is; None if it is anything else."""
    at = table.index(expression.name) if isinstance(expression, ColumnName) else -1
    return table.columns[at] if at >= 0 else None


def _texts(names: Sequence[str], rows: Sequence[Sequence[Stored]]) -> Answer:
    columns = tuple(ResultColumn(name, *_kind_of([row[at] for row in rows])) for at, name in enumerate(names))
    return Answer(len(rows), columns, [tuple(map(_wire, row)) for row in rows])


def _kind_of(values: Sequence[Stored]) -> tuple[int, bool]:
    """The type's number of such values, and whether it is text."""
    first = next((value for value in values if value is not None), "")
    if isinstance(first, bytes):
        return FIELD_TYPE.VAR_STRING, False
    numbers = {int: FIELD_TYPE.LONGLONG, float: FIELD_TYPE.DOUBLE, Decimal: FIELD_TYPE.NEWDECIMAL}
    return numbers.get(type(first), FIELD_TYPE.VAR_STRING), isinstance(first, str)


def _wire(value: Stored) -> bytes | None:
    """A value of a result that is no column of a table."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, date):
        raise UnknownStatement("a date that is computed")
    return repr(value).removesuffix(".0").encode() if isinstance(value, float) else str(value).encode()
