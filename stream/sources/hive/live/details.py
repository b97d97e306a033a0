"""Publishes constraints and column statistics of tables: those that an event wrote, and in a sweep all of them.

Reads of them are answered by the metastore until they are here, so they come after the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import structlog

from stream.sources.hive.live.fetching import FetchedDetails, Fetcher, TableDetails
from stream.sources.hive.live.progress import Progress
from stream.sources.hive.live.sweep import CHUNK_TABLES, Sweep
from stream.sources.hive.messages import FLAVOR
from stream.sources.hive.object_events import CONSTRAINTS, STATISTICS
from stream.sources.hive.objects import image_of
from stream.sources.hive.structs import Struct, encode_struct
from stream.wire.events import Change, ObjectImage

log = structlog.get_logger(__name__)

KINDS: Final = (CONSTRAINTS, STATISTICS)
_STRUCTS: Final = {CONSTRAINTS: "SQLAllTableConstraints", STATISTICS: "ColumnStatistics"}


class Details:
    """What is to be fetched, and its fetching. ``publish``: changes at the position that was read last.

    ``drain``: reads the log up to an event. ``tables``: name → table id, of all that are known. ``name_of`` and
    ``rebound_at``: as in `stream.sources.hive.live.objects.Objects`.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        progress: Progress,
        publish: Callable[[list[Change]], None],
        drain: Callable[[int], None],
        tables: Callable[[], Iterable[str]],
        name_of: Callable[[int], str],
        rebound_at: Callable[[str], int],
        shard: str,
    ) -> None:
        self._fetcher = fetcher
        self._progress = progress
        self._publish = publish
        self._drain = drain
        self._tables = tables
        self._name_of = name_of
        self._rebound_at = rebound_at
        self._shard = shard
        self._due: dict[int, None] = {}
        self._sweep: Sweep[FetchedDetails] | None = None

    @property
    def tables(self) -> list[str]:
        """The tables to fetch because an event wrote something of them."""
        return [name for name in map(self._name_of, self._due) if name]

    @property
    def is_under_way(self) -> bool:
        """Whether something is being fetched."""
        return self._sweep is not None

    def want(self, table_id: int) -> None:
        """The table's constraints or statistics were written, or are unknown."""
        self._due[table_id] = None

    def end_sweep(self) -> None:
        """What is being fetched is no longer wanted."""
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def step(self) -> bool:
        """Fetch and publish those of written tables; False if there are none."""
        asked = list(islice(self._due, CHUNK_TABLES))
        names = tuple(name for name in map(self._name_of, asked) if name)
        if not names:
            self._due.clear()
            return False
        fetched = self._fetcher.submit_details(names).result()
        for table_id in asked:
            self._due.pop(table_id, None)
        self._take(fetched)
        return True

    def go_on_with_sweep(self) -> bool:
        """Publish the next chunk, if it is there; False if there is nothing to do."""
        done = self._progress.detailed
        if done is None or self._progress.sweeping:
            return False
        if self._sweep is None:
            left = [name for name in sorted(self._tables()) if name > done]
            self._sweep = Sweep(left, self._fetcher.submit_details)
        sweep = self._sweep
        try:
            fetched = sweep.next()
            if fetched is not None:
                self._take(fetched)
        except BaseException:
            self.end_sweep()  # its chunks are fetched again, after those that were published
            raise
        if self._sweep is not sweep:  # an event voided everything meanwhile
            return True
        if fetched is not None:
            self._progress.detailed = fetched.names[-1]
            sweep.report("constraints and statistics", self._shard)
        elif sweep.is_over:
            self._sweep = self._progress.detailed = None
            log.info("constraints and statistics complete", tables=sweep.total, seconds=round(sweep.seconds, 1))
        else:
            return False
        self._publish([])
        return True

    def _take(self, fetched: FetchedDetails) -> None:
        """Read the log past the fetch, then publish those of each table whose name did not change hands meanwhile.

        The fold refuses what was written after it was read, and the event that says so makes it due again.
        """
        self._drain(fetched.hi)
        lo, hi = f"{FLAVOR}/{fetched.lo}", f"{FLAVOR}/{fetched.hi}"
        changes: list[Change] = []
        for name, details in fetched.found.items():
            if self._name_of(details.table_id) == name and self._rebound_at(name) <= fetched.lo:
                changes += _images(details, lo, hi)
            elif self._name_of(details.table_id):
                self.want(details.table_id)
        if changes:
            self._publish(changes)


def _images(details: TableDetails, lo: str, hi: str) -> list[Change]:
    found: list[Change] = [_image(STATISTICS, details.table_id, details.statistics, lo, hi)]
    if details.constraints is not None:
        found.append(_image(CONSTRAINTS, details.table_id, details.constraints, lo, hi))
    return found


def _image(kind: str, table_id: int, found: Struct | None, lo: str, hi: str) -> ObjectImage:
    if found is None:
        return ObjectImage(kind, table_id, (), "dropped", lo=lo, hi=hi)
    return ObjectImage(kind, table_id, (), "image", image_of(found, _STRUCTS[kind]), encode_struct(found), lo, hi)
