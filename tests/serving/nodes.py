"""Several nodes over one keyspace, as processes of their own: a source, nodes that share the partitions, followers."""

from __future__ import annotations

import copy
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2
import tomli_w

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader
from tests.patience import PATIENCE_S
from tests.serving.stack import ServingStack, eventually, without_settings

PARTITIONS = 4


class NodeStack(ServingStack):
    """A source and nodes; requests of the stack go to the first one. Roles: ``source``, ``node-0``, ``node-1``, …"""

    def __init__(
        self,
        directory: Path,
        kafka: KafkaCluster,
        mariadb: MariaDBAddress,
        keyspace: str,
        database: str,
        *,
        zones: Sequence[str] = ("a", "b", "a"),
        followers: Sequence[str] = ("b",),
        **source: Any,
    ) -> None:
        """``zones``: of each node of the main group; ``followers``: of each follower."""
        super().__init__(directory, kafka, mariadb, keyspace, database, partitions=PARTITIONS, **source)
        self.kafka = kafka
        self.owner_ports: dict[str, int] = {}
        self.fronts: dict[str, str] = {}
        """Role → URL of a node's front."""
        self._commands = {"source": self._commands["source"]}
        for zone in zones:
            self.describe_node(zone)
        for zone in followers:
            self.describe_node(zone, follower=True)
        self.url = self.fronts["node-0"]

    def describe_node(self, zone: str, *, follower: bool = False, **serve: Any) -> str:
        """The role of a new node, which `start` starts. ``serve``: more settings of its front."""
        role = f"node-{len(self.fronts)}"
        port, owner_port = free_ports(2)
        settings = copy.deepcopy(self._settings)
        settings |= {"data_dir": str(self.directory / f"stores-{role}"), "zone": zone}
        settings["serve"] = {"port": port, **serve}
        settings["consumer"] |= {"owner_port": owner_port, "commit_interval_ms": 150}
        if follower:
            settings["consumer"] |= {"group": f"followers-{self.keyspace}", "follower": True}
        (self.directory / f"{role}.toml").write_text(tomli_w.dumps(settings))
        self._commands[role] = ["node"]
        self.owner_ports[role], self.fronts[role] = owner_port, f"http://127.0.0.1:{port}"
        return role

    def lone_front(self, bootstrap: str, file: Path) -> str:
        """Starts a front with this address for Kafka, and this location file; its URL once it answers. Role: `lone`."""
        settings, port = copy.deepcopy(self._settings), free_ports(1)[0]
        settings["kafka"]["bootstrap"] = bootstrap
        settings["serve"] = {"port": port, "locations_file": str(file)}
        (self.directory / "lone.toml").write_text(tomli_w.dumps(settings))
        self._commands["lone"] = ["serve"]
        self.start("lone")
        url = f"http://127.0.0.1:{port}"

        def answers() -> bool:
            try:
                return httpx2.get(f"{url}/readyz", timeout=2).status_code == httpx2.codes.OK
            except httpx2.HTTPError:
                return False

        eventually(answers, what="a front without Kafka")
        return url

    def signal(self, role: str, number: signal.Signals) -> None:
        """Sends a signal to a node."""
        os.kill(self.pid_of(role), number)

    def drain(self, role: str) -> str:
        """Has a node give its partitions away, by the command; what it prints."""
        return self._cluster("drain", f"127.0.0.1:{self.owner_ports[role]}", "--timeout", str(PATIENCE_S))

    def move(self, partition: int, role: str) -> str:
        """Has a partition's readers moved to a node, by the command; what it prints."""
        return self._cluster("move", self.keyspace, str(partition), f"127.0.0.1:{self.owner_ports[role]}")

    def _cluster(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "freshet", "--config", str(self.config), "cluster"]
        done = subprocess.run(
            [*command, *arguments],
            cwd=self.directory,
            env=without_settings() | {"PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def role_of(self, announced: Announcement) -> str:
        """The node that said it."""
        return next(role for role, port in self.owner_ports.items() if announced.address.endswith(f":{port}"))

    def shares(self, reader: LocationsReader) -> dict[str, list[int]]:
        """Role → the partitions that it owns, as announced."""
        found: dict[str, list[int]] = {}
        for partition, announced in sorted(reader.owners(self.keyspace).items()):
            found.setdefault(self.role_of(announced), []).append(partition)
        return found

    def events(self, url: str) -> dict[str, float]:
        """What a front's location cache has counted, by event."""
        lines = httpx2.get(f"{url}/metrics", timeout=20).text.splitlines()
        start = 'freshet_serve_locations_events_total{event="'
        counted = (line.removeprefix(start).split('"} ') for line in lines if line.startswith(start))
        return {name: float(value) for name, value in counted}
