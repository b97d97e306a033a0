"""Which drops of objects were published last: what was read before too many of them must be read again. Pure.

The fold remembers the last `DROPS_KEPT` drops of a set by name. An image from before an older one may be of the object
that was dropped, so the fold waits for another (`consumers.fold.objects`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from stream.wire import events
from stream.wire.events import Change, ObjectImage


class RecentDrops:
    """The events at which objects of each set were dropped last."""

    def __init__(self) -> None:
        self._events: dict[tuple[str, int], deque[int]] = {}

    def note(self, event_id: int, changes: Iterable[Change]) -> None:
        """These were published at an event."""
        for change in changes:
            if isinstance(change, ObjectImage) and change.change == "dropped":
                found = self._events.setdefault((change.kind, change.table_id), deque(maxlen=events.DROPS_KEPT + 1))
                found.append(event_id)

    def forget(self, table_id: int) -> None:
        """The table is gone."""
        for of in [each for each in self._events if each[1] == table_id]:
            del self._events[of]

    def allow(self, kind: str, table_id: int, lo: int) -> bool:
        """Whether an image that was read at or after the event ``lo`` will be taken for what it is."""
        found = self._events.get((kind, table_id))
        return found is None or len(found) <= events.DROPS_KEPT or found[0] <= lo
