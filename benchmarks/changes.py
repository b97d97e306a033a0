"""``python -m benchmarks.changes``: what a front's change stream gives out, and how soon a cache hears of a change.

- **one**: a reader goes through all of a topic, from its beginning until now, with rows: raw, and by the Python client.
- **many**: readers that have caught up share the front's reader of Kafka; transactions come at a fixed rate, and all
  readers must have all of them.
- **invalidate**: transactions of one row come at a fixed rate. The time runs from the moment at which each is due at
  the publisher until an application's cache, in its own process, has its tombstone.
- **wire**: what images of before the change cost, where a keyspace has them: bytes a row without and with their
  records, as they are and as Kafka's batches are compressed (lz4), and the processor time to frame and to fold a row.

Of **one** and **many** also by the processor time of the front, which says something while others have the cores, too.

Threats to validity: publisher, broker, consumer, front and readers share the machine's cores. Raw readers look at the
bytes and decode nothing. The batches of the publisher (25 ms) are most of the time of an invalidation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any, Final

import pyarrow as pa
import uvloop

from benchmarks.child import ROOT, TIMEOUT_S, command, measure, quiet
from benchmarks.deployed import Deployment
from benchmarks.materialize import as_in_production
from benchmarks.percentiles import percentiles_ms
from benchmarks.topics import OWN, is_frame
from benchmarks.workload import KEYS, START_POSITION, START_SECONDS, TABLE, image, number_of, transactions
from consumers.fold.messages import fold_messages
from consumers.fold.state import Head, PartitionState
from freshet.local.kafka import KafkaServer
from serving.client import FreshetClient
from serving.client.cache import DictStore, Invalidator
from stream.kafka.connection import KafkaCluster
from stream.wire.batch import BatchLimits, Framer
from stream.wire.codec import HEADER_SIZE, headers
from stream.wire.events import RowChange
from stream.wire.keys import Layout

KEYSPACE: Final = "changes"
TRANSACTION: Final = b'"kind":"transaction"'
PIECE: Final = 1 << 20
_BEFORE: Final = headers("BeforeImages")
_STATES: Final = headers("SourceState")
POLLED: Final = 8_000
BATCH_ROWS: Final = 2_000
"""About what a frame and a batch have at full rate."""
WARM_UP: Final = 0.2
"""Share of the transactions of `invalidate` that come before what is measured."""


def fill(kafka: KafkaCluster, keyspace: str, events: int) -> dict[str, Any]:
    """The topic of **one**. Runs in a child process, as all that follow."""
    from benchmarks.topics import publish

    return publish(kafka, keyspace, transactions(events))


def one_raw(port: int, events: int) -> dict[str, float]:
    """As many events a second as a reader gets that decodes nothing."""
    began = time.perf_counter()
    asyncio.run(_all_of(port, "from=earliest&until=now", events, asyncio.Event()))
    return {"events_s": events / (time.perf_counter() - began)}


def one_client(url: str, events: int) -> dict[str, float]:
    """The same by the Python client, which decodes them."""
    as_in_production()
    began, used, seen = time.perf_counter(), time.process_time(), 0
    with FreshetClient(url) as client:
        for event in client.stream(KEYSPACE, "earliest", until="now", include_rows=True):
            seen += event.kind == "transaction"
    if seen < events:
        raise AssertionError(f"{seen} of {events} events came")
    return {"events_s": seen / (time.perf_counter() - began), "by_processor_s": seen / (time.process_time() - used)}


def many(port: int, readers: int, events: int) -> dict[str, float]:
    """Until each reader has this many transactions of those that come from now on."""

    async def run() -> None:
        begun = [asyncio.Event() for _ in range(readers)]
        reading = [asyncio.create_task(_all_of(port, "from=now", events, each)) for each in begun]
        await asyncio.gather(*(each.wait() for each in begun))
        print("ready", flush=True)
        await asyncio.gather(*reading)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())
    return {"ended": time.monotonic()}


async def _all_of(port: int, begin: str, events: int, begun: asyncio.Event) -> None:
    """One connection, until this many transactions have come. ``begun``: something has."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=4 * PIECE)
    path = f"/v1/stream?keyspace={KEYSPACE}&{begin}&include_rows=true&heartbeat_ms=250"
    writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    seen, rest, head = 0, b"", b""
    while seen < events:
        piece = await reader.read(PIECE)
        head = head or piece[:300]
        if not piece:
            raise AssertionError(f"the stream ended after {seen} of {events} events: {head!r}")
        if b'"kind":"watermark"' in piece:
            begun.set()
        text = rest + piece
        seen += text.count(TRANSACTION)
        rest = text[-(len(TRANSACTION) - 1) :]
    writer.close()


