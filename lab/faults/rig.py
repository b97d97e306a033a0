"""The deployment that faults are injected into: the demo's, with a proxy between any two processes.

Each of our processes has its own Kafka listener, which advertises the process's proxy. Otherwise a client would learn
the broker's real address and bypass the proxy. The owner announces its proxy. The stores are on a small disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pymysql
import tomli_w

from freshet.local.kafka import KafkaServer, several_brokers
from freshet.local.mariadb import MariaDBServer
from freshet.local.process import free_ports
from freshet.local.server import LocalServer
from lab.demo.stack import Stack
from lab.faults.network import Link, Network
from lab.faults.wall_clock import WallClocks

COMMIT_INTERVAL_MS: Final = 150
"""Shorter than the default, so that kills hit commits."""
BINLOG_BYTES: Final = 4 << 20
"""Small binlog files, so that the source meets their ends."""
USERS_OF_MARIADB: Final = ("source-rows", "source-catalog", "serve")
FROM_WRITERS: Final = "writers>mariadb"
CONSUMERS: Final = {"consume": "serve>owner", "consume-2": "serve>owner-2"}
"""Consuming process → the link by which the front reaches it."""


def link_name(role: str, server: str) -> str:
    """The name of the link from one of our processes to ``server``, ``kafka`` or ``mariadb``."""
    return f"{role}>{server}"


class LinkedStack(Stack):
    """A `Stack` whose processes reach Kafka and MariaDB by the links of ``network``."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        roles: Sequence[str],
        of_mariadb: Sequence[str],
        *,
        partitions: int = 4,
        clocks: WallClocks | None = None,
        overrides: Mapping[str, object] | None = None,
        brokers: int = 1,
    ) -> None:
        """``roles``: our processes; ``of_mariadb``: those that also use MariaDB. ``clocks``: None if no clock steps.

        ``brokers``: of Kafka, 1 or at least 3; then each record has as many replicas.
        """
        super().__init__(directory, partitions, overrides)
        self.clocks = clocks
        self._pids: list[int] = []
        self.network = network
        kafkas = ["kafka"] if brokers == 1 else [f"kafka-{number}" for number in range(1, brokers + 1)]
        listeners = [self._linked(kafka, roles) for kafka in kafkas]
        for role in of_mariadb:
            network.link(link_name(role, "mariadb"), ("127.0.0.1", 0))  # its port is known after it has started
        network.link(FROM_WRITERS, ("127.0.0.1", 0))
        self.brokers = (
            [KafkaServer(directory / "kafka", listeners=listeners[0])]
            if brokers == 1
            else several_brokers(directory, listeners)
        )
        self.kafka = self.brokers[0]
        self.mariadb = MariaDBServer(directory / "mariadb", options={"max-binlog-size": str(BINLOG_BYTES)})

    def _linked(self, kafka: str, roles: Sequence[str]) -> dict[str, tuple[int, int]]:
        """A listener of a broker for each role, and a link to it, which it advertises."""
        listeners: dict[str, tuple[int, int]] = {}
        for role, port in zip(roles, free_ports(len(roles)), strict=True):
            link = self.network.link(link_name(role, kafka), ("127.0.0.1", port))
            listeners[role.upper().replace("-", "_")] = (port, link.port)
        return listeners

    def links_of(self, target: str) -> list[Link]:
        """The links that a target names: of ``a>kafka`` those to all brokers, of ``a>kafka-2`` that to one."""
        links = self.network.links
        return [links[target]] if target in links else [links[each] for each in links if each.startswith(f"{target}-")]

    def servers(self) -> Sequence[LocalServer]:
        """As `Stack.servers`, with all brokers."""
        return self.mariadb, *self.brokers

    def broker(self, amount: float) -> KafkaServer:  # noqa: ARG002 - of several one is chosen
        """The broker that a fault meets."""
        return self.kafka

    def settings(self) -> dict[str, Any]:
        """As `Stack.settings`; the topics have a replica at each broker."""
        addresses = ",".join(each.bootstrap for each in self.brokers)
        return super().settings() | {"kafka": {"bootstrap": addresses, "replication_factor": len(self.brokers)}}

    def start(self, prepare: Callable[[], None] | None = None) -> None:
        """As `Stack.start`; then sets MariaDB's port in the links to it."""
        self._stop.callback(self._forget_clocks)
        super().start(prepare)
        for name, link in self.network.links.items():
            if name.endswith(">mariadb"):
                link.upstream = (self.mariadb.host, self.mariadb.port)

    def connect_as_writer(self, database: str) -> pymysql.connections.Connection[pymysql.cursors.Cursor]:
        """A connection to MariaDB over the writers' link, where the answer to a commit may be lost."""
        through = replace(self.mariadb.address, port=self.network.links[FROM_WRITERS].port)
        made: pymysql.connections.Connection[pymysql.cursors.Cursor]
        made = through.connect(database=database, autocommit=False, charset="utf8mb4", connect_timeout=5)
        return made

    def environment_of(self, role: str) -> dict[str, str]:
        """The variables that let the process's clock step, if clocks may step."""
        return {} if self.clocks is None else self.clocks.environment(role)

    def start_role(self, name: str) -> None:
        """As `Stack.start_role`."""
        super().start_role(name)
        process = self.roles[name].process
        if process is not None:
            self._pids.append(process.pid)

    def _forget_clocks(self) -> None:
        if self.clocks is not None:
            for pid in self._pids:
                self.clocks.forget(pid)

    def settings_of(self, role: str) -> dict[str, Any]:
        """The settings of ``role``: the address of each server is that of a link."""
        links = self.network.links
        settings: dict[str, Any] = self.settings()
        addresses = (each.address for each in self.links_of(link_name(role, "kafka")))
        settings["kafka"]["bootstrap"] = ",".join(addresses)
        link = links.get(link_name(role, "mariadb"))
        if link is not None:
            for keyspace in settings["keyspaces"].values():
                keyspace["source"]["port"] = link.port
        return settings

    def config_of(self, role: str) -> Path:
        """The settings file of ``role``."""
        path = self.directory / f"{role}.toml"
        path.touch(mode=0o600)
        path.write_text(tomli_w.dumps(self.settings_of(role)))
        return path


class FaultyStack(LinkedStack):
    """The demo's processes. ``stores``: the stores' directory."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        stores: Path,
        *,
        consumers: int = 1,
        clocks: WallClocks | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> None:
        """``consumers``: 1 or 2, which share the partitions as one group."""
        self.stores = stores
        self._owner_ports = dict(zip(list(CONSUMERS)[:consumers], free_ports(consumers), strict=True))
        super().__init__(
            directory, network, list(self.commands()), USERS_OF_MARIADB, clocks=clocks, overrides=overrides
        )
        for role, owner_port in self._owner_ports.items():
            network.link(CONSUMERS[role], ("127.0.0.1", owner_port))

    def commands(self) -> dict[str, list[str]]:
        """As `Stack.commands`, with the second consumer if there is one."""
        return super().commands() | {role: ["consume"] for role in self._owner_ports}

    def settings_of(self, role: str) -> dict[str, Any]:
        """As `LinkedStack.settings_of`; a consumer's stores are on the disk that fails."""
        settings = super().settings_of(role)
        if role in self._owner_ports:
            settings["data_dir"] = str(self.stores / role)
            settings["consumer"] = {
                "owner_port": self._owner_ports[role],
                "owner_announced": self.network.links[CONSUMERS[role]].address,
                "commit_interval_ms": COMMIT_INTERVAL_MS,
            }
        return settings
