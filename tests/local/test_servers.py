"""Local servers: acknowledged writes survive a kill, and no server outlives its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from freshet.local import process as processes
from freshet.local.errors import LocalServerError
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from freshet.local.process import ServerProcess, free_ports, port_is_free
from stream.kafka.connection import KafkaCluster, client_settings
from tests.patience import PATIENCE_S

REPOSITORY = Path(__file__).parents[2]


def read_topic(kafka: KafkaCluster, topic: str, count: int) -> list[bytes | None]:
    """The first ``count`` committed values of partition 0."""
    consumer = Consumer(client_settings(kafka, **{"group.id": "reader", "enable.auto.commit": False}))
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        if (message := consumer.poll(0.2)) is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def test_kafka_keeps_committed_transactions_over_a_kill(new_kafka: Callable[..., KafkaServer]) -> None:
    """A transaction that was acknowledged is readable after kill -9 and restart on the same address."""
    server = new_kafka()
    kafka = server.cluster
    admin = AdminClient(client_settings(kafka))
    for created in admin.create_topics([NewTopic("survivors", 1, 1)]).values():
        created.result(timeout=60)
    producer = Producer(client_settings(kafka, **{"transactional.id": "t"}))
    producer.init_transactions(60)
    producer.begin_transaction()
    for number in range(100):
        producer.produce("survivors", str(number).encode())
    producer.commit_transaction(60)

    before = server.pid
    server.kill()
    assert not psutil.pid_exists(before)
    server.restart()

    assert server.cluster == kafka
    assert read_topic(kafka, "survivors", 100) == [str(number).encode() for number in range(100)]


def test_kafka_does_not_create_topics_by_itself(kafka: KafkaCluster) -> None:
    """A misspelled topic is an error, not a new topic with the wrong number of partitions."""
    admin = AdminClient(client_settings(kafka))
    admin.list_topics("no-such-topic", timeout=60)
    assert "no-such-topic" not in admin.list_topics(timeout=60).topics


def test_mariadb_keeps_committed_rows_over_a_kill(new_mariadb: Callable[..., MariaDBServer]) -> None:
    """A committed row and its GTID are there after kill -9 and restart on the same address."""
    server = new_mariadb(server_id=7, gtid_domain_id=3)
    with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE d")
        cursor.execute("CREATE TABLE d.t (id INT PRIMARY KEY)")
        cursor.execute("INSERT INTO d.t VALUES (1), (2)")
    address = server.address
    server.kill()
    server.restart()

    assert server.address == address
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM d.t ORDER BY id")
        assert cursor.fetchall() == ((1,), (2,))
        cursor.execute("SELECT @@gtid_binlog_pos")
        assert cursor.fetchone() == ("3-7-3",)


def test_mariadb_has_the_binlog_that_a_source_needs(new_mariadb: Callable[..., MariaDBServer]) -> None:
    """Row format, full images, full metadata and production durability are the defaults."""
    server = new_mariadb()
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT @@binlog_format, @@binlog_row_image, @@binlog_row_metadata, @@sync_binlog,"
            " @@innodb_flush_log_at_trx_commit, @@gtid_binlog_pos"
        )
        assert cursor.fetchone() == ("ROW", "FULL", "FULL", 1, 1, "")


def test_mariadb_asks_for_its_password(new_mariadb: Callable[..., MariaDBServer]) -> None:
    """A connection without the password is refused, also from the same machine."""
    server = new_mariadb(password="it's a \\ secret")
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT CURRENT_USER()")
        assert cursor.fetchone() == ("root@127.0.0.1",)
    with pytest.raises(Exception, match="Access denied"):
        server.address.__class__(server.host, server.port, server.user, "guess").connect()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_dies_with_its_parent(how: signal.Signals, tmp_path: Path) -> None:
    """No server is left behind, even when the process that started it is killed."""
    script = (
        "import sys, threading, time\nfrom pathlib import Path\n"
        "from freshet.local.process import ServerProcess\n"
        "def start():\n"
        "    started = ServerProcess('sleeper', ['sleep', '600'], log_file=Path(sys.argv[1]))\n"
        "    print(started.pid, flush=True)\n"
        "thread = threading.Thread(target=start)\nthread.start()\nthread.join()\ntime.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "log")],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert psutil.pid_exists(child)
    parent.send_signal(how)
    parent.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended (a zombie has)."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_server_that_ends_while_starting_says_why(tmp_path: Path) -> None:
    """The error carries the exit code and the last lines of the server's own log."""
    process = ServerProcess("broken", ["sh", "-c", "echo out of cheese; exit 3"], log_file=tmp_path / "log")
    with pytest.raises(LocalServerError, match="exit code 3 while starting: out of cheese") as caught:
        process.wait_until(lambda: False, timeout_s=PATIENCE_S)
    assert str(tmp_path / "log") in caught.value.hint


def test_a_server_that_never_answers_is_ended_at_the_deadline(tmp_path: Path) -> None:
    """A server that does not answer in time is killed."""
    process = ServerProcess("mute", ["sleep", "600"], log_file=tmp_path / "log")
    with pytest.raises(LocalServerError, match="did not answer within"):
        process.wait_until(lambda: False, timeout_s=0.2)
    assert not process.running()


def test_a_stubborn_server_is_killed_after_the_stop_deadline(tmp_path: Path) -> None:
    """A process that ignores SIGTERM is killed after the stop timeout."""
    ready = tmp_path / "ready"
    process = ServerProcess(
        "stubborn",
        ["sh", "-c", f"trap '' TERM; touch {ready}; while true; do sleep 0.1; done"],
        log_file=tmp_path / "l",
    )
    process.wait_until(ready.exists, timeout_s=PATIENCE_S)
    process.stop(timeout_s=0.3)
    assert not process.running()


def test_free_ports_are_distinct_and_free() -> None:
    """One call returns distinct ports that are all free."""
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(port_is_free(port) for port in ports)


def test_a_port_is_kept_for_its_server_while_that_is_away() -> None:
    """The kernel gives it to nobody else, and the next call returns others."""
    if not processes.KERNELS_PORTS.exists():
        assert free_ports(1)
        return
    first = int(processes.KERNELS_PORTS.read_text().split()[0])
    ports = [port for _ in range(5) for port in free_ports(3)]
    assert len(set(ports)) == 15
    assert max(ports) < first or first < processes.FIRST_PORT + processes.PORTS_BELOW


def test_a_machine_without_that_setting_has_ports_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Then the kernel chooses them."""
    monkeypatch.setattr(processes, "KERNELS_PORTS", tmp_path / "none")
    monkeypatch.setattr(processes, "_walk", processes._walk_below())
    assert processes._walk is None
    assert len(set(free_ports(20))) == 20
