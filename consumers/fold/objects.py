"""The fold of catalog objects other than tables: partitions, databases, functions, constraints, statistics. Pure.

Rules (docs/concepts/catalog.md):

- An object's image counts only if it was read at or after the last write of it. A drop is a write too.
- A *set* is all objects of a kind, of a table or of the catalog. It is whole from the record that says so until a void.
  What was published before the pass that made it whole does not exist.
- A set moves with each of its members: so a list knows when it changed, and how late it is.
- Whether the table that an object belongs to may be served is the table's own state (`consumers.fold.catalog_state`).

An object's key is ``0x01 o`` kind ``0x00`` table id ``0x00`` name, so the objects of a set are adjacent; a set's key is
``0x01 s`` kind ``0x00`` table id.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from consumers.fold.catalog_state import CatalogStateError
from consumers.fold.shards import is_succeeded
from consumers.fold.state import CATALOG, OBJECT, SET, Head, Lookup
from tokens import Position

Event = dict[str, Any]
PARTITION: Final = "partition"


class ObjectState(msgspec.Struct, array_like=True):
    """Everything folded about one object. ``exists`` False: it was dropped, or only its being written is known."""

    shard: str
    epoch: int
    ordinal: int
    """Of the last event folded. Events of the lineage at or below it are duplicates."""
    exists: bool = False
    image: bytes | None = None
    struct: bytes | None = None
    lo: str = ""
    hi: str = ""
    image_ordinal: int = 0
    """Of the event that brought the image or said that there is none; 0: neither did."""
    write_ordinal: int = 0
    write_position: str = ""
    """Of the last write: an image must have been read at or after it."""

    @property
    def is_awaited(self) -> bool:
        """Whether it was written, and the image that follows has not arrived."""
        return self.image_ordinal < self.write_ordinal


class SetState(msgspec.Struct, array_like=True):
    """What is known of a set of objects."""

    shard: str
    epoch: int
    ordinal: int
    """Of the last event of the set or of one of its members."""
    begun: int = 0
    """Ordinal at which the pass that is under way began; 0: none is."""
    base: int = 0
    """Ordinal at which the pass began that made it whole: older members do not exist. 0: it is not whole."""
    complete: int = 0
    """Ordinal at which it became whole; 0: it is not."""
    void: int = 0
    """Ordinal of the last void: older members are unknown."""
    lo: str = ""
    """Position taken before its members were listed."""
    hi: str = ""
    """Nothing folded into the set is later."""
    reason: str = ""
    """Of the last void."""


State = TypeVar("State", ObjectState, SetState)

_encode = msgspec.msgpack.Encoder().encode
_object = msgspec.msgpack.Decoder(ObjectState)
_set = msgspec.msgpack.Decoder(SetState)


def objects_prefix(kind: str, table_id: int) -> bytes:
    """What the store keys of all objects of a set begin with."""
    return CATALOG + OBJECT + kind.encode() + b"\0" + str(table_id).encode() + b"\0"


def object_key(kind: str, table_id: int, name: str) -> bytes:
    """Store key of an object's state; ``name`` is a JSON array (`stream.wire.keys.object_name`)."""
    return objects_prefix(kind, table_id) + name.encode()


def set_key(kind: str, table_id: int) -> bytes:
    """Store key of a set's state."""
    return CATALOG + SET + kind.encode() + b"\0" + str(table_id).encode()


def decode_object(value: bytes) -> ObjectState:
    """The state in ``value``; raises `CatalogStateError`."""
    return _decoded(_object, value)


def decode_set(value: bytes) -> SetState:
    """The state in ``value``; raises `CatalogStateError`."""
    return _decoded(_set, value)


def _decoded(decoder: msgspec.msgpack.Decoder[State], value: bytes) -> State:
    try:
        return decoder.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CatalogStateError(f"invalid state of an object: {error}", hint="rebuild the partition") from error


def fold_object(event: Event, lookup: Lookup, head: Head) -> dict[bytes, bytes]:
    """The entries that a `CatalogObject` changes: the object's, and its set's. ``head``: before the event.

    Raises `CatalogStateError`, `tokens.TokenError`, ``ValueError``.
    """
    key = object_key(event["kind"], event["table_id"], event["name"])
    value = lookup(key)
    blank = ObjectState(event["shard"], event["epoch"], 0)
    state = _continued(decode_object(value) if value is not None else None, blank, event, head)
    if state is None:
        return {}
    lo, hi = event["lo"] or event["gtid"], event["hi"] or event["gtid"]
    change = event["change"]
    if change == "written" or (change == "image" and event["image"] is None):
        state.write_ordinal, state.write_position = event["ordinal"], event["gtid"]
    elif not state.write_position or Position.parse(lo).at_or_past(Position.parse(state.write_position)):
        Position.parse(hi)
        is_there = change == "image"
        state.exists, state.lo, state.hi, state.image_ordinal = is_there, lo, hi, event["ordinal"]
        state.image, state.struct = (event["image"], event["struct"]) if is_there else (None, None)
        if not is_there:
            state.write_ordinal, state.write_position = event["ordinal"], event["gtid"]
    state.ordinal = event["ordinal"]
    return {key: _encode(state)} | _moved_set(event, hi, lookup, head)


def _moved_set(event: Event, hi: str, lookup: Lookup, head: Head) -> dict[bytes, bytes]:
    state = _load_set(event, lookup, head)
    if state is None:
        return {}
    _advance(state, hi)
    _advance(state, event["gtid"])
    return _saved(state, event)


def _advance(state: SetState, position: str) -> None:
    if not state.hi or Position.parse(position).at_or_past(Position.parse(state.hi)):
        state.hi = position


def fold_set(event: Event, lookup: Lookup, head: Head) -> dict[bytes, bytes]:
    """The entry that a `CatalogSet` changes. Raises as `fold_object`."""
    state = _load_set(event, lookup, head)
    if state is None:
        return {}
    _advance(state, event["gtid"])
    change = event["change"]
    if change == "void":
        state.begun = state.base = state.complete = 0
        state.void, state.reason = event["ordinal"], event["reason"]
    elif change == "begun":
        lo = event["lo"] or event["gtid"]
        Position.parse(lo)
        state.begun, state.lo = event["ordinal"], lo
    elif state.begun:  # else a void came between, or the beginning was not folded
        state.base, state.complete, state.begun = state.begun, event["ordinal"], 0
    return _saved(state, event)


def _load_set(event: Event, lookup: Lookup, head: Head) -> SetState | None:
    value = lookup(set_key(event["kind"], event["table_id"]))
    blank = SetState(event["shard"], event["epoch"], 0)
    return _continued(decode_set(value) if value is not None else None, blank, event, head)


def _saved(state: SetState, event: Event) -> dict[bytes, bytes]:
    state.ordinal = event["ordinal"]
    return {set_key(event["kind"], event["table_id"]): _encode(state)}


def _continued(state: State | None, blank: State, event: Event, head: Head) -> State | None:
    """The state that the event continues, ``blank`` for a new one or another epoch; None for a duplicate."""
    shard, epoch, ordinal = event["shard"], event["epoch"], event["ordinal"]
    if state is not None and state.shard != shard and not is_succeeded(head, state.shard, state.epoch):
        raise ValueError(f"the object is of shard {state.shard}, the event of {shard}")
    if state is None or state.shard != shard or epoch > state.epoch:
        return blank
    return state if (epoch, ordinal) > (state.epoch, state.ordinal) else None
