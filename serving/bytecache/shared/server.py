"""The owner's side: a thread for each process that is attached. What a process claimed is free again when it ends."""

from __future__ import annotations

import dataclasses
import os
import socket
import threading
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.health import Times
from serving.bytecache.disk.layout import BLOCK, BLOCKS, EXTENT_BITS, UNIT_BITS
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.flights import Flight, Flights
from serving.bytecache.shared.protocol import (
    SOCKET,
    STORE_BYTES_MAX,
    VERSION,
    Check,
    Claim,
    Describe,
    Described,
    Done,
    Enter,
    Entered,
    FileLine,
    FileLines,
    Forget,
    Hello,
    Known,
    ListFiles,
    Located,
    OwnerGoneError,
    Release,
    Reply,
    Request,
    Reserve,
    Resize,
    Store,
    Took,
    Verify,
    Wait,
    Welcome,
    at_socket,
    decode_request,
    receive,
    receive_stored,
    send,
)

UNITS_TOLD_MAX = 20_000
"""Of a file, when it is entered; further ones are told as they are claimed."""
WAIT_MAX_S = 600.0
PAUSE_S = 0.1
"""After a process could not be let in: no descriptor or memory was free, for example."""
LINES_TOLD = 100
"""Files in a message: names have 64 KiB at most."""


