"""Whether a PostgreSQL, and the connector that reads it, can be a source: what they refuse, and what is not cached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from freshet.checks.finding import Check
from freshet.checks.source import counted, listed, not_cached, told_by
from stream.sources.debezium.connector import Connector, find_connector
from stream.sources.debezium.errors import DebeziumError
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError
from stream.sources.mariadb.schema import TableFilter
from stream.sources.postgres.connection import fetch_all, session
from stream.sources.postgres.locks import held_tables
from stream.sources.postgres.server import check_settings, check_version, read_state, slot_of
from stream.sources.postgres.tables import read_tables, schemas_of

if TYPE_CHECKING:
    from freshet.sections.sources import MariaDBSourceSettings
    from stream.sources.postgres.connection import Connection

_RIGHTS = """SELECT n.nspname || '.' || c.relname,
 has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'), row_security_active(c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname || '.' || c.relname = ANY(%s)
ORDER BY 1"""


def examine_postgres(server: ConnectionSettings, tables: TableFilter, source: MariaDBSourceSettings) -> list[Check]:
    """Every check of the server and its connector. Raises nothing that is their fault."""
    found: list[Check] = []
    try:
        with session(server) as asked:
            [(version,)] = fetch_all(asked, "SHOW server_version")
            found.append(Check("login", "ok", f"{server.name}: PostgreSQL {version}, database {server.database}"))
            check_version(asked)  # an older one could not be asked for the rest
            found += _server(asked)
            try:
                connector = find_connector(source.connect, source.topic_prefix, server.product)
            except (DebeziumError, MariaDBError) as error:
                found.append(Check("connector", "missing", str(error), error.hint))
                return found
            found.append(told_by(connector))
            found += _slot(asked, connector)
            found += _tables(asked, tables, connector)
    except MariaDBError as error:
        found.append(Check("server" if found else "login", "missing", str(error), error.hint))
    return found


def _server(asked: Connection) -> Iterator[Check]:
    try:
        check_settings(asked)
        read_state(asked)
    except MariaDBError as error:
        yield Check("log", "missing", str(error), error.hint)
    else:
        yield Check("log", "ok", "a primary's, with the rows")


def _slot(asked: Connection, connector: Connector) -> Iterator[Check]:
    """The connector's place in this server's log, and whether the server may drop what it has not read."""
    try:
        slot = slot_of(asked, connector.slot)
    except MariaDBError as error:
        yield Check("slot", "missing", str(error), "host must be the primary that the connector reads, while it runs")
        return
    behind = read_state(asked).end.lsn - slot.confirmed
    words = f"{connector.slot} is {behind / 1e6:,.1f} MB behind the end of the log"
    if not slot.is_read:
        yield Check("slot", "warning", f"{words}, and nobody reads it", f"is {connector.name} running?")
    elif not slot.is_reserved:
        yield Check("slot", "warning", f"{words}, of which the server may soon drop some", "max_slot_wal_keep_size")
    else:
        yield Check("slot", "ok", words)


def _tables(asked: Connection, chosen: TableFilter, connector: Connector) -> Iterator[Check]:
    known = read_tables(asked, chosen, connector.publication).tables
    absent = [("missing", f"schema {name}") for name in sorted({*chosen.databases} - schemas_of(asked))]
    absent += [("warning", f"tables {pattern}") for pattern in chosen.without_tables(known)]
    for status, each in absent:
        yield Check("choice", status, f"{each}: not there", "check its name; `databases` are the database's schemas")
    if known:
        yield Check("choice", "ok", f"{counted(len(known), 'table')} of the settings' choice are there")
    yield from _rights(asked, [*known])
    for table, why in sorted(held_tables(asked, [*known]).items()):
        hint = "a backfill of it waits, and so do sessions that demand more: COMMIT PREPARED, or ROLLBACK PREPARED"
        yield Check("prepared", "warning", f"{table}: {why}", hint)
    left_out = "the connector's configuration leaves it out"
    yield from not_cached(
        [
            info if info.problem or connector.captures(name) else replace(info, problem=left_out)
            for name, info in sorted(known.items())
        ],
        lambda _: "",
    )


def _rights(asked: Connection, names: list[str]) -> Iterator[Check]:
    """Whether a front, which has the same login, may read them, and sees all of their rows."""
    rights = fetch_all(asked, _RIGHTS, (names,))
    hidden = [name for name, may_read, _ in rights if not may_read]
    policed = [name for name, may_read, is_policed in rights if may_read and is_policed]
    if hidden:
        schema = hidden[0].split(".")[0]
        hint = f"for a front: GRANT USAGE ON SCHEMA {schema}, and SELECT ON ALL TABLES IN SCHEMA {schema}, TO its user"
        yield Check("grants", "warning", f"the user may not read {listed(hidden)}", hint)
    if policed:
        why = f"row-level security hides rows of {listed(policed)} from the user, so that it may not read any"
        yield Check("grants", "warning", why, "for a front: ALTER USER … BYPASSRLS")
    if names and not hidden and not policed:
        yield Check("grants", "ok", "the user may read all of them")
