"""Fixtures for all tests: real servers, started on first use, and unique names.

- ``kafka``: a Kafka shared by the session (`KafkaCluster`).
- ``mariadb``: `MariaDBAddress` (host, port, user, password, ``connect(**options)``) of a shared MariaDB.
- ``database``: name of a fresh empty database on it, dropped afterwards.
- ``mysql``, ``mysql_database``: the same for MySQL. Where no MySQL can be had, its tests are skipped, and the summary
  says that they were not run.
- ``postgres``: SQLAlchemy's URL of a PostgreSQL; skipped as MySQL is, where none can be had.
- ``registry``: root of a schema registry's interface (Confluent's); skipped as MySQL is, where none can be had.
- ``hive``: (host, port) of a Hive Metastore shared by the session.
- ``s3``: `S3Address` of an S3-compatible server shared by the session; this process's environment leads there.
- ``azure``: `AzureAddress` of a storage account shared by the session; this process's environment leads there. Skipped
  as MySQL is, where none can be had.
- ``connect``: `ConnectServer`, Kafka Connect with Debezium's connectors beside ``kafka``; skipped as MySQL is.
- ``hdfs``: `HdfsAddress` of an HDFS shared by the session.
- ``new_kafka(**options)``, ``new_mariadb(**options)``, ``new_mysql(**options)``, ``new_hive(**options)``,
  ``new_connect(kafka)``: start a server that only this test uses and may kill (``server.kill()``,
  ``server.restart()``); options as in `KafkaServer`, `MariaDBServer`, `MySQLServer`, `HiveServer`, `ConnectServer`.
- ``keyspace_name``, ``topic_name``: unique names; the topic is the keyspace's event topic. Nothing is created, but
  topics of the keyspace are deleted afterwards where the test used ``kafka``.

Tests that use one of the servers get the marker ``integration`` automatically.
"""

from __future__ import annotations

import faulthandler
import os
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, TypeVar

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from hypothesis import HealthCheck, settings

from freshet.local.hive.server import HiveServer
from freshet.local.java import QUICK_START
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBAddress, MariaDBServer
from freshet.local.mysql import MySQLServer
from freshet.settings import use_config
from stream.kafka.connection import KafkaCluster
from tests import reaper
from tests.lengths import LONG
from tests.order import leave_cases_out, longest_first
from tests.servers import choice
from tests.servers.azure import AzureAddress, azure_address
from tests.servers.connect import ConnectServer, can_be_had, connect_server
from tests.servers.databases import own_database
from tests.servers.hdfs import HdfsAddress, hdfs_address
from tests.servers.postgres import postgres_url
from tests.servers.registry import registry_url
from tests.servers.s3 import S3Address, s3_address

Server = TypeVar("Server")

SERVER_FIXTURES = {
    *("kafka", "mariadb", "mysql", "postgres", "hive", "s3", "azure", "hdfs", "registry", "connect"),
    *("new_kafka", "new_mariadb", "new_mysql", "new_hive", "new_connect"),
}

LONG_RUN_SERVERS = {"azure", "hdfs", "registry"}
"""Servers of several hundred megabytes, for some tests each: only a long run downloads them (docs/decisions/0125)."""

END_S = 180
"""What the end of a session may take: its servers are killed, and their files are removed."""

settings.register_profile("busy_machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy_machine")


def pytest_configure() -> None:
    """What the session leaves behind is killed, in whatever way it ends. Spark's JVMs live briefly in tests, too."""
    reaper.begin()
    os.environ.setdefault("JAVA_TOOL_OPTIONS", " ".join(QUICK_START))


def pytest_addoption(parser: pytest.Parser) -> None:
    """What `make test` gives, so that it stays short on a slow machine."""
    parser.addoption("--every", type=int, default=1, help="of slow tests and those with servers, run every Nth case")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that need servers, so that ``-m 'not integration'`` leaves them out, and long ones; sort them."""
    for item in items:
        if SERVER_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.integration)
        for name in sorted(LONG_RUN_SERVERS & _asked_for(item)):
            item.add_marker(pytest.mark.long)
            variable = f"FRESHET_TEST_{name.upper()}"
            if not LONG and not os.environ.get(variable):
                item.add_marker(pytest.mark.skip(reason=f"make soak runs it; {variable} would name a server"))
    leave_cases_out(config, items, config.getoption("--every"))
    if "PYTEST_XDIST_WORKER" in os.environ:
        longest_first(items)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Download the servers' files before the first test, so that downloads do not count against its time limit."""
    run = [item for item in session.items if item.get_closest_marker("skip") is None]
    needed = {name for item in run for name in SERVER_FIXTURES & _asked_for(item)}
    if not session.config.option.collectonly:
        choice.prefetch(needed)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    """A session whose end hangs says where, and ends: what waits for it would see dots alone."""
    if nextitem is None:
        said_to = item.config.stash[fault_handler_stderr_fd_key]
        faulthandler.dump_traceback_later(END_S, exit=True, file=said_to)
    return (yield)


