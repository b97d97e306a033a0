"""The order of a table's rows at the source, where the values of their columns tell it. Pure.

The bytes of a key in the store have another order: ``[10]`` is before ``[9]``, and ``["a!"]`` before ``["a"]``.
"""

from __future__ import annotations

import ipaddress
from base64 import b64decode
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, cast

import msgspec

from stream.wire.keys import SEPARATOR

KeyColumn = tuple[str, str, bool]
"""Name, kind, and whether a value has one spelling."""
Rank = tuple[Any, ...]
"""Keys of one table compare as their ranks do."""

NULL_FIRST: Final = (0,)
"""The rank of NULL: before all values."""
_values: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[Any])


def _number(value: Any) -> int | float:
    if type(value) not in (int, float):
        raise TypeError(f"{value!r} is no number")
    return cast("int | float", value)


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"{value!r} is no text")
    return value


def _decimal(text: str) -> Decimal:
    found = Decimal(text)
    if not found.is_finite():
        raise ValueError(f"{text!r} is no number")
    return found


def _seconds(text: str) -> Decimal:
    """A TIME, ``-838:59:59.5``, in seconds."""
    hours, minutes, seconds = text.lstrip("-").split(":")
    found = (int(hours) * 60 + int(minutes)) * 60 + _decimal(seconds)
    return -found if text.startswith("-") else found


_RANKED: Final[dict[str, Callable[[Any], Any]]] = {
    "int": _number,
    "year": _number,
    "bit": _number,
    "float": _number,
    "double": _number,
    "decimal": _decimal,
    "date": _text,
    "datetime": _text,
    "timestamp": _text,
    "time": _seconds,
    "inet": lambda text: ipaddress.ip_address(text).packed,
    "binary": lambda value: b64decode(value["base64"]),
}
"""Kinds whose values tell their order. A date's text has one width, a datetime's one in each column."""
_INTEGERS: Final = frozenset({"int", "year", "bit"})
_FLOATS: Final = frozenset({"float", "double"})
_BYTES: Final = frozenset({"binary", "opaque"})
"""Kinds that bytes may have. A server's opaque type may be a text."""


def is_value(kind: str, value: Any) -> bool:
    """Whether a column of the kind may have the value, by its form. If so, its rank is known where it tells an order.

    Somebody else may have made the value, so it may be anything that is in JSON.
    """
    if kind in _INTEGERS:
        return type(value) is int and -1 << 63 <= value < 1 << 64
    if kind in _FLOATS:
        return type(value) in (int, float)
    try:
        if type(value) is dict:
            return kind in _BYTES and [*value] == ["base64"] and b64decode(value["base64"], validate=True) is not None
        text = _text(value)
        return kind not in _RANKED or _RANKED[kind](text) is not None
    except (ArithmeticError, TypeError, ValueError):
        return False


def unranked(columns: Sequence[KeyColumn]) -> str:
    """The first of the columns whose order only the source knows; "" if there is none.

    Those are texts, which a collation orders, ENUM and SET, which have the order of their definition, and UUID.
    """
    return next((name for name, kind, _ in columns if kind not in _RANKED), "")


def rank(columns: Sequence[KeyColumn], key: bytes, skipped: int) -> Rank:
    """The rank of a row key among those that share its first ``skipped`` values.

    ``columns``: of the whole key; none after the first ``skipped`` may be `unranked`. Raises ``ValueError``.
    """
    try:
        values = values_in(key)[skipped:]
        return tuple(_RANKED[kind](value) for (_, kind, _), value in zip(columns[skipped:], values, strict=True))
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"{key!r} is no key of this table: {error}") from error


def values_in(key: bytes) -> list[Any]:
    """The canonical values in a row key. Raises ``ValueError``."""
    return _values.decode(key[key.index(SEPARATOR) + 1 :])


class Ranking:
    """The order of rows by some ``columns``, and by what follows the first ``skipped`` ones in the ``key``.

    Without ``columns`` it is that of keys alone.
    """

    __slots__ = ("_columns", "_key", "_skipped", "unranked")

    def __init__(self, columns: Sequence[KeyColumn], key: Sequence[KeyColumn], skipped: int) -> None:
        self._columns = tuple(columns)
        self._key = key
        self._skipped = skipped
        self.unranked = unranked((*columns, *key[skipped:]))
        """The first column whose order only the source knows; "" if there is none."""

    def rank(self, key: bytes, image: bytes) -> Rank:
        """The rank of a row. Raises ``ValueError``."""
        return self._ranked(self.values(image), key)

    def after(self, key: bytes, values: bytes) -> Rank:
        """The rank of the row after which a page goes on. ``values``: as JSON. Raises ``ValueError``."""
        found = _values.decode(values) if self._columns else []
        if len(found) != len(self._columns):
            raise ValueError(f"{values!r} are not the values of {len(self._columns)} columns")
        return self._ranked(found, key)

    def values(self, image: bytes) -> list[Any]:
        """The values of the columns in an image. Raises ``ValueError``."""
        if not self._columns:
            return []
        decode, get = _extraction(tuple(name for name, _, _ in self._columns))
        found = get(decode(image))
        return [found] if len(self._columns) == 1 else list(found)

    def _ranked(self, values: Sequence[Any], key: bytes) -> Rank:
        try:
            first = [
                NULL_FIRST if value is None else (1, _RANKED[kind](value))
                for (_, kind, _), value in zip(self._columns, values, strict=True)
            ]
        except (ArithmeticError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{values!r} are no values of these columns: {error}") from error
        return (*first, *rank(self._key, key, self._skipped))


@lru_cache(1_024)
def _extraction(columns: tuple[str, ...]) -> tuple[Any, Any]:
    """Reads the columns of an image, and takes them from what was read."""
    names = [f"c{number}" for number in range(len(columns))]
    fields: list[Any] = [(name, Any) for name in names]
    made = msgspec.defstruct("Ordered", fields, rename=dict(zip(names, columns, strict=True)), gc=False)
    return msgspec.json.Decoder(made).decode, attrgetter(*names)
