"""Real Kafka brokers (KRaft, combined controllers) as local processes: one, or several of one cluster."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from freshet.local.artifacts import jars
from freshet.local.cache import made_once
from freshet.local.java import QUICK_START, class_archive, find_java
from freshet.local.process import ServerProcess, free_ports, run_tool
from freshet.local.server import LocalServer

if TYPE_CHECKING:
    from stream.kafka.connection import KafkaCluster

START_TIMEOUT_S = 180.0
META_NAME = "meta.properties"
"""Says whose directory it is; a directory without it is not formatted."""

SETTINGS = {
    "process.roles": "broker,controller",
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

SETTINGS_OF_SEVERAL = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}
"""On top of `SETTINGS`, of a cluster of three brokers: one of them may be away."""

LOG4J2 = """\
status = WARN
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %p %c{1}: %m%n
rootLogger.level = WARN
rootLogger.appenderRef.console.ref = console
"""

FULL_SPEED = (
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)
"""The flags of Kafka's own kafka-run-class.sh, but for the collector: that of a server is the JVM's own choice, and two
are refused where JAVA_TOOL_OPTIONS names one. Kafka's kafka-server-start.sh gives the broker a heap of a GiB."""


@dataclass(frozen=True, slots=True)
class Quorum:
    """What the brokers of one cluster have in common. ``controllers``: node id → the port of its controller."""

    cluster_id: str
    controllers: Mapping[int, int]


class KafkaServer(LocalServer):
    """A Kafka broker on 127.0.0.1. ``start`` returns when it answers a metadata request.

    Ports and data are kept in the data directory, so a second start on it (also after a kill) continues where the
    first ended. ``settings``: broker properties on top of `SETTINGS`. ``listeners``: name of an additional listener →
    the port that it binds and the port that it advertises (of a proxy in front of it). ``quick_start``: with the flags
    `QUICK_START` and an archive of its classes; else, for who measures it, with `FULL_SPEED`. ``train``: the flag that
    makes that archive. ``node``, ``quorum``: of one of several brokers (`several_brokers`). A context manager.
    """

    NAME = "Kafka"
    PORTS = 2
    """The broker's, and the controller's."""
    PORT_TAKEN = ("BindException",)

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, tuple[int, int]] | None = None,
        heap: str = "",
        detached: bool = False,
        quick_start: bool = True,
        train: str | None = None,
        node: int = 1,
        quorum: Quorum | None = None,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self.quick_start = quick_start
        self.train = train
        self.heap = heap or ("512m" if quick_start else "1g")
        self.settings = dict(settings or {})
        self.listeners = dict(listeners or {})
        self.node = node
        self.quorum = quorum

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

    def _launch(self) -> None:
        java = find_java().path
        config = self.data_dir / "server.properties"
        _write(config, self._properties(self.data_dir / "logs"))
        (self.data_dir / "log4j2.properties").write_text(LOG4J2)
        classpath = os.pathsep.join(str(jar) for jar in jars("kafka"))
        flags = (*QUICK_START, *(() if self.train else class_archive("kafka", classpath, _train)))
        log4j = f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}"
        if not (self.data_dir / "logs" / META_NAME).exists():
            self._format([java, *flags, "-Xmx256m", log4j, "-cp", classpath, "kafka.tools.StorageTool"])
        self._process = ServerProcess(
            "Kafka",
            [
                java,
                *(flags if self.quick_start else (f"-Xms{self.heap}", *FULL_SPEED)),
                *((self.train,) if self.train else ()),
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
        self._await(lambda: answers(self.bootstrap), START_TIMEOUT_S)

    def _format(self, tool: Sequence[str]) -> None:
        """Fills the directory of the logs. Kafka's tool, a JVM of its own, does that once; then ids are other ones."""

        def make(directory: Path) -> None:
            config = self.data_dir / "format.properties"
            _write(config, self._properties(directory))
            run_tool(tool[-1], [*tool, "format", f"--cluster-id={new_id()}", "-c", str(config)])

        home = jars("kafka")[0].parent
        logs = self.data_dir / "logs"
        kept = made_once(home.with_name(f"{home.name}.formatted"), make)
        shutil.copytree(kept, logs, ignore=shutil.ignore_patterns(META_NAME), dirs_exist_ok=True)
        cluster = self.quorum.cluster_id if self.quorum is not None else new_id()
        ids = {"version": "1", "cluster.id": cluster, "node.id": str(self.node), "directory.id": new_id()}
        _write(logs / f"{META_NAME}.new", ids)
        (logs / f"{META_NAME}.new").rename(logs / META_NAME)

    def _properties(self, logs: Path) -> dict[str, str]:
        broker, own = self._ports
        controllers = self.quorum.controllers if self.quorum is not None else {self.node: own}
        controller = controllers[self.node]
        more = self.listeners.items()
        bound = [f"{name}://127.0.0.1:{port}" for name, (port, _) in more]
        advertised = [f"{name}://127.0.0.1:{port}" for name, (_, port) in more]
        return {
            **SETTINGS,
            "node.id": str(self.node),
            "controller.quorum.voters": ",".join(f"{node}@127.0.0.1:{port}" for node, port in controllers.items()),
            "listeners": ",".join([f"PLAINTEXT://127.0.0.1:{broker}", f"CONTROLLER://127.0.0.1:{controller}", *bound]),
            "advertised.listeners": ",".join([f"PLAINTEXT://127.0.0.1:{broker}", *advertised]),
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", *self.listeners)
            ),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(logs),
            **self.settings,
        }


def several_brokers(directory: Path, listeners: Sequence[Mapping[str, tuple[int, int]]]) -> list[KafkaServer]:
    """The brokers of one cluster, not yet started: one for each of ``listeners``, three or more.

    Start them at the same time: one alone has no quorum, so it does not answer.
    """
    quorum = Quorum(new_id(), dict(enumerate(free_ports(len(listeners)), 1)))
    return [
        KafkaServer(
            directory / f"kafka-{node}",
            settings=SETTINGS_OF_SEVERAL,
            listeners=of_node,
            heap="384m",
            node=node,
            quorum=quorum,
        )
        for node, of_node in enumerate(listeners, 1)
    ]


def _write(path: Path, properties: Mapping[str, str]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))


def new_id() -> str:
    """An id as Kafka makes them, of a cluster or a directory."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _train(flag: str) -> None:
    with tempfile.TemporaryDirectory(prefix="freshet-kafka-") as directory, KafkaServer(directory, train=flag):
        pass


def answers(bootstrap: str, timeout_s: float = 1.0) -> bool:
    """Whether a Kafka broker answers a metadata request at ``bootstrap``."""
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    from stream.kafka.connection import KafkaCluster, client_settings

    settings = client_settings(KafkaCluster(bootstrap), **{"socket.timeout.ms": int(timeout_s * 1000)})
    with AdminClient(settings) as client:
        try:
            return bool(client.list_topics(timeout=timeout_s).brokers)
        except KafkaException:
            return False
