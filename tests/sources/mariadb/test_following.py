"""A source that reads replicas of its server: one that is up to date, one after the other, and the server itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from copy import copy
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from freshet.local.mariadb import MariaDBServer
from lab.faults.network import Network
from stream.kafka.connection import KafkaCluster
from stream.publish.publisher import Publisher
from stream.sources.mariadb.connection import ConnectionSettings, NotResumable, ServerSettingsError, connect
from stream.sources.mariadb.replicas import following
from stream.sources.mariadb.replicas.following import FollowingSource
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from tests.sources.mariadb.conftest import Source
from tests.sources.mariadb.test_requirements import LOGGED, replicate
from tests.sources.mariadb.test_source import PARTITIONS, Running, images, published, until
from tests.stream.committed import records, rows

pytestmark = pytest.mark.slow

NewServer = Callable[..., MariaDBServer]
SourceOf = Callable[[Any, str], Source]
REPLICA = {**LOGGED, "read-only": "ON"}


class RunningFollowing(Running):
    """A source of a server with replicas, in a thread."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, source: Source, *replicas: Source, **options: Any) -> None:
        self.replicas = tuple(each.settings for each in replicas)
        self.attempts = self.looks = 0
        super().__init__(kafka, keyspace, source, **options)

    def made(self, options: SourceOptions, publisher: Callable[[], Publisher]) -> MariaDBSource:
        """The source."""

        def counted() -> Publisher:
            self.attempts += 1
            return publisher()

        made = FollowingSource(options, self.replicas, counted, lambda _: self.ready.set())
        looks = made._check_server

        def look() -> None:
            self.looks += 1
            looks()

        made._check_server = look  # type: ignore[method-assign]
        return made

    @property
    def reads(self) -> ConnectionSettings:
        """The server that is read."""
        assert isinstance(self.source, FollowingSource)
        return self.source.server


@pytest.fixture
def trio(new_mariadb: NewServer, source_of: SourceOf) -> tuple[list[MariaDBServer], list[Source]]:
    """A server with a table, and two replicas of it."""
    servers = [new_mariadb(durable=False, server_id=1, options=LOGGED)]
    servers += [new_mariadb(durable=False, server_id=number, options=REPLICA) for number in (2, 3)]
    first = source_of(servers[0].address, "mysql")
    others = [source_of(server.address, "mysql") for server in servers[1:]]
    for each in others:
        each.run("RESET MASTER")
        replicate(each, first, "up")
    first.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT)", "INSERT INTO d.t VALUES (0, 0)")
    for each in (first, *others):
        each.database = "d"
        until(lambda each=each: each.position() == first.position(), "the replica has everything")  # type: ignore[misc]
    return servers, [first, *others]


def written(kafka: KafkaCluster, keyspace: str) -> list[bytes]:
    """The keys in the topic, in their order, as often as they are there."""
    return [key for _, key, _, _ in rows(records(kafka, keyspace, PARTITIONS))]


def key(number: int) -> bytes:
    """A row's key."""
    return f"d.t\0[{number}]".encode()


