"""What the application's cache holds, and the rules of the seed (001, "Cache Invalidation") about it. Pure.

An entry is a value, a tombstone (a token without value) or a lease (one reader is about to fill it). Tokens are vectors
here: ``proven`` of a value says that everything up to there is in it; of a tombstone, that a value must have that.
The *floor* is one entry beside them. It says what the store may have forgotten: docs/concepts/application-cache.md.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from .._tokens import TokenError, Vector
from ..errors import BadRequest

EVERY_TABLE: Final = "*"
_VERSION: Final = "f2"
"""In every name of an entry: another version's entries are others. A floor of f1 does not say of which tables."""
Kind = TypeVar("Kind", "Entry", "Floor")


class Entry(msgspec.Struct, array_like=True, frozen=True):
    """``generation``: the floor's, when it was made. ``value``: column → canonical value; None: there is none.

    ``token``: of a value, what a session that gets it has seen. ``lease``: whose it is; "" if it is none.
    """

    generation: str
    proven: str = ""
    value: dict[str, Any] | None = None
    token: str = ""
    lease: str = ""


class Told(msgspec.Struct, array_like=True, frozen=True):
    """``followed``: by one invalidator, in order: tables, and kinds of objects as `followed_kind` has them.

    ``up_to``: all events of these up to there have been dealt with. Of what is not followed it says nothing.
    """

    followed: list[str]
    up_to: str = ""


class Floor(msgspec.Struct, array_like=True, frozen=True):
    """``reached``: at or past every tombstone that was made, so also past those that the store has dropped.

    ``told``: what has been dealt with, one for each set of tables that invalidators have followed in this generation.
    ``voids``: table → what its values must have in them. With another ``generation`` all entries of before are void.
    ``born``: what was reached when it began: no value of it has less.
    """

    generation: str
    reached: str = ""
    told: list[Told] = []
    voids: dict[str, str] = {}
    born: str = ""


class Raise(NamedTuple):
    """What an event does to the floor. ``voided``: tables of which any row may have changed; ``voids_all``: any row."""

    reached: Vector
    told: Vector = Vector()
    voided: Sequence[str] = ()
    voids_all: bool = False


_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type[Any], msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(kind) for kind in (Entry, Floor)
}
_json_decoders: dict[type[Any], msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (Entry, Floor)
}
_JSON: Final = b"["
"""What an entry in JSON begins with, and none in MessagePack does: who reads only that finds none."""


def encode(entry: Entry | Floor) -> bytes:
    """In MessagePack; in JSON if its value has a whole number of more than 64 bits, as canonical doubles may be."""
    try:
        return _encode(entry)
    except OverflowError:
        return msgspec.json.encode(entry)


def decode(raw: bytes | None, kind: type[Kind]) -> Kind | None:
    """An entry, or None if there is none that can be read."""
    if raw is None:
        return None
    try:
        found: Kind = (_json_decoders if raw[:1] == _JSON else _decoders)[kind].decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found


def check_names(tables: Iterable[str]) -> None:
    """Raises `BadRequest` ``unknown_table`` for a table without its database: events never name it so."""
    for table in tables:
        if "." not in table:
            raise BadRequest(f"{table!r} has no database", hint="name it as db.table", code="unknown_table")


def floor_name(keyspace: str) -> str:
    """The name of the floor in the store."""
    return f"freshet-{_VERSION}-{hashlib.sha256(keyspace.encode()).hexdigest()}-floor"


def row_name(keyspace: str, table: str, key: Sequence[object]) -> str:
    """The name of a row's entry in the store, for any key short enough for memcached."""
    text = msgspec.json.encode([keyspace, table, [str(part) for part in key]])
    return f"freshet-{_VERSION}-{hashlib.sha256(text).hexdigest()}"


def followed_kind(kind: str, tables: Mapping[str, Sequence[str]]) -> str:
    """A kind of objects, as it is followed: with its tables, and of each how many columns name an object.

    Who makes the kind of other tables has other entries: what invalidates the ones says nothing of the others.
    """
    counts = sorted((table, len(columns)) for table, columns in tables.items())
    return msgspec.json.encode([kind, counts]).decode()


def object_name(keyspace: str, kind: str, key: Sequence[object]) -> str:
    """The name of a composite object's entry, of a `followed_kind`: no row has the same one."""
    text = msgspec.json.encode([keyspace, "", kind, [str(part) for part in key]])
    return f"freshet-{_VERSION}-{hashlib.sha256(text).hexdigest()}"


