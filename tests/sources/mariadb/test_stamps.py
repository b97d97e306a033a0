"""When a source passes its server's clock on: only behind what had been committed by then."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import structlog

from stream.sources.mariadb import source
from stream.sources.mariadb.binlog.progress import Progress
from stream.sources.mariadb.connection import ConnectionSettings
from stream.wire.events import ResumePoint, SourceTransaction


class _Reader:
    """Gives one transaction, and counts it as reached from then on, as the real one does."""

    last_heartbeat = ""

    def __init__(self) -> None:
        self._given = False

    def transactions(self) -> Iterator[SourceTransaction | None]:
        self._given = True
        yield SourceTransaction("MariaDB/0-1-2", "MariaDB/0-1-2", 1, [])

    def has_reached(self, _position: str) -> bool:
        return self._given

    def stop(self) -> None:
        self._given = True


def test_the_clock_is_passed_on_behind_the_transaction_that_it_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it, a full batch could end between the two: its marker would claim a time that its position lacks."""
    told: list[str] = []
    publisher: Any = SimpleNamespace(publish=lambda _: told.append("publish"), stamp=lambda _: told.append("stamp"))
    seen = SimpleNamespace(position="MariaDB/0-1-2", now_ms=5)
    watch: Any = SimpleNamespace(
        clock_seen=seen, event_received=lambda: None, is_check_due=lambda: False, close=lambda: None
    )
    dump: Any = SimpleNamespace(server=1, close=lambda: None)
    mine = source.MariaDBSource(source.SourceOptions(ConnectionSettings("nowhere"), "ks/0"), lambda: publisher)
    monkeypatch.setattr(source, "BinlogDump", lambda *_: dump)
    monkeypatch.setattr(source, "BinlogReader", lambda *_, **__: _Reader())
    monkeypatch.setattr(source, "DumpWatch", lambda *_: watch)
    for name in ("_check", "_describe", "_warn_of", "_note"):
        monkeypatch.setattr(mine, name, lambda *_: None)
    schema: Any = SimpleNamespace(load=lambda: None, catalog=SimpleNamespace(is_settled=True))
    mine._read(publisher, schema, Progress(ResumePoint("ks/0", 1, 2, "MariaDB/0-1-1", 1, "MariaDB/0-1-1")))
    assert told == ["publish", "stamp"]


def test_a_clock_that_is_ahead_is_said_once_until_it_is_right_again() -> None:
    """An answer to `max_staleness_ms` would be older than it claims; one line in the log is enough to know."""
    wall = 1_000.0
    mine = source.MariaDBSource(source.SourceOptions(ConnectionSettings("nowhere"), "ks/0"), lambda: None)  # type: ignore[arg-type,return-value]
    mine.status.wall_clock = lambda: wall
    clock: Any = SimpleNamespace(stamp=lambda _: None)
    with structlog.testing.capture_logs() as logged:
        for ahead_ms in (900, 1_100, 5_000, 0, -60_000, 1_200):
            watch: Any = SimpleNamespace(clock_seen=SimpleNamespace(position="", now_ms=1_000_000 + ahead_ms))
            mine._stamp(clock, SimpleNamespace(has_reached=lambda _: True), watch)
    assert [each["seconds"] for each in logged if each.get("code") == "clock_ahead"] == [1.1, 1.2]
