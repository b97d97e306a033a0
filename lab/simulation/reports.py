"""Formats the results of histories and of hunts for planted bugs, as lines of text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from lab.simulation.campaign import HuntResult
from lab.simulation.engine import Report
from lab.simulation.worlds import all_worlds

EMPTY_SHOWN: Final = 12
SURVIVED: Final = "SURVIVED"


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
            (each.bug.name, each.bug.world, each.rule or SURVIVED, f"{each.histories:,}", each.bug.what)
            for each in by_histories
        ),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    caught = sum(bool(each.rule) for each in by_histories)
    return [
        *("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[4]]) for row in rows),
        f"{caught} of {len(by_histories)} planted bugs caught",
    ]


def detection_lines(found: Sequence[HuntResult], without: Sequence[HuntResult]) -> list[str]:
    """Tables of how many planted bugs are caught, by rule and by module, in histories with and ``without`` motifs.

    A bug is counted for the rule that catches it first, with motifs if it is caught with them. The last line names the
    bugs that are caught with motifs only.
    """
    rules = {each.bug.name: each.rule for each in without}
    by_rule: dict[str, list[HuntResult]] = {}
    by_module: dict[str, list[HuntResult]] = {}
    for each in found:
        rule = each.rule or rules[each.bug.name] or SURVIVED
        by_rule.setdefault(f"{each.bug.world}: {rule}", []).append(each)
        by_module.setdefault(each.bug.module, []).append(each)
    models = [each for each in found if each.bug.module.startswith("lab.simulation.")]
    everywhere = {"all in the product": [each for each in found if each not in models], "all in models": models}
    lines = []
    for title, groups in (("rule", by_rule), ("module", by_module), ("", everywhere)):
        width = max(map(len, [title, *groups]))
        lines += [f"{title:{width}}  bugs  with motifs  without"] if title else []
        for name, bugs in sorted(groups.items()):
            with_motifs = sum(bool(each.rule) for each in bugs)
            alone = sum(bool(rules[each.bug.name]) for each in bugs)
            lines.append(f"{name:{width}}  {len(bugs):4}  {with_motifs:11}  {alone:7}")
        lines += [""] if title else []
    aimed = sorted(each.bug.name for each in found if each.rule and not rules[each.bug.name])
    return [*lines, "", f"only with motifs: {', '.join(aimed) or 'none'}"]


def hunt_json(caught: HuntResult) -> dict[str, object]:
    """The result of a hunt as JSON values."""
    return {
        "name": caught.bug.name,
        "world": caught.bug.world,
        "module": caught.bug.module,
        "what": caught.bug.what,
        "caught_by": caught.rule,
        "histories": caught.histories,
        "seconds": round(caught.seconds, 3),
    }
