"""Which tables' constraints change with another table, to which a foreign key of theirs points. Pure.

A metastore logs a DROP, a rename and whatever else of a table under its own name alone. But it takes away the foreign
keys that point to it, and shows others with new names of it and of its key. So what may have changed its constraints
writes those of the tables that point to it, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from stream.sources.hive.constraint_writes import ConstraintWrites
from stream.sources.hive.object_events import CONSTRAINTS
from stream.wire.events import BindName, Change, ObjectImage, TableImage, VoidTable

PAIRS_MAX: Final = 1_000
"""Tables with foreign keys, each with each table that these point to, that a cursor holds. Those beyond are not
published: after a restart nobody would know of them."""


class ForeignKeys:
    """Of all tables that have some. ``told``: as the cursor tells them. ``name_of``: table id → its name, or "".

    ``is_followed``: whether events tell of the table of a name.
    """

    def __init__(
        self, told: Mapping[str, Collection[int]], name_of: Callable[[int], str], is_followed: Callable[[str], bool]
    ) -> None:
        self._name_of = name_of
        self._is_followed = is_followed
        self._children: dict[str, set[int]] = {parent: {*children} for parent, children in told.items()}
        """Table → the ids of those that point to it."""
        self._parents: dict[int, set[str]] = {}
        for parent, children in told.items():
            for child in children:
                self._parents.setdefault(child, set()).add(parent)
        self._told = {*self._parents}
        """Those that the cursor holds."""
        self._pairs = sum(map(len, self._parents.values()))
        """How many pairs of table and parent it holds."""
        self._in_cursor: Mapping[str, Sequence[int]] | None = None
        self._touched: dict[str, int] = {}
        self.writes = ConstraintWrites()
        """Of all tables."""

    @property
    def told(self) -> Mapping[str, Sequence[int]]:
        """What the cursor is to hold: table → the ids of those that point to it and are published."""
        if self._in_cursor is None:  # it is asked for with each event
            of = {parent: sorted(children & self._told) for parent, children in self._children.items()}
            self._in_cursor = {parent: children for parent, children in sorted(of.items()) if children}
        return self._in_cursor

    def changed_with(self, event_id: int, changes: Iterable[Change]) -> list[Change]:
        """The writes that ``changes`` of an event bring along: constraints of tables that point to a changed one."""
        names: set[str] = set()
        written: set[int] = set()
        for change in changes:
            match change:
                case ObjectImage(kind=kind, change="written") if kind == CONSTRAINTS:
                    written.add(change.table_id)
                    names.add(self._name_of(change.table_id))
                case BindName():
                    names |= {change.name, change.previous_name}
                case TableImage(change="dropped"):
                    self._forget(change.table_id)
                    names.add(change.name)
                case VoidTable():
                    names.add(change.table)
        self._touched |= dict.fromkeys(names, event_id)
        found = {child for name in names for child in self._children.get(name, ())} - written
        return [ObjectImage(CONSTRAINTS, child, (), "written") for child in sorted(found)]

    def touched_at(self, names: Iterable[str]) -> int:
        """The last event, since `settled`, that may have changed what points to one of these tables."""
        return max((self._touched.get(name, 0) for name in names), default=0)

    def settled(self) -> None:
        """Nothing is being fetched."""
        self._touched.clear()

    def note(self, child: int, parents: Collection[str]) -> bool:
        """The table has keys to ``parents``. Whether they can be published: every change of them will be seen."""
        self._forget(child)
        if not parents:
            return True
        self._parents[child] = {*parents}
        for parent in parents:
            self._children.setdefault(parent, set()).add(child)
        is_seen = all(parent.count(".") == 1 and self._is_followed(parent) for parent in parents)
        if not is_seen or self._pairs + len(parents) > PAIRS_MAX:
            return False
        self._told.add(child)
        self._pairs += len(parents)
        self._in_cursor = None
        return True

    def _forget(self, child: int) -> None:
        parents = self._parents.pop(child, set())
        if child in self._told:
            self._told.discard(child)
            self._pairs -= len(parents)
            self._in_cursor = None
        for parent in parents:
            children = self._children[parent]
            children.discard(child)
            if not children:
                del self._children[parent]
