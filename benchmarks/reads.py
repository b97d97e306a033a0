"""(c) Reads with a demand, over HTTP and at the owner: time at a fixed rate, and the maximum rate.

Front, owner and generator are three processes that share the cores, so the maximum is that of the machine, not of the
server. In the quiet runs every answer must be fresh and from the cache, or the measurement fails.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import tempfile
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import httpx2
import uvloop

from benchmarks.child import ROOT, TIMEOUT_S, command, measure
from benchmarks.deployed import Deployment
from benchmarks.load import HttpLoadConnection, LoadConnection, OwnerLoadConnection, Tally, as_fast_as_possible, at_rate
from benchmarks.materialize import as_in_production
from benchmarks.percentiles import percentiles_ms
from benchmarks.workload import PARTITIONS, TABLE
from consumers.owner.client import OwnerConnection, parse_address
from consumers.owner.protocol import Get
from stream.kafka.connection import KafkaCluster
from stream.wire.keys import Layout, row_key
from tokens import Position, Vector

OWNER_CONNECTIONS, OWNER_DEPTH = 4, 32
HTTP_CONNECTIONS: Final = 32
MAX_S: Final = 4.0
BATCH: Final = 100
"""Keys of a batch."""
BATCH_CONNECTIONS: Final = 4


def reads(
    kafka: KafkaCluster, keyspace: str, keys: int, seconds: float, rates: dict[str, int], writes: int
) -> dict[str, Any]:
    """Measures both ways, quiet and while ``writes`` events per second are published and folded."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        deployed = Deployment(Path(directory), kafka, (keyspace,))
        try:
            deployed.start_consumer()
            deployed.start_front()
            demand = session_token(deployed.owner, keyspace)
            more = {"keyspace": keyspace, "keys": keys, "seconds": seconds, "token": demand}
            owner = {"address": deployed.owner, **more}
            http = {"url": deployed.url, **more}
            found = {
                "owner": measure("reads:at_owner", rate=rates["owner"], **owner),
                "http": measure("reads:over_http", rate=rates["http"], **http),
            }
            if wrong := sum(each["not_fresh"] for each in found.values()):
                raise AssertionError(f"{wrong} answers were not fresh from the cache")
            found["batches"] = measured_batches(deployed, keyspace, keys, seconds, demand)
            with Writing(kafka, keyspace, writes, seconds):
                found["owner_while_folding"] = measure("reads:at_owner", rate=rates["owner"], maximum=False, **owner)
            with Writing(kafka, keyspace, writes, seconds):
                found["http_while_folding"] = measure("reads:over_http", rate=rates["http"], maximum=False, **http)
            return found
        finally:
            deployed.stop()


def measured_batches(deployed: Deployment, keyspace: str, keys: int, seconds: float, token: str) -> dict[str, Any]:
    """Rows per second of processor time of the front, and of the owner, for batches of `BATCH` keys."""
    before = deployed.processor_seconds()
    found = measure("reads:in_batches", url=deployed.url, keyspace=keyspace, keys=keys, seconds=seconds, token=token)
    if found["not_fresh"]:
        raise AssertionError(f"{found['not_fresh']} batches were not fresh from the cache")
    rows = BATCH * found["answered"]
    used = {name: after - before[name] for name, after in deployed.processor_seconds().items()}
    return {
        "rows": rows,
        "not_fresh": found["not_fresh"],
        **{f"{name}_rows_s": rows / max(spent, 1e-9) for name, spent in used.items()},
    }


class Writing:
    """Publishes at a fixed rate, in a separate process, inside the context."""

    def __init__(self, kafka: KafkaCluster, keyspace: str, rate: int, seconds: float) -> None:
        count = int(rate * (seconds + 30))
        self._command = command(
            "latency:publish_at_rate",
            kafka=kafka,
            keyspace=keyspace,
            rate=rate,
            count=count,
            batch_interval_ms=25,
        )

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is not None:
            raise AssertionError("the writer ended before the reads did")
        self._process.kill()
        self._process.wait(TIMEOUT_S)


