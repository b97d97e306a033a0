"""What a Hive source has still to fetch, as its cursor in the topic: so that it goes on where it was cut off. Pure."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

DIRTY_MAX: Final = 500
"""Names of tables to fetch that a cursor holds. With more of them, everything is fetched again after a restart."""


class Progress:
    """A *sweep* fetches every table once, in the order of names; *dirty* ones were written since they were fetched."""

    def __init__(self, cursor: str = "") -> None:
        """``cursor``: as it was published. Without one, or with one that can't be read, a sweep begins."""
        try:
            found = json.loads(cursor) if cursor else {}
            self.catalog: str = str(found.get("catalog", ""))
            """The Hive catalog that was published; "" of an earlier version, which did not say."""
            self.sweeping: bool = bool(found.get("sweeping", True))
            self.swept: str = str(found.get("swept", ""))
            dirty = [str(each) for each in found.get("dirty", [])]
            self.objects_due: bool = bool(found.get("objects", True))
            detailed = found.get("details", "")
            parted = found.get("partitions", "") if detailed is not None else None
            self.untold: tuple[str, ...] = tuple(str(each) for each in found.get("untold", []))
            """Tables of which nobody told the statistics of all partitions together when the cursor was published."""
            self.adds_together: bool = bool(found.get("adds_together"))
            """Whether the sweep of constraints and statistics is made for these alone: all else has been published."""
            keys = found.get("keys", {})
            self.keys = {str(parent): tuple(int(each) for each in children) for parent, children in keys.items()}
            """As of `stream.sources.hive.foreign_keys.ForeignKeys`."""
            if not (found.get("together") and "keys" in found):
                # An earlier version has not published the statistics of all partitions together, or foreign keys.
                self.adds_together = detailed is None and not self.sweeping
                detailed = ""
            if not found.get("defaults"):
                # An earlier version has published a partition of an empty value by that.
                self.adds_together, detailed, parted = False, "", ""
            self.detailed: str | None = None if detailed is None else str(detailed)
            """The last table whose constraints and statistics a sweep has published; None: those of all."""
            self.parted: str | None = None if parted is None else str(parted)
            """The same for partitions, which have a sweep of their own before that."""
        except (ValueError, TypeError, AttributeError, RecursionError):
            self.sweeping, self.swept, dirty, self.untold, self.adds_together = True, "", [], (), False
            self.objects_due, self.detailed, self.parted, self.keys, self.catalog = True, "", "", {}, ""
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
            self.adds_together = self.adds_together and name is not None

    def begin_sweep(self) -> None:
        """Everything is to be fetched again."""
        self.sweeping, self.swept, self.objects_due = True, "", True
        self.detailed = self.parted = ""
        self.adds_together = False

    def cursor(
        self,
        others: Iterable[str] = (),
        untold: Collection[str] = (),
        keys: Mapping[str, Sequence[int]] = MappingProxyType({}),
    ) -> str:
        """As text, for the state in the topic. ``others``: tables of which something else is to be fetched.

        ``untold``: those of which nobody told the statistics of all partitions together. With too many of them it is
        these that a sweep asks for again, not everything. ``keys``: published ones, which hold until all is fetched.
        """
        left = {*self._dirty, *others}
        if len(left) > DIRTY_MAX:
            return json.dumps({"sweeping": True, "swept": "", "keys": {**keys}, "catalog": self.catalog})
        found = {"sweeping": self.sweeping, "swept": self.swept, "dirty": sorted(left), "objects": self.objects_due}
        told = {"untold": sorted(untold), "together": True, "adds_together": self.adds_together}
        if len(untold) > DIRTY_MAX:
            told = {"together": False}
        parts = {"details": self.detailed, "partitions": self.parted, "keys": {**keys}, "defaults": True}
        return json.dumps({**found, **parts, **told, "catalog": self.catalog})


def checksum_of(row: Mapping[str, Any]) -> int:
    """A number that tells an event of the log from another one of the same id."""
    known = (row.get("eventId"), row.get("eventTime"), row.get("eventType"), row.get("dbName"), row.get("message"))
    return zlib.crc32(repr(known).encode("utf-8", "surrogateescape")) or 1
