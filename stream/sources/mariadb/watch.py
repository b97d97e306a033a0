"""Detects a binlog connection that follows a log which the server no longer has.

After RESET MASTER connected replicas still get heartbeats, but never an event again. Without checking the server, the
cache would keep calling the old history fresh.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from stream.sources.mariadb.binlog.events import LogPlace
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    connect,
    fetch_all,
    translated,
)
from stream.sources.mariadb.position import SourceHistoryLost, check_not_lost

CHECK_INTERVAL_S = 2.0
STALL_MAX_S = 15.0
"""How late a heartbeat may be. It is longer than the delay of a slow network or of a stopped process."""
_HEARTBEAT_OFFSETS = 1 << 32
"""A heartbeat has 32 bits for the offset in a file."""


class DumpWatch:
    """Checks the server while its binlog connection only sends heartbeats. Not thread-safe."""

    def __init__(self, settings: ConnectionSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._next_check_at = clock() + CHECK_INTERVAL_S
        self._missing: tuple[LogPlace, float] | None = None
        self._session: Connection | None = None

    def event_received(self) -> None:
        """Call it for each event that the connection delivers."""
        self._missing = None

    def is_check_due(self) -> bool:
        """Whether it is time to call `check`."""
        return self._clock() >= self._next_check_at

    def check(self, last_heartbeat: LogPlace, position: str) -> None:
        """Compare the connection with the server's log.

        ``last_heartbeat``: its place in the log. ``position``: everything delivered so far (``MariaDB/…``). Raises
        `SourceHistoryLost` if the server's logs were replaced, `MariaDBUnreachable` if the connection delivers nothing
        of what was logged. Does nothing if the server can't be queried.
        """
        self._next_check_at = self._clock() + CHECK_INTERVAL_S
        try:
            end = self._end_of_log(position)
        except SourceHistoryLost:
            raise
        except MariaDBError:
            self.close()
            return
        if last_heartbeat.server != end.server:  # another server at this address: only GTIDs can be compared
            return
        if last_heartbeat > end:
            raise SourceHistoryLost(
                f"the binary log ends before the place that was read: the server's logs were reset (at {position})",
                hint="after RESET MASTER or a restore a new epoch starts",
            )
        self._check_progress(last_heartbeat, end)

    def _check_progress(self, last_heartbeat: LogPlace, end: LogPlace) -> None:
        if last_heartbeat == end or end.offset >= _HEARTBEAT_OFFSETS:
            self._missing = None
        elif self._missing is None or last_heartbeat >= self._missing[0]:
            self._missing = end, self._clock()
        elif self._clock() - self._missing[1] > STALL_MAX_S:
            raise MariaDBUnreachable(
                f"{self._settings.name} sends nothing of what it has logged",
                hint="the source reconnects by itself",
            )

    def _end_of_log(self, position: str) -> LogPlace:
        with translated(self._settings):
            if self._session is None:
                self._session = connect(self._settings)
            check_not_lost(self._session, position)
            [[file, offset, *_], *_] = fetch_all(self._session, "SHOW MASTER STATUS")
            [[server]] = fetch_all(self._session, "SELECT @@server_id")
        return LogPlace.of(int(server), str(file), int(offset))

    def close(self) -> None:
        """End the session that queries the server."""
        session, self._session = self._session, None
        if session is not None:
            session._force_close()
