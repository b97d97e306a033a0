"""The sections of the benchmark: which measurements run, in which order, and how often. Rounds are interleaved.

Each round runs every case once, between two spin calibrations. The result is the median over the rounds.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, Final

from benchmarks import catalog, restart, streams
from benchmarks.child import MeasurementFailed, measure, measure_within
from benchmarks.spin import spin
from benchmarks.topics import SHAPES
from benchmarks.workers import COUNTS
from stream.kafka.connection import KafkaCluster

Result = dict[str, Any]
INDEXED: Final = ("frames1", "framesown")
"""Topics of (a) that are also materialized with an index, of a column that has another value in each row."""
INDEX_CASES: Final = {"indexed": False, "asked": True}
"""Whether somebody looks for rows by it meanwhile."""
BACKFILL_WRITES: Final = 2_000
"""Transactions a second on another table meanwhile."""
INTERVALS_MS: Final = {"default": None, "interval_10_ms": 10, "interval_3_ms": 3}
"""Batch intervals of (d)."""
LONG_S: Final = 3_600.0
"""How long what handles many events may last on a busy machine."""
SPINS_APART: Final = 0.1
"""Share by which the spins around a round may differ."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The size of a run. ``seconds``: of each fixed-rate measurement; ``rate``: events per second."""

    rounds: int
    keys: int
    events: int
    entries: int
    seconds: float
    warm_up_s: float = 90.0
    """How long the broker gets events as in (d) before: it compiles its own code for so long."""
    rate: int = 5_000
    reads: tuple[tuple[str, int], ...] = (("owner", 5_000), ("http", 1_000))
    source_transactions: int = 20_000
    source_rows: int = 300_000
    catalog_seconds: float = 300.0
    catalog_reads: int = 200
    catalog_writes: int = 5
    catalog_tables: int = 20_000
    catalog_partitions: int = 10
    fact_partitions: int = 100
    whole_rows: int = 1_000_000
    many_keys: int = 10_000_000
    live_transactions: int = 500_000
    live_warm_up: int = 3
    quick: bool = False


FULL: Final = Sizes(rounds=5, keys=200_000, events=2_000_000, entries=1_000_000, seconds=8.0)
QUICK: Final = Sizes(
    rounds=1,
    keys=5_000,
    events=20_000,
    entries=20_000,
    seconds=2.0,
    warm_up_s=1.0,
    reads=(("owner", 1_000), ("http", 200)),
    source_transactions=2_000,
    source_rows=20_000,
    catalog_seconds=5.0,
    catalog_tables=20,
    fact_partitions=5,
    whole_rows=20_000,
    many_keys=20_000,
    live_transactions=5_000,
    live_warm_up=0,
    quick=True,
)


