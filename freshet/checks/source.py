"""What `freshet doctor --source` finds at a server before anything starts: the same rules by which a source refuses it.

It writes nothing, locks nothing for longer than a read of some rows, and does not register as a replica: a running
source of the same server_id is not disturbed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import pymysql
from pymysql.constants import ER

from freshet.checks.finding import Check
from stream.sources.debezium.connector import ENDS_HINT, NO_ENDS, Connector, find_connector
from stream.sources.debezium.errors import DebeziumError
from stream.sources.mariadb.backfill.chunks import ChunkReader
from stream.sources.mariadb.by_key import code_of
from stream.sources.mariadb.cascades.foreign_keys import Cascades, read_unlocked_cascades
from stream.sources.mariadb.charsets import read_charsets
from stream.sources.mariadb.connection import (
    GRANTS_HINT,
    MYSQL_GRANTS_HINT,
    Connection,
    ConnectionSettings,
    MariaDBError,
    connect,
    fetch_all,
    translated,
)
from stream.sources.mariadb.information_schema.locked_tables import (
    LOCKED_S,
    Name,
    limit_sql,
    names_sql,
    read_unlocked,
)
from stream.sources.mariadb.information_schema.tables import read_unlocked_tables, unknown_databases
from stream.sources.mariadb.requirements import problems_of
from stream.sources.mariadb.schema import TableFilter, TableInfo
from stream.sources.mariadb.selected_rows import quoted

if TYPE_CHECKING:
    from freshet.sections.sources import MariaDBSourceSettings

SHOWN_MAX: Final = 20
"""Tables that are named one by one; the rest is counted."""
SAMPLE_S: Final = 2.0
"""How long rows are read to say how long all of them take."""
FEW_ROWS: Final = 10_000
"""Up to so many the sample says more of the connection than of the rows."""
READING_SHARE: Final = 0.5
"""The share of a row's time in a backfill that goes into reading it; the rest publishes it (benchmarks/README.md)."""
DAY_S: Final = 86_400
_MAY_REPLICATE: Final = ("REPLICATION SLAVE", "ALL PRIVILEGES")
_SEES_ALL: Final = ("PROCESS", "ALL PRIVILEGES")


class Sized(NamedTuple):
    """About how large a table is, as the server's statistics say."""

    rows: int
    data_bytes: int


def examine_source(server: ConnectionSettings, tables: TableFilter, source: MariaDBSourceSettings) -> list[Check]:
    """Every check of one server, which may be a shard of several. Raises nothing that is the server's fault."""
    try:
        connection = connect(server)
    except MariaDBError as error:
        return [Check("login", "missing", str(error), error.hint)]
    try:
        with translated(server):
            version = connection.get_server_info()
            return [
                Check("login", "ok", f"{server.name}: {server.product} {version}"),
                *_found(connection, server, tables, source),
            ]
    except MariaDBError as error:
        return [Check("server", "missing", str(error), error.hint)]
    finally:
        with suppress(pymysql.err.Error, OSError):
            connection.close()


def _found(
    connection: Connection, server: ConnectionSettings, chosen: TableFilter, source: MariaDBSourceSettings
) -> Iterator[Check]:
    yield from _settings(connection)
    if source.kind == "debezium":
        yield from _connector(connection, source, server)
    else:
        yield from _replication_grant(connection, server)
        yield from _log_kept(connection, server)
    fetch_all(connection, f"SET SESSION lock_wait_timeout = {LOCKED_S}")
    known, undescribed = read_unlocked_tables(connection, read_charsets(connection), chosen)
    cascades, unread = read_unlocked_cascades(connection)
    yield from _choice(connection, chosen, {*known, *undescribed})
    readable = [info for info in known.values() if info.cacheable]
    busy = yield from _select_grant(connection, server, readable)
    yield from _locked({*undescribed, *unread, *busy})
    yield from not_cached(known.values(), _cure)
    yield from _cascades(cascades, known)
    yield from _backfill(connection, server, source, [info for info in readable if info.name not in busy])


def _settings(connection: Connection) -> Iterator[Check]:
    """Binlog and order of GTIDs: each setting that `stream.sources.mariadb.requirements` refuses."""
    problems = problems_of(connection)
    for problem in problems:
        yield Check("binlog", "missing", str(problem), problem.hint)
    if not problems:
        yield Check("binlog", "ok", "complete, row by row, and its GTIDs are in order")


def _connector(connection: Connection, source: MariaDBSourceSettings, server: ConnectionSettings) -> Iterator[Check]:
    """Whether the connector can be a source, by the rules of `stream.sources.debezium.connector`, and reads here."""
    try:
        found = find_connector(source.connect, source.topic_prefix, server.product)
    except (DebeziumError, MariaDBError) as error:
        yield Check("connector", "missing", str(error), error.hint)
        return
    yield told_by(found)
    yield _reads_here(connection, found, server)


def told_by(connector: Connector) -> Check:
    """What the source makes of a connector that can be one."""
    if not connector.tells_ends:
        return Check("connector", "warning", f"invalidation only: {NO_ENDS}", ENDS_HINT)
    return Check("connector", "ok", f"{connector.name} hides and bends nothing that its configuration tells of")


