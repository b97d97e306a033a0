"""The rooms keep to themselves: who may import whom, and what the pure core may not touch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]

MAY_IMPORT = {
    "schemas": set[str](),
    "tokens": set[str](),
    "stream": {"tokens", "schemas"},
    "consumers": {"stream", "tokens"},
    "serving": {"consumers", "stream", "tokens"},
    "spark_jobs": {"consumers", "stream", "tokens"},
    "freshet": {"schemas", "tokens", "stream", "consumers", "serving", "spark_jobs", "lab"},
    "lab": {"schemas", "tokens", "stream", "consumers", "serving", "spark_jobs", "freshet"},
}
"""docs/architecture.md, *Rooms and imports*."""

PURE = [
    "tokens",
    "stream/wire/events.py",
    "stream/wire/keys.py",
    "stream/wire/values.py",
    "stream/wire/batch.py",
    "consumers/fold/entry.py",
    "consumers/fold/state.py",
    "consumers/fold/messages.py",
    "consumers/fold/rows.py",
    "consumers/fold/catalog.py",
]
IMPURE_MODULES = {
    "asyncio",
    "confluent_kafka",
    "http",
    "logging",
    "multiprocessing",
    "os",
    "random",
    "rocksdict",
    "secrets",
    "shutil",
    "socket",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}
IMPURE_CALLS = {"open", "print", "input", "now", "utcnow", "today", "read_text", "read_bytes", "write_text"}
VAGUE = {"utils", "util", "helpers", "helper", "manager", "base", "common", "misc"}


def sources(*rooms: str) -> Iterator[Path]:
    """The Python files of rooms (or single files), relative to the repository."""
    for room in rooms:
        path = REPOSITORY / room
        for found in [path] if path.is_file() else sorted(path.rglob("*.py")):
            yield found.relative_to(REPOSITORY)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """(line, top-level package) of every import of a file, wherever it stands."""
    for node in ast.walk(ast.parse((REPOSITORY / path).read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.split(".")[0]
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, path.parts[0] if node.level else (node.module or "").split(".")[0]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    """Data goes one way, source → stream → consumers → serving, and so do imports."""
    forbidden = (set(MAY_IMPORT) | {"tests", "benchmarks"}) - MAY_IMPORT[room] - {room}
    broken = [
        f"{path}:{line} imports {name}" for path in sources(room) for line, name in imported(path) if name in forbidden
    ]
    assert not broken


def test_schemas_runs_nothing() -> None:
    """The room of the wire schemas holds data only."""
    assert [path for path in sources("schemas") if (REPOSITORY / path).read_text().strip()] == []


@pytest.mark.parametrize("part", PURE)
def test_the_pure_core_touches_no_world(part: str) -> None:
    """The fold and the comparator give the same answer anywhere: no I/O, no clock, no randomness, no log."""
    broken = [
        f"{path}:{line} imports {name}"
        for path in sources(part)
        for line, name in imported(path)
        if name in IMPURE_MODULES
    ]
    for path in sources(part):
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text())):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                if name in IMPURE_CALLS:
                    broken.append(f"{path}:{node.lineno} calls {name}")
    assert not broken


def test_every_part_of_the_pure_core_is_there() -> None:
    """A renamed module does not slip out of the check above."""
    assert [part for part in PURE if not (REPOSITORY / part).exists()] == []


def test_no_module_has_a_name_that_says_nothing() -> None:
    """A module is named after what it holds."""
    assert [path for path in sources(*MAY_IMPORT, "tests", "benchmarks") if path.stem in VAGUE] == []


def test_only_the_mariadb_front_imports_the_mariadb_source() -> None:
    """Everything generic works for any source: one source's code is known to its own front and to the commands."""
    allowed = ("stream/sources/mariadb/", "serving/sources/mariadb.py")
    broken = [
        f"{path}:{node.lineno} imports {node.module}"
        for path in sources("tokens", "stream", "consumers", "serving", "spark_jobs")
        if not path.as_posix().startswith(allowed)
        for node in ast.walk(ast.parse((REPOSITORY / path).read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("stream.sources.mariadb")
    ]
    assert not broken
