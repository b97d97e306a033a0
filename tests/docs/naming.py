"""Resolves names in a page: files, modules, names in modules, and numbers in the code."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ROOMS = ("benchmarks", "consumers", "freshet", "lab", "schemas", "serving", "spark_jobs", "stream", "tests", "tokens")
UNITS: dict[str, float] = {
    "": 1,
    "bytes": 1,
    "KiB": 1 << 10,
    "MiB": 1 << 20,
    "GiB": 1 << 30,
    "ms": 0.001,
    "s": 1,
    "day": 86_400,
    "days": 86_400,
}
"""Factor to bytes, seconds, or a plain count."""
_FACTORS = {"ms": 0.001, "s": 1.0, "kb": 1024.0}
"""Part of a constant's name → factor for its number."""
_FILE = re.compile(r"[\w.*-]+(/[\w.*-]+)+/?")
_DOTTED = re.compile(r"[a-z_]+(\.\w+)+(?<!\.toml)")


def is_file(name: str) -> bool:
    """Whether a code span looks like a path inside one of our rooms."""
    return _FILE.fullmatch(name) is not None and name.split("/")[0] in ROOMS


def is_dotted(name: str) -> bool:
    """Whether a code span looks like a name inside one of our rooms. `freshet.locations` is a topic."""
    name = without_arguments(name)
    return _DOTTED.fullmatch(name) is not None and name.split(".")[0] in ROOMS and name != "freshet.locations"


def without_arguments(name: str) -> str:
    """``Publisher.open`` of ``Publisher.open(start)``."""
    return name.partition("(")[0]


def file_exists(name: str) -> bool:
    """Whether a path, which may contain ``*``, exists."""
    return any(ROOT.glob(name.rstrip("/"))) if "*" in name else (ROOT / name).exists()


def split_module(name: str) -> tuple[Path, list[str]]:
    """The file (or package) with the longest dotted name that ``name`` begins with, and the names that follow."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        place = ROOT.joinpath(*parts[:count])
        if place.with_suffix(".py").is_file():
            return place.with_suffix(".py"), parts[count:]
        if place.is_dir():
            return place, parts[count:]
    raise LookupError(name)


def dotted_exists(name: str) -> bool:
    """Whether a module has this name, or holds it: a constant, class or function, or a member of a class."""
    place, rest = split_module(without_arguments(name))
    if not rest:
        return True
    if place.is_dir():
        place = place / "__init__.py"
    return place.is_file() and len(rest) <= 2 and ".".join(rest) in names_in(place)


@cache
def names_in(module: Path) -> frozenset[str]:
    """What a module holds: ``name``, and ``Class.member`` with the parameters of ``__init__``."""
    found: set[str] = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        names = _bound(node)
        found |= names
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member}" for member in _members(node)}
    return frozenset(found)


def _bound(node: ast.stmt) -> set[str]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {node.name}
        case ast.Assign():
            return {target.id for target in node.targets if isinstance(target, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.ImportFrom() | ast.Import():
            return {alias.asname or alias.name for alias in node.names}
    return set()


def _members(class_: ast.ClassDef) -> set[str]:
    found = set().union(*map(_bound, class_.body))
    for node in ast.walk(class_):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found |= {argument.arg for argument in [*node.args.args, *node.args.kwonlyargs]}
    return found


def number_of(name: str, settings: dict[str, Any]) -> float:
    """The number that ``name`` has in the code, in bytes, seconds or as a count.

    ``name`` is a key of ``settings``, a constant of a module, or a default of a class: a field or a parameter.
    """
    if name in settings:
        found = settings[name]
    else:
        place, rest = split_module(name)
        module = importlib.import_module(".".join(place.relative_to(ROOT).with_suffix("").parts))
        found = getattr(module, rest[0]) if len(rest) == 1 else default_of(getattr(module, rest[0]), rest[1])
    words = name.rpartition(".")[2].lower().split("_")
    return float(found) * next((factor for word, factor in _FACTORS.items() if word in words), 1.0)


def default_of(class_: Any, name: str) -> Any:
    """The default of a dataclass's field, or of a parameter of ``__init__``."""
    if dataclasses.is_dataclass(class_):
        return next(field.default for field in dataclasses.fields(class_) if field.name == name)
    return inspect.signature(class_.__init__).parameters[name].default


def number_in(cell: str) -> float:
    """What ``16 MiB``, ``1,000`` or ``25 ms`` says, in bytes, seconds or as a count."""
    digits, _, unit = cell.strip().partition(" ")
    return float(digits.replace(",", "")) * UNITS[unit]
