"""``python -m benchmarks.abuse``: what one abuser takes of the others' answers.

A reader asks a front for cached rows at a fixed rate, over connections that are kept, first alone and then beside each
abuser in turn: one that opens 10,000 connections, one that sends a byte a second on each connection that it gets, and
one with a valid token that asks for 1,000 rows that are never cached, again and again. The abuser comes from another
address, and honours no refusal. Given are the reader's percentiles, from when a request was due; ``p99_of_quiet`` is
the ratio to the quiet part of the same round.

Threats to validity: front, owner, source, database, reader and abuser share the machine's cores, so what the abuser's
own process takes is counted as the front's fault. Connections are on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, cast

import httpx2
import uvloop

from benchmarks.child import ROOT, command, measure, quiet
from benchmarks.deployed import Deployment
from benchmarks.load import HttpLoadConnection, LoadConnection, Tally, at_rate
from benchmarks.materialize import as_in_production
from benchmarks.percentiles import percentiles_ms
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from stream.access.grants import digest_of, new_secret

KEYSPACE: Final = "abuse"
ABUSES: Final = ("connections", "slow", "uncached")
ELSEWHERE: Final = "127.0.0.2"
"""The abuser's address; all of 127.0.0.0/8 is this machine on Linux."""
CONNECTIONS: Final = 10_000
READERS: Final = 8
HOT_ROWS: Final = 500
COLD_ROWS: Final = 20_000
BATCH: Final = 1_000
BATCHES: Final = 4
"""How many batches the abuser has under way."""
LIMITS: Final = "[serve.limits]\nrate_per_s = 5000\nburst = 20000\n"
"""Those of the hardening page."""
TABLES: Final = (
    "CREATE TABLE hot (id INT PRIMARY KEY, v VARCHAR(200))",
    f"INSERT INTO hot SELECT seq, REPEAT('x', 200) FROM seq_1_to_{HOT_ROWS}",
    "CREATE TABLE cold (id INT PRIMARY KEY, v VARCHAR(200)) ENGINE=MyISAM",  # without snapshots: always read through
    f"INSERT INTO cold SELECT seq, REPEAT('x', 200) FROM seq_1_to_{COLD_ROWS}",
)


def reads(port: int, secret: str, rate: int, seconds: float, demand: str) -> dict[str, Any]:
    """The reader: cached rows at a rate. Runs in a child process."""
    tail = f"?token={demand} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"

    def request(key: int) -> bytes:
        return f"GET /v1/rows/{KEYSPACE}/hot/{key}{tail}".encode()

    async def run() -> dict[str, Any]:
        tally, loop, draw, made = Tally(), asyncio.get_running_loop(), Random(3), []
        for _ in range(READERS):
            _, connection = await loop.create_connection(
                lambda: HttpLoadConnection(request, tally.done), "127.0.0.1", port, local_addr=("127.0.0.3", 0)
            )
            made.append(connection)
        wanted = [draw.randrange(1, HOT_ROWS + 1) for _ in range(int(rate * seconds))]
        await at_rate(cast("list[LoadConnection]", made), tally, wanted, rate)
        return {"reads": tally.answered, "not_fresh": tally.not_fresh} | percentiles_ms(tally.waits)

    as_in_production()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def connections(port: int, secret: str) -> None:  # noqa: ARG001 - every abuser has the same arguments
    """Opens them as fast as it can, and again what the front has closed, until it is killed."""
    _held(port, b"")


def slow(port: int, secret: str) -> None:  # noqa: ARG001 - every abuser has the same arguments
    """Sends a byte of a head a second on each of as many connections as it gets, until it is killed."""
    _held(port, b"GET /v1/status HTTP/1.1\r\nHost: " + b"a" * 10_000)


def _held(port: int, request: bytes) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    async def hold(number: int) -> None:
        await asyncio.sleep(number / CONNECTIONS)
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ELSEWHERE, 0))
                ended = asyncio.create_task(reader.read())
                for byte in request:
                    if ended.done():
                        break
                    writer.write(bytes([byte]))
                    await asyncio.sleep(1)
                await ended
                writer.close()
            await asyncio.sleep(1)

    async def run() -> None:
        print("began", flush=True)
        await asyncio.gather(*(hold(number) for number in range(CONNECTIONS)))

    uvloop.run(run())