def _reads_here(connection: Connection, connector: Connector, server: ConnectionSettings) -> Check:
    """Whether a session of the connector's user reads the binlog of this server: of another one nothing would fit."""
    sessions = fetch_all(connection, "SHOW FULL PROCESSLIST")
    if any(user == connector.user and command.startswith("Binlog Dump") for _, user, _, _, command, *_ in sessions):
        return Check("connector's server", "ok", f"{connector.user} reads the binlog of {server.name}")
    if not _is_granted(connection, _SEES_ALL):
        why = f"it can't be seen whether {connector.name} reads {server.name}"
        return Check("connector's server", "warning", why, "GRANT PROCESS ON *.* lets the user see it")
    return Check(
        "connector's server",
        "warning",
        f"no session of {connector.user} reads the binlog of {server.name}",
        f"is {connector.name} running? host must be the very server that it reads, not its replica, nor its primary",
    )


def _is_granted(connection: Connection, rights: Sequence[str]) -> bool:
    """Whether the user has one of the rights everywhere."""
    grants = [str(line) for (line, *_) in fetch_all(connection, "SHOW GRANTS")]
    return any(right in line.upper() for line in grants if " ON *.* " in line for right in rights)


def _replication_grant(connection: Connection, server: ConnectionSettings) -> Iterator[Check]:
    """Whether the user may read the binlog. The server says so only when it is read, so its grants are read instead."""
    if _is_granted(connection, _MAY_REPLICATE):
        yield Check("grants", "ok", "the user may read the binlog")
    else:
        hint = MYSQL_GRANTS_HINT if server.product == "MySQL" else GRANTS_HINT
        yield Check("grants", "missing", "the user lacks REPLICATION SLAVE", hint)


def _log_kept(connection: Connection, server: ConnectionSettings) -> Iterator[Check]:
    """A source that is away for longer than logs are kept begins anew."""
    names = ("binlog_expire_logs_seconds", "expire_logs_days")  # MariaDB 10.5 has the days alone; of both one counts
    found = dict(fetch_all(connection, "SHOW GLOBAL VARIABLES WHERE Variable_name IN (%s, %s)", names))
    name, unit_s = (names[1], DAY_S) if names[1] in found and not float(found.get(names[0], 0)) else (names[0], 1)
    kept_s = int(float(found.get(name, 0)) * unit_s)
    if kept_s and kept_s < 2 * DAY_S:
        how = "SET PERSIST" if server.product == "MySQL" else "SET GLOBAL"
        yield Check(
            "binlog kept",
            "warning",
            f"{_duration(kept_s)}: a source that is away for longer begins anew, and caches begin empty",
            f"{how} {name} = {7 * DAY_S // unit_s}",
        )
    else:
        yield Check("binlog kept", "ok", f"{kept_s / DAY_S:.0f} days" if kept_s else "until somebody purges it")


def _choice(connection: Connection, chosen: TableFilter, known: Collection[str]) -> Iterator[Check]:
    """What the settings name, and is not there or not visible. A source begins without a table, not a database."""
    absent = [("missing", f"database {name}") for name in unknown_databases(connection, chosen.databases)]
    absent += [("warning", f"tables {pattern}") for pattern in chosen.without_tables(known)]
    for status, each in absent:
        yield Check(
            "choice", status, f"{each}: not there, or the user has no rights on it", "check its name; grant SELECT"
        )
    if known:
        yield Check("choice", "ok", f"{counted(len(known), 'table')} of the settings' choice are there")
    elif not absent:
        yield Check("choice", "warning", "the chosen databases have no tables", "they are found once they are made")


def _select_grant(
    connection: Connection, server: ConnectionSettings, tables: Sequence[TableInfo]
) -> Generator[Check, None, set[str]]:
    """Whether the user may read all of them. Returns those that somebody has locked against reads."""
    refused, busy = list[str](), set[str]()
    for info in tables:
        try:
            with translated(server):
                if not _is_free(connection, info):
                    busy.add(info.name)
        except MariaDBError as error:
            if error.code != "mariadb_access_denied":
                raise
            refused.append(info.name)
    if refused:
        hint = f"GRANT SELECT ON {refused[0].split('.')[0]}.* TO its user"
        yield Check("grants", "missing", f"the user may not read {listed(refused)}", hint)
    elif tables:
        yield Check("grants", "ok", "the user may read all of them")
    return busy


def _is_free(connection: Connection, info: TableInfo) -> bool:
    """Whether no session has locked a table against reads, as LOCK TABLES … WRITE does. Rights are looked at before."""
    try:
        fetch_all(connection, f"SELECT 1 FROM {quoted(info.database)}.{quoted(info.table)} LIMIT 0")
    except pymysql.err.OperationalError as error:
        if code_of(error) != ER.LOCK_WAIT_TIMEOUT:
            raise
        return False
    return True


