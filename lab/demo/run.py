"""Runs the demo: starts everything, drives traffic and readers, waits for recovery, rebuilds, and judges."""

from __future__ import annotations

import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from rich.console import Console
from rich.live import Live

from consumers.owner.client import OwnerConnection
from freshet.local.errors import LocalServerError
from lab.demo.catalog_traffic import CatalogDriver
from lab.demo.first_answers import SCHEMA, first_answers
from lab.demo.readers import SHARD, Readers
from lab.demo.row_traffic import RowTraffic, create_tables
from lab.demo.stack import CATALOG, ROWS, Stack
from lab.demo.summary import Findings
from lab.demo.verdict import rebuild_and_verify
from serving.client import ClientError, FreshetClient
from stream.kafka.locations import LocationsReader
from tokens import Vector

log = structlog.get_logger(__name__)

KEYS = 400
WRITERS, WRITER_PAUSE_S = 4, 0.02
FOLLOWERS, DEMANDERS, UNDEMANDING, READER_PAUSE_S = 2, 3, 1, 0.01
TICK_S, PLAIN_EVERY_TICKS = 0.5, 8
DDL_EVERY_S = 15.0
BATCH_INTERVAL_MS = 10
"""Shorter than by default: the traffic is small, and readers ask for what was committed a moment ago."""
QUIET_TIMEOUT_S = 120.0
SAMPLE = 200


class Stopped(BaseException):
    """SIGINT or SIGTERM: stop the traffic in order, then judge what was seen. The argument is the signal's number.

    No `Exception`, since libraries take those for errors of their own: py4j for one of the network.
    """


def run_demo(seconds: float | None, seed: int = 1, say: Any = print) -> Findings:
    """Runs the whole demo with ``seconds`` of traffic; None: until Ctrl-C. Stops everything that it starts.

    A signal before the traffic has begun ends it as any other command.
    """
    findings = Findings(started_s=time.monotonic())
    try:
        _run(findings, seconds, seed, say)
    except Stopped as stopped:
        signal.raise_signal(stopped.args[0])
    return findings


def _run(findings: Findings, seconds: float | None, seed: int, say: Any) -> None:
    with _stopped_by_signals(), tempfile.TemporaryDirectory(prefix="freshet-demo-") as scratch:
        stack = Stack(Path(scratch), overrides={"publisher": {"batch_interval_ms": BATCH_INTERVAL_MS}})
        say(f"starting Kafka and MariaDB in {scratch} …")
        with stack:
            _start(stack, findings, say)
            traffic = RowTraffic(lambda: stack.connect_as_writer(ROWS), ROWS, KEYS, seed)
            readers = Readers(stack, traffic, KEYS, seed)
            catalog = CatalogDriver(stack, seed)
            try:
                _drive(stack, traffic, readers, catalog, findings, seconds)
                _judge(stack, traffic, readers, catalog, findings, seed)
                say("traffic is over; Spark rebuilds both keyspaces from their topics …")
                findings.rebuilds = rebuild_and_verify(stack)
            except Stopped:
                findings.errors.append("interrupted before the verdict")
            except (LocalServerError, ClientError) as error:
                findings.errors.append(f"{error.code}: {error}")


def _start(stack: Stack, findings: Findings, say: Any) -> None:
    with stack.connect(ROWS) as connection:
        create_tables(connection)
        connection.query(SCHEMA)
    CatalogDriver.prepare(stack)
    say("starting source mariadb, source workload, consume, serve …")
    stack.start_roles()
    findings.ready_s = time.monotonic() - findings.started_s
    findings.page = f"{stack.url}/"
    say(f"ready after {findings.ready_s:.1f} s; look at {findings.page} meanwhile")
    answers = first_answers(stack, say)
    if [row.served_from for row in answers[1:]] != ["cache", "cache"] or answers[2].freshness != "fresh":
        findings.errors.append("the cache did not follow the first changes")


def _drive(
    stack: Stack,
    traffic: RowTraffic,
    readers: Readers,
    catalog: CatalogDriver,
    findings: Findings,
    seconds: float | None,
) -> None:
    began = time.monotonic()
    traffic.start(WRITERS, WRITER_PAUSE_S)
    readers.start(FOLLOWERS, DEMANDERS, UNDEMANDING, READER_PAUSE_S)
    catalog.start()
    altered, next_ddl = 0, min(DDL_EVERY_S, (seconds or DDL_EVERY_S) / 2)
    try:
        with _progress(findings) as show, LocationsReader(stack.kafka.cluster) as locations:
            while seconds is None or time.monotonic() - began < seconds:
                time.sleep(TICK_S)
                findings.traffic_s = time.monotonic() - began
                if findings.traffic_s > next_ddl:
                    with stack.connect(ROWS) as connection:
                        traffic.alter(connection, altered)
                    altered, next_ddl = altered + 1, next_ddl + DDL_EVERY_S
                _measure(locations, traffic, readers, catalog, findings)
                show()
                if ended := stack.unexpected_exit():
                    raise LocalServerError(ended)
    except Stopped:
        log.info("stopping the traffic")
    finally:
        findings.traffic_s = time.monotonic() - began
        readers.stop()
        catalog.stop()
        traffic.stop()


