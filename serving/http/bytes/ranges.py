"""``Range`` and what depends on it (RFC 9110, 14 and 13.1). Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from serving.errors import ReadError

RANGES_MAX: Final = 100
"""In one request."""
PIECE: Final = 4 << 20
"""Bytes of an answer that are read, and held, at a time."""
_SPEC: Final = re.compile(r"([0-9]{0,19})-([0-9]{0,19})", re.ASCII)
_UNIT: Final = re.compile(r"bytes=(.*)", re.ASCII | re.IGNORECASE)

Range = tuple[int, int]
"""From the first byte to the one behind the last."""


class Part(NamedTuple):
    """Bytes of the file from ``start`` to ``end``, with ``head`` before them."""

    head: bytes
    start: int
    end: int


def ranges_of(header: str, size: int) -> list[Range] | None:
    """What ``Range`` asks for of a file; None: all of it, also where the header can't be read, as the RFC says.

    So it is where ranges overlap, and are more than the file together: a hundred times the file would be one request.

    Ranges past the end are left out. Raises `ReadError` ``bad_range`` if none is left, or for more than `RANGES_MAX`.
    """
    found = _UNIT.fullmatch(header.strip())
    if found is None:
        return None
    ranges: list[Range] = []
    specs = [spec.strip() for spec in found[1].split(",") if spec.strip()]
    if len(specs) > RANGES_MAX:
        raise ReadError("bad_range", f"{len(specs)} ranges, more than {RANGES_MAX}")
    for spec in specs:
        matched = _SPEC.fullmatch(spec)
        if matched is None or matched[0] == "-":
            return None
        first, last = matched[1], matched[2]
        if first and last and int(last) < int(first):
            return None
        start = int(first) if first else max(0, size - int(last))
        end = min(int(last) + 1, size) if first and last else size
        if start < end:
            ranges.append((start, end))
    if not specs:
        return None
    if not ranges:
        raise ReadError("bad_range", f"the file has {size} bytes")
    return ranges if sum(end - start for start, end in ranges) <= size else None


def parts_of(ranges: Sequence[Range], size: int, boundary: bytes) -> tuple[list[Part], bytes]:
    """(the parts of a multipart answer, what follows the last one)."""
    parts = []
    for start, end in ranges:
        place = b"content-range: bytes %d-%d/%d" % (start, end - 1, size)
        head = b"\r\n--%b\r\ncontent-type: application/octet-stream\r\n%b\r\n\r\n" % (boundary, place)
        parts.append(Part(head, start, end))
    return parts, b"\r\n--%b--\r\n" % boundary


def pieces_of(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """The parts in their order, cut so that no piece has more than `PIECE` bytes of the file."""
    piece: list[Part] = []
    room = PIECE
    for head, start, end in parts:
        at = start
        while True:
            taken = min(end, at + room)
            piece.append(Part(head if at == start else b"", at, taken))
            room -= taken - at
            at = taken
            if not room:
                yield piece
                piece, room = [], PIECE
            if at == end:
                break
    if piece:
        yield piece


def names(header: str, etag: str, *, weak: bool) -> bool:
    """Whether a list of entity tags names ``etag``. ``weak``: as If-None-Match compares; else as If-Match does."""
    given = [each.strip() for each in header.split(",")]
    return given == ["*"] or (bool(etag) and etag in ([each.removeprefix("W/") for each in given] if weak else given))
