"""Which host reads which part of a file, so that N hosts don't keep N copies of it. Pure.

Rendezvous hashing (Thaler and Ravishankar, 1998) of host, whole path and split: every process orders the hosts in the
same way, and a host that comes or goes moves its own splits only. A host that is away keeps its place: its splits go to
the next one in their order, and back when it is there again. Load is bounded as in Mirrokni et al., 2018.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import xxhash

SPLIT_BITS: Final = 26
"""A split has 64 MiB: large enough for a reader to run through, small enough to spread one file over hosts."""
LOAD_MAX: Final = 1.25
"""A host gets no split that would give it more than this times the mean."""


def splits_of(size: int) -> range:
    """The numbers of a file's splits; an empty file has one."""
    return range(max(1, -(-size >> SPLIT_BITS)))


def ranked(hosts: Sequence[str], path: str, split: int) -> list[str]:
    """All hosts, the one that shall read the split first. Paths are whole: files are often called alike."""
    name = path.encode(errors="surrogatepass")  # of a local file it may be no text
    return sorted(hosts, key=lambda host: (xxhash.xxh3_64_intdigest(f"{host}\0{split}\0".encode() + name), host))


def choose(hosts: Sequence[str], path: str, split: int, loads: Mapping[str, float], away: Collection[str] = ()) -> str:
    """Who reads a split now: the first that is not ``away`` and has room. ``loads``: splits that each host reads now.

    Raises ``ValueError`` if all are away.
    """
    there = [host for host in ranked(hosts, path, split) if host not in away]
    if not there:
        raise ValueError("no host is there")
    bound = math.ceil(LOAD_MAX * (sum(loads.get(host, 0) for host in there) + 1) / len(there))
    with_room = (host for host in there if loads.get(host, 0) + 1 <= bound)
    return next(with_room, min(there, key=lambda host: loads.get(host, 0)))
