"""The small mistakes that are made in the code, as changes of its syntax tree.

Each operator looks at one node and says what a tired developer could have written instead. Texts for people (the
arguments of ``raise`` and of log calls), annotations, decorators and defaults of parameters stay as they are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

SWAPPED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}
BOUNDARY: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
ARITHMETIC: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
CALLS: Final = {"max": "min", "min": "max", "any": "all", "all": "any"}
LOGS: Final = frozenset({"log", "_log", "logger"})
"""Names of loggers: what is logged is for people."""
UNREAD: Final = frozenset({"strict", "hint"})
"""Keyword arguments that only assert (``zip(…, strict=True)``) or are for people."""

Operator = Callable[[ast.AST], Iterator[ast.AST]]
Definition = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Place:
    """A node in its parent, and the statement around it."""

    parent: ast.AST
    field: str
    at: int | None
    node: ast.AST
    statement: ast.stmt | ast.ExceptHandler

    def put(self, node: ast.AST) -> None:
        """Puts another node there."""
        if self.at is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node


def places(function: Definition) -> Iterator[Place]:
    """Every place of a function's body that may be mutated, outermost first."""
    for at, statement in enumerate(function.body):
        yield from _within(Place(function, "body", at, statement, statement))


def _within(place: Place) -> Iterator[Place]:
    yield place
    for field, value in ast.iter_fields(place.node):
        if field in ("annotation", "returns", "args_defaults", "decorator_list"):
            continue
        children: Sequence[Any] = value if isinstance(value, list) else [value]
        for at, child in enumerate(children):
            if not isinstance(child, ast.AST) or _is_for_people(place.node, child):
                continue
            around = child if isinstance(child, (ast.stmt, ast.ExceptHandler)) else place.statement
            yield from _within(Place(place.node, field, at if isinstance(value, list) else None, child, around))


def _is_for_people(parent: ast.AST, child: ast.AST) -> bool:
    match child:
        case ast.arguments():
            return not isinstance(parent, ast.Lambda)
        case ast.Expr(value=ast.Constant()):
            return True
        case ast.keyword(arg=name) if name in UNREAD:
            return True
        case ast.Call() | ast.Expr(value=ast.Call()) if _is_log_call(child):
            return True
    return isinstance(parent, ast.Raise)


def _is_log_call(node: ast.AST) -> bool:
    call = node.value if isinstance(node, ast.Expr) else node
    match call:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in LOGS
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr=name))):
            return name in LOGS
    return False


def _changed(node: ast.AST, **fields: Any) -> Any:
    """A copy of a node with other fields."""
    made = copy.copy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _comparison(node: ast.AST) -> Iterator[ast.AST]:
    if not isinstance(node, ast.Compare):
        return
    for at, operator in enumerate(node.ops):
        for table in (SWAPPED, BOUNDARY):
            other = table.get(type(operator))
            if other is not None:
                yield _changed(node, ops=[*node.ops[:at], other(), *node.ops[at + 1 :]])


def _condition(node: ast.AST) -> Iterator[ast.AST]:
    """Branches exchanged. A single comparison is swapped already, and a ``not`` dropped."""
    if not isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return
    test = node.test
    is_done = isinstance(test, ast.UnaryOp) or (isinstance(test, ast.Compare) and len(test.ops) == 1)
    if not is_done and not isinstance(test, ast.Constant):
        yield _changed(node, test=ast.UnaryOp(ast.Not(), test))


def _filter(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.comprehension):
        for at in range(len(node.ifs)):
            yield _changed(node, ifs=[*node.ifs[:at], *node.ifs[at + 1 :]])


def _logic(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BoolOp):
        yield _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        for at in range(len(node.values)):
            left = [*node.values[:at], *node.values[at + 1 :]]
            yield left[0] if len(left) == 1 else _changed(node, values=left)


def _dropped_not(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def _chosen(node: ast.AST) -> Iterator[ast.AST]:
    """``max`` for ``min``, ``any`` for ``all``, and the last for the greatest."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=args) if name in CALLS and args:
            yield _changed(node, func=ast.Name(CALLS[name], ast.Load()))
            if name in ("max", "min"):
                one = ast.Call(ast.Name("list", ast.Load()), args, [])
                last = ast.Subscript(one, ast.Constant(-1), ast.Load())
                yield args[-1] if len(args) > 1 else last


def _constant(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
            if value == 1:
                yield ast.Constant(0)
        case ast.Subscript(slice=ast.Constant(value=0)):
            yield _changed(node, slice=ast.Constant(-1))
        case ast.Subscript(slice=ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1))):
            yield _changed(node, slice=ast.Constant(0))


def _arithmetic(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        yield _changed(node, op=ARITHMETIC[type(node.op)]())


def _argument(node: ast.AST) -> Iterator[ast.AST]:
    """An argument left out, so that its default holds."""
    if isinstance(node, ast.Call):
        for at, keyword in enumerate(node.keywords):
            if keyword.arg is not None and keyword.arg not in UNREAD:
                yield _changed(node, keywords=[*node.keywords[:at], *node.keywords[at + 1 :]])


def _dropped(node: ast.AST) -> Iterator[ast.AST]:
    """A statement left out: a call, an assignment to an attribute or an element, a jump, a raise."""
    match node:
        case ast.Expr(value=ast.Call() | ast.Await()) if not _is_log_call(node):
            yield ast.Pass()
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript(), *_]) | ast.AugAssign() | ast.Delete():
            yield ast.Pass()
        case ast.AnnAssign(target=ast.Attribute() | ast.Subscript(), value=ast.expr()):
            yield ast.Pass()
        case ast.Raise() | ast.Continue():
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()


def _returned(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Return(value=None):
            yield ast.Pass()
        case ast.Return(value=ast.Constant(value=None | bool())):
            return
        case ast.Return():
            yield _changed(node, value=ast.Constant(None))


def _handler(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.ExceptHandler(body=[ast.Raise(exc=None)]):
            return
        case ast.ExceptHandler():
            yield _changed(node, body=[ast.Raise()])


OPERATORS: Final[dict[str, Operator]] = {
    "comparison": _comparison,
    "condition negated": _condition,
    "filter dropped": _filter,
    "and, or": _logic,
    "not dropped": _dropped_not,
    "another chosen": _chosen,
    "constant": _constant,
    "arithmetic": _arithmetic,
    "argument left out": _argument,
    "statement dropped": _dropped,
    "nothing returned": _returned,
    "not handled": _handler,
}
