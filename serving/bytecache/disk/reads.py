"""Reads of what is stored, the same in the process that owns a directory and in those that are attached to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from time import monotonic

from serving.bytecache.disk.extents import DamagedBlockError, Extents
from serving.bytecache.disk.health import SLOW_S, Health, Times
from serving.bytecache.disk.layout import EXTENT_BITS
from serving.bytecache.disk.names import CachedFile


class DiskReads(ABC):
    """A subclass sets ``_extents``, one of each shard. Faults of the disk are counted, and never reach a reader."""

    def __init__(self) -> None:
        self.health = Health()
        self.reads = Times()
        self._extents: Sequence[Extents] = ()

    @abstractmethod
    def _damaged(self, file: CachedFile, damaged: DamagedBlockError) -> None:
        """A block did not verify: it is not read again."""

    def read(self, file: CachedFile, start: int, end: int) -> bytes | None:
        """The bytes, which lie in one extent; None if not all of them are stored here."""
        began = monotonic()
        if self.health.isolated_until > began:
            return None
        extent = start >> EXTENT_BITS
        extents = self._extents[(file.number + extent) % len(self._extents)]
        unit = extent << 1
        try:
            data = extents.read(file, unit, start, end)
            if data is None:
                data = extents.read(file, unit + 1, start, end)
        except DamagedBlockError as damaged:
            self._damaged(file, damaged)
        except OSError:
            self.health.failed(monotonic())
        else:
            if data is not None:
                ended = monotonic()
                self.reads.took(ended - began)
                if ended - began > SLOW_S or self.health.in_a_row:
                    self.health.took(began, ended)
            return data
        return None

    def read_into(self, file: CachedFile, start: int, into: memoryview) -> bool:
        """As `read`, into the caller's memory and without a copy, where start and end lie on verified parts."""
        began = monotonic()
        if not self.health.usable(began):
            return False
        extent = start >> EXTENT_BITS
        extents = self._extents[(file.number + extent) % len(self._extents)]
        try:
            found = any(extents.read_into(file, extent * 2 + i, start, into) for i in range(2))
        except DamagedBlockError as damaged:
            self._damaged(file, damaged)
        except OSError:
            self.health.failed(monotonic())
        else:
            if found:
                ended = monotonic()
                self.reads.took(ended - began)
                self.health.took(began, ended)
            return found
        return False
