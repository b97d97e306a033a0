"""psycopg's twin: sessions that know the statements which the product sends, and no others.

Its errors are psycopg's own. Who changes a statement of the product that is named here by its text teaches it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import errors

from lab.simulation.connectors.judging import STEP
from lab.simulation.mariadb.sql.syntax import UnknownStatement
from lab.simulation.postgres.server import ALTERS, SimulatedPostgres, Snapshot
from lab.simulation.postgres.tables import Definition, Row
from stream.sources.postgres import chunks, locks, tables
from stream.sources.postgres import server as asked
from stream.sources.postgres import snapshot as reading

Rows = list[tuple[Any, ...]]
_KEYED: Final = re.compile(r"SELECT (\d+), xmax = '0'::xid, (.+) FROM ONLY \"shop\"\.\"(\w+)\" WHERE (.+)")
_SORTED: Final = re.compile(
    r"SELECT (.+) FROM ONLY \"shop\"\.\"(\w+)\"(?: WHERE (.+))? ORDER BY \"(\w+)\" (ASC|DESC)(?:, .*)? LIMIT (\d+)"
)
_COUNTED: Final = re.compile(
    r"SELECT count\(\*\) FROM \(SELECT FROM ONLY \"shop\"\.\"(\w+)\"(?: WHERE (.+?))?(?: LIMIT (\d+))?\) AS counted"
)
_ORDERED: Final = re.compile(
    r"SELECT (.+) FROM ONLY \"shop\"\.\"(\w+)\"(?: WHERE (.+))? ORDER BY (\"\w+\"(?:, \"\w+\")*) LIMIT (\d+)"
)
_AFTER: Final = re.compile(r"\((\".+\")\) > \((.+)\)")
_CURSOR: Final = re.compile(r"DECLARE \w+ NO SCROLL CURSOR FOR (.+)")
_FETCH: Final = re.compile(r"FETCH (\d+) FROM \w+")
_LOCK: Final = re.compile(r"LOCK TABLE ONLY \"shop\"\.\"(\w+)\" IN ACCESS SHARE MODE")
_SETTING: Final = re.compile(r"SET LOCAL (\w+) = (\d+)")
_CONDITION: Final = re.compile(r"\(*\"(\w+)\" ([=<>]) %\((\w+)\)s\)*")
_NAMES: Final = re.compile(r"\"(\w+)\"")
_ARGUMENTS: Final = re.compile(r"%\((\w+)\)s")
_SILENT: Final = ("SAVEPOINT ", "ROLLBACK TO ", "SET row_security")


class Result:
    """What psycopg's cursor has of an answer."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.pgresult = self
        self.ntuples, self.nfields = len(rows), len(rows[0]) if rows else 0

    def fetchall(self) -> Rows:
        """Typed."""
        return self._rows

    def get_value(self, row: int, column: int) -> bytes | None:
        """As the server writes it."""
        value = self._rows[row][column]
        return None if value is None else str(value).encode()


