"""The rows of one transaction: one final image for each key, in memory up to a bound and on disk beyond it.

The result is always in key order. A publisher that stopped inside a transaction skips its published events by number,
so the order must not depend on the bound.
"""

from __future__ import annotations

import heapq
import struct
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from typing import IO, overload

from stream.wire.events import ABSENT, VALUE, VOID, Change, RowChange

SPILL_BYTES = 64 << 20
_ENTRY_OVERHEAD_BYTES = 200
_ENTRY = struct.Struct("<Ii")
_DELETED = -1
_VOID = -2
_UNKNOWN = b""
"""In place of the image of a row that is not known. No image is empty."""


class TransactionRows:
    """Collects row changes: the last one of a key wins. ``spill_bytes`` is a rough bound on memory.

    ``keeps_before``: what the first change of a key found is kept, too. A transaction that goes to disk has no such
    images: it is as large as what a change stream holds, which lets go of images then (`stream.changes.assembling`).
    """

    __slots__ = ("_befores", "_bytes", "_images", "_runs", "_spill_bytes")

    def __init__(self, spill_bytes: int = SPILL_BYTES, *, keeps_before: bool = False) -> None:
        self._befores: dict[bytes, bytes | None] | None = {} if keeps_before else None
        self._images: dict[bytes, bytes | None] = {}
        self._bytes = 0
        self._spill_bytes = spill_bytes
        self._runs: list[IO[bytes]] = []

    def put(self, key: bytes, image: bytes | None, before: bytes | None = None) -> None:
        """Set the final image of ``key``; None: the row is deleted. ``before``: as of `RowChange`, of this change."""
        if self._befores is not None and key not in self._befores:
            self._befores[key] = before
            self._bytes += len(before or b"")
        self._images[key] = image
        self._bytes += len(key) + (len(image) if image else 0) + _ENTRY_OVERHEAD_BYTES
        if self._bytes >= self._spill_bytes:
            self._spill()

    def void(self, key: bytes) -> None:
        """The row of ``key`` changed, and it is not known to what."""
        self.put(key, _UNKNOWN)

    def _spill(self) -> None:
        run = tempfile.TemporaryFile(prefix="freshet-transaction-")  # noqa: SIM115  (lives as long as the changes do)
        for key in sorted(self._images):
            _write(run, key, self._images[key])
        self._runs.append(run)
        self._befores = None
        self._images.clear()
        self._bytes = 0

    def changes(self, voided: frozenset[bytes], tail: Sequence[Change] = ()) -> Sequence[Change]:
        """The row changes in key order, without those of ``voided`` tables (key prefixes), then ``tail``."""
        if self._runs:
            if self._images:
                self._spill()
            return SpilledChanges(_merge(self._runs), voided, tuple(tail))
        images = self._images
        if len(images) == 1 and not voided and not tail:  # most transactions
            [(key, image)] = images.items()
            return self._with_before([_change(key, image)])
        found = self._with_before(
            [
                RowChange(key, VALUE, image) if (image := images[key]) else _change(key, image)
                for key in sorted(images)
                if not voided or key[: key.index(0) + 1] not in voided
            ]
        )
        return [*found, *tail] if tail else found

    def _with_before(self, changes: list[RowChange]) -> list[RowChange]:
        if self._befores:
            for change in changes:
                change.before = self._befores[change.key]
        return changes


def _change(key: bytes, image: bytes | None) -> RowChange:
    if image is None:
        return RowChange(key, ABSENT)
    return RowChange(key, VALUE, image) if image else RowChange(key, VOID)


def _write(run: IO[bytes], key: bytes, image: bytes | None) -> None:
    size = _DELETED if image is None else (len(image) or _VOID)
    run.write(_ENTRY.pack(len(key), size))
    run.write(key)
    if image:
        run.write(image)


def _entry(run: IO[bytes]) -> tuple[bytes, bytes | None] | None:
    head = run.read(_ENTRY.size)
    if not head:
        return None
    key_size, size = _ENTRY.unpack(head)
    key = run.read(key_size)
    return key, (None if size == _DELETED else run.read(max(size, 0)))


def _read(run: IO[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
    run.seek(0)
    while (entry := _entry(run)) is not None:
        yield entry


def _tagged(run: IO[bytes], rank: int) -> Iterator[tuple[bytes, int, bytes | None]]:
    return ((key, rank, image) for key, image in _read(run))


def _merge(runs: list[IO[bytes]]) -> IO[bytes]:
    """Merge all runs into one sorted file. For a key in several runs the latest run wins."""
    merged = tempfile.TemporaryFile(prefix="freshet-transaction-")  # noqa: SIM115
    tagged = [_tagged(run, -number) for number, run in enumerate(runs)]
    last: bytes | None = None
    for key, _, image in heapq.merge(*tagged, key=lambda entry: entry[:2]):
        if key != last:
            _write(merged, key, image)
            last = key
    for run in runs:
        run.close()
    merged.flush()
    return merged


class SpilledChanges(Sequence[Change]):
    """The changes of a transaction that did not fit in memory, read from disk on access.

    Sequential access is cheap. Each row needs 8 bytes of memory. Not thread-safe.
    """

    def __init__(self, merged: IO[bytes], voided: frozenset[bytes], tail: tuple[Change, ...]) -> None:
        self._file = merged
        self._tail = tail
        self._starts = array("Q")
        start = 0
        for key, image in _read(merged):
            if not voided or key[: key.index(0) + 1] not in voided:
                self._starts.append(start)
            start += _ENTRY.size + len(key) + (len(image) if image else 0)
        self._at = start

    def __len__(self) -> int:
        return len(self._starts) + len(self._tail)

    def __iter__(self) -> Iterator[Change]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Change: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Change]: ...

    def __getitem__(self, index: int | slice) -> Change | Sequence[Change]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        if index < 0:
            index += len(self)
        if index >= len(self._starts):
            return self._tail[index - len(self._starts)]
        start = self._starts[index]
        if start != self._at:
            self._file.seek(start)
        entry = _entry(self._file)
        if entry is None:
            raise IndexError(index)
        key, image = entry
        self._at = start + _ENTRY.size + len(key) + (len(image) if image else 0)
        return _change(key, image)
