"""Planted bugs, and how they are planted into the running code.

A bug is a mistake that a developer could make: a snippet of Python in one of our functions is replaced. The snippet is
matched by structure (`snippets`), so the layout of the code does not matter. A bug that no longer fits the code is an
error, not a pass.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, Final, Protocol

from lab.simulation.memo import clear_memo
from lab.simulation.planted.snippets import Place, parsed, places, statements
from tokens.errors import FreshetError

FunctionTree = ast.FunctionDef | ast.AsyncFunctionDef
_FUTURE: Final = "from __future__ import annotations\n"


class PlantedBugError(FreshetError):
    """A planted bug does not fit the code; code ``mutation_outdated``."""

    code = "mutation_outdated"


class Change(Protocol):
    """A change of one function."""

    @property
    def function(self) -> Callable[..., Any]:
        """The function to change."""

    def apply(self, tree: FunctionTree) -> None:
        """Changes the function's syntax tree. Raises `PlantedBugError`."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Replaces the snippet ``old`` in ``function`` by ``new``."""

    function: Callable[..., Any]
    old: str
    new: str

    def apply(self, tree: FunctionTree) -> None:
        """Raises `PlantedBugError`."""
        old, new = parsed(self.old), parsed(self.new)
        if isinstance(old, ast.expr) and isinstance(new, ast.expr):
            _only_place(tree, old, self.old).put([new])
        else:
            _only_place(tree, statements(self.old), self.old).put(statements(self.new))


@dataclass(frozen=True, slots=True)
class Swap:
    """Swaps two statements of ``function``."""

    function: Callable[..., Any]
    first: str
    second: str

    def apply(self, tree: FunctionTree) -> None:
        """Raises `PlantedBugError`."""
        one, other = (_only_place(tree, statements(text), text) for text in (self.first, self.second))
        [earlier], [later] = (getattr(at.parent, at.field)[at.at : (at.at or 0) + at.size] for at in (one, other))
        one.put([later])
        other.put([earlier])


@dataclass(frozen=True, slots=True)
class Return:
    """Replaces the body of ``function`` by ``return value``."""

    function: Callable[..., Any]
    value: str

    def apply(self, tree: FunctionTree) -> None:
        """Never raises."""
        tree.body = statements(f"return {self.value}")


@dataclass(frozen=True, slots=True)
class Begin:
    """Inserts statements at the beginning of ``function``."""

    function: Callable[..., Any]
    new: str

    def apply(self, tree: FunctionTree) -> None:
        """Never raises."""
        tree.body[:0] = statements(self.new)


def always(function: Callable[..., Any], condition: str) -> Replace:
    """Replaces a condition by True."""
    return Replace(function, condition, "True")


def never(function: Callable[..., Any], condition: str) -> Replace:
    """Replaces a condition by False."""
    return Replace(function, condition, "False")


def leave_out(function: Callable[..., Any], statement: str) -> Replace:
    """Removes a statement."""
    return Replace(function, statement, "pass")


def _only_place(tree: ast.AST, snippet: ast.expr | list[ast.stmt], text: str) -> Place:
    found = list(places(tree, snippet))
    if len(found) != 1:
        raise PlantedBugError(
            f"expected the snippet {text!r} once, found it {len(found)} times",
            hint="the code has changed: adapt the planted bug",
        )
    return found[0]


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """A bug. ``what``: what is wrong, in words. ``world``: the world that must catch it."""

    name: str
    what: str
    world: str
    changes: tuple[Change, ...]

    @property
    def module(self) -> str:
        """The module that the first change is in. ``lab.simulation``: the mistake is in a model, not in the product."""
        return _plain(self.changes[0].function).__module__

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plants the bug for the time of the context. Raises `PlantedBugError`."""
        grouped: dict[FunctionType, list[Change]] = {}
        for change in self.changes:
            grouped.setdefault(_plain(change.function), []).append(change)
        before = {function: function.__code__ for function in grouped}
        made = {function: self._changed(function, changes) for function, changes in grouped.items()}
        try:
            for function, code in made.items():
                function.__code__ = code
            self._forget()
            yield
        finally:
            for function, code in before.items():
                function.__code__ = code
            self._forget()

    def _forget(self) -> None:
        """What was computed with the other code: in the simulator, and in caches of the functions themselves."""
        clear_memo()
        for change in self.changes:
            clear = getattr(change.function, "cache_clear", None)
            if clear is not None:
                clear()

    def _changed(self, function: FunctionType, changes: list[Change]) -> CodeType:
        module = ast.parse(_FUTURE + textwrap.dedent(inspect.getsource(function)))
        tree = module.body[1]
        if not isinstance(tree, FunctionTree):
            raise PlantedBugError(
                f"planted bug {self.name}: {function.__qualname__} is not a plain function definition"
            )
        tree.decorator_list = []
        for change in changes:
            try:
                change.apply(tree)
            except PlantedBugError as error:
                where = f"planted bug {self.name}: {function.__module__}.{function.__qualname__}"
                raise PlantedBugError(f"{where}: {error}", hint=error.hint) from None
        return _compiled(function, module, f"<planted bug {self.name}>")


def _compiled(function: FunctionType, module: ast.Module, name: str) -> CodeType:
    """Compiles the changed ``function``, the last statement of ``module``, with the free variables that it has.

    What is free, also the class in which a method finds ``super()``, is a parameter of a function around it.
    """
    tree, free = module.body[-1], function.__code__.co_freevars
    assert isinstance(tree, FunctionTree)
    tree.body += [statement for each in free for statement in statements(f"if False:\n    {each}")]  # all stay free
    around = ast.parse(f"def around({', '.join(free)}):\n    pass").body[0]
    assert isinstance(around, ast.FunctionDef)
    tree.name = "changed"  # its own name is the global one: it may call itself
    around.body = [tree, *statements("return changed")]
    module.body[-1] = around
    scope: dict[str, Any] = {}
    exec(compile(ast.fix_missing_locations(module), name, "exec"), function.__globals__, scope)
    made: FunctionType = scope["around"](*free)
    return made.__code__.replace(co_name=function.__name__, co_qualname=function.__qualname__)


def _plain(function: Callable[..., Any]) -> FunctionType:
    """The function below its decorators."""
    found = inspect.unwrap(function)
    if not isinstance(found, FunctionType):
        raise PlantedBugError(f"{function!r} is not a Python function")
    return found


def rows(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of rows must catch."""
    return PlantedBug(name, what, "rows", changes)


def catalog(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of catalog tables must catch."""
    return PlantedBug(name, what, "catalog", changes)


def processes(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of processes must catch."""
    return PlantedBug(name, what, "processes", changes)


def hive(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of captured logs must catch."""
    return PlantedBug(name, what, "hive", changes)


def replicas(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of servers, tokens and lists must catch."""
    return PlantedBug(name, what, "replicas", changes)


def installation(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of installations must catch."""
    return PlantedBug(name, what, "installation", changes)


def warehouse(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of a live catalog must catch."""
    return PlantedBug(name, what, "warehouse", changes)


def files(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of remote files must catch."""
    return PlantedBug(name, what, "files", changes)


def successions(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of shards that are handed over must catch."""
    return PlantedBug(name, what, "successions", changes)


def postgres(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of PostgreSQL must catch."""
    return PlantedBug(name, what, "postgres", changes)


def connectors(name: str, what: str, *changes: Change) -> PlantedBug:
    """A bug that the world of somebody else's connector must catch."""
    return PlantedBug(name, what, "connectors", changes)
