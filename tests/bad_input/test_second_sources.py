"""A second source that cannot work must not take its shard from the running source."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from lab.workload.catalog import WorkloadCatalog
from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.connection import ConnectionSettings
from tests.bad_input.running import freshet_fails, source_arguments
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S
from tests.stream.committed import markers, records

PARTITIONS = 2
KINDS = ("mariadb", "workload")


class Shard:
    """A keyspace with one running source, as a process of its own."""

    def __init__(self, kind: str, kafka: KafkaCluster, mariadb: MariaDBAddress, database: str, keyspace: str) -> None:
        self.kind, self.kafka, self.mariadb, self.database, self.keyspace = kind, kafka, mariadb, database, keyspace
        given = source_arguments(kafka, mariadb, database, keyspace)
        if kind == "workload":
            given = ["source", "workload", *given[2 : given.index("--server-id")]]
        self.arguments = [*given, "--partitions", str(PARTITIONS)]

    @contextmanager
    def running(self, log: Path, *more: str) -> Iterator[Callable[[str], int]]:
        """The source with ``more`` flags; yields a function that counts a text in its log. It is stopped in order."""
        with log.open("wb") as output:
            command = [sys.executable, "-m", "freshet", "--log-format", "json", *self.arguments, *more]
            process = subprocess.Popen(command, stdout=output, stderr=output)

        def says(what: str) -> int:
            assert process.poll() is None, log.read_text()
            return log.read_text().count(what)

        try:
            yield says
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()

    def publishes(self) -> None:
        """A new write reaches the topic."""
        before = self._position()
        if self.kind == "mariadb":
            with self.mariadb.connect(database=self.database, autocommit=True) as session, session.cursor() as cursor:
                cursor.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        else:
            at = self.mariadb
            settings = ConnectionSettings(at.host, at.port, at.user, at.password)
            with WorkloadCatalog(settings, self.database) as catalog:
                catalog.create_table("d.t")
        until(lambda: self._position() != before, "the write is out")

    def _position(self) -> Any:
        return markers(records(self.kafka, self.keyspace, PARTITIONS))[-1]["position"]


@pytest.fixture(params=KINDS)
def shard(
    request: pytest.FixtureRequest, kafka: KafkaCluster, mariadb: MariaDBAddress, database: str, keyspace_name: str
) -> Shard:
    """A shard of each kind of source."""
    return Shard(request.param, kafka, mariadb, database, keyspace_name)


def undisturbed(shard: Shard, says: Callable[[str], int]) -> None:
    """The first source still publishes with the same producer; a fenced one would fail with its next batch."""
    shard.publishes()
    assert says("publisher open") == 1
    assert says("publisher lost") == says("fenced") == 0


def test_a_second_source_with_a_wrong_password_ends_and_fences_no_source(shard: Shard, tmp_path: Path) -> None:
    """A source logs in to its server before it takes over the shard."""
    (tmp_path / "password").write_text("wrong\n")
    with shard.running(tmp_path / "first.log") as says:
        until(lambda: says('"event": "ready"') > 0, "ready")
        said = freshet_fails(*shard.arguments, "--password-file", str(tmp_path / "password"))
        assert "error[mariadb_access_denied]: " in said
        assert "publisher open" not in said
        undisturbed(shard, says)


def test_a_second_source_whose_server_is_away_waits_and_fences_no_source(shard: Shard, tmp_path: Path) -> None:
    """A source whose server does not answer waits without taking over the shard."""
    [nobody] = free_ports(1)
    with shard.running(tmp_path / "first.log") as says:
        until(lambda: says('"event": "ready"') > 0, "ready")
        with shard.running(tmp_path / "second.log", "--port", str(nobody)) as second:
            until(lambda: second("mariadb_unreachable") > 0, "it waits")
            undisturbed(shard, says)
            assert second("publisher open") == 0


def test_a_second_source_whose_server_hides_changes_ends_and_fences_no_source(
    kafka: KafkaCluster,
    mariadb: MariaDBAddress,
    new_mariadb: Callable[..., Any],
    database: str,
    keyspace_name: str,
    tmp_path: Path,
) -> None:
    """A source checks its server's settings before it takes over the shard."""
    shard = Shard("mariadb", kafka, mariadb, database, keyspace_name)
    other = new_mariadb(durable=False)
    with other.connect(autocommit=True) as session, session.cursor() as cursor:
        cursor.execute("SET GLOBAL binlog_format = MIXED")
    at = other.address
    (tmp_path / "password").write_text(at.password)
    with shard.running(tmp_path / "first.log") as says:
        until(lambda: says('"event": "ready"') > 0, "ready")
        wrong = ["--host", at.host, "--port", str(at.port), "--user", at.user]
        said = freshet_fails(*shard.arguments, *wrong, "--password-file", str(tmp_path / "password"))
        assert "error[bad_server_settings]: binlog_format is MIXED" in said
        undisturbed(shard, says)


def test_two_sources_of_one_shard_take_turns(shard: Shard, tmp_path: Path) -> None:
    """Two that are alike in everything fence each other and go on: neither ends, and every write gets out."""
    with shard.running(tmp_path / "first.log") as first:
        until(lambda: first('"event": "ready"') > 0, "ready")
        with shard.running(tmp_path / "second.log") as second:
            until(lambda: second('"event": "ready"') > 0, "the second takes over")
            until(lambda: first("publisher open") > 1, "the first takes its turn")
            until(lambda: second("publisher open") > 1, "the second takes its turn")
        shard.publishes()
        assert first("publisher open") > 1
