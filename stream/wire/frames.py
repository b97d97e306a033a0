"""Row frames, packed: integers in blocks, keys and images as lengths and one text, GTIDs as prefix and numbers. Pure.

A *frame* in memory is a mapping of columns: lists, one element a row or a transaction. `write` gives the Avro body of
`RowFrame.avsc`, `unpack` the columns of its fields. Both work on whole columns in C (arrays, maps): their cost in
Python is per frame, not per row (measured: docs/internals/wire.md). `write` does without an Avro encoder, which would
need twice as long for a frame of one row. The first version of the record had the columns as Avro arrays.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from itertools import accumulate, chain, count
from operator import add, sub
from typing import Any, Final

Frame = dict[str, Any]

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
ROWS_MAX: Final = 1 << 20
"""Rows of a frame that is read. A row is a few bytes in a message that lies, and hundreds in memory."""
PREFIX_MAX: Final = 128
"""Characters that all GTIDs of a frame may share."""
PREFIXED_MIN: Final = 4
"""GTIDs of fewer transactions are written as they are: a frame of one row is decoded without putting one together."""
_CODES: Final = {1: "B", 2: "H", 4: "I", 8: "Q"}
"""Width of an integer in bytes → type of array."""
_IS_BIG_ENDIAN: Final = sys.byteorder == "big"
_DIGITS: Final = "0123456789"
NUMBER_MAX: Final = 10**18
_SHIFT_MAX: Final = 70
COLUMNS: Final = {
    "shard": "bytes",
    "epoch": "number",
    "ordinal": "number",
    "operations": "bytes",
    "lengths": "bytes",
    "rows": "bytes",
    "ordinals": "bytes",
    "transactions": "number",
    "sizes": "bytes",
    "gtids": "texts",
    "gtid_prefix": "bytes",
    "gtid_base": "number",
    "gtid_numbers": "bytes",
    "positions": "texts",
    "timestamp": "number",
    "timestamps": "bytes",
    "origins": "texts",
}
"""The fields of the record in order, and how they are read. A string is read as bytes."""
_FIELDS: Final = tuple(COLUMNS)
_KINDS: Final = tuple(COLUMNS.values())
_STRINGS: Final = frozenset({"shard", "gtid_prefix"})


def write_long(value: int) -> bytes:
    """An Avro long (zigzag, seven bits a byte, low ones first). Raises ``OverflowError``."""
    rest = value << 1 if value >= 0 else ((-value) << 1) - 1
    if rest >> 64:
        raise OverflowError(f"{value} is no long")
    out = bytearray()
    while rest > 127:
        out.append(rest & 127 | 128)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_long = lru_cache(maxsize=4096)(write_long)
"""For numbers that come again."""


def write(frame: Frame) -> bytes:
    """The Avro body of `RowFrame` for a frame.

    Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``OverflowError`` if it does not fit: its ordinals do not
    rise, a transaction has no rows, or columns differ in length.
    """
    keys, images, sizes = frame["keys"], frame["images"], frame["transactions"]
    ordinals = list(map(sub, frame["ordinals"], count(1)))
    timestamps, gtids, positions, origins = (frame[each] for each in ("timestamps", "gtids", "positions", "origins"))
    if not len(keys) == len(images) == len(ordinals) == len(frame["operations"]) == sum(sizes) or not sizes:
        raise ValueError("the columns of rows differ in length, or are empty")
    if not len(sizes) == len(timestamps) == len(gtids) or {len(positions), len(origins)} - {0, len(sizes)}:
        raise ValueError("the columns of transactions differ in length")
    first = min(timestamps)
    prefix, base, numbers = _split_gtids(gtids)
    return b"".join(
        (
            _sized(frame["shard"].encode()),
            _long(frame["epoch"]),
            write_long(frame["ordinal"]),
            _sized(frame["operations"]),
            _sized(_block([*map(len, keys), *map(len, images)])),
            _sized(b"".join((*keys, *images))),
            _sized(_block(list(map(sub, ordinals, chain((0,), ordinals))))),
            _long(len(sizes)),
            _sized(_block([size - 1 for size in sizes])),
            _texts([] if prefix else gtids),
            _sized(prefix.encode()),
            write_long(base),
            _sized(numbers),
            _texts(positions),
            _long(first),
            _sized(_block([each - first for each in timestamps])),
            _texts(origins),
        )
    )


def _sized(text: bytes) -> bytes:
    """Avro bytes."""
    return _long(len(text)) + text if text else b"\0"


def _texts(texts: list[str]) -> bytes:
    """An Avro array of strings."""
    return b"".join((_long(len(texts)), *[_sized(each.encode()) for each in texts], b"\0")) if texts else b"\0"


def read(body: bytes, at: int) -> Frame:
    """The frame whose Avro body begins at ``body[at]``, twice as fast as `unpack` for a few rows.

    Raises ``ValueError`` or ``IndexError`` for anything that `write` does not write; Avro may still read it.
    """
    fields: list[Any] = []
    for kind in _KINDS:
        size = body[at]
        at += 1
        if size > 127:
            size, at = _read_rest(body, at, size)
        if kind == "number":
            fields.append(size >> 1 ^ -(size & 1))
        elif not size:
            fields.append(b"" if kind == "bytes" else [])
        elif size & 1:
            raise ValueError("a negative size")
        elif kind == "bytes":
            fields.append(body[at : at + (size >> 1)])
            at += size >> 1
        else:
            texts, at = _read_texts(body, at, size >> 1)
            fields.append(texts)
    if at != len(body):
        raise ValueError(f"the frame ends at byte {at} of {len(body)}")
    return _frame(fields)


def _read_rest(body: bytes, at: int, low: int) -> tuple[int, int]:
    """The unsigned number whose first byte is ``low``, and where it ends."""
    rest, shift, byte = low & 127, 7, low
    while byte > 127:
        byte = body[at]
        at += 1
        rest |= (byte & 127) << shift
        shift += 7
        if shift > _SHIFT_MAX:
            raise ValueError("a number is too long")
    if rest >> 64:
        raise ValueError("a number is no long")
    return rest, at


def _read_texts(body: bytes, at: int, size: int) -> tuple[list[str], int]:
    found = []
    for _ in range(size):
        length = body[at]
        at += 1
        if length > 127:
            length, at = _read_rest(body, at, length)
        if length & 1:
            raise ValueError("a negative size")
        found.append(body[at : at + (length >> 1)].decode())
        at += length >> 1
    if body[at]:
        raise ValueError("an array in several parts")
    return found, at + 1


def unpack(packed: Frame) -> Frame:
    """The frame that `RowFrame`'s fields describe. Raises ``ValueError`` if its columns contradict each other."""
    fields = [packed[name] for name in _FIELDS]
    return _frame([each.encode() if name in _STRINGS else each for name, each in zip(_FIELDS, fields, strict=True)])


