"""The tables of a PostgreSQL database as of the position that is read: its log tells no DDL, so its catalog is asked.

The position may pass no commit before the catalog was read after it, and no table was locked meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from stream.sources.debezium.schema import DebeziumSchema
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBUnreachable, SourceHistoryLost
from stream.sources.mariadb.gtid import GtidPosition, PostgresPlace
from stream.sources.mariadb.schema import TableFilter, TableInfo, missing_table
from stream.sources.postgres.connection import connect, translated
from stream.sources.postgres.server import read_state, slot_of
from stream.sources.postgres.tables import differences, read_tables, schemas_of, storage_of

if TYPE_CHECKING:
    from stream.sources.postgres.connection import Connection

T = TypeVar("T")


class PostgresSchema(DebeziumSchema):
    """As `DebeziumSchema`. ``publication``, ``slot``: of the connector. ``storage``: `storage_of` what is published."""

    def __init__(
        self,
        settings: ConnectionSettings,
        include: TableFilter,
        captures: Callable[[str], bool],
        publication: str,
        slot: str,
        storage: int,
    ) -> None:
        super().__init__(settings, include, captures)
        self._publication, self._slot = publication, slot
        self.storage = storage
        self._session: Connection | None = None
        self._seen: Mapping[str, TableInfo] = {}
        self._unsaid: dict[str, str] = {}
        """Table → why it is void, which is not published yet."""

    def load(self) -> None:
        """Read everything from the server. Raises `MariaDBError`."""
        self._seen, at, _ = self._asked(self._read)
        self.live = self._seen
        self._unsaid = {}
        for name in self.catalog.names:
            described, info = self.catalog.description(name), self.live.get(name)
            now = missing_table(name) if info is None else info.describe()
            is_rewritten = self.storage != storage_of(self._seen)
            if is_rewritten or described != now or described.sql_types != now.sql_types:
                self._unsaid[name] = "its schema changed while the source was away"
        self.catalog.resume(self.live, at)
        for name in self._unsaid:
            self.catalog.doubt(name, self.live.get(name), at)
        self.storage = storage_of(self._seen)

    def changed(self, position: PostgresPlace) -> dict[str, str]:
        """The tables that are not as they were, or may be about to change: they are void, unless that was said already.

        ``position``: what is published. Raises `MariaDBError`, `SourceHistoryLost`.
        """
        now, at, locked = self._asked(self._read)
        if at.timeline != position.timeline:
            raise SourceHistoryLost(
                f"the server is at {at}, and {position} is published: it was promoted", hint="a new epoch starts"
            )
        names = differences(self._seen, now)
        self._seen, self.storage = now, storage_of(now)
        found = dict.fromkeys(names, "its schema changed")
        found |= dict.fromkeys(locked & now.keys() - names, "it may be about to change: a session has locked it")
        said = {name for name in found if self.catalog.is_waiting(name)}
        for name in found:
            self.catalog.doubt(name, now.get(name), at)
        unsaid, self._unsaid = self._unsaid, {}
        return unsaid | {name: why for name, why in found.items() if name not in said}

    @property
    def has_unsaid(self) -> bool:
        """Whether something is void that `changed` has not told yet."""
        return bool(self._unsaid)

    def _read(self, connection: Connection) -> tuple[Mapping[str, TableInfo], PostgresPlace, frozenset[str]]:
        """The tables, where the log was after they were read, and which of them a session has locked."""
        found = read_tables(connection, self.include, self._publication)
        tables = {name: self._with_topic(name, info) for name, info in found.tables.items()}
        return tables, read_state(connection).end, found.locked

    def _with_topic(self, name: str, info: TableInfo) -> TableInfo:
        if info.problem or self._captures(name):
            return info
        return replace(info, problem="the connector has no topic of it, or leaves it out")

    def confirmed(self) -> PostgresPlace | None:
        """Up to where everything that is committed is in the connector's topics; None while it does not read its slot.

        A slot that somebody has made anew under the same name begins where it was made, and no connector has read what
        was before. Debezium refuses to. Raises `MariaDBError`.
        """

        def ask(connection: Connection) -> PostgresPlace | None:
            slot = slot_of(connection, self._slot)
            return PostgresPlace(read_state(connection).end.timeline, slot.confirmed) if slot.is_read else None

        return self._asked(ask)

    def end_of_log(self) -> PostgresPlace:
        """Behind everything that is logged by now. Raises `MariaDBError`."""
        return self._asked(lambda connection: read_state(connection).end)

    def unknown_databases(self) -> list[str]:
        """The schemas that were chosen by name and don't exist. Raises `MariaDBError`."""
        return sorted(set(self.include.databases) - self._asked(schemas_of))

    def reread(self, database: str, table: str) -> None:
        """Read a table, which is not as it was thought to be. Raises `MariaDBError`."""
        now, at, _ = self._asked(self._read)
        self.catalog.doubt(f"{database}.{table}", now.get(f"{database}.{table}"), at)

    def settle(self, position: GtidPosition) -> dict[str, bool]:
        """As `Catalog.settle`."""
        return self.catalog.settle(position, frozenset)

    def hold_again(self, words: str) -> None:
        """Nothing is held: who prepares a transaction is told once it is committed."""

    def check_prepared(self) -> None:
        """A transaction that is prepared is told once it is committed."""

    def owned(self) -> None:
        """Nobody can say, and nobody needs to: what is told is committed."""

    def sample(self) -> None:
        """There are no gaps."""

    def _asked(self, ask: Callable[[Connection], T]) -> T:
        """Run ``ask``; if the session is lost, open a new one and run it once more."""
        try:
            return self._ask_once(ask)
        except MariaDBUnreachable:
            self.close()
            return self._ask_once(ask)

    def _ask_once(self, ask: Callable[[Connection], T]) -> T:
        if self._session is None:
            self._session = connect(self._settings)
        with translated(self._settings):
            return ask(self._session)

    def close(self) -> None:
        """End the session. The next request opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
