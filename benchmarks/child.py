"""Runs one measurement in a separate process: ``python -m benchmarks.child module:function '{"argument": …}'``.

A fresh process has its own heap, caches and librdkafka threads, so measurements don't affect each other. The result is
the last line of stdout, as JSON.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from freshet.signals import write_whole
from stream.kafka.connection import KafkaCluster

ROOT: Final = Path(__file__).resolve().parent.parent
TIMEOUT_S: Final = 600.0


class MeasurementFailed(Exception):
    """A measurement's process failed. The message holds the last lines of its stderr."""


def measure(function: str, /, **arguments: Any) -> dict[str, Any]:
    """Calls ``function`` (``module:name`` of this package) in a new process and returns its result.

    Raises `MeasurementFailed`.
    """
    return measure_within(TIMEOUT_S, function, **arguments)


def measure_within(seconds: float, function: str, /, **arguments: Any) -> dict[str, Any]:
    """As `measure`, for one that may last so long."""
    line = command(function, **arguments)
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False)
    if done.returncode != 0:
        raise MeasurementFailed(f"{function} failed:\n" + "\n".join(done.stderr.splitlines()[-15:]))
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def command(function: str, /, **arguments: Any) -> list[str]:
    """The command line that runs ``function``."""
    return [sys.executable, "-m", "benchmarks.child", function, json.dumps(arguments, default=asdict)]


def in_turn(script: str, against: Path | None, rounds: int) -> dict[str, list[dict[str, float]]]:
    """`in_checkout` of ``script --one``, with the code ``against``, another checkout's, and with this one's in turn.

    Returns the results by whose code it was: ``before`` and ``after``, or ``now``.
    """
    roots = {"before": against.resolve(), "after": ROOT} if against else {"now": ROOT}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in roots}
    for _ in range(rounds):
        for name, root in roots.items():
            found[name].append(in_checkout(root, script, "--one"))
    return found


def in_checkout(root: Path, script: str, *arguments: str) -> dict[str, float]:
    """Runs a script of this checkout in a new process, with the code in ``root``. Returns what it printed last.

    Such a script takes this function from the module when it calls it: the code in ``root`` may have none.
    """
    environment = {**os.environ, "PYTHONPATH": str(root)}
    line = [sys.executable, script, *arguments]
    done = subprocess.run(line, cwd=root, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def quiet() -> None:
    """Logs warnings only, because a log line per batch would be measured too."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


def main(function: str, arguments: str) -> None:
    """Runs the function and prints its result: the entry of the child process."""
    quiet()
    module, _, name = function.partition(":")
    given = json.loads(arguments)
    if "kafka" in given:
        given["kafka"] = KafkaCluster(**given["kafka"])
    result = getattr(importlib.import_module(f"benchmarks.{module}"), name)(**given)
    write_whole()
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
