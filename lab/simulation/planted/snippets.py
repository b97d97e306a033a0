"""Finds and replaces a snippet of Python in a function's syntax tree. Layout, comments and quotes do not matter.

A snippet is an expression, or statements. In the snippet to find:

- a name ``any_…`` matches any expression, and the same name again an equal one. The replacement may use it.
- ``...`` matches any expression; in a list, any run of statements, operands, elements or arguments; as a call's last
  argument, also all other keyword arguments.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any, Final

ANY: Final = "any_"
_LAYOUT: Final = frozenset({"ctx", "kind", "type_comment"})
Captured = dict[str, ast.expr]


class Place:
    """Where a snippet was found: ``size`` nodes of a list from ``at``, or one field of ``parent`` (``at`` None)."""

    def __init__(self, parent: ast.AST, field: str, at: int | None, size: int, captured: Captured) -> None:
        self.parent, self.field, self.at, self.size = parent, field, at, size
        self.captured = captured

    def put(self, new: list[Any]) -> None:
        """Replaces the snippet by ``new``, with each ``any_…`` replaced by what it matched."""
        nodes = [_Filler(self.captured).visit(copy.deepcopy(node)) for node in new]
        if self.at is None:
            [node] = nodes
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at : self.at + self.size] = nodes


class _Filler(ast.NodeTransformer):
    def __init__(self, captured: Captured) -> None:
        self.captured = captured

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not node.id.startswith(ANY):
            return node
        found = copy.deepcopy(self.captured[node.id])
        if isinstance(found, (ast.Name, ast.Attribute, ast.Subscript)):
            found.ctx = node.ctx
        return found


def parsed(text: str) -> ast.expr | list[ast.stmt]:
    """The snippet as an expression if it is one, else as statements. Raises ``SyntaxError``."""
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError:
        return ast.parse(text).body


def statements(text: str) -> list[ast.stmt]:
    """The snippet as statements; an expression becomes one statement. Raises ``SyntaxError``."""
    return ast.parse(text).body


def places(tree: ast.AST, snippet: ast.expr | list[ast.stmt]) -> Iterator[Place]:
    """Every place in ``tree`` that holds the snippet."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if isinstance(snippet, list):
                if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                    yield from _runs(parent, field, value, snippet)
                continue
            for at, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                captured: Captured = {}
                if isinstance(node, ast.expr) and _fits(snippet, node, captured):
                    yield Place(parent, field, at, 1, captured)


def _runs(parent: ast.AST, field: str, body: list[ast.stmt], snippet: list[ast.stmt]) -> Iterator[Place]:
    for at in range(len(body)):
        for size in range(1, len(body) - at + 1):
            captured: Captured = {}
            if _fits_run(snippet, body[at : at + size], captured):
                yield Place(parent, field, at, size, captured)


def _fits(pattern: Any, node: Any, captured: Captured) -> bool:
    if _is_anything(pattern):
        return isinstance(node, ast.expr)
    if isinstance(pattern, ast.Name) and pattern.id.startswith(ANY):
        return isinstance(node, ast.expr) and _same(captured.setdefault(pattern.id, node), node)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, list):
        return _fits_run(pattern, node, captured)
    if isinstance(pattern, ast.Call) and pattern.args and _is_anything(pattern.args[-1]):
        given = {keyword.arg: keyword for keyword in node.keywords}
        named = [(keyword, given.get(keyword.arg)) for keyword in pattern.keywords]
        pairs = [(pattern.func, node.func), (pattern.args, node.args), *named]
        return all(_fits(wanted, found, captured) for wanted, found in pairs)
    if isinstance(pattern, ast.AST):
        fields = [field for field in pattern._fields if field not in _LAYOUT]
        return all(_fits(getattr(pattern, field), getattr(node, field), captured) for field in fields)
    return bool(pattern == node)


def _fits_run(pattern: list[Any], nodes: list[Any], captured: Captured) -> bool:
    if not pattern:
        return not nodes
    first, rest = pattern[0], pattern[1:]
    if _is_anything(first) or (isinstance(first, ast.Expr) and _is_anything(first.value)):
        for skipped in range(len(nodes) + 1):
            found = dict(captured)
            if _fits_run(rest, nodes[skipped:], found):
                captured.update(found)
                return True
        return False
    return bool(nodes) and _fits(first, nodes[0], captured) and _fits_run(rest, nodes[1:], captured)


def _is_anything(pattern: Any) -> bool:
    return isinstance(pattern, ast.Constant) and pattern.value is ...


def _same(one: ast.expr, other: ast.expr) -> bool:
    return one is other or _fits(one, other, {})
