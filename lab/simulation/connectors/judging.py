"""What a topic says of rows, against what was committed. Pure.

A reader of the topic may keep any image that it has read, or one that it has got from the server behind the last void,
until it is told otherwise. So with each marker it must have been told every change up to there: the row as it was
left, or that the row, or its table, is not known from that change on. But for what was changed and changed back.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

from lab.simulation.connectors.committed import Slot
from lab.simulation.kafka.log import PartitionLog
from lab.simulation.naive.messages import PASSED_OVER, Record, Unreadable, read_message
from lab.simulation.naive.partition import ABSENT, EVERY, REPEATED, VALUE

TOLD: Final = "nothing lost, nothing twice"
NO_STALE: Final = "no stale answer"
Position = frozenset[int]
"""The numbers of commits."""
STEP: Final = 0x100
"""How much longer the log of a simulated PostgreSQL is with each commit: a place in it is a number of commits."""
Wrong = tuple[str, str]
"""The rule that is broken, and how."""


class Truth(Protocol):
    """Every row as each commit left it, by the number of the commit."""

    changed: list[list[Slot]]
    """Commit → the rows that differ after it."""

    def image(self, slot: Slot, commit: int) -> dict[str, Any] | None:
        """A row as a commit left it."""

    def rows(self, table: str, commit: int) -> list[Slot]:
        """The rows that a table had."""


class Told:
    """What one partition has told, record by record."""

    def __init__(self, truth: Truth, is_here: Callable[[Slot], bool]) -> None:
        self._truth = truth
        self._is_here = is_here
        self.known: dict[Slot, bool] = {}
        """Row → whether its image was told since the last void of its table."""
        self.marked: Position = frozenset()
        """The commits up to the last marker."""
        self._begin(0)

    def _begin(self, epoch: int) -> None:
        self.epoch, self._ordinal = epoch, 0
        self._rows: dict[Slot, Position] = {}
        """Row → the position at which it was told last."""
        self._tables: dict[str, Position] = {}
        """Table → the last position up to which nothing of it counts."""
        self._cacheable: dict[str, bool] = {}
        self._owed: dict[str, int] = {}
        """Table that is not cached → the last change that was not told. Where it is cached again it must be void."""
        self._whole: set[str] = set()
        """Tables of which nobody asks the server for rows that were not told."""
        self._said: set[bytes] = set()
        """What was declared: a publisher says it again, as the same bytes."""
        self._is_all_void = True
        self.known.clear()

    def take(self, value: bytes) -> Wrong | None:
        """The next record; what is wrong with it."""
        try:
            name, event = read_message(value, {})
        except Unreadable as unreadable:
            return TOLD, f"a record is {unreadable}"
        if name in ("SourceState", "SchemaText", "Topology", PASSED_OVER) or event["epoch"] < self.epoch:
            return None
        if event["epoch"] > self.epoch:
            self._begin(event["epoch"])
        if name in REPEATED:
            if value in self._said:
                return None
            self._said.add(value)
        match name:
            case "RowFrame":
                return next((wrong for row in event["rows"] if (wrong := self._row(event, *row)) is not None), None)
            case "Marker":
                return self._mark(position_of(event["position"]))
            case "TableVoid":
                self._void(event["table"], position_of(event["position"]))
            case "TableSchema":
                self._cacheable[event["table"]] = event["cacheable"]
            case "EpochStart":
                self.marked, self._is_all_void = position_of(event["position"]), False
                self._void(EVERY, self.marked)
            case "Scope":
                self._is_all_void = True
                self._void(EVERY, frozenset())
            case "TableBackfill" if event["complete"]:
                self._whole.add(event["table"])
        return None

    def _void(self, table: str, at: Position) -> None:
        self._tables[table] = at | self._tables.get(table, frozenset())
        for each in [each for each in self._whole if table in (EVERY, each)]:
            self._whole.remove(each)
        for slot in [slot for slot in self.known if table in (EVERY, slot[0])]:
            del self.known[slot]

    def _row(self, frame: Record, key: bytes, image: bytes, kind: int, ordinal: int, txn: int) -> Wrong | None:
        at, slot = position_of(frame["positions"][txn]), _slot(key)
        if ordinal <= self._ordinal:
            return TOLD, f"event {ordinal}, of {slot}, comes after event {self._ordinal}"
        self._ordinal = ordinal
        self._rows[slot] = at
        self.known[slot] = kind in (VALUE, ABSENT)
        if not self.known[slot]:
            return None
        told, true = json.loads(image) if kind == VALUE else None, self._image_at(slot, at)
        if told != true:
            return NO_STALE, f"{slot} is told to be {told} at commit {max(at, default=0)}, and is {true}"
        return None

    def _image_at(self, slot: Slot, at: Position) -> dict[str, Any] | None:
        """A row as the last commit of a position left it that changed it: a set of MySQL's may have gaps."""
        changed = self._truth.changed
        return self._truth.image(slot, max((number for number in at if slot in changed[number]), default=0))

    def _mark(self, at: Position) -> Wrong | None:
        if not self._is_all_void:
            for number in sorted(at - self.marked):
                for slot in filter(self._is_here, self._truth.changed[number]):
                    table = slot[0]
                    is_told = number in self._rows.get(slot, ()) or self._is_void(table, number)
                    is_told = is_told or self._image_at(slot, at) == self._image_at(slot, self.marked)
                    if not is_told and self._cacheable.get(table):
                        return TOLD, f"the marker behind commit {number} comes, and its change of {slot} was not told"
                    if not is_told:
                        self._owed[table] = number
        for table, number in [*self._owed.items()]:
            if self._is_void(table, number) or self._is_all_void:
                del self._owed[table]
            elif self._cacheable.get(table):
                return TOLD, f"{table} is cached again, and commit {number} of it was not told"
        self.marked, self._is_all_void = at, False
        return self._lacking()

    def _lacking(self) -> Wrong | None:
        """What a reader takes for absent that is there."""
        for table in sorted(self._whole):
            for slot in filter(self._is_here, self._truth.rows(table, max(self.marked, default=0))):
                if slot not in self.known:
                    return NO_STALE, f"{table} is whole, and {slot} was not told"
        return None

    def _is_void(self, table: str, number: int) -> bool:
        return any(number in self._tables.get(each, ()) for each in (table, EVERY))