def _frame(fields: Sequence[Any]) -> Frame:
    """The frame of `_FIELDS`, with `_STRINGS` as bytes."""
    shard, epoch, ordinal, operations, lengths, text, ordinals, transactions, sizes, gtids, *numbers = fields
    prefix, base, tails, positions, first, timestamps, origins = numbers
    rows = len(operations)
    if not 0 < transactions <= rows <= ROWS_MAX:
        raise ValueError(f"{transactions} transactions with {rows} rows")
    parts = _parts(lengths, text, rows)
    return {
        "shard": shard.decode(),
        "epoch": epoch,
        "ordinal": ordinal,
        "keys": parts[:rows],
        "images": parts[rows:],
        "operations": operations,
        "ordinals": _ordinals(ordinals, rows),
        "transactions": _sizes(sizes, transactions, rows),
        "gtids": _gtids(gtids, prefix.decode(), base, tails, transactions) if prefix else gtids,
        "positions": positions,
        "timestamps": _timestamps(first, timestamps, transactions) if timestamps else [first] * transactions,
        "origins": origins,
    }


def _parts(block: bytes, text: bytes, rows: int) -> list[bytes]:
    """All keys, then all images."""
    lengths = _numbers("lengths", block, 2 * rows)
    if sum(lengths) != len(text):
        raise ValueError(f"the lengths of the rows' {len(text)} bytes add up to {sum(lengths)}")
    if not all(lengths[:rows]):
        raise ValueError("a key is empty")
    return list(map(BytesIO(text).read, lengths))


