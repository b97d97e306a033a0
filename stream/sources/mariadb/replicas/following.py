"""A source that reads the binlog at a replica of its server while one is up to date, and else at the server itself.

A replica logs what it replicates under the same GTIDs, so any of them can go on where another one was left. Only the
server itself may say that published history is lost: a replica that lacks some of it is behind, or is passed over.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, TypeVar

import structlog

from stream.publish.publisher import PublisherLost
from stream.sources.mariadb.backfill.run import Requests
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.binlog.table_map import BinlogFormatError
from stream.sources.mariadb.connection import (
    Connection,
    ConnectionSettings,
    MariaDBError,
    MariaDBUnreachable,
    NotResumable,
    ServerSettingsError,
    SourceHistoryLost,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.live_schema import LiveSchema
from stream.sources.mariadb.position import ServerPosition, check_resumable, end_of_log
from stream.sources.mariadb.replicas.left_out import check_leaves_nothing_out
from stream.sources.mariadb.replicas.passed_over import PassedOver
from stream.sources.mariadb.replicas.primary import Primary
from stream.sources.mariadb.replicas.sessions import Sessions
from stream.sources.mariadb.requirements import check_server
from stream.sources.mariadb.source import Log, MariaDBSource, PublisherLike, SourceOptions
from stream.sources.mariadb.watch import DumpWatch
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

E = TypeVar("E", bound=FreshetError)

LAG_MAX_S: Final = 5.0
"""How far behind its server a replica that is followed may be."""
LOOK_EVERY_S: Final = 1.0
"""Between two looks at how far a replica is behind."""
AGAIN_EVERY_S: Final = 10.0
"""Between two looks for a replica that may be followed again; and so long others are preferred to one that was left."""
_AT_ONCE_S: Final = 0.2
"""How long a replica may take to catch up once something was read: nothing is read meanwhile."""
_PAUSES: Final = 20
"""How many times as long as a fruitless look took is waited: a host that is gone takes a while."""
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
        """The last position that is known to be committed in the topic."""
        self._progress: Progress | None = None
        """Of what is read now."""
        self._read_last: ConnectionSettings | None = None
        self._away: list[str] = []
        """The replicas that did not answer when a server was chosen, or had not caught up."""
        self._caught_up: ConnectionSettings | None = None
        """The replica that was up to date when it was looked at, and was not left since: it will be again, soon."""
        self._passed_over = PassedOver()
        self._sessions = Sessions()
        self._at_host = Primary(options.settings, options.server_id, self._sessions)
        self._ends: deque[tuple[float, GtidPosition]] = deque()
        """Where the server was, and when, that the replica does not have."""
        self._beyond: GtidPosition | None = None
        """Where the replica was, if the server did not have that."""
        self._look_at = self._again_at = self._flush_at = 0.0
        """When the servers are looked at, a replica is looked for, and what is given is committed, at the earliest."""
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
        """Take the first server that can be read. Raises `MariaDBError`: there is none.

        Those that were left a while ago come after the server itself: what failed there may fail again, and nobody but
        who reads finds out.
        """
        now = time.monotonic()
        found: list[MariaDBError] = []
        left = [each.name for each in self._replicas if self._passed_over.has(each, now)]
        self._away = [*left]  # they may have what the server has purged
        is_first = self._read_last is None
        servers = self._in_turn(now)
        for server in servers:
            self._options = replace(self._options, settings=server)
            try:
                self._check_read()
                if self._is_at_replica:
                    self._check_replica(server, LAG_MAX_S if is_first or server is self._caught_up else _AT_ONCE_S)
                elif self._away and self._published and not self._new_epoch_for:
                    self._check_log()
            except MariaDBError as error:
                found.append(error)
                if isinstance(error, MariaDBUnreachable) and server.name not in self._away:
                    self._away.append(server.name)
                continue
            if server is not self._read_last:
                passed = [f"{each.code}: {each}" for each in found]
                passed += [f"{ServerLeft.code}: {name}" for name in left if name != server.name]
                log.info("server is read", shard=self._options.shard, server=server.name, passed_over=passed)
            self._read_last = server
            self._ends.clear()
            self._beyond = None
            self._again_at = time.monotonic() + AGAIN_EVERY_S
            return
        of_host = found[servers.index(self._primary)]
        away: list[MariaDBError] = [error for error in found if isinstance(error, MariaDBUnreachable)]
        worst = away or [of_host]
        raise next((error for error in worst if error.code == LogAway.code), worst[0])

    def _check_read(self) -> None:
        """Check the server as one that is read. Settings don't keep it from ending a history that it has lost."""
        try:
            super()._check_server()
        except ServerSettingsError:
            if self._new_epoch_for in ("", "asked_for"):
                raise

    def _in_turn(self, now: float) -> list[ConnectionSettings]:
        """The servers, in the order in which they are tried. An epoch that is asked for, or due, begins at the host."""
        if self._new_epoch_for:
            return [self._primary]
        return self._passed_over.last((*self._replicas, self._primary), now)

    def _check_log(self) -> None:
        """Raises `MariaDBUnreachable` ``binlog_away``, before a publisher takes the shard from who may go on."""
        try:
            self._sessions.asked(self._primary, lambda connection: check_resumable(connection, self._published))
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
        self._sessions.asked(server, check_server)
        self._sessions.asked(server, check_leaves_nothing_out)
        self._at_host.check_settings()
        wanted = self._sessions.end_of(self._primary)
        found = self._sessions.asked(server, end_of_log)
        deadline = time.monotonic() + patience_s
        while True:
            end = self._sessions.asked(server, end_of_log)
            if self._published:
                self._sessions.asked(server, lambda connection: check_resumable(connection, self._published))
            has_parted = self._at_host.lacks(str(found))
            if not has_parted and (wanted is None or end.covers(wanted)):
                self._caught_up = server
                return
            if time.monotonic() > deadline or self._stopping.wait(_POLL_S):
                if has_parted:
                    raise SourceHistoryLost(f"{server.name} is at {end}, and {self._primary.name} lacks some of that")
                raise MariaDBUnreachable(f"{server.name} is at {end}, and behind {self._primary.name}, at {wanted}")

    # -- following ---------------------------------------------------------------------------------------------------

    def _read(self, publisher: PublisherLike, schema: LiveSchema, progress: Progress) -> None:
        self._progress = progress
        self._flush_at = time.monotonic() + AGAIN_EVERY_S
        try:
            with self._leaving():
                super()._read(publisher, schema, progress)
        except MariaDBUnreachable as error:
            raise self._left(str(error)) from error
        except NotResumable as error:
            if self._away:
                raise self._log_away(error, LogAway) from error
            raise
        finally:
            self._sessions.close()

    @contextmanager
    def _leaving(self) -> Iterator[None]:
        """What fails at a replica ends nothing: another server is read. Only its rival for a server_id is waited for.

        That one would be met at another server, too.
        """
        try:
            yield
        except (MariaDBError, BinlogFormatError) as error:
            if self._is_at_replica and error.code != "server_id_in_use":
                raise self._left(str(error)) from error
            raise

    def _first_position(self) -> tuple[str, int]:
        with self._leaving():
            return super()._first_position()

    def _check_begins(self, position: str) -> None:
        with self._leaving():
            super()._check_begins(position)

    def _check_resumes(self, connection: Connection, progress: Progress) -> None:
        self._published = progress.position
        with self._leaving():
            super()._check_resumes(connection, progress)
        if self._is_at_replica:
            self._at_host.doubt(progress)
        else:
            self._at_host.check_published()

    def _new_epoch(self, publisher: PublisherLike, progress: Progress, at: ServerPosition, reason: str) -> None:
        super()._new_epoch(publisher, progress, at, reason)
        self._published = progress.position
        self._at_host.forget()

    def _open_log(self, schema: LiveSchema, position: str) -> tuple[Log, DumpWatch]:
        """At a replica, even one that does not replicate any more, nobody asks its own clock."""
        reader, watch = super()._open_log(schema, position)
        return reader, DumpWatch(self.server, _NOBODY) if self._is_at_replica else watch

    def _left(self, why: str) -> ServerLeft:
        if self._is_at_replica:
            self._passed_over.add(self.server, time.monotonic(), AGAIN_EVERY_S)
            self._caught_up = None
        return ServerLeft(f"{self.server.name} is not read any more: {why}", hint="another server may be")

    def _stamp(self, publisher: PublisherLike, reader: Log, watch: DumpWatch) -> None:
        if time.monotonic() >= self._flush_at:
            self._commit(publisher)
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + LOOK_EVERY_S
            if self._is_at_replica:
                self._look_at_lag(watch)
            elif time.monotonic() >= self._again_at:
                self._look_for_replica(publisher)
        super()._stamp(publisher, reader, watch)

    def _commit(self, publisher: PublisherLike) -> None:
        """A server must have what is in the topic: not what was given to the publisher, which may be lost."""
        given = self.status.position
        publisher.flush()
        self._published = given
        self._flush_at = time.monotonic() + AGAIN_EVERY_S

    def _look_at_lag(self, watch: DumpWatch) -> None:
        """Raises `ServerLeft` if the replica lags. The clock is its server's: its own says nothing of what it lacks."""
        now = time.monotonic()
        self._sessions.asked(self.server, check_leaves_nothing_out)
        try:
            found = self._at_host.now(self._progress)
        except SourceHistoryLost as lost:
            self._lose_history(lost)  # it is tried next, alone
            raise
        if found is None:
            return
        seen, takes_writes = found
        if takes_writes:
            watch.saw(seen)
        self._ends.append((now, seen.position))
        end = self._sessions.end_of(self.server)
        while self._ends and end is not None and end.covers(self._ends[0][1]):
            self._ends.popleft()
        if self._ends and now - self._ends[0][0] > LAG_MAX_S:
            raise self._left(f"it is more than {LAG_MAX_S:g} s behind {self._primary.name}")
        if self._beyond is not None and self._at_host.lacks(
            str(self._beyond)
        ):  # at two looks: a cluster's node may be faster
            raise self._left(f"{self._primary.name} lacks {self._beyond}, where it was before")
        self._beyond = end if end is not None and self._at_host.lacks(str(end)) else None

    def _look_for_replica(self, publisher: PublisherLike) -> None:
        """Raises `ServerLeft` if a replica is up to date: one of them, in turn."""
        began = time.monotonic()
        server, self._turn = self._replicas[self._turn % len(self._replicas)], self._turn + 1
        if self._passed_over.has(server, began):
            return
        self._commit(publisher)
        try:
            self._check_replica(server, _AT_ONCE_S)
        except MariaDBError:
            now = time.monotonic()
            self._again_at = now + max(AGAIN_EVERY_S, _PAUSES * (now - began))
            return
        raise self._left(f"{server.name} is up to date")
