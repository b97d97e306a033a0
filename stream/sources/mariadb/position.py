"""The position of a server, and whether a source can resume from a given position.

The server's own checks are not enough: if a position lacks one of the server's domains, the server silently replays
that domain from its first event.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import pymysql
from pymysql.constants import ER

from stream.sources.mariadb.connection import (
    Connection,
    MariaDBError,
    NotResumable,
    SourceHistoryLost,
    fetch_all,
    is_mysql,
)
from stream.sources.mariadb.gtid import FLAVOR, GtidPosition, MysqlGtidSet
from stream.sources.mariadb.mysql import position as mysql_position

PLACES_MAX = 3
"""Places that are tried in a row; one may be lost to a binlog that is rotated or purged meanwhile."""
SLOW_S: Final = 0.01
"""How long it takes at least to find the position of a place where that is avoided: without an index of GTIDs (before
11.4) a server reads the binlog's file from its beginning up to there.
"""
NEAR: Final = 1 << 18
"""An offset that is far behind what each file begins with, and found soon."""


@dataclass(frozen=True, slots=True)
class ServerPosition:
    """A position (``MariaDB/…``) and the server's seconds since 1970 at the same instant."""

    position: str
    timestamp: int


@dataclass(frozen=True, slots=True)
class BinlogPlace:
    """A place in the binlog. Every transaction before it is visible to each read that begins later.

    ``position``: one that is not behind it, if that is known; else "".
    """

    file: str
    offset: int
    position: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The positions that a read lies between: it has everything up to ``lo`` and nothing after ``hi``.

    ``timestamp``: the server's seconds since 1970. ``is_primary``: it takes writes (``read_only`` is off), and has
    nothing from another server that is the newest of its domain. No node of a Galera cluster is: each shows what the
    others have committed a while later.
    """

    lo: str
    hi: str
    timestamp: int
    is_primary: bool


_SCANNED: Final[WeakKeyDictionary[Connection, BinlogPlace]] = WeakKeyDictionary()
"""Session → a place in the binlog whose position it took the server long to find."""
_WITHOUT_GALERA: Final[WeakSet[Connection]] = WeakSet()
"""Sessions of servers that are built without it, and don't know its variables."""


def committed_place(connection: Connection) -> BinlogPlace | MysqlGtidSet:
    """The place up to which the engine has committed. Needs no privilege. Call it outside of a consistent snapshot.

    MySQL says it as a set of GTIDs, MariaDB as a place in the binlog.

    The binlog's end would be wrong, because a change is in the binlog before the engine shows it. The place of a
    ``WITH CONSISTENT SNAPSHOT`` would be wrong too: the server keeps what SHOW STATUS says of it in variables that all
    sessions share, so a session may be told the place of another session's later snapshot. Outside of a snapshot, what
    another session left there is a place that was committed before, which is only earlier than need be.
    """
    if is_mysql(connection):
        return mysql_position.executed(connection)
    known = _SCANNED.get(connection)
    return _committed(connection) if known is None else _committed_past(connection, known)


def _committed_past(connection: Connection, known: BinlogPlace) -> BinlogPlace:
    """`committed_place`, with its position if that can be had without reading the binlog up to there.

    First all GTIDs in the log are asked for, then where the log ends, then how far the engine has committed: if that is
    no less, all of them are visible. For a server counts a GTID a moment before it writes the transaction, but says
    where the log ends only when that is written: the end is behind all of them. And it commits in the order of the log.
    Only where a file begins it says too much: it names the file's first place, or an offset of the file before, until
    the next commit. But a transaction of this file was committed before, at ``known``. If sessions ask together, one
    may be told the file of one place and the offset of another. That is not between the log's ends of before and after.
    """
    try:
        ((position,),) = fetch_all(connection, "SELECT @@gtid_binlog_pos")
        end = _logged(connection)
        for _ in range(PLACES_MAX):
            found = _committed(connection)
            if found.file == end.file == known.file and known.offset <= end.offset <= found.offset:
                last = end if found == end else _logged(connection)
                if last.file == end.file and found.offset <= last.offset:
                    return replace(found, position=position)
    except pymysql.err.OperationalError as error:
        if not error.args or error.args[0] != ER.SPECIFIC_ACCESS_DENIED_ERROR:
            raise
        return _committed(connection)  # a user who only reads rows may not ask for the log's end
    return found


