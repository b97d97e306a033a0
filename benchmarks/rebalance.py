"""What readers meet while a group shares its partitions anew: the protocol that we use, and the one of KIP-848.

``python -m benchmarks.rebalance`` prints a JSON object for each case of each round, the rounds interleaved. Of each
event: the seconds until every partition is announced by a node that shall have it, and the reads meanwhile: how many,
how many were refused (there is no source that could answer), and the longest. Readers ask a node that stays, all the
time, for keys of all partitions.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import httpx2
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

import freshet.cli
from benchmarks.child import measure
from benchmarks.deployed import POLL_S, TIMEOUT_S
from benchmarks.nodes import KEYSPACE, Node, await_shares, start
from benchmarks.reads import session_token
from benchmarks.workload import PARTITIONS, TABLE
from freshet.local.kafka import KafkaServer
from stream.kafka import reader as kafka_reader
from stream.kafka.connection import KafkaCluster, Settings, client_settings
from stream.kafka.locations import LocationsReader

OURS: Final = {"session.timeout.ms": "10000", "heartbeat.interval.ms": "3000"}
"""As a consumer sets its session by the classic protocol. With the other one, these are settings of its group."""
ALLOWED: Final = {f"group.consumer.min.{name}": value for name, value in OURS.items()}
CASES: Final[Mapping[str, tuple[str, Mapping[str, str]]]] = {
    "classic, cooperative-sticky": ("classic", {}),
    "consumer (KIP-848), brokers that allow our times": ("consumer", ALLOWED),
    "consumer (KIP-848), brokers as Kafka has them": ("consumer", {}),
}
"""What the members speak, and the brokers' settings. Each group is given our times, if the brokers allow them."""
READERS: Final = 4
PAUSE_S: Final = 0.005
AFTER_S: Final = 3.0
"""Reads count until so long after all partitions have their owners."""


class Reads:
    """Threads that read at one front all the time. ``met``: (end, seconds, whether it was answered) of each read."""

    def __init__(self, url: str, token: str, keys: int) -> None:
        self.met: list[tuple[float, float, bool]] = []
        self._url, self._token, self._keys = url, token, keys
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(number,), daemon=True) for number in range(READERS)]

    def __enter__(self) -> Reads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def since(self, began: float) -> dict[str, Any]:
        """What reads that ended after a moment met."""
        found = [(took, answered) for end, took, answered in list(self.met) if end >= began]
        slowest = max((took for took, answered in found if answered), default=0.0)
        refused = sum(not answered for _, answered in found)
        return {"reads": len(found), "refused": refused, "longest_s": round(slowest, 3)}

    def _read(self, number: int) -> None:
        draw, asked = Random(number), {"token": self._token, "max_wait_ms": "1000"}
        with httpx2.Client(base_url=self._url, timeout=30) as client:
            while not self._over.wait(PAUSE_S):
                began = time.monotonic()
                answer = client.get(f"/v1/rows/{KEYSPACE}/{TABLE}/{draw.randrange(self._keys)}", params=asked)
                is_fresh = answer.status_code == httpx2.codes.OK and answer.json()["freshness"] == "fresh"
                self.met.append((time.monotonic(), time.monotonic() - began, is_fresh))


def set_session(kafka: KafkaCluster, group: str) -> str:
    """Sets our times for a group of KIP-848's. What the brokers say against it, or nothing."""
    entries = [
        ConfigEntry(f"consumer.{name}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in OURS.items()
    ]
    wanted = ConfigResource(ConfigResource.Type.GROUP, group, incremental_configs=entries)
    with AdminClient(client_settings(kafka)) as admin:
        [done] = admin.incremental_alter_configs([wanted]).values()
        try:
            done.result()
        except KafkaException as error:
            return str(error.args[0].str())
    return ""


def measured(directory: Path, protocol: str, brokers: Mapping[str, str], keys: int) -> dict[str, Any]:
    """A node joins two others, is drained, joins again, and is killed."""
    directory.mkdir()
    with ExitStack() as stack:
        kafka = stack.enter_context(KafkaServer(directory / "kafka", settings=brokers)).cluster
        refused = set_session(kafka, kafka.group_id(f"bench-{directory.name}"))
        measure("topics:fill_once_each", kafka=kafka, keyspace=KEYSPACE, keys=keys)
        command = [sys.executable, "-m", "benchmarks.rebalance", "--node", protocol]
        stay = [start(directory, kafka, number, stack, command) for number in range(2)]
        await_shares(kafka, stay)
        token = session_token(stay[0].owner, KEYSPACE)
        reader = stack.enter_context(LocationsReader(kafka))
        reads = stack.enter_context(Reads(stay[0].url, token, keys))
        came: list[Node] = []

        def joins() -> None:
            came.append(start(directory, kafka, 2, stack, command))

        def is_drained() -> None:
            drain = ["-m", "freshet", "--config", str(directory / "node-2.toml"), "cluster", "drain", came[-1].owner]
            subprocess.run([sys.executable, *drain, "--timeout", str(TIMEOUT_S)], check=True, capture_output=True)

        def happens(what: Callable[[], None], owners: Callable[[], set[str]]) -> dict[str, Any]:
            began = time.monotonic()
            what()
            settled_s = await_owners(reader, owners, began)
            time.sleep(AFTER_S)
            return {"settled_s": round(settled_s, 2), **reads.since(began)}

        def of_two() -> set[str]:
            return {each.owner for each in stay}

        def of_three() -> set[str]:
            return of_two() | {came[-1].owner}

        found: dict[str, Any] = {"session of the group refused": refused}
        found |= {"joins": happens(joins, of_three), "is drained": happens(is_drained, of_two)}
        came[-1].process.stop()
        found["joins again"] = happens(joins, of_three)
        found["is killed"] = happens(came[-1].process.kill, of_two)
        return found


def await_owners(reader: LocationsReader, owners: Callable[[], set[str]], began: float) -> float:
    """The seconds until just these are announced as owners, and all partitions are."""
    while time.monotonic() < began + TIMEOUT_S:
        known = reader.owners(KEYSPACE)
        if len(known) == PARTITIONS and {each.address for each in known.values()} == owners():
            return time.monotonic() - began
        time.sleep(POLL_S)
    return float("inf")


def run_node(protocol: str, arguments: list[str]) -> None:
    """`freshet` in this process; with ``consumer`` its group is one of KIP-848's."""
    if protocol == "consumer":
        kafka_reader.reader_settings = _by_kip_848
    sys.argv = ["freshet", *arguments]
    freshet.cli.main()


_classic = kafka_reader.reader_settings


def _by_kip_848(kafka: KafkaCluster, group: str = "", more: Mapping[str, Any] | None = None) -> Settings:
    found = _classic(kafka, group, more)
    if "group.instance.id" in found:
        found["group.protocol"] = "consumer"
        for name in ("partition.assignment.strategy", "session.timeout.ms"):  # the brokers' affair
            del found[name]
    return found


def main() -> None:
    """Measures and prints; as a child of itself, runs a node."""
    if sys.argv[1:2] == ["--node"]:
        run_node(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rebalance", description=__doc__)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=1)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        for number in range(chosen.rounds):
            for name, (protocol, brokers) in CASES.items():
                place = Path(directory) / f"{number}-{protocol}-{len(brokers)}"
                print(json.dumps({name: measured(place, protocol, brokers, chosen.keys)}), flush=True)


if __name__ == "__main__":
    main()
