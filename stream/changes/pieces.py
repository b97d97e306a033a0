"""The parts of transactions that messages bring, and what is let go of them where they take too much memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

from stream.changes.checkpoint import Place
from stream.changes.items import KEYLESS, Event, RecordEvent, RowEvent
from stream.wire.events import VALUE, VOID
from stream.wire.keys import SEPARATOR

ROW_OVERHEAD: Final = 200
"""What a row takes in memory beside its key and image, in bytes, about."""
_RECORD_BYTES: Final = 1_000
TOO_LARGE: Final = "the transaction is too large to be held: its rows of this table are not told one by one"


@dataclass(slots=True)
class Piece:
    """The part of a transaction that one message has, or one transaction of a frame. Ordinals rise."""

    first: Place
    last: Place
    offset: int
    gtid: str
    position: str
    """The set after the transaction; "" if the message does not say it."""
    timestamp: int
    origin: str
    events: list[Event]
    size: int


def piece_of(offset: int, name: str, record: Mapping[str, Any]) -> Piece:
    """What a message brings that is no frame."""
    place = Place(record["epoch"], record["ordinal"])
    event = RecordEvent(place.ordinal, name, record)
    position = record.get("position", "")
    size = _RECORD_BYTES + (len(record["before"]) + len(record["after"]) if name == KEYLESS else 0)
    return Piece(place, place, offset, record["gtid"], position, record["timestamp"], "", [event], size)


def put_before(piece: Piece, images: Mapping[int, bytes]) -> int:
    """Has the rows of a piece know what they were. ``images``: by ordinal. Returns the bytes that it takes."""
    size = 0
    for at, event in enumerate(piece.events):
        if isinstance(event, RowEvent) and (image := images.get(event.ordinal)) is not None:
            size += len(image)
            piece.events[at] = event._replace(before=image)
    piece.size += size
    return size


def without_images(piece: Piece) -> None:
    """Lets go of images: rows become VOID. Of a row without a key nothing is left then but that its table changed."""
    for at, event in enumerate(piece.events):
        if isinstance(event, RowEvent):
            if event.operation == VALUE or event.before:
                piece.size -= len(event.image) + len(event.before or b"")
                operation = VOID if event.operation == VALUE else event.operation
                piece.events[at] = RowEvent(event.ordinal, event.key, operation, b"")
        elif event.name == KEYLESS:
            piece.events[at] = _void(event.ordinal, event.fields["table"])
            piece.size = _RECORD_BYTES


def without_keys(piece: Piece) -> None:
    """Lets go of keys, too: the tables of the rows become void."""
    without_images(piece)
    tables: dict[bytes, Event] = {}
    kept: list[Event] = []
    for event in piece.events:
        if isinstance(event, RowEvent):
            table = event.key.partition(SEPARATOR)[0]
            if table not in tables:
                tables[table] = _void(event.ordinal, table.decode(errors="replace"))
        else:
            kept.append(event)
    piece.events = sorted([*kept, *tables.values()], key=attrgetter("ordinal"))
    piece.size = _RECORD_BYTES * len(piece.events)


def _void(ordinal: int, table: str) -> RecordEvent:
    return RecordEvent(ordinal, "TableVoid", {"table": table, "reason": TOO_LARGE})
