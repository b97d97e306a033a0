"""``python -m tests.data_at_rest.keep_bytes``: keeps two directories of the byte cache in its current format.

One is plain, one encrypted. Run it once for each format version. It writes new fixtures; existing ones never change.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from serving.bytecache.disk.directory import Directory, DirectoryOptions, lock_directory
from serving.bytecache.disk.layout import BLOCK, EXTENT, FORMAT_VERSION
from serving.bytecache.disk.marker import new_marker, write_marker
from serving.bytecache.policy.pools import Value
from tests.data_at_rest.history import FIXTURES, _plain

KEY: Final = "0c" * 32
QUOTA: Final = 16 << 20
LATE: Final = 4_000_000_000
"""An expiry that is far away, in s since 1970."""
PAGE: Final = 4_096
KEPT: Final = {f"bytes{FORMAT_VERSION}-plain": "", f"bytes{FORMAT_VERSION}-sealed": KEY}
"""Fixture of the current format → its key."""


def lines(path: str, size: int) -> bytes:
    """What a kept file holds: every part of it is another one, and it packs well."""
    return b"".join(f"{path} {at:08}\n".encode() for at in range(0, size + 16, 10))[:size]


FILES: Final = {
    "bucket/two-extents": lines("two-extents", EXTENT + 5_000),
    "bucket/short-end": lines("short-end", BLOCK + 4_500),
    "bucket/footer": lines("footer", 3_000),
    "bucket/replaced": lines("replaced, as it is now", 9_000),
}
"""Path → content. Encrypted, only what is short is kept: it does not pack."""
HOLES: Final = {"bucket/two-extents": range(2, 15)}
"""Blocks that were not stored."""


def files_of(key: str) -> dict[str, bytes]:
    """What a fixture with this key holds."""
    return {path: data for path, data in FILES.items() if not key or len(data) < BLOCK}


def open_kept(place: Path, key: str) -> Directory:
    """A kept directory, as a process opens it. Raises `ByteCacheError`."""
    (place.parent / f"{place.name}.key").write_text(key)
    key_file = str(place.parent / f"{place.name}.key") if key else ""
    lock = lock_directory(place)
    assert lock is not None
    return Directory(place, DirectoryOptions(quota=QUOTA, key_file=key_file), lock)


def stored_blocks(path: str) -> list[int]:
    """Which blocks of a file were stored."""
    blocks = range(-(-len(FILES[path]) // BLOCK))
    return [block for block in blocks if block not in HOLES.get(path, ())]


def write_directory(place: Path, key: str) -> None:
    """A directory with all that the format knows: values, an expiry, holes, a name that is gone, heat."""
    place.mkdir()
    write_marker(place, msgspec.structs.replace(new_marker(1, 1_024), salt=1_234_567_890_123_456_789))
    directory = open_kept(place, key)
    old = directory.enter("bucket/replaced", "v0", 9_000)
    gone = directory.enter("bucket/gone", "v1", 9_000)
    assert old is not None
    assert gone is not None
    for file in (old, gone):
        directory.store(file, 0, memoryview(lines("an earlier one", 9_000)), Value.NORMAL, 0)
    for path, data in files_of(key).items():
        entered = directory.enter(path, "v1", len(data), "scope" if "footer" in path else "")
        assert entered is not None
        value, expires = (Value.INDEX, LATE) if "footer" in path else (Value.NORMAL, 0)
        for block in stored_blocks(path):
            directory.store(entered, block, memoryview(data)[block * BLOCK : (block + 1) * BLOCK], value, expires)
    last = directory.names.by_path[path]
    assert directory.read(last, 0, 10) is not None
    directory.forget([gone])
    directory.close()


def pack(place: Path, archive: Path) -> None:
    """Keeps a directory. What is zero from some page on is cut off its ``data``: a file system has a hole there."""
    (place / "lock").unlink()
    data = place / "0/data"
    os.truncate(data, len(data.read_bytes().rstrip(b"\0")))
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(place, ".", filter=_plain)


def main() -> None:
    """Writes the fixtures."""
    for name, key in KEPT.items():
        if (FIXTURES / f"{name}.tar.gz").exists():
            raise SystemExit(f"{name} is kept, and not written again")
        with tempfile.TemporaryDirectory() as directory:
            write_directory(Path(directory) / "cache", key)
            pack(Path(directory) / "cache", FIXTURES / f"{name}.tar.gz")


if __name__ == "__main__":
    main()
