"""``python -m benchmarks.doors``: what a token, TLS, mutual TLS and traces cost a front, and its handshakes.

Six fronts of one consumer differ in their door only, and take turns: each round asks each of them, in an order of its
own, for the same rows as fast as it answers, over connections that are kept. Given are reads per second, reads per
second of the front's processor time, and the medians over the rounds of both beside the plain door of the same round.
Then each front that has TLS gets new connections, one after the other.

Threats to validity: fronts, consumer and this generator share the machine's cores, and the generator encrypts too, so
reads per second fall by more than the front's share; the certificates have keys on the curve P-256. The collector of
traces takes what is sent and keeps nothing; the consumer makes no spans.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import ssl
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random
from statistics import median
from threading import Thread
from typing import Any, Final, cast

import trustme
import uvloop

from benchmarks.child import measure, quiet
from benchmarks.deployed import Deployment
from benchmarks.load import HttpLoadConnection, LoadConnection, Tally, as_fast_as_possible
from benchmarks.materialize import as_in_production
from benchmarks.percentiles import percentiles_ms
from benchmarks.reads import HTTP_CONNECTIONS, session_token
from benchmarks.workload import TABLE
from freshet.local.kafka import KafkaServer
from stream.access.certificates import Certificates
from stream.access.grants import digest_of, new_secret
from tests.access.certifying import write

KEYSPACE: Final = "doors"
SUBJECT: Final = "caller.internal"
NOTHING: Final = Certificates()
HANDSHAKES: Final = 300


@dataclass(frozen=True, slots=True)
class Door:
    """How a caller comes in. ``settings``: lines of the front's settings file; ``shown``: by a caller over TLS."""

    settings: str = ""
    secret: str = ""
    shown: Certificates = NOTHING


@contextmanager
def collector() -> Iterator[str]:
    """The URL of what takes spans over OTLP, and keeps none. This process does nothing else meanwhile."""

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        serving = Thread(target=server.serve_forever, daemon=True)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


def doors(directory: Path, endpoint: str) -> dict[str, Door]:
    """All of them. Their certificates and tokens are made in ``directory``; ``endpoint``: where spans go."""
    authority, secret = trustme.CA(), new_secret()
    front, caller = write(authority, directory, "front", "127.0.0.1"), write(authority, directory, "caller", SUBJECT)
    token = f'[serve.tokens.bench]\nroles = ["read"]\nhash = "{digest_of(secret.encode())}"\n'
    subject = f'[serve.tokens.bench]\nroles = ["read"]\nsubject = "{SUBJECT}"\n'
    tls = f"[serve.tls]\ncertificate = {json.dumps(front.certificate)}\n"
    return {
        "plain": Door(),
        "token": Door(token, secret),
        "tls": Door(token + tls, secret, Certificates(ca=front.ca)),
        "mutual_tls": Door(f"{subject}{tls}ca = {json.dumps(front.ca)}\n", "", caller),
        "traced_1_percent": Door(f"[tracing]\nendpoint = {json.dumps(endpoint)}\nshare = 0.01\n"),
        "traced": Door(f"[tracing]\nendpoint = {json.dumps(endpoint)}\n"),
    }


def context_of(door: Mapping[str, Any]) -> ssl.SSLContext | None:
    """Of a client; None for a plain door."""
    return Certificates(**door["shown"]).client()


def reads(port: int, keys: int, seconds: float, demand: str, door: Mapping[str, Any]) -> dict[str, Any]:
    """As many reads as are answered, each at the demand and from the cache. Runs in a child process."""
    shown = f"Authorization: Bearer {door['secret']}\r\n" if door["secret"] else ""
    tail = f"?token={demand}&max_wait_ms=1000 HTTP/1.1\r\nHost: 127.0.0.1\r\n{shown}\r\n"

    def request(key: int) -> bytes:
        return f"GET /v1/rows/{KEYSPACE}/{TABLE}/{key}{tail}".encode()

    async def run() -> dict[str, Any]:
        tally, loop, draw = Tally(), asyncio.get_running_loop(), Random(3)
        made, context = [], context_of(door)
        for _ in range(HTTP_CONNECTIONS):
            _, connection = await loop.create_connection(
                lambda: HttpLoadConnection(request, tally.done), "127.0.0.1", port, ssl=context
            )
            made.append(connection)
        wanted = [draw.randrange(keys) for _ in range(20_000)]
        rate = await as_fast_as_possible(cast("list[LoadConnection]", made), tally, wanted, seconds)
        found = {"reads_s": rate, "reads": tally.answered, "not_fresh": tally.not_fresh}
        return found | percentiles_ms(tally.waits)

    as_in_production()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def handshakes(port: int, door: Mapping[str, Any]) -> dict[str, float]:
    """New connections per second, one after the other. Runs in a child process."""

    async def run() -> float:
        context, began = context_of(door), time.perf_counter()
        for _ in range(HANDSHAKES):
            _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            writer.transport.abort()
        return HANDSHAKES / (time.perf_counter() - began)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return {"handshakes_s": runner.run(run())}


def run(keys: int, rounds: int, seconds: float, chosen: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Medians over the rounds, by door. ``chosen``: beside the plain door only these; none: all."""
    shuffle = Random(11).shuffle
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-bench-")))
        kafka = stack.enter_context(KafkaServer(directory / "kafka")).cluster
        measure("topics:fill_once_each", kafka=kafka, keyspace=KEYSPACE, keys=keys)
        fronts: dict[str, tuple[Deployment, Door]] = {}
        for name, door in doors(directory, stack.enter_context(collector())).items():
            if chosen and name not in {"plain", *chosen}:
                continue
            place = directory / name
            place.mkdir()
            deployed = Deployment(place, kafka, (KEYSPACE,), more=door.settings, authority=door.shown.ca)
            stack.callback(deployed.stop)
            fronts[name] = deployed, door
        first = fronts["plain"][0]
        first.start_consumer()
        for deployed, _ in fronts.values():
            deployed.start_front()
        demand = session_token(first.owner, KEYSPACE)
        found: dict[str, list[dict[str, float]]] = {name: [] for name in fronts}
        for _ in range(rounds):
            turns = list(fronts)
            shuffle(turns)
            for name in turns:
                deployed, door = fronts[name]
                before = deployed.processor_seconds()["front"]
                one = measure("doors:reads", port=deployed.port, keys=keys, seconds=seconds, demand=demand, door=door)
                used = deployed.processor_seconds()["front"] - before
                if one["not_fresh"] or not one["reads"]:
                    raise AssertionError(f"{name}: {one['not_fresh']} of {one['reads']} answers were not fresh")
                one["reads_front_s"] = one["reads"] / used
                if door.shown.ca:
                    one |= measure("doors:handshakes", port=deployed.port, door=door)
                found[name].append(one)
        for each in found.values():
            for one, plain in zip(each, found["plain"], strict=True):
                one |= {f"{key}_of_plain": one[key] / plain[key] for key in ("reads_s", "reads_front_s")}
        return {name: {key: median(one[key] for one in each) for key in each[0]} for name, each in found.items()}


def main() -> int:
    """Prints the figures and their ratios to the plain door."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--doors", type=lambda text: text.split(","), default=[], help="beside the plain one only these"
    )
    options = parser.parse_args()
    quiet()
    print(json.dumps(run(options.keys, options.rounds, options.seconds, options.doors), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
