"""What the cache needs of a remote store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Identity(NamedTuple):
    """Which bytes a path has now. ``version``: its ETag, else mtime in ns and size; empty: it can't be cached.

    ``size``: negative where the store does not say it.
    ``settled``: False while the file may still get other bytes under this version: it is not cached yet.
    ``changed``: when, as the store says; no part of the version, but of the proof that nothing changed during a fetch.
    An ETag alone is none: a file that was replaced and put back meanwhile has its old one again.
    """

    version: str
    size: int
    settled: bool = True
    changed: str = ""

    def same(self, other: Identity) -> bool:
        """Whether both are one version, with no other one between them."""
        return (self.version, self.size, self.changed) == (other.version, other.size, other.changed)


class Source(Protocol):
    """A remote store. Its errors are raised as they are.

    ``timeout_s``: a call that takes longer raises ``TimeoutError``, where the store's client can be interrupted. None:
    it may take as long as that client waits.
    """

    def identity(self, path: str, timeout_s: float | None = None) -> Identity:
        """Asks the store, in one call."""

    def fetch(self, path: str, ranges: Sequence[tuple[int, int]], timeout_s: float | None = None) -> Sequence[bytes]:
        """The bytes of each range; one remote read for each."""
