"""Stubs of a server and its replicas, and a source that ends where it would read one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from stream.sources.mariadb import source
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.connection import (
    ConnectionSettings,
    MariaDBUnreachable,
    NotResumable,
    ServerSettingsError,
    SourceHistoryLost,
)
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.position import Bounds, ServerPosition, by_domain_and_server, check_in_history
from stream.sources.mariadb.replicas import following, primary, sessions
from stream.sources.mariadb.replicas.following import FollowingSource
from stream.sources.mariadb.source import SourceOptions
from stream.sources.mariadb.watch import DumpWatch
from stream.wire.events import ResumePoint

HOST, FIRST, SECOND = (ConnectionSettings(host=name) for name in ("host", "first", "second"))
LAST = 100


def at(sequence: int) -> str:
    """A position."""
    return f"MariaDB/0-1-{sequence}"


def point(sequence: int = LAST) -> ResumePoint:
    """Where the topic ends."""
    return ResumePoint("s/0", 1, 50, at(sequence), 1, at(sequence), checksum=sequence, cursor=at(sequence - 1))


@dataclass
class Server:
    """A server. ``reused``: the numbers that stand for other changes than the ones that were published."""

    end: int = LAST
    is_up: bool = True
    purged: int = 0
    refused: str = ""
    reused: frozenset[int] = frozenset()
    raises: Exception | None = None


@dataclass
class Servers:
    """Those of a source, and what it did."""

    by_host: dict[str, Server] = field(default_factory=lambda: {each.host: Server() for each in (HOST, FIRST, SECOND)})
    opened: list[str] = field(default_factory=list)
    """What was read, or where an epoch began."""

    def connect(self, settings: ConnectionSettings, **_: Any) -> Connected:
        """A session."""
        if not self.by_host[settings.host].is_up:
            raise MariaDBUnreachable(f"{settings.host} is down")
        return Connected(settings.host, self.by_host[settings.host])

    def check_same(self, settings: ConnectionSettings, _: int, __: str, ___: str, checksum: int, **____: Any) -> None:
        """Whether the last transaction is still the one that was published."""
        if checksum in self.connect(settings).server.reused:
            raise SourceHistoryLost(f"{checksum} is another one now")


@dataclass
class Connected:
    """A session."""

    name: str
    server: Server

    def _force_close(self) -> None:
        pass


def check(connection: Connected) -> bool:
    """Whether its settings will do."""
    if not connection.server.is_up:
        raise MariaDBUnreachable(f"{connection.name} is down")
    if connection.server.refused:
        raise ServerSettingsError(f"{connection.server.refused} of {connection.name}")
    return True


def check_not_lost(connection: Connected, position: str) -> None:
    """Whether it has all of that."""
    check_in_history(by_domain_and_server(f"0-1-{connection.server.end}"), position, "")


def check_resumable(connection: Connected, position: str) -> None:
    """Whether it has all of that, and what follows."""
    check_not_lost(connection, position)
    if GtidPosition.parse(position).domains[0][1] < connection.server.purged:
        raise NotResumable(f"{connection.name} has purged what follows {position}")


class Stub:
    """A publisher whose topic ends at a position."""

    resume = point()
    begins_after = ""

    def __init__(self, servers: Servers) -> None:
        self.servers = servers

    def open(self, _: Any, can_begin: Callable[[str], None]) -> ResumePoint:
        """Open it."""
        if self.begins_after:
            can_begin(self.begins_after)
        return self.resume

    def start_new_epoch(self, position: str, timestamp: int, reason: str) -> ResumePoint:
        """Note that."""
        self.servers.opened.append(f"{reason} at {position}")
        self.resume = ResumePoint("s/0", 2, 1, position, timestamp, position)
        return self.resume

    def flush(self) -> None:
        """All is committed."""

    abandon = close = flush

    def annotate(self, _: Any) -> None:
        """Nothing."""


class Schema:
    """A schema that is loaded where it is read, and ends the source then."""

    def __init__(self, made: Reading) -> None:
        self.made = made
        self.catalog = self

    def load(self) -> None:
        """It is read here."""
        server = self.made.servers.by_host[self.made.server.host]
        self.made.servers.opened.append(self.made.server.host)
        if server.raises is not None:
            raise server.raises
        raise Reached

    def describe_as(self, _: Any) -> None:
        """Nothing."""

    hold_again = describe_as

    def close(self) -> None:
        """Nothing."""


class Reached(Exception):
    """A server is read."""


class Reading(FollowingSource):
    """A source that ends where it would read."""

    def __init__(self, servers: Servers, publisher: Stub, *, new_epoch: bool = False) -> None:
        options = SourceOptions(HOST, "s/0", new_epoch=new_epoch)
        super().__init__(options, (FIRST, SECOND), lambda: publisher)  # type: ignore[arg-type, return-value]
        self.servers = servers
        self.waits: list[str] = []

    def _new_schema(self) -> Any:
        return Schema(self)

    def _wait(self, what: str, error: Any) -> None:
        self.waits.append(f"{what}: {error}")
        if len(self.waits) > 5:
            self.stop()

    def begun(self) -> list[str]:
        """Run it until it reads. What was read, in turn."""
        with pytest.raises(Reached):
            self.run()
        return self.servers.opened


def stubbed(monkeypatch: pytest.MonkeyPatch) -> Servers:
    """Three servers that have all, in place of those that a source would connect to."""
    made = Servers()
    for module in (source, sessions):
        monkeypatch.setattr(module, "connect", made.connect)
    for module in (source, following):
        monkeypatch.setattr(module, "check_server", check)
    for module in (source, following, primary):
        monkeypatch.setattr(module, "check_resumable", check_resumable)
    for module in (source, primary):
        monkeypatch.setattr(module, "check_same", made.check_same)
    for module in (following, sessions):
        monkeypatch.setattr(module, "end_of_log", lambda session: GtidPosition.parse(at(session.server.end)))
    monkeypatch.setattr(primary, "check_writer", check)
    monkeypatch.setattr(primary, "check_not_lost", check_not_lost)
    monkeypatch.setattr(primary, "fetch_all", lambda *_: [[1]])
    monkeypatch.setattr(primary, "committed_place", lambda session: session)
    monkeypatch.setattr(
        primary, "bounds_since", lambda session, _: Bounds(at(session.server.end), at(session.server.end), 1, True)
    )
    monkeypatch.setattr(following, "check_leaves_nothing_out", lambda _: None)
    monkeypatch.setattr(source, "current_position", lambda session: ServerPosition(at(session.server.end), 1))
    monkeypatch.setattr(source, "own_histories", lambda _: set())
    return made


def followed(servers: Servers, sequence: int = LAST) -> Reading:
    """A source that reads the first replica."""
    made = Reading(servers, Stub(servers))
    assert made.begun() == ["first"]
    made._progress = Progress(point(sequence))
    return made


def watch_of() -> DumpWatch:
    """A watch that asks nobody."""
    return DumpWatch(FIRST, 0)
