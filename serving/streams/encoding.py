"""The items of a change stream as JSON, as `serving.client.streaming.StreamEvent` has it, in one of two framings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from serving.errors import ReadError
from serving.streams.choice import Choice
from stream.changes.checkpoint import Checkpoint
from stream.changes.items import Item, RecordEvent, RowEvent, Transaction, Unreadable, Watermark
from stream.wire.events import ABSENT, VALUE, VOID
from stream.wire.keys import SEPARATOR, Layout
from tokens import EventToken, Origin, Position, TokenError, Vector

OPERATIONS: Final = {VALUE: "value", ABSENT: "deleted", VOID: "void"}
UNMATCHED: Final = "unmatched"
CACHED_MAX: Final = 4
"""Encodings of a transaction that are kept, each of another choice."""
_KINDS: Final = {
    "TableVoid": "void",
    "TableSchema": "schema",
    "TableBackfill": "backfill",
    "EpochStart": "epoch",
    "Scope": "scope",
}
"""Record → kind of change. Others are of catalogs, which have no rows."""
_encode = msgspec.json.Encoder().encode
_key: Final = msgspec.json.Decoder(list[msgspec.Raw])
_row: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
Json = dict[str, Any]


class Encoder:
    """Encodes for one reader. ``prefixes``: table → how many key columns choose the partition of its rows."""

    def __init__(self, choice: Choice, layout: Layout, prefixes: MutableMapping[str, int]) -> None:
        self._choice = choice
        self._layout = layout
        self._prefixes = prefixes

    def transaction(self, item: Transaction, checkpoint: Checkpoint) -> bytes:
        """A transaction; empty if it has nothing that the reader chose. ``checkpoint``: goes on after it.

        Readers of one choice share the encoding where they share the checkpoint.
        """
        if checkpoint is not item.checkpoint:
            return self._transaction(item, checkpoint)
        found = item.cached.get(self._choice)
        if found is None:
            found = self._transaction(item, checkpoint)
            if len(item.cached) < CACHED_MAX:
                item.cached[self._choice] = found
        return found

    def _transaction(self, item: Transaction, checkpoint: Checkpoint) -> bytes:
        changes = [change for event in item.events if (change := self._change(event)) is not None]
        if not changes:
            return b""
        body: Json = {
            "kind": "transaction",
            "shard": item.shard,
            "epoch": item.place.epoch,
            "gtid": item.gtid,
            "timestamp": item.timestamp,
            "token": str(event_token(item)),
        }
        return self._framed({**body, "changes": changes}, checkpoint)

    def watermark(self, item: Watermark, checkpoint: Checkpoint) -> bytes:
        """How far everything is. ``timestamp``, ``as_of_ms``: the smallest over the shards that go on."""
        return self._reached("watermark", item, checkpoint)

    def end(self, item: Watermark, checkpoint: Checkpoint) -> bytes:
        """The last event of a stream that has told all that it was asked for; else as a watermark."""
        return self._reached("end", item, checkpoint)

    def _reached(self, kind: str, item: Watermark, checkpoint: Checkpoint) -> bytes:
        marks = item.marks
        live = [mark for mark in marks.values() if not mark.is_over]
        vector = Vector({shard: (mark.place.epoch, Position.parse(mark.position)) for shard, mark in marks.items()})
        body: Json = {
            "kind": kind,
            "token": str(vector),
            "timestamp": min((mark.timestamp for mark in live), default=0),
            "as_of_ms": min((mark.as_of_ms for mark in live), default=0),
        }
        return self._framed(body, checkpoint)

    def unreadable(self, item: Unreadable, checkpoint: Checkpoint) -> bytes:
        """A message that nobody can read."""
        reason = f"{item.code}: {item.reason}"[:400]
        body = {"kind": "unreadable", "partition": item.partition, "offset": item.offset, "reason": reason}
        return self._framed(body, checkpoint)

    def error(self, error: ReadError) -> bytes:
        """The last event of a stream that can't go on."""
        return self._framed({"kind": "error", "code": error.code, "message": str(error), "hint": error.hint}, None)

    def item(self, item: Item, checkpoint: Checkpoint) -> bytes:
        """Any item but a watermark, which is sent now and then only."""
        match item:
            case Transaction():
                return self.transaction(item, checkpoint)
            case Unreadable():
                return self.unreadable(item, checkpoint)
            case Watermark():
                return b""

    def _framed(self, body: Json, checkpoint: Checkpoint | None) -> bytes:
        text = str(checkpoint) if checkpoint is not None else ""
        if text:
            body["checkpoint"] = text
        if not self._choice.is_sse:
            return _encode(body) + b"\n"
        name = f"id: {text}\n" if text else ""
        return b"%bevent: %b\ndata: %b\n\n" % (name.encode(), body["kind"].encode(), _encode(body))

    def _change(self, event: RowEvent | RecordEvent) -> Json | None:
        if isinstance(event, RecordEvent):
            return self._record(event.name, event.fields)
        choice = self._choice
        name, _, key = event.key.partition(SEPARATOR)
        table = name.decode(errors="replace")
        if not choice.has_table(table) or not choice.has_key(self._layout, event.key, self._prefixes.get(table, 0)):
            return None
        if not _is_line(key, _key):
            return {"kind": "void", "table": table, "reason": "a row's key can't be read"}
        operation = OPERATIONS.get(event.operation, "void")
        change: Json = {"kind": "row", "table": table, "key": msgspec.Raw(key), "op": operation}
        if event.operation == VALUE and (choice.include_rows or choice.where):
            if not _is_line(event.image, _row):
                change["op"] = "void"
            elif not choice.matches(event.image):
                change["op"] = UNMATCHED
            elif choice.include_rows:
                change["row"] = choice.project(event.image)
        return change

    def _record(self, name: str, fields: Mapping[str, Any]) -> Json | None:
        kind = _KINDS.get(name)
        if kind is None:
            return None
        change: Json = {"kind": kind}
        if "table" in fields:
            if not self._choice.has_table(fields["table"]):
                return None
            change["table"] = fields["table"]
        change |= {each: fields[each] for each in ("reason", "complete", "tables") if each in fields}
        if name == "TableSchema":
            self._prefixes[fields["table"]] = fields["prefix"]
            columns = [{name: each[name] for name in ("name", "kind", "sql_type")} for each in fields["columns"]]
            change |= {"columns": columns, "primary_key": fields["primary_key"], "cacheable": fields["cacheable"]}
        return change


def _is_line(raw: bytes, form: msgspec.json.Decoder[Any]) -> bool:
    """Whether it is JSON of a form, without line ends: it goes into a line as it is, and must not break it."""
    try:
        raw.decode()
        form.decode(raw)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return False
    return b"\n" not in raw and b"\r" not in raw


def event_token(item: Transaction) -> EventToken:
    """The token of a transaction: what `tokens.order` compares."""
    position = Position.parse(item.position)
    return EventToken(item.timestamp, item.shard, position, _origin(item.origin), item.place.epoch)


def _origin(text: str) -> Origin | None:
    """``shard epoch position``, as in a frame."""
    place = text.rsplit(" ", 2)
    if len(place) != 3:  # older frames name no epoch: such an origin orders nothing
        return None
    try:
        return Origin(place[0], Position.parse(place[2]), int(place[1]))
    except (TokenError, ValueError):
        return None


def tables_of(items: Iterable[Item]) -> set[str]:
    """The tables whose rows are among ``items``."""
    names = {
        event.key.partition(SEPARATOR)[0]
        for item in items
        if isinstance(item, Transaction)
        for event in item.events
        if isinstance(event, RowEvent)
    }
    return {name.decode(errors="replace") for name in names}
