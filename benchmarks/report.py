"""Formats the results: a table for a terminal, and the content of `latest.json`."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import psutil

Result = dict[str, Any]
NAMES: Final = {
    "frames1": "1 row a frame",
    "frames5": "5 rows a frame",
    "frames20": "20 rows a frame",
    "frames100": "100 rows a frame",
    "framesown": "the publisher's own frames",
    "shards4": "own frames of four shards in each partition",
    "unmapped4": "the same, without a map of their keys",
    "skewed": "own frames, skewed keys and deletes",
}
VISIBLE_MS: Final = {"default": 50, "interval_3_ms": 10}
STREAMS_TIMES: Final = {"frames1": 6, "frames20": 10, "framesown": 12}


class TableLine(NamedTuple):
    """One line of the table. ``met``: None if there is no target."""

    what: str
    value: str
    ratio: str = ""
    target: str = ""
    met: bool | None = None


def machine(spins: list[float]) -> Result:
    """Describes the machine; ``spins``: million steps per second of each calibration."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0],
        "spin_msteps_s": round(median(spins), 2) if spins else None,
        "spin_range": [round(min(spins), 2), round(max(spins), 2)] if spins else None,
    }


def document(
    results: dict[str, Result], spins: list[float], disturbed: list[str], *, rounds: int, seconds: float, quick: bool
) -> Result:
    """The content of `latest.json` for a run. ``disturbed``: rounds that say little."""
    return {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "seconds": round(seconds),
        "commit": _commit(),
        "rounds": rounds,
        "quick": quick,
        "disturbed": disturbed,
        "machine": machine(spins),
        "results": results,
        "targets": [
            {"what": line.what, "value": line.value, "target": line.target, "met": line.met}
            for line in lines(results)
            if line.met is not None
        ],
    }


def lines(results: dict[str, Result]) -> Iterator[TableLine]:
    """The table's lines, section by section."""
    for section, found in sorted(results.items()):
        yield from _WRITERS[section](found)


def table(kept: Result) -> str:
    """A `document` as a table."""
    about, shown = kept["machine"], list(lines(kept["results"]))
    widths = [max(len(line[column]) for line in shown) for column in range(4)]  # type: ignore[arg-type]
    marks = {None: "", True: "met", False: "MISSED"}
    rows = [
        f"{line.what:<{widths[0]}}  {line.value:>{widths[1]}}  {line.ratio:<{widths[2]}}  "
        f"{line.target:<{widths[3]}}  {marks[line.met]}".rstrip()
        for line in shown
    ]
    spin = f"spin {about['spin_msteps_s']} M steps/s (from {about['spin_range']})"
    head = f"{about['cpu']}, {about['cores']} cores, Python {about['python']}; {spin}"
    warnings = ["QUICK: it shows that everything works; its figures mean nothing"] if kept["quick"] else []
    warnings += [f"DISTURBED: {each}" for each in kept["disturbed"]]
    return "\n".join([*warnings, head, "", *rows])


