"""Which drops of objects were published last: what was read before too many of them must be read again. Pure.

The fold remembers the last `DROPS_KEPT` drops of a set by name. An image from before an older one may be of the object
that was dropped, so the fold waits for another (`consumers.fold.objects`). What is the only one of its kind in a table
has no name, and nothing beside it whose drop could matter to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stream.wire import events
from stream.wire.events import Change, ObjectImage


class RecentDrops:
    """The events at which objects of each set were dropped last."""

    def __init__(self) -> None:
        self._events: dict[int, dict[str, deque[int]]] = {}
        """Table id (0: of the catalog) → kind → events."""

    def note(self, event_id: int, changes: Iterable[Change]) -> None:
        """These were published at an event."""
        for change in changes:
            if isinstance(change, ObjectImage) and change.change == "dropped" and change.name:
                kinds = self._events.setdefault(change.table_id, {})
                kinds.setdefault(change.kind, deque(maxlen=events.DROPS_KEPT + 1)).append(event_id)

    def forget(self, table_id: int) -> None:
        """The table is gone."""
        self._events.pop(table_id, None)

    def allow(self, kind: str, table_id: int, lo: int) -> bool:
        """Whether an image that was read at or after the event ``lo`` will be taken for what it is."""
        found = self._events.get(table_id, {}).get(kind)
        return found is None or len(found) <= events.DROPS_KEPT or found[0] <= lo