def invalidate(url: str, last: int) -> dict[str, Any]:
    """(when, number of the transaction) of each transaction that the cache has dealt with, up to ``last``."""
    as_in_production()
    cache, seen = Invalidator(DictStore(1_000_000), KEYSPACE, [TABLE]), []
    with FreshetClient(url) as client:
        cache.begin_anew()
        for event in client.stream(KEYSPACE, "now", tables=[TABLE], heartbeat_ms=250):
            cache.apply(event)
            if event.kind == "transaction":
                seen.append((time.monotonic(), number_of(event.gtid)))
                if seen[-1][1] >= last:
                    break
            elif not seen:
                print("ready", flush=True)
    return {"seen": seen}


def wire(rows: int, rows_a_frame: int) -> dict[str, float]:
    """Bytes and processor time a row of updates of rows that were there before."""
    found = {}
    a_batch = max(1, BATCH_ROWS // (rows_a_frame or BATCH_ROWS))
    for name, has_before in (("now", False), ("with_before", True)):
        began = time.process_time()
        messages = list(_messages(rows, rows_a_frame, has_before=has_before))
        found[f"{name}_framed_us"] = (time.process_time() - began) / rows * 1e6
        found[f"{name}_folded_us"] = _fold_seconds(messages) / rows * 1e6
        frames = [each for each in messages if is_frame(each) or each[:HEADER_SIZE] in _BEFORE]
        batches = [b"".join(frames[at : at + a_batch]) for at in range(0, len(frames), a_batch)]
        found[name] = sum(map(len, frames)) / rows
        found[f"{name}_lz4"] = sum(len(pa.compress(each, "lz4", asbytes=True)) for each in batches) / rows
    return found


def _fold_seconds(messages: list[bytes]) -> float:
    """Processor time of folding the messages of a partition in memory, as many at once as a consumer polls."""
    entries: dict[bytes, bytes] = {}
    state = PartitionState(Head(), entries.get)
    began = time.process_time()
    for at in range(0, len(messages), POLLED):
        for changes in fold_messages(state, list(enumerate(messages[at : at + POLLED], at))):
            changes.put_into(entries)
            state.apply(changes)
    return time.process_time() - began


def _messages(rows: int, rows_a_frame: int, *, has_before: bool) -> Iterator[bytes]:
    """The messages of a history of updates, but states. ``has_before``: with what rows were before."""
    limits = BatchLimits(rows_max=rows_a_frame or BATCH_ROWS)
    framer = Framer(f"{KEYSPACE}/0", Layout(1), nonce=1, limits=limits)
    framer.start_epoch(START_POSITION, START_SECONDS, "first_start")
    versions: dict[bytes, bytes] = {}
    for number, transaction in enumerate(transactions(rows, KEYS // 10), 1):
        [change] = transaction.changes
        assert isinstance(change, RowChange)
        after, before = change.image, versions.get(change.key) or image(number, number, 25)
        versions[change.key] = after
        change.before = before if has_before else None
        framer.add(transaction, 0, 1)
        if number % (rows_a_frame or BATCH_ROWS) == 0 or number == rows:
            yield from (value for _, value in framer.take().records if value[:HEADER_SIZE] not in _STATES)


class Measured:
    """A front, its consumer and a topic of ``events`` transactions, and what follows these."""

    def __init__(self, deployed: Deployment, events: int) -> None:
        self.deployed, self.events = deployed, events

    def one(self) -> dict[str, float]:
        """**one**."""
        before = self._front_used()
        raw = measure("changes:one_raw", port=self.deployed.port, events=self.events)["events_s"]
        front = self.events / (self._front_used() - before)
        client = measure("changes:one_client", url=self.deployed.url, events=self.events)
        return {
            "raw_s": raw,
            "client_s": client["events_s"],
            "a_second_of_the_fronts_processor": front,
            "a_second_of_the_clients_processor": client["by_processor_s"],
        }

    def many(self, readers: int, rate: int, seconds: float) -> dict[str, float]:
        """**many**."""
        count = int(rate * seconds)
        before = self._front_used()
        sent, ended = self._while_published(
            rate, count, "changes:many", port=self.deployed.port, readers=readers, events=count
        )
        used = self._front_used() - before
        took = ended["ended"] - sent["began"]
        return {
            "deliveries_s": readers * count / took,
            "a_second_of_the_fronts_processor": readers * count / used,
            "behind_s": took - count / rate,
        }

    def _front_used(self) -> float:
        """Seconds of the processor."""
        return self.deployed.processor_seconds()["front"]

    def invalidate(self, rate: int, seconds: float) -> dict[str, float]:
        """**invalidate**."""
        count = int(rate * seconds)
        first, last = self.events + 2, self.events + 1 + count
        sent, found = self._while_published(rate, count, "changes:invalidate", url=self.deployed.url, last=last)
        waits = [when - (sent["began"] + (number - first) / rate) for when, number in found["seen"]]
        if len(waits) != count:
            raise AssertionError(f"the cache was told of {len(waits)} of {count} transactions")
        return percentiles_ms(waits[int(count * WARM_UP) :])

    def _while_published(self, rate: int, count: int, function: str, **arguments: Any) -> tuple[Any, Any]:
        """What the publisher and the child say that reads what it publishes."""
        child = subprocess.Popen(
            command(function, **arguments), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert child.stdout is not None
            child.stdout.readline()  # ready
            sent = measure(
                "latency:publish_at_rate",
                kafka=self.deployed.kafka,
                keyspace=KEYSPACE,
                rate=rate,
                count=count,
                batch_interval_ms=25,
            )
            self.events += count
            out, error = child.communicate(timeout=TIMEOUT_S)
        finally:
            if child.poll() is None:
                child.kill()
                child.communicate()
        if child.returncode != 0:
            raise AssertionError(error[-2000:])
        return sent, json.loads(out.splitlines()[-1])


def run(events: int, rounds: int, readers: int, rate: int, seconds: float) -> dict[str, Any]:
    """Medians over the rounds."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-bench-")))
        kafka = stack.enter_context(KafkaServer(directory / "kafka")).cluster
        measure("changes:fill", kafka=kafka, keyspace=KEYSPACE, events=events)
        deployed = Deployment(directory, kafka, (KEYSPACE,))
        stack.callback(deployed.stop)
        deployed.start_consumer()
        deployed.start_front()
        measured = Measured(deployed, events)
        load, found = os.getloadavg()[0], list[dict[str, dict[str, float]]]()
        for _ in range(rounds):
            one = measured.one()
            found.append(
                {
                    "one": one,
                    "many": measured.many(readers, rate, seconds),
                    "invalidate": measured.invalidate(rate, seconds),
                }
            )
        kinds: dict[str, Any] = {
            kind: {name: median(each[kind][name] for each in found) for name in found[0][kind]} for kind in found[0]
        }
        kinds["wire"] = {name: wire(events, each) for name, each in (("one_row_a_frame", 1), ("full_rate", OWN))}
        return {**kinds, "readers": readers, "rate": rate, "load_average": load}


def main() -> int:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--readers", type=int, default=100)
    parser.add_argument("--rate", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    quiet()
    print(json.dumps(run(options.events, options.rounds, options.readers, options.rate, options.seconds), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
