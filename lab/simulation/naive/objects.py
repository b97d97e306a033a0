"""The naive fold of objects other than tables, and of sets of them, written from docs/concepts/catalog.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lab.simulation.naive import positions
from stream.wire import events

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

    @property
    def is_gone(self) -> bool:
        """Whether it was dropped, and nothing was said of it since."""
        return self.value is None and self.known_at > 0 and self.known_at >= self.write[0]


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


@dataclass
class NaiveDrops:
    """The drops of a set in one epoch. ``forgotten``: ordinal and position; ``recent``: names, the oldest first."""

    shard: str
    epoch: int
    forgotten: tuple[int, str] = (0, "")
    recent: tuple[str, ...] = ()


class NaiveObjects:
    """All objects and sets of a partition."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, int, str], NaiveObject] = {}
        self.sets: dict[tuple[str, int], NaiveSet] = {}
        self.drops: dict[tuple[str, int], NaiveDrops] = {}

    def forget_table(self, table_id: int) -> None:
        """The table was dropped, and all that belongs to it."""
        if table_id:
            self.objects = {key: each for key, each in self.objects.items() if key[1] != table_id}
            self.sets = {key: each for key, each in self.sets.items() if key[1] != table_id}
            self.drops = {key: each for key, each in self.drops.items() if key[1] != table_id}

    def _forget_set(self, group: tuple[str, int]) -> None:
        """Another epoch of the set begins."""
        self.drops.pop(group, None)
        for key in [each for each in self.objects if each[:2] == group]:
            del self.objects[key]

    def fold(self, name: str, event: Event, is_dropped: bool) -> None:
        """Folds a `CatalogObject` or a `CatalogSet`. ``is_dropped``: the table was, to which it belongs."""
        group = event["kind"], event["table_id"]
        if is_dropped and group not in self.sets:
            return
        if name == "CatalogSet":
            self._fold_set(event)
            return
        key = (*group, event["name"])
        held = self.objects.get(key)
        is_unknown = held is None
        drops = self.drops.get(group)
        if drops is None or (drops.shard, drops.epoch) != (event["shard"], event["epoch"]):
            drops = NaiveDrops(event["shard"], event["epoch"])
        if held is None:
            held = NaiveObject(event["shard"], event["epoch"], drops.forgotten[0], write=drops.forgotten)
        elif event["epoch"] > held.epoch:
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
        elif is_unknown and event["change"] == "dropped":  # known already
            self._touch(event, hi)
            return
        held.ordinal = event["ordinal"]
        self._touch(event, hi)
        self.objects[key] = held
        if held.is_gone and held.write == here:
            self.drops[group] = drops
            self._note_drop(group, event["name"], drops)

    def _note_drop(self, group: tuple[str, int], name: str, drops: NaiveDrops) -> None:
        """So many stay that were dropped last. Of the others only where they were dropped is remembered."""
        names = [each for each in drops.recent if each != name] + [name]
        drops.recent = tuple(names[-events.DROPS_KEPT :])
        for each in names[: -events.DROPS_KEPT]:
            found = self.objects.get((*group, each))
            if found is not None and found.is_gone:
                del self.objects[(*group, each)]
                ordinal, position = drops.forgotten
                is_later = not position or positions.reaches(found.write[1], position)
                drops.forgotten = max(ordinal, found.ordinal), found.write[1] if is_later else position

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
        before = self.sets.get((event["kind"], event["table_id"]))
        if before is not None and before is not held:
            self._forget_set((event["kind"], event["table_id"]))
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
