"""Mutators: they turn valid input into what a broken or hostile writer might write. All use a seeded rng."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

Rng = random.Random

INTEGERS = (
    *(0, 1, -1, 2, 7, 127, 128, 255, 256, 32_767, 32_768, 65_535, 65_536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53, 2**62, 2**63 - 1),
    *(-128, -32_768, -(2**31), -(2**63)),
)
WIDE_INTEGERS = (*INTEGERS, 2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30, 10**400, 10**4_000)
BYTES_MAX = 1 << 20
FLOATS = (0.0, -0.0, 1.5, 1e308, -1e308, 5e-324, float("inf"), float("-inf"), float("nan"))
UNICODE = (
    *("\0", "\n", "\r", "\u2028", "\x85", "\x1b[31m", "\x7f", "\ufeff", "\u202e", "\u0130", "ß", "ſ"),
    *("é", "e\u0301", "\U0001f600", "\U0010ffff", "١", "²", "\u3000", "\ud800", "\udfff"),
)
TEXTS = (
    *("", " ", "0", "-0", "--5", "+1", "1_0", "0x1f", "1e9", "NaN", "Infinity", "null", "true", "*", "%", "%00", "%FF"),
    *(
        "9" * 30,
        "9" * 5_000,
        "a" * 5_000,
        "(" * 2_000,
        "[" * 2_000,
        "{" * 2_000,
        "%s%n",
        "../../x",
        "a\0b",
        "\\'" * 500,
    ),
    *UNICODE,
)


def integer(rng: Rng, *, wide: bool = False) -> int:
    """A boundary value, a value next to one, or a random value."""
    if rng.random() < 0.2:
        return rng.getrandbits(rng.randrange(1, 64))
    return rng.choice(WIDE_INTEGERS if wide else INTEGERS) + rng.choice((-1, 0, 0, 0, 1))


def encoded_integer(rng: Rng) -> bytes:
    """A boundary value in one of the forms in which lengths and counts are written."""
    value = integer(rng)
    form = rng.randrange(6)
    if form == 0:
        return varint(value)
    if form == 5:
        return varint(value) + varint(integer(rng))
    size, order = rng.choice(((1, "B"), (2, "H"), (4, "I"), (8, "Q"))), rng.choice("<>")
    return struct.pack(order + size[1], value & ((1 << (8 * size[0])) - 1))


def varint(value: int) -> bytes:
    """An Avro long, possibly with more bits than allowed."""
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    return bytes((*out, rest))


def _flip_bit(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set_byte(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFE, 0xFF, rng.randrange(256)))


def _insert(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def _delete(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 1, 2, 4, 16, 64))]


def _repeat(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    at = rng.randrange(len(data))
    part = data[at : at + rng.choice((1, 2, 8, 32))]
    data[at:at] = part * rng.choice((1, 2, 3, 10, 200 if len(data) < 4_096 else 1))


def _splice(rng: Rng, data: bytearray, corpus: Sequence[bytes]) -> None:
    other = rng.choice(corpus)
    at, start = rng.randrange(len(data) + 1), rng.randrange(len(other) + 1)
    end = len(data) if rng.random() < 0.5 else at
    data[at:end] = other[start : start + rng.choice((4, 16, 64, 4_096))]


def _lie(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    """Writes a wrong length or count."""
    lie = encoded_integer(rng)
    at = rng.randrange(len(data))
    data[at : at + rng.choice((0, 1, len(lie)))] = lie


def _truncate(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _swap(rng: Rng, data: bytearray, _: Sequence[bytes]) -> None:
    one, other = rng.randrange(len(data)), rng.randrange(len(data))
    data[one], data[other] = data[other], data[one]


_BYTE_OPERATIONS: tuple[Callable[[Rng, bytearray, Sequence[bytes]], None], ...] = (
    *(_flip_bit, _flip_bit, _set_byte, _set_byte, _insert, _delete, _repeat, _splice, _lie, _lie, _truncate, _swap),
)


def some_bytes(rng: Rng, corpus: Sequence[bytes]) -> bytes:
    """One of ``corpus`` after one to four operations; sometimes random bytes."""
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(64))
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        if not data:
            data += rng.choice(corpus)
        if data:
            rng.choice(_BYTE_OPERATIONS)(rng, data, corpus)
    return bytes(data[:BYTES_MAX])


def some_text(rng: Rng, corpus: Sequence[str], pieces: Sequence[str] = ()) -> str:
    """One of ``corpus`` with characters and ``pieces`` put in, taken out, repeated, and numbers made extreme."""
    text = rng.choice(corpus)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        text = _text_operation(rng, text, corpus, pieces)
    return text[:200_000]


def _text_operation(rng: Rng, text: str, corpus: Sequence[str], pieces: Sequence[str]) -> str:
    at = rng.randrange(len(text) + 1)
    end = min(len(text), at + rng.choice((0, 0, 1, 1, 3, 10)))
    match rng.randrange(7):
        case 0:
            put = rng.choice(pieces or TEXTS)
        case 1:
            put = rng.choice(TEXTS)
        case 2:
            put = str(integer(rng, wide=True)) if rng.random() < 0.9 else "9" * 5_000
        case 3:
            put = text[at:end] * rng.choice((2, 3, 50, 1_000))
        case 4:
            other = rng.choice(corpus)
            start = rng.randrange(len(other) + 1)
            put = other[start : start + rng.choice((1, 8, 100))]
        case 5:
            put = rng.choice(pieces or TEXTS) * rng.choice((1, 2, 20, 500))
        case _:
            put = chr(rng.choice((rng.randrange(32, 127), rng.randrange(0x110000))))
    return text[:at] + put + text[end:]


def some_tree(rng: Rng, value: Any, odd: Callable[[Rng], Any] | None = None) -> Any:
    """``value`` (dicts, lists, scalars) with one to three nodes replaced, left out, doubled or wrapped."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = _change_one(rng, value, odd or odd_value)
    return value


