"""Footers are recognised by the reads themselves: the end of a Parquet or ORC file says where its footer begins. Pure.

Every reader of a file needs the footer first, and it is small: it is worth more than the pages (`Value.INDEX`).
Parquet: 4 bytes of length and ``PAR1`` at the end (``PARE``: encrypted). ORC: a postscript (protobuf) with the lengths
of the footer (field 1) and of the metadata (field 5), which ends with ``ORC`` and its own length in one byte.
"""

from __future__ import annotations

from typing import Final

PARQUET: Final = (b"PAR1", b"PARE")
ORC: Final = b"ORC"
POSTSCRIPT_MAX: Final = 255
FOOTER_SHARE_MAX: Final = 0.5
"""A "footer" of more than this of the file is no footer, whatever the bytes say."""


def footer_start(size: int, tail: bytes | memoryview) -> int | None:
    """Where the footer of a file of ``size`` begins; None if ``tail``, its last bytes, is of neither format."""
    end = bytes(tail[-POSTSCRIPT_MAX - 1 :])
    length = None
    if len(end) >= 8 and end[-4:] in PARQUET:
        length = int.from_bytes(end[-8:-4], "little") + 8
    elif len(end) >= 4 and end[-4:-1] == ORC:
        length = _orc_length(end)
    if length is None or length > size or (length > len(tail) and length > FOOTER_SHARE_MAX * size):
        return None
    return size - length


def _orc_length(end: bytes) -> int | None:
    postscript = end[-1 - end[-1] : -1]
    fields: dict[int, int] = {}
    at = 0
    while at < len(postscript):
        tag, at = _varint(postscript, at)
        value, at = _varint(postscript, at)
        if tag & 7 == 2:  # a string or a packed list: ``value`` is its length
            at += value
        elif tag & 7 != 0:
            return None
        else:
            fields[tag >> 3] = value
    return fields[1] + fields.get(5, 0) + len(postscript) + 1 if 1 in fields else None


def _varint(text: bytes, at: int) -> tuple[int, int]:
    """(value, where it ends). A torn one ends with the text."""
    value = shift = 0
    while at < len(text):
        value |= (text[at] & 0x7F) << shift
        at += 1
        if text[at - 1] < 0x80 or shift > 56:
            break
        shift += 7
    return value, at
