"""The committed state of a store directory: its head, its items, and a read-only view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from consumers.fold.backfills import live_items
from consumers.fold.state import FOLD_KEY, FOLD_VERSION, META, OFFSET_KEY, Head, is_head_key, read_head
from consumers.store.digest import digest_items
from consumers.store.dropping import NOTE
from consumers.store.errors import RebuildNeededError, StoreCorruptError, StoreError
from consumers.store.manifest import read_manifest
from consumers.store.rocks.database import Rocks

ROCKS_NAME: Final = "db"
_META_END: Final = b"\x01"


class StoreView:
    """The committed state of a store or checkpoint, read-only. A live store may be viewed while its owner writes."""

    def __init__(self, directory: Path) -> None:
        """Raises `StoreError` if ``directory`` is not a store, is damaged, or is of a newer Freshet."""
        manifest = read_manifest(directory)
        if manifest is None:
            raise StoreError(
                f"{directory} is not a store: it has no manifest.json", hint="name a store directory", code="no_store"
            )
        self.directory = directory
        self.manifest = manifest
        self._rocks = Rocks(directory / ROCKS_NAME, read_only=True)
        try:
            self.head = committed_head(self._rocks)
            if self.head.offset < manifest.offset:
                raise StoreCorruptError(
                    f"{directory} ends at offset {self.head.offset}, its manifest says {manifest.offset}",
                    hint="its last commits are lost: use another checkpoint, or rebuild",
                )
        except BaseException:
            self._rocks.close()
            raise

    def get(self, key: bytes) -> bytes | None:
        """The committed bytes of ``key``."""
        return self._rocks.get(key)

    def items(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Committed pairs with ``start`` ≤ key (< ``end`` if given) in key order; see `PartitionStore.items`."""
        return live_items(self.head, self._rocks.scan(start, end))

    def stored(self) -> Iterator[tuple[bytes, bytes]]:
        """All pairs that a copy of the store needs, in key order.

        Tombstones that may be dropped are among them, and the note of those that were (`consumers.store.dropping`).
        """
        note = self._rocks.get(NOTE)
        yield from self._rocks.scan(end=NOTE)
        if note is not None:
            yield NOTE, note
        yield from self._rocks.scan(NOTE)

    def digest(self) -> tuple[str, int]:
        """As `PartitionStore.digest`."""
        return digest_items(self.items())

    def close(self) -> None:
        """Closes; safe to repeat."""
        self._rocks.close()

    def __enter__(self) -> StoreView:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def committed_head(rocks: Rocks) -> Head:
    """The head in RocksDB; an empty one if nothing was ever committed.

    Raises `StoreCorruptError` if it is damaged, `RebuildNeededError` if another fold version wrote it.
    """
    try:
        found = dict(rocks.scan(META, _META_END))
        fold = int(found.get(FOLD_KEY, b"0"))
        # Another version's head may have another form.
        head = read_head(found.items()) if fold in (0, FOLD_VERSION) else Head()
    except (ValueError, TypeError) as error:
        raise StoreCorruptError(f"{rocks.path}: the head is damaged: {error}", hint="the store is rebuilt") from error
    if not found:
        if next(rocks.scan(_META_END), None) is not None:
            raise StoreCorruptError(f"{rocks.path} has entries but no head", hint="the store is rebuilt")
        return head
    if OFFSET_KEY not in found:
        raise StoreCorruptError(f"{rocks.path} has no offset", hint="the store is rebuilt")
    if fold != FOLD_VERSION:
        raise RebuildNeededError(
            f"{rocks.path} has fold version {fold}; this Freshet has {FOLD_VERSION}",
            hint="the store is moved aside and folded again from the topic",
            code="fold_changed",
        )
    return head


def merge_items(
    committed: Iterable[tuple[bytes, bytes]], newer: Mapping[bytes, bytes]
) -> Iterator[tuple[bytes, bytes]]:
    """``committed`` pairs (in key order) overlaid by ``newer``, which has the whole head.

    An empty entry in ``newer`` says that the key has none.
    """
    pairs = _merged(committed, newer)
    return (pair for pair in pairs if pair[1] or is_head_key(pair[0]))


def _merged(committed: Iterable[tuple[bytes, bytes]], newer: Mapping[bytes, bytes]) -> Iterator[tuple[bytes, bytes]]:
    keys = iter(sorted(newer))
    upcoming = next(keys, None)
    for key, value in committed:
        while upcoming is not None and upcoming < key:
            yield upcoming, newer[upcoming]
            upcoming = next(keys, None)
        if upcoming == key:
            yield key, newer[key]
            upcoming = next(keys, None)
        elif not is_head_key(key):
            yield key, value
    while upcoming is not None:
        yield upcoming, newer[upcoming]
        upcoming = next(keys, None)
