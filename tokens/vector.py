"""Position vectors: what a session has seen of each shard. Their text is the opaque token of requests and answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple

from .errors import TokenError
from .event import EventToken
from .integers import INT64_MAX, excerpt
from .position import Order, Position
from .session import texts
from .session.packed import SHARD_BYTES_MAX, SHARDS_MAX

CACHED_TEXT_MAX = 1024
CACHED_LONG_TEXT_MAX = 8192
"""The token of a hundred shards. Few of these are cached, so that they cannot fill the memory."""


class Component(NamedTuple):
    """One shard's part of a vector: the epoch of its history, and a position in it."""

    epoch: int
    position: Position


class Vector:
    """An immutable mapping shard → (epoch, position), sorted by shard.

    Merging is component-wise. It is commutative, associative and idempotent, so a session may merge tokens in any order
    and any number of times.
    """

    __slots__ = ("_components", "_text")

    def __init__(self, components: Mapping[str, tuple[int, Position]] | None = None) -> None:
        """Raises `TokenError`.

        That is for a component without shard name or position or with a negative epoch, and for too many components.
        """
        checked: dict[str, Component] = {}
        for shard, (epoch, position) in sorted((components or {}).items()):
            checked[shard] = _checked(shard, epoch, position)
        if len(checked) > SHARDS_MAX:
            raise TokenError(f"a vector of {len(checked)} shards is too large", hint=f"at most {SHARDS_MAX}")
        self._components = checked
        self._text: str | None = None

    @staticmethod
    def parse(text: str) -> Vector:
        """The vector that ``text`` stands for: its own ``str()``, or an `EventToken`'s text. Raises `TokenError`.

        An event token without shard or position is refused, because such a demand cannot be checked.
        """
        if len(text) <= CACHED_TEXT_MAX:
            return _parse_cached(text)
        return _parse_cached_long(text) if len(text) <= CACHED_LONG_TEXT_MAX else _parse_cached_longest(text)

    @staticmethod
    def parse_all(text: str) -> Vector:
        """The merge of all tokens in ``text``, which are separated by commas. Raises `TokenError`."""
        if texts.is_sole(text):
            return Vector.parse(text)
        found = [Vector.parse(token) for token in texts.split(text)]
        while len(found) > 1:  # two by two: one after the other, a thousand would be copied hundreds of times
            found = [one.merge(other) for one, other in zip_longest(found[::2], found[1::2], fillvalue=Vector())]
        return found[0] if found else Vector()

    @staticmethod
    def parse_known(text: str) -> tuple[Vector, tuple[str, ...]]:
        """As `parse_all`, but tokens of newer formats are returned unread.

        A session sends these back as they are, so that it works with a front that is newer than its own library.
        """
        tokens = texts.split(text)
        newer = tuple(token for token in tokens if texts.is_newer(token))
        return Vector.parse_all(",".join(token for token in tokens if token not in newer)), newer

    @classmethod
    def of_event(cls, token: EventToken) -> Vector:
        """The vector with the token's shard only. Raises `TokenError` if the token has no shard or no position."""
        if not token.shard or token.position is None:
            raise TokenError(
                f"event token {excerpt(str(token))} has no {'shard' if token.position is not None else 'position'}",
                hint="only a token with shard and position says what a session has seen",
            )
        return cls({token.shard: Component(token.epoch, token.position)})

    def get(self, shard: str) -> Component | None:
        """The component of ``shard``, or None."""
        return self._components.get(shard)

    def with_component(self, shard: str, epoch: int, position: Position) -> Vector:
        """This vector with the component of ``shard`` replaced."""
        return Vector({**self._components, shard: Component(epoch, position)})

    def without(self, shard: str) -> Vector:
        """This vector without the component of ``shard``."""
        return Vector({name: component for name, component in self._components.items() if name != shard})

    def merge(self, other: Vector) -> Vector:
        """The merge of both: for each shard the higher epoch and, in equal epochs, the join of the positions.

        Raises `TokenError` if two positions of one shard and epoch have no join (two flavors, two binlog base names).
        """
        if other is self or not other._components:
            return self
        if not self._components:
            return other
        merged = dict(self._components)
        for shard, theirs in other._components.items():
            mine = merged.get(shard)
            if mine is None or theirs.epoch > mine.epoch:
                merged[shard] = theirs
            elif theirs.epoch == mine.epoch:
                merged[shard] = Component(mine.epoch, mine.position.join(theirs.position))
        return self if merged == self._components else Vector(merged)

    def order(self, other: Vector) -> Order:
        """The order of this vector against ``other``, shard by shard. A missing component is older than any other.

        UNKNOWN if a shard has different epochs (two histories), or if the shards disagree.
        """
        answers = set()
        for shard, mine in self._components.items():
            theirs = other._components.get(shard)
            if theirs is None:
                answers.add(Order.NEWER)
            elif theirs.epoch != mine.epoch:
                return Order.UNKNOWN
            else:
                answers.add(mine.position.order(theirs.position))
        if not other._components.keys() <= self._components.keys():
            answers.add(Order.OLDER)
        answers.discard(Order.SAME)
        if not answers:
            return Order.SAME
        return answers.pop() if len(answers) == 1 else Order.UNKNOWN

    def __iter__(self) -> Iterator[str]:
        return iter(self._components)

    def items(self) -> Iterator[tuple[str, Component]]:
        """(shard, component), sorted by shard."""
        return iter(self._components.items())

    def __len__(self) -> int:
        return len(self._components)

    def __contains__(self, shard: object) -> bool:
        return shard in self._components

    def __bool__(self) -> bool:
        return bool(self._components)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Vector):
            return NotImplemented
        return self._components == other._components

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        text = self._text
        if text is None:
            text = self._text = texts.write(self._components.items())
        return text

    def __repr__(self) -> str:
        inside = ", ".join(f"{shard}: {epoch} {position}" for shard, (epoch, position) in self._components.items())
        return f"<Vector {inside or 'empty'}>"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Vector.parse, (str(self),)


def _checked(shard: str, epoch: int, position: Position) -> Component:
    if not shard:
        raise TokenError("a vector's component has no shard name")
    if len(shard) > SHARD_BYTES_MAX // 4 or not shard.isascii():
        try:
            size = len(shard.encode())
        except UnicodeEncodeError:
            raise TokenError(f"shard {excerpt(shard)} of a vector is not valid Unicode") from None
        if size > SHARD_BYTES_MAX:
            raise TokenError(f"shard {excerpt(shard)} of a vector is longer than {SHARD_BYTES_MAX} bytes")
    if not 0 <= epoch <= INT64_MAX:
        raise TokenError(f"epoch {epoch} of shard {excerpt(shard)} is out of range", hint="epochs count up from 0")
    if not position.flavor:
        raise TokenError(f"shard {excerpt(shard)} of a vector has no position")
    return Component(epoch, position)


def _parse(text: str) -> Vector:
    if text.startswith("time="):
        return Vector.of_event(EventToken.parse(text))
    components, is_newest = texts.read(text)
    vector = Vector(components)
    if is_newest:
        vector._text = text
    return vector


_parse_cached = lru_cache(maxsize=4096)(_parse)
_parse_cached_long = lru_cache(maxsize=256)(_parse)
_parse_cached_longest = lru_cache(maxsize=4)(_parse)
"""Of the requests that are answered now: a batch reads its token again for each element."""