def odd_value(rng: Rng) -> Any:
    """An unexpected value."""
    match rng.randrange(12):
        case 0:
            return integer(rng, wide=True)
        case 1:
            return rng.choice(FLOATS)
        case 2 | 3:
            return rng.choice(TEXTS)
        case 4:
            return rng.choice((None, True, False))
        case 5:
            return [integer(rng) for _ in range(rng.choice((0, 1, 3, 300)))]
        case 6:
            return {rng.choice(TEXTS): rng.choice(TEXTS)}
        case 7:
            return nested(rng.choice((2, 50, 800)), rng.random() < 0.5)
        case 8:
            return []
        case 9:
            return {}
        case 10:
            return str(integer(rng, wide=True))
        case _:
            return integer(rng)


def nested(depth: int, as_objects: bool) -> Any:
    """A value inside ``depth`` lists or objects."""
    value: Any = 1
    for _ in range(depth):
        value = {"x": value} if as_objects else [value]
    return value


def _change_one(rng: Rng, value: Any, odd: Callable[[Rng], Any]) -> Any:
    go_down = rng.random() < 0.85
    if isinstance(value, dict) and value and go_down:
        key = rng.choice(list(value))
        match rng.randrange(8):
            case 0:
                return {name: each for name, each in value.items() if name != key}
            case 1:
                return value | {rng.choice(TEXTS): odd(rng)}
            case _:
                return value | {key: _change_one(rng, value[key], odd)}
    if isinstance(value, list) and value and go_down:
        at = rng.randrange(len(value))
        match rng.randrange(8):
            case 0:
                return value[:at] + value[at + 1 :]
            case 1:
                return value[:at] + [value[at]] * rng.choice((2, 10)) + value[at + 1 :]
            case _:
                return [*value[:at], _change_one(rng, value[at], odd), *value[at + 1 :]]
    if isinstance(value, str) and rng.random() < 0.5:
        return some_text(rng, [value])
    return odd(rng)
