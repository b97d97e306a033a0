"""What is missing is fetched: by whom, in which requests, and whether the bytes are the file's.

The order that keeps bytes right: claim the blocks, look once more (who claimed them before may have stored them),
fetch, ask the store which version it has *after* the fetch, store. A file that was replaced meanwhile is stored under
no version.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import gt
from typing import Final, cast

from serving.bytecache.disk.layout import BLOCK, EXPIRES_MAX, UNIT_BITS
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.admission import Admission, Everything
from serving.bytecache.policy.locality import SPLIT_BITS, ranked
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.files import OpenFile
from serving.bytecache.reading.flights import Flight, Flights
from serving.bytecache.reading.footers import footer_start
from serving.bytecache.reading.plan import requests, with_gaps

SHORT_READS: Final = 2
"""How often a store may return too little, one after the other."""
ELSEWHERE_MAX: Final = 3
"""How often a block is waited for that another process fetches, before it is fetched here as well."""
ELSEWHERE_SHARE: Final = 0.5
"""Of a read's deadline: how long it waits, all in all, for other processes. One that was stopped never ends."""

Blocks = dict[int, bytes | memoryview]


@dataclass(frozen=True)
class FetchRules:
    """``gap``: bytes between two missing blocks that are fetched along. ``request_bytes``: of one remote read.

    ``hosts``: those among which files are spread; ``host``: this one of them. ``read_only``: nothing is stored.
    """

    gap: int = 64 * 1024
    request_bytes: int = 8 << 20
    admission: Admission = field(default_factory=Everything)
    hosts: tuple[str, ...] = ()
    host: str = ""
    read_only: bool = False

    @property
    def keeps_all(self) -> bool:
        """Whether what is fetched ahead would be here when it is read."""
        return not self.read_only and isinstance(self.admission, Everything)


