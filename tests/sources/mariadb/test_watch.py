"""A binlog connection without new events is checked against the server's own log."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.binlog.dump import BinlogDump
from stream.sources.mariadb.binlog.events import LogPlace
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, MariaDBUnreachable, SourceHistoryLost
from stream.sources.mariadb.gtid import Gtid, GtidPosition
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.sources.mariadb.watch import STALL_MAX_S, DumpWatch, ServerClock
from tests.patience import PATIENCE_S
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_source import PARTITIONS, Running, of_kind, published, until
from tests.stream.committed import markers, records


def end_of_log(source: Source) -> LogPlace:
    """Where the server's log ends."""
    with source.session.cursor() as cursor:
        cursor.execute("SHOW MASTER STATUS")
        file, offset, *_ = cursor.fetchone()
        cursor.execute("SELECT @@server_id")
        [server] = cursor.fetchone()
    return LogPlace.of(int(server), file.decode(), int(offset))


def test_logs_that_are_reset_under_a_connected_source_start_a_new_epoch(
    kafka: KafkaCluster, keyspace_name: str, new_mariadb: Callable[..., Any], source_of: Callable[[Any, str], Source]
) -> None:
    """RESET MASTER under a connected source starts a new epoch, so that the old history is not fresh."""
    source = source_of(new_mariadb(durable=False).address, "d")
    source.run("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with Running(kafka, keyspace_name, source):
        source.run(*[f"REPLACE INTO t VALUES (1, {number})" for number in range(20)])
        until(lambda: published(kafka, keyspace_name) == source.position(), "rows")
        source.run("RESET MASTER", "REPLACE INTO t VALUES (1, 99)")
        until(lambda: len(of_kind(kafka, keyspace_name, "EpochStart")) == 2, "a new epoch")
        source.run("REPLACE INTO t VALUES (1, 100)")
        until(lambda: published(kafka, keyspace_name) == source.position(), "rows of the new history")
    begun = of_kind(kafka, keyspace_name, "EpochStart")
    assert [found["reason"] for found in begun] == ["first_start", "history_lost"]
    assert markers(records(kafka, keyspace_name, PARTITIONS))[-1]["epoch"] == begun[1]["epoch"]


def test_logs_that_end_before_what_was_read_are_other_logs(source: Source) -> None:
    """A server's log that ends before the place that was read was reset, whatever its GTIDs are."""
    watch, end = DumpWatch(source.settings, 1), end_of_log(source)
    watch.check(source.position(), end)
    with pytest.raises(SourceHistoryLost, match="were reset"):
        watch.check(source.position(), end._replace(offset=end.offset + 1))
    watch.check(source.position(), end._replace(offset=end.offset + 1, server=end.server + 1))
    watch.close()


def test_a_connection_that_delivers_nothing_is_replaced(source: Source) -> None:
    """A connection counts as dead if nothing of what was logged arrives for a while."""
    now = [0.0]
    watch, before = DumpWatch(source.settings, 1, lambda: now[0]), end_of_log(source)
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    watch.check(source.position(), before)
    now[0] += STALL_MAX_S + 1
    watch.event_received()
    watch.check(source.position(), before)
    now[0] += STALL_MAX_S + 1
    with pytest.raises(MariaDBUnreachable, match="sends nothing"):
        watch.check(source.position(), before)
    watch.check(source.position(), before._replace(offset=before.offset + 1))  # it passes over what was read: it moves
    watch.check(source.position(), end_of_log(source))
    watch.close()


def test_a_connection_to_a_server_that_was_replaced_is_left(source: Source) -> None:
    """If the address leads to another server with more transactions, the source must not stay with the old one."""
    now = [0.0]
    watch, waits = DumpWatch(source.settings, 1, lambda: now[0]), end_of_log(source)
    old, read = waits._replace(server=waits.server + 1), source.position()
    watch.check(read, old)
    source.run("CREATE TABLE t (id INT PRIMARY KEY)")
    watch.check(read, old)
    now[0] += STALL_MAX_S + 1
    with pytest.raises(MariaDBUnreachable, match="another server"):
        watch.check(read, old)
    watch.check(source.position(), old)
    watch.close()


def read_to_the_end(dump: BinlogDump) -> None:
    """Read until an error is raised, or `PATIENCE_S` is over."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        dump.read()


def test_two_replicas_of_one_server_id_are_told_what_to_change(source: Source) -> None:
    """The disconnected replica gets an error with a hint, because a retry would disconnect the other one."""
    dump = BinlogDump(source.settings, source.position().removeprefix("MariaDB/"), 71_234)
    other = BinlogDump(source.settings, source.position().removeprefix("MariaDB/"), 71_234)
    with pytest.raises(MariaDBError, match="another replica of the same server_id") as caught:
        read_to_the_end(dump)
    assert caught.value.code == "server_id_in_use"
    assert "server_id" in caught.value.hint
    dump.close()
    other.close()


def test_a_server_that_passes_over_what_was_read_is_waited_for() -> None:
    """Its heartbeats move on below the end of the log, for as long as that takes. One that stands still is left."""
    now = [100.0]
    watch = DumpWatch(ConnectionSettings(), 1, lambda: now[0])
    end = LogPlace.of(1, "bin.000001", 1_000_000)
    for offset in range(0, 500_000, 1_000):
        watch._check_progress(LogPlace.of(1, "bin.000001", offset), end)
        now[0] += 1
    stands = LogPlace.of(1, "bin.000001", 500_000)
    watch._check_progress(stands, end)
    now[0] += STALL_MAX_S + 1
    with pytest.raises(MariaDBUnreachable):
        watch._check_progress(stands, end)


def test_a_source_that_is_always_behind_passes_clocks_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each second brings a clock with a later end of the log, which it has not read when the next one comes."""
    now, stamps = [0.0], list[int]()
    watch = DumpWatch(ConnectionSettings(), 1, lambda: now[0])

    def end(_: str) -> tuple[LogPlace, ServerClock, bool]:
        at = GtidPosition.parse(f"MariaDB/0-1-{int(now[0] * 10)}")
        return LogPlace(1, 1, 9), ServerClock(int(now[0] * 1000), at), False

    monkeypatch.setattr(watch, "_end_of_log", end)
    mine = MariaDBSource(SourceOptions(ConnectionSettings(), "s/0"), lambda: None)  # type: ignore[arg-type,return-value]
    mine.status.clock = lambda: now[0]
    publisher: Any = SimpleNamespace(stamp=stamps.append)
    position = GtidPosition.parse("MariaDB/0-1-1")
    reader: Any = SimpleNamespace(has_reached=position.has_passed)
    for number in range(2, 602):
        now[0] = number / 10 + 3
        if watch.is_check_due():
            watch.check(str(position))
        position.add(Gtid(0, 1, number, 0))
        mine._stamp(publisher, reader, watch)
    assert len(stamps) > 600 / 10 / 5
    assert mine.status.lag_seconds < 6


def test_what_mysql_rolled_back_is_not_waited_for() -> None:
    """Its number was owned when the clock was read, and comes no more."""
    watch = DumpWatch(ConnectionSettings(), 1)
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    for ms, numbers in ((1, "1-6"), (2, "1-5:7")):
        watch.saw(ServerClock(ms, GtidPosition.parse(f"MySQL56/{uuid}:{numbers}")))
    assert watch.clock_seen is not None
    assert (watch.clock_seen.now_ms, watch.clock_seen.position.bare) == (1, f"{uuid}:1-5")
