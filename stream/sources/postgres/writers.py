"""Up to where everything that changed a table is visible. Pure but for a lock, which threads share.

A commit is in PostgreSQL's log before anybody sees it: it is flushed first, and maybe waits for a standby. So the end
of the log says nothing of a snapshot that is made afterwards. But whoever changes a table holds its lock until
everybody sees the change. So if nobody holds it after the end of the log was asked for, and the snapshot is made then,
all that was committed before that end is seen. If somebody does, an end that was seen earlier may do: one whose
writers have all left since.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final, NamedTuple

from stream.sources.mariadb.gtid import PostgresPlace

PREPARED: Final = "-1/"
"""What the locks of a prepared transaction begin with after a restart of the server, and at old ones at once. They had
another name before."""
_KEPT_MAX: Final = 16
_LATELY: Final = 64
"""Looks, of all readers."""


class _Seen(NamedTuple):
    """The end of the log, and who held the table's lock after it and still does. ``number``: of the look at it."""

    number: int
    end: PostgresPlace
    writers: frozenset[str]


class Writers:
    """What readers have seen of tables and their writers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._seen: dict[str, list[_Seen]] = {}

    def begin(self) -> int:
        """The number of a look. Whatever was noted before it may be compared with what it sees."""
        with self._lock:
            self._number += 1
            return self._number

    def bound(
        self, number: int, table: str, end: PostgresPlace, writers: Collection[str], flushed: int | None = None
    ) -> PostgresPlace:
        """The latest known end of the log before which whatever changed ``table`` is visible now.

        ``number``: from `begin`, before anything was asked. ``end``: of the log; ``writers``: who held the table's lock
        after that. They are noted, with ``flushed`` where the log is kept no further: after a crash other transactions
        are logged behind it, whose writers nobody has seen. It is a place before everything if no end is known.
        """
        mine = frozenset(writers)
        with self._lock:
            kept = [
                each if each.number > number else each._replace(writers=self._left(each.writers, mine))
                for each in self._seen.get(table, ())
                if each.end.timeline == end.timeline and (each.number > number or each.end.lsn <= end.lsn)
            ]  # a server that crashed has lost the end of its log, and goes on on the same timeline
            self._number += 1
            noted = end.lsn if flushed is None else min(end.lsn, flushed)
            last = _Seen(self._number, PostgresPlace(end.timeline, noted), mine)
            kept.append(last)
            settled = max((each for each in kept if not each.writers), key=lambda each: each.end.lsn, default=None)
            if settled is not None:
                kept = [settled, *(each for each in kept if each.end.lsn > settled.end.lsn)]
                if kept[-1] is not last:  # `awaited` needs its writers
                    kept.append(last)
            if len(kept) > _KEPT_MAX:
                del kept[-2]  # not an older one: the longer it is known, the sooner its writers have left
            self._seen[table] = kept
            if not mine:
                return end
            return PostgresPlace(end.timeline, settled.end.lsn if settled is not None else 0)

    @staticmethod
    def _left(before: frozenset[str], now: frozenset[str]) -> frozenset[str]:
        """Who has not left. Any of them may go on as a transaction that is prepared."""
        return before if any(each.startswith(PREPARED) for each in now) else before & now

    def awaited(self, tables: Collection[str] | None = None) -> frozenset[str]:
        """Who keeps the present end of the log from being a bound. ``tables``: None: those that were looked at lately.

        Writers of other tables, which may go on for hours, keep nobody from proving more of these.
        """
        with self._lock:
            if tables is not None:
                return frozenset().union(*(self._seen[name][-1].writers for name in tables if name in self._seen))
            last = [seen[-1] for seen in self._seen.values()]
            return frozenset().union(*(each.writers for each in last if each.number > self._number - _LATELY))