def _measure(
    locations: LocationsReader, traffic: RowTraffic, readers: Readers, catalog: CatalogDriver, findings: Findings
) -> None:
    events: dict[str, int] = {}
    lag = 0.0
    for address in {owner.address for name in (ROWS, CATALOG) for owner in locations.owners(name).values()}:
        with OwnerConnection(address) as owner:
            for partition in owner.status().partitions:
                for shard in partition.shards:
                    events[shard.shard] = max(events.get(shard.shard, 0), shard.ordinal)
                    lag = max(lag, shard.lag_seconds)
    findings.events, findings.lag_s, findings.lag_max_s = sum(events.values()), lag, max(lag, findings.lag_max_s)
    findings.transactions, findings.rolled_back, findings.row_changes = (
        traffic.committed,
        traffic.rolled_back,
        traffic.rows,
    )
    findings.catalog_commits = catalog.commits
    findings.answers, findings.refused = readers.counts, readers.refused
    findings.catalog_answers, findings.misses = catalog.counts, readers.misses
    findings.note_times(readers.took_s)


def _judge(
    stack: Stack, traffic: RowTraffic, readers: Readers, catalog: CatalogDriver, findings: Findings, seed: int
) -> None:
    findings.answers, findings.refused = readers.counts.copy(), readers.refused.copy()
    findings.by_default = readers.by_default.copy()
    findings.catalog_answers, findings.misses = catalog.counts.copy(), readers.misses.copy()
    findings.note_times(readers.took_s)
    findings.errors += traffic.errors + readers.errors + catalog.errors
    if readers.unexplained:
        findings.errors.append(f"{readers.unexplained} answers did not say why")
    findings.wrong += [traffic.history.expected(answer) for answer in readers.wrong()]
    findings.wrong += catalog.wrong()
    findings.recovered = recover(stack, traffic, findings, seed)


def recover(stack: Stack, traffic: RowTraffic, findings: Findings, seed: int) -> tuple[int, int]:
    """Reads a sample of keys after the traffic. Returns (keys served fresh from the cache, keys tried)."""
    newest = max((changes[-1][0] for changes in traffic.history.changes.values()), default=0)
    rng = random.Random(f"{seed}/recovery")
    known = sorted(traffic.history.changes)
    sample = rng.sample(known, min(SAMPLE, len(known)))
    served = 0
    with FreshetClient(stack.url) as client:
        session = client.session()
        session.observe(SHARD, f"MariaDB/0-1-{newest}")
        vector = Vector.parse(session.token)
        deadline = time.monotonic() + QUIET_TIMEOUT_S
        for key in sample:
            client.session(str(vector)).get_row(ROWS, *key, max_wait_ms=5000)
        for key in sample:
            while True:
                row = client.session(str(vector)).get_row(ROWS, *key, max_wait_ms=5000)
                if row.served_from == "cache" or time.monotonic() > deadline:
                    break
            version = row.value["version"] if row.found and row.value is not None else None
            truth = traffic.history.changes[key][-1][1]
            served += row.served_from == "cache" and row.freshness == "fresh"
            if version != truth:
                findings.wrong.append(f"{key} has version {version} after the traffic, expected {truth} ({row.why})")
    return served, len(sample)


@contextmanager
def _progress(findings: Findings) -> Iterator[Any]:
    """Gives a function that shows the findings: a live table on a terminal, else a line every few seconds."""
    console = Console()
    if console.is_terminal:
        # A screen of its own is drawn anew as a whole, so that nothing of the table is left where it was resized.
        with Live(console=console, refresh_per_second=4, screen=True) as live:
            yield lambda: live.update(findings.table())
        return
    ticks = 0

    def plain() -> None:
        nonlocal ticks
        ticks += 1
        if ticks % PLAIN_EVERY_TICKS == 0:
            print(findings.line(), flush=True)

    yield plain


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    def stop(number: int, _: Any) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        raise Stopped(number)

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def is_unattended() -> bool:
    """Whether stdout is not a terminal; the demo then ends by itself."""
    return not sys.stdout.isatty()
