"""What a Hive source has still to fetch, as its cursor in the topic: so that it goes on where it was cut off. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

DIRTY_MAX: Final = 500
"""Names of tables to fetch that a cursor holds. With more of them, everything is fetched again after a restart."""


class Progress:
    """A *sweep* fetches every table once, in the order of names; *dirty* ones were written since they were fetched."""

    def __init__(self, cursor: str = "") -> None:
        """``cursor``: as it was published. Without one, or with one that can't be read, a sweep begins."""
        try:
            found = json.loads(cursor) if cursor else {}
            self.sweeping: bool = bool(found.get("sweeping", True))
            self.swept: str = str(found.get("swept", ""))
            dirty = [str(each) for each in found.get("dirty", [])]
            self.objects_due: bool = bool(found.get("objects", True))
            detailed = found.get("details", "")
            parted = found.get("partitions", "") if detailed is not None else None
            if not found.get("together"):
                detailed = ""  # an earlier version has not published the statistics of all partitions together
            self.detailed: str | None = None if detailed is None else str(detailed)
            """The last table whose constraints and statistics a sweep has published; None: those of all."""
            self.parted: str | None = None if parted is None else str(parted)
            """The same for partitions, which have a sweep of their own before that."""
        except (ValueError, TypeError, AttributeError, RecursionError):
            self.sweeping, self.swept, dirty = True, "", []
            self.objects_due, self.detailed, self.parted = True, "", ""
        self._dirty = dict.fromkeys(dirty)

    @property
    def dirty(self) -> Collection[str]:
        """The tables to fetch, the one that was not touched for longest first: busy ones don't hold up the others."""
        return self._dirty.keys()

    def touch(self, names: Iterable[str]) -> None:
        """These tables are to be fetched."""
        for name in names:
            self._dirty.pop(name, None)
            self._dirty[name] = None

    def done(self, name: str) -> None:
        """The table was published, or there is none of this name any more."""
        self._dirty.pop(name, None)

    def note_belongings(self, name: str | None) -> None:
        """The sweep of partitions, else that of constraints and statistics, has published the table; None: all."""
        if self.parted is not None:
            self.parted = name
        else:
            self.detailed = name

    def begin_sweep(self) -> None:
        """Everything is to be fetched again."""
        self.sweeping, self.swept, self.objects_due = True, "", True
        self.detailed = self.parted = ""

    def cursor(self, others: Iterable[str] = ()) -> str:
        """As text, for the state in the topic. ``others``: tables of which something else is to be fetched."""
        left = {*self._dirty, *others}
        if len(left) > DIRTY_MAX:
            return json.dumps({"sweeping": True, "swept": ""})
        found = {"sweeping": self.sweeping, "swept": self.swept, "dirty": sorted(left), "objects": self.objects_due}
        return json.dumps({**found, "details": self.detailed, "partitions": self.parted, "together": True})


def checksum_of(row: Mapping[str, Any]) -> int:
    """A number that tells an event of the log from another one of the same id."""
    known = (row.get("eventId"), row.get("eventTime"), row.get("eventType"), row.get("dbName"), row.get("message"))
    return zlib.crc32(repr(known).encode("utf-8", "surrogateescape")) or 1