class PostgresSession:
    """One session. It runs in the thread of whoever sends a statement."""

    def __init__(self, server: SimulatedPostgres) -> None:
        self._server = server
        self.process = server.waits.current
        self.broken = False
        self.patience_s: float | None = None
        self._snapshot: Snapshot | None = None
        self._is_open = False
        self._left: Rows = []
        """Of the cursor, what was not fetched."""
        self._limits: dict[str, float] = {}
        server.sessions.append(self)

    def execute(self, sql: bytes | str, arguments: Sequence[Any] | Mapping[str, str] | None = None) -> Result:
        """Runs one statement. Raises psycopg's errors, `UnknownStatement`."""
        server = self._server
        server.waits.wait(lambda: self.broken or server.reaches(self.process), self.patience_s)
        if self.broken or server.down or not server.reaches(self.process):
            self.end()
            raise psycopg.OperationalError("the connection is lost")
        text = sql.decode() if isinstance(sql, bytes) else sql
        return Result(self._answer(text, arguments or ()))

    def close(self) -> None:
        """Ends the session."""
        self.end()

    def end(self) -> None:
        """From either side."""
        self.broken = True
        self._leave()
        if self in self._server.sessions:
            self._server.sessions.remove(self)

    def _leave(self) -> None:
        self._snapshot, self._is_open = None, False
        self._limits.clear()
        for readers in self._server.readers.values():
            readers.discard(self)

    def _seen(self) -> Snapshot:
        if not self._is_open:
            return self._server.snapshot()
        if self._snapshot is None:
            self._snapshot = self._server.snapshot()
        return self._snapshot

    def _answer(self, sql: str, given: Sequence[Any] | Mapping[str, str]) -> Rows:
        if sql.startswith(_SILENT):
            return []
        if sql.startswith("BEGIN"):
            self._is_open = True
        elif sql == "ROLLBACK":
            self._leave()
        elif found := _SETTING.fullmatch(sql):
            self._limits[found[1]] = int(found[2]) / 1000
        elif found := _LOCK.fullmatch(sql):
            self._lock(f"shop.{found[1]}")
        elif found := _CURSOR.fullmatch(sql):
            self._left = self._select(found[1], given)
        elif found := _FETCH.fullmatch(sql):
            some, self._left = self._left[: int(found[1])], self._left[int(found[1]) :]
            return some
        elif sql in _ASKED:
            return _ASKED[sql](self, given)
        elif sql.startswith("SELECT confirmed_flush_lsn"):
            confirmed = self._server.confirmed * STEP
            return [(confirmed, "reserved", True)] if self._server.has_slot else []
        else:
            return self._select(sql, given)
        return []

    def _lock(self, name: str) -> None:
        server = self._server

        def is_free() -> bool:
            return self.broken or not any(each.get(name) == ALTERS for each in server.locks.values())

        if not server.waits.wait(is_free, self._limits.get("lock_timeout", 1.0)):
            raise errors.LockNotAvailable("canceling statement due to lock timeout")
        if self.broken:
            raise psycopg.OperationalError("the connection is lost")
        if server.definition(name) is None:
            raise errors.UndefinedTable(f'relation "{name}" does not exist')
        server.readers[name].add(self)

    # --- rows ---

    def _select(self, sql: str, given: Sequence[Any] | Mapping[str, str]) -> Rows:
        if found := _SORTED.fullmatch(sql):
            columns, table, where, first, direction, limit = found.groups()
            definition, rows = self._chosen(table, where, given)
            rows.sort(key=lambda row: row[first], reverse=direction == "DESC")
            return [self._shown(definition, columns, row) for row in rows[: int(limit)]]
        if found := _ORDERED.fullmatch(sql):
            columns, table, where, order, limit = found.groups()
            definition, rows = self._chosen(table, where, given)
            rows.sort(key=lambda row: [row[name] for name in _NAMES.findall(order)])
            return [self._shown(definition, columns, row) for row in rows[: int(limit)]]
        if found := _COUNTED.fullmatch(sql):
            table, where, most = found.groups()
            count = len(self._chosen(table, where, given)[1])
            return [(min(count, int(most)) if most else count,)]
        left, answer = [*given], Rows()
        for part in sql.split(" UNION ALL "):
            found = _KEYED.fullmatch(part)
            if found is None:
                raise UnknownStatement(sql)
            place, columns, table, where = found.groups()
            names = _NAMES.findall(where)
            values, left = left[: len(names)], left[len(names) :]
            answer += self._keyed(int(place), columns, f"shop.{table}", dict(zip(names, values, strict=True)))
        return answer

    def _keyed(self, place: int, columns: str, name: str, wanted: Mapping[str, str]) -> Rows:
        snapshot, server = self._seen(), self._server
        definition = server.definition(name, snapshot)
        assert definition is not None
        kinds = dict(definition.columns)
        for column, text in wanted.items():
            if kinds[column].name in ("int4", "int8") and not text.lstrip("-").isdigit():
                raise errors.InvalidTextRepresentation(f'invalid input syntax for type integer: "{text}"')
        for key, versions in server.rows[name].items():
            row = snapshot.of(versions)
            if row is not None and all(kinds[column].text(row[column]) == text for column, text in wanted.items()):
                is_changed = (name, key) in server.marked or versions[-1][1] is not row
                return [(place, "f" if is_changed else "t", *self._shown(definition, columns, row))]
        return []

    def _chosen(self, table: str, where: str | None, given: Any) -> tuple[Definition, list[Row]]:
        name, snapshot = f"shop.{table}", self._seen()
        definition = self._server.definition(name, snapshot)
        assert definition is not None
        kinds = dict(definition.columns)
        conditions: list[tuple[str, str, str]] = []
        after: tuple[list[str], list[str]] | None = None
        if where is not None and (found := _AFTER.fullmatch(where)):
            after, where = (_NAMES.findall(found[1]), [given[name] for name in _ARGUMENTS.findall(found[2])]), None
        for each in (where or "").split(" AND ") if where else ():
            found = _CONDITION.fullmatch(each)
            if found is None:
                raise UnknownStatement(where or "")
            conditions.append((found[1], found[2], given[found[3]]))

        def compared(row: Row, column: str, text: str) -> tuple[Any, Any]:
            is_number = isinstance(row[column], int)
            return row[column] if is_number else kinds[column].text(row[column]), int(text) if is_number else text

        def holds(row: Row) -> bool:
            for column, sign, text in conditions:
                mine, wanted = compared(row, column, text)
                if not {"=": mine == wanted, "<": mine < wanted, ">": mine > wanted}[sign]:
                    return False
            pairs = [compared(row, *each) for each in zip(*after, strict=True)] if after is not None else []
            return not pairs or [mine for mine, _ in pairs] > [wanted for _, wanted in pairs]

        rows = [snapshot.of(versions) for versions in self._server.rows[name].values()]
        return definition, [row for row in rows if row is not None and holds(row)]

    @staticmethod
    def _shown(definition: Definition, columns: str, row: Row) -> tuple[str | None, ...]:
        kinds = dict(definition.columns)
        names = _NAMES.findall(columns)
        return tuple(None if row[name] is None else kinds[name].text(row[name]) for name in names)

    # --- what the server tells of itself ---

    def _state(self, _given: object) -> Rows:
        server = self._server
        return [(server.now_ms, server.end, f"{server.timeline:08X}{0:016X}", server.end)]

    def _holders(self, _given: object) -> Rows:
        return [(holder,) for holder in self._server.locks]

    def _writers(self, given: Any) -> Rows:
        [names] = given
        locks = self._server.locks.items()
        return [(name, holder, False) for holder, held in locks for name in held if name in names]

    def _held(self, given: Any) -> Rows:
        names, since_s = given
        server, found = self._server, dict[str, str]()
        for holder, at in server.prepared_at.items():
            for name in server.locks[holder] if at <= server.waits.now - since_s else ():
                found.setdefault(name, holder)
        return [(name, holder, "some time") for name, holder in found.items() if name in names]

    def _estimate(self, given: Any) -> Rows:
        return [(len(self._chosen(each.table, None, ())[1]),) for each in self._definitions(given)]

    def _locked(self, _given: object) -> Rows:
        return [(name,) for held in self._server.locks.values() for name, mode in held.items() if mode == ALTERS]

    def _definitions(self, given: Sequence[Any]) -> list[Definition]:
        snapshot = self._seen()
        found = [self._server.definition(name, snapshot) for name in sorted(self._server.catalog)]
        wanted = tuple(given[-2:])
        return [each for each in found if each is not None and (len(wanted) < 2 or wanted == ("shop", each.table))]

    def _columns(self, given: Any) -> Rows:
        return [
            ("shop", each.table, name, kind.name, kind.shown, "", True, [*kind.labels])
            for each in self._definitions(given)
            for name, kind in each.columns
        ]

    def _tables(self, given: Any) -> Rows:
        ordinary, published = ("r", "p", False), "16384 739"
        return [
            (
                "shop",
                each.table,
                *ordinary,
                each.identity,
                f"heap {each.file} {len(each.columns)}",
                [*each.key],
                published,
            )
            for each in self._definitions(given[2:])
        ]

    def _definition(self, given: Any) -> Rows:
        found = self._definitions(given)
        return [
            (f"{each.file} {each.identity} {[(name, kind.shown) for name, kind in each.columns]}",) for each in found
        ]

    def _names(self, _given: object) -> Rows:
        return [("shop", each.table) for each in self._definitions(())]


