"""One directory of the cache, owned by this process: its lock, its names, its shards and its writers."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Final

from serving.bytecache.disk.extents import DamagedBlockError
from serving.bytecache.disk.layout import BLOCK, BLOCKS, EXTENT, UNIT_BITS
from serving.bytecache.disk.marker import LOCK, claim, prepared
from serving.bytecache.disk.names import CachedFile, Names, is_text
from serving.bytecache.disk.reads import DiskReads
from serving.bytecache.disk.seals import EPHEMERAL, Key, read_keys
from serving.bytecache.disk.shard import GROW_S, Shard, step
from serving.bytecache.disk.space import FULL, Medium, free_bytes, is_rotational
from serving.bytecache.disk.writing import Write, Writers, by_extent
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.pools import Pools, Value

QUOTA_MIN: Final = 8 * EXTENT
NAMES_SHARE: Final = 1 / 64
"""Of the quota, for the log of names, beside `NAMES_BYTES`."""
NAMES_BYTES: Final = 640 * 1024
SSD_WRITERS: Final = 4
LEAVES: Final = 1 / 8
"""Of a shard's entries, where a full disk takes no name."""
RESERVE_S: Final = 1.0
"""How long the cache may take to give room back; else it refuses."""


@dataclass(frozen=True)
class DirectoryOptions:
    """``quota``: bytes, 0: ``free_share`` of what is free at the start. ``scopes``: name → quota in bytes.

    ``keep_all``: who opens it only looks. Nothing leaves at the start, for want of room or of a key, and nothing is
    stored: a key of the settings may not be one of the directory's yet.
    """

    quota: int = 0
    free_share: float = 0.5
    min_free: int = 0
    medium: Medium = "auto"
    shards: int = 8
    policy: str = "s3fifo"
    key_file: str = ""
    write_buffer: int = 64 << 20
    scopes: dict[str, int] = field(default_factory=dict)
    keep_all: bool = False