@dataclass(slots=True)
class Bench:
    """One run: the broker, the sizes, and the topics, results and spins so far."""

    kafka: KafkaCluster
    sizes: Sizes
    results: dict[str, Result] = field(default_factory=dict)
    spins: list[float] = field(default_factory=list)
    disturbed: list[str] = field(default_factory=list)
    """Rounds before and after which the machine was not equally fast."""
    _made: set[str] = field(default_factory=set)
    _published: dict[str, Result] = field(default_factory=dict)

    def say(self, text: str) -> None:
        """Prints progress to stderr."""
        print(text, file=sys.stderr, flush=True)

    def child(self, function: str, **arguments: Any) -> Result:
        """Runs one measurement against this run's broker, in a separate process."""
        return measure(function, kafka=self.kafka, **arguments)

    def topic(self, keyspace: str) -> str:
        """A keyspace of `SHAPES`, filled on first use."""
        if keyspace not in self._made:
            self.say(f"filling {keyspace}: {self.sizes.events} events")
            found = self.child("topics:fill", keyspace=keyspace, events=self.sizes.events, keys=self.sizes.keys)
            self._published[keyspace] = found
            self._made.add(keyspace)
        return keyspace

    def published(self, keyspace: str) -> Result:
        """The publisher's figures for a topic made by `topic`."""
        return self._published[keyspace]

    def each_key_once(self) -> str:
        """The keyspace with `Sizes.entries` entries, filled on first use."""
        if restart.KEYSPACE not in self._made:
            self.say(f"filling {restart.KEYSPACE}: {self.sizes.entries} entries")
            self.child("topics:fill_once_each", keyspace=restart.KEYSPACE, keys=self.sizes.entries)
            self._made.add(restart.KEYSPACE)
        return restart.KEYSPACE

    def note_spins(self, what: str, before: float, after: float) -> None:
        """Keeps the calibrations around a round, and whether it was disturbed."""
        self.spins += [before, after]
        if abs(before - after) > SPINS_APART * max(before, after):
            self.disturbed.append(f"{what}: spin {before:.1f} before, {after:.1f} after")

    def rounds(self, name: str, cases: dict[str, Callable[[], Result]], count: int | None = None) -> Result:
        """Runs all cases ``count`` times, interleaved. Returns case → `medians`."""
        seen: dict[str, list[Result]] = defaultdict(list)
        total, began = count or self.sizes.rounds, perf_counter()
        for number in range(1, total + 1):
            before = spin()
            for case, run in cases.items():
                seen[case].append(run())
            after = spin()
            what = f"({name}) round {number} of {total}"
            left_s = (perf_counter() - began) / number * (total - number)
            self.note_spins(what, before, after)
            self.say(f"{what}: spin {before:.1f} before, {after:.1f} after; about {left_s:.0f} s left of ({name})")
        return {case: medians(found) for case, found in seen.items()}


def medians(found: list[Result]) -> Result:
    """The median of each number over the rounds. ``all`` holds every round's rates and times."""
    result: Result = {}
    for key, value in found[0].items():
        if isinstance(value, dict):
            result[key] = medians([each[key] for each in found])
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            result[key] = median(each[key] for each in found)
            if key.endswith(("_s", "_ms")):
                result.setdefault("all", {})[key] = [each[key] for each in found]
        else:
            result[key] = value
    return result


def materialize(bench: Bench) -> Result:
    """(a) Materialize and raw consume of the same topics."""
    cases: dict[str, Callable[[], Result]] = {}
    for keyspace in SHAPES:
        bench.topic(keyspace)
        for case in ("raw_consume", "materialize"):
            cases[f"{keyspace}/{case}"] = _materialize_case(bench, case, keyspace)
        if keyspace in INDEXED:
            for case, is_asked in INDEX_CASES.items():
                more: dict[str, Any] = {"indexed": "version", "asked": is_asked}
                cases[f"{keyspace}/{case}"] = _materialize_case(bench, "materialize", keyspace, **more)
    found = bench.rounds("a", cases)
    result: Result = {}
    for keyspace, shape in SHAPES.items():
        folded, raw = found[f"{keyspace}/materialize"], found[f"{keyspace}/raw_consume"]
        published = bench.published(keyspace)
        if folded["rows_s"] > raw["rows_s"] and not bench.sizes.quick:
            raise MeasurementFailed(f"{keyspace}: nobody can fold faster than read, so the run is wrong")
        result[keyspace] = {
            "rows_a_frame": shape.rows_a_frame or bench.sizes.events / max(1, folded["messages"]),
            "materialize": folded,
            "raw_consume": raw,
            "of_raw": folded["rows_s"] / raw["rows_s"],
            "published_rows_s": published["rows_s"],
        }
        if keyspace in INDEXED:
            result[keyspace] |= {case: found[f"{keyspace}/{case}"] for case in INDEX_CASES}
    return result


def _materialize_case(bench: Bench, case: str, keyspace: str, **more: Any) -> Callable[[], Result]:
    return lambda: bench.child(f"materialize:{case}", keyspace=keyspace, events=bench.sizes.events, **more)


