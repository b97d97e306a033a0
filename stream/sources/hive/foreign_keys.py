"""Which tables' constraints change with another table, to which a foreign key of theirs points, or a partition. Pure.

A metastore logs a DROP, a rename and whatever else of a table under its own name alone. But it takes away the foreign
keys that point to it, and shows others with new names of it and of its key. So what may have changed its constraints
writes those of the tables that point to it, too.

Some events write the constraints of very many tables, since nobody can tell whose they have changed. Where those of a
table are awaited anyway, it is enough that none is published that was read before the last such event.

A constraint belongs to a list of columns that a table may share with partitions. Where one of these is dropped or
altered, a metastore may delete that list, and shows the constraint with another column then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

from stream.sources.hive.object_events import CONSTRAINTS, PARTITION
from stream.sources.hive.rpc.thrift import field
from stream.sources.hive.structs import Struct
from stream.wire.events import BindName, Change, ObjectImage, ObjectSet, TableImage, VoidTable

PAIRS_MAX: Final = 1_000
"""Tables with foreign keys, each with each table that these point to, that a cursor holds. Those beyond are not
published: after a restart nobody would know of them."""
FREES: Final = frozenset({"DROP_PARTITION", "ALTER_PARTITION", "ALTER_PARTITIONS", "ALTER_TABLE"})
"""Events after which no partition may have the columns that it had."""


class ConstraintWrites:
    """Which constraints were written, and are not published since, and which tables have none.

    Of one run over the log: what was written before it is not known here, and counts as published.
    """

    def __init__(self) -> None:
        self._awaited: dict[int, int] = {}
        """Table id → the last event that may have changed its constraints."""
        self._without: set[int] = set()
        """Ids of tables that have none, as was published."""

    def note(self, event_id: int, changes: Iterable[Change]) -> None:
        """These changes are published, after the event ``event_id``."""
        for change in changes:
            match change:
                case ObjectImage(kind=kind, change="written") if kind == CONSTRAINTS:
                    self._awaited[change.table_id] = event_id
                    self._without.discard(change.table_id)
                case BindName() | TableImage(change="dropped"):
                    self._awaited.pop(change.table_id, None)  # what was to be fetched may have been given up
                    self._without.discard(change.table_id)
                case VoidTable():  # any table may have got some
                    self._without.clear()

    def is_news(self, table_id: int, event_id: int) -> bool:
        """Whether it must be published that the event ``event_id`` may have changed the table's constraints."""
        if table_id not in self._awaited:
            return True
        self._awaited[table_id] = event_id
        return False

    def freed_with(self, event_type: str, changes: Iterable[Change]) -> list[ObjectImage]:
        """The writes of constraints that an event of partitions brings along, besides its ``changes``.

        Also of those that are awaited: what points to them may have been read before the event.
        """
        if event_type not in FREES:
            return []
        parts, told = set[int](), set[int]()
        for change in changes:
            match change:
                case ObjectImage(kind=kind) | ObjectSet(kind=kind) if kind in (PARTITION, CONSTRAINTS):
                    (parts if kind == PARTITION else told).add(change.table_id)
        return [ObjectImage(CONSTRAINTS, each, (), "written") for each in sorted(parts - told - self._without)]

    def is_outdated(self, table_id: int, lo: int) -> bool:
        """Whether an event after ``lo`` may have changed them: what was read then is not to be published."""
        return self._awaited.get(table_id, 0) > lo

    def published(self, table_id: int, constraints: Struct | None) -> None:
        """These ``SQLAllTableConstraints`` of the table are published, and are not outdated."""
        self._awaited.pop(table_id, None)
        has_some = any(field(constraints or {}, number) for number in constraints or ())
        (self._without.discard if has_some else self._without.add)(table_id)


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
