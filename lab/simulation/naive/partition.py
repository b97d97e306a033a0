"""The naive fold of a partition, message by message, written from docs/concepts/rows.md and docs/concepts/order.md."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from lab.simulation.naive import positions
from lab.simulation.naive.messages import PASSED_OVER, Record, Unreadable, read_message
from lab.simulation.naive.tables import NaiveTables

VALUE: Final = 1
ABSENT: Final = 2
VOID: Final = 3
EVERY: Final = "*"
REPEATED: Final = ("TableSchema", "NameBinding", "Scope", "TableBackfill")
"""Events that a publisher says again, perhaps after their epoch is over."""

Place = tuple[int, int]
"""(epoch, ordinal)"""
Line = tuple[int, int, str, int, int]
"""Epoch, ordinal and position of a marker; epoch and ordinal of a void before it, 0 if there is none."""


class NaiveRow(NamedTuple):
    """What is known of a key, and the event that said it."""

    kind: int
    shard: str
    place: Place
    timestamp: int
    position: str
    image: bytes


class NaiveShard:
    """How far a shard is folded in this partition."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.ordinal = 0
        self.mark = 0
        """Ordinal of the watermark."""
        self.watermark = ""
        self.timestamp = 0
        self.low_water = ""
        """"": unknown."""
        self.link = 0
        """The number of the last marker, which the next one must name."""
        self.as_of_ms = 0


