"""One shard of a directory: slots for extents, which of them hold what, and what leaves when room is needed.

Files: ``heads`` (what each slot holds), ``sums`` (checksums or nonces), ``heat`` (how often it was read), ``data``.
Order of writing: bytes, then checksums, then the head. Order of leaving: the head, then the bytes. So a head never
promises what is not there, whenever the process is killed; after a power cut the checksums decide. Nothing is synced.

A place that is given back is punched out of ``data``. Nothing is ever moved: each byte is written once.
"""

from __future__ import annotations

import heapq
import math
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, time
from typing import Final, NamedTuple

import numpy as np
import xxhash

from serving.bytecache.disk.blocks import clear_missing, clear_unused, write_blocks
from serving.bytecache.disk.extents import Extents
from serving.bytecache.disk.health import Times
from serving.bytecache.disk.layout import (
    BLOCK,
    BLOCKS,
    EMPTY_HEAD,
    EXPIRES_MAX,
    EXTENT,
    EXTENT_BITS,
    FILES,
    HEAD,
    HEAD_BITS,
    HEAD_BYTES,
    PAGE,
    SLOT_BYTES,
    SUMS_BYTES,
    UNIT_BITS,
    cost_on_disk,
    pages,
)
from serving.bytecache.disk.loading import HEAD_FIELDS, KeptHeads, kept_heads
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.seals import Key
from serving.bytecache.disk.space import FULL, punch_hole, shared_memory, write_all
from serving.bytecache.policy.pools import Pools, Value

HEAT_MAX: Final = 3
GROW_S: Final = 30.0
"""After this a full disk is tried again."""
FIXED_BYTES: Final = 4 * PAGE
"""What the files of an empty shard take, at most."""
SLOTS_KEPT: Final = 64
"""So many free slots above the last one in use keep their room, at least."""
SLOT_OVERHEAD: Final = HEAD_BYTES + SUMS_BYTES + 1


class Head(NamedTuple):
    """What a slot holds."""

    number: int
    unit: int
    bits: int
    expires: int
    key: int
    value: int
    stored: int
    sequence: int
    check: int = 0

    def pack(self) -> bytes:
        """Its bytes, with their checksum."""
        raw = HEAD.pack(*self[:-1], 0)
        return raw[:-8] + xxhash.xxh3_64_intdigest(raw[:-8]).to_bytes(8, "little")


@dataclass(slots=True)
class ShardCounts:
    """What happened in a shard since it was opened."""

    written_bytes: int = 0
    evicted: int = 0
    evicted_bytes: int = 0
    evicted_age_s: int = 0
    restored: int = 0
    dropped_at_start: int = 0
    disk_full: int = 0


