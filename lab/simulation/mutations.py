"""Planted bugs: small changes of the real code, each of which some world must catch.

A mutation is written as text: in a function of ours, this is replaced by that. So it is a change that somebody could
have made, and one that does not apply any more (the code moved on) is an error, not a pass.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from lab.simulation.memo import forget
from tokens.errors import FreshetError


class MutationError(FreshetError):
    """A mutation that does not fit the code; code ``mutation_outdated``."""

    code = "mutation_outdated"


@dataclass(frozen=True, slots=True)
class Edit:
    """In ``function`` the text ``old`` becomes ``new``."""

    function: Callable[..., Any]
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """A planted bug. ``world``: the world that must catch it."""

    name: str
    what: str
    world: str
    edits: tuple[Edit, ...]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in the code meanwhile. Raises `MutationError`."""
        grouped: dict[FunctionType, list[Edit]] = {}
        for edit in self.edits:
            grouped.setdefault(_plain(edit.function), []).append(edit)
        before = {function: function.__code__ for function in grouped}
        made = {function: _mutated(function, edits, self.name) for function, edits in grouped.items()}
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
        forget()
        for edit in self.edits:
            clear = getattr(edit.function, "cache_clear", None)
            if clear is not None:
                clear()


def _plain(function: Callable[..., Any]) -> FunctionType:
    """The function itself, below a cache or a property."""
    found: Any = function.fget if isinstance(function, property) else inspect.unwrap(function)
    if not isinstance(found, FunctionType):
        raise MutationError(f"{function!r} is no function of Python")
    return found


def _mutated(function: FunctionType, edits: list[Edit], name: str) -> CodeType:
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        if source.count(edit.old) != 1:
            raise MutationError(
                f"mutation {name}: {function.__qualname__} holds {source.count(edit.old)} times {edit.old!r}",
                hint="the code has changed: write the mutation anew",
            )
        source = source.replace(edit.old, edit.new)
    definition = source[source.index("def ") :]
    scope: dict[str, Any] = {}
    code = compile("from __future__ import annotations\n" + definition, f"<mutation {name}>", "exec")
    exec(code, function.__globals__, scope)
    made: FunctionType = scope[function.__name__]
    return made.__code__


def all_mutations() -> list[Mutation]:
    """Every planted bug there is, the worlds' together."""
    from lab.simulation.catalog.mutations import MUTATIONS as CATALOG
    from lab.simulation.processes.mutations import MUTATIONS as PROCESSES
    from lab.simulation.rows.mutations import MUTATIONS as ROWS

    return [*ROWS, *CATALOG, *PROCESSES]
