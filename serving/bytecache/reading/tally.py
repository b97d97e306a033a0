"""What was counted. Each thread counts for itself, so that a hit takes no lock; who reads the numbers adds them up."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields


@dataclass(slots=True)
class Tally:
    """Of reads. ``hits`` and ``misses`` are reads: a read that found a part only is a partial hit, and a miss.

    ``hit_bytes + miss_bytes`` is what was given to callers. ``waited_blocks``: that another reader fetched meanwhile.
    ``elsewhere_bytes``: fetched here although another host keeps that part of the file.
    """

    hits: int = 0
    misses: int = 0
    partial_hits: int = 0
    bypassed: int = 0
    hit_bytes: int = 0
    miss_bytes: int = 0
    source_calls: int = 0
    source_bytes: int = 0
    identity_calls: int = 0
    waited_blocks: int = 0
    changed_files: int = 0
    elsewhere_bytes: int = 0

    def add(self, other: Tally) -> None:
        """Adds what another one counted."""
        for each in fields(Tally):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class Tallies:
    """The tallies of all threads."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """From nothing; also in a forked child, where another thread of the parent may have held the lock."""
        self._mine = threading.local()
        self._all: list[tuple[threading.Thread, Tally]] = []
        self._ended = Tally()
        self._lock = threading.Lock()

    def mine(self) -> Tally:
        """This thread's."""
        try:
            return self._mine.tally  # type: ignore[no-any-return]
        except AttributeError:
            tally = self._mine.tally = Tally()
            with self._lock:
                self._all.append((threading.current_thread(), tally))
                self._settle()
            return tally

    def total(self) -> Tally:
        """Everything counted so far."""
        found = Tally()
        with self._lock:
            found.add(self._ended)
            for _, tally in self._all:
                found.add(tally)
        return found

    def _settle(self) -> None:
        """Threads that ended leave nothing but their sum."""
        for thread, tally in self._all:
            if not thread.is_alive() and thread.ident is not None:
                self._ended.add(tally)
        self._all = [each for each in self._all if each[0].is_alive() or each[0].ident is None]


class TalliesByPlace:
    """The tallies of each directory, by its name; "": of files that no directory keeps."""

    def __init__(self, names: Iterable[str]) -> None:
        self.of: Mapping[str, Tallies] = {name: Tallies() for name in ("", *names)}

    def after_fork(self) -> None:
        """In the child, which counts for itself."""
        for each in self.of.values():
            each.begin()

    def total(self) -> Tally:
        """Everything counted so far, anywhere."""
        found = Tally()
        for each in self.of.values():
            found.add(each.total())
        return found
