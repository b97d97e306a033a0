"""A source that reads the binlog at a replica of its server while one is up to date, and else at the server itself.

A replica logs what it replicates under the same GTIDs, so any of them can go on where another one was left. Only the
server itself may say that published history is lost: a replica that lacks some of it is behind, or is passed over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from stream.publish.publisher import PublisherLost
from stream.sources.mariadb.backfill.run import Requests
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    NotResumable,
    ServerSettingsError,
    SourceHistoryLost,
    connect,
    fetch_all,
    translated,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import bounds_since, check_not_lost, check_resumable, committed_place, end_of_log
from stream.sources.mariadb.replicas.left_out import check_leaves_nothing_out
from stream.sources.mariadb.requirements import check_server
from stream.sources.mariadb.source import Log, MariaDBSource, PublisherLike, SourceOptions
from stream.sources.mariadb.watch import DumpWatch, ServerClock
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

Answer = TypeVar("Answer")
E = TypeVar("E", bound=FreshetError)

LAG_MAX_S: Final = 5.0
"""How far behind its server a replica that is followed may be."""
LOOK_EVERY_S: Final = 1.0
"""Between two looks at how far a replica is behind."""
AGAIN_EVERY_S: Final = 10.0
"""Between two looks for a replica that may be followed again, and for a server that could not be asked."""
_AT_ONCE_S: Final = 0.2
"""How long a replica that is looked for may take: nothing is read meanwhile."""
_PAUSES: Final = 20
"""How many times as long as a fruitless look took is waited: a host that is gone takes a while."""
_CONNECT_S: Final = 2.0
_POLL_S: Final = 0.05
_NOBODY: Final = 0
"""No server has this number."""


class ServerLeft(PublisherLost):
    """Another server is to be read: this one is gone, behind, or can't go on."""

    code = "server_left"


class LogAway(PublisherLost):
    """The server has purged what follows, and a replica may have it that does not answer now, or lags."""

    code = "binlog_away"


