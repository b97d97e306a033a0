"""The naive fold of objects other than tables, and of sets of them, written from docs/concepts/catalog.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.simulation.naive import positions

Event = dict[str, Any]


@dataclass
class NaiveObject:
    """One object in one epoch. ``known_at``: ordinal of the event that said what it is, or that it is gone."""

    shard: str
    epoch: int
    ordinal: int = 0
    value: tuple[bytes | None, bytes | None] | None = None
    lo: str = ""
    hi: str = ""
    known_at: int = 0
    write: tuple[int, str] = (0, "")


@dataclass
class NaiveSet:
    """All objects of a kind, of a table or of the catalog."""

    shard: str
    epoch: int
    ordinal: int = 0
    begun: int = 0
    whole: tuple[int, int] = (0, 0)
    """Where the pass began that made it whole, and where it ended; zeros: it is not whole."""
    void: tuple[int, str] = (0, "")
    lo: str = ""
    latest: str = ""


class NaiveObjects:
    """All objects and sets of a partition."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, int, str], NaiveObject] = {}
        self.sets: dict[tuple[str, int], NaiveSet] = {}

    def fold(self, name: str, event: Event) -> None:
        """Folds a `CatalogObject` or a `CatalogSet`."""
        if name == "CatalogSet":
            self._fold_set(event)
            return
        key = event["kind"], event["table_id"], event["name"]
        held = self.objects.get(key)
        if held is None or event["epoch"] > held.epoch:
            held = NaiveObject(event["shard"], event["epoch"])
        if (event["epoch"], event["ordinal"]) <= (held.epoch, held.ordinal):
            return
        lo, hi = event["lo"] or event["gtid"], event["hi"] or event["gtid"]
        here = event["ordinal"], event["gtid"]
        if event["change"] == "written" or (event["change"] == "image" and event["image"] is None):
            held.write = here
        elif not held.write[1] or positions.reaches(lo, held.write[1]):
            held.lo, held.hi, held.known_at = lo, hi, event["ordinal"]
            held.value = (event["image"], event["struct"]) if event["change"] == "image" else None
            if held.value is None:
                held.write = here
        held.ordinal = event["ordinal"]
        self.objects[key] = held
        self._touch(event, hi)

    def _set_of(self, event: Event) -> NaiveSet | None:
        key = event["kind"], event["table_id"]
        held = self.sets.get(key)
        if held is None or event["epoch"] > held.epoch:
            held = NaiveSet(event["shard"], event["epoch"])
        return held if (event["epoch"], event["ordinal"]) > (held.epoch, held.ordinal) else None

    def _touch(self, event: Event, *later: str) -> NaiveSet | None:
        held = self._set_of(event)
        if held is None:
            return None
        for position in (*later, event["gtid"]):
            if not held.latest or positions.reaches(position, held.latest):
                held.latest = position
        held.ordinal = event["ordinal"]
        self.sets[event["kind"], event["table_id"]] = held
        return held

    def _fold_set(self, event: Event) -> None:
        held = self._touch(event)
        if held is None:
            return
        if event["change"] == "void":
            held.begun, held.whole, held.void = 0, (0, 0), (event["ordinal"], event["reason"])
        elif event["change"] == "begun":
            held.begun, held.lo = event["ordinal"], event["lo"] or event["gtid"]
        elif held.begun:
            held.whole, held.begun = (held.begun, event["ordinal"]), 0