def _says(*value: Any) -> Callable[[PostgresSession, Any], Rows]:
    return lambda _session, _given: [value]


_ASKED: Final[Mapping[str, Callable[[PostgresSession, Any], Rows]]] = {
    "SELECT pg_is_in_recovery()": _says(False),
    "SELECT current_setting('server_version_num')": _says("170000"),
    "SELECT current_setting('wal_level')": _says("logical"),
    "SELECT current_setting('server_encoding')": _says("UTF8"),
    "SELECT nspname FROM pg_namespace": _says("shop"),
    "SELECT schemaname, tablename FROM pg_tables": PostgresSession._names,
    asked._PRIMARY: PostgresSession._state,
    locks.WRITERS: PostgresSession._writers,
    locks._HELD: PostgresSession._held,
    chunks._ROWS: PostgresSession._estimate,
    reading._HOLDERS: PostgresSession._holders,
    tables._LOCKED: PostgresSession._locked,
    tables._COLUMNS + tables._IN_ORDER: PostgresSession._columns,
    tables._COLUMNS + tables._ONE + tables._IN_ORDER: PostgresSession._columns,
    tables._TABLES: PostgresSession._tables,
    tables._TABLES + tables._ONE: PostgresSession._tables,
    tables._DEFINITION: PostgresSession._definition,
}


class Driver:
    """In the place of the class of sessions that the product makes."""

    def __init__(self, server: SimulatedPostgres) -> None:
        self._server = server

    def connect(self, *, connect_timeout: float, **_arguments: Any) -> PostgresSession:
        """A session. Raises psycopg's error."""
        server, process = self._server, self._server.waits.current
        server.waits.wait(lambda: server.reaches(process), connect_timeout)
        if server.down or not server.reaches(process):
            raise psycopg.OperationalError("connection refused")
        return PostgresSession(server)
