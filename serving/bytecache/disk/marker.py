"""The marker of a cache directory: ``freshet-bytes.json``. It says what the files are, and how they are laid out."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import xxhash

from serving.bytecache.disk.layout import BLOCK, EXTENT, FILES, FORMAT_VERSION, GRANULE, KEYS_MAX
from serving.bytecache.disk.space import punch_hole
from serving.bytecache.errors import ByteCacheError

NAME: Final = "freshet-bytes.json"
LOCK: Final = "lock"
OWN_FILES: Final = frozenset({NAME, f"{NAME}.new", LOCK, "owner.sock", "names.log", "names.new"})
ABOUT: Final = "A byte cache of Freshet. It may be deleted while no process uses it (`freshet bytes du` says who does)."
SHARDS_MAX: Final = 64
SLOTS_MAX: Final = 1 << 22
SHARD_QUOTA_MIN: Final = 8 * EXTENT
"""A directory with less than this for each of its shards gets fewer of them."""


class Marker(msgspec.Struct, kw_only=True, frozen=True):
    """``keys``: public names of every key that sealed something here; a head names one by its place, from 1 on."""

    about: str = ABOUT
    format_version: int
    shards: int
    slots: int
    salt: int
    keys: list[str]
    block: int = BLOCK
    extent: int = EXTENT
    granule: int = GRANULE
    checksum: str = ""

    def sealed(self) -> bytes:
        """As it stands on disk."""
        bare = msgspec.structs.replace(self, checksum="")
        check = xxhash.xxh3_128_hexdigest(msgspec.json.encode(bare))
        return msgspec.json.format(msgspec.json.encode(msgspec.structs.replace(bare, checksum=check))) + b"\n"


class _Version(msgspec.Struct):
    format_version: int


_version, _marker = msgspec.json.Decoder(_Version), msgspec.json.Decoder(Marker)


def parse_marker(text: bytes, place: Path) -> Marker | None:
    """None for a damaged one, or one of an older layout. Raises `ByteCacheError` ``bytes_dir_newer``."""
    try:
        if _version.decode(text).format_version > FORMAT_VERSION:
            raise ByteCacheError("bytes_dir_newer", f"{place} was written by a newer version of Freshet")
        found = _marker.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    fits = (found.format_version, found.block, found.extent, found.granule) == (FORMAT_VERSION, BLOCK, EXTENT, GRANULE)
    bounds = 1 <= found.shards <= SHARDS_MAX and 1 <= found.slots <= SLOTS_MAX and 0 <= found.salt < 2**63
    return found if fits and bounds and found.sealed() == text else None


def new_marker(shards: int, slots: int) -> Marker:
    """Of an empty directory."""
    return Marker(format_version=FORMAT_VERSION, shards=shards, slots=slots, salt=secrets.randbits(63), keys=[])


def write_marker(place: Path, marker: Marker) -> None:
    """Replaces it as a whole. Raises ``OSError``."""
    fresh = place / f"{NAME}.new"
    fresh.write_bytes(marker.sealed())
    os.replace(fresh, place / NAME)


def prepared(place: Path, keys: Sequence[str], shards: int, quota: int, *, anew: bool = False) -> Marker:
    """The marker of what is there, with the names of all ``keys``; a damaged one, or none: everything begins anew.

    ``quota``: 0: what the file system has. ``anew``: nothing that is there can be opened with the ``keys``.
    Raises `ByteCacheError` and ``OSError``.
    """
    path = place / NAME
    marker = parse_marker(path.read_bytes(), place) if path.exists() else None
    if marker is None or anew:
        _clear(place)
        total = shutil.disk_usage(place).total
        fitting = max(1, min(shards, SHARDS_MAX, (quota or total) // SHARD_QUOTA_MIN))
        marker = new_marker(fitting, max(1_024, min(SLOTS_MAX, total // BLOCK // fitting)))
        _check_holes(place)
    missing = [name for name in keys if name not in marker.keys]
    if not set(keys).issubset([*marker.keys, *missing][:KEYS_MAX]):  # no head can name it
        raise ByteCacheError("bytes_dir_denied", f"cannot use {place}: it has had {len(marker.keys)} keys, delete it")
    if missing or not path.exists():
        marker = msgspec.structs.replace(marker, keys=[*marker.keys, *missing])
        write_marker(place, marker)
    return marker


def _check_holes(place: Path) -> None:
    probe = os.open(place / "names.new", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(probe, bytes(8192), 0)
        punch_hole(probe, 0, 4096)
    except OSError as error:
        raise ByteCacheError("bytes_no_holes", f"{place}: {error.strerror}") from error
    finally:
        os.close(probe)
        os.unlink(place / "names.new")


def _clear(place: Path) -> None:
    for name in OWN_FILES - {LOCK}:
        (place / name).unlink(missing_ok=True)
    for i in range(SHARDS_MAX):
        for name in FILES:
            (place / str(i) / name).unlink(missing_ok=True)


def claim(place: Path) -> None:
    """Makes the directory, or checks that it may be used. Raises `ByteCacheError`.

    A directory with other files in it is refused: what is not ours must never be deleted.
    """
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        entries = list(os.scandir(place))
        names = {entry.name for entry in entries}
    except OSError as error:
        raise ByteCacheError("bytes_dir_denied", f"cannot use {place}: {error.strerror}") from error
    if place.is_symlink() or not os.access(place, os.W_OK | os.X_OK):
        raise ByteCacheError("bytes_dir_denied", f"cannot use {place}: a symbolic link, or not writable")
    if links := sorted(entry.name for entry in entries if entry.is_symlink()):
        raise ByteCacheError("bytes_dir_denied", f"cannot use {place}: {links[0]!r} in it is a symbolic link")
    if NAME not in names and (foreign := sorted(name for name in names if not _own(name))):
        raise ByteCacheError("bytes_dir_foreign", f"{place} holds {foreign[0]!r}, which is no file of a byte cache")


def _own(name: str) -> bool:
    return name in OWN_FILES or (name.isdecimal() and int(name) < SHARDS_MAX)
