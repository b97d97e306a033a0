"""Canonical JSON of single values, as in keys and images: the same bytes from every source, query and language. Pure.

Strings and floats are written as RFC 8785 (JSON Canonicalization Scheme) does: a float as ECMAScript prints it, so
``1.0`` is ``1`` and ``1e21`` is ``1e+21``. Unlike there, an integer is exact and has no bound. Test vectors for
producers in other languages: ``schemas/key-vectors.json``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import msgspec

json_of: Callable[[Any], bytes] = msgspec.json.encode
"""The canonical JSON of a string, an integer, a boolean, or a list or object of these. For floats: `float_json`."""

UNDECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises of bytes that are not what is to be read: bad letters in a text, and deep nesting, are others."""

_FIXED_DIGITS: Final = 21
"""A float below 1e21 is written without an exponent,"""
_LEADING_ZEROS: Final = 6
"""and one of at least 1e-6."""


def float_json(value: float) -> bytes:
    """The canonical JSON of a float; ``null`` for NaN and infinities, which no key may hold. -0.0 is ``0``."""
    text = repr(value)
    if "e" in text:
        return _with_exponent(text).encode()
    if text.endswith(".0"):
        return text[:-2].encode() if value else b"0"
    return text.encode() if math.isfinite(value) else b"null"


def _with_exponent(text: str) -> str:
    """As ECMAScript prints a number that Python prints as ``[-]d[.ddd]e±xx``: the digits are the same."""
    mantissa, _, exponent = text.partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    digits, point = mantissa.lstrip("-").replace(".", ""), int(exponent) + 1
    if len(digits) <= point <= _FIXED_DIGITS:
        return sign + digits.ljust(point, "0")
    if -_LEADING_ZEROS < point <= 0:
        return f"{sign}0.{'0' * -point}{digits}"
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{fraction}e{point - 1:+d}"