def _locked(names: Collection[str]) -> Iterator[Check]:
    """What is told of these tables would be waited for; a source reads them later."""
    if names:
        yield Check(
            "locked",
            "warning",
            f"{listed(sorted(names))}: a session has locked what is not examined here",
            "SHOW FULL PROCESSLIST at the server names who locks it; ask again once that is done",
        )


def not_cached(tables: Collection[TableInfo], cure: Callable[[TableInfo], str]) -> Iterator[Check]:
    """The tables that are read from the server each time, or not at all, and why."""
    refused = [info for info in tables if not info.cacheable]
    for info in refused[:SHOWN_MAX]:
        how = (
            "requests for its rows are refused"
            if not info.primary_key
            else "its rows are read from the server each time"
        )
        yield Check("not cached", "warning", f"{info.name}: {info.problem}; {how}", cure(info))
    if len(refused) > SHOWN_MAX:
        reasons = Counter("no primary key" if not info.primary_key else "other" for info in refused[SHOWN_MAX:])
        shown = ", ".join(f"{counted(number, 'table')} ({reason})" for reason, number in reasons.items())
        yield Check("not cached", "warning", f"and {shown}", "name the tables that matter in `include`")
    if len(tables) > len(refused):
        yield Check("cached", "ok", counted(len(tables) - len(refused), "table"))


def _cure(info: TableInfo) -> str:
    if info.engine.lower() != "innodb":
        return f"ALTER TABLE {info.name} ENGINE = InnoDB"
    return f"give {info.name} a primary key" if not info.primary_key else f'or leave it out: exclude = ["{info.name}"]'


def _cascades(found: Cascades, known: Mapping[str, TableInfo]) -> Iterator[Check]:
    """Foreign keys by which the server changes rows that the binlog does not show."""
    parents = sorted({*found.on_delete, *found.on_update} & known.keys())
    if parents:
        below = {
            child for rule in (found.on_delete, found.on_update) for each in parents for child in rule.get(each, ())
        }
        yield Check(
            "cascades",
            "warning",
            f"a DELETE or UPDATE of keys in {listed(parents)} voids what refers to them in {listed(sorted(below))}",
            "with backfill these rows alone, which are read again at once; without it all of the table",
        )


def _backfill(
    connection: Connection, server: ConnectionSettings, source: MariaDBSourceSettings, tables: Sequence[TableInfo]
) -> Iterator[Check]:
    """Size and time of a backfill of all tables that can be cached, by a sample of the largest one."""
    sizes = _sizes(connection, [(info.database, info.table) for info in tables])
    sized = {info.name: sizes.get((info.database, info.table), Sized(0, 0)) for info in tables}
    rows, data_bytes = (sum(each[field] for each in sized.values()) for field in (0, 1))
    if not rows:
        return
    largest = max(tables, key=lambda info: sized[info.name].rows)
    read_per_s = _rows_per_s(server, largest)
    if read_per_s is None:
        return
    per_s = read_per_s * READING_SHARE * source.backfill_share
    limit = source.backfill_rows_per_s
    limited = f", which backfill_rows_per_s = {limit} bounds" if limit and limit < per_s else ""
    per_s = min(per_s, limit) if limit else per_s
    rate = f"{_duration(rows / per_s)} at {per_s:,.0f} rows a second from here{limited}"
    yield Check(
        "backfill",
        "ok",
        f"about {rows:,} rows, {data_bytes / (1 << 20):,.1f} MiB at the server; about"
        f" {rate if rows > FEW_ROWS or limited else 'a second'}",
        ""
        if source.backfill
        else 'backfill = ["*"] publishes them; without it a row is cached once it is written or read',
    )


def _sizes(connection: Connection, names: Sequence[Name]) -> dict[Name, Sized]:
    """Of those that nobody has locked by now."""

    def read(some: Sequence[Name]) -> dict[Name, Sized]:
        where, arguments = names_sql(some or names)
        found = fetch_all(
            connection,
            f"{limit_sql(connection, 0)}SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_ROWS, DATA_LENGTH"
            f" FROM information_schema.TABLES WHERE {where}",
            arguments,
        )
        return {(database, table): Sized(int(rows or 0), int(size or 0)) for database, table, rows, size in found}

    parts, _ = read_unlocked(connection, read, lambda: names) if names else ([], None)
    return {name: sized for part in parts for name, sized in part.items()}


def _rows_per_s(server: ConnectionSettings, info: TableInfo) -> float | None:
    """How fast a backfill's own reader reads the table's first rows; None if it can't now, or finds none."""
    reader, rows, after = ChunkReader(server), 0, None
    try:
        reader.estimated_rows(info.name)  # connects
        begun = time.perf_counter()
        while True:
            chunk = reader.read(info.describe(), after)
            rows, after = rows + len(chunk.rows), chunk.last
            taken_s = time.perf_counter() - begun
            if after is None or taken_s > SAMPLE_S:
                return rows / taken_s if rows else None
    except MariaDBError:
        return None
    finally:
        reader.close()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def counted(number: int, noun: str) -> str:
    """So many of them, in words."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:5])
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown
