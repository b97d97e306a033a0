"""Nodes of one group, a follower of them, and a spare node that joins for a while; a proxy between any two processes.

Each node announces the proxies of its owner protocol and of its read API, so other fronts and clients come by these.
Kafka has three brokers, each record is at all of them. One node's stores lie on a disk that can be slow.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2

from freshet.local.kafka import KafkaServer
from freshet.local.process import free_ports
from lab.demo.stack import CATALOG, ROWS
from lab.faults.network import Network
from lab.faults.rig import COMMIT_INTERVAL_MS, LinkedStack
from lab.faults.schedule import NETWORK
from serving.client import FreshetClient
from serving.client.session import Consistency
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import ensure_topics, events_topic, topic_leaders

PARTITIONS: Final = 8
BROKERS: Final = 3
SOURCE, SPARE, FOLLOWER = "source-rows", "spare", "follower"
ON_DISK: Final = "node-0"
"""The node whose stores lie on the disk that faults meet."""
ZONES: Final = ("east", "west")
DRAIN_S_MAX: Final = 60.0
"""How long a drain may take; the others have to catch up with little."""
HOMES: Final = 3
READY_S_MAX: Final = 60.0
"""How long a node may take to start on a busy machine."""
CLIENTS: Final[tuple[tuple[bool, Consistency], ...]] = (
    (True, "bounded"),
    (True, "any"),
    (False, "any"),
    (True, "leader"),
    (False, "bounded"),
)
"""Whether a client finds nodes, and who may answer it. The next client is of the next kind."""


def node_names(nodes: int) -> list[str]:
    """The nodes that run from the beginning: ``nodes`` in all, the last of them a follower."""
    return [*(f"node-{number}" for number in range(nodes - 1)), FOLLOWER]


def targets_of(nodes: int) -> dict[str, Sequence[str]]:
    """What is broken in a cluster of ``nodes`` → how. ``kafka``: the broker that leads a partition.

    ``node-0>kafka``: the way of a node to all brokers, ``node-0>kafka-2`` to one; ``>node-0``: that of other fronts to
    its partitions, ``clients>node-0``: that of clients to its read API.
    """
    found: dict[str, Sequence[str]] = {SPARE: ("join",), "kafka": ("kill", "kill", "pause", "stop")}
    found["disk"] = ("slow_disk",)
    for number, name in enumerate(node_names(nodes)):
        found[name] = ("kill", "kill", "pause", "stop", *(() if name == FOLLOWER else ("drain",)))
        for way in (f"{name}>kafka", f"{name}>kafka-{1 + number % BROKERS}", f">{name}", f"clients>{name}"):
            found[way] = NETWORK
    return found


class ClusterStack(LinkedStack):
    """A source, nodes and a follower, which run; and a spare node, which does not yet."""

    def __init__(self, directory: Path, network: Network, nodes: int, disk: Path, kept: Path | None = None) -> None:
        """``disk``: where the stores of `ON_DISK` are. ``kept``: code of a version that all begin with (`old`)."""
        self.nodes = node_names(nodes)
        every = [*self.nodes, SPARE]
        ports = free_ports(2 * len(every))
        self._owner_ports = dict(zip(every, ports, strict=False))
        self._front_ports = dict(zip(every, ports[len(every) :], strict=True))
        self._made = itertools.count()
        self.old = {SOURCE, *self.nodes} if kept is not None else set[str]()
        """The processes that are still of the kept version."""
        self._kept, self._disk = kept, disk
        roles = [SOURCE, *every]
        super().__init__(directory, network, roles, roles, partitions=PARTITIONS, brokers=BROKERS)
        for name in every:
            network.link(f">{name}", ("127.0.0.1", self._owner_ports[name]))
            network.link(f"clients>{name}", ("127.0.0.1", self._front_ports[name]))

    @property
    def url(self) -> str:
        """The read API of the first node."""
        return f"http://127.0.0.1:{self._front_ports[self.nodes[0]]}"

    def client(self) -> FreshetClient:
        """A client of the next of `CLIENTS`, which has been told of `HOMES` nodes, and in which zone it is."""
        number = next(self._made)
        homes = [
            self.network.links[f"clients>{self.nodes[(number + each) % len(self.nodes)]}"] for each in range(HOMES)
        ]
        routes, consistency = CLIENTS[number % len(CLIENTS)]
        return FreshetClient(
            [f"http://{each.address}" for each in homes],
            route=routes,
            zone=ZONES[number % len(ZONES)],
            consistency=consistency,
        )

    def start(self, prepare: Callable[[], None] | None = None) -> None:
        """As `LinkedStack.start`. At the end the brokers are killed: the last ones would wait for a quorum."""
        super().start(prepare)
        for broker in self.brokers:
            self._stop.callback(_killed, broker)

    def broker(self, amount: float) -> KafkaServer:
        """The broker that leads a partition of the events, which ``amount`` (0 to 1) chooses."""
        leaders = sorted(topic_leaders(self.cluster, [events_topic(self.cluster, ROWS)]).items())
        (_, address) = leaders[int(amount * (len(leaders) - 1))]
        return next(each for each in self.brokers if each.bootstrap == address)

    @property
    def cluster(self) -> KafkaCluster:
        """All brokers, without a proxy."""
        return KafkaCluster(",".join(each.bootstrap for each in self.brokers), replicas=BROKERS)

    def environment_of(self, role: str) -> dict[str, str]:
        """What has an old process run the kept version's code."""
        return {"PYTHONPATH": str(self._kept)} if role in self.old else {}

    def commands(self) -> dict[str, list[str]]:
        """The source and the nodes that run from the beginning."""
        return {SOURCE: super().commands()[SOURCE]} | {name: ["node"] for name in self.nodes}

    def start_roles(self, wait: bool = True) -> None:
        """As `Stack.start_roles`; the spare node is only described."""
        if self.old:  # a node of the kept version that is there before the source makes a topic with one replica
            ensure_topics(self.cluster, ROWS, PARTITIONS, timeout_s=READY_S_MAX)
        super().start_roles(wait)
        self.add_role(SPARE, ["node"])

    def stop_role(self, name: str) -> None:
        """As `Stack.stop_role`. A node that is stopped has not exited unexpectedly."""
        super().stop_role(name)
        self.roles[name].process = None

    def settings(self) -> dict[str, Any]:
        """Without the catalog."""
        settings = super().settings()
        del settings["keyspaces"][CATALOG]
        return settings

    def settings_of(self, role: str) -> dict[str, Any]:
        """As `LinkedStack.settings_of`; each node has stores, ports and a zone of its own."""
        settings = super().settings_of(role)
        if role == SOURCE:
            return settings
        links = self.network.links
        consumer: Mapping[str, object] = {
            "owner_port": self._owner_ports[role],
            "owner_announced": links[f">{role}"].address,
            "commit_interval_ms": COMMIT_INTERVAL_MS,
        }
        return settings | {
            "data_dir": str((self._disk if role == ON_DISK else self.directory / "stores") / role),
            "zone": ZONES[list(self._owner_ports).index(role) % len(ZONES)],
            "serve": {"port": self._front_ports[role], "announced": f"http://{links[f'clients>{role}'].address}"},
            "consumer": {**consumer, **({"group": "followers", "follower": True} if role == FOLLOWER else {})},
        }

    def answers(self, role: str) -> bool:
        """Whether a node's read API does."""
        try:
            url = f"http://127.0.0.1:{self._front_ports[role]}/healthz"
            return httpx2.get(url, timeout=2, trust_env=False).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    def drain(self, role: str) -> str:
        """Has a node give its partitions to the others, by the command. What went wrong, or nothing."""
        command = [sys.executable, "-m", "freshet", "--config", str(self.config), "cluster", "drain"]
        done = subprocess.run(
            [*command, f"127.0.0.1:{self._owner_ports[role]}", "--timeout", str(DRAIN_S_MAX)],
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stderr if done.returncode else ""


def _killed(broker: KafkaServer) -> None:
    if broker.is_running:
        broker.kill()
