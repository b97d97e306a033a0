"""Fixtures of the MariaDB source's tests: a reader of a live server, and a session to change its data."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.sources.mariadb.binlog.coalesce import SPILL_BYTES
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.reader import BinlogReader
from stream.sources.mariadb.connection import ConnectionSettings, connect, fetch_all
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.information_schema.tables import read_table
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import current_position
from stream.sources.mariadb.schema import TableFilter, TableInfo
from stream.sources.mariadb.selected_rows import canonical_key, canonical_row, quoted, select_columns_sql
from stream.wire.events import RowChange, SourceTransaction, VoidTable
from tests.patience import PATIENCE_S
from tests.sources.mariadb.server_stubs import Servers, stubbed

SERVER_IDS = itertools.count(70_000 + int(time.time()) % 10_000)


def settings_of(address: Any, product: Literal["MariaDB", "MySQL"] = "MariaDB") -> ConnectionSettings:
    """Connection settings of a test server's address."""
    return ConnectionSettings(address.host, address.port, address.user, address.password, product=product)


@dataclass
class Source:
    """One database of a server, and its binlog from the creation of this object on."""

    settings: ConnectionSettings
    database: str
    session: Any = field(init=False)
    start: str = field(init=False)
    schema: LiveSchema = field(init=False)

    def __post_init__(self) -> None:
        self.session = connect(self.settings)
        self.session.select_db(self.database)
        self.schema = LiveSchema(self.settings, TableFilter((self.database,)))
        self.begin()

    def begin(self) -> None:
        """Read the schema; `transactions` starts from here."""
        self.start = self.position()
        self.schema.catalog.describe_as({})
        self.schema.load()
        self.schema.settle(GtidPosition.parse(self.start))

    def position(self) -> str:
        """The server's position."""
        session = connect(self.settings)
        try:
            return current_position(session).position
        finally:
            session.close()

    def run(self, *statements: str) -> None:
        """Executes statements in the test's session."""
        with self.session.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def transactions(
        self,
        start: str | None = None,
        spill_bytes: int = SPILL_BYTES,
        end: str | None = None,
        *,
        keeps_before: bool = False,
        keeps_keyless: bool = False,
        in_runs: bool = False,
    ) -> list[SourceTransaction]:
        """Everything from ``start`` (else from `begin`) to the server's present position."""
        end = end or self.position()
        dump = BinlogDump(self.settings, GtidPosition.parse(start or self.start).bare, next(SERVER_IDS))
        reader = BinlogReader(
            dump,
            self.schema,
            start or self.start,
            spill_bytes,
            keeps_before=keeps_before,
            keeps_keyless=keeps_keyless,
            in_runs=in_runs,
        )
        found = []
        deadline = time.monotonic() + PATIENCE_S
        if reader.position == end:
            dump.close()
            return []
        for transaction in reader.transactions():
            assert time.monotonic() < deadline, f"at {reader.position}, not at {end}"
            if transaction is not None:
                found.append(transaction)
            if reader.position == end:
                reader.stop()
        return found

    def folded(self, transactions: list[SourceTransaction]) -> dict[bytes, RowChange]:
        """The last change of each key; a void removes all keys of its table."""
        rows: dict[bytes, RowChange] = {}
        for transaction in transactions:
            for change in transaction.changes:
                if isinstance(change, RowChange):
                    rows[change.key] = change
                elif isinstance(change, VoidTable):
                    prefix = b"" if change.table == "*" else change.table.encode() + b"\0"
                    rows = {key: row for key, row in rows.items() if not key.startswith(prefix)}
        return rows

    def selected(self, table: str) -> dict[bytes, bytes]:
        """Key → image of every row of a table, by SELECT."""
        info = self.table(table)
        with self.session.cursor() as cursor:
            cursor.execute(f"SELECT {select_columns_sql(info)} FROM {quoted(info.database)}.{quoted(info.table)}")
            return {canonical_key(info, row): canonical_row(info, row) for row in cursor.fetchall()}

    def table(self, name: str) -> TableInfo:
        """A table as the server has it now."""
        info = read_table(self.session, self.schema.charsets, self.database, name)
        assert info is not None
        return info

    @contextmanager
    def with_setting(self, name: str, value: str) -> Iterator[None]:
        """A global setting of the server, for a while."""

        def literal(text: str) -> str:
            return text if text.isdecimal() else f"'{text}'"

        [[before]] = fetch_all(self.session, f"SELECT @@global.{name}")
        self.run(f"SET GLOBAL {name} = {literal(value)}")
        try:
            yield
        finally:
            self.run(f"SET GLOBAL {name} = {literal(before)}")

    def close(self) -> None:
        """Ends the sessions."""
        self.session.close()
        self.schema.close()


@pytest.fixture
def source(mariadb: MariaDBAddress, database: str) -> Iterator[Source]:
    """A source over an empty database of the shared server."""
    made = Source(settings_of(mariadb), database)
    yield made
    made.close()


@pytest.fixture
def source_of() -> Iterator[Callable[[Any, str], Source]]:
    """Makes sources over databases of a test's own servers."""
    made: list[Source] = []

    def make(address: Any, database: str) -> Source:
        settings = settings_of(address)
        session = connect(settings)
        with session.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE IF NOT EXISTS {database}")
        session.close()
        made.append(Source(settings, database))
        return made[-1]

    yield make
    for each in made:
        each.close()


def voids(transaction: SourceTransaction) -> set[str]:
    """The tables that a transaction voids."""
    return {change.table for change in transaction.changes if isinstance(change, VoidTable)}


def rows(transaction: SourceTransaction) -> list[tuple[bytes, int, bytes]]:
    """The row changes of a transaction."""
    return [(c.key, c.operation, c.image) for c in transaction.changes if isinstance(c, RowChange)]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Three servers that have all."""
    return stubbed(monkeypatch)
