"""``python -m benchmarks``: measures this machine, prints a table (benchmarks/README.md)."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.child import MeasurementFailed, quiet
from benchmarks.report import document, table
from benchmarks.sections import FULL, ORDER, QUICK, SECTIONS, Bench
from freshet.local.kafka import KafkaServer
from tokens.errors import FreshetError

LATEST: Final = Path(__file__).resolve().parent / "latest.json"
"""The run that is kept: written only if it is named."""
TOGETHER: Final = {"group.initial.rebalance.delay.ms": "1000"}
"""Workers that start together get their partitions at once, as with the 3 s of a broker's own default. With none the
first one may get all, and half of them move when it has folded them."""


def main() -> int:
    """Returns exit code 0 if everything was measured, whether targets were met or not. Raises `MeasurementFailed`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", default=",".join(sorted(SECTIONS)), help="sections, e.g. a,b (default: all)")
    parser.add_argument("--rounds", type=int, help=f"rounds of each section (default: {FULL.rounds})")
    parser.add_argument(
        "--catalog-seconds", type=float, help=f"of traffic in (h) (default: {FULL.catalog_seconds:.0f})"
    )
    parser.add_argument("--catalog-reads", type=int, help=f"a second (default: {FULL.catalog_reads})")
    parser.add_argument("--catalog-writes", type=int, help=f"a second (default: {FULL.catalog_writes})")
    parser.add_argument("--catalog-tables", type=int, help=f"published in (h) (default: {FULL.catalog_tables})")
    parser.add_argument("--catalog-partitions", type=int, help=f"of each (default: {FULL.catalog_partitions})")
    parser.add_argument("--many-keys", type=int, help=f"of (n) (default: {FULL.many_keys})")
    parser.add_argument("--live-transactions", type=int, help=f"of (l) (default: {FULL.live_transactions})")
    parser.add_argument("--quick", action="store_true", help="a small run that only checks that everything works")
    parser.add_argument("--out", type=Path, help=f"where the results go (default: nowhere; {LATEST} is kept)")
    given = parser.parse_args()
    wanted = [section for section in ORDER if section in given.only.split(",")]
    if not wanted or (unknown := set(given.only.split(",")) - SECTIONS.keys()):
        parser.error(f"no such section: {', '.join(sorted(unknown)) if wanted else given.only}")
    sizes = QUICK if given.quick else FULL
    if given.rounds:
        sizes = replace(sizes, rounds=max(1, given.rounds))
    catalog = (f"catalog_{each}" for each in ("seconds", "reads", "writes", "tables", "partitions"))
    for name in (*catalog, "many_keys", "live_transactions"):
        if getattr(given, name) is not None:
            sizes = replace(sizes, **{name: max(1, getattr(given, name))})
    quiet()
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory,
        KafkaServer(Path(directory), quick_start=False, settings=TOGETHER) as kafka,
    ):
        bench = Bench(kafka.cluster, sizes)
        for section in wanted:
            bench.results[section] = SECTIONS[section](bench)
    seconds = time.monotonic() - began
    kept = document(
        bench.results, bench.spins, bench.disturbed, rounds=sizes.rounds, seconds=seconds, quick=given.quick
    )
    print(table(kept))
    if given.out is not None:
        given.out.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"\nwritten to {given.out}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (MeasurementFailed, FreshetError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
