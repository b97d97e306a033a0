"""The fold of catalog objects other than tables: partitions, databases, functions, constraints, statistics. Pure.

Rules (docs/concepts/catalog.md):

- An object's image counts only if it was read at or after the last write of it. A drop is a write too.
- A *set* is all objects of a kind, of a table or of the catalog. It is whole from the record that says so until a void.
  What nothing was told of since the beginning of the pass that made it whole does not exist (`ObjectState.known_at`).
- A dropped object keeps its entry for a while: an image that was read before the drop may still arrive, and must not
  bring it back. Of each set the last `stream.wire.events.DROPS_KEPT` keep theirs. Of those before them the greatest
  ordinal and the latest position are kept. An event at or below that ordinal, of an object without an entry, is a
  repeat. An image of an object without an entry counts only if it was read at or after that position; what a source
  has read before it, it reads again (`stream.sources.hive.recent_drops`). That one is not there, if it was read before
  that position, is no news. No reader needs the entry: where a set is
  whole, what has none does not exist; where it is not, the source is asked.
- A dropped table takes along what belongs to it, and a set in a new epoch what it was before.
- A set moves with each of its members: so a list knows when it changed, and how late it is.
- Whether the table that an object belongs to may be served is the table's own state (`consumers.fold.catalog_state`).

An object's key is ``0x01 o`` kind ``0x00`` table id ``0x00`` name, so the objects of a set are adjacent; a set's key is
``0x01 s`` kind ``0x00`` table id, that of its drops ``0x01 d`` and the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from consumers.fold.catalog_state import CatalogChanges, CatalogStateError, decode_table, table_key
from consumers.fold.shards import is_succeeded
from consumers.fold.state import CATALOG, DROPS, OBJECT, SET, Head, Lookup
from stream.wire import events
from stream.wire.canonical import UNDECODABLE
from tokens import Position

Event = dict[str, Any]
PARTITION: Final = "partition"
OF_TABLES: Final = (PARTITION, "partition_statistics", "statistics", "aggregate_statistics", "constraints")
"""The kinds of what belongs to a table."""


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

    @property
    def known_at(self) -> int:
        """Ordinal of the last event that told something of it. What was read too early moves only ``ordinal``."""
        return max(self.image_ordinal, self.write_ordinal)


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


class Drops(msgspec.Struct, array_like=True):
    """The drops of a set in one epoch of a shard."""

    shard: str
    epoch: int
    ordinal: int = 0
    """Events of forgotten objects at or below it are repeats; 0: nothing is forgotten yet."""
    position: str = ""
    """Of the last forgotten drop."""
    recent: list[str] = []
    """Names of what was dropped last, the oldest first."""


State = TypeVar("State", ObjectState, SetState)
Decoded = TypeVar("Decoded", ObjectState, SetState, Drops)

_encode = msgspec.msgpack.Encoder().encode
_object = msgspec.msgpack.Decoder(ObjectState)
_set = msgspec.msgpack.Decoder(SetState)
_drops = msgspec.msgpack.Decoder(Drops)


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


def _decoded(decoder: msgspec.msgpack.Decoder[Decoded], value: bytes) -> Decoded:
    try:
        return decoder.decode(value)
    except UNDECODABLE as error:
        raise CatalogStateError(f"invalid state of an object: {error}", hint="rebuild the partition") from error


def drops_key(kind: str, table_id: int) -> bytes:
    """Store key of the drops of a set."""
    return CATALOG + DROPS + kind.encode() + b"\0" + str(table_id).encode()


def decode_drops(value: bytes) -> Drops:
    """The drops in ``value``; raises `CatalogStateError`."""
    return _decoded(_drops, value)


def drops_of(kind: str, table_id: int, shard: str, epoch: int, lookup: Lookup) -> Drops:
    """The drops of a set in this epoch; blank if there are none."""
    value = lookup(drops_key(kind, table_id))
    found = decode_drops(value) if value is not None else None
    return found if found is not None and (found.shard, found.epoch) == (shard, epoch) else Drops(shard, epoch)


def forget_objects(table_id: int, lookup: Lookup) -> tuple[bytes, ...]:
    """The keys of all that belongs to a table, as `consumers.fold.state.Changes.gone`."""
    gone: list[bytes] = []
    for kind in OF_TABLES:
        if lookup(set_key(kind, table_id)) is not None:  # each object has moved its set
            gone += [objects_prefix(kind, table_id), set_key(kind, table_id)]
            if lookup(drops_key(kind, table_id)) is not None:
                gone.append(drops_key(kind, table_id))
    return tuple(gone)


def fold_object(event: Event, lookup: Lookup, head: Head) -> CatalogChanges:
    """The entries that a `CatalogObject` changes: the object's, and its set's. ``head``: before the event.

    Raises `CatalogStateError`, `tokens.TokenError`, ``ValueError``.
    """
    kind, table_id, name = event["kind"], event["table_id"], event["name"]
    key = object_key(kind, table_id, name)
    value = lookup(key)
    drops = drops_of(kind, table_id, event["shard"], event["epoch"], lookup)
    blank = ObjectState(event["shard"], event["epoch"], drops.ordinal if value is None else 0)
    if drops.position and value is None:  # perhaps it is one of those that are forgotten
        blank.write_ordinal, blank.write_position = drops.ordinal, drops.position
    state = _continued(decode_object(value) if value is not None else blank, blank, event, head)
    if state is None or _has_no_table(event, lookup):
        return CatalogChanges()
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
    elif change == "dropped" and value is None:  # with an entry it would wait for an image that nobody is to read
        return _moved_set(event, hi, lookup, head)
    state.ordinal = event["ordinal"]
    changes = _moved_set(event, hi, lookup, head)
    changes[key] = _encode(state)
    if _is_gone(state) and state.write_ordinal == event["ordinal"]:

        def last(each: str) -> tuple[int, str] | None:
            found = state if each == name else _stored(lookup(object_key(kind, table_id, each)))
            return (found.ordinal, found.write_position) if found is not None and _is_gone(found) else None

        changes[drops_key(kind, table_id)], forgotten = _note_drop(drops, name, last)
        changes.gone += tuple(object_key(kind, table_id, each) for each in forgotten)
    return changes


def _stored(value: bytes | None) -> ObjectState | None:
    return decode_object(value) if value is not None else None


def _is_gone(state: ObjectState) -> bool:
    """Whether the object was dropped, and nothing else is awaited."""
    return not state.exists and state.image_ordinal > 0 and not state.is_awaited


def _note_drop(drops: Drops, name: str, last: Callable[[str], tuple[int, str] | None]) -> tuple[bytes, list[str]]:
    """Adds a drop: the drops as stored, and the names of objects whose entries go.

    ``last``: of an object that was dropped, and of which nothing has been said since, the ordinal of its last event and
    the position of the drop; of another one None.
    """
    recent = [each for each in drops.recent if each != name] + [name]
    over = len(recent) - events.DROPS_KEPT
    gone = []
    for each in recent[: max(over, 0)]:
        at = last(each)
        if at is not None:
            gone.append(each)
            drops.ordinal = max(drops.ordinal, at[0])
            if not drops.position or Position.parse(at[1]).at_or_past(Position.parse(drops.position)):
                drops.position = at[1]
    drops.recent = recent[max(over, 0) :]
    return _encode(drops), gone


def _has_no_table(event: Event, lookup: Lookup) -> bool:
    """Whether the object or set belongs to a table that was dropped."""
    if not event["table_id"] or lookup(set_key(event["kind"], event["table_id"])) is not None:
        return False
    value = lookup(table_key(event["table_id"]))
    table = decode_table(value) if value is not None else None
    return table is not None and table.is_dropped and (table.shard, table.epoch) == (event["shard"], event["epoch"])


def _moved_set(event: Event, hi: str, lookup: Lookup, head: Head) -> CatalogChanges:
    state, changes = _load_set(event, lookup, head)
    if state is not None:
        _advance(state, hi)
        _advance(state, event["gtid"])
        _save(state, event, changes)
    return changes


def _advance(state: SetState, position: str) -> None:
    if not state.hi or Position.parse(position).at_or_past(Position.parse(state.hi)):
        state.hi = position


def fold_set(event: Event, lookup: Lookup, head: Head) -> CatalogChanges:
    """The entry that a `CatalogSet` changes. Raises as `fold_object`."""
    state, changes = _load_set(event, lookup, head)
    if state is None or _has_no_table(event, lookup):
        return CatalogChanges()
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
    _save(state, event, changes)
    return changes


def _load_set(event: Event, lookup: Lookup, head: Head) -> tuple[SetState | None, CatalogChanges]:
    """The set to fold the event into, None for a duplicate. In another epoch what was its goes."""
    kind, table_id, changes = event["kind"], event["table_id"], CatalogChanges()
    value = lookup(set_key(kind, table_id))
    held = decode_set(value) if value is not None else None
    state = _continued(held, SetState(event["shard"], event["epoch"], 0), event, head)
    if held is not None and state is not None and state is not held:
        changes.gone = (objects_prefix(kind, table_id),)
        if lookup(drops_key(kind, table_id)) is not None:
            changes.gone += (drops_key(kind, table_id),)
    return state, changes


def _save(state: SetState, event: Event, changes: CatalogChanges) -> None:
    state.ordinal = event["ordinal"]
    changes[set_key(event["kind"], event["table_id"])] = _encode(state)


def _continued(state: State | None, blank: State, event: Event, head: Head) -> State | None:
    """The state that the event continues, ``blank`` for a new one or another epoch; None for a duplicate."""
    shard, epoch, ordinal = event["shard"], event["epoch"], event["ordinal"]
    if state is not None and state.shard != shard and not is_succeeded(head, state.shard, state.epoch):
        raise ValueError(f"the object is of shard {state.shard}, the event of {shard}")
    if state is None or state.shard != shard or epoch > state.epoch:
        return blank
    return state if (epoch, ordinal) > (state.epoch, state.ordinal) else None