def session_token(owner: str, keyspace: str) -> str:
    """The token of a session that has seen everything up to now."""
    with OwnerConnection(owner) as connection:
        shards = [shard for each in connection.status(keyspace).partitions for shard in each.shards]
    watermarks = [Position.parse(shard.watermark) for shard in shards]
    return str(Vector({shards[0].shard: (shards[0].epoch, watermarks[0])}))


def at_owner(
    address: str, keyspace: str, keys: int, seconds: float, token: str, rate: int, maximum: bool = True
) -> dict[str, Any]:
    """Measures reads with the owner protocol. Runs in a child process."""
    layout = Layout(PARTITIONS)

    def request(key: int) -> Get:
        name = row_key(TABLE, [key])
        return Get(0, keyspace, layout.partition_of(name), [name], token, 1_000)

    async def connections(tally: Tally) -> list[LoadConnection]:
        loop = asyncio.get_running_loop()
        host, port = parse_address(address)
        made: list[OwnerLoadConnection] = []
        for _ in range(OWNER_CONNECTIONS):
            _, connection = await loop.create_connection(
                lambda: OwnerLoadConnection(request, tally.done, OWNER_DEPTH), host, port
            )
            await connection.greeted
            made.append(connection)
        return cast("list[LoadConnection]", made)

    return _run(connections, keys, seconds, rate, maximum)


def over_http(
    url: str, keyspace: str, keys: int, seconds: float, token: str, rate: int, maximum: bool = True
) -> dict[str, Any]:
    """Measures reads over HTTP. Runs in a child process."""
    address = httpx2.URL(url)
    tail = f"?token={token}&max_wait_ms=1000 HTTP/1.1\r\nHost: {address.host}\r\n\r\n"

    def request(key: int) -> bytes:
        return f"GET /v1/rows/{keyspace}/{TABLE}/{key}{tail}".encode()

    async def connections(tally: Tally) -> list[LoadConnection]:
        loop = asyncio.get_running_loop()
        made = []
        for _ in range(HTTP_CONNECTIONS):
            _, connection = await loop.create_connection(
                lambda: HttpLoadConnection(request, tally.done), address.host, address.port or 80
            )
            made.append(connection)
        return cast("list[LoadConnection]", made)

    return _run(connections, keys, seconds, rate, maximum)


def in_batches(url: str, keyspace: str, keys: int, seconds: float, token: str) -> dict[str, Any]:
    """Sends batches of `BATCH` random keys as fast as they are answered. Runs in a child process."""
    address, draw = httpx2.URL(url), Random(5)
    head = f"POST /v1/rows/{keyspace}:batch HTTP/1.1\r\nHost: {address.host}\r\nContent-Type: application/json\r\n"

    def request(_: int) -> bytes:
        wanted = [{"table": TABLE, "pk": str(draw.randrange(keys))} for _ in range(BATCH)]
        body = json.dumps({"keys": wanted, "token": token, "max_wait_ms": 1_000}).encode()
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def run() -> dict[str, Any]:
        tally, loop = Tally(), asyncio.get_running_loop()
        made: list[LoadConnection] = []
        for _ in range(BATCH_CONNECTIONS):
            _, connection = await loop.create_connection(
                lambda: HttpLoadConnection(request, tally.done, BATCH + 1), address.host, address.port or 80
            )
            made.append(connection)
        await as_fast_as_possible(made, tally, [0], min(MAX_S, seconds))
        return {"answered": tally.answered, "not_fresh": tally.not_fresh}

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def _run(connections: Any, keys: int, seconds: float, rate: int, maximum: bool) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        draw = Random(3)
        found: dict[str, Any] = {"rate": rate}
        warm = Tally()
        await at_rate(await connections(warm), warm, [draw.randrange(keys) for _ in range(rate)], rate)
        tally = Tally()
        wanted = [draw.randrange(keys) for _ in range(int(rate * seconds))]
        await at_rate(await connections(tally), tally, wanted, rate)
        found |= {"reads": tally.answered, "not_fresh": tally.not_fresh, **percentiles_ms(tally.waits)}
        if maximum:
            most = Tally()
            found["max_reads_s"] = await as_fast_as_possible(await connections(most), most, wanted, min(MAX_S, seconds))
            found["not_fresh"] += most.not_fresh
        return found

    as_in_production()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())