def lock_directory(place: Path) -> int | None:
    """The lock's descriptor; None if another process has it. Raises `ByteCacheError`."""
    claim(place)
    try:
        lock = os.open(place / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ByteCacheError("bytes_dir_denied", f"cannot use {place}: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:  # there are no locks, as on a network's file system
        os.close(lock)
        raise ByteCacheError("bytes_dir_denied", f"cannot lock {place}: {error.strerror}") from error
    return lock


class Directory(DiskReads):
    """A cache directory. Thread-safe."""

    def __init__(self, place: Path, options: DirectoryOptions, lock: int) -> None:
        """``lock``: of `lock_directory`; it is closed with the directory. Raises `ByteCacheError`."""
        super().__init__()
        self.place = place
        self.options = options
        self.forked = False
        self._lock_file = lock
        self._lock = threading.Lock()
        self._resizing = threading.Lock()
        self.reserved = 0
        self._low_at = -GROW_S
        with ExitStack() as undo:
            undo.callback(os.close, lock)
            try:
                self._open(read_keys(options.key_file), undo)
            except ByteCacheError:
                raise
            except OSError as error:
                raise ByteCacheError("bytes_dir_denied", f"cannot use {place}: {error.strerror}") from error
            undo.pop_all()

    def _open(self, keys: Sequence[Key], undo: ExitStack) -> None:
        keep_all = self.options.keep_all
        names = [] if keep_all else [key.name for key in keys]
        anew = self.options.key_file == EPHEMERAL and not keep_all  # else each start would add the name of one key more
        self.marker = prepared(self.place, names, self.options.shards, self.options.quota, anew=anew)
        if keep_all:
            self.health.read_only = True
            keys = [key for key in keys if key.name in self.marker.keys]
            if self.marker.keys and not keys:
                raise ByteCacheError("bad_key_file", f"{self.place} is encrypted, and none of its keys is at hand")
        quota = self.options.quota or int((free_bytes(self.place) + self._kept_bytes()) * self.options.free_share)
        self.quota = self._given = max(QUOTA_MIN, quota)
        shards, salt = self.marker.shards, self.marker.salt
        by_index = {i + 1: key for i, name in enumerate(self.marker.keys) for key in keys if key.name == name}
        current = min(by_index, key=lambda index: by_index[index] is not keys[0], default=0)
        self.names = Names(self.place / "names.log", salt, keys)
        undo.callback(self.names.close)
        self.shards: list[Shard] = []
        for i in range(shards):
            quota = self._shard_quota()
            pools = Pools(self.options.policy, quota, self._scope_shares(shards))
            shard = Shard(self.place / str(i), self.marker.slots, pools, by_index, salt, quota, current)
            undo.callback(shard.close)
            self.shards.append(shard)
        self._extents = [shard.extents for shard in self.shards]
        for shard in self.shards:
            shard.load(self.names.by_number, keep_all=keep_all)
        if not keep_all:
            with suppress(OSError):  # a disk that is full: what the log has too much can stay
                for number in [*self.names.by_number.keys() - self._numbers_in_use()]:
                    self.names.remove(self.names.by_number[number])
                self._shorten_names(self._names_quota())
        rotational = self.options.medium == "disk" or (self.options.medium == "auto" and is_rotational(self.place))
        self.writers = Writers(self._store, self._tend, 1 if rotational else SSD_WRITERS, self.options.write_buffer)

    def close(self) -> None:
        """Writes what waits and lets another process own the directory. No read may be under way."""
        self.writers.close()
        for shard in self.shards:
            shard.close()
        self.names.close()
        if not self.forked:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)  # a child forked just now may not have closed its copy yet
        os.close(self._lock_file)

    def settle(self) -> None:
        """Writes what waits, and what was read how often. Nothing is stored afterwards; reads go on."""
        self.writers.close()
        self._tend()
        self.health.read_only = True

    def after_fork(self) -> None:
        """In the child: it may read, and must not write, nor keep the directory locked when the parent ends."""
        self.forked = self.health.read_only = True
        self._lock = threading.Lock()
        self._resizing = threading.Lock()
        self.health.after_fork()
        self.writers.after_fork()
        for shard in self.shards:
            shard.after_fork()
        with suppress(OSError):
            os.close(self._lock_file)

    # Files.

    def enter(self, path: str, version: str, size: int, scope: str = "") -> CachedFile | None:
        """The file version, which is now the current one of its path: others are forgotten. None: can't be cached."""
        if not version or size < 0 or self.forked or not self.health.usable(monotonic()):
            return None
        if not all(map(is_text, (path, version, scope))):
            return None
        with self._lock:
            known = self.names.by_path.get(path)
            if known is not None and (known.version, known.size) == (version, size):
                return known
            try:
                if known is not None:
                    self._forget(known)
                if self.options.keep_all:
                    return None
                share = self._names_quota()
                if self.names.is_due(share):
                    self._shorten_names(share)
                if self.names.is_full(share):
                    return None
                return self.names.add(path, version, size, scope)
            except OSError as error:
                self._refused(error)
                return None

    def forget(self, files: Iterable[CachedFile]) -> int:
        """Nothing of these is read from here any more, also by other processes; returns how many they were."""
        count = 0
        with self._lock:
            for file in files:
                with suppress(OSError):
                    self._forget(file)
                count += 1
        return count

    def matching(self, path: str, *, prefix: bool) -> list[CachedFile]:
        """Known files: the one at ``path``, or all whose path begins with it."""
        with self._lock:
            if not prefix:
                return [file] if (file := self.names.by_path.get(path)) is not None else []
            return [file for known, file in self.names.by_path.items() if known.startswith(path)]

    def known(self, path: str) -> CachedFile | None:
        """The version of a path that is cached, or was entered last."""
        file = self.names.by_path.get(path)
        return file if file is not None and file.alive else None

    def _forget(self, file: CachedFile) -> None:
        """Nothing of it is read any more, whatever the disk does. Raises ``OSError`` of a disk that keeps it."""
        file.alive = False
        with ExitStack() as each:  # all of them, also where one can't be written
            each.callback(self.names.remove, file)
            for shard in self.shards:
                each.callback(shard.forget_file, file)

    # Blocks.

    def shard_of(self, number: int, extent: int) -> Shard:
        """Neighbouring extents lie in different shards."""
        return self.shards[(number + extent) % len(self.shards)]

    def _damaged(self, file: CachedFile, damaged: DamagedBlockError) -> None:
        self.health.block_damaged()
        if not self.forked:
            shard = self.shard_of(file.number, damaged.unit >> 1)
            try:
                shard.forget_block(file.number, damaged.unit, damaged.block)
            except OSError as error:  # the disk keeps it: it is found damaged again, and read past
                self._refused(error)

    def block(self, file: CachedFile, block: int) -> bytes | memoryview | None:
        """One whole block, stored or still waiting to be."""
        waiting = self.writers.waiting(file.number, block) if file.alive else None
        if waiting is not None:
            return waiting
        if not self.health.usable(monotonic()):
            return None
        return self.read(file, block * BLOCK, min((block + 1) * BLOCK, file.size))

    def submit(self, file: CachedFile, first: int, data: memoryview, value: Value, expires: int) -> bool:
        """Stores whole blocks soon; they may lie in several extents. False where some won't be."""
        kept = True
        for write in by_extent(file, first, data, value, expires):
            kept = self.health.writable and file.alive and self.writers.submit(write) and kept
        return kept

    def store(self, file: CachedFile, first: int, data: memoryview, value: Value, expires: int) -> None:
        """As `submit`, and done when it returns: for another process, which waits for it."""
        for write in by_extent(file, first, data, value, expires):
            self._store(write)

    def _store(self, write: Write) -> None:
        if not self.health.writable or not self.health.usable(monotonic()):
            return
        file = self.names.by_number.get(write.file.number)
        if file is None:  # forgotten, also if the reader had it from an earlier owner
            return
        shard = self.shard_of(write.file.number, write.first // BLOCKS)
        try:
            if self.options.min_free and free_bytes(self.place) < self.options.min_free + len(write.data):
                self._low_at = monotonic()
                with self._resizing:
                    self._apply(self.used + self.reserved - len(write.data) - EXTENT)
                return
            shard.put(file, write.first, write.data, write.value, write.expires)
            ended = monotonic()
            self.health.took(ended - shard.write_s, ended)
        except OSError:
            self.health.failed(monotonic())

    # Space.

    @property
    def used(self) -> int:
        """Bytes on disk, at most."""
        return sum(shard.used for shard in self.shards) + self.names.length

    def resize(self, quota: int) -> None:
        """Another bound for the directory, in bytes; what is too much leaves before it returns."""
        with self._resizing:
            self._given = max(QUOTA_MIN + self.reserved, quota)
            self._apply(quota)

    def _apply(self, quota: int) -> None:
        self.quota = max(QUOTA_MIN + self.reserved, quota)
        for shard in self.shards:
            shard.resize(self._shard_quota())

    def _grow(self) -> None:
        """Takes room again, step by step, that the disk did not have a while ago."""
        with self._resizing:
            if self.quota < self._given and monotonic() - self._low_at >= GROW_S:
                self._low_at = monotonic()
                self._apply(min(self._given, self.quota + step(self.quota)))
            for shard in self.shards:
                shard.grow(self._shard_quota())

    def reserve(self, wanted: int) -> bool:
        """Leaves ``wanted`` bytes of the quota to something else, until `unreserve`. What is in their place has left.

        False: refused, as the cache would have too little, or can't give so much back within `RESERVE_S`.
        """
        deadline = monotonic() + RESERVE_S
        with self._resizing:
            if wanted < 0 or self.quota - self.reserved - wanted < QUOTA_MIN:
                return False
            self.reserved += wanted
            given = all(shard.resize(self._shard_quota(), deadline) for shard in self.shards)
        if not given:
            self.unreserve(wanted)
        return given

    def unreserve(self, wanted: int) -> None:
        """The cache may take that room again."""
        with self._resizing:
            self.reserved -= wanted
            for shard in self.shards:
                shard.resize(self._shard_quota())

    def entries(self) -> Iterator[tuple[CachedFile, int, int]]:
        """(file, extents, blocks) of each known file."""
        found: dict[int, list[int]] = {}
        for shard in self.shards:
            for key in list(shard.table):
                number, unit = key >> UNIT_BITS, key & (1 << UNIT_BITS) - 1
                entry = found.setdefault(number, [0, 0])
                entry[0] += 1
                entry[1] += shard.extents.present(number, unit).bit_count()
        with self._lock:
            files = list(self.names.by_number.values())
        yield from ((file, *found.get(file.number, (0, 0))) for file in files)

    def verify(self) -> tuple[int, int]:
        """Reads every block: (blocks that verify, blocks that were damaged, and are gone now)."""
        whole = damaged = 0
        with self._lock:
            files = dict(self.names.by_number)
        for shard in self.shards:
            for key in list(shard.table):
                number, unit = key >> UNIT_BITS, key & (1 << UNIT_BITS) - 1
                file = files.get(number)
                bits = shard.extents.present(number, unit)
                for block in ((unit >> 1) * BLOCKS + i for i in range(BLOCKS) if bits >> i & 1):
                    if file is None:
                        continue
                    try:
                        end = min((block + 1) * BLOCK, file.size)
                        whole += shard.extents.read(file, unit, block * BLOCK, end) is not None
                    except DamagedBlockError as found:
                        damaged += 1
                        shard.forget_block(number, unit, found.block)
        self.health.damaged += damaged
        return whole, damaged

    # Inside.

    def _refused(self, error: OSError) -> None:
        """What the disk would not write down: if it is full some entries leave, else it counts as a failing one."""
        if error.errno not in FULL:
            self.health.failed(monotonic())
            return
        fullest = max(self.shards, key=lambda shard: shard.used)
        fullest.counts.disk_full += 1
        try:
            fullest.evict(LEAVES)
        except OSError:  # it gives nothing back, either
            self.health.failed(monotonic())

    def _tend(self) -> None:
        for tend in (*(shard.tend for shard in self.shards), self._grow):
            try:
                tend()
            except OSError:
                self.health.failed(monotonic())
        with self._lock, suppress(OSError):
            self.names.write_gone()

    def _kept_bytes(self) -> int:
        return sum((self.place / str(i) / "data").stat().st_blocks * 512 for i in range(self.marker.shards)
                   if (self.place / str(i) / "data").exists())  # fmt: skip

    def _names_quota(self) -> int:
        return int(self.quota * NAMES_SHARE) + NAMES_BYTES

    def _shard_quota(self) -> int:
        return (self.quota - self.reserved - self._names_quota()) // self.marker.shards

    def _scope_shares(self, shards: int) -> dict[str, int]:
        return {name: quota // shards for name, quota in self.options.scopes.items()}

    def _shorten_names(self, share: int) -> None:
        """As `Names.shorten`."""
        left = self.names.shorten(share, self._numbers_in_use, lambda part: sum(s.evict(part) for s in self.shards))
        for shard in self.shards:  # what was stored of them meanwhile would have no name
            shard.forget_numbers(left)

    def _numbers_in_use(self) -> set[int]:
        return {key >> UNIT_BITS for shard in self.shards for key in list(shard.table)}
