"""``make soak``: runs real servers under a seeded schedule of faults for a long time, then judges the run.

    python -m benchmarks.soak [--minutes 30] [--seed N] [--target NAME …] [--consumers 1|2] [--json] [--keep DIR]

SOAK_MINUTES and SOAK_SEED set the defaults. The same seed gives the same schedule. `--target` keeps only some of its
timelines, to make a failing run smaller. The exit code is 1 if the run did not pass.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from freshet.logs import configure_logs
from lab.faults.run import FaultFindings, run_faults
from lab.faults.schedule import FAULTS, GAP_S, SECOND_CONSUMER, schedule

MINUTES = 30.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the soak test. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=float(os.environ.get("SOAK_MINUTES", MINUTES)))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("SOAK_SEED", time.time())))
    parser.add_argument(
        "--target", action="append", choices=sorted(FAULTS | SECOND_CONSUMER), help="inject only faults of this target"
    )
    parser.add_argument("--gap", type=float, default=GAP_S, help="mean seconds between a target's faults")
    parser.add_argument("--consumers", type=int, choices=(1, 2), default=2, help="processes that share the partitions")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--keep", type=Path, help="work in this directory and leave its logs there")
    chosen = parser.parse_args(arguments)

    targets = chosen.target or tuple(FAULTS | SECOND_CONSUMER if chosen.consumers == 2 else FAULTS)
    configure_logs(level="error")  # outages are expected here

    def say(text: str) -> None:
        print(text, file=sys.stderr if chosen.json else sys.stdout, flush=True)

    findings = run_faults(
        chosen.minutes * 60,
        chosen.seed,
        say,
        faults=schedule(chosen.seed, chosen.minutes * 60, targets, chosen.gap),
        consumers=chosen.consumers,
        directory=chosen.keep,
    )
    print(json.dumps(findings.as_json()) if chosen.json else summary(findings))
    return 0 if findings.passed else 1


def summary(findings: FaultFindings) -> str:
    """The demo's summary, preceded by the faults and the recovery."""
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(findings.faults.items()))
    recovered, tables = findings.catalog_recovered
    return "\n".join(
        [
            "",
            f"seed                {findings.seed}",
            f"faults              {sum(findings.faults.values())}: {kinds}",
            f"disk under stores   {findings.disk}",
            f"wall clocks         {findings.clocks}",
            f"commits in doubt    {findings.in_doubt} took place although their answer was lost",
            "recorded            {} commits and {} reads of rows".format(*findings.recorded),
            f"caught up           {findings.caught_up_s:.1f} s after the last fault",
            f"catalog recovered   {recovered} of {tables} tables, after the last fault and one read",
            findings.summary().lstrip("\n"),
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
