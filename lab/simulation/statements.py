"""Counts which of the product's statements are executed while histories run.

Only statements inside functions count: those of a module or a class run when it is imported, and say nothing about
histories.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from coverage import Coverage

from lab.simulation.engine import BrokenHistory, run_many
from lab.simulation.pool import mapped
from lab.simulation.worlds import all_worlds

ROOMS: Final = ("tokens", "stream", "consumers", "serving")
BYTE_DECODING: Final = (
    "stream/sources/mariadb/binlog/decimals.py",
    "stream/sources/mariadb/binlog/mysql/events.py",
    "stream/sources/mariadb/binlog/mysql/json_text.py",
    "stream/sources/mariadb/binlog/rows.py",
    "stream/sources/mariadb/binlog/table_map.py",
)
"""Left out: they decode the binlog's bytes, which fuzzing and tests on real servers cover."""
WITHOUT_WORLD: Final = {
    "serving/bytecache/shared/": "through which processes of one machine share a directory: real sockets and memory",
    "serving/client/cache/objects.py": "which has a model of its own in `tests/serving/test_composite_objects.py`",
    "serving/client/sessions/": "which goes around drivers, frameworks and browsers",
    "serving/http/status/": "which shows people what owners tell",
}
"""Left out: folder or module → what it does, which no world has. Each has tests of its own."""
_REPOSITORY: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class ModuleCount:
    """``path``: relative to the repository. ``missed``: the lines of the statements that were not executed."""

    path: str
    statements: int
    missed: tuple[int, ...]

    @property
    def executed(self) -> int:
        """The number of executed statements."""
        return self.statements - len(self.missed)


@contextmanager
def counting() -> Iterator[list[ModuleCount]]:
    """Counts what this process executes inside the context. The list is filled at its end, by room and path."""
    threads = ["thread", "greenlet"]
    coverage = Coverage(data_file=None, config_file=False, source_pkgs=ROOMS, concurrency=threads)
    coverage.set_option("run:disable_warnings", ["module-not-measured", "module-not-imported"])
    counted: list[ModuleCount] = []
    coverage.start()
    try:
        yield counted
    finally:
        coverage.stop()
    for room in ROOMS:
        paths = (path for path in sorted((_REPOSITORY / room).rglob("*.py")) if not _has_no_world(path))
        counted += (each for path in paths if (each := _count(coverage, path)).statements)


def _has_no_world(path: Path) -> bool:
    return any(path.is_relative_to(_REPOSITORY / folder) for folder in WITHOUT_WORLD)


def _count(coverage: Coverage, path: Path) -> ModuleCount:
    name = path.relative_to(_REPOSITORY).as_posix()
    if name in BYTE_DECODING:
        return ModuleCount(name, 0, ())
    return _count_inside(coverage, path, name)


def _count_inside(coverage: Coverage, path: Path, name: str) -> ModuleCount:
    inside: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside.update(range(node.body[0].lineno, (node.end_lineno or 0) + 1))
    _, statements, _, missed, _ = coverage.analysis2(str(path))
    return ModuleCount(name, len(inside.intersection(statements)), tuple(sorted(inside.intersection(missed))))


def left_out(name: str) -> int:
    """The statements of a module or folder that is left out: how much the shares do not speak of."""
    place, coverage = _REPOSITORY / name, Coverage(data_file=None, config_file=False)
    paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return sum(_count_inside(coverage, path, name).statements for path in paths)


Part = tuple[int, dict[str, range]]
"""A seed, and the numbers of the histories of each world."""
Counted = tuple[list[ModuleCount], list[BrokenHistory]]
"""What was executed, and the histories that broke a rule."""


def count_histories(wanted: Mapping[str, range], seed: int, jobs: int) -> Counted:
    """Runs these histories of each world, over ``jobs`` processes, and counts what they execute together."""
    parts = [
        (seed, {world: range(each.start + job, each.stop, jobs) for world, each in wanted.items()})
        for job in range(jobs)
    ]
    found = list(mapped(_count_part, parts, jobs))
    return merged([counted for counted, _ in found]), [failure for _, failures in found for failure in failures]


def _count_part(part: Part) -> Counted:
    seed, wanted = part
    with counting() as counted:
        reports = [run_many(all_worlds()[world], seed, numbers) for world, numbers in wanted.items()]
    return counted, [report.failure for report in reports if report.failure is not None]


def merged(counts: Sequence[list[ModuleCount]]) -> list[ModuleCount]:
    """What was executed in any of several processes."""
    return [
        replace(each[0], missed=tuple(sorted(set(each[0].missed).intersection(*(other.missed for other in each)))))
        for each in zip(*counts, strict=True)
    ]


def count_lines(counted: Iterable[ModuleCount]) -> list[str]:
    """A table in Markdown: the total, the rooms, and the modules, those never run by name only."""
    rows, run, never = [], list[str](), list[str]()
    modules = list(counted)
    for room in ("", *ROOMS):
        of_room = [each for each in modules if each.path.startswith(room)]
        rows.append(_row(f"**{room or 'all'}**", of_room))
    for each in modules:
        if each.executed:
            run.append(_row(f"`{each.path}`", [each]))
        else:
            never.append(f"- `{each.path}` ({each.statements})")
    return [
        "| | executed | statements | |",
        "|---|---:|---:|---:|",
        *rows,
        *run,
        "",
        f"Never run, {len(never)} modules (statements):",
        "",
        *never,
        "",
        "Left out, as the decoding of bytes (statements):",
        "",
        *(f"- `{path}` ({left_out(path)})" for path in BYTE_DECODING),
        "",
        "And of what no world has (statements):",
        "",
        *(f"- `{name}` ({left_out(name):,}), {what}" for name, what in WITHOUT_WORLD.items()),
    ]


def _row(name: str, modules: list[ModuleCount]) -> str:
    executed, statements = sum(each.executed for each in modules), sum(each.statements for each in modules)
    return f"| {name} | {executed:,} | {statements:,} | {executed / max(statements, 1):.0%} |"


def count_json(counted: Iterable[ModuleCount]) -> dict[str, Any]:
    """The counts as JSON values; ``missed``: lines."""
    modules = list(counted)
    return {
        "executed": sum(each.executed for each in modules),
        "statements": sum(each.statements for each in modules),
        "modules": {
            each.path: {"executed": each.executed, "statements": each.statements, "missed": list(each.missed)}
            for each in modules
        },
        "never_run": [each.path for each in modules if not each.executed],
        "left_out": list(BYTE_DECODING),
    }