class Fetch:
    """One reader's fetch of blocks that are missing."""

    def __init__(self, file: OpenFile, rules: FetchRules) -> None:
        self._file, self._rules = file, rules
        self._tallies = (file.tallies.mine(), file.tally)
        began = time.monotonic()
        self._deadline = began + file.options.deadline_s
        self._alone_at = began + file.options.deadline_s * ELSEWHERE_SHARE

    def run(self, missing: Sequence[int]) -> Blocks:
        """All ``missing`` blocks (ascending), from whoever fetches them. Raises what that one's fetch raised."""
        found: Blocks = {}
        attempt = 0
        while left := [block for block in missing if block not in found]:
            found |= self._once(left, alone=attempt >= ELSEWHERE_MAX or not self._waits_s())
            attempt += 1
        return found

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> Sequence[bytes]:
        """The ranges from the store, all of one version. Raises `ByteCacheError`, and the store's errors."""
        if not ranges:
            return []
        for _ in range(SHORT_READS):
            for tally in self._tallies:
                tally.source_calls += len(ranges)
            data = self._file.source.fetch(self._file.path, ranges, self._left_s())
            for tally in self._tallies:
                tally.source_bytes += sum(map(len, data))
            self._check_version()
            found, wanted = [len(part) for part in data], [end - start for start, end in ranges]
            if found == wanted:
                return data
            if any(map(gt, found, wanted)):  # it would be so again
                raise ByteCacheError("no_ranges", f"{self._file.path}: the store ignores ranges")
        raise ByteCacheError("short_read", f"{self._file.path}: the store returned less than it has")

    def _once(self, blocks: Sequence[int], *, alone: bool) -> Blocks:
        file, place = self._file, self._file.place
        assert place is not None
        entry = file.entry
        assert entry is not None
        flights, key = place.flights, entry.number
        wanted = with_gaps(blocks, self._rules.gap, lambda block: place.block(entry, block) is None)
        flight, own, others = flights.claim(key, wanted)
        found: Blocks = {}
        try:
            elsewhere = self._fly(flight, own, found, alone=alone)
        except BaseException as error:
            ours = isinstance(error, TimeoutError) or not isinstance(error, Exception)  # others have their own deadline
            flights.end(flight, error=None if ours else cast("Exception", error))
            raise
        waited = {id(each): each for block, each in others.items() if block in blocks}
        for each in waited.values():
            self._wait(each, flights)
            found |= each.data
        for tally in self._tallies:
            tally.waited_blocks += len(others)
        if elsewhere:
            place.wait(entry, elsewhere, self._waits_s())
        self._take_stored(blocks, found)
        return found

    def _fly(self, flight: Flight, own: Sequence[int], found: Blocks, *, alone: bool) -> Sequence[int]:
        """Fetches what is this reader's to fetch; returns what another process fetches. Ends the flight."""
        file, place = self._file, self._file.place
        assert place is not None
        assert file.entry is not None
        self._take_stored(own, found)
        left = [block for block in own if block not in found]
        granted = left if alone or not left else list(place.claim(file.entry, left, self._waits_s()))
        try:
            runs = self._fetch_runs(granted)
        except BaseException:
            place.release(file.entry, granted, self._left_s() / 2)
            raise
        fetched = {block: data[i * BLOCK : (i + 1) * BLOCK] for run, data in runs for i, block in enumerate(run)}
        found |= fetched
        self._keep(runs)
        place.flights.end(flight, data=fetched)
        return [block for block in left if block not in fetched]

    def _fetch_runs(self, blocks: Sequence[int]) -> list[tuple[range, memoryview]]:
        """Neighbouring blocks and their bytes."""
        asked = requests(blocks, self._rules.request_bytes)
        size = self._file.identity.size
        data = self.fetch([(each.start * BLOCK, min(each.stop * BLOCK, size)) for each in asked])
        if self._rules.host:
            self._count_elsewhere(asked, data)
        return [(each, memoryview(part)) for each, part in zip(asked, data, strict=True)]

    def _count_elsewhere(self, asked: Sequence[range], data: Sequence[bytes]) -> None:
        """Counts what another host should have read: it is served all the same, and there is one copy more."""
        for run, part in zip(asked, data, strict=True):
            split = run.start * BLOCK >> SPLIT_BITS
            if ranked(self._rules.hosts, self._file.path, split)[0] != self._rules.host:
                for tally in self._tallies:
                    tally.elsewhere_bytes += len(part)

    def _keep(self, runs: list[tuple[range, memoryview]]) -> None:
        """Stores what was fetched, in runs of one value."""
        file, place, options = self._file, self._file.place, self._file.options
        assert place is not None
        assert file.entry is not None
        expires = min(int(time.time()) + options.ttl_s, EXPIRES_MAX) if options.ttl_s else 0
        if runs and runs[-1][0].stop * BLOCK >= file.identity.size:
            start = footer_start(file.identity.size, runs[-1][1])
            file.index_from = None if start is None else start // BLOCK
        for run, data in runs:
            cut = min(max(file.index_from, run.start), run.stop) if file.index_from is not None else run.stop
            for part, value in ((range(run.start, cut), Value.NORMAL), (range(cut, run.stop), Value.INDEX)):
                view = data[(part.start - run.start) * BLOCK : (part.stop - run.start) * BLOCK]
                if not view:
                    continue
                key = file.entry.number << UNIT_BITS | part.start
                fill = options.fill and not self._rules.read_only
                if fill and self._rules.admission.admits(key, len(view), time.monotonic()):
                    kept_as = value if options.value is None else options.value
                    place.keep(file.entry, part.start, view, kept_as, expires, self._left_s() / 2)
                else:
                    place.release(file.entry, part, self._left_s() / 2)

    def _take_stored(self, blocks: Sequence[int], found: Blocks) -> None:
        place, entry = self._file.place, self._file.entry
        assert place is not None
        assert entry is not None
        for block in blocks:
            if block not in found and (data := place.block(entry, block)) is not None:
                found[block] = data

    def _wait(self, flight: Flight, flights: Flights) -> None:
        """Raises the error of who fetched, or ``TimeoutError``."""
        if flight.elsewhere and not flight.landed.wait(self._waits_s()):
            flights.end(flight)  # all who wait for it look again: one of them fetches
        if not flight.landed.wait(self._left_s()):
            raise TimeoutError(f"{self._file.path}: another reader still fetches it")
        if flight.error is not None:
            raise flight.error

    def _left_s(self) -> float:
        """How long this read may still take."""
        return max(0.0, self._deadline - time.monotonic())

    def _waits_s(self) -> float:
        """How long it may still wait for other processes."""
        return max(0.0, self._alone_at - time.monotonic())

    def _check_version(self) -> None:
        """Raises `ByteCacheError` ``file_changed`` if the store has another version by now."""
        file = self._file
        if file.options.immutable:
            return
        for tally in self._tallies:
            tally.identity_calls += 1
        if not file.source.identity(file.path, self._left_s()).same(file.identity):
            for tally in self._tallies:
                tally.changed_files += 1
            if file.place is not None:
                with suppress(ByteCacheError):  # an owner that does not answer; who asks for the version is not misled
                    file.place.forget(file.path, prefix=False, timeout_s=self._left_s() / 2)
            raise ByteCacheError("file_changed", f"{file.path} was replaced while it was read")
