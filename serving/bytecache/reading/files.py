"""A remote file that is being read: which version of it, how, and where that is kept."""

from __future__ import annotations

from dataclasses import dataclass, field

from serving.bytecache.disk.names import CachedFile
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.place import Place
from serving.bytecache.reading.source import Identity, Source
from serving.bytecache.reading.tally import Tallies, Tally


@dataclass(slots=True)
class ReadOptions:
    """Of one open file. ``value``: None: recognised. ``ttl_s``: 0: for ever. ``fill``: store what was missed.

    ``scope``: a tenant or table with a quota. ``tag``: what a catalog says of the table that the file belongs to, as a
    part of the version: what was kept under another one is not read. ``immutable``: the path never gets other bytes
    (under this ``tag``); the store is then not asked which version it has, neither before nor after.
    """

    value: Value | None = None
    ttl_s: int = 0
    fill: bool = True
    bypass: bool = False
    scope: str = ""
    tag: str = ""
    immutable: bool = False
    deadline_s: float = 300.0

    def tagged(self, version: str) -> str:
        """The version that the cache knows a file by."""
        return f"{version}\n{self.tag}" if version and self.tag else version

    def bare(self, tagged: str) -> str | None:
        """The store's version of one that `tagged` made of the same tag; None of another."""
        version, _, tag = tagged.partition("\n")
        return version if tag == self.tag else None


@dataclass(slots=True, eq=False)
class OpenFile:
    """One version of a remote file, being read. ``entry``: None: it is not cached.

    ``tally``: of its reads; ``tallies``: of all that are kept in the same directory.
    """

    path: str
    identity: Identity
    source: Source
    options: ReadOptions
    place: Place | None
    entry: CachedFile | None
    tallies: Tallies
    tally: Tally = field(default_factory=Tally)
    index_from: int | None = None
    """The first block of its footer, once that is known."""
    expected: int = -1
    """The block behind what was fetched last."""
    window: int = 0
    """How many blocks were fetched ahead then."""

    @property
    def size(self) -> int:
        """In bytes."""
        return self.identity.size
