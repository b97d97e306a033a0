"""Traces again: summed up, or replayed without data on a cache of another size or policy."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import xxhash

from serving.bytecache.disk.layout import BLOCK, EXTENT, EXTENT_BITS
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.simulate import Outcome, Shadow, Touch, simulate
from serving.bytecache.reading.plan import blocks_of
from serving.bytecache.reading.trace import TraceLine

_line = msgspec.json.Decoder(TraceLine)


class Summary(msgspec.Struct):
    """What a trace says of the cache that wrote it. ``ratio``: of the bytes."""

    reads: int
    files: int
    read_bytes: int
    hit_bytes: int

    @property
    def ratio(self) -> float:
        """The share of the bytes that were here."""
        return self.hit_bytes / max(1, self.read_bytes)


def lines(path: Path) -> Iterator[TraceLine]:
    """The reads of a trace. A torn last line is left out. Raises `ByteCacheError` ``bad_trace``."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ByteCacheError("bad_trace", f"cannot read {path}: {error.strerror}") from error
    whole = text[: text.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            found = _line.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise ByteCacheError("bad_trace", f"line {number} of {path} is no read") from None
        if not 0 <= found.start <= found.end <= found.size:
            raise ByteCacheError("bad_trace", f"line {number} of {path}: a range beyond its file")
        yield found


def summary(path: Path) -> Summary:
    """Sums a trace up. Raises `ByteCacheError` ``bad_trace``."""
    files: set[str] = set()
    found = Summary(0, 0, 0, 0)
    for line in lines(path):
        files.add(line.file)
        found.reads += 1
        found.read_bytes += line.end - line.start
        found.hit_bytes += line.hit
    found.files = len(files)
    return found


def touches(path: Path) -> Iterator[Touch]:
    """The extents that a trace read, with the bytes that each of them takes once it is read through."""
    for line in lines(path):
        name = xxhash.xxh3_64_intdigest(line.file.encode())
        extents = sorted({block * BLOCK >> EXTENT_BITS for block in blocks_of(line.start, line.end)})
        for extent in extents:
            yield Touch(name ^ extent, min(EXTENT, line.size - extent * EXTENT))


def replayed(path: Path, capacity: int, policy: str) -> tuple[Outcome, dict[float, float]]:
    """(what the trace makes of such a cache, size → estimated ratio). Raises `ByteCacheError` ``bad_trace``."""
    outcome = simulate(policy, capacity, touches(path))
    shadow = Shadow(policy, capacity, every=4)
    for key, cost, _ in touches(path):
        shadow.touch(key, cost)
    return outcome, shadow.ratios()


def zipf(exponent: float, keys: int, reads: int, scans: int, seed: int) -> list[int]:
    """Keys by Zipf's law, with ``scans`` passes over ``keys / 2`` others that never come again between equal parts."""
    weights = 1 / np.arange(1, keys + 1) ** exponent
    chosen: list[int] = np.searchsorted(
        np.cumsum(weights / weights.sum()), np.random.default_rng(seed).random(reads)
    ).tolist()
    found: list[int] = []
    fresh = itertools.count(2 * keys)
    step = reads // max(1, scans)
    for i in range(scans):
        found += chosen[i * step : (i + 1) * step]
        found += itertools.islice(fresh, keys // 2)
    return found + chosen[scans * step :]
