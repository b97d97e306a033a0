"""Mutants of a module, one after another, and how one is planted into the functions of the running process."""

from __future__ import annotations

import ast
import copy
import functools
import gc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final

from lab.mutation.operators import OPERATORS, Definition, Place, places

ROOT: Final = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mistake. ``before`` and ``after``: the expression or statement as it is, and as it would be.

    ``twin`` counts mutants of a function that read alike. ``first``, ``last``: the lines of the statement.
    """

    module: str
    function: str
    operator: str
    before: str
    after: str
    twin: int
    first: int
    last: int

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """Names the mutant whatever stands in other functions, and on whichever line."""
        return self.module, self.function, self.before, self.after, self.twin


def functions(tree: ast.Module) -> Iterator[tuple[str, Definition]]:
    """(qualified name, definition) of a module's functions and its classes' methods."""

    def found(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, Definition]]:
        for node in body:
            if isinstance(node, Definition):
                yield prefix + node.name, node
            elif isinstance(node, ast.ClassDef):
                yield from found(node.body, f"{prefix}{node.name}.")

    return found(tree.body, "")


Change = tuple[str, str, Place, ast.AST]
"""(function, operator, place, what comes there)."""


def changes(module: str) -> Iterator[tuple[Change, ast.Module]]:
    """Every change of a module (a path below the root). While one is yielded, the tree is the changed one."""
    tree = ast.parse((ROOT / module).read_text(), str(ROOT / module))
    for name, function in functions(tree):
        for place in list(places(function)):
            for operator, change in OPERATORS.items():
                for node in change(place.node):
                    place.put(node if hasattr(node, "lineno") else ast.copy_location(node, place.node))
                    ast.fix_missing_locations(node)
                    yield (name, operator, place, node), tree
                    place.put(place.node)


def mutants(module: str) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of `changes`."""
    seen: defaultdict[tuple[str, str, str], int] = defaultdict(int)
    for (function, operator, place, node), _ in changes(module):
        shown = place.parent if isinstance(place.node, ast.Constant) else place.node
        after = _head(node if shown is place.node else shown)
        place.put(place.node)
        before = _head(shown)
        seen[function, before, after] += 1
        first, last = _lines(place.statement)
        yield Mutant(module, function, operator, before, after, seen[function, before, after], first, last)


def _lines(statement: ast.stmt | ast.ExceptHandler) -> tuple[int, int]:
    body = getattr(statement, "body", None)
    if isinstance(statement, ast.ExceptHandler):
        return statement.body[0].lineno, statement.body[-1].end_lineno or statement.lineno
    if body:
        return statement.lineno, max(statement.lineno, body[0].lineno - 1)
    return statement.lineno, statement.end_lineno or statement.lineno


def _head(node: ast.AST) -> str:
    """A statement's text; of a compound statement, what stands before its body."""
    if isinstance(node, ast.ExceptHandler) and isinstance(node.body[0], ast.Raise):
        return ast.unparse(node)
    if not isinstance(node, (ast.stmt, ast.ExceptHandler)) or not hasattr(node, "body"):
        return ast.unparse(node).strip().split("\n")[0]
    shallow = copy.copy(node)
    for field in ("body", "orelse", "finalbody", "handlers"):
        if hasattr(shallow, field):
            setattr(shallow, field, [ast.Expr(ast.Constant(...))] if field == "body" else [])
    return ast.unparse(shallow).strip().split("\n")[0]


Live = dict[tuple[str, str, int], list[FunctionType]]
"""(file, qualified name, first line) → the functions that run this code."""


def live_functions() -> Live:
    """Every function of the repository that the process holds."""
    found: Live = defaultdict(list)
    root = str(ROOT)
    gc.unfreeze()  # a consumer that ran in this process has frozen what there was
    for each in gc.get_objects():
        if isinstance(each, FunctionType) and each.__code__.co_filename.startswith(root):
            code = each.__code__
            found[code.co_filename, code.co_qualname, code.co_firstlineno].append(each)
    return found


def codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a module's functions and its classes' methods, without functions inside functions."""
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if constant.co_flags & 0x2:  # a function: CO_NEWLOCALS; a class's body has none
            yield constant
        else:
            yield from codes(constant)


def plant(module: str, number: int, live: Live) -> bool:
    """Lets the process run a mutant's code for good. ``number``: its place among the module's.

    False if no function runs the code, or the new code doesn't fit.
    """
    (name, _, _, _), tree = next(islice(changes(module), number, None))
    compiled = compile(tree, str(ROOT / module), "exec", dont_inherit=True)
    planted = False
    for code in (each for each in codes(compiled) if each.co_qualname == name):
        for function in live.get((code.co_filename, code.co_qualname, code.co_firstlineno), ()):
            if function.__code__ == code:
                continue
            if len(function.__code__.co_freevars) != len(code.co_freevars):
                return False
            function.__code__ = code
            planted = True
    return planted


def caches() -> list[Any]:
    """Every cache of a function's results. They must be emptied when a mutant is planted."""
    return [each for each in gc.get_objects() if isinstance(each, functools._lru_cache_wrapper)]
