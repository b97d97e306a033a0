"""``python -m lab.cluster``: a random schedule of faults, drains and additions against nodes on real servers.

    python -m lab.cluster [--minutes 5] [--seed N] [--nodes 5] [--upgrade] [--target NAME …] [--kind NAME …] [--json]
        [--keep DIR]

The same seed gives the same schedule. `--target` and `--kind` keep only some of it, to make a failing run smaller. The
exit code is 1 if the run did not pass (docs/internals/faults.md).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from freshet.logs import configure_logs
from lab.cluster.rig import SOURCE, node_names, targets_of
from lab.cluster.run import ClusterFindings, run_cluster
from lab.faults.schedule import Fault, schedule

GAP_S: Final = 9.0
"""Mean time between two faults of the whole cluster: long enough that something is left which no fault excuses."""


def cluster_schedule(seed: int, seconds: float, targets: Mapping[str, Sequence[str]], gap_s: float) -> list[Fault]:
    """The faults of these targets, ``gap_s`` apart in the mean, whatever the number of targets."""
    return schedule(seed, seconds, tuple(targets), gap_s * len(targets), targets)


def upgrade_schedule(seconds: float, nodes: int) -> list[Fault]:
    """A rolling upgrade in a run of so many seconds: one process after the other, the source last."""
    roles = [*node_names(nodes), SOURCE]
    return [
        Fault(round(seconds * (number + 0.5) / (len(roles) + 1), 3), role, "upgrade", 0.0, 0.0)
        for number, role in enumerate(roles)
    ]


def main(arguments: list[str] | None = None) -> int:
    """Runs one schedule. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m lab.cluster", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--nodes", type=int, default=5, help="nodes that run, one of them a follower (at least 3)")
    parser.add_argument("--upgrade", action="store_true", help="begin with the kept version, and replace it")
    parser.add_argument("--target", action="append", help="break only this: node-0, follower, '>node-0', kafka …")
    parser.add_argument("--kind", action="append", help="only faults of this kind: kill, pause, drain, hole …")
    parser.add_argument("--gap", type=float, default=GAP_S, help="mean seconds between two faults")
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    parser.add_argument("--keep", type=Path, help="work in this directory and leave its logs there")
    chosen = parser.parse_args(arguments)
    known = targets_of(chosen.nodes)
    targets = {
        name: kept
        for name in chosen.target or known
        if (kept := [kind for kind in known[name] if not chosen.kind or kind in chosen.kind])
    }
    configure_logs(level="error")  # outages are expected here

    def say(text: str) -> None:
        print(text, file=sys.stderr if chosen.json else sys.stdout, flush=True)

    seconds = chosen.minutes * 60
    faults = cluster_schedule(chosen.seed, seconds, targets, chosen.gap)
    faults += upgrade_schedule(seconds, chosen.nodes) if chosen.upgrade else []
    findings = run_cluster(seconds, chosen.seed, say, faults=faults, nodes=chosen.nodes, directory=chosen.keep)
    print(json.dumps(findings.as_json()) if chosen.json else summary(findings))
    return 0 if findings.passed else 1


def summary(findings: ClusterFindings) -> str:
    """The findings in some lines."""
    found, kinds = findings.available, ", ".join(f"{count} {name}" for name, count in sorted(findings.faults.items()))
    return "\n".join(
        [
            "",
            f"seed          {findings.seed}",
            f"faults        {sum(findings.faults.values())}: {kinds}",
            "recorded      {} commits and {} reads of rows".format(*findings.recorded),
            f"answers       {dict(sorted(findings.answers.items()))}; refused {dict(findings.refused)}",
            f"calm reads    {found.reads}, {found.unanswered} not answered, the longest {found.slowest_s:.2f} s",
            f"silence       {found.silent_s:.2f} s at most without a fresh answer",
            *(
                f"kill          {name}: refused until {refused_s:.2f} s after it, longest answer {slowest_s:.2f} s"
                for name, refused_s, slowest_s in findings.kills
            ),
            f"caught up     {findings.caught_up_s:.1f} s after the last fault",
            "recovered     {} of {} keys come from the cache".format(*findings.recovered),
            *(f"WRONG         {each}" for each in findings.wrong),
            *(f"error         {each}" for each in findings.errors),
            "passed" if findings.passed else "NOT PASSED",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
