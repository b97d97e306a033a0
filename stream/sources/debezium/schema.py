"""The tables of the server that a connector tells of, and what more keeps them from being cached."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import pymysql

from stream.sources.debezium.errors import DebeziumError
from stream.sources.mariadb.cascades.foreign_keys import read_cascades
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBUnreachable,
    ServerSettingsError,
    fetch_all,
    is_mysql,
)
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.mysql.position import executed, logged, owned_by
from stream.sources.mariadb.position import end_of_log
from stream.sources.mariadb.schema import TableFilter, TableInfo

_CHARSETS = ("utf8mb4", "utf8mb3", "utf8", "ascii", "latin1")
"""Those whose text Java reads as the server does. What latin1 leaves open becomes a replacement character there."""


_XA_DENIED = 1401
"""MySQL's answer to XA RECOVER of a user without the right to it."""


class Sample(NamedTuple):
    """What a MySQL server had executed, and what it had logged a moment later."""

    executed: MysqlGtidSet
    logged: MysqlGtidSet


class Settled(NamedTuple):
    """``end``: behind everything that the connector has told, while nothing is prepared.

    ``owned``: what sessions of MySQL had logged a moment before, and were not done with; None where nobody can say.
    """

    end: GtidPosition
    owned: MysqlGtidSet | None


class DebeziumSchema(LiveSchema):
    """As `LiveSchema`. ``captures``: whether the connector tells of a table, and its topic is read."""

    waits_for_locks = True  # which topics there are to read is told by the tables

    def __init__(self, settings: ConnectionSettings, include: TableFilter, captures: Callable[[str], bool]) -> None:
        super().__init__(settings, include)
        self._captures = captures

    def found(self, connection: Connection, tables: Mapping[str, TableInfo]) -> dict[str, TableInfo]:
        """The tables, with what keeps them from being cached when they come from a connector."""
        below = {key.child for key in read_cascades(connection, self.include.databases).keys}
        marks = ", ".join(["%s"] * len(_CHARSETS))
        unread = {
            f"{database}.{table}": (column, charset)
            for database, table, column, charset in fetch_all(
                connection,
                "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, CHARACTER_SET_NAME FROM information_schema.COLUMNS"
                f" WHERE CHARACTER_SET_NAME NOT IN ({marks})",
                _CHARSETS,
            )
        }
        result = {}
        for name, info in tables.items():
            problem = info.problem
            if problem:
                pass
            elif not self._captures(name):
                problem = "the connector has no topic of it, or leaves it out"
            elif name in below:
                problem = "a foreign key changes its rows, which the connector may not tell"
            elif name in unread:
                problem = "column {} has character set {}".format(*unread[name])
            result[name] = replace(info, problem=problem)
        return result

    def sample(self) -> Sample | None:
        """What the server has executed and logged now; None of MariaDB. Raises `MariaDBError`, `DebeziumError`."""

        def ask(connection: Connection) -> Sample | None:
            return Sample(executed(connection), logged(connection)) if is_mysql(connection) else None

        found = self._retried(ask)
        if found is not None and any(tag for _, tag in found.logged.sources):
            raise DebeziumError(
                "the server has tagged GTIDs, which connectors book under the GTID before them",
                hint="use the binlog (freshet source mysql): a session's GTID_NEXT may not have a tag here",
                code="debezium_tagged_gtids",
            )
        return found

    def settled(self) -> Settled:
        """What is decided by now. Raises `MariaDBUnreachable`: something is not.

        The connector tells rows of XA transactions when they are prepared, and not what becomes of them.
        """
        owned = self.owned()
        self.check_prepared()
        return Settled(self.end_of_log(), owned)

    def owned(self) -> MysqlGtidSet | None:
        """What sessions of MySQL have logged and are not done with; None: nobody can say. Raises `MariaDBError`."""
        return self._retried(lambda connection: owned_by(connection) if is_mysql(connection) else None)

    def end_of_log(self) -> GtidPosition:
        """Behind everything that is logged by now. Raises `MariaDBError`."""
        return self._retried(end_of_log)

    def check_prepared(self) -> None:
        """As `check_nothing_is_prepared`."""
        self._retried(check_nothing_is_prepared)


def check_nothing_is_prepared(connection: Connection) -> None:
    """Raises `MariaDBUnreachable` while XA transactions are prepared: the connector won't tell what becomes of them."""
    try:
        prepared = fetch_all(connection, "XA RECOVER")
    except pymysql.err.MySQLError as error:
        if error.args and error.args[0] == _XA_DENIED:
            raise ServerSettingsError(
                "the user may not see whether XA transactions are prepared",
                hint="GRANT XA_RECOVER_ADMIN ON *.* TO its user",
                code="mariadb_access_denied",
            ) from error
        raise
    if prepared:
        raise MariaDBUnreachable(
            f"{len(prepared)} XA transactions are prepared, and the connector does not tell what becomes of them",
            hint="commit them or roll them back (XA RECOVER): an epoch begins where there are none",
        )
