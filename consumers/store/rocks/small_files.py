"""The small files of a RocksDB directory, which name the others: checks them before RocksDB reads them.

RocksDB 9.8 verifies its SSTs. But one flipped bit in a record type in its MANIFEST (1 to 5, "recyclable") makes
``DB::Open`` loop forever in native code, holding the GIL. So each record is verified here first.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from consumers.store.errors import StoreCorruptError, store_error
from consumers.store.manifest import write_atomically

BLOCK_BYTES: Final = 32 * 1024
_HEADER_BYTES: Final = 7
_TYPES: Final = (1, 2, 3, 4)
"""Record types: full, first, middle, last."""
_HINT: Final = "the store is moved aside and folded again from the topic"


def _crc32c_table() -> list[int]:
    rows = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        rows.append(crc)
    return rows


_CRC32C: Final = _crc32c_table()


def masked_crc32c(data: bytes) -> int:
    """CRC-32C of ``data``, masked as in LevelDB's log format."""
    crc = 0xFFFFFFFF
    table = _CRC32C
    for byte in data:
        crc = crc >> 8 ^ table[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def check_directory(directory: Path) -> None:
    """Raises `StoreCorruptError` if ``CURRENT`` or the manifest is damaged, or a write-ahead log is not empty.

    A directory without ``CURRENT`` is new. A truncated last record in the manifest is what a crash leaves; RocksDB
    ignores it.
    """
    try:
        current = (directory / "CURRENT").read_bytes()
    except FileNotFoundError:
        return
    if not re.fullmatch(rb"MANIFEST-\d{6,}\n", current):
        raise StoreCorruptError(f"{directory / 'CURRENT'} is damaged", hint=_HINT)
    manifest = directory / current[:-1].decode()
    try:
        check_log(manifest, manifest.read_bytes())
    except FileNotFoundError as error:
        raise StoreCorruptError(f"{manifest} is missing", hint=_HINT) from error
    for log in directory.glob("*.log"):
        if log.stat().st_size:
            raise StoreCorruptError(f"{log} is not empty, but a store never writes a log", hint=_HINT)


def manifest_before(directory: Path) -> tuple[str, str] | None:
    """The name of the manifest that ``CURRENT`` names, and of the newest one before it; None if there is none before.

    Raises `StoreError`.
    """
    try:
        current = (directory / "CURRENT").read_text().strip()
        names = [path.name for path in directory.glob("MANIFEST-*") if path.name.removeprefix("MANIFEST-").isdecimal()]
    except OSError as error:
        raise store_error(error, str(directory)) from error
    older = [name for name in names if _number(name) < _number(current)]
    return (current, max(older, key=_number)) if older else None


def name_manifest(directory: Path, name: str) -> None:
    """Lets ``CURRENT`` name another manifest, in one step. Raises `StoreError`."""
    try:
        write_atomically(directory / "CURRENT", f"{name}\n".encode())
    except OSError as error:
        raise store_error(error, str(directory)) from error


def _number(manifest: str) -> int:
    return int(manifest.removeprefix("MANIFEST-"))


def check_log(path: Path, data: bytes) -> None:
    """Raises `StoreCorruptError` unless each whole record of a LevelDB log has a valid checksum and a known type."""
    at, end = 0, len(data)
    while at < end:
        left = BLOCK_BYTES - at % BLOCK_BYTES
        if left < _HEADER_BYTES:
            at += left
            continue
        if end - at < _HEADER_BYTES:
            return
        length = int.from_bytes(data[at + 4 : at + 6], "little")
        kind = data[at + 6]
        if kind not in _TYPES or length > left - _HEADER_BYTES:
            raise StoreCorruptError(f"{path} is damaged at byte {at}", hint=_HINT)
        stop = at + _HEADER_BYTES + length
        if stop > end:
            return
        if masked_crc32c(data[at + 6 : stop]) != int.from_bytes(data[at : at + 4], "little"):
            raise StoreCorruptError(f"{path} is damaged at byte {at}: checksum", hint=_HINT)
        at = stop
