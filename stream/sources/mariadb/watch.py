"""Queries the server beside its binlog connection: does the connection still follow the server's log, and in order?

After RESET MASTER connected replicas still get heartbeats, but never an event again. Without checking the server, the
cache would keep calling the old history fresh. Settings that break the order of GTIDs can be changed at any time.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from stream.sources.mariadb.binlog.events import LogPlace
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    ServerSettingsError,
    SourceHistoryLost,
    connect,
    fetch_all,
    is_mysql,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition, MysqlGtidSet
from stream.sources.mariadb.mysql.requirements import binlog_status
from stream.sources.mariadb.position import check_not_lost, end_of_log
from stream.sources.mariadb.requirements import check_server

CHECK_INTERVAL_S = 1.0
STALL_MAX_S = 15.0
"""How late a heartbeat may be. It is longer than the delay of a slow network or of a stopped process."""
_HEARTBEAT_OFFSETS = 1 << 32
"""A heartbeat has 32 bits for the offset in a file."""


class ServerClock(NamedTuple):
    """The server's clock. Everything committed before is at or before ``position``, because that was read after it."""

    now_ms: int
    position: GtidPosition


class DumpWatch:
    """Checks the server while its binlog connection is read. ``server``: its server_id. Not thread-safe."""

    def __init__(self, settings: ConnectionSettings, server: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._server = server
        self._clock = clock
        self._next_check_at = clock() + CHECK_INTERVAL_S
        self._missing: tuple[LogPlace, float, LogPlace] | None = None
        """The end of the log that was not delivered, when it was seen (monotonic seconds), and the heartbeat then."""
        self._behind_since: float | None = None
        self._session: Connection | None = None
        self.clock_seen: ServerClock | None = None
        """The clock of the server whose binlog is read, when it was asked, and no replica; None once it is passed on.

        A replica has what it has applied: it can't tell since when its primary has more.
        """

    def saw(self, clock: ServerClock) -> None:
        """Keep the clock of the server for `clock_seen`, unless an earlier one still waits until all before it is read.

        A source that is always behind would never reach the position of a clock that is replaced each second. Of that
        position, what MySQL was about to commit and does not name any more was rolled back: it is not waited for.
        """
        waits = self.clock_seen
        if waits is None:
            self.clock_seen = clock
        elif isinstance(waits.position, MysqlGtidSet) and isinstance(clock.position, MysqlGtidSet):
            self.clock_seen = waits._replace(position=waits.position.within(clock.position))

    def event_received(self) -> None:
        """Call it for each event that the connection delivers."""
        self._missing = None
        self._behind_since = None

    def is_check_due(self) -> bool:
        """Whether it is time to call `check`."""
        return self._clock() >= self._next_check_at

    def _checked(self) -> None:
        """The next check is due later."""
        self._next_check_at = self._clock() + CHECK_INTERVAL_S

    def check(self, position: str, last_heartbeat: LogPlace | None = None) -> None:
        """Compare the connection with the server's log and settings.

        ``position``: everything delivered so far (``MariaDB/…``). ``last_heartbeat``: where in the log the connection
        waits; None while events arrive. Raises `SourceHistoryLost` if the server's logs were replaced,
        `MariaDBUnreachable` if the connection delivers nothing of what was logged, `ServerSettingsError`. Does nothing
        if the server can't be queried.
        """
        self._checked()
        try:
            end, reached, is_replica = self._end_of_log(position)
        except (SourceHistoryLost, ServerSettingsError):
            raise
        except MariaDBError:
            self.close()
            return
        if end.server == self._server and not is_replica:
            self.saw(reached)
        if last_heartbeat is None:
            return
        if last_heartbeat.server != end.server:  # another server at this address: only GTIDs can be compared
            self._check_other_server(GtidPosition.parse(position), reached.position)
            return
        if last_heartbeat > end:
            raise SourceHistoryLost(
                f"the binary log ends before the place that was read: the server's logs were reset (at {position})",
                hint="after RESET MASTER or a restore a new epoch starts",
            )
        self._check_progress(last_heartbeat, end)

    def _check_other_server(self, position: GtidPosition, reached: GtidPosition) -> None:
        """Raises `MariaDBUnreachable` if the server that the address leads to now has more, for long."""
        if position.covers(reached):
            self._behind_since = None
        elif self._behind_since is None:
            self._behind_since = self._clock()
        elif self._clock() - self._behind_since > STALL_MAX_S:
            raise MariaDBUnreachable(
                f"{self._settings.name} leads to another server now, which has more than the one that was read",
                hint="the source reconnects by itself",
            )

    def _check_progress(self, last_heartbeat: LogPlace, end: LogPlace) -> None:
        if last_heartbeat == end or end.offset >= _HEARTBEAT_OFFSETS:
            self._missing = None
        elif self._missing is None or last_heartbeat >= self._missing[0] or last_heartbeat > self._missing[2]:
            self._missing = end, self._clock(), last_heartbeat  # it may be passing over what was read before, for long
        elif self._clock() - self._missing[1] > STALL_MAX_S:
            raise MariaDBUnreachable(
                f"{self._settings.name} sends nothing of what it has logged",
                hint="the source reconnects by itself",
            )

    def _end_of_log(self, position: str) -> tuple[LogPlace, ServerClock, bool]:
        with translated(self._settings):
            if self._session is None:
                self._session = connect(self._settings)
            is_replica = check_server(self._session)
            check_not_lost(self._session, position)
            if is_mysql(self._session):
                place, clock = _mysql_end(self._session)
                return place, clock, is_replica
            [[file, offset, *_], *_] = fetch_all(self._session, "SHOW MASTER STATUS")
            [[now_ms, server, reached]] = fetch_all(
                self._session, "SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000), @@server_id, @@gtid_binlog_pos"
            )
        clock = ServerClock(int(now_ms), GtidPosition.parse(reached))
        return LogPlace.of(int(server), str(file), int(offset)), clock, is_replica

    def close(self) -> None:
        """End the session that queries the server."""
        session, self._session = self._session, None
        if session is not None:
            session._force_close()


def _mysql_end(session: Connection) -> tuple[LogPlace, ServerClock]:
    file, offset, *_ = binlog_status(session)
    [[now_ms, server]] = fetch_all(session, "SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000), @@server_id")
    return LogPlace.of(int(server), file, offset), ServerClock(int(now_ms), end_of_log(session))
