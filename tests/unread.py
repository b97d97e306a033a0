"""Finds definitions that are never read: functions, classes, fields, attributes and constants, by name alone.

A name is read if it is loaded, is in a pattern, or is a whole string (``getattr``, a table of names) in the product, in
lab or in the benchmarks. A field is also read if it is a string in a test or is named in a document, because then
programs read it as JSON. Imports, ``__slots__`` and ``__all__`` do not count. Ruff (ARG) finds unread parameters.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

_QUOTED: Final = re.compile(r"""["'](\w+)["']""")
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Definition(NamedTuple):
    """``kind``: function, class, field (of a class or an instance), constant."""

    path: str
    line: int
    kind: str
    name: str
    decorators: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.kind} {self.name}"


def defined(tree: ast.Module, path: str) -> Iterator[Definition]:
    """Every definition in a module that must be read."""
    for statement in tree.body:
        yield from (Definition(path, statement.lineno, "constant", name) for name in _assigned(statement))
    for node in ast.walk(tree):
        if isinstance(node, Function):
            decorators = tuple(ast.unparse(each) for each in node.decorator_list)
            yield Definition(path, node.lineno, "function", node.name, decorators)
        elif isinstance(node, ast.ClassDef):
            yield Definition(path, node.lineno, "class", node.name)
            fields = [statement for statement in node.body if isinstance(statement, ast.AnnAssign)]
            yield from (Definition(path, each.lineno, "field", name) for each in fields for name in _assigned(each))
        match node:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield Definition(path, node.lineno, "field", name)


def _assigned(statement: ast.stmt) -> list[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def names_read(tree: ast.Module) -> set[str]:
    """Every name that a module reads."""
    found: set[str] = set()
    unread = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and {"__slots__", "__all__"} & set(_assigned(node))
        for part in ast.walk(node.value)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                found.add(name)
            case ast.Constant(value=str(text)) if id(node) not in unread:
                found.add(text)
            case ast.MatchClass(kwd_attrs=names):
                found.update(names)
    return found


def unread(repository: Path, rooms: list[str]) -> list[Definition]:
    """The unread definitions in ``rooms``, without dunder names; one for each name in a file."""
    trees = {path: _parsed(repository, path) for path in _sources(repository, *rooms)}
    read = set().union(*map(names_read, trees.values()))
    read |= set().union(*(names_read(_parsed(repository, path)) for path in _sources(repository, "benchmarks")))
    texts = {
        text for path in _sources(repository, "tests") for text in _QUOTED.findall((repository / path).read_text())
    }
    for page in (repository / "docs").rglob("*.md"):
        texts.update(word for quoted in re.findall(r"`[^`]+`", page.read_text()) for word in re.findall(r"\w+", quoted))
    known = {"field": read | texts}
    found: dict[tuple[str, str], Definition] = {}
    for path, tree in trees.items():
        for each in defined(tree, path):
            if each.name not in known.get(each.kind, read) and not each.name.startswith("__"):
                found.setdefault((path, each.name), each)
    return list(found.values())


def _sources(repository: Path, *rooms: str) -> Iterator[str]:
    for room in rooms:
        yield from (str(path.relative_to(repository)) for path in sorted((repository / room).rglob("*.py")))


def _parsed(repository: Path, path: str) -> ast.Module:
    return ast.parse((repository / path).read_text())
