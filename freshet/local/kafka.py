"""One real Kafka broker (KRaft, combined controller) as a local process."""

from __future__ import annotations

import base64
import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Self

from freshet.local.artifacts import jars
from freshet.local.errors import LocalServerError
from freshet.local.java import find_java
from freshet.local.process import ServerProcess, free_ports, port_is_free, run_tool
from freshet.local.server import LocalServer

if TYPE_CHECKING:
    from stream.kafka.connection import KafkaCluster

START_TIMEOUT_S = 180.0
START_ATTEMPTS = 3
TOOL_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m")

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",  # a restart after a kill waits until the old registration lapses
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "transaction.max.timeout.ms": "900000",
    "message.max.bytes": "16777216",
    "replica.fetch.max.bytes": "16777216",
    "log.message.timestamp.before.max.ms": "9223372036854775807",
}

LOG4J2 = """\
status = WARN
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
"""


class KafkaServer(LocalServer):
    """A single-node Kafka on 127.0.0.1. ``start`` returns when it answers a metadata request.

    Ports and data are kept in the data directory, so a second start on it (also after a kill) continues where the
    first ended. ``settings``: broker properties on top of `SETTINGS`. ``listeners``: name of an additional listener →
    the port that it binds and the port that it advertises (of a proxy in front of it). A context manager.
    """

    NAME = "Kafka"

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, tuple[int, int]] | None = None,
        heap: str = "512m",
        detached: bool = False,
    ) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.heap = heap
        self.detached = detached
        self.settings = dict(settings or {})
        self.listeners = dict(listeners or {})
        self._wanted_port = port
        self._ports: tuple[int, int] | None = None

    @property
    def port(self) -> int:
        """The broker's port. Raises `LocalServerError` before the first start."""
        if self._ports is None:
            raise LocalServerError("Kafka has no port before its first start")
        return self._ports[0]

    @property
    def bootstrap(self) -> str:
        """``127.0.0.1:port``."""
        return f"127.0.0.1:{self.port}"

    @property
    def cluster(self) -> KafkaCluster:
        """The broker's address for our Kafka clients."""
        from stream.kafka.connection import KafkaCluster  # not above: starting a broker needs no client

        return KafkaCluster(self.bootstrap)

    @property
    def log_file(self) -> Path:
        """The broker's log."""
        return self.data_dir / "kafka.log"

    def start(self) -> Self:
        """Starts the broker on its data directory, formatted if new, and waits until it answers."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        ports_file = self.data_dir / "ports.json"
        if self._ports is None and self._wanted_port is None and ports_file.exists():
            broker, controller = json.loads(ports_file.read_text())
            if port_is_free(broker) and port_is_free(controller):
                self._ports = (broker, controller)
        chosen_here = self._ports is None and self._wanted_port is None
        for attempt in range(START_ATTEMPTS):
            if self._ports is None:
                self._ports = self._choose_ports()
            try:
                self._launch(self._ports)
            except LocalServerError as error:
                if not chosen_here or "BindException" not in str(error) or attempt == START_ATTEMPTS - 1:
                    raise
                self._ports = None  # another process took the port in the meantime
            else:
                ports_file.write_text(json.dumps(self._ports))
                return self
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _choose_ports(self) -> tuple[int, int]:
        if self._wanted_port is None:
            broker, controller = free_ports(2)
            return broker, controller
        return self._wanted_port, free_ports(1)[0]

    def _launch(self, ports: tuple[int, int]) -> None:
        java = find_java().path
        config = self._write_config(ports)
        (self.data_dir / "log4j2.properties").write_text(LOG4J2)
        classpath = os.pathsep.join(str(jar) for jar in jars("kafka"))
        log4j = f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}"
        if not (self.data_dir / "logs" / "meta.properties").exists():
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            tool = [java, *TOOL_FLAGS, log4j, "-cp", classpath, "kafka.tools.StorageTool"]
            run_tool("kafka.tools.StorageTool", [*tool, "format", f"--cluster-id={cluster}", "-c", str(config)])
        self._process = ServerProcess(
            "Kafka",
            [
                java,
                f"-Xmx{self.heap}",
                "-XX:+ExitOnOutOfMemoryError",
                log4j,
                "-cp",
                classpath,
                "kafka.Kafka",
                str(config),
            ],
            log_file=self.log_file,
            cwd=self.data_dir,
            detached=self.detached,
        )
        try:
            self._process.wait_until(lambda: answers(f"127.0.0.1:{ports[0]}"), START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    def _write_config(self, ports: tuple[int, int]) -> Path:
        broker, controller = ports
        more = self.listeners.items()
        bound = [f"{name}://127.0.0.1:{port}" for name, (port, _) in more]
        advertised = [f"{name}://127.0.0.1:{port}" for name, (_, port) in more]
        properties = {
            **SETTINGS,
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": ",".join([f"PLAINTEXT://127.0.0.1:{broker}", f"CONTROLLER://127.0.0.1:{controller}", *bound]),
            "advertised.listeners": ",".join([f"PLAINTEXT://127.0.0.1:{broker}", *advertised]),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *self.listeners)
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data_dir / "logs"),
            **self.settings,
        }
        path = self.data_dir / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
        return path


def answers(bootstrap: str, timeout_s: float = 1.0) -> bool:
    """Whether a Kafka broker answers a metadata request at ``bootstrap``."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from stream.kafka.connection import KafkaCluster, client_settings

    client = AdminClient(client_settings(KafkaCluster(bootstrap), **{"socket.timeout.ms": int(timeout_s * 1000)}))
    try:
        return bool(client.list_topics(timeout=timeout_s).brokers)
    except KafkaException:
        return False