class FollowingSource(MariaDBSource):
    """As `MariaDBSource`. ``replicas``: of the server of ``options``, in the order in which they are preferred."""

    def __init__(
        self,
        options: SourceOptions,
        replicas: tuple[ConnectionSettings, ...],
        new_publisher: Callable[[], PublisherLike],
        on_ready: Callable[[str], None] = lambda _: None,
        new_requests: Callable[[], Requests | None] = lambda: None,
    ) -> None:
        super().__init__(options, new_publisher, on_ready, new_requests)
        self._primary, self._replicas = options.settings, replicas
        self._published = ""
        """The last position that is known to be published."""
        self._read_last: ConnectionSettings | None = None
        self._away: list[str] = []
        """The replicas that did not answer when a server was chosen, or had not caught up."""
        self._sessions: dict[ConnectionSettings, Connection] = {}
        """Those that look at servers, by server."""
        self._ends: deque[tuple[float, GtidPosition]] = deque()
        """Where the server was, and when, that the replica does not have."""
        self._beyond: GtidPosition | None = None
        """Where the replica was, if the server did not have that."""
        self._look_at = self._again_at = self._ask_at = 0.0
        """When the servers are looked at, a replica is looked for, and the server may be asked, at the earliest."""
        self._turn = 0
        """Which replica is looked at next."""

    @property
    def server(self) -> ConnectionSettings:
        """The server that is read."""
        return self._options.settings

    @property
    def _is_at_replica(self) -> bool:
        return self.server is not self._primary

    # -- choosing ----------------------------------------------------------------------------------------------------

    def _check_server(self) -> None:
        """Take the first server that can be read. Raises `MariaDBError`: there is none."""
        found: list[MariaDBError] = []
        self._away = []
        for server in (*self._replicas, self._primary):
            self._options = replace(self._options, settings=server)
            try:
                super()._check_server()
                if self._is_at_replica:
                    self._check_replica(server, LAG_MAX_S)
                elif self._away and self._published:
                    self._check_log()
            except MariaDBError as error:
                found.append(error)
                if isinstance(error, MariaDBUnreachable):
                    self._away.append(server.name)
                continue
            if server is not self._read_last:
                passed = [f"{each.code}: {each}" for each in found]
                log.info("server is read", shard=self._options.shard, server=server.name, passed_over=passed)
            self._read_last = server
            self._ends.clear()
            self._beyond = None
            self._again_at = time.monotonic() + AGAIN_EVERY_S
            return
        worst = [error for error in found if isinstance(error, MariaDBUnreachable)] or found[-1:]
        raise next((error for error in worst if error.code == LogAway.code), worst[0])

    def _check_log(self) -> None:
        """Raises `MariaDBUnreachable` ``binlog_away``, before a publisher takes the shard from who may go on."""
        try:
            self._asked(self._primary, lambda connection: check_resumable(connection, self._published))
        except NotResumable as error:
            raise self._log_away(error, MariaDBUnreachable) from error
        except SourceHistoryLost:
            pass  # an epoch begins where it is read

    def _log_away(self, error: NotResumable, kind: type[E]) -> E:
        return kind(
            f"{error}; {' and '.join(self._away)} may have them, and can't be read now",
            hint="bring that back, or take it out of replicas: once each of them has answered, the source ends",
            code=LogAway.code,
        )

    def _check_replica(self, server: ConnectionSettings, patience_s: float) -> None:
        """Raises `MariaDBError` unless a replica has what is published, and soon has what its server has now."""
        self._asked(server, check_server)
        self._asked(server, check_leaves_nothing_out)
        wanted = self._end_of(self._primary)
        found = self._asked(server, end_of_log)
        deadline = time.monotonic() + patience_s
        while True:
            end = self._asked(server, end_of_log)
            if self._published:
                self._asked(server, lambda connection: check_resumable(connection, self._published))
            has_parted = self._is_unknown(found)
            if not has_parted and (wanted is None or end.covers(wanted)):
                return
            if time.monotonic() > deadline or self._stopping.wait(_POLL_S):
                if has_parted:
                    raise SourceHistoryLost(f"{server.name} is at {end}, and {self._primary.name} lacks some of that")
                raise MariaDBUnreachable(f"{server.name} is at {end}, and behind {self._primary.name}, at {wanted}")

    def _is_unknown(self, end: GtidPosition) -> bool:
        """Whether the server says that it lacks something that a replica has: it has lost it, or never had it.

        Numbers don't tell: a replica that is ahead of what took the server's place covers what that writes then.
        """
        try:
            self._asked(self._primary, lambda connection: check_not_lost(connection, str(end)))
        except SourceHistoryLost:
            return True
        except MariaDBError:
            pass  # nobody can tell now
        return False

    # -- following ---------------------------------------------------------------------------------------------------

    def _read(self, publisher: PublisherLike, schema: LiveSchema, progress: Progress) -> None:
        try:
            super()._read(publisher, schema, progress)
        except (MariaDBUnreachable, SourceHistoryLost, NotResumable, ServerSettingsError) as error:
            if self._is_at_replica or isinstance(error, MariaDBUnreachable):
                raise self._left(str(error)) from error
            if isinstance(error, NotResumable) and self._away:
                raise self._log_away(error, LogAway) from error
            raise
        finally:
            self._published = progress.position
            self._close()

    def _check_resumes(self, connection: Connection, progress: Progress) -> None:
        self._published = progress.position
        try:
            super()._check_resumes(connection, progress)
        except SourceHistoryLost as lost:
            if self._is_at_replica:
                raise self._left(str(lost)) from lost
            raise

    def _open_log(self, schema: LiveSchema, position: str) -> tuple[Log, DumpWatch]:
        """At a replica, even one that does not replicate any more, nobody asks its own clock."""
        reader, watch = super()._open_log(schema, position)
        return reader, DumpWatch(self.server, _NOBODY) if self._is_at_replica else watch

    def _left(self, why: str) -> ServerLeft:
        return ServerLeft(f"{self.server.name} is not read any more: {why}", hint="another server may be")

    def _stamp(self, publisher: PublisherLike, reader: Log, watch: DumpWatch) -> None:
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            if self._is_at_replica:
                self._look_at_lag(watch)
            elif time.monotonic() >= self._again_at:
                self._look_for_replica()
        super()._stamp(publisher, reader, watch)

    def _look_at_lag(self, watch: DumpWatch) -> None:
        """Raises `ServerLeft` if the replica lags. The clock is its server's: its own says nothing of what it lacks."""
        now = time.monotonic()
        self._asked(self.server, check_leaves_nothing_out)
        found = self._primary_now()
        if found is None:
            return
        seen, takes_writes = found
        if takes_writes and watch.clock_seen is None:
            watch.clock_seen = seen
        self._ends.append((now, seen.position))
        end = self._end_of(self.server)
        while self._ends and end is not None and end.covers(self._ends[0][1]):
            self._ends.popleft()
        if self._ends and now - self._ends[0][0] > LAG_MAX_S:
            raise self._left(f"it is more than {LAG_MAX_S:g} s behind {self._primary.name}")
        if self._beyond is not None and self._is_unknown(self._beyond):  # at two looks: a cluster's node may be faster
            raise self._left(f"{self._primary.name} lacks {self._beyond}, where it was before")
        self._beyond = end if end is not None and self._is_unknown(end) else None

    def _look_for_replica(self) -> None:
        """Raises `ServerLeft` if a replica is up to date: one of them, in turn."""
        began = time.monotonic()
        self._published = self.status.position
        server, self._turn = self._replicas[self._turn % len(self._replicas)], self._turn + 1
        try:
            self._check_replica(server, _AT_ONCE_S)
        except MariaDBError:
            now = time.monotonic()
            self._again_at = now + max(AGAIN_EVERY_S, _PAUSES * (now - began))
            return
        raise self._left(f"{server.name} is up to date")

    # -- asking ------------------------------------------------------------------------------------------------------

    def _primary_now(self) -> tuple[ServerClock, bool] | None:
        """The server's clock, its end of the log a moment later, and whether it takes writes; None: it can't be asked.

        One that was promoted takes writes once it has written. Until then its clock says nothing.
        """
        if time.monotonic() < self._ask_at:
            return None

        def ask(connection: Connection) -> tuple[ServerClock, bool] | None:
            [[now_ms]] = fetch_all(connection, "SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")
            bounds = bounds_since(connection, committed_place(connection))
            if bounds is None:
                return None
            return ServerClock(int(now_ms), GtidPosition.parse(bounds.hi)), bounds.is_primary

        try:
            return self._asked(self._primary, ask)
        except MariaDBError:
            self._ask_at = time.monotonic() + AGAIN_EVERY_S
            return None

    def _end_of(self, server: ConnectionSettings) -> GtidPosition | None:
        with suppress(MariaDBError):
            return self._asked(server, end_of_log)
        return None

    def _asked(self, server: ConnectionSettings, ask: Callable[[Connection], Answer]) -> Answer:
        """What a server says. Raises `MariaDBError`."""
        try:
            if server not in self._sessions:
                self._sessions[server] = connect(
                    replace(server, connect_timeout_s=_CONNECT_S, read_timeout_s=_CONNECT_S)
                )
            with translated(server):
                return ask(self._sessions[server])
        except MariaDBError:
            if (session := self._sessions.pop(server, None)) is not None:
                session._force_close()
            raise

    def _close(self) -> None:
        for session in self._sessions.values():
            session._force_close()
        self._sessions.clear()
