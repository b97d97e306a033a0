"""The server whose replicas are read: whether its history is kept, and still the one that was published.

It is not read, so nothing else looks at that. A server that lost its last commits in a crash may use their numbers
again, and a replica that has them goes on with what follows: then its log and the server's are no more the same, and
the numbers don't tell.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final, NamedTuple

from stream.sources.mariadb.binlog.last_read import check_same
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    NotResumable,
    ServerSettingsError,
    SourceHistoryLost,
    fetch_all,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.position import bounds_since, check_not_lost, check_resumable, committed_place
from stream.sources.mariadb.replicas.sessions import CONNECT_S, Sessions
from stream.sources.mariadb.requirements import check_writer
from stream.sources.mariadb.watch import ServerClock

ASK_EVERY_S: Final = 10.0
"""Between two looks for a server that could not be asked."""


class _Published(NamedTuple):
    cursor: str
    position: str
    checksum: int


class Primary:
    """Asks the server itself. ``server_id``: what its log is read with."""

    def __init__(self, settings: ConnectionSettings, server_id: int, sessions: Sessions) -> None:
        self._settings, self._server_id, self._sessions = settings, server_id, sessions
        self._doubted: list[_Published] = []
        """What was published before it was away, or before it was asked: the first, and the last."""
        self._ask_at = 0.0

    def check_settings(self) -> None:
        """Raises `ServerSettingsError` if what its replicas log proves nothing. Not if it can't be asked."""
        try:
            self._sessions.asked(self._settings, check_writer)
        except ServerSettingsError:
            raise
        except MariaDBError:
            pass  # nobody can tell now

    def lacks(self, position: str) -> bool:
        """Whether it says that it lacks something of ``position``: it has lost it, or never had it.

        Numbers don't tell: a replica that is ahead of what took the server's place covers what that writes then.
        """
        try:
            self._sessions.asked(self._settings, lambda connection: check_not_lost(connection, position))
        except SourceHistoryLost:
            return True
        except MariaDBError:
            pass  # nobody can tell now
        return False

    def doubt(self, progress: Progress) -> None:
        """From here on it must be looked whether it has the last published transaction."""
        if progress.checksum and progress.cursor:
            last = _Published(progress.cursor, progress.position, progress.checksum)
            self._doubted = list(dict.fromkeys([*self._doubted[:1], last]))

    def forget(self) -> None:
        """Another epoch has begun: what was published before does not matter."""
        self._doubted = []

    def check_published(self) -> bool:
        """Raises `SourceHistoryLost` if it has something else in place of what was published; or `MariaDBError`.

        False: it lacks some of that, now.
        """
        while self._doubted:
            if self.lacks(self._doubted[0].position):
                return False
            self._compare(self._doubted[0])
            del self._doubted[0]
        return True

    def _compare(self, last: _Published) -> None:
        try:
            self._sessions.asked(self._settings, lambda connection: check_resumable(connection, last.cursor))
            check_same(replace(self._settings, connect_timeout_s=CONNECT_S), self._server_id, *last)
        except (NotResumable, BinlogFormatError):
            pass  # it is purged, or can't be read: nobody can tell

    def now(self, progress: Progress | None) -> tuple[ServerClock, bool] | None:
        """The server's clock, its end of the log a moment later, and whether it takes writes; None: it can't be asked.

        One that was promoted takes writes once it has written. Until then its clock says nothing. The same of one that
        lacks what was published. Raises `ServerSettingsError`, and `SourceHistoryLost` as `check_published` does.
        """
        if time.monotonic() < self._ask_at:
            return None

        def ask(connection: Connection) -> tuple[ServerClock, bool, bool] | None:
            is_readable = check_writer(connection)
            [[now_ms]] = fetch_all(connection, "SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")
            bounds = bounds_since(connection, committed_place(connection))
            if bounds is None:
                return None
            return ServerClock(int(now_ms), GtidPosition.parse(bounds.hi)), bounds.is_primary, is_readable

        try:
            found = self._sessions.asked(self._settings, ask)
            if found is None:
                return None
            clock, takes_writes, is_readable = found
            if not is_readable:
                self._doubted = []  # it logs no rows, or less of them: nothing to compare
            return clock, takes_writes and self.check_published()
        except ServerSettingsError:
            self.check_published()  # a loss that the setting allows is told first
            raise
        except SourceHistoryLost:
            raise
        except MariaDBError:
            self._ask_at = time.monotonic() + ASK_EVERY_S
            if progress is not None:
                self.doubt(progress)
            return None
