"""Which tables' constraints were written, and have not been published since: another write of them is no news. Pure.

Some events write the constraints of very many tables, since nobody can tell whose they have changed. Where those of a
table are awaited anyway, it is enough that none is published that was read before the last such event.
"""

from __future__ import annotations

from collections.abc import Iterable

from stream.sources.hive.object_events import CONSTRAINTS
from stream.wire.events import BindName, Change, ObjectImage, TableImage


class ConstraintWrites:
    """Of one run over the log: what was written before it is not known here, and counts as published."""

    def __init__(self) -> None:
        self._awaited: dict[int, int] = {}
        """Table id → the last event that may have changed its constraints."""

    def note(self, event_id: int, changes: Iterable[Change]) -> None:
        """These changes are published, after the event ``event_id``."""
        for change in changes:
            match change:
                case ObjectImage(kind=kind, change="written") if kind == CONSTRAINTS:
                    self._awaited[change.table_id] = event_id
                case BindName() | TableImage(change="dropped"):
                    self._awaited.pop(change.table_id, None)  # what was to be fetched may have been given up

    def is_news(self, table_id: int, event_id: int) -> bool:
        """Whether it must be published that the event ``event_id`` may have changed the table's constraints."""
        if table_id not in self._awaited:
            return True
        self._awaited[table_id] = event_id
        return False

    def is_outdated(self, table_id: int, lo: int) -> bool:
        """Whether an event after ``lo`` may have changed them: what was read then is not to be published."""
        return self._awaited.get(table_id, 0) > lo

    def published(self, table_id: int) -> None:
        """Constraints of the table are published, and are not outdated."""
        self._awaited.pop(table_id, None)
