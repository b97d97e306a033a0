"""Whether a binlog connection that has nothing new is still on the server's own log, or on one that is gone.

RESET MASTER leaves connected replicas where they were: they get heartbeats, and never an event again. Without a look at
the server, a cache would go on to call the old history fresh.
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

LOOK_EVERY_S = 2.0
STUCK_S = 15.0
"""So long a heartbeat may be under way: longer than a slow network or a stopped process of ours holds it up."""
_HEARTBEAT_OFFSETS = 1 << 32
"""A heartbeat has 32 bits for the place in a file."""


class DumpWatch:
    """Looks at the server now and then while its binlog connection only sends heartbeats. Of one thread."""

    def __init__(self, settings: ConnectionSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._look_at = clock() + LOOK_EVERY_S
        self._missing: tuple[LogPlace, float] | None = None
        self._session: Connection | None = None

    def moved(self) -> None:
        """The connection delivered something."""
        self._missing = None

    def look_due(self) -> bool:
        """Whether it is time to look again; then `look` is to be called."""
        return self._clock() >= self._look_at

    def look(self, heard: LogPlace, position: str) -> None:
        """``heard``: where the last heartbeat was; ``position``: all that was delivered (``MariaDB/…``).

        Raises `SourceHistoryLost`: the server's logs are not those any more. Raises `MariaDBUnreachable`: the
        connection delivers nothing of what was logged long ago. A server that can't be asked proves nothing.
        """
        self._look_at = self._clock() + LOOK_EVERY_S
        try:
            end = self._end_of_log(position)
        except SourceHistoryLost:
            raise
        except MariaDBError:
            self.close()
            return
        if heard.server != end.server:  # another server answers at this address: only its GTIDs can be compared
            return
        if heard > end:
            raise SourceHistoryLost(
                f"the binary log ends before the place that was read: the server's logs were reset (at {position})",
                hint="RESET MASTER, or a restore in place: a new epoch starts",
            )
        self._mind(heard, end)

    def _mind(self, heard: LogPlace, end: LogPlace) -> None:
        if heard == end or end.offset >= _HEARTBEAT_OFFSETS:
            self._missing = None
        elif self._missing is None or heard >= self._missing[0]:
            self._missing = end, self._clock()
        elif self._clock() - self._missing[1] > STUCK_S:
            raise MariaDBUnreachable(
                f"{self._settings.name} sends nothing of what it has logged", hint="the connection is made anew"
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
        """Ends the session that asks."""
        session, self._session = self._session, None
        if session is not None:
            session._force_close()