def parts(bench: Bench) -> Result:
    """(b) Decode, fold and store write alone, and framing."""
    cases: dict[str, Callable[[], Result]] = {}
    for keyspace in ("frames1", "frames20", "framesown"):
        bench.topic(keyspace)
        cases[keyspace] = _parts_case(bench, keyspace)
    cases["framing"] = lambda: measure("parts:framing", rows=bench.sizes.events // 4)
    return bench.rounds("b", cases, min(3, bench.sizes.rounds))


def _parts_case(bench: Bench, keyspace: str) -> Callable[[], Result]:
    return lambda: bench.child("parts:parts", keyspace=keyspace)


def reads(bench: Bench) -> Result:
    """(c) Reads at the owner and over HTTP."""
    keyspace, sizes = bench.each_key_once(), bench.sizes

    def run() -> Result:
        return bench.child(
            "reads:reads",
            keyspace=keyspace,
            keys=sizes.entries,
            seconds=min(5.0, sizes.seconds),
            rates=dict(sizes.reads),
            writes=sizes.rate,
        )

    found: Result = bench.rounds("c", {"reads": run}, min(3, sizes.rounds))["reads"]
    return found


def latency(bench: Bench) -> Result:
    """(d) Time from the publisher's input to visible, and the source's own rate."""
    sizes = bench.sizes

    def run(interval: int | None, seconds: float = sizes.seconds) -> Callable[[], Result]:
        return lambda: bench.child("latency:latency", rate=sizes.rate, seconds=seconds, batch_interval_ms=interval)

    cases = {name: run(interval) for name, interval in INTERVALS_MS.items()}
    bench.say(f"(d) warming the broker up for {sizes.warm_up_s:.0f} s")
    run(INTERVALS_MS["interval_3_ms"], sizes.warm_up_s)()
    found = bench.rounds("d", cases, min(3, sizes.rounds))
    bench.say("(d) the MariaDB source alone")
    size = {"transactions": sizes.source_transactions, "rows": sizes.source_rows}
    found["source"] = bench.child("source:source", rounds=min(3, sizes.rounds), **size)
    return found


def live(bench: Bench) -> Result:
    """(l) From MariaDB's binlog to visible, at full rate."""
    sizes, before = bench.sizes, spin()
    bench.say(f"(l) a binlog of {sizes.live_transactions} transactions, read in {min(3, sizes.rounds)} rounds")
    size = {"transactions": sizes.live_transactions, "rounds": min(3, sizes.rounds), "warm_up": sizes.live_warm_up}
    found = measure_within(LONG_S, "live:live", kafka=bench.kafka, **size)
    bench.note_spins("(l)", before, spin())
    return medians(found["rounds"])


def distinct_keys(bench: Bench) -> Result:
    """(n) As many events of few keys and of many, materialized in the same rounds."""
    sizes = bench.sizes
    events = sizes.many_keys + sizes.events
    cases: dict[str, Callable[[], Result]] = {}
    for name, keys in (("few", sizes.keys), ("many", sizes.many_keys)):
        keyspace = f"{name}keys"
        bench.say(f"filling {keyspace}: {events} events of {keys} keys")
        measure_within(LONG_S, "topics:fill_distinct", kafka=bench.kafka, keyspace=keyspace, events=events, keys=keys)
        cases[name] = _distinct_case(bench, keyspace, events)
    found = bench.rounds("n", cases, min(3, sizes.rounds))
    return {"few_keys": sizes.keys, "many_keys": sizes.many_keys, "events": events, **found}


def _distinct_case(bench: Bench, keyspace: str, events: int) -> Callable[[], Result]:
    more: Result = {"kafka": bench.kafka, "keyspace": keyspace, "events": events}
    return lambda: measure_within(LONG_S, "materialize:materialize", **more)


def rebuild(bench: Bench) -> Result:
    """(e) The Spark rebuild, compared with (a)."""
    keyspaces = [bench.topic("frames1"), bench.topic("framesown")]
    count = min(3, bench.sizes.rounds)
    before = spin()
    found = bench.child("spark:rebuilds", keyspaces=keyspaces, events=bench.sizes.events, rounds=count)
    after = spin()
    bench.note_spins("(e)", before, after)
    bench.say(f"(e) {count} rebuilds of each: spin {before:.1f} before, {after:.1f} after")
    result: Result = {}
    for keyspace, rates in found["events_s"].items():
        result[keyspace] = {"events_s": median(rates), "all": {"events_s": rates}}
        measured = bench.results.get("a", {}).get(keyspace)
        if measured is not None:
            result[keyspace]["of_materialize"] = median(rates) / measured["materialize"]["rows_s"]
    return result


def restarting(bench: Bench) -> Result:
    """(f) Time from restart to ready, and memory."""
    bench.each_key_once()
    found = bench.child("restart:restart", rounds=bench.sizes.rounds)
    bench.spins += found["spins"]
    bench.say(f"(f) {bench.sizes.rounds} restarts of each kind: spin {median(found['spins']):.1f}")
    return found


def workers(bench: Bench) -> Result:
    """(g) Catching up with one and with two workers."""
    cases: dict[str, Callable[[], Result]] = {}
    for keyspace in ("frames1", "framesown"):
        bench.topic(keyspace)
        for count in COUNTS:
            cases[f"{keyspace}/{count}"] = _workers_case(bench, keyspace, count)
    return bench.rounds("g", cases, min(3, bench.sizes.rounds))


def _workers_case(bench: Bench, keyspace: str, count: int) -> Callable[[], Result]:
    return lambda: bench.child("workers:catch_up", keyspace=keyspace, events=bench.sizes.events, workers=count)


def beside_streams(bench: Bench) -> Result:
    """(k) One process, and two workers, beside Kafka Streams, exactly once, in the same rounds."""
    bench.say(f"filling {streams.KEYSPACE}: {bench.sizes.events} events")
    bench.child("streams:fill", events=bench.sizes.events, keys=bench.sizes.keys)
    cases: dict[str, Callable[[], Result]] = {
        f"streams/{count}": _streams_case(bench, count) for count in streams.THREADS
    }
    for keyspace in ("frames1", "frames20", "framesown", "shards4"):
        bench.topic(keyspace)
        cases[keyspace] = _materialize_case(bench, "materialize", keyspace)
        cases[f"{keyspace}/2"] = _workers_case(bench, keyspace, 2)
    return bench.rounds("k", cases, min(3, bench.sizes.rounds))


def _streams_case(bench: Bench, threads: int) -> Callable[[], Result]:
    return lambda: bench.child("streams:streams", events=bench.sizes.events, threads=threads)


def cached_catalog(bench: Bench) -> Result:
    """(h) The catalog cache under load, and a catalog's first publication; once, however many rounds there are."""
    sizes, before = bench.sizes, spin()
    found = catalog.measured(
        bench.kafka,
        bench.say,
        seconds=sizes.catalog_seconds,
        reads=sizes.catalog_reads,
        writes=sizes.catalog_writes,
        fact_partitions=sizes.fact_partitions,
        tables=sizes.catalog_tables,
        partitions=sizes.catalog_partitions,
    )
    bench.note_spins("(h)", before, spin())
    return found


def whole_tables(bench: Bench) -> Result:
    """(w) A table that was there before becomes whole beside other writes, once; and what an index makes of reads."""
    before = spin()
    found = bench.child("backfill:measured", rows=bench.sizes.whole_rows, writes=BACKFILL_WRITES)
    bench.note_spins("(w) backfill", before, spin())
    asked = bench.rounds("w", {"lookups": lambda: measure("lookups:measure")}, min(3, bench.sizes.rounds))
    return {"backfill": found, **asked}


SECTIONS: Final[dict[str, Callable[[Bench], Result]]] = {
    "a": materialize,
    "b": parts,
    "c": reads,
    "d": latency,
    "e": rebuild,
    "f": restarting,
    "g": workers,
    "h": cached_catalog,
    "k": beside_streams,
    "l": live,
    "n": distinct_keys,
    "w": whole_tables,
}
ORDER: Final = ("a", "b", "k", "n", "g", "f", "c", "d", "l", "e", "w", "h")
"""(f) runs before (c), because the writes of (c) grow the topic that (f) restarts on."""