def _logged(connection: Connection) -> BinlogPlace:
    """The end of the binlog. It waits while a transaction is written."""
    ((file, offset, *_), *_) = fetch_all(connection, "SHOW MASTER STATUS")
    return BinlogPlace(str(file), int(offset))


def _committed(connection: Connection) -> BinlogPlace:
    status = dict(fetch_all(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
    found = {name.lower(): value for name, value in status.items()}
    if not found.get("binlog_snapshot_file"):
        raise _no_position()
    return BinlogPlace(found["binlog_snapshot_file"], int(found["binlog_snapshot_position"]))


def bounds_since(connection: Connection, place: BinlogPlace | MysqlGtidSet) -> Bounds | None:
    """The bounds of a read that began after ``place`` was asked for, and that is done.

    ``hi`` is the binlog's end: what the engine shows is in the binlog already. None if ``place`` is in no binlog of
    the server: it was purged, or the file and the offset that the server named belong to different files.
    """
    if isinstance(place, MysqlGtidSet):
        return _mysql_bounds(connection, place)
    began = time.monotonic()
    lo, hi, timestamp, logs_all, replicated, read_only, in_cluster = _bounds(connection, place)
    if lo is not None and not place.position and place.offset >= NEAR and time.monotonic() - began >= SLOW_S:
        _SCANNED[connection] = place
    if replicated and not _is_on(logs_all):
        raise _no_position_of_replica("log_slave_updates")
    if lo is None:
        return None
    end = GtidPosition.parse(hi)
    writes = not _is_on(read_only) and not _is_on(in_cluster)
    is_primary = writes and _has_own(end, GtidPosition.parse(replicated))
    return Bounds(str(GtidPosition.parse(lo)), str(end), int(timestamp), is_primary)


def _bounds(connection: Connection, place: BinlogPlace) -> tuple[Any, ...]:
    """What `bounds_since` asks of a MariaDB. One that is built without Galera is asked for it once a session."""
    at: tuple[object, ...] = (place.position,) if place.position else (place.file, place.offset)
    lo = "%s" if place.position else "BINLOG_GTID_POS(%s, %s)"
    sql = f"SELECT {lo}, @@gtid_binlog_pos, UNIX_TIMESTAMP(), @@log_slave_updates, @@gtid_slave_pos, @@read_only, "
    if connection not in _WITHOUT_GALERA:
        try:
            (found,) = fetch_all(connection, sql + "@@GLOBAL.wsrep_on", at)
            return found
        except pymysql.err.MySQLError as error:
            if not error.args or error.args[0] != ER.UNKNOWN_SYSTEM_VARIABLE:
                raise
        _WITHOUT_GALERA.add(connection)
    (found,) = fetch_all(connection, sql + "0", at)
    return found


def _mysql_bounds(connection: Connection, lo: MysqlGtidSet) -> Bounds:
    hi = mysql_position.logged(connection)
    ((timestamp, logs_all, read_only),) = fetch_all(
        connection, "SELECT UNIX_TIMESTAMP(), @@log_replica_updates, @@read_only"
    )
    replicates = mysql_position.is_replica(connection)
    if replicates and not _is_on(logs_all):
        raise _no_position_of_replica("log_replica_updates")
    return Bounds(str(lo), str(hi), int(timestamp), not replicates and not _is_on(read_only))


def end_of_log(connection: Connection) -> GtidPosition:
    """The end of the binlog: whatever was visible before the call is in it."""
    if is_mysql(connection):
        return mysql_position.logged(connection)
    ((position,),) = fetch_all(connection, "SELECT @@gtid_binlog_pos")
    return GtidPosition.parse(position)


def _is_on(value: object) -> bool:
    return str(value) not in ("0", "OFF")


def _has_own(end: GtidPosition, replicated: GtidPosition) -> bool:
    """Whether the server itself has written last in each domain that it has ever replicated.

    A replica may take writes: ``read_only`` is off by default. One that was promoted counts from its first own write.
    """
    mine = end.domains
    return all(domain in mine and mine[domain][1] > sequence for domain, (_, sequence) in replicated.domains.items())


def current_position(connection: Connection) -> ServerPosition:
    """The server's position: all of its transactions up to there are visible."""
    for _ in range(PLACES_MAX):
        found = bounds_since(connection, committed_place(connection))
        if found is not None:
            return ServerPosition(found.lo, found.timestamp)
    raise _no_position()


def _no_position() -> MariaDBError:
    return MariaDBError(
        "the server does not report the position of what it has committed",
        hint="check that the binary log is on (log_bin) and that the server is MariaDB 10.5 or later",
        code="no_snapshot_position",
    )


def _no_position_of_replica(setting: str) -> MariaDBError:
    return MariaDBError(
        "the server is a replica that does not log what it replicates, so its rows have no position",
        hint=f"set {setting} = ON in its configuration file and restart it, or read from its primary",
        code="no_snapshot_position",
    )


def check_resumable(connection: Connection, position: str) -> None:
    """Check that the binlog has everything after ``position`` and that the history up to it was not replaced.

    Raises `SourceHistoryLost` (a new epoch is needed), or `NotResumable`: ``binlog_purged`` names the earliest possible
    position, ``unknown_domain`` names a domain whose events may be on both sides of the position.
    """
    if is_mysql(connection):
        mysql_position.check_resumable(connection, position)
        return
    mine = GtidPosition.parse(position).domains
    check_not_lost(connection, position)
    starts = _log_starts(connection)
    oldest = starts[0] if starts else {}
    for domain, (server, sequence) in sorted(oldest.items()):
        if domain in mine and mine[domain][1] < sequence:
            raise NotResumable(
                f"the binary logs after {position} are purged: the server could start at"
                f" {GtidPosition(oldest)} at the earliest",
                hint="start a new epoch (--new-epoch), and keep binary logs longer (binlog_expire_logs_seconds)",
            )
        if domain not in mine:
            _unknown_domain(domain, f"{domain}-{server}-{sequence}", position)
    for start in starts:
        if all(mine[domain][1] >= sequence for domain, (_, sequence) in start.items() if domain in mine):
            for domain, (server, sequence) in sorted(start.items()):
                if domain not in mine:
                    _unknown_domain(domain, f"{domain}-{server}-{sequence}", position)


def _unknown_domain(domain: int, gtid: str, position: str) -> None:
    raise NotResumable(
        f"the server has events of GTID domain {domain} (up to {gtid}), which is not in {position}",
        hint="it would replay that domain from its start: start a new epoch (--new-epoch)",
        code="unknown_domain",
    )


def check_not_lost(connection: Connection, position: str) -> None:
    """Check that everything up to ``position`` is in the server's history. Raises `SourceHistoryLost`."""
    if is_mysql(connection):
        mysql_position.check_not_lost(connection, position)
        return
    ((state, here),) = fetch_all(connection, "SELECT @@gtid_binlog_state, @@gtid_binlog_pos")
    check_in_history(by_domain_and_server(state), position, here)


def check_in_history(state: dict[tuple[int, int], int], position: str, here: str) -> None:
    """Check that ``state`` contains ``position``. Raises `SourceHistoryLost`.

    ``state``: the last sequence of each (domain, server). ``here``: the server's position, for the message.
    """
    if not position.startswith(FLAVOR) and "/" in position:
        raise SourceHistoryLost(f"{position} was published, but the server is a MariaDB", hint="a new epoch starts")
    for domain, (server, sequence) in GtidPosition.parse(position).domains.items():
        if state.get((domain, server), 0) < sequence:
            raise SourceHistoryLost(
                f"{domain}-{server}-{sequence} of {position} was published, but is not in the server's history"
                f" (it is at {here or 'the start'})",
                hint="the server was restored, or another one took over without this transaction: a new epoch starts",
            )


def by_domain_and_server(state: str) -> dict[tuple[int, int], int]:
    """The last sequence of each (domain, server) in the text of ``@@gtid_binlog_state``."""
    found: dict[tuple[int, int], int] = {}
    for part in state.split(","):
        if part.strip():
            domain, server, sequence = map(int, part.strip().split("-"))
            found[domain, server] = sequence
    return found


def _log_starts(connection: Connection) -> list[dict[int, tuple[int, int]]]:
    """The positions at the start of the remaining binary logs, oldest first."""
    found = []
    for name, *_ in fetch_all(connection, "SHOW BINARY LOGS"):
        ((position,),) = fetch_all(connection, "SELECT BINLOG_GTID_POS(%s, 4)", (name,))
        if position is not None:
            found.append(GtidPosition.parse(position).domains)
    return found