def uncached(port: int, secret: str) -> None:
    """Asks for batches of rows that only the source has, whatever it is told, until it is killed."""

    async def ask(client: httpx2.AsyncClient, draw: Random) -> None:
        while True:
            keys = [{"table": "cold", "pk": each} for each in draw.sample(range(1, COLD_ROWS + 1), BATCH)]
            with suppress(httpx2.HTTPError):
                await client.post(f"http://127.0.0.1:{port}/v1/rows/{KEYSPACE}:batch", json={"keys": keys})

    async def run() -> None:
        print("began", flush=True)
        transport = httpx2.AsyncHTTPTransport(local_address=ELSEWHERE)
        headers = {"Authorization": f"Bearer {secret}"}
        async with httpx2.AsyncClient(transport=transport, headers=headers, timeout=60) as client:
            await asyncio.gather(*(ask(client, Random(each)) for each in range(BATCHES)))

    uvloop.run(run())


@contextmanager
def abused(name: str, port: int, secret: str) -> Iterator[None]:
    """An abuser at work for a second before the block begins, and until it ends; nobody if it has no name."""
    if not name:
        yield
        return
    line = command(f"abuse:{name}", port=port, secret=secret)
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"began\n":
            raise AssertionError(f"the abuser {name} did not begin")
        time.sleep(1)
        yield
        if process.poll() is not None:
            raise AssertionError(f"the abuser {name} has ended")
    finally:
        process.kill()
        process.communicate()


def run(rounds: int, seconds: float, rate: int) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by abuse; ``""`` is without one."""
    secrets = {name: new_secret() for name in ("reader", "abuser")}
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-bench-")))
        kafka = stack.enter_context(KafkaServer(directory / "kafka")).cluster
        server = stack.enter_context(MariaDBServer(directory / "mariadb", durable=False)).address
        with server.connect(autocommit=True) as connection, connection.cursor() as cursor:
            for statement in (f"CREATE DATABASE {KEYSPACE}", f"USE {KEYSPACE}", *TABLES):
                cursor.execute(statement)
        address = {"host": server.host, "port": server.port, "user": server.user, "password": server.password}
        lines = [f"{name} = {json.dumps(each)}" for name, each in address.items()]
        lines += ['kind = "mariadb"', "server_id = 77", f'databases = ["{KEYSPACE}"]', f'backfill = ["{KEYSPACE}.hot"]']
        tokens = (
            f'[serve.tokens.{name}]\nroles = ["read"]\nhash = "{digest_of(each.encode())}"\n'
            for name, each in secrets.items()
        )
        more = "\n".join([f"[keyspaces.{KEYSPACE}.source]", *lines, LIMITS, *tokens])
        deployed = Deployment(directory, kafka, (KEYSPACE,), more=more)
        stack.callback(deployed.stop)
        deployed.start_source("mariadb", KEYSPACE)
        deployed.start_consumer()
        deployed.start_front()
        demand = _warm(deployed, secrets["reader"])
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ("", *ABUSES)}
        for _ in range(rounds):
            for name, each in found.items():
                arguments = {"secret": secrets["reader"], "rate": rate, "seconds": seconds, "demand": demand}
                with abused(name, deployed.port, secrets["abuser"]):
                    one = measure("abuse:reads", port=deployed.port, **arguments)
                one["p99_of_quiet"] = one["p99_ms"] / (found[""][-1]["p99_ms"] if name else one["p99_ms"])
                each.append(one)
    return {name or "quiet": {key: median(one[key] for one in each) for key in each[0]} for name, each in found.items()}


def _warm(deployed: Deployment, secret: str) -> str:
    """Has every row of the reader in the cache; the token at or past which they are."""
    keys = [{"table": "hot", "pk": each} for each in range(1, HOT_ROWS + 1)]
    deadline = time.monotonic() + 120
    with httpx2.Client(base_url=deployed.url, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
        while time.monotonic() < deadline:
            told = client.post(f"/v1/rows/{KEYSPACE}:batch", json={"keys": keys})
            if told.status_code == 200 and told.text.count('"served_from":"cache"') == HOT_ROWS:
                return str(told.headers["freshet-token"])
            time.sleep(0.5)
    raise AssertionError(f"the rows did not get into the cache: {told.text[:500]}")


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=200)
    options = parser.parse_args()
    quiet()
    print(json.dumps(run(options.rounds, options.seconds, options.rate), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
