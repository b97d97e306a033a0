"""Formats the results of histories and of hunts for planted bugs, as lines of text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from lab.simulation.campaign import HuntResult
from lab.simulation.engine import Report
from lab.simulation.worlds import all_worlds

EMPTY_SHOWN: Final = 12


def report_lines(report: Report) -> list[str]:
    """A report as lines: histories, rate, answers, and (fault, state) pairs that never occurred."""
    world = all_worlds()[report.world]
    rate = report.histories / report.seconds if report.seconds else 0
    empty, cells = report.empty(world), len(world.faults) * len(world.states)
    outcome = "no rule broken" if report.failure is None else f"{report.failure.violation.rule!r} broken"
    lines = [
        f"{report.world}: {report.histories} histories of seed {report.seed}, {rate:,.0f}/s a core, {outcome}",
        "  " + ", ".join(f"{count} × {name}" for name, count in report.answers.most_common()),
        f"  faults × states met: {cells - len(empty)} of {cells}",
        *(f"    never met: {fault} × {state}" for fault, state in empty[:EMPTY_SHOWN]),
    ]
    if len(empty) > EMPTY_SHOWN:
        lines.append(f"    and {len(empty) - EMPTY_SHOWN} more (--json names all)")
    return lines


def report_json(report: Report) -> dict[str, Any]:
    """A report as JSON values."""
    world = all_worlds()[report.world]
    return {
        "world": report.world,
        "seed": report.seed,
        "histories": report.histories,
        "seconds": round(report.seconds, 3),
        "answers": dict(sorted(report.answers.items())),
        "met": [{"fault": fault, "state": state, "times": n} for (fault, state), n in sorted(report.met.items())],
        "never_met": [{"fault": fault, "state": state} for fault, state in report.empty(world)],
    }


def hunt_lines(found: Iterable[HuntResult]) -> list[str]:
    """A table of planted bugs as lines: survivors first, then by histories needed. The last line counts."""
    by_histories = sorted(found, key=lambda each: (bool(each.rule), each.histories))
    rows = [
        ("planted bug", "world", "caught by", "after", "the bug"),
        *(
            (each.bug.name, each.bug.world, each.rule or "SURVIVED", f"{each.histories:,}", each.bug.what)
            for each in by_histories
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    caught = sum(bool(each.rule) for each in by_histories)
    return [
        *("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows),
        f"{caught} of {len(by_histories)} planted bugs caught",
    ]


def hunt_json(caught: HuntResult) -> dict[str, object]:
    """The result of a hunt as JSON values."""
    return {
        "name": caught.bug.name,
        "world": caught.bug.world,
        "what": caught.bug.what,
        "caught_by": caught.rule,
        "histories": caught.histories,
    }
