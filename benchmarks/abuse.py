"""``python -m benchmarks.abuse``: what one abuser takes of the others' answers.

A reader asks a front for cached rows at a fixed rate, over connections that are kept, beside each abuser in turn: one
that opens 10,000 connections, one that sends a byte a second on each connection that it gets, and those with a valid
token: one asks for 1,000 rows that are never cached, again and again, one for single ones of them over as many
connections as it may have requests under way, and one for cached rows so. The front has no rate, as by default; the
first of the three is tried at one with the limits of the hardening page, too. The abuser comes from another address,
has the lowest priority, and honours no refusal. After each, the reader reads beside a process of the same priority that
burns as much processor time as the abuser took, and does nothing: ``p99_of_busy`` is the ratio to that, so what an
abuser takes of the machine by running on it is left out. ``p99_of_quiet``: to the reader alone in the same round.
Given besides are the reader's percentiles, from when a request was due, and the share of a core that the front, the
owner, and the abuser took.

Threats to validity: front, owner, source, database, reader and abuser share the machine's cores. What the kernel does
for the abuser's connections on the front's side is in neither process. Connections are on loopback.
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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Final, cast

import httpx2
import psutil
import uvloop

from benchmarks.child import ROOT, command, measure, quiet
from benchmarks.deployed import Deployment, processor_s
from benchmarks.load import HttpLoadConnection, LoadConnection, Tally, at_rate
from benchmarks.materialize import as_in_production
from benchmarks.percentiles import percentiles_ms
from freshet.local.kafka import KafkaServer
from freshet.local.mariadb import MariaDBServer
from stream.access.grants import digest_of, new_secret

KEYSPACE: Final = "abuse"
ABUSES: Final = ("connections", "slow", "uncached", "uncached_rated", "crowd", "crowd_cached")
ELSEWHERE: Final = "127.0.0.2"
"""The abuser's address; all of 127.0.0.0/8 is this machine on Linux."""
CONNECTIONS: Final = 10_000
READERS: Final = 8
HOT_ROWS: Final = 500
COLD_ROWS: Final = 20_000
BATCH: Final = 1_000
BATCHES: Final = 4
"""How many batches the abuser has under way."""
CROWD: Final = 256
"""Single reads that it has under way: as many as one caller may."""
RATED: Final = "_rated"
"""At the end of an abuser's name: it is tried at a front with `LIMITS`."""
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


def burn(share: float) -> None:
    """Takes a share of a core, in slices of 10 ms, until it is killed."""
    print("began", flush=True)
    while True:
        end = time.perf_counter() + 0.01 * share
        while time.perf_counter() < end:
            pass
        time.sleep(max(0.01 * (1 - share), 0))


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


def crowd(port: int, secret: str) -> None:
    """Asks for single rows that only the source has, until it is killed."""
    _crowd(port, secret, "cold", COLD_ROWS)


def crowd_cached(port: int, secret: str) -> None:
    """Asks for single cached rows, until it is killed."""
    _crowd(port, secret, "hot", HOT_ROWS)


def _crowd(port: int, secret: str, table: str, rows: int) -> None:
    tail = f" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {secret}\r\n\r\n"

    async def ask(draw: Random) -> None:
        while True:
            with suppress(OSError, EOFError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(ELSEWHERE, 0))
                while True:
                    writer.write(f"GET /v1/rows/{KEYSPACE}/{table}/{draw.randrange(1, rows + 1)}{tail}".encode())
                    head = (await reader.readuntil(b"\r\n\r\n")).lower()
                    await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0]))
            await asyncio.sleep(1)

    async def run() -> None:
        print("began", flush=True)
        await asyncio.gather(*(ask(Random(each)) for each in range(CROWD)))

    uvloop.run(run())


@contextmanager
def beside(name: str, **arguments: Any) -> Iterator[psutil.Process]:
    """A process of the lowest priority at work for a second before the block begins, and until it ends."""
    line = ["nice", "-n", "19", *command(f"abuse:{name}", **arguments)]
    process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"began\n":
            raise AssertionError(f"{name} did not begin")
        time.sleep(1)
        yield psutil.Process(process.pid)
        if process.poll() is not None:
            raise AssertionError(f"{name} has ended")
    finally:
        process.kill()
        process.communicate()


def run(rounds: int, seconds: float, rate: int, abuses: Sequence[str] = ABUSES) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by abuse; ``quiet`` is without one."""
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
        more = "\n".join([f"[keyspaces.{KEYSPACE}.source]", *lines, *tokens])
        deployed = Deployment(directory, kafka, (KEYSPACE,), more=more)
        (directory / "rated").mkdir()
        rated = Deployment(directory / "rated", kafka, (KEYSPACE,), more=f"{more}\n{LIMITS}")
        stack.callback(deployed.stop)
        stack.callback(rated.stop)
        deployed.start_source("mariadb", KEYSPACE)
        deployed.start_consumer()
        deployed.start_front()
        rated.start_front()
        demand = _warm(deployed, secrets["reader"])
        _warm(rated, secrets["reader"])
        reader = {"secret": secrets["reader"], "rate": rate, "seconds": seconds, "demand": demand}

        def read(front: Deployment, *abusers: psutil.Process) -> dict[str, float]:
            def used() -> dict[str, float]:
                return deployed.processor_seconds() | front.processor_seconds()

            before, own, began = used(), processor_s(*abusers), time.perf_counter()
            one = measure("abuse:reads", port=front.port, **reader)
            took_s, after = time.perf_counter() - began, used()
            shares = {f"{name}_core": (after[name] - before[name]) / took_s for name in after}
            return one | shares | {"abuser_core": (processor_s(*abusers) - own) / took_s}

        found: dict[str, list[dict[str, float]]] = {name: [] for name in ("quiet", *abuses)}
        for _ in range(rounds):
            quiet_p99_ms = (alone := read(deployed))["p99_ms"]
            found["quiet"].append(alone)
            for name in abuses:
                front = rated if name.endswith(RATED) else deployed
                with beside(name.removesuffix(RATED), port=front.port, secret=secrets["abuser"]) as abuser:
                    one = read(front, abuser)
                with beside("burn", share=min(one["abuser_core"], 1.0)):
                    busy_p99_ms = read(front)["p99_ms"]
                ratios = {"p99_of_busy": one["p99_ms"] / busy_p99_ms, "p99_of_quiet": one["p99_ms"] / quiet_p99_ms}
                found[name].append(one | {"busy_p99_ms": busy_p99_ms} | ratios)
    return {name: {key: median(one[key] for one in each) for key in each[0]} for name, each in found.items()}


def _warm(deployed: Deployment, secret: str) -> str:
    """Has every row of the reader in the cache; the token at or past which they are."""
    keys = [{"table": "hot", "pk": each} for each in range(1, HOT_ROWS + 1)]
    deadline = time.monotonic() + 120
    with httpx2.Client(base_url=deployed.url, headers={"Authorization": f"Bearer {secret}"}, timeout=30) as client:
        while time.monotonic() < deadline:
            told = client.post(f"/v1/rows/{KEYSPACE}:batch", json={"keys": keys})
            if told.status_code == 200 and told.text.count('"served_from":"cache"') == HOT_ROWS + 1:
                return str(told.headers["freshet-token"])
            time.sleep(0.5)
    raise AssertionError(f"the rows did not get into the cache: {told.text[:500]}")


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--abuses", nargs="+", choices=ABUSES, default=ABUSES)
    options = parser.parse_args()
    quiet()
    print(json.dumps(run(options.rounds, options.seconds, options.rate, options.abuses), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