def _commit() -> str:
    """The commit of the measured code; "" outside a clone."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")), "?")


def _k(rate: float) -> str:
    return f"{rate / 1000:,.0f}k/s" if rate >= 10_000 else f"{rate:,.0f}/s"


def _ms(found: Result) -> str:
    return f"{found['p50_ms']:.2f} / {found['p99_ms']:.1f} / {found['p999_ms']:.1f} ms"


def _materialize(found: Result) -> Iterator[TableLine]:
    floors = {"frames1": 110_000, "frames20": 200_000, "framesown": 200_000}
    for keyspace, each in found.items():
        rate, floor = each["materialize"]["rows_s"], floors.get(keyspace)
        yield TableLine(
            f"(a) materialize, {NAMES[keyspace]}",
            _k(rate),
            f"{each['of_raw']:.2f} of raw consume ({_k(each['raw_consume']['rows_s'])}), "
            f"{each['materialize']['commits']:.0f} commits",
            f">= {floor // 1000}k/s" if floor else "",
            rate >= floor if floor else None,
        )
        for case, who in (("indexed", "nobody asks by it"), ("asked", "somebody asks by it")):
            if case in each:
                cost = 1 - each[case]["rows_s"] / rate
                what = f"(a) an index, {NAMES[keyspace]}"
                yield TableLine(
                    what, f"{cost:.2f} of the rate", f"{who}: {_k(each[case]['rows_s'])}", "<= 0.3", cost <= 0.3
                )
    if "frames1" in found:
        yield from _published(found)
        share = found["frames1"]["of_raw"]
        yield TableLine("(a) one row a frame, share of raw consume", f"{share:.2f}", "", ">= 0.1", share >= 0.1)


def _published(found: Result) -> Iterator[TableLine]:
    for keyspace in ("frames1", "framesown"):
        yield TableLine(f"(a) published, {NAMES[keyspace]}", _k(found[keyspace]["published_rows_s"]))
    for keyspace, what in (("shards4", "four shards"), ("unmapped4", "four shards without a map")):
        if keyspace not in found:  # of an older run
            continue
        share = found[keyspace]["materialize"]["rows_s"] / found["framesown"]["materialize"]["rows_s"]
        yield TableLine(f"(a) {what}, share of one", f"{share:.2f}", "", ">= 0.7", share >= 0.7)


def _parts(found: Result) -> Iterator[TableLine]:
    for keyspace, each in found.items():
        if keyspace == "framing":
            yield TableLine("(b) frame and encode, publisher's limits", _k(each["framing_rows_s"]))
            continue
        name = NAMES[keyspace]
        for key, what in (
            ("decode_rows_s", "decode (general)"),
            ("fold_rows_s", "fold of decoded frames"),
            ("decode_and_fold_rows_s", "decode and fold, as it is done"),
            ("store_write_rows_s", "store write"),
        ):
            yield TableLine(f"(b) {what}, {name}", _k(each[key]))


def _reads(found: Result) -> Iterator[TableLine]:
    names = {
        "owner": "at the owner",
        "http": "over HTTP",
        "owner_while_folding": "at the owner, 5k writes/s beside",
        "http_while_folding": "over HTTP, 5k writes/s beside",
    }
    for key, each in found.items():
        if key == "batches":
            rate = each["front_rows_s"]
            owners = f"the owner's: {_k(each['owner_rows_s'])}"
            yield TableLine(
                "(c) batches of 100, rows by the front's processor time", _k(rate), owners, ">= 100k/s", rate >= 100_000
            )
            continue
        most = f"at most {_k(each['max_reads_s'])}" if "max_reads_s" in each else ""
        yield TableLine(f"(c) reads {names[key]}, {each['rate']:,.0f}/s: p50/p99/p99.9", _ms(each), most)


def _latency(found: Result) -> Iterator[TableLine]:
    for key, each in found.items():
        if key == "source":
            continue
        what = f"(d) input to visible, {each['rate']:,.0f}/s, batches of {each['batch_interval_ms']:.0f} ms"
        cost = f"{each['frames_s']:,.0f} frames, {each['kafka_transactions_s']:,.0f} Kafka transactions a second"
        most = VISIBLE_MS.get(key)
        yield TableLine(
            f"{what}: p50/p99/p99.9",
            _ms(each),
            cost,
            f"p99 < {most} ms" if most else "",
            each["p99_ms"] < most if most else None,
        )
    if "source" in found:
        each = found["source"]
        yield TableLine(
            "(d) MariaDB source, single-row transactions",
            _k(each["single_row_transactions_s"]),
            f"{_k(each['single_row_transactions_s_to_kafka'])} into Kafka",
        )
        yield TableLine(
            "(d) MariaDB source, rows of large transactions",
            _k(each["rows_in_big_transactions_s"]),
            f"{_k(each['rows_in_big_transactions_s_to_kafka'])} into Kafka",
        )


def _rebuild(found: Result) -> Iterator[TableLine]:
    for keyspace, each in found.items():
        share = f"{each['of_materialize']:.2f} of (a)" if "of_materialize" in each else ""
        yield TableLine(f"(e) Spark rebuild, {NAMES[keyspace]}", _k(each["events_s"]), share)


def _restart(found: Result) -> Iterator[TableLine]:
    entries = f"{found['entries']:,.0f} entries"
    clean, killed, redone = found["clean_s"], found["killed_s"], found["messages_redone"]
    yield TableLine(f"(f) restart to ready, {entries}", f"{clean:.2f} s", "", "< 3 s", clean < 3)
    yield TableLine(
        f"(f) the same after kill -9, {redone:.0f} messages redone",
        f"{killed:.2f} s",
        "",
        "< 3 s, 0 redone",
        killed < 3 and not redone,
    )
    yield TableLine(
        f"(f) consumer's memory, {entries}",
        f"{found['rss_mb_after_building']:.0f} MB",
        f"{found['rss_mb_after_restart']:.0f} MB after a restart",
    )


def _workers(found: Result) -> Iterator[TableLine]:
    for case, each in found.items():
        keyspace, _, count = case.partition("/")
        one = found[f"{keyspace}/1"]["rows_s"]
        what = f"(g) catch up, {count} worker{'s' * (count != '1')}, {NAMES[keyspace]}"
        yield TableLine(
            what, _k(each["rows_s"]), f"{each['rows_s'] / one:.2f} of one, {each['cpu_s']:.1f} s of processor"
        )


def _beside_streams(found: Result) -> Iterator[TableLine]:
    one = found["streams/1"]["rows_s"]
    for case, each in found.items():
        keyspace, _, several = case.partition("/")
        cost = f"{each['cpu_s']:.0f} s of processor"
        if keyspace == "streams":
            what = f"(k) Kafka Streams, exactly once, {several} thread{'s' * (several != '1')}"
            yield TableLine(what, _k(each["rows_s"]), f"{cost}, {each['rss_mb']:.0f} MB")
            continue
        ratio, wanted = each["rows_s"] / one, STREAMS_TIMES.get(keyspace)
        yield TableLine(
            f"(k) {f'catch up, {several} workers' if several else 'materialize'}, {NAMES[keyspace]}",
            _k(each["rows_s"]),
            f"{ratio:.1f} times Kafka Streams with one thread; {cost}",
            f">= {wanted} times" if wanted else "",
            ratio >= wanted if wanted else None,
        )


def _live(found: Result) -> Iterator[TableLine]:
    rate = found["transactions_s"]
    cost = f"{found['source_cpu_us']:.1f} and {found['consumer_cpu_us']:.1f} µs of source and consumer"
    what = "(l) MariaDB's binlog to visible, single-row transactions"
    yield TableLine(what, _k(rate), cost, ">= 100k/s", rate >= 100_000)


def _distinct_keys(found: Result) -> Iterator[TableLine]:
    for name in ("few", "many"):
        each = found[name]
        what = f"(n) materialize, {found['events']:,} events of {found[f'{name}_keys']:,} keys"
        yield TableLine(what, _k(each["rows_s"]), f"{each['commits']:.0f} commits, {each['rss_mb']:,.0f} MB")
    share = found["many"]["rows_s"] / found["few"]["rows_s"]
    yield TableLine("(n) many keys, share of few", f"{share:.2f}", "", ">= 0.85", share >= 0.85)


def _catalog(found: Result) -> Iterator[TableLine]:
    load, times = found["load"], found["load"]["times"]
    rates = f"{load['reads_s']:.0f} reads/s, {load['writes'] / load['seconds']:.1f} writes/s"
    wrong, hits = load["wrong"], load["hit_ratio"]
    yield TableLine(f"(h) wrong answers of {load['reads']:,}, {rates}", str(wrong), "", "0", not wrong)
    yield TableLine("(h) answered by the cache", f"{hits:.3f}")
    for kind in ("table", "partitions", "statistics", "constraints"):
        directly = f"the metastore itself: {_ms(times[f'{kind}_directly'])}"
        yield TableLine(f"(h) {kind}: p50/p99/p99.9", _ms(times[kind]), directly)
    yield TableLine("(h) a transaction's lists, past the cache: p50/p99/p99.9", _ms(times["lists"]))
    if "commit_to_cache" in times:
        each = times["commit_to_cache"]
        yield TableLine("(h) COMMIT to the cache's answer: p50/p99/p99.9", _ms(each), f"{each['count']} of them")
    each, direct = found["bootstrap"], found["direct"]
    yield TableLine(
        f"(h) first publication, {each['tables']:,} tables, {each['partitions']:,} partitions",
        f"{each['partitions_s']:,.0f} partitions/s",
        f"{each['partitions_s'] / direct['partitions_s']:.2f} of reading them directly, {each['seconds']:.0f} s, "
        f"tables after {each['tables_s']:.0f} s",
    )
    memory = each["memory_mb"]
    yield TableLine("(h) the source's memory then", f"{memory:,.0f} MB", "", "< 1,500 MB", memory < 1_500)


def _whole_tables(found: Result) -> Iterator[TableLine]:
    each, asked = found["backfill"], found["lookups"]
    rate, visible, restart = each["rows_s"], each["visible"], each["restart_s"]
    beside = f"{each['writes_s']:,.0f} transactions/s beside; only read and decoded: {_k(each['alone'][0]['rows_s'])}"
    what = f"(w) backfill of {each['rows']:,} rows"
    yield TableLine(what, _k(rate), beside, ">= 60k/s", rate >= 60_000)
    if visible:
        soon = visible["p99_ms"] < 1_000
        yield TableLine(
            "(w) another table's COMMIT to the cache's answer: p50/p99/p99.9", _ms(visible), "", "p99 < 1 s", soon
        )
    most = max(each["source_mb"], each["consumer_mb"])
    cost = f"source {each['source_mb']:,.0f}, consumer {each['consumer_mb']:,.0f} MB"
    yield TableLine("(w) memory, at most", f"{most:,.0f} MB", cost, "< 1,000 MB", most < 1_000)
    yield TableLine(
        "(w) restart to ready with it", f"{restart:.2f} s", f"{each['restarted_mb']:,.0f} MB", "< 3 s", restart < 3
    )
    yield from _found(each["found"])
    ratio, scan = asked["index"] / asked["key"], asked["scan p99"] / 1e3
    beside = f"{asked['key']:.0f} and {asked['index']:.0f} µs of processor"
    yield TableLine("(w) at the owner, by an index, by key = 1", f"{ratio:.2f}", beside, "<= 1.5", ratio <= 1.5)
    yield TableLine("(w) at the owner, 100 rows by a prefix: p99", f"{scan:.2f} ms", "", "< 5 ms", scan < 5)


def _found(found: Result) -> Iterator[TableLine]:
    for kind, name in (("key", "by its key"), ("unique", "by a unique column"), ("prefix", "100 rows by a prefix")):
        each, is_scan = found[kind], kind == "prefix"
        cost = f"{each['front_us']:.0f} and {each['owner_us']:.0f} µs of front and owner"
        target, is_met = ("p99 < 5 ms", each["p99_ms"] < 5) if is_scan else ("", None)
        yield TableLine(f"(w) over HTTP, {name}: p50/p99/p99.9", _ms(each), cost, target, is_met)
    ratio = found["unique"]["p50_ms"] / found["key"]["p50_ms"]
    yield TableLine("(w) over HTTP, by a unique column, by key = 1", f"{ratio:.2f}", "", "<= 1.5", ratio <= 1.5)


_WRITERS: Final = {
    "a": _materialize,
    "b": _parts,
    "c": _reads,
    "d": _latency,
    "e": _rebuild,
    "f": _restart,
    "g": _workers,
    "h": _catalog,
    "k": _beside_streams,
    "l": _live,
    "n": _distinct_keys,
    "w": _whole_tables,
}