class Server:
    """Lets other processes attach to a directory."""

    def __init__(self, directory: Directory, flights: Flights) -> None:
        self._directory, self._flights = directory, flights
        self._links: set[socket.socket] = set()
        self._claimed: dict[tuple[int, int], tuple[Flight, socket.socket]] = {}
        self._reserved: dict[socket.socket, int] = {}
        self._closing = threading.Event()
        (directory.place / SOCKET).unlink(missing_ok=True)  # of an owner that was killed: the lock is ours
        self._listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        at_socket(directory.place, "bind", self._listening)
        self._listening.listen(256)
        threading.Thread(target=self._accept, name="freshet-bytes-owner", daemon=True).start()

    def close(self) -> None:
        """Ends all connections: who was attached takes over, or attaches to who did."""
        self._closing.set()
        (self._directory.place / SOCKET).unlink(missing_ok=True)
        for link in (self._listening, *self._links.copy()):
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)
            link.close()

    def after_fork(self) -> None:
        """In the child: closes its copies, so that the parent's end is noticed."""
        for link in (self._listening, *self._links):
            link.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                link, _ = self._listening.accept()
            except OSError:
                self._closing.wait(PAUSE_S)
                continue
            self._links.add(link)
            serving = threading.Thread(target=self._serve, args=(link,), name="freshet-bytes-attached", daemon=True)
            try:
                serving.start()
            except RuntimeError:  # no thread can be had: it tries again
                self._links.discard(link)
                link.close()

    def _serve(self, link: socket.socket) -> None:
        try:
            self._welcome(link)
            while True:
                request = decode_request(receive(link))
                send(link, self._answer(request, link))
        except (OwnerGoneError, OSError):
            pass
        finally:
            for claimed in [key for key, (_, by) in self._claimed.copy().items() if by is link]:
                self._end(claimed[0], [claimed[1]])
            if reserved := self._reserved.pop(link, 0):
                self._directory.unreserve(reserved)
            self._links.discard(link)
            link.close()

    def _welcome(self, link: socket.socket) -> None:
        hello = decode_request(receive(link))
        if not isinstance(hello, Hello) or hello.version != VERSION:
            raise OwnerGoneError("another version")
        marker = self._directory.marker
        send(link, Welcome(marker.salt, marker.slots, marker.shards, marker.keys))
        for shard in self._directory.shards:  # not all at once: Linux passes 253 in a message
            socket.send_fds(link, [b"\0"], shard.shared)

    def _answer(self, request: Request, link: socket.socket) -> Reply:
        directory = self._directory
        match request:
            case Enter(path, version, size, scope):
                return self._entered(directory.enter(path, version, size, scope))
            case Known(path):
                return self._entered(directory.known(path))
            case Claim(number, blocks):
                return self._claim(number, blocks, link)
            case Release(number, blocks):
                self._end(number, blocks)
            case Store(number, first, length, value, expires):
                if length > STORE_BYTES_MAX:
                    raise OwnerGoneError(f"{length} bytes at once")
                data = receive_stored(link, length)
                if (file := directory.names.by_number.get(number)) is not None:
                    directory.store(file, first, data, Value(value), expires)
                stored = range(first, first + -(-length // BLOCK))
                self._end(number, stored)
                return Located(self._slots(number, _units(stored)))
            case Wait(number, blocks, timeout_s):
                self._wait(number, blocks, min(timeout_s, WAIT_MAX_S))
                return Located(self._slots(number, _units(blocks)))
            case Check(number, block):
                if (file := directory.names.by_number.get(number)) is not None:
                    directory.block(file, block)
            case Forget(path, prefix):
                return Done([directory.forget(directory.matching(path, prefix=prefix))])
            case Describe(files):
                return describe(directory, files=files)
            case ListFiles():
                lines = file_lines(directory)
                for i in range(0, len(lines), LINES_TOLD):
                    send(link, FileLines(lines[i : i + LINES_TOLD]))
                return FileLines([])
            case Verify():
                return Done(list(directory.verify()))
            case Resize(quota):
                directory.resize(quota)
            case Reserve(wanted):
                given = directory.reserve(wanted)
                self._reserved[link] = self._reserved.get(link, 0) + wanted * given
                return Done([int(given)])
        return Done()

    def _entered(self, file: CachedFile | None) -> Entered:
        if file is None:
            return Entered(0)
        units = range(min(UNITS_TOLD_MAX, (file.size >> EXTENT_BITS) + 1 << 1))
        return Entered(file.number, file.version, file.size, self._slots(file.number, units))

    def _slots(self, number: int, units: Iterable[int]) -> list[tuple[int, int]]:
        found = []
        for unit in units:
            slot = self._directory.shard_of(number, unit >> 1).table.get(number << UNIT_BITS | unit)
            if slot is not None:
                found.append((unit, slot))
        return found

    def _claim(self, number: int, blocks: list[int], link: socket.socket) -> Located:
        claimed = []
        file = self._directory.names.by_number.get(number)
        for block in blocks:
            flight, own, _ = self._flights.claim(number, [block], elsewhere=True)
            if not own:
                continue
            if file is not None and self._directory.block(file, block) is not None:
                self._directory.writers.stored(number, [block], WAIT_MAX_S)
                self._flights.end(flight)
                continue
            self._claimed[number, block] = flight, link
            claimed.append(block)
        return Located(self._slots(number, _units(blocks)), claimed)

    def _end(self, number: int, blocks: Iterable[int]) -> None:
        for block in blocks:
            flight, _ = self._claimed.pop((number, block), (None, None))
            if flight is not None:
                self._flights.end(flight)

    def _wait(self, number: int, blocks: list[int], timeout_s: float) -> None:
        deadline = monotonic() + timeout_s
        for block in blocks:
            flight = self._flights.under_way(number, block)
            if flight is not None and not flight.landed.wait(deadline - monotonic()):
                return
        self._directory.writers.stored(number, blocks, deadline - monotonic())


def _units(blocks: Iterable[int]) -> list[int]:
    return [unit for extent in sorted({block // BLOCKS for block in blocks}) for unit in (extent * 2, extent * 2 + 1)]


def file_lines(directory: Directory) -> list[FileLine]:
    """Each file of which something is here."""
    return [
        FileLine(file.path, file.version, file.size, min(file.size, blocks * BLOCK), file.scope)
        for file, _, blocks in directory.entries()
        if blocks
    ]


def describe(directory: Directory, *, files: bool) -> Described:
    """What a directory holds, and what happened in it since it was opened."""
    counts: dict[str, int] = {
        "disk_errors": directory.health.errors,
        "reserved_bytes": directory.reserved,
        "damaged_blocks": directory.health.damaged,
        **dataclasses.asdict(directory.writers.counts),
    }
    pools: dict[str, int] = {}
    for shard in directory.shards:
        for name, count in dataclasses.asdict(shard.counts).items():
            counts[name] = counts.get(name, 0) + count
        for name, cost in shard.costs().items():
            pools[name] = pools.get(name, 0) + cost
    lines = file_lines(directory) if files else []
    entries = sum(len(shard.table) for shard in directory.shards)
    writes, evictions = Times(), Times()
    for shard in directory.shards:
        writes.add(shard.writes)
        evictions.add(shard.evictions)
    times = {"write": Took(writes.counts, writes.seconds), "evict": Took(evictions.counts, evictions.seconds)}
    place = str(directory.place)
    return Described(place, os.getpid(), directory.quota, directory.used, entries, pools, counts, lines, times)
