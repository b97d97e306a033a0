"""Event tokens: a place in one shard's stream with its source time, and the order of two tokens.

This is Vitess's event token (timestamp, shard, position) plus the epoch of the shard's history and, for an event that
came through filtered replication, its origin. Timestamps are for seeking and display; they never order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple, Self
from urllib.parse import quote

from .errors import TokenError
from .integers import INT64_MAX, INT64_MIN, excerpt
from .position import Order, Position

_INT64_TEXT = re.compile(r"-?[0-9]{1,19}")
_PERCENT = re.compile(r"%([0-9A-Fa-f]{2})?")
# Characters that would end a field early, or break a log line or a terminal.
_ESCAPED = re.compile(r"[%;=@\s\x00-\x1f\x7f-\xa0\ud800-\udfff]")
_FIELDS = ("time", "shard", "epoch", "position", "origin")


class Origin(NamedTuple):
    """The original shard, position and epoch of an event that came through filtered replication."""

    shard: str
    position: Position
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class EventToken:
    """A place in a shard's stream.

    ``timestamp``: the source's seconds since 1970 (64-bit). ``shard``: empty if unknown. ``position``: the set
    *after* the event's transaction, or None. ``origin``: an `Origin` or a (shard, position) pair.
    """

    timestamp: int
    shard: str
    position: Position | None
    origin: Origin | tuple[str, Position] | None = None
    epoch: int = 0

    def __post_init__(self) -> None:
        if not INT64_MIN <= self.timestamp <= INT64_MAX:
            raise TokenError(f"timestamp {self.timestamp} is out of range", hint="seconds as a 64-bit number")
        if not 0 <= self.epoch <= INT64_MAX:
            raise TokenError(f"epoch {self.epoch} is out of range", hint="epochs count up from 0")
        if self.position is not None and not self.position.flavor:
            object.__setattr__(self, "position", None)
        if self.origin is not None and not isinstance(self.origin, Origin):
            object.__setattr__(self, "origin", Origin(*self.origin))

    def coordinates(self) -> dict[tuple[str, int], Position]:
        """(shard, epoch) → position, of the token and of its origin. One without shard or position is left out."""
        places: dict[tuple[str, int], Position] = {}
        origin = self.origin
        if isinstance(origin, Origin) and origin.shard and origin.position.flavor:
            places[origin.shard, origin.epoch] = origin.position
        if self.shard and self.position is not None:
            places[self.shard, self.epoch] = self.position
        return places

    @classmethod
    def parse(cls, text: str) -> Self:
        """The token that ``str()`` printed as ``text``. Raises `TokenError`."""
        fields = _parse_fields(text)
        origin = None
        if "origin" in fields:
            place, _, epoch = fields["origin"].partition("#")
            shard, at, position = place.partition("@")
            if not at:
                raise TokenError(f"origin {excerpt(place)} of an event token is not shard@position")
            origin = Origin(
                _unescape(shard), Position.parse(_unescape(position)), _parse_int(epoch or "0", "origin epoch")
            )
        position = _unescape(fields["position"]) if "position" in fields else ""
        return cls(
            _parse_int(fields["time"], "time"),
            _unescape(fields.get("shard", "")),
            Position.parse(position) if position else None,
            origin,
            _parse_int(fields.get("epoch", "0"), "epoch"),
        )

    def __str__(self) -> str:
        parts = [f"time={self.timestamp}"]
        if self.shard:
            parts.append(f"shard={_escape(self.shard)}")
        if self.epoch:
            parts.append(f"epoch={self.epoch}")
        if self.position is not None:
            parts.append(f"position={_escape(str(self.position))}")
        origin = self.origin
        if isinstance(origin, Origin):
            epoch = f"#{origin.epoch}" if origin.epoch else ""
            parts.append(f"origin={_escape(origin.shard, '#')}@{_escape(str(origin.position), '#')}{epoch}")
        return ";".join(parts)


def order(a: EventToken, b: EventToken) -> Order:
    """The order of ``a`` against ``b``: NEWER means that ``a`` is newer.

    If shard and epoch are equal, the positions decide. Otherwise the positions in all (shard, epoch) pairs that both
    tokens share, origins included, must agree. If they don't, or none is shared, the order is UNKNOWN. It is
    antisymmetric, and transitive within a lineage. Timestamps don't count.
    """
    if a.shard and a.shard == b.shard and a.epoch == b.epoch and a.position is not None and b.position is not None:
        return a.position.order(b.position)
    ours, theirs = a.coordinates(), b.coordinates()
    answers = {position.order(theirs[place]) for place, position in ours.items() if place in theirs}
    return answers.pop() if len(answers) == 1 else Order.UNKNOWN


def vitess_fresher(a: EventToken | None, b: EventToken | None) -> int:
    """Vitess's timestamp-first rule, ``Fresher``. For compatibility: it decides nothing (docs/concepts/order.md).

    Negative: ``a`` is older *or the order is unknown*; 0: the same; positive: ``a`` is fresher. For different
    timestamps it is their exact difference (Vitess wraps at 64 bits). Unlike Vitess, it never calls both tokens the
    fresher one: sets are compared as sets, and one MariaDB sequence from two servers is unknown.
    """
    if a is None or b is None:
        return -1
    if a.timestamp != b.timestamp:
        return a.timestamp - b.timestamp
    if not a.shard or a.shard != b.shard or a.epoch != b.epoch or a.position is None or b.position is None:
        return -1
    answer = a.position.order(b.position)
    return -1 if answer is Order.UNKNOWN else answer.value


def _escape(text: str, also: str = "") -> str:
    if (also and also in text) or _ESCAPED.search(text):
        return "".join(
            quote(char, safe="", errors="surrogatepass") if char == also or _ESCAPED.match(char) else char
            for char in text
        )
    return text


def _unescape(text: str) -> str:
    if "%" not in text:
        return text
    for match in _PERCENT.finditer(text):
        if match[1] is None:
            raise TokenError(
                f"bad percent escape in {excerpt(text)} of an event token", hint="write a literal % as %25"
            )
    head, *rest = text.encode("utf-8", "surrogatepass").split(b"%")
    raw = head + b"".join(bytes((int(part[:2], 16),)) + part[2:] for part in rest)
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise TokenError(f"percent escapes in {excerpt(text)} of an event token are not UTF-8") from None


def _parse_int(text: str, what: str) -> int:
    if _INT64_TEXT.fullmatch(text) is None:
        raise TokenError(f"{what} {excerpt(text)} of an event token is not a number")
    return int(text)


def _parse_fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(";", len(_FIELDS)):
        name, equals, value = part.partition("=")
        if not equals or name not in _FIELDS or name in fields:
            raise TokenError(
                f"{excerpt(part)} is not a field of an event token",
                hint=f"fields are {', '.join(_FIELDS)}, each at most once",
            )
        fields[name] = value
    if "time" not in fields:
        raise TokenError(f"event token {excerpt(text)} has no time", hint="it begins with time=<seconds>")
    return fields
