"""The items of a change stream as JSON, as `serving.client.streaming.StreamEvent` has it, in one of two framings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, Final, NamedTuple

import msgspec

from serving.errors import ReadError
from serving.streams.choice import Choice
from stream.changes.checkpoint import Checkpoint
from stream.changes.items import KEYLESS, Item, RecordEvent, RowEvent, Transaction, Unreadable, Watermark
from stream.wire.canonical import UNDECODABLE
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


class ReadRow(NamedTuple):
    """A row that was read, since the log has no image. ``image``: None: there is none. ``token``: nothing is later."""

    image: bytes | None
    token: str


NONE_READ: Final[Mapping[bytes, ReadRow]] = {}


class Encoder:
    """Encodes for one reader.

    ``prefixes``: table → how many key columns choose the partition of its rows; None: nobody knows. Then its rows are
    told as a void of the table, once in a transaction.
    """

    def __init__(self, choice: Choice, layout: Layout, prefixes: MutableMapping[str, int | None]) -> None:
        self._choice = choice
        self._layout = layout
        self._prefixes = prefixes
        self._voided: set[str] = set()
        """Tables of which the transaction that is being encoded has told so."""

    def void_rows(self, item: Transaction) -> list[bytes]:
        """The keys of the rows that the reader chose, and whose images the log has not."""
        return [
            event.key
            for event in item.events
            if isinstance(event, RowEvent) and event.operation not in (VALUE, ABSENT) and self._has(event.key)
        ]

    def transaction(
        self, item: Transaction, checkpoint: Checkpoint, read: Mapping[bytes, ReadRow] = NONE_READ
    ) -> bytes:
        """A transaction; empty if it has nothing that the reader chose. ``checkpoint``: goes on after it.

        ``read``: key → the row, of those that were read for this reader. Otherwise readers of one choice share the
        encoding where they share the checkpoint; not those of a range, who have learnt their own prefixes.
        """
        if read or checkpoint is not item.checkpoint or self._choice.key_range is not None:
            return self._transaction(item, checkpoint, read)
        found = item.cached.get(self._choice)
        if found is None:
            found = self._transaction(item, checkpoint, NONE_READ)
            if len(item.cached) < CACHED_MAX:
                item.cached[self._choice] = found
        return found

    def _transaction(self, item: Transaction, checkpoint: Checkpoint, read: Mapping[bytes, ReadRow]) -> bytes:
        self._voided.clear()
        changes = [change for event in item.events if (change := self._change(event, read)) is not None]
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

    def item(self, item: Item, checkpoint: Checkpoint, read: Mapping[bytes, ReadRow] = NONE_READ) -> bytes:
        """Any item but a watermark, which is sent now and then only. ``read``: as of `transaction`."""
        match item:
            case Transaction():
                return self.transaction(item, checkpoint, read)
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

    def _has(self, key: bytes) -> bool:
        """Whether the reader chose a row, and its key can be read."""
        table, columns = _parts_of(key)
        return self._is_chosen(table, key) and _is_line(columns, _key)

    def _is_chosen(self, table: str, key: bytes) -> bool:
        choice, prefix = self._choice, self._prefixes.get(table, 0)
        return prefix is not None and choice.has_table(table) and choice.has_key(self._layout, key, prefix)

    def _not_chosen(self, table: str) -> Json | None:
        """What is told of a row that is not known to be chosen; None: nothing."""
        if self._prefixes.get(table, 0) is not None or table in self._voided or not self._choice.has_table(table):
            return None
        self._voided.add(table)
        return {"kind": "void", "table": table, "reason": "which of its rows are in the range is not known any more"}

    def _change(self, event: RowEvent | RecordEvent, read: Mapping[bytes, ReadRow]) -> Json | None:
        if isinstance(event, RecordEvent):
            return self._record(event.name, event.fields)
        choice = self._choice
        table, key = _parts_of(event.key)
        if not self._is_chosen(table, event.key):
            return self._not_chosen(table)
        if not _is_line(key, _key):
            return {"kind": "void", "table": table, "reason": "a row's key can't be read"}
        operation, image = event.operation, event.image
        change: Json = {"kind": "row", "table": table, "key": msgspec.Raw(key)}
        if read and operation not in (VALUE, ABSENT) and (found := read.get(event.key)) is not None:
            operation, image = (ABSENT, b"") if found.image is None else (VALUE, found.image)
            change["read_at"] = found.token
        change["op"] = OPERATIONS.get(operation, "void")
        if operation == VALUE and (choice.include_rows or choice.where):
            if not _is_line(image, _row):
                change["op"] = "void"
            elif not choice.matches(image):
                change["op"] = UNMATCHED
            elif choice.include_rows:
                change["row"] = choice.project(image)
        if choice.include_before and event.before is not None:
            change |= self._before(event.before)
        return change

    def _before(self, image: bytes) -> Json:
        """What a row was before, in the words that say what it is after; nothing if that can't be read."""
        choice = self._choice
        if not image:
            return {"was": "absent"}
        if not _is_line(image, _row):
            return {}
        return {"was": "value", "before": choice.project(image)} if choice.matches(image) else {"was": UNMATCHED}

    def _keyless(self, fields: Mapping[str, Any]) -> Json | None:
        """A change of a row that only its images name; None if none of them has what is asked for.

        One that is not in the log, or can't be read, may have it.
        """
        choice, table = self._choice, fields["table"]
        if not choice.include_keyless or not choice.has_table(table):
            return None
        images = {
            name: fields[of] for name, of in (("before", "before"), ("row", "after")) if _is_line(fields[of], _row)
        }
        is_whole = len(images) == (2 if fields["operation"] == "updated" else 1)
        if choice.where and is_whole and not any(map(choice.matches, images.values())):
            return None
        change: Json = {"kind": "keyless", "table": table, "op": fields["operation"]}
        if choice.include_rows:
            change |= {name: choice.project(image) for name, image in images.items()}
        return change

    def _record(self, name: str, fields: Mapping[str, Any]) -> Json | None:
        if name == KEYLESS:
            return self._keyless(fields)
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
            if fields["primary_key"]:  # else it is gone from this shard, and others may have it still
                self._prefixes[fields["table"]] = fields["prefix"]
            columns = [{name: each[name] for name in ("name", "kind", "sql_type")} for each in fields["columns"]]
            change |= {"columns": columns, "primary_key": fields["primary_key"], "cacheable": fields["cacheable"]}
        return change


def _parts_of(key: bytes) -> tuple[str, bytes]:
    """The table of a row's key, and its columns as JSON."""
    name, _, columns = key.partition(SEPARATOR)
    return name.decode(errors="replace"), columns


def _is_line(raw: bytes, form: msgspec.json.Decoder[Any]) -> bool:
    """Whether it is JSON of a form, without line ends: it goes into a line as it is, and must not break it."""
    try:
        raw.decode()
        form.decode(raw)
    except UNDECODABLE:
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