def step(quota: int) -> int:
    """So much less, or more, is tried where the disk is full, and was."""
    return max(2 * EXTENT, quota // 8)


class Shard:
    """Thread-safe. ``extents`` reads, without a lock; ``table``: key → slot. ``write_s``: how long `put` wrote last."""

    def __init__(
        self, place: Path, slots: int, pools: Pools, keys: Mapping[int, Key], salt: int, quota: int, key: int
    ) -> None:
        """``keys``: index in heads → key. ``key``: index of the one that seals; 0: none. Raises ``OSError``."""
        place.mkdir(mode=0o700, exist_ok=True)
        self.counts = ShardCounts()
        self.writes, self.evictions = Times(), Times()
        self.quota = quota
        self._pools = pools
        self._slots = slots
        self._key, self._keys, self._salt = key, dict(keys), salt
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW  # holes are punched into these
        with ExitStack() as undo:
            self._files = {}
            for name in FILES:
                self._files[name] = os.open(place / name, flags, 0o600)
                undo.callback(os.close, self._files[name])
            self._heads_memory, self._heads = shared_memory("freshet-heads", slots << HEAD_BITS)
            undo.callback(os.close, self._heads_memory)
            self._heat_memory, self._heat = shared_memory("freshet-heat", slots)
            undo.pop_all()
        self._kept_heat = bytearray(slots)
        self.extents = Extents(self._heads, self._files["sums"], self._files["data"], self._keys, salt, self.settle)
        self.table = self.extents.table
        self._free: list[int] = []
        self._high = 0
        self._sequence = 0
        self._only_looks = False
        self.write_s = 0.0
        self._full_at = -GROW_S
        self._lock = threading.Lock()

    @property
    def shared(self) -> tuple[int, int, int, int]:
        """Descriptors for a process that attaches: heads, heat, sums, data."""
        return self._heads_memory, self._heat_memory, self._files["sums"], self._files["data"]

    @property
    def used(self) -> int:
        """Bytes on disk, at most."""
        return self._pools.cost + self._overhead(self._high)

    def costs(self) -> dict[str, int]:
        """Bytes by pool."""
        with self._lock:
            return self._pools.costs()

    def close(self) -> None:
        """Writes down what was read how often, and closes all. No read may be under way."""
        with self._lock:
            self._drain()
            with suppress(OSError):
                self._keep_heat()
            for file in (*self._files.values(), self._heads_memory, self._heat_memory):
                os.close(file)
            for memory in (self._heads, self._heat):
                with suppress(BufferError):  # a load that failed still looks at it
                    memory.close()

    def after_fork(self) -> None:
        """In the child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def load(self, names: Mapping[int, CachedFile], *, keep_all: bool) -> None:
        """Reads the heads. Drops what can't be used, then what is too much; ``keep_all``: not from disk."""
        self._only_looks = keep_all
        with self._lock:
            size = min(os.fstat(self._files["heads"]).st_size, self._slots << HEAD_BITS) // HEAD_BYTES
            with memoryview(self._heads) as memory, memory[: size << HEAD_BITS] as stored:
                os.preadv(self._files["heads"], [stored], 0)
            heads = np.frombuffer(self._heads, HEAD_FIELDS, size)
            found = kept_heads(heads, names, self._keys, sealed=bool(self._key), now=time())
            for slot in found.dropped:
                self._heads[slot << HEAD_BITS : slot + 1 << HEAD_BITS] = EMPTY_HEAD
            del heads  # nothing may refer to the shared memory when it is closed
            self._high = found.high
            self._free = found.free
            self._restore(found)
            if not keep_all:
                self.counts.dropped_at_start = len(found.dropped)
                for slot in found.dropped:
                    self._punch(slot)
                clear_unused(self._files["data"], self._free, self._high)
                clear_missing(self._files["data"], map(self._extent, self.table.values()), self._pools.cost)
                self._cut()
                self._make_room(0)

    def _restore(self, found: KeptHeads) -> None:
        """Takes entries in, the oldest first."""
        heat = os.pread(self._files["heat"], self._slots, 0).ljust(self._high, b"\0")
        self.table.update(zip(found.keys, found.slots, strict=True))
        self._pools.fill(zip(found.keys, found.costs, found.values, found.scopes, strict=True))
        read_before = np.flatnonzero(np.frombuffer(heat, np.uint8, self._high)).tolist()
        for slot in set(read_before) - set(self._free):
            head = self._head(slot)
            self._kept_heat[slot] = min(HEAT_MAX, heat[slot])
            for _ in range(self._kept_heat[slot]):
                self._pools.hit(head.number << UNIT_BITS | head.unit)
        self._sequence = found.sequence
        self.counts.restored = len(self.table)

    def put(self, file: CachedFile, first: int, data: memoryview, value: Value, expires: int) -> int:
        """Stores blocks that lie in one extent, from ``first`` on; those already here are left. Returns bytes written.

        A full disk shrinks the shard and is no error. Raises ``OSError`` for other faults of the disk.
        """
        try:
            return self._put(file, first, data, value, expires)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self.counts.disk_full += 1
            self._full_at = monotonic()
            with self._lock:
                self.quota = max(0, self.used - step(self.used))
                self._make_room(0)
            return 0

    def _put(self, file: CachedFile, first: int, data: memoryview, value: Value, expires: int) -> int:
        unit = (first // BLOCKS << 1) + (value >= Value.INDEX)
        key = file.number << UNIT_BITS | unit
        expires = min(max(1, expires), EXPIRES_MAX) if expires else 0
        with self._lock:
            self.write_s = 0.0
            self._drain()
            head = self._head_to_grow(file, key, unit, value, expires)
            parts = {
                first + i: data[i * BLOCK : (i + 1) * BLOCK]
                for i in range(-(-len(data) // BLOCK))
                if not head.bits >> (first + i) % BLOCKS & 1
            }
            cost = sum(pages(len(part), sealed=bool(head.key)) for part in parts.values())
            if not parts or not file.alive or not self._make_room(cost, (value, file.scope)):
                return 0
            slot = self.table.get(key)
            if slot is None:  # a new one, or it left when room was made
                head = head._replace(bits=0)
                slot = self._new_slot()
            began = monotonic()
            try:
                key_of = self._keys[head.key] if head.key else None
                write_blocks(self._files["data"], self._files["sums"], slot, file, self._salt, key_of, parts)
                bits = head.bits | sum(1 << block % BLOCKS for block in parts)
                self._write_head(slot, head._replace(bits=bits))
            except BaseException:
                if key not in self.table:
                    self._give_back(slot)
                raise
            self.write_s = monotonic() - began
            self.writes.took(self.write_s)
            if key in self.table:
                self._pools.resize(key, self._cost(head, file.size) + cost)
            else:
                self.table[key] = slot
                self._pools.insert(key, cost, value, file.scope)
            written = sum(map(len, parts.values()))
            self.counts.written_bytes += written
            return written

    def forget_block(self, number: int, unit: int, block: int) -> None:
        """One block is not here any more: it was damaged."""
        key = number << UNIT_BITS | unit
        with self._lock:
            slot = self.table.get(key)
            if slot is None:
                return
            head = self._head(slot)
            bits = head.bits & ~(1 << block % BLOCKS)
            if bits:
                self._write_head(slot, head._replace(bits=bits))
            else:
                self._release(key)

    def forget_file(self, file: CachedFile) -> None:
        """Nothing of a file version is here any more. Raises ``OSError`` afterwards, of a disk that keeps its bytes."""
        units = range((file.size >> EXTENT_BITS) + 1 << 1)
        with self._lock:
            if len(self.table) < len(units):
                self._release_all([key for key in self.table if key >> UNIT_BITS == file.number])
            else:
                keys = (file.number << UNIT_BITS | unit for unit in units)
                self._release_all([key for key in keys if key in self.table])

    def forget_numbers(self, numbers: Collection[int]) -> None:
        """As `forget_file` of each, without their sizes: looks at every entry."""
        with self._lock:
            self._release_all([key for key in self.table if key >> UNIT_BITS in numbers])

    def evict(self, part: float) -> int:
        """So much of what is here leaves, as it would for want of room; returns how many entries."""
        with self._lock:
            self._drain()
            count = math.ceil(part * len(self.table))
            for i in range(count):
                if (victim := self._pools.evict()) is None:
                    return i
                self._evicted(*victim)
            return count

    def resize(self, quota: int, deadline: float | None = None) -> bool:
        """Another bound, in bytes; what is too much leaves at once. False: not all of it did until ``deadline``."""
        with self._lock:
            self._drain()
            self.quota = quota
            return self._make_room(0, deadline=deadline)

    def grow(self, quota: int) -> None:
        """Takes a step back towards ``quota``, if a full disk left less than that, a while ago."""
        if self.quota < quota and monotonic() - self._full_at >= GROW_S:
            self._full_at = monotonic()
            self.resize(min(quota, self.quota + step(self.quota)))

    def settle(self) -> None:
        """Tells the policy the hits, also those of other processes; lets what has expired go."""
        if self._lock.acquire(blocking=False):
            try:
                self._drain()
            finally:
                self._lock.release()

    def tend(self) -> None:
        """What is due from time to time: hits, what has expired, and the heat on disk. Raises ``OSError``."""
        with self._lock:
            self._drain()
            self._drain_others()
            for key in self._expired():
                self._release(key)
            self._lower()
            try:
                self._keep_heat()
            except OSError as error:
                if error.errno not in FULL:  # then it is kept once there is room again
                    raise

    # Inside: the lock is held.

    def _head_to_grow(self, file: CachedFile, key: int, unit: int, value: Value, expires: int) -> Head:
        """The head that new blocks of ``key`` are added to: the earlier expiry counts for all of them."""
        slot = self.table.get(key)
        if slot is not None:
            head = self._head(slot)
            if head.key == self._key and not (head.expires and head.expires <= time()):
                return head._replace(expires=min(filter(None, (head.expires, expires)), default=0))
            self._release(key)
        self._sequence += 1
        return Head(file.number, unit, 0, expires, self._key, value, int(time()), self._sequence)

    def _head(self, slot: int) -> Head:
        return Head(*HEAD.unpack_from(self._heads, slot << HEAD_BITS))

    def _extent(self, slot: int) -> tuple[int, int, bool]:
        """As `clear_missing` wants it."""
        head = self._head(slot)
        return slot, head.bits, head.key > 0

    def _cost(self, head: Head, size: int) -> int:
        return cost_on_disk(head.unit, head.bits, size, sealed=bool(head.key))

    def _overhead(self, high: int) -> int:
        return FIXED_BYTES + -(-high * SLOT_OVERHEAD // PAGE) * PAGE

    def _new_slot(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._high += 1
        return self._high - 1

    def _lower(self) -> None:
        """Gives room back that free slots above the last one in use take, if they are many. Raises ``OSError``."""
        few = max(SLOTS_KEPT, self._high // 8)
        if self._only_looks or len(self._free) < few:
            return
        high = self._high
        while high and self._heads[high - 1 << HEAD_BITS : high << HEAD_BITS] == EMPTY_HEAD:
            high -= 1
        if self._high - high >= few:
            self._high = high
            self._free = [slot for slot in self._free if slot < high]
            heapq.heapify(self._free)
            self._cut()

    def _cut(self) -> None:
        """Ends the files behind the last slot in use, or free below it. Raises ``OSError``."""
        for name, length in (("heads", HEAD_BYTES), ("sums", SUMS_BYTES), ("heat", 1)):
            os.truncate(self._files[name], self._high * length)

    def _make_room(self, cost: int, pool: tuple[Value, str] | None = None, *, deadline: float | None = None) -> bool:
        """Whether ``cost`` more bytes, and a slot, fit; evicts until they do, or until ``deadline``."""
        slots = self._high if self._free else self._high + 1
        room = self.quota - self._overhead(slots)
        self._pools.capacity = max(0, room)
        while pool is not None and (surplus := self._pools.evict_surplus(*pool)) is not None:
            self._evicted(*surplus)
        while self._pools.cost + cost > room or (cost and not self._free and self._high >= self._slots):
            victim = self._pools.evict() if deadline is None or monotonic() < deadline else None
            if victim is None:
                return False
            self._evicted(*victim)
        return True

    def _evicted(self, key: int, cost: int) -> None:
        slot = self.table[key]
        self.counts.evicted += 1
        self.counts.evicted_bytes += cost
        self.counts.evicted_age_s += max(0, int(time()) - self._head(slot).stored)
        began = monotonic()
        self._vacate(key, slot)
        self.evictions.took(monotonic() - began)

    def _release(self, key: int) -> None:
        self._pools.remove(key)
        self._vacate(key, self.table[key])

    def _release_all(self, keys: Iterable[int]) -> None:
        with ExitStack() as each:  # all of them, also where the disk keeps one
            for key in keys:
                each.callback(self._release, key)

    def _vacate(self, key: int, slot: int) -> None:
        del self.table[key]
        self._heads[slot << HEAD_BITS : slot + 1 << HEAD_BITS] = EMPTY_HEAD
        self._kept_heat[slot] = self._heat[slot] = 0
        self._give_back(slot)

    def _give_back(self, slot: int) -> None:
        heapq.heappush(self._free, slot)  # first: nothing else ever frees it if the disk fails now
        self._punch(slot)

    def _punch(self, slot: int) -> None:
        try:
            write_all(self._files["heads"], EMPTY_HEAD, slot << HEAD_BITS)
        finally:  # also if the disk takes no head: bytes without one would count for nobody, and never leave
            punch_hole(self._files["data"], slot * SLOT_BYTES, SLOT_BYTES)

    def _write_head(self, slot: int, head: Head) -> None:
        raw = head.pack()
        write_all(self._files["heads"], raw, slot << HEAD_BITS)
        self._heads[slot << HEAD_BITS : slot + 1 << HEAD_BITS] = raw

    def _drain(self) -> None:
        hits = self.extents.hits
        for _ in range(len(hits)):
            key = hits.popleft()
            self._pools.hit(key)
            slot = self.table.get(key)
            if slot is not None and self._kept_heat[slot] < HEAT_MAX:
                self._kept_heat[slot] += 1

    def _drain_others(self) -> None:
        """Hits of attached processes, which they count in shared memory."""
        for slot in np.flatnonzero(np.frombuffer(self._heat, np.uint8, self._high)).tolist():
            self._heat[slot] = 0
            head = self._head(slot)
            self.extents.hits.append(head.number << UNIT_BITS | head.unit)
        self._drain()

    def _expired(self) -> list[int]:
        now = int(time())
        heads = np.frombuffer(self._heads, np.uint8, self._high * HEAD_BYTES).reshape(-1, HEAD_BYTES)
        expires = heads[:, 20:24].copy().view(np.uint32)[:, 0]
        slots = np.flatnonzero((expires > 0) & (expires <= now)).tolist()
        return [head.number << UNIT_BITS | head.unit for head in map(self._head, slots)]

    def _keep_heat(self) -> None:
        write_all(self._files["heat"], memoryview(self._kept_heat)[: self._high], 0)
