"""Integers as Go's and Java's parsers read them: exactly the texts that they accept are accepted here.

Python's ``int()`` also takes blanks, underscores and digits of every script, so it cannot be used directly.
"""

from __future__ import annotations

import re

from .errors import TokenError

INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1

GO_SPACE = "\t\n\v\f\r \x85\xa0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u2028\u2029\u202f\u205f\u3000"
"""What Go's ``strings.TrimSpace`` trims (``str.strip()`` trims more)."""

_DECIMAL_DIGITS_MAX = 20
_EXCERPT_CHARS_MAX = 60
# A base prefix counts as a digit, so `0x_1f` is fine and `1__0`, `_1`, `1_` are not.
_GO_PREFIXED = re.compile(
    r"0[xX](?P<hex>(?:_?[0-9a-fA-F])+)|0[bB](?P<bin>(?:_?[01])+)|0[oO](?P<oct>(?:_?[0-7])+)"
    r"|0(?P<zero>(?:_?[0-7])*)|(?P<dec>[1-9](?:_?[0-9])*)"
)
_BASES = {"hex": 16, "bin": 2, "oct": 8, "zero": 8, "dec": 10}
_JAVA_LONG = re.compile(r"[+-]?\d+")
_LAST_BMP = "\uffff"


def excerpt(part: str) -> str:
    """``part`` quoted for an error message: one line, cut if long."""
    if len(part) > _EXCERPT_CHARS_MAX:
        return f"{part[:_EXCERPT_CHARS_MAX]!r}… ({len(part)} characters)"
    return repr(part)


def parse_unsigned(digits: str, maximum: int, what: str) -> int:
    """A decimal number as Go's ``strconv.ParseUint(digits, 10, …)`` reads it: ASCII digits only, leading zeros fine.

    Raises `TokenError` that calls the number ``what``.
    """
    if not (digits.isascii() and digits.isdigit()):
        raise TokenError(f"{what} {excerpt(digits)} is not a number", hint="only the digits 0-9 are allowed there")
    if len(digits) > _DECIMAL_DIGITS_MAX:
        digits = digits.lstrip("0") or "0"
    if len(digits) > _DECIMAL_DIGITS_MAX or (value := int(digits)) > maximum:
        raise TokenError(f"{what} {excerpt(digits)} is out of range", hint=f"the largest allowed is {maximum}")
    return value


def parse_unsigned_any_base(text: str, maximum: int, what: str) -> int:
    """A number as Go's ``strconv.ParseUint(text, 0, …)`` reads it: ``0x``, ``0b``, ``0o``, ``0``, underscores.

    Raises `TokenError` that calls the number ``what``.
    """
    match = _GO_PREFIXED.fullmatch(text)
    if match is None or match.lastgroup is None:
        raise TokenError(f"{what} {excerpt(text)} is not a number")
    digits = match[match.lastgroup].replace("_", "").lstrip("0") or "0"
    # No number of more than 64 digits is in range, and int() is slow on very long texts.
    if len(digits) > 64 or (value := int(digits, _BASES[match.lastgroup])) > maximum:
        raise TokenError(f"{what} {excerpt(text)} is out of range", hint=f"the largest allowed is {maximum}")
    return value


def parse_java_long(text: str, what: str) -> int:
    """A number as Java's ``Long.parseLong`` reads it: one optional sign, digits (of any script in the BMP), ±2^63.

    Raises `TokenError` that calls the number ``what``.
    """
    digits = text
    if not (text.isascii() and text.isdigit()):
        if _JAVA_LONG.fullmatch(text) is None or max(text) > _LAST_BMP:
            raise TokenError(f"{what} {excerpt(text)} is not a number", hint="blanks are not allowed in a list")
        digits = text.lstrip("+-")
    if len(digits) > _DECIMAL_DIGITS_MAX:
        digits = "".join(str(int(digit)) for digit in digits).lstrip("0") or "0"
    value = int(digits) if len(digits) <= _DECIMAL_DIGITS_MAX else INT64_MAX + 2
    if text.startswith("-"):
        value = -value
    if not INT64_MIN <= value <= INT64_MAX:
        raise TokenError(f"{what} {excerpt(text)} is out of range", hint="ids are 64-bit signed numbers")
    return value


def wrap_int64(value: int) -> int:
    """``value`` as a 64-bit two's-complement register would hold it (Java arithmetic wraps silently)."""
    return (value + 2**63) % 2**64 - 2**63
