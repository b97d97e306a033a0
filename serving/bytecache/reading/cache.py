"""The cache as a whole: files of remote stores, read through it.

A read is answered from disk if every byte is here and verifies: no remote call. Else the blocks that are missing are
fetched: each by one reader only, neighbours together. What was fetched counts only if the file is still the one that
was opened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

import xxhash

from serving.bytecache.disk.layout import BLOCK, EXTENT_BITS, SIZE_MAX
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.reading.fetching import Fetch, FetchRules
from serving.bytecache.reading.files import OpenFile, ReadOptions
from serving.bytecache.reading.place import Place
from serving.bytecache.reading.plan import ahead_of, blocks_of, pieces
from serving.bytecache.reading.source import Identity, Source
from serving.bytecache.reading.tally import TalliesByPlace
from serving.bytecache.reading.trace import Trace


class ByteCache:
    """Directories, and the files that are read through them. Thread-safe."""

    def __init__(
        self,
        places: Sequence[Place],
        rules: FetchRules | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.places = places
        self.trace = trace
        self._rules = rules or FetchRules()
        self.tallies = TalliesByPlace(place.name for place in places)

    def after_fork(self) -> None:
        """In the child: what another thread of the parent held at the fork is nobody's. The places have their own."""
        self.tallies.after_fork()
        if self.trace is not None:
            self.trace.after_fork()

    def open(
        self, source: Source, path: str, options: ReadOptions | None = None, identity: Identity | None = None
    ) -> OpenFile:
        """The version of ``path`` that the store has now, or the one that the caller knows (``identity``).

        Raises `ByteCacheError` ``no_length``, and the store's errors.
        """
        options = options or ReadOptions()
        deadline = monotonic() + options.deadline_s
        place = self.place_of(path) if not options.bypass else None
        tallies = self.tallies.of[place.name if place is not None else ""]
        if identity is None and options.immutable and place is not None:
            known = place.known(path, options.deadline_s / 2)
            version = options.bare(known.version) if known is not None else None
            identity = Identity(version, known.size) if known is not None and version is not None else None
        if identity is None:
            tallies.mine().identity_calls += 1
            identity = source.identity(path, deadline - monotonic())
        if identity.size < 0:  # it would be read as an empty one
            raise ByteCacheError("no_length", f"{path}: the store does not say how long the file is")
        entry = None
        trusted = identity.settled or options.immutable
        if place is not None and identity.version and trusted and identity.size < SIZE_MAX:
            left_s = max(0.0, deadline - monotonic())
            entry = place.enter(path, options.tagged(identity.version), identity.size, options.scope, left_s / 2)
        return OpenFile(path, identity, source, options, place, entry, tallies)

    def place_of(self, path: str) -> Place | None:
        """The directory that keeps a path: rendezvous hashing, so that others keep theirs when one is gone."""
        if len(self.places) <= 1:
            return self.places[0] if self.places else None
        name = path.encode(errors="surrogatepass")
        return max(self.places, key=lambda place: xxhash.xxh3_64_intdigest(f"{place.name}\0".encode() + name))

    def read(self, file: OpenFile, start: int, end: int) -> bytes:
        """The bytes from ``start`` to ``end``, cut at the file's end.

        Raises `ByteCacheError` ``file_changed``, ``short_read``, ``no_ranges``, and the store's errors.
        """
        if end > file.identity.size:
            end = file.identity.size
        if start >= end:
            return b""
        entry, place = file.entry, file.place
        if entry is not None and place is not None and start >> EXTENT_BITS == (end - 1) >> EXTENT_BITS:
            data = place.read(entry, start, end)
            if data is not None:
                tally = file.tallies.mine()
                tally.hits += 1
                tally.hit_bytes += end - start
                file.tally.hits += 1
                file.tally.hit_bytes += end - start
                if self.trace is not None:
                    self.trace.record(file.path, file.identity, start, end, end - start)
                return data
        return self.read_many(file, [(start, end)])[0]

    def read_many(self, file: OpenFile, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """As `read`, for many ranges: what is missing of all of them is fetched together."""
        size = file.identity.size
        wanted = [(max(0, start), min(end, size)) for start, end in ranges]
        if file.entry is None or file.place is None:
            return self._bypass(file, wanted)
        found: dict[tuple[int, int], bytes] = {}
        blocks: dict[int, bytes | memoryview] = {}
        missing: set[int] = set()
        for start, end in wanted:
            for piece in pieces(start, end):
                if piece not in found and (data := file.place.read(file.entry, *piece)) is not None:
                    found[piece] = data
                elif piece not in found:
                    self._look_up(file, blocks_of(*piece), blocks, missing)
        if missing:
            wanted_blocks = sorted(missing)
            wanted_blocks += self._ahead(file, wanted_blocks)
            try:
                blocks |= Fetch(file, self._rules).run(wanted_blocks)
            except ByteCacheError as error:
                if error.code != "no_ranges" or any(start for start, _ in wanted):
                    raise
                return self._bypass(file, wanted)  # from its beginning a file can be read all the same
        self._count(file, wanted, missing)
        return [_joined(start, end, found, blocks) for start, end in wanted]

    def read_into(self, file: OpenFile, start: int, into: memoryview) -> int:
        """As `read`, into memory of the caller; returns how many bytes. No copy is made of well placed ranges."""
        length = max(0, min(len(into), file.identity.size - start))
        into, end = into[:length], start + length
        if file.entry is not None and file.place is not None and length:
            cut = list(pieces(start, end))
            if all(file.place.read_into(file.entry, low, into[low - start : high - start]) for low, high in cut):
                self._count(file, [(start, end)], set())
                return length
        into[:] = self.read(file, start, end)
        return length

    def prefetch(self, file: OpenFile, start: int, end: int) -> int:
        """Fetches what is not here of a range, and gives nothing of it; returns how many bytes those were."""
        entry, place = file.entry, file.place
        if entry is None or place is None:
            return 0
        fetched, end = 0, min(end, file.identity.size)
        for low in range(start, end, self._rules.request_bytes):
            blocks = blocks_of(low, min(low + self._rules.request_bytes, end))
            missing = [block for block in blocks if place.block(entry, block) is None]
            if missing:
                found = Fetch(file, self._rules).run(missing)
                fetched += sum(map(len, found.values()))
        return fetched

    def reserve(self, wanted: int, name: str = "") -> Callable[[], object]:
        """Takes ``wanted`` bytes of a directory's quota for something else; call what it returns to give them back.

        ``name``: of the directory; "": any. Raises `ByteCacheError` ``bytes_not_given``.
        """
        for place in self.places:
            if name in ("", place.name) and (given := place.reserve(wanted)) is not None:
                return given
        raise ByteCacheError("bytes_not_given", f"no directory of the byte cache can do without {wanted} bytes")

    def forget(self, path: str, *, prefix: bool = False) -> int:
        """Nothing of the file at ``path`` (or of all that begin so) is read from here any more; how many they were.

        Raises `ByteCacheError` ``bytes_dir_in_use`` if a directory's owner does not answer; the others have forgotten.
        """
        forgotten, refused = 0, None
        for place in self.places:
            try:
                forgotten += place.forget(path, prefix=prefix)
            except ByteCacheError as error:
                refused = error
        if refused is not None:
            raise refused
        return forgotten

    def _look_up(self, file: OpenFile, blocks: range, found: dict[int, bytes | memoryview], missing: set[int]) -> None:
        assert file.entry is not None
        assert file.place is not None
        for block in blocks:
            if block not in found and block not in missing:
                data = file.place.block(file.entry, block)
                if data is None:
                    missing.add(block)
                else:
                    found[block] = data

    def _ahead(self, file: OpenFile, missing: Sequence[int]) -> Sequence[int]:
        """What to fetch along for a reader that goes through its file. Nothing where it would not be kept."""
        assert file.entry is not None
        assert file.place is not None
        found = range(0)
        if file.options.fill and self._rules.keeps_all:
            last = blocks_of(0, file.identity.size).stop
            room = min(self._rules.request_bytes // BLOCK - len(missing), last - missing[-1] - 1)
            found = ahead_of(missing, file.expected, file.window, room)
            for block in found:
                if file.place.block(file.entry, block) is not None:
                    found = range(found.start, block)
                    break
        file.window, file.expected = len(found), max(missing[-1] + 1, found.stop)
        return found

    def _count(self, file: OpenFile, ranges: Sequence[tuple[int, int]], missing: set[int]) -> None:
        for start, end in ranges:
            missed = sum(
                min(end, (block + 1) * BLOCK) - max(start, block * BLOCK)
                for block in blocks_of(start, end)
                if block in missing
            )
            for tally in (file.tallies.mine(), file.tally):
                tally.hit_bytes += max(0, end - start - missed)
                tally.miss_bytes += missed
                tally.hits += not missed
                tally.misses += missed > 0
                tally.partial_hits += 0 < missed < end - start
            if self.trace is not None and start < end:  # what begins beyond the file's end reads nothing
                self.trace.record(file.path, file.identity, start, end, max(0, end - start - missed))

    def _bypass(self, file: OpenFile, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        wanted = [each for each in ranges if each[0] < each[1]]
        data = Fetch(file, self._rules).fetch(wanted)
        for tally in (file.tallies.mine(), file.tally):
            tally.bypassed += len(ranges)
            tally.misses += len(ranges)
            tally.miss_bytes += sum(map(len, data))
        parts = iter(data)
        return [next(parts) if start < end else b"" for start, end in ranges]


def _joined(start: int, end: int, found: dict[tuple[int, int], bytes], blocks: dict[int, bytes | memoryview]) -> bytes:
    parts: list[bytes | memoryview] = []
    for piece in pieces(start, end):
        if piece in found:
            parts.append(found[piece])
            continue
        for block in blocks_of(*piece):
            low = block * BLOCK
            parts.append(memoryview(blocks[block])[max(piece[0] - low, 0) : piece[1] - low])
    if len(parts) == 1:
        return bytes(parts[0])
    data = b"".join(parts)
    if len(data) != max(0, end - start):
        raise ByteCacheError("short_read", f"{len(data)} bytes instead of {end - start}")
    return data
