"""Chooses the servers of a test session, and keeps where they came from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlparse

from freshet.local import artifacts, debian
from freshet.local.hive.home import metastore_home
from freshet.local.hive.server import HiveServer
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBAddress, MariaDBServer
from freshet.local.mysql import PACKAGE, SUITE, MySQLServer
from freshet.local.server import LocalServer
from tests.servers import docker
from tokens.errors import FreshetError

Server = TypeVar("Server")
Local = TypeVar("Local", bound=LocalServer)

used: dict[str, str] = {}
"""Server → where it came from, for the summary of the session."""


def prefetch(fixtures: set[str]) -> None:
    """Downloads the servers that these fixtures will start as local processes; a failure shows in the tests."""
    with suppress(FreshetError):
        if "new_kafka" in fixtures or ("kafka" in fixtures and not os.environ.get("FRESHET_TEST_KAFKA")):
            artifacts.jars("kafka")
        if "new_mariadb" in fixtures or ("mariadb" in fixtures and not os.environ.get("FRESHET_TEST_MARIADB")):
            artifacts.unpacked("mariadb")
        if "new_mysql" in fixtures or ("mysql" in fixtures and not os.environ.get("FRESHET_TEST_MYSQL")):
            debian.unpacked(PACKAGE, SUITE)
        if "registry" in fixtures and not os.environ.get("FRESHET_TEST_REGISTRY"):
            artifacts.jars("registry")
        if "new_hive" in fixtures or ("hive" in fixtures and not os.environ.get("FRESHET_TEST_HIVE")):
            metastore_home()
        if fixtures & {"connect", "new_connect"}:
            artifacts.jars("connect")
        if "hdfs" in fixtures and not os.environ.get("FRESHET_TEST_HDFS"):
            artifacts.jars("hdfs")
        if "azure" in fixtures and not os.environ.get("FRESHET_TEST_AZURE"):
            from tests.servers import azure  # it is above this module

            if azure.can_be_had():
                azure.installed()


@contextmanager
def started(kind: Callable[..., Local], *arguments: Any, **options: Any) -> Iterator[Local]:
    """A server in a directory of its own, killed at the end: to stop takes it seconds, and what it kept goes, too."""
    with tempfile.TemporaryDirectory(prefix="freshet-server-") as directory:
        server = kind(Path(directory), *arguments, **options)
        try:
            yield server.start()
        finally:
            if server.is_running:
                server.kill()


@contextmanager
def kafka_bootstrap() -> Iterator[str]:
    """A Kafka: FRESHET_TEST_KAFKA (``host:port``), else Docker, else a local process."""
    if given := os.environ.get("FRESHET_TEST_KAFKA"):
        used["kafka"] = f"given by FRESHET_TEST_KAFKA ({given})"
        yield given
        return
    with _docker_or_local("kafka", docker.kafka_container, _local_kafka) as bootstrap:
        yield bootstrap


@contextmanager
def mariadb_address() -> Iterator[MariaDBAddress]:
    """A MariaDB: FRESHET_TEST_MARIADB (``mysql://user:password@host:port``), else Docker, else a local process."""
    if given := os.environ.get("FRESHET_TEST_MARIADB"):
        address = _address_in(given)
        used["mariadb"] = f"given by FRESHET_TEST_MARIADB ({address.host}:{address.port})"
        yield address
        return
    with _docker_or_local("mariadb", docker.mariadb_container, _local_mariadb) as address:
        yield address


@contextmanager
def mysql_address() -> Iterator[MariaDBAddress | None]:
    """A MySQL: FRESHET_TEST_MYSQL (``mysql://user:password@host:port``), else Docker, else a local process.

    None if there can be none on this machine; the summary says so.
    """
    if given := os.environ.get("FRESHET_TEST_MYSQL"):
        address = _address_in(given)
        used["mysql"] = f"given by FRESHET_TEST_MYSQL ({address.host}:{address.port})"
        yield address
        return
    if not _docker_answers() and not has_local_mysql():
        yield None
        return
    with _docker_or_local("mysql", docker.mysql_container, _local_mysql) as address:
        yield address


def has_local_mysql() -> bool:
    """Whether this machine can run a MySQL of its own. If not, the summary says that its tests were not run."""
    can = debian.is_cached(PACKAGE, SUITE) or debian.is_available()
    if not can:
        used["mysql"] = "NOT RUN: no FRESHET_TEST_MYSQL, no Docker engine, no apt-get to fetch a server with"
    return can


@contextmanager
def hive_address() -> Iterator[tuple[str, int]]:
    """A Hive Metastore: FRESHET_TEST_HIVE (``thrift://host:port``), else Docker, else a local process."""
    if given := os.environ.get("FRESHET_TEST_HIVE"):
        url = urlparse(given)
        used["hive"] = f"given by FRESHET_TEST_HIVE ({given})"
        yield url.hostname or "127.0.0.1", url.port or 9083
        return
    with _docker_or_local("hive", docker.hive_container, _local_hive) as address:
        yield address


@contextmanager
def _local_hive() -> Iterator[tuple[str, int]]:
    with started(HiveServer) as server:
        yield server.host, server.port


@contextmanager
def _local_kafka() -> Iterator[str]:
    with started(KafkaServer) as server:
        yield server.bootstrap


@contextmanager
def _local_mariadb() -> Iterator[MariaDBAddress]:
    with started(MariaDBServer) as server:
        yield server.address


@contextmanager
def _local_mysql() -> Iterator[MariaDBAddress]:
    with started(MySQLServer) as server:
        yield server.address


def _address_in(given: str) -> MariaDBAddress:
    url = urlparse(given)
    return MariaDBAddress(
        url.hostname or "127.0.0.1", url.port or 3306, unquote(url.username or "root"), unquote(url.password or "")
    )


@contextmanager
def _docker_or_local(
    name: str,
    in_docker: Callable[[], AbstractContextManager[Server]],
    as_process: Callable[[], AbstractContextManager[Server]],
) -> Iterator[Server]:
    with ExitStack() as stack:
        if _docker_answers():
            try:
                server = stack.enter_context(in_docker())
            except Exception as error:  # noqa: BLE001 - an engine that cannot pull or run is not usable
                used[name] = f"local process (Docker failed: {error})"
            else:
                used[name] = "Docker"
                yield server
                return
        else:
            used[name] = "local process (no Docker engine answers)"
        yield stack.enter_context(as_process())


@cache
def _docker_answers() -> bool:
    return docker.engine_answers()
