"""Compare two texts of one kind (position, event token, vector or write-id list) and give the reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from .errors import TokenError
from .event import EventToken, order, vitess_fresher
from .integers import excerpt
from .position import Order, Position
from .session.texts import is_token
from .vector import Vector
from .writeids import Missing, ValidWriteIdList, hive_compare

Token: TypeAlias = Position | EventToken | Vector | ValidWriteIdList

FLAVORS = ("MariaDB", "MySQL56", "Postgres", "FilePos", "HiveEvent")
_KINDS = {Position: "position", EventToken: "event token", Vector: "vector", ValidWriteIdList: "write-id list"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How ``a`` is ordered against ``b`` (both in canonical text), why, and further details (JSON values)."""

    kind: str
    a: str
    b: str
    order: Order
    why: str
    details: dict[str, Any] = field(default_factory=dict)


def parse_token(text: str, default_flavor: str | None = None) -> Token:
    """Parse ``text``; its form tells its kind. Raises `TokenError`."""
    if is_token(text):
        return Vector.parse(text)
    if text.startswith("time="):
        return EventToken.parse(text)
    if default_flavor is not None or text.partition("/")[0] in FLAVORS:
        return Position.parse(text, default_flavor)
    if text.startswith("[") or text.count(":") >= 2:
        return ValidWriteIdList.parse(text)
    raise TokenError(
        f"{excerpt(text)} is not a position, event token, vector or write-id list",
        hint="for example MariaDB/0-1-5, time=1700000000;shard=ks/0;position=MariaDB/0-1-5, db.t:12:7:7,8:",
    )


def compare_texts(a: str, b: str, default_flavor: str | None = None) -> Comparison:
    """Compare two texts of one kind; an event token and a vector compare as vectors. Raises `TokenError`."""
    left, right = parse_token(a, default_flavor), parse_token(b, default_flavor)
    if isinstance(left, Vector) and isinstance(right, EventToken):
        right = Vector.of_event(right)
    elif isinstance(left, EventToken) and isinstance(right, Vector):
        left = Vector.of_event(left)
    match left, right:
        case Position(), Position():
            return _positions(left, right)
        case EventToken(), EventToken():
            return _events(left, right)
        case Vector(), Vector():
            return _vectors(left, right)
        case ValidWriteIdList(), ValidWriteIdList():
            return _lists(left, right)
    raise TokenError(
        f"cannot compare {excerpt(a)} (a {_kind(left)}) with {excerpt(b)} (a {_kind(right)})",
        hint="compare two texts of the same kind",
    )


def _kind(token: Token) -> str:
    return next(name for kind, name in _KINDS.items() if isinstance(token, kind))


def _positions(a: Position, b: Position) -> Comparison:
    answer = a.order(b)
    details = {"a_contains_b": a.contains(b), "b_contains_a": b.contains(a)}
    return Comparison("position", str(a), str(b), answer, _position_reason(a, b, answer), details)


def _position_reason(a: Position, b: Position, answer: Order) -> str:
    if answer is Order.SAME:
        return "both hold the same"
    if answer is Order.NEWER:
        return "A holds all of B, and more"
    if answer is Order.OLDER:
        return "B holds all of A, and more"
    if a.flavor != b.flavor:
        return f"{a.flavor or 'no position'} and {b.flavor or 'no position'} have nothing in common"
    if a.flavor == "Postgres":
        return "they are not of one timeline, and nobody knows where theirs part"
    if a.contains(b) or b.contains(a):
        return "two servers gave out the same sequence number: one of them lost its history"
    if a.flavor == "FilePos":
        return "the binlog base names differ"
    return "each holds something that the other doesn't"


def _events(a: EventToken, b: EventToken) -> Comparison:
    answer = order(a, b)
    return Comparison(
        "event token", str(a), str(b), answer, _event_reason(a, b, answer), {"vitess_fresher": vitess_fresher(a, b)}
    )


def _event_reason(a: EventToken, b: EventToken, answer: Order) -> str:
    ours, theirs = a.coordinates(), b.coordinates()
    own = (a.shard, a.epoch)
    common = (
        [own] if own == (b.shard, b.epoch) and own in ours and own in theirs else sorted(ours.keys() & theirs.keys())
    )
    if not common:
        return "the tokens share no shard and epoch; timestamps don't order"
    shard, epoch = common[0]
    place = f"in {shard}, epoch {epoch}" if len(common) == 1 else f"in {len(common)} shards"
    if answer is Order.UNKNOWN and len(common) > 1:
        return f"{place} the positions disagree"
    return f"{place}: {_position_reason(ours[common[0]], theirs[common[0]], answer)}"


def _vectors(a: Vector, b: Vector) -> Comparison:
    shards = sorted({*a, *b})
    details = {"shards": {shard: _component_order(a, b, shard).name.lower() for shard in shards}}
    why = "; ".join(f"{shard}: {_component_reason(a, b, shard)}" for shard in shards) or "both are empty"
    return Comparison("vector", str(a), str(b), a.order(b), why, details)


def _component_order(a: Vector, b: Vector, shard: str) -> Order:
    ours, theirs = a.get(shard), b.get(shard)
    if ours is None or theirs is None:
        return Order.OLDER if ours is None else Order.NEWER
    return ours.position.order(theirs.position) if ours.epoch == theirs.epoch else Order.UNKNOWN


def _component_reason(a: Vector, b: Vector, shard: str) -> str:
    ours, theirs = a.get(shard), b.get(shard)
    if ours is None or theirs is None:
        return f"only {'B' if ours is None else 'A'} has seen it"
    if ours.epoch != theirs.epoch:
        return f"epochs {ours.epoch} and {theirs.epoch} are different histories"
    return _position_reason(ours.position, theirs.position, ours.position.order(theirs.position))


def _lists(a: ValidWriteIdList, b: ValidWriteIdList) -> Comparison:
    details: dict[str, Any] = {"a_covers_b": a.covers(b), "b_covers_a": b.covers(a)}
    if a.table is not None and b.table is not None:
        details["hive_compare"] = hive_compare(a, b)
    if not a.same_table(b):
        return Comparison(
            "write-id list", str(a), str(b), Order.UNKNOWN, f"two tables: {a.table} and {b.table}", details
        )
    match b.missing(a), a.missing(b):
        case None, None:
            answer, why = Order.SAME, "each serves a reader of the other"
        case Missing() as only_a, None:
            answer, why = Order.NEWER, f"{_ids(only_a)} committed in A only: A serves a reader of B"
        case None, Missing() as only_b:
            answer, why = Order.OLDER, f"{_ids(only_b)} committed since A: it doesn't serve a reader of B"
        case Missing() as only_a, Missing() as only_b:
            answer = Order.UNKNOWN
            why = f"{_ids(only_a)} committed in A only, {_ids(only_b)} in B only: neither serves the other"
    return Comparison("write-id list", str(a), str(b), answer, why, details)


def _ids(missing: Missing) -> str:
    return f"write id {missing.first}" + (f" and {missing.total - 1} more" if missing.total > 1 else "")