class NaivePartition:
    """Dictionaries of what is known. ``letters``: (offset, code) of each dead letter."""

    def __init__(self, begin: int = 0) -> None:
        """``begin``: the first offset; nothing is known of what was before it."""
        self.begin = begin
        self.layout = ""
        self.rows: dict[bytes, NaiveRow] = {}
        self.shards: dict[str, NaiveShard] = {}
        self.voids: dict[tuple[str, str], tuple[Place, str]] = {}
        """(table or ``*``, shard) → the place up to which older entries are unknown, and the floor of fills."""
        self.schemas: dict[tuple[str, str], Record] = {}
        """(table, shard) → what the shard says of the table."""
        self.scopes: dict[str, Place] = {}
        self.backfills: dict[tuple[str, str], tuple[int, int, int, str, int]] = {}
        """(table, shard) → epoch, the ordinals at which it began and was complete, and where that was."""
        self.dropped: dict[tuple[str, str], Line] = {}
        """(table, shard) → the line of the table when it was last known whole."""
        self.topologies: dict[str, Record] = {}
        self.texts: dict[bytes, Record] = {}
        self.tables = NaiveTables(begin)
        self.letters: list[tuple[int, str]] = []

    def fold(self, offset: int, value: bytes | None) -> None:
        """Folds the message at ``offset``."""
        whole = self._whole_tables()
        self._fold_message(offset, value)
        if whole:
            still = self._whole_tables()
            self.dropped |= {scope: line for scope, line in whole.items() if scope not in still}

    def _fold_message(self, offset: int, value: bytes | None) -> None:
        try:
            name, event = read_message(value, self.texts)
            if name not in (PASSED_OVER, "SourceState"):
                self._fold(offset, name, event)
        except Unreadable as unreadable:
            self._void_everything()
            self.letters.append((offset, str(unreadable)))

    def _fold(self, offset: int, name: str, event: Record) -> None:
        if name == "Topology":
            self._declare(event)
        elif name == "SchemaText":
            self.texts[event["fingerprint"]] = event
        elif name == "Marker" and self.layout and event["layout"] != self.layout:
            self.letters.append((offset, "layout_changed"))
        elif self._is_over(event):
            self._fold_after_its_epoch(offset, name, event)
        else:
            is_known = event["shard"] in self.shards
            shard = self._arrive(offset, event)
            match name:
                case "RowFrame":
                    self._rows(offset, event, shard)
                case "Marker":
                    self._mark(offset, event, shard)
                case "EpochStart":
                    self._start(event, shard, is_known)
                case _:
                    self._event(offset, name, event, shard)

    def _event(self, offset: int, name: str, event: Record, shard: NaiveShard) -> None:
        before = shard.ordinal
        shard.ordinal = max(before, event["ordinal"])
        match name:
            case "TableVoid":
                self._void_table(event)
            case "TableSchema":
                self._describe(event)
            case "Scope":
                self._begin_scope(event)
            case "TableBackfill":
                self._backfill(event)
            case _:
                self.letters += [(offset, code) for code in self.tables.fold(name, event, self)]

    def _is_over(self, event: Record) -> bool:
        known = self.shards.get(event["shard"])
        return known is not None and event["epoch"] < known.epoch

    def _fold_after_its_epoch(self, offset: int, name: str, event: Record) -> None:
        if name not in REPEATED:
            self.letters.append((offset, "older_epoch"))
        elif name == "TableSchema":
            self._describe(event)
        elif name == "Scope":
            self._begin_scope(event)
        elif name == "TableBackfill":
            self._backfill(event)
        else:
            self.tables.fold(name, event, self)

    def _arrive(self, offset: int, event: Record) -> NaiveShard:
        """The shard of an event. A new epoch voids what was before it; a shard that nobody named voids everything."""
        name, epoch = event["shard"], event["epoch"]
        known = self.shards.get(name)
        if known is None and self.shards and not self._is_named(name):
            self._void_everything()
            self.letters.append((offset, "second_shard"))
        if known is not None and epoch > known.epoch:
            self.voids[EVERY, name] = ((epoch, 0), "")
        if known is None or epoch > known.epoch:
            known = self.shards[name] = NaiveShard(epoch)
        return known

    def _is_named(self, name: str) -> bool:
        declared = [self.topologies[other] for other in self.shards if other in self.topologies]
        return any(name in topology["shards"] for topology in declared)

    def _void_everything(self) -> None:
        for name, shard in self.shards.items():
            self.voids[EVERY, name] = ((shard.epoch, shard.ordinal), "")

    def _rows(self, offset: int, frame: Record, shard: NaiveShard) -> None:
        name, before = frame["shard"], shard.ordinal
        for key, image, operation, ordinal, txn in frame["rows"]:
            shard.ordinal = max(shard.ordinal, ordinal)
            if key.find(b"\0") < 1 or key[0] < 0x20:
                self.letters.append((offset, "bad_key"))
                self.voids[EVERY, name] = ((shard.epoch, max(before, ordinal)), "")
                continue
            kind = operation
            if operation not in (VALUE, ABSENT, VOID) or (operation == VALUE and not image):
                self.letters.append((offset, "bad_operation"))
                kind = VOID
            place = (shard.epoch, ordinal)
            held = self.rows.get(key)
            lines = self._lines(key)
            if self._has_map_with(name):  # no other shard has a say in it
                held = held if held is not None and held.shard == name else None
                lines = {name: lines[name]} if name in lines else {}
            if held is not None and not self.is_forgotten(key, held):
                before_it = {held.shard: held.place}
            else:  # it counts as deleted where the table was last known to be whole
                before_it = {other: line[:2] for other, line in lines.items()}
            if name in before_it and place <= before_it[name]:
                continue
            if any(other != name for other in before_it):
                kind = VOID  # no shard of the worlds has an origin or an ancestor: the order is unknown
            kept = image if kind == VALUE else b""
            self.rows[key] = NaiveRow(kind, name, place, frame["timestamps"][txn], frame["positions"][txn], kept)

    def _whole_tables(self) -> dict[tuple[str, str], Line]:
        """The tables of which a key without an entry is absent → the marker of their shard, and their last void."""
        found = {}
        for (table, name), (epoch, begun, complete, _, _) in self.backfills.items():
            shard, said = self.shards.get(name), self.topologies.get(name)
            if shard is None or said is None:
                continue
            if not self._has_map_with(name) and (
                self.map_in_force() or [*self.shards] != [name] or said["shards"] != [name]
            ):
                continue
            voids = [each[0] for each in map(self.voids.get, ((table, name), (EVERY, name))) if each]
            is_lost = any(each >= (epoch, begun) for each in voids)
            is_out = name in self.scopes and self.scopes[name] >= (epoch, begun)
            if complete and epoch == shard.epoch and shard.mark >= complete and not is_lost and not is_out:
                found[table, name] = (epoch, shard.mark, shard.watermark, *max(voids, default=(0, 0)))
        return found

    def map_in_force(self) -> dict[str, str]:
        """Shard → range, if all shards here declare the same map and are in it; else empty."""
        maps = [
            {each["shard"]: each["range"] for each in said["ranges"]} if (said := self.topologies.get(name)) else {}
            for name in self.shards
        ]
        first = maps[0] if maps else {}
        return first if all(each == first for each in maps) and self.shards.keys() <= first.keys() else {}

    def _has_map_with(self, name: str) -> bool:
        """Whether a map is in force, and this shard has a range of it."""
        return name in self.map_in_force()

    def _lines(self, key: bytes) -> dict[str, Line]:
        """Shard → up to where what is known of this key is as good as nothing."""
        lines = self.dropped | self._whole_tables()
        table = key.partition(b"\0")[0].decode(errors="replace")
        return {name: line for (of, name), line in lines.items() if of == table}

    def is_forgotten(self, key: bytes, row: NaiveRow) -> bool:
        """Whether a row is known to be absent without what is known of it: so is all that a void is behind."""
        line = self._lines(key).get(row.shard)
        if line is None or not positions.is_readable(row.position):
            return False
        return row.place <= (line[:2] if row.kind == ABSENT else line[3:])

    def _mark(self, offset: int, marker: Record, shard: NaiveShard) -> None:
        name, ordinal = marker["shard"], marker["ordinal"]
        if shard.link and marker["previous"] and shard.link not in (marker["previous"], marker["continuity"]):
            self.voids[EVERY, name] = ((shard.epoch, max(shard.ordinal, ordinal)), "")
            self.letters.append((offset, "log_gap"))
        if ordinal < shard.mark:
            shard.link = marker["continuity"] or shard.link
            return
        if marker["whole"]:
            for scope, ((epoch, last), floor) in self.voids.items():
                if scope[1] == name and epoch == shard.epoch and last <= ordinal and not floor:
                    self.voids[scope] = ((epoch, last), marker["position"])
        shard.low_water = self._low_water(shard, marker)
        shard.ordinal, shard.mark = max(shard.ordinal, ordinal), ordinal
        shard.watermark, shard.timestamp = marker["position"], marker["timestamp"]
        shard.link, shard.as_of_ms = marker["continuity"], marker["as_of_ms"]
        self.layout = marker["layout"]

    def _low_water(self, shard: NaiveShard, marker: Record) -> str:
        """The higher of what is known and what is told. A state from the middle knows nothing before its first mark."""
        if not shard.low_water and self.begin:
            return str(marker["position"]) if marker["whole"] else ""
        return positions.joined(shard.low_water, marker["low_water"]) if shard.low_water else marker["low_water"]

    def _start(self, event: Record, shard: NaiveShard, is_known: bool) -> None:
        """A new epoch voids what was before it, if there was anything. Said again, it changes nothing."""
        if shard.ordinal:
            return
        if is_known:
            self.voids[EVERY, event["shard"]] = ((event["epoch"], event["ordinal"]), event["position"])
        shard.ordinal, shard.low_water = event["ordinal"], event["position"]

    def _void_table(self, event: Record) -> None:
        scope, place = (event["table"], event["shard"]), (event["epoch"], event["ordinal"])
        if scope not in self.voids or place > self.voids[scope][0]:
            self.voids[scope] = (place, event["position"])
        self.tables.void(event)

    def _describe(self, event: Record) -> None:
        held = self.schemas.get((event["table"], event["shard"]))
        if held is None or (event["epoch"], event["ordinal"]) > (held["epoch"], held["ordinal"]):
            self.schemas[event["table"], event["shard"]] = event

    def _begin_scope(self, event: Record) -> None:
        name, place = event["shard"], (event["epoch"], event["ordinal"])
        if name in self.scopes and self.scopes[name] >= place:
            return
        self.scopes[name] = place
        if (EVERY, name) not in self.voids or self.voids[EVERY, name][0] < place:
            self.voids[EVERY, name] = (place, "")

    def _backfill(self, event: Record) -> None:
        """A completion counts once, and only for a beginning of its epoch that was folded here before it."""
        scope, place = (event["table"], event["shard"]), (event["epoch"], event["ordinal"])
        held = self.backfills.get(scope)
        if not event["complete"]:
            if held is None or place > held[:2]:
                self.backfills[scope] = (*place, 0, "", 0)
        elif held is not None and held[0] == place[0] and held[1] < place[1] and not held[2]:
            self.backfills[scope] = (*held[:2], place[1], event["position"], event["timestamp"])

    def _declare(self, event: Record) -> None:
        name = event["shard"]
        held, known = self.topologies.get(name), self.shards.get(name)
        if held is not None and (event["epoch"], event["ordinal"]) < (held["epoch"], held["ordinal"]):
            return
        if held is not None and known is not None and _own_range(held) != _own_range(event):
            self.voids[EVERY, name] = ((known.epoch, known.ordinal), "")
        self.topologies[name] = event

    def lost_since(self, shard: str, table: str, epoch: int, ordinal: int) -> bool:
        """Whether a void at or after this place hides what happened to ``table``."""
        found: list[Any] = [self.voids.get((scope, shard)) for scope in (EVERY, table)]
        return any(each is not None and each[0][0] == epoch and each[0][1] >= ordinal for each in found)

    def low_water_of(self, shard: str) -> str:
        """The low-water of a shard; "" if it is unknown."""
        known = self.shards.get(shard)
        return known.low_water if known is not None else ""


def _own_range(topology: Record) -> str:
    """The range that a shard says it has; "" if it says none."""
    return next((each["range"] for each in topology["ranges"] if each["shard"] == topology["shard"]), "")