def _asked_for(item: pytest.Item) -> set[str]:
    """The fixtures of a test, and those that its parameters name."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    named = {value for value in parameters.values() if isinstance(value, str)}
    return named | set(getattr(item, "fixturenames", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of xdist tells the session that prints the summary which servers it used."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["servers"] = dict(choice.used)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker says."""
    choice.used.update(getattr(node, "workeroutput", {}).get("servers", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which servers the session used."""
    for name, origin in choice.used.items():
        terminalreporter.write_line(f"{name}: {origin}")


@pytest.fixture(autouse=True)
def no_config() -> None:
    """No test reads the settings' file that another one has named."""
    use_config(None)


@contextmanager
def or_skip(name: str, server: AbstractContextManager[Server | None]) -> Iterator[Server]:
    """What ``server`` gives; the test is skipped, and the reason said, if it can't be had."""
    with server as found:
        if found is None:
            pytest.skip(choice.used[name])
        yield found


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """The session's Kafka."""
    with choice.kafka_bootstrap() as bootstrap:
        yield KafkaCluster(bootstrap)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBAddress]:
    """Address of the session's MariaDB (row binlog, full metadata)."""
    with choice.mariadb_address() as address:
        yield address


@pytest.fixture(scope="session")
def mysql() -> Iterator[MariaDBAddress]:
    """Address of the session's MySQL (GTIDs, row binlog, full metadata)."""
    with or_skip("mysql", choice.mysql_address()) as address:
        yield address


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """SQLAlchemy's URL of a PostgreSQL's database."""
    with or_skip("postgres", postgres_url()) as url:
        yield url


@pytest.fixture(scope="session")
def registry() -> Iterator[str]:
    """Root of the interface of the session's schema registry."""
    with or_skip("registry", registry_url()) as url:
        yield url


@pytest.fixture(scope="session")
def hive() -> Iterator[tuple[str, int]]:
    """Host and port of the session's Hive Metastore."""
    with choice.hive_address() as address:
        yield address


@pytest.fixture(scope="session")
def connect(kafka: KafkaCluster) -> Iterator[ConnectServer]:
    """The session's worker of Kafka Connect, beside its Kafka."""
    with or_skip("connect", connect_server(kafka)) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Address]:
    """The session's S3-compatible server."""
    with s3_address() as address:
        yield address


@pytest.fixture
def s3(s3_server: S3Address, monkeypatch: pytest.MonkeyPatch) -> S3Address:
    """The session's S3-compatible server, and this process's environment leads there."""
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureAddress]:
    """The session's storage account."""
    with or_skip("azure", azure_address()) as address:
        yield address


@pytest.fixture
def azure(azure_server: AzureAddress, monkeypatch: pytest.MonkeyPatch) -> AzureAddress:
    """The session's storage account, and this process's environment leads there."""
    for name, value in azure_server.environment.items():
        monkeypatch.setenv(name, value)
    return azure_server


@pytest.fixture(scope="session")
def hdfs() -> Iterator[HdfsAddress]:
    """The session's HDFS."""
    with hdfs_address() as address:
        yield address


@pytest.fixture
def database(mariadb: MariaDBAddress) -> Iterator[str]:
    """Name of an empty database that only this test uses."""
    with own_database(mariadb) as name:
        yield name


@pytest.fixture
def mysql_database(mysql: MariaDBAddress) -> Iterator[str]:
    """Name of an empty database of the session's MySQL that only this test uses."""
    with own_database(mysql) as name:
        yield name


@contextmanager
def of_one_test(kind: Callable[..., choice.Local]) -> Iterator[Callable[..., choice.Local]]:
    """Starts servers of a kind."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(choice.started(kind, *arguments, **options))


@pytest.fixture
def new_kafka() -> Iterator[Callable[..., KafkaServer]]:
    """Starts Kafka servers that belong to this test alone."""
    with of_one_test(KafkaServer) as start:
        yield start


@pytest.fixture
def new_mariadb() -> Iterator[Callable[..., MariaDBServer]]:
    """Starts MariaDB servers that belong to this test alone."""
    with of_one_test(MariaDBServer) as start:
        yield start


@pytest.fixture
def new_mysql() -> Iterator[Callable[..., MySQLServer]]:
    """Starts MySQL servers that belong to this test alone."""
    if not choice.has_local_mysql():
        pytest.skip(choice.used["mysql"])
    with of_one_test(MySQLServer) as start:
        yield start


@pytest.fixture
def new_hive() -> Iterator[Callable[..., HiveServer]]:
    """Starts Hive Metastores that belong to this test alone."""
    with of_one_test(HiveServer) as start:
        yield start


@pytest.fixture
def new_connect() -> Iterator[Callable[[KafkaCluster], ConnectServer]]:
    """Starts workers of Kafka Connect that belong to this test alone."""
    if not can_be_had():
        pytest.skip(choice.used["connect"])
    with of_one_test(ConnectServer) as start:
        yield start


@pytest.fixture
def keyspace_name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A unique keyspace name."""
    name = f"ks{uuid.uuid4().hex[:10]}"
    yield name
    if "kafka" in request.fixturenames:
        _delete_topics(request.getfixturevalue("kafka"), f".{name}.")


@pytest.fixture
def topic_name(keyspace_name: str) -> str:
    """The event topic of ``keyspace_name``; not created."""
    return f"freshet.{keyspace_name}.events"


def _delete_topics(kafka: KafkaCluster, part: str) -> None:
    from confluent_kafka.admin import AdminClient

    from stream.kafka.connection import client_settings

    admin = AdminClient(client_settings(kafka))
    doomed = [topic for topic in admin.list_topics(timeout=60).topics if part in topic]
    if doomed:
        for deleted in admin.delete_topics(doomed).values():
            deleted.result(timeout=60)
