"""Kafka, MariaDB, MySQL and a metastore in Docker by testcontainers, which is imported only if an engine answers."""

from __future__ import annotations

import http.client
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlparse

from freshet.local import database, kafka
from freshet.local.hive import server as hive
from freshet.local.hive import site
from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports

KAFKA_IMAGE = os.environ.get("FRESHET_TEST_KAFKA_IMAGE", "apache/kafka:4.1.1")
MARIADB_IMAGE = os.environ.get("FRESHET_TEST_MARIADB_IMAGE", "mariadb:11.4")
MYSQL_IMAGE = os.environ.get("FRESHET_TEST_MYSQL_IMAGE", "mysql:9")
HIVE_IMAGE = os.environ.get("FRESHET_TEST_HIVE_IMAGE", "apache/hive:4.0.1")
PING_TIMEOUT_S = 2.0
READY_TIMEOUT_S = 120.0
PASSWORD = "freshet"


def engine_answers() -> bool:
    """Whether a Docker engine answers a ping at DOCKER_HOST or its usual socket."""
    target = urlparse(os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
    try:
        if target.scheme == "unix":
            connection = http.client.HTTPConnection("localhost", timeout=PING_TIMEOUT_S)
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(PING_TIMEOUT_S)
            connection.sock.connect(target.path)
        else:
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=PING_TIMEOUT_S)
        connection.request("GET", "/_ping")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def kafka_container() -> Iterator[str]:
    """A Kafka broker in a container; gives its bootstrap address."""
    from testcontainers.core.container import DockerContainer

    [port] = free_ports(1)
    settings = {
        **kafka.SETTINGS,
        "controller.quorum.voters": "1@127.0.0.1:29093",
        "listeners": "PLAINTEXT://:9092,CONTROLLER://127.0.0.1:29093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    container = DockerContainer(KAFKA_IMAGE).with_bind_ports(9092, port)
    for name, value in settings.items():
        container = container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
    with container:
        bootstrap = f"127.0.0.1:{port}"
        _wait_until(lambda: kafka.answers(bootstrap), f"Kafka in {KAFKA_IMAGE}")
        yield bootstrap


@contextmanager
def mariadb_container() -> Iterator[MariaDBAddress]:
    """A MariaDB server with a row binlog in a container; gives its address."""
    from testcontainers.core.container import DockerContainer

    [port] = free_ports(1)
    container = (
        DockerContainer(MARIADB_IMAGE)
        .with_bind_ports(3306, port)
        .with_env("MARIADB_ROOT_PASSWORD", PASSWORD)
        .with_command(
            "--log-bin=binlog --binlog-format=ROW --binlog-row-image=FULL --binlog-row-metadata=FULL --server-id=1"
            " --sync-binlog=1 --gtid-strict-mode=1 --skip-name-resolve --ssl=OFF"
        )
    )
    with container:
        address = MariaDBAddress("127.0.0.1", port, "root", PASSWORD)
        _wait_until(lambda: database.answers(address), f"MariaDB in {MARIADB_IMAGE}")
        yield address


@contextmanager
def mysql_container() -> Iterator[MariaDBAddress]:
    """A MySQL server with GTIDs and a row binlog in a container; gives its address."""
    from testcontainers.core.container import DockerContainer

    [port] = free_ports(1)
    container = (
        DockerContainer(MYSQL_IMAGE)
        .with_bind_ports(3306, port)
        .with_env("MYSQL_ROOT_PASSWORD", PASSWORD)
        .with_command(
            "--log-bin=binlog --gtid-mode=ON --enforce-gtid-consistency=ON --binlog-row-metadata=FULL --server-id=1"
            " --sync-binlog=1 --skip-name-resolve --mysqlx=OFF"
        )
    )
    with container:
        address = MariaDBAddress("127.0.0.1", port, "root", PASSWORD)
        _wait_until(lambda: database.answers(address), f"MySQL in {MYSQL_IMAGE}")
        yield address


@contextmanager
def hive_container() -> Iterator[tuple[str, int]]:
    """A Hive Metastore with its notification log in a container; gives its host and port."""
    from testcontainers.core.container import DockerContainer

    [port] = free_ports(1)
    settings = {name: value for name, value in site.SETTINGS.items() if name != "metastore.thrift.bind.host"}
    options = " ".join(f"-D{name}={value}" for name, value in settings.items())
    container = (
        DockerContainer(HIVE_IMAGE)
        .with_bind_ports(9083, port)
        .with_env("SERVICE_NAME", "metastore")
        .with_env("SERVICE_OPTS", options)
    )
    with container:
        _wait_until(lambda: hive.answers("127.0.0.1", port), f"the metastore in {HIVE_IMAGE}")
        yield "127.0.0.1", port


def _wait_until(answers: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not answers():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not answer within {READY_TIMEOUT_S:.0f} s")
        time.sleep(0.1)
