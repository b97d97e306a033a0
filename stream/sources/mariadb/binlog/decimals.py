"""DECIMAL as the servers store it (strings/decimal.c): groups of nine digits, big-endian, the sign first. Pure."""

from __future__ import annotations

from collections.abc import Callable

_DECIMAL_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def decimal_reader(precision: int, scale: int) -> Callable[[bytes, int], tuple[str, int]]:
    """A function from bytes and a place to the number's text, with all digits of its scale, and the place after it."""
    whole, first = divmod(precision - scale, 9)
    parts, last = divmod(scale, 9)
    head, tail = _DECIMAL_BYTES[first], _DECIMAL_BYTES[last]
    size = head + 4 * (whole + parts) + tail
    top, mask = 1 << (8 * size - 1), (1 << (8 * size)) - 1
    sizes = [(head, first)] if head else []
    sizes += [(4, 9)] * (whole + parts)
    sizes += [(tail, last)] if tail else []
    groups, left = [], size
    for length, count in sizes:
        left -= length
        groups.append((8 * left, (1 << 8 * length) - 1, 10**count))
    unit, form = 10**scale, f"%d.%0{scale}d" if scale else "%d"

    def read(data: bytes, position: int) -> tuple[str, int]:
        end = position + size
        number = int.from_bytes(data[position:end], "big")
        negative = not number & top
        number = (~number & mask if negative else number) ^ top
        value = 0
        for shift, part, factor in groups:
            value = value * factor + (number >> shift & part)
        text = form % (divmod(value, unit) if scale else value)
        return f"-{text}" if negative else text, end

    return read