def judged(
    logs: Sequence[PartitionLog], truth: Truth, partition_of: Callable[[Slot], int]
) -> tuple[list[Told], Wrong | None]:
    """What each partition has told, and what is wrong with it."""
    found, wrong = [], None
    for number, log in enumerate(logs):
        told = Told(truth, lambda slot, number=number: partition_of(slot) == number)  # type: ignore[misc]
        found.append(told)
        for each in log.committed(log.start, log.stable):
            if wrong is None:
                wrong = told.take(each.value or b"")
    return found, wrong


@lru_cache(maxsize=4_096)
def position_of(text: str) -> Position:
    """The commits of a position: three for ``MariaDB/0-1-3``, for ``MySQL56/UUID:1-2:5``, for ``Postgres/1:0/300``."""
    flavor, _, numbers = text.partition("/")
    if flavor == "Postgres":
        high, low = numbers.partition(":")[2].split("/")
        return frozenset(range(1, (int(high, 16) << 32 | int(low, 16)) // STEP + 1))
    if flavor == "MariaDB":
        return frozenset(range(1, int(numbers.rpartition("-")[2] or 0) + 1))
    ends = [each.partition("-") for each in numbers.split(":")[1:]]
    return frozenset(n for first, _, last in ends for n in range(int(first), int(last or first) + 1))


def _slot(key: bytes) -> Slot:
    table, _, values = key.partition(b"\0")
    return table.decode(), json.dumps(json.loads(values))
