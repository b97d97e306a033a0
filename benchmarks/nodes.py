"""Reads at a node that has the partition and at one that has not, and what one, two and four nodes answer.

``python -m benchmarks.nodes`` prints one JSON object. Nodes, broker and generators share this machine's cores, so the
rates of several nodes say what a node costs, not how many machines scale. Every answer must be fresh and from the
cache.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import httpx2
import psutil
import tomli_w
import uvloop

from benchmarks.child import ROOT, measure
from benchmarks.deployed import POLL_S, TIMEOUT_S, processor_s
from benchmarks.load import HttpLoadConnection, LoadConnection, Tally, as_fast_as_possible, at_rate
from benchmarks.percentiles import percentiles_ms
from benchmarks.reads import session_token
from benchmarks.workload import PARTITIONS, TABLE
from freshet.local.kafka import KafkaServer
from freshet.local.process import ServerProcess, free_ports
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from stream.wire.keys import Layout, row_key

KEYSPACE: Final = "nodes"
FRESHET: Final = (sys.executable, "-m", "freshet")
COUNTS: Final = (1, 2, 4)
CONNECTIONS: Final = 16
RATE: Final = 300
"""Reads a second where times are measured: a load that two nodes carry easily."""


@dataclass(slots=True)
class Node:
    """A running node. ``partitions``: those that it has."""

    url: str
    owner: str
    process: ServerProcess
    partitions: frozenset[int] = frozenset()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nodes", description=__doc__)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        kafka = KafkaServer(Path(directory) / "kafka")
        kafka.start()
        try:
            measure("topics:fill_once_each", kafka=kafka.cluster, keyspace=KEYSPACE, keys=chosen.keys)
            found = {
                str(count): measured(Path(directory) / str(count), kafka.cluster, count, chosen.keys, chosen.seconds)
                for count in COUNTS
            }
        finally:
            kafka.stop()
    print(json.dumps(found, indent=2))


def measured(directory: Path, kafka: KafkaCluster, count: int, keys: int, seconds: float) -> dict[str, Any]:
    """Starts ``count`` nodes of one group and measures them."""
    directory.mkdir()
    with ExitStack() as stack:
        nodes = [start(directory, kafka, number, stack) for number in range(count)]
        await_shares(kafka, nodes)
        token = session_token(nodes[0].owner, KEYSPACE)
        found: dict[str, Any] = {}
        if count == 2:
            for name, having in (("local", nodes[0]), ("forwarded", nodes[1])):
                asked = {"url": nodes[0].url, "partitions": sorted(having.partitions), "token": token, "keys": keys}
                found[name] = measure("nodes:over_http", seconds=seconds, rate=RATE, **asked)
        before = [used_s(each) for each in nodes]
        with ThreadPoolExecutor(count) as pool:
            asking = [
                pool.submit(
                    measure,
                    "nodes:over_http",
                    url=each.url,
                    partitions=sorted(each.partitions),
                    token=token,
                    keys=keys,
                    seconds=seconds,
                    rate=0,
                )
                for each in nodes
            ]
            rates = [each.result() for each in asking]
        used = [used_s(each) - at for each, at in zip(nodes, before, strict=True)]
        answered = sum(each["reads"] for each in rates)
        return found | {
            "reads_s": sum(each["reads_s"] for each in rates),
            "reads_s_of_processor": answered / max(sum(used), 1e-9),
        }


def start(
    directory: Path, kafka: KafkaCluster, number: int, stack: ExitStack, command: Sequence[str] = FRESHET
) -> Node:
    """Starts a node; the stack stops it. ``command``: what runs `freshet`."""
    port, owner_port = free_ports(2)
    config = directory / f"node-{number}.toml"
    config.write_text(
        tomli_w.dumps(
            {
                "data_dir": str(directory / f"stores-{number}"),
                "kafka": {"bootstrap": kafka.bootstrap},
                "keyspaces": {KEYSPACE: {"kind": "rows", "partitions": PARTITIONS}},
                "consumer": {"owner_port": owner_port, "group": f"bench-{directory.name}"},
                "serve": {"port": port},
            }
        )
    )
    line = [*command, "--config", str(config), "--log-format", "json", "node"]
    log = directory / f"node-{number}.log"
    process = ServerProcess(f"node-{number}", line, log_file=log, cwd=ROOT)
    stack.callback(process.stop)
    return Node(f"http://127.0.0.1:{port}", f"127.0.0.1:{owner_port}", process)


def await_shares(kafka: KafkaCluster, nodes: list[Node]) -> None:
    """Until each node is ready and has as many partitions as any other, and all are announced; notes whose they are."""
    deadline = time.monotonic() + TIMEOUT_S
    with LocationsReader(kafka) as reader:
        while time.monotonic() < deadline:
            owners = reader.owners(KEYSPACE)
            for node in nodes:
                node.partitions = frozenset(n for n, each in owners.items() if each.address == node.owner)
            shares = {len(node.partitions) for node in nodes}
            if shares == {PARTITIONS // len(nodes)} and all(is_ready(node) for node in nodes):
                return
            time.sleep(POLL_S)
    raise AssertionError(f"the nodes did not share the partitions: {nodes[0].process.log_tail()}")


def is_ready(node: Node) -> bool:
    """Whether its front has found all owners."""
    try:
        return httpx2.get(f"{node.url}/readyz", timeout=2).status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False


def used_s(node: Node) -> float:
    """Processor time of a node until now."""
    return processor_s(psutil.Process(node.process.pid))


def over_http(url: str, partitions: list[int], token: str, keys: int, seconds: float, rate: int) -> dict[str, Any]:
    """Reads of keys of these partitions, at a rate or (0) as fast as they are answered. Runs in a child process."""
    address, layout, draw = httpx2.URL(url), Layout(PARTITIONS), Random(3)
    tail = f"?token={token}&max_wait_ms=1000 HTTP/1.1\r\nHost: {address.host}\r\n\r\n"
    chosen = [key for key in range(keys) if layout.partition_of(row_key(TABLE, [key])) in partitions]

    def request(key: int) -> bytes:
        return f"GET /v1/rows/{KEYSPACE}/{TABLE}/{key}{tail}".encode()

    async def connections(tally: Tally) -> list[LoadConnection]:
        loop = asyncio.get_running_loop()
        made = []
        for _ in range(CONNECTIONS):
            _, connection = await loop.create_connection(
                lambda: HttpLoadConnection(request, tally.done), address.host, address.port or 80
            )
            made.append(connection)
        return cast("list[LoadConnection]", made)

    async def run() -> dict[str, Any]:
        warm, tally = Tally(), Tally()
        await at_rate(await connections(warm), warm, draw.choices(chosen, k=RATE), RATE)
        made, found = await connections(tally), dict[str, Any]()
        if rate:
            await at_rate(made, tally, draw.choices(chosen, k=int(rate * seconds)), rate)
            found = percentiles_ms(tally.waits)
        else:
            found["reads_s"] = await as_fast_as_possible(made, tally, draw.choices(chosen, k=10_000), seconds)
        if tally.not_fresh:
            raise AssertionError(f"{tally.not_fresh} answers were not fresh from the cache")
        return found | {"reads": warm.answered + tally.answered}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


if __name__ == "__main__":
    main()