def _block(values: list[int]) -> bytes:
    """``values``, none of them negative, in the smallest width that holds them. Raises ``OverflowError``."""
    top = max(values)
    if not top and not min(values):
        return b""
    found = array("B" if top < 1 << 8 else "H" if top < 1 << 16 else "I" if top < 1 << 32 else "Q", values)
    if _IS_BIG_ENDIAN:
        found.byteswap()
    return found.tobytes()


def _numbers(name: str, block: bytes, size: int) -> Sequence[int]:
    """The ``size`` numbers of a block."""
    if not block:
        return [0] * size
    code = _CODES.get(len(block) // size)
    if code is None or len(block) % size:
        raise ValueError(f"{name}: {len(block)} bytes are no block of {size} numbers")
    found = array(code)
    found.frombytes(block)
    if _IS_BIG_ENDIAN:
        found.byteswap()
    return found


def _sizes(block: bytes, transactions: int, rows: int) -> list[int]:
    sizes = [size + 1 for size in _numbers("sizes", block, transactions)] if block else [1] * transactions
    if sum(sizes) != rows:
        raise ValueError(f"the transactions have {sum(sizes)} of {rows} rows")
    return sizes


def _ordinals(block: bytes, rows: int) -> list[int]:
    if not block:
        return list(range(1, rows + 1))
    found = list(map(add, accumulate(_numbers("ordinals", block, rows)), count(1)))
    if found[-1] > INT_MAX:
        raise ValueError(f"ordinal {found[-1]} is out of range")
    return found


def _timestamps(first: int, block: bytes, transactions: int) -> list[int]:
    found = [first + each for each in _numbers("timestamps", block, transactions)]
    if max(found) > LONG_MAX:
        raise ValueError(f"timestamp {max(found)} is out of range")
    return found


def _split_gtids(gtids: list[str]) -> tuple[str, int, bytes]:
    """Prefix, smallest last number, and block of the last numbers less that; an empty prefix if they have no such form.

    A number that begins with 0 or is too large stays text, so that each GTID keeps every character.
    """
    first = gtids[0]
    prefix = first.rstrip(_DIGITS)
    start = len(prefix)
    if len(gtids) < PREFIXED_MIN or not 0 < start <= PREFIX_MAX:
        return "", 0, b""
    tails = [gtid[start:] for gtid in gtids if gtid.startswith(prefix)]
    joined = "".join(tails)
    if len(tails) < len(gtids) or not (joined.isascii() and joined.isdigit()):
        return "", 0, b""
    numbers = list(map(int, tails)) if all(tails) else []
    if not numbers or max(numbers) >= NUMBER_MAX or list(map(str, numbers)) != tails:
        return "", 0, b""
    base = min(numbers)
    return prefix, base, _block([number - base for number in numbers])


def _gtids(gtids: list[str], prefix: str, base: int, block: bytes, transactions: int) -> list[str]:
    if gtids or "\0" in prefix or len(prefix) > PREFIX_MAX or not 0 <= base < NUMBER_MAX:
        raise ValueError("GTIDs are given twice, or their prefix or number is out of range")
    numbers = [base + each for each in _numbers("gtid_numbers", block, transactions)]
    # The text of a list, split: a step in Python for each number would take twice as long.
    return f"{prefix}{str(numbers)[1:-1].replace(', ', chr(0) + prefix)}".split("\0")
