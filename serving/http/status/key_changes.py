"""What has happened to one key, as the topic tells it: the event that made its entry, and those before it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from consumers.owner.protocol import OwnerRow
from serving.client.streaming import StreamChange, StreamEvent
from serving.errors import ReadError
from serving.http.front import Front
from serving.http.status.answers import KeyChange, KeyChanges
from serving.reads.spaces import RowSpace
from serving.streams.choice import Choice
from serving.streams.encoding import Encoder
from serving.streams.reading import FromEarliest, FromSecond, Reading

Back = Literal["", "1", "24", "all"]
"""Hours before the entry's own change; "": its changes are not looked for."""
SHOWN_MAX: Final = 30
READ_S: Final = 5.0
"""How long the topic is read for one page."""
POLL_S: Final = 0.2
ROW_CHARS_MAX: Final = 300
OPERATIONS: Final = {"value": "written", "deleted": "deleted", "void": "changed, and the log does not say to what"}
_event: Final = msgspec.json.Decoder(StreamEvent)


async def changes_of(front: Front, space: RowSpace, table: str, key: bytes, held: OwnerRow, back: Back) -> KeyChanges:
    """The changes up to now, from ``back`` before the one that ``held`` is of. What can't be read is in the note."""
    found: deque[KeyChange] = deque(maxlen=SHOWN_MAX)
    note = ""
    try:
        reading = await _begun(front, space, held, back)
    except ReadError as problem:
        return KeyChanges([], str(problem))
    encoder = Encoder(Choice(tables=frozenset({table}), include_rows=True, key=key), space.layout, {})
    try:
        async with asyncio.timeout(READ_S):
            async for batch in reading.batches(POLL_S):
                for item, checkpoint in batch:
                    found.extend(_told(encoder.item(item, checkpoint), held))
                if reading.has_ended:
                    break
    except TimeoutError:
        note = f"Later ones were not read: there is more than can be read in {READ_S:.0f} s. Look less far back."
    except ReadError as problem:
        note = str(problem)
    finally:
        await reading.close()
    if len(found) == SHOWN_MAX:
        note = note or f"The last {SHOWN_MAX} are shown."
    return KeyChanges([*reversed(found)], note)


async def _begun(front: Front, space: RowSpace, held: OwnerRow, back: Back) -> Reading:
    if front.streams is None:
        raise ReadError("stream_unavailable", "this front has no Kafka to read changes from")
    if back not in ("", "all"):
        second = (held.timestamp or int(front.clock())) - 3_600 * int(back)
        try:
            return await front.streams.begin(space.name, FromSecond(second), ends_now=True)
        except ReadError as problem:
            if problem.code != "stream_too_old":
                raise
    return await front.streams.begin(space.name, FromEarliest(), ends_now=True)


def _told(encoded: bytes, held: OwnerRow) -> Iterator[KeyChange]:
    """The changes of an event, as a stream would send it."""
    if not encoded:
        return
    event = _event.decode(encoded)
    if event.kind != "transaction":  # a message that nobody can read may be of another key
        return
    for change in event.changes:
        row = msgspec.json.encode(change.row).decode() if change.row is not None else ""
        short = row if len(row) <= ROW_CHARS_MAX else f"{row[:ROW_CHARS_MAX]}…"
        yield KeyChange(
            event.timestamp, event.gtid, in_words(change), short, event.gtid == held.lo and change.kind == "row"
        )


def in_words(change: StreamChange) -> str:
    """What a change is, for people."""
    match change.kind:
        case "row":
            return OPERATIONS.get(change.op, change.op)
        case "void":
            return f"its table was voided: {change.reason}" if change.reason else "its table was voided"
        case "schema":
            return "its table was described anew" if change.columns else "its table is gone"
        case "backfill":
            return "a backfill of its table was complete" if change.complete else "a backfill of its table began"
        case "epoch":
            return "an epoch of the shard began: what was before does not count"
        case "scope":
            return "only tables that are described from here on count"
    return change.kind
