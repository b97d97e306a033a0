"""Which tables' constraints were written, and have not been published since: another write of them is no news. Pure.

Some events write the constraints of very many tables, since nobody can tell whose they have changed. Where those of a
table are awaited anyway, it is enough that none is published that was read before the last such event.

A constraint belongs to a list of columns that a table may share with partitions. Where one of these is dropped or
altered, a metastore may delete that list, and shows the constraint with another column then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stream.sources.hive.object_events import CONSTRAINTS, PARTITION
from stream.sources.hive.rpc.thrift import field
from stream.sources.hive.structs import Struct
from stream.wire.events import BindName, Change, ObjectImage, ObjectSet, TableImage, VoidTable

FREES: Final = frozenset({"DROP_PARTITION", "ALTER_PARTITION", "ALTER_PARTITIONS", "ALTER_TABLE"})
"""Events after which no partition may have the columns that it had."""


class ConstraintWrites:
    """Of one run over the log: what was written before it is not known here, and counts as published."""

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

    def freed_with(self, event_id: int, event_type: str, changes: Iterable[Change]) -> list[ObjectImage]:
        """The writes of constraints that an event of partitions brings along, besides its ``changes``."""
        if event_type not in FREES:
            return []
        parts, told = set[int](), set[int]()
        for change in changes:
            match change:
                case ObjectImage(kind=kind) | ObjectSet(kind=kind) if kind in (PARTITION, CONSTRAINTS):
                    (parts if kind == PARTITION else told).add(change.table_id)
        news = [each for each in sorted(parts - told - self._without) if self.is_news(each, event_id)]
        return [ObjectImage(CONSTRAINTS, each, (), "written") for each in news]

    def is_outdated(self, table_id: int, lo: int) -> bool:
        """Whether an event after ``lo`` may have changed them: what was read then is not to be published."""
        return self._awaited.get(table_id, 0) > lo

    def published(self, table_id: int, constraints: Struct | None) -> None:
        """These ``SQLAllTableConstraints`` of the table are published, and are not outdated."""
        self._awaited.pop(table_id, None)
        has_some = any(field(constraints or {}, number) for number in constraints or ())
        (self._without.discard if has_some else self._without.add)(table_id)