def parsed(text: str) -> Vector:
    """The vector of a text; "" is the empty one."""
    return Vector.parse(text) if text else Vector()


def covers(have: Vector, wanted: Vector) -> bool:
    """Whether ``have`` is known to be at or past ``wanted`` in each of its shards. Unknown is no."""
    for shard, (epoch, position) in wanted.items():
        own = have.get(shard)
        if own is None or own.epoch < epoch or (own.epoch == epoch and not own.position.at_or_past(position)):
            return False
    return True


def begins_later(have: Vector, wanted: Vector) -> bool:
    """Whether a shard of ``have`` is of a later epoch: only a front can tell whether ``wanted`` was lost in between."""
    known = ((have.get(shard), epoch) for shard, (epoch, _) in wanted.items())
    return any(own is not None and own.epoch > epoch for own, epoch in known)


def merged(one: str, other: Vector) -> Vector:
    """Both together; of what can't be joined (another kind of position) the ``other``, which came later."""
    before = parsed(one)
    try:
        return before.merge(other)
    except TokenError:
        return Vector({**dict(before.items()), **dict(other.items())})


def told_of(floor: Floor, what: str) -> Vector | None:
    """Up to where events of a table, or of a `followed_kind`, have been dealt with. None: nobody follows it."""
    of = [parsed(each.up_to) for each in floor.told if what in each.followed]
    return reduce(lambda known, up_to: merged(str(known), up_to), of) if of else None


def _says_more(one: Told, other: Told) -> bool:
    return set(one.followed) > set(other.followed) and covers(parsed(one.up_to), parsed(other.up_to))


def _told(told: Sequence[Told], followed: Sequence[str], up_to: Vector) -> list[Told]:
    """With what an invalidator has dealt with. What one of more tables says as well is left out: so few remain."""
    own = list(followed)
    before = next((each.up_to for each in told if each.followed == own), "")
    known = [*(each for each in told if each.followed != own), Told(own, str(merged(before, up_to)))]
    known.sort(key=lambda each: each.followed)
    return [each for each in known if not any(_says_more(other, each) for other in known)]


def raised(floor: Floor | None, by: Raise, followed: Sequence[str], generation: str) -> Floor:
    """The floor after an event. ``generation``: a new one, which it gets if there was no floor or all is void.

    ``followed``: by the invalidator. Only of these has it dealt with what it is told.
    """
    begins = floor is None or by.voids_all
    floor = floor or Floor(generation)
    voids = dict(floor.voids)
    for table in by.voided:
        voids[table] = str(merged(voids.get(table, ""), by.reached))
    reached = str(merged(floor.reached, by.reached))
    if begins:  # what was told before is in each value that will be kept, as all that was reached
        return Floor(generation, reached, _told((), followed, by.told), voids, reached)
    return Floor(floor.generation, reached, _told(floor.told, followed, by.told), voids, floor.born)


def invalidated(entry: Entry | None, generation: str, token: Vector) -> Entry | None:
    """What takes the place of ``entry`` after an event with this token; None: it stays, since it has the event in it.

    Where the order is unknown the event wins: an invalidation too many does no harm. A lease over a tombstone that has
    the event in it stays: its reader demands as much.
    """
    if entry is None:
        return Entry(generation, str(token))
    if entry.generation == generation and covers(parsed(entry.proven), token):
        return None
    before = entry.proven if entry.value is None else ""
    return Entry(generation, str(merged(before, token)))


def is_live(entry: Entry, floor: Floor, tables: Sequence[str]) -> bool:
    """Whether an entry's value was not voided with one of the tables that it is of, or with everything."""
    if entry.value is None or entry.generation != floor.generation:
        return False
    proven = parsed(entry.proven)
    voids = (floor.voids.get(name, "") for name in (*tables, EVERY_TABLE))
    return all(covers(proven, parsed(void)) for void in voids)


def of_keyspace(vector: Vector, keyspace: str) -> Vector:
    """The components of a keyspace's shards."""
    return Vector({shard: each for shard, each in vector.items() if (shard.rpartition("/")[0] or shard) == keyspace})


def is_key_of(key: Sequence[object], columns: Sequence[str], value: Mapping[str, Any]) -> bool:
    """Whether a row has just this key: else the stream names it otherwise, and would invalidate another entry."""
    return [str(part) for part in key] == [str(value.get(column)) for column in columns]
