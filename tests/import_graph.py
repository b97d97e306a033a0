"""The import graph of modules and of folders. An import inside a function is lazy and is not part of it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

Graph = dict[str, set[str]]


def imports(tree: ast.Module, package: str, *, lazy: bool) -> Iterator[tuple[int, str]]:
    """(line, module or name in it) of every import of a module of ``package``, also for type checkers only.

    ``lazy``: also inside functions.
    """
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)
        elif lazy or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting += ast.iter_child_nodes(node)


@cache
def modules(repository: Path, *rooms: str) -> Graph:
    """Module → the modules of these rooms that it imports."""
    trees = {}
    for room in rooms:
        for path in sorted((repository / room).rglob("*.py")):
            package = ".".join(path.relative_to(repository).parent.parts)
            name = package if path.stem == "__init__" else f"{package}.{path.stem}"
            trees[name] = ast.parse(path.read_text()), package
    graph: Graph = {}
    for name, (tree, package) in trees.items():
        wanted = {found for _, found in imports(tree, package, lazy=False)}
        wanted |= {found.rpartition(".")[0] for found in wanted - set(trees)}
        graph[name] = (wanted & set(trees)) - {name}
    return graph


def folders(graph: Graph) -> Graph:
    """Folder → sibling folders that any module below it imports."""
    found: Graph = {}
    for name, wanted in graph.items():
        for other in wanted:
            mine, theirs = name.split(".")[:-1], other.split(".")[:-1]
            apart = next((at for at, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
            if apart is not None:
                here, there = ".".join(mine[: apart + 1]), ".".join(theirs[: apart + 1])
                found.setdefault(here, set()).add(there)
                found.setdefault(there, set())
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Every group of nodes that import each other, directly or indirectly."""
    reached = {name: _reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in reached[name] if name in reached[other]))
        for name in graph
        if name in reached[name]
    }
    return [list(group) for group in sorted(groups)]


def _reached(graph: Graph, start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - seen
        seen |= new
        waiting += new
    return seen
