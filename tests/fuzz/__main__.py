"""``python -m tests.fuzz --target NAME --seed N --count N``: each target in a process with a memory limit."""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import sys
from dataclasses import asdict
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog

from tests.fuzz.engine import Target, run
from tests.fuzz.targets import TARGETS

MEMORY_MB = 1_024
"""Memory that a target may map in addition to the process's memory at its start."""
PATIENCE_S = 60.0
"""How long to wait for a target beyond its deadlines: hanging native code does not handle signals."""


def main() -> int:
    """Runs targets. Returns exit code 1 if one misbehaved."""
    options = _options()
    chosen = [target for target in TARGETS if options.target in ("all", target.name)]
    if options.list or not chosen:
        print("\n".join(f"{target.name:<16} {target.what}" for target in TARGETS))
        return 0 if options.list else 2
    failed = 0
    for target in chosen:
        told = _in_child(target, options)
        failed += bool(told["failure"])
        print(json.dumps(told) if options.json else _line(told), flush=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--target", default="all", help="a target's name, or all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=2_000, help="number of inputs (slow targets run a part of them)")
    parser.add_argument("--skip", type=int, default=0, help="number of the first input")
    parser.add_argument("--seconds", type=float, default=None, help="time limit of each target")
    parser.add_argument("--memory-mb", type=int, default=MEMORY_MB)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--list", action="store_true", help="list the targets")
    return parser.parse_args()


def _in_child(target: Target, options: argparse.Namespace) -> dict[str, Any]:
    """Runs one target in a forked process, so that a crash or a hang does not end this one."""
    context = get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    count = options.count if options.count == 1 else max(1, int(options.count * target.weight))
    child = context.Process(target=_child, args=(theirs, target, options, count))
    child.start()
    theirs.close()
    patience_s = PATIENCE_S + min(count / 10, 2 * options.seconds if options.seconds else 10**6)
    told: dict[str, Any] | None = None
    try:
        if ours.poll(patience_s):
            told = ours.recv()
    except EOFError:
        pass
    if told is None and child.is_alive():
        child.kill()
    child.join()
    if told is None:
        why = f"the process exited with {child.exitcode} and sent no result"
        told = {"target": target.name, "executions": 0, "seconds": 0.0, "memory_mb": 0, "rate": 0.0, "failure": why}
    return told


def _child(pipe: Connection, target: Target, options: argparse.Namespace, count: int) -> None:
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    limit = mapped + (options.memory_mb << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    outcome = run(target, seed=options.seed, count=count, skip=options.skip, seconds=options.seconds)
    failure = str(outcome.failure) if outcome.failure else ""
    pipe.send(asdict(outcome) | {"rate": outcome.rate, "failure": failure})
    pipe.close()


def _line(told: dict[str, Any]) -> str:
    line = (
        f"{told['target']:<16} {told['executions']:>9,} executions  {told['rate']:>9,.0f}/s  "
        f"{told['seconds']:>7.1f} s  {told['memory_mb']:>5} MB  {'FAILED' if told['failure'] else 'ok'}"
    )
    return f"{line}\n{told['failure']}" if told["failure"] else line


if __name__ == "__main__":
    sys.exit(main())