def test_it_follows_a_replica_that_is_up_to_date_and_goes_on_at_another(
    trio: tuple[list[MariaDBServer], list[Source]],
    kafka: KafkaCluster,
    keyspace_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One dies, the next one stops replicating, and catches up: each change is told once, in one epoch."""
    monkeypatch.setattr(following, "LAG_MAX_S", 5.0)
    monkeypatch.setattr(following, "AGAIN_EVERY_S", 0.5)
    servers, (first, second, third) = trio
    with RunningFollowing(kafka, keyspace_name, first, second, third) as running:
        epoch = running.source.status.epoch
        until(lambda: running.reads == second.settings, "a replica is read")

        def write(number: int) -> None:
            first.run(f"INSERT INTO d.t VALUES ({number}, {number})")

        write(1)
        until(lambda: published(kafka, keyspace_name) == first.position(), "what a replica has")
        until(lambda: running.source.status.as_of_ms > 0, "the clock of the server that takes writes")
        servers[1].kill()
        write(2)
        until(lambda: published(kafka, keyspace_name) == first.position(), "what the other replica has")
        until(lambda: running.reads == third.settings, "the other replica is read")
        third.run("STOP SLAVE 'up'")
        write(3)
        until(lambda: published(kafka, keyspace_name) == first.position(), "what only the server has")
        until(lambda: running.reads == first.settings, "the server is read")
        third.run("START SLAVE 'up'")
        until(lambda: running.reads == third.settings, "the replica again")
        write(4)
        until(lambda: published(kafka, keyspace_name) == first.position(), "what it has by now")
        assert running.source.status.epoch == epoch
    assert written(kafka, keyspace_name) == [key(number) for number in range(1, 5)]
    assert images(kafka, keyspace_name) == {k: v for k, v in first.selected("t").items() if k != key(0)}


def test_a_replica_that_lacks_what_is_published_or_cannot_send_it_is_passed_over(
    trio: tuple[list[MariaDBServer], list[Source]], kafka: KafkaCluster, keyspace_name: str
) -> None:
    """Neither begins an epoch: only the server itself may say that something is lost."""
    _, (first, second, third) = trio
    with Running(kafka, keyspace_name, first) as running:
        epoch = running.source.status.epoch
        first.run("INSERT INTO d.t VALUES (1, 1)")
        until(lambda: published(kafka, keyspace_name) == first.position(), "the first row")
    until(lambda: second.position() == third.position() == first.position(), "both replicas have it")
    second.run("STOP SLAVE 'up'")
    first.run("INSERT INTO d.t VALUES (2, 2)")
    with Running(kafka, keyspace_name, first):
        until(lambda: published(kafka, keyspace_name) == first.position(), "the second row")
    first.run("INSERT INTO d.t VALUES (3, 3)")
    until(lambda: third.position() == first.position(), "the other replica has it")
    third.run("FLUSH BINARY LOGS")

    def is_purged() -> bool:
        [(last, *_)] = logs_of(third)[-1:]
        third.run(f"PURGE BINARY LOGS TO '{last}'")
        return len(logs_of(third)) == 1

    until(is_purged, "the log of before, which is kept until a checkpoint")
    with capture_logs() as logs, RunningFollowing(kafka, keyspace_name, first, second, third) as following_on:
        until(lambda: published(kafka, keyspace_name) == first.position(), "the third row")
        assert following_on.reads == first.settings
        assert following_on.source.status.epoch == epoch
    assert any(each["event"] == "server is read" and len(each["passed_over"]) == 2 for each in logs)
    assert written(kafka, keyspace_name) == [key(number) for number in range(1, 4)]


def logs_of(source: Source) -> list[tuple[str, ...]]:
    """The binary logs of a server."""
    with source.session.cursor() as cursor:
        cursor.execute("SHOW BINARY LOGS")
        return [
            tuple(each.decode() if isinstance(each, bytes) else str(each) for each in row) for row in cursor.fetchall()
        ]


def test_a_server_that_logs_statements_where_it_can_is_followed_at_a_replica_that_logs_rows(
    new_mariadb: NewServer, source_of: SourceOf, kafka: KafkaCluster, keyspace_name: str
) -> None:
    """The server itself would be refused. It logs rows where a statement may have another effect at the replica."""
    servers = [
        new_mariadb(durable=False, server_id=1, options={**LOGGED, "binlog-format": "MIXED"}),
        new_mariadb(durable=False, server_id=2, options=REPLICA),
    ]
    first, second = (source_of(server.address, "mysql") for server in servers)
    second.run("RESET MASTER")
    replicate(second, first, "up")
    first.run("CREATE DATABASE d", "CREATE TABLE d.t (id INT PRIMARY KEY, v INT, u TEXT)")
    first.database = second.database = "d"
    until(lambda: second.position() == first.position(), "the replica has the table")
    with RunningFollowing(kafka, keyspace_name, first, second) as running:
        assert running.reads == second.settings
        first.run("INSERT INTO d.t VALUES (1, 1, '')", "UPDATE d.t SET v = v + 1")
        until(lambda: published(kafka, keyspace_name) == first.position(), "its statements as rows")
        first.run("UPDATE d.t SET u = UUID()")
        until(lambda: published(kafka, keyspace_name) == first.position(), "what differs at each server")
        until(lambda: running.source.status.as_of_ms > 0, "the clock")
    assert images(kafka, keyspace_name) == first.selected("t")
    first.run("SET GLOBAL binlog_format = STATEMENT")
    with (
        pytest.raises(ServerSettingsError, match="binlog_format"),
        RunningFollowing(kafka, keyspace_name, first, second),
    ):
        pass


@pytest.mark.parametrize("setting", ["up.replicate_wild_ignore_table = 'd.t'", "slave_exec_mode = IDEMPOTENT"])
def test_a_replica_that_leaves_out_changes_is_passed_over_and_left(
    trio: tuple[list[MariaDBServer], list[Source]], kafka: KafkaCluster, keyspace_name: str, setting: str
) -> None:
    """Its log has the positions of what follows, so a row that changed would be called fresh for ever."""
    _, (first, second, third) = trio
    second.run("STOP SLAVE 'up'", f"SET GLOBAL {setting}", "START SLAVE 'up'")
    with capture_logs() as logs, RunningFollowing(kafka, keyspace_name, first, second, third) as running:
        assert running.reads == third.settings
        first.run("UPDATE d.t SET v = 1", "CREATE TABLE d.u (id INT PRIMARY KEY)")
        until(lambda: published(kafka, keyspace_name) == first.position(), "what the other replica has")
        third.run("STOP SLAVE 'up'", f"SET GLOBAL {setting}", "START SLAVE 'up'")
        until(lambda: running.reads == first.settings, "the server itself")
        first.run("UPDATE d.t SET v = 2")
        until(lambda: published(kafka, keyspace_name) == first.position(), "what the server has")
    assert any("leaves out changes" in str(each.get("passed_over")) for each in logs)
    assert images(kafka, keyspace_name) == first.selected("t")


def test_a_replica_that_has_what_its_server_lost_is_left(
    trio: tuple[list[MariaDBServer], list[Source]],
    kafka: KafkaCluster,
    keyspace_name: str,
) -> None:
    """Another server took the place without it. It writes what has lower numbers, which prove nothing."""
    servers, (first, second, third) = trio
    with Network() as network:
        link = network.link("server", (first.settings.host, first.settings.port))
        host = copy(first)
        host.settings = replace(first.settings, host="127.0.0.1", port=link.port)
        third.run("STOP SLAVE 'up'")
        with RunningFollowing(kafka, keyspace_name, host, second) as running:
            epoch = running.source.status.epoch
            first.run(*(f"INSERT INTO d.t VALUES ({number}, {number})" for number in range(1, 6)))
            until(lambda: published(kafka, keyspace_name) == first.position(), "what a replica has")
            network.run(link.close())
            servers[0].kill()
            third.run("SET GLOBAL read_only = OFF", "INSERT INTO d.t VALUES (9, 9)")
            network.link("server", (third.settings.host, third.settings.port), link.port)
            until(lambda: running.source.status.epoch > epoch, "another epoch")
            until(lambda: published(kafka, keyspace_name) == third.position(), "what the new server has")
            assert running.reads.port == link.port


def test_a_log_that_is_purged_is_waited_for_while_a_replica_that_may_have_it_is_away(
    trio: tuple[list[MariaDBServer], list[Source]], kafka: KafkaCluster, keyspace_name: str
) -> None:
    """It goes on there once that is back. It ends when each of them has answered, and none has the log."""
    servers, (first, second, third) = trio

    def purge(*purged: Source) -> None:
        for each in purged:
            until(lambda each=each: each.position() == first.position(), "it has everything")  # type: ignore[misc]
            each.run("FLUSH BINARY LOGS")

            def is_purged(each: Source = each) -> bool:
                [(last, *_)] = logs_of(each)[-1:]
                each.run(f"PURGE BINARY LOGS TO '{last}'")
                return len(logs_of(each)) == 1

            until(is_purged, "the log of before, which is kept until a checkpoint and while a replica reads it")

    with Running(kafka, keyspace_name, first) as running:
        epoch = running.source.status.epoch
        first.run("INSERT INTO d.t VALUES (1, 1)")
        until(lambda: published(kafka, keyspace_name) == first.position(), "the first row")
    first.run("INSERT INTO d.t VALUES (2, 2)")
    until(lambda: second.position() == first.position(), "a replica has what the others will purge")
    servers[1].stop()
    purge(first, third)
    with capture_logs() as logs, ExitStack() as stack:
        following_on = RunningFollowing(kafka, keyspace_name, first, second, third)
        stack.push(following_on)
        status = following_on.source.status
        until(lambda: following_on.future.done() or "purged" in status.not_ready, "it waits")
        attempts, looks = following_on.attempts, following_on.looks
        until(lambda: following_on.future.done() or following_on.looks > looks + 2, "it looks again")
        assert not following_on.future.done()
        assert following_on.attempts == attempts, "no publisher is opened meanwhile: it would fence another source"
        servers[1].start()
        until(lambda: published(kafka, keyspace_name) == first.position(), "the second row")
        assert (following_on.reads, status.epoch) == (second.settings, epoch)
    [said] = [each for each in logs if each.get("code") == "binlog_away"]
    assert second.settings.name in said["reason"]
    assert written(kafka, keyspace_name) == [key(1), key(2)]
    first.run("INSERT INTO d.t VALUES (3, 3)")
    second.session = connect(second.settings)
    purge(first, second, third)
    with pytest.raises(NotResumable), RunningFollowing(kafka, keyspace_name, first, second, third):
        pass
