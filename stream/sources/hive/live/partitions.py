"""Publishes the partitions of tables with their statistics: those that an event wrote, or all of a table in a pass.

The statistics of all partitions together are read with those that were written, and at the beginning of a pass.

A pass says that the sets have begun, lists the partitions, publishes them chunk by chunk, and says that the sets are
whole. Several tables have one under way, so that the metastore always has something to answer; a table has one at most,
since the end of one would make a set whole that another one has begun.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Final, NamedTuple

import structlog

from stream.sources.hive.live.fetching import Fetcher
from stream.sources.hive.live.members import (
    Chunk,
    Listing,
    Member,
    Values,
    changes_of,
    list_names,
    read_chunk,
    read_named,
)
from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.messages import FLAVOR, HiveMessageError
from stream.sources.hive.object_events import AGGREGATE_STATISTICS, PARTITION, PARTITION_STATISTICS
from stream.sources.hive.recent_drops import RecentDrops
from stream.sources.hive.refusals import Refusals
from stream.sources.hive.rpc.connection import MetastoreRefused
from stream.wire.events import Change, ObjectImage, ObjectSet

log = structlog.get_logger(__name__)

CHUNK: Final = 500
"""Partitions that are fetched, and published, together."""
CHUNKS_AHEAD: Final = 4
"""Chunks of one pass that are being fetched."""
PASSES_MAX: Final = 8
"""Tables that have a pass under way."""
REST_MAX_S: Final = 600.0
"""A pass that a void has cut short begins again after as long as it had lasted, and after this at most.

A table that is altered more often than a pass can end would else be read without a pause, for nothing.
"""
WRITTEN_MAX: Final = 50
"""Written partitions of a table that are fetched by name. With more of them, all are fetched."""
KINDS: Final = (PARTITION, PARTITION_STATISTICS)
WHOLE: Final = ("begun", "complete")


class Asked(NamedTuple):
    """Partitions of a table that are being read, after the event ``lo`` and as many ``voids``."""

    table_id: int
    name: str
    values: Sequence[Values]
    lo: int
    voids: int
    found: Future[Chunk]


class Pass:
    """All partitions of one table, fetched in threads."""

    def __init__(
        self, fetcher: Fetcher, table_id: int, name: str, lo: int, began_s: float, *, with_together: bool
    ) -> None:
        """``with_together``: the statistics of all partitions together are asked for."""
        self.table_id, self.name, self.lo, self.began_s = table_id, name, lo, began_s
        self._fetcher = fetcher
        listing = fetcher.run(lambda each: list_names(each, name, with_together=with_together))
        self._listing: Future[Listing] | None = listing
        self._names: deque[list[str]] = deque()
        self._columns: list[str] = []
        self._under_way: deque[Future[Chunk]] = deque()
        self.without: dict[Values, ObjectImage] = {}
        """Partitions that were written meanwhile and have no statistics: that is said after the last chunk.

        Each counts as a drop, and too many of them have a chunk read again that was read before.
        """

    @property
    def is_over(self) -> bool:
        """Whether every chunk was given out."""
        return self._listing is None and not self._names and not self._under_way

    def next(self) -> Chunk | None:
        """The next chunk, if it is there; the first one has no partitions. Raises what its fetch raised."""
        if self._listing is not None:
            if not self._listing.done():
                return None
            listed, self._listing = self._listing.result(), None
            self._columns = listed.columns
            self._names.extend(listed.names[at : at + CHUNK] for at in range(0, len(listed.names), CHUNK))
            self._submit()
            return Chunk(listed.together, self.lo, listed.hi, [], listed.is_told)
        if not self._under_way or not self._under_way[0].done():
            return None
        found = self._under_way.popleft().result()
        self._submit()
        return found

    def again(self, chunk: Chunk) -> None:
        """The chunk is fetched again, before the others."""
        self._under_way.appendleft(self._fetcher.run(lambda each: self._fetch(each, chunk.names)))

    def cancel(self) -> None:
        """Drop what has not begun."""
        for future in self._under_way:
            future.cancel()

    def _submit(self) -> None:
        while self._names and len(self._under_way) < CHUNKS_AHEAD:
            names = self._names.popleft()
            self._under_way.append(self._fetcher.run(lambda each, names=names: self._fetch(each, names)))  # type: ignore[misc]

    def _fetch(self, metastore: Metastore, names: list[str]) -> Chunk:
        return read_chunk(metastore, self.name, self._columns, names)


class Partitions:
    """What is to be fetched, and its fetching. ``publish``: changes at the position that was read last.

    ``position``: reads the log to the server's end and returns that event; ``drain``: up to an event. ``name_of``:
    table id → its name, or "". ``rebound_at``: name → the last event that bound it to a table, or to none.
    ``drops``: those that were published.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        publish: Callable[[list[Change]], None],
        position: Callable[[], int],
        drain: Callable[[int], None],
        name_of: Callable[[int], str],
        rebound_at: Callable[[str], int],
        drops: RecentDrops,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._drops = drops
        self._clock = clock
        self._refusals = Refusals[int](clock)
        """Ids of tables whose partitions the metastore could not give."""
        self._untold = Refusals[int](clock)
        """Ids of tables of which it could not tell the statistics of all partitions together."""
        self._asked_again: Asked | None = None
        """Of one of those, which are being read once more."""
        self._fetcher = fetcher
        self._publish = publish
        self._position = position
        self._drain = drain
        self._name_of = name_of
        self._rebound_at = rebound_at
        self._whole: dict[int, None] = {}
        """Ids of tables that are to have a pass, in order."""
        self._written: dict[int, set[Values]] = {}
        """Table id → its partitions that were written, of tables that are to have no pass; none: all together were."""
        self._passes: dict[int, Pass] = {}
        self._rests: dict[int, float] = {}
        """Table id → when its pass may begin again, after a void has cut it short."""
        self._voids = 0
        """How many times something was voided: what was read before counts no more."""
        self._fetching = 0
        """The id of the table whose written partitions are being fetched, or whose pass begins; else 0.

        What is published meanwhile must still say that they are due: the source may be killed behind it.
        """

    @property
    def tables(self) -> list[str]:
        """The tables whose partitions are to be fetched."""
        due = {self._fetching: None, **self._whole, **self._written, **self._passes}
        return [name for name in map(self._name_of, due) if name]

    @property
    def refused(self) -> list[str]:
        """The tables whose partitions could not be read: they are tried again after a while."""
        return [name for name in map(self._name_of, self._refusals) if name]

    @property
    def untold(self) -> list[str]:
        """The tables of which nobody told the statistics of all partitions together: these are asked for again."""
        return [name for name in map(self._name_of, self._untold) if name]

    @property
    def is_under_way(self) -> bool:
        """Whether something is being fetched."""
        return bool(self._passes) or self._asked_again is not None

    @property
    def is_busy(self) -> bool:
        """Whether as many tables wait as can have a pass."""
        return len(self._whole) - len(self._rests) + len(self._passes) >= PASSES_MAX

    def note_untold(self, table_ids: Iterable[int]) -> None:
        """Before a restart nobody told the statistics of all partitions together of these tables."""
        for table_id in table_ids:
            self._untold.note(table_id)

    def want(self, table_id: int) -> None:
        """All partitions of a table are to be fetched, after the pass that is under way."""
        self._whole[table_id] = None
        self._written.pop(table_id, None)

    def void(self, table_id: int = 0) -> None:
        """What was read of a table, or of every one (0), counts no more. A pass that is under way begins again."""
        self._voids += 1
        now_s = self._clock()
        for each in [table_id] if table_id else [*self._passes]:
            under_way = self._passes.pop(each, None)
            if under_way is not None:
                under_way.cancel()
                self._rests[each] = now_s + min(now_s - under_way.began_s, REST_MAX_S)
                self.want(each)

    def find(self, table_id: int, lo: int, *, is_partitioned: bool) -> list[Change]:
        """All partitions of a table are to be known; returns what is known of them already, as of event ``lo``.

        No ALTER TABLE gives a table partition columns. So one without them has no partitions, and nothing is fetched.
        """
        if is_partitioned:
            self.want(table_id)
            return []
        return _whole(table_id, KINDS, (), lo, lo)

    def take_whole(self, table_id: int, kinds: Sequence[str], members: Sequence[Member], lo: int, hi: int) -> bool:
        """Publish all of ``kinds`` of a table, read between two events after the first of which nothing wrote it.

        What a pass says one after the other can be said together then: none was made or dropped while they were read.
        False if the table has a pass instead.
        """
        if table_id in self._whole or table_id in self._passes or not self._allows(table_id, lo):
            self.want(table_id)
            return False
        self._publish(_whole(table_id, kinds, members, lo, hi))
        return True

    def forget(self, table_id: int) -> None:
        """The table is gone."""
        self._whole.pop(table_id, None)
        self._rests.pop(table_id, None)
        self._written.pop(table_id, None)
        self._forget_refusals(table_id)

    def _forget_refusals(self, table_id: int) -> None:
        self._refusals.forget(table_id)
        self._untold.forget(table_id)

    def note(self, change: ObjectImage | ObjectSet) -> None:
        """An event said this of a partition; its statistics are fetched with it."""
        table_id = change.table_id
        if isinstance(change, ObjectSet):
            if change.kind == PARTITION and change.change == "void":
                self.void(table_id)
                self.want(table_id)
        elif change.kind in (PARTITION, AGGREGATE_STATISTICS) and change.change == "written":
            self._note_written(table_id, [change.name] if change.kind == PARTITION else [])

    def _note_written(self, table_id: int, names: Iterable[Values]) -> None:
        """These partitions were written, and with them the statistics of all together."""
        if table_id in self._whole:
            return
        written = self._written.setdefault(table_id, set())
        written.update(names)
        if len(written) > WRITTEN_MAX:
            self.want(table_id)

    def step(self) -> bool:
        """Fetch and publish the written partitions of one table; False if there are none."""
        if not self._written:
            return False
        lo = self._position()  # before the name is taken, which events up to there may change
        table_id = next(iter(self._written), 0)
        name, asked = self._name_of(table_id), sorted(self._written.pop(table_id, ()))
        if not name:
            self._forget_refusals(table_id)
            return True
        self._fetching = table_id
        self._stop_asking(table_id)
        with_together = not self._untold.waits(table_id)
        try:
            self._take_written(self._ask(table_id, name, asked, lo, with_together=with_together))
        except BaseException:
            self.want(table_id)
            raise
        finally:
            self._fetching = 0
        return True

    def ask_again(self) -> bool:
        """Ask for the statistics together that nobody told, of one table at a time; False if there is nothing to do.

        That may take as long as a call may last, so everything else goes on meanwhile.
        """
        asked = self._asked_again
        if asked is None:
            table_id = next(iter(self._untold.due(1)), 0)
            name = self._name_of(table_id) if table_id else ""
            if name:
                self._asked_again = self._ask(table_id, name, (), self._position(), with_together=True)
            elif table_id:
                self._forget_refusals(table_id)
            return bool(table_id)
        if not asked.found.done():
            return False
        self._asked_again = None
        self._fetching = asked.table_id
        try:
            self._take_written(asked)
        except BaseException:
            self._note_written(asked.table_id, asked.values)
            raise
        finally:
            self._fetching = 0
        return True

    def _stop_asking(self, table_id: int) -> None:
        """What else is read of the table tells them too, and later: an older answer must not count as the last."""
        if self._asked_again is not None and self._asked_again.table_id == table_id:
            self._asked_again = None

    def _ask(self, table_id: int, name: str, values: Sequence[Values], lo: int, *, with_together: bool) -> Asked:
        found = self._fetcher.run(lambda metastore: read_named(metastore, name, values, with_together=with_together))
        return Asked(table_id, name, values, lo, self._voids, found)

    def _take_written(self, asked: Asked) -> None:
        table_id, name, values, lo, voids, _ = asked
        try:
            found = asked.found.result()
        except (MetastoreRefused, HiveMessageError) as error:
            self._position()
            self._refused(table_id, name, lo, error)
            return
        self._note_together(table_id, found)
        self._drain(found.hi)
        if self._rebound_at(name) > lo or self._name_of(table_id) != name:
            self._again(table_id)
        elif self._voids > voids or not self._allows(table_id, lo):
            self._note_written(table_id, values)
        else:
            self._fetching = 0
            self._publish_written(table_id, changes_of(table_id, found.members, lo, found.hi))

    def _note_together(self, table_id: int, chunk: Chunk) -> None:
        if chunk.is_told:
            self._untold.forget(table_id)
        elif chunk.is_told is not None:
            self._untold.note(table_id)

    def _publish_written(self, table_id: int, changes: list[ObjectImage]) -> None:
        under_way = self._passes.get(table_id)
        if under_way is not None:
            under_way.without |= {each.name: each for each in changes if _is_without_statistics(each)}
            changes = [each for each in changes if not _is_without_statistics(each)]
        self._publish([*changes])

    def _allows(self, table_id: int, lo: int) -> bool:
        return all(self._drops.allow(kind, table_id, lo) for kind in KINDS)

    def go_on(self) -> bool:
        """Begin passes, and publish what has arrived of those under way; False if nothing has."""
        worked = self._begin()
        try:
            for each in list(self._passes.values()):
                worked = self._go_on_with(each) or worked
        except BaseException:  # a pass that has lost a chunk must not end
            self.end_passes()
            raise
        return worked

    def _go_on_with(self, of: Pass) -> bool:
        if self._passes.get(of.table_id) is not of:
            return True  # it was voided while others went on
        try:
            chunk = of.next()
        except (MetastoreRefused, HiveMessageError) as error:
            self._position()
            if self._passes.get(of.table_id) is of:  # else it was voided, and begins again
                self._passes.pop(of.table_id).cancel()
                self._refused(of.table_id, of.name, of.lo, error)
            return False
        if chunk is not None:
            self._take(of, chunk)
        elif of.is_over:
            self._end(of)
        else:
            return False
        return True

    def end_passes(self) -> None:
        """The passes that are under way begin again."""
        for table_id, each in self._passes.items():
            each.cancel()
            self.want(table_id)
        self._passes.clear()

    def _begin(self) -> bool:
        """Begin as many passes as there is room for. Each begins before its members are listed."""
        self._whole |= dict.fromkeys(self._refusals.due())
        now_s = self._clock()
        self._rests = {table_id: until_s for table_id, until_s in self._rests.items() if until_s > now_s}
        free = PASSES_MAX - len(self._passes)
        ready = (each for each in self._whole if each not in self._passes and each not in self._rests)
        chosen = list(islice(ready, max(free, 0)))
        if not chosen:
            return False
        lo = self._position()
        for table_id in chosen:
            self._whole.pop(table_id, None)
            self._written.pop(table_id, None)
            name = self._name_of(table_id)
            if not name:
                self._forget_refusals(table_id)
            else:
                self._fetching = table_id
                self._stop_asking(table_id)
                self._publish([ObjectSet(kind, table_id, "begun", lo=f"{FLAVOR}/{lo}") for kind in KINDS])
                together = not self._untold.waits(table_id)
                self._passes[table_id] = Pass(self._fetcher, table_id, name, lo, now_s, with_together=together)
                self._fetching = 0
        return True

    def _take(self, of: Pass, chunk: Chunk) -> None:
        """Read the log past the chunk, and publish it if the name is still that table's.

        Partitions are asked for by name, and don't tell their table's id.
        """
        self._note_together(of.table_id, chunk)
        self._drain(chunk.hi)
        if self._passes.get(of.table_id) is not of:
            return
        if self._rebound_at(of.name) > of.lo or self._name_of(of.table_id) != of.name:
            del self._passes[of.table_id]
            of.cancel()
            self._again(of.table_id)
        elif not self._allows(of.table_id, chunk.lo):
            of.again(chunk)
        elif chunk.members:
            self._publish([*changes_of(of.table_id, chunk.members, chunk.lo, chunk.hi)])

    def _end(self, of: Pass) -> None:
        self._passes.pop(of.table_id, None)
        self._refusals.forget(of.table_id)
        whole = [ObjectSet(kind, of.table_id, "complete", lo=f"{FLAVOR}/{of.lo}") for kind in KINDS]
        self._publish([*whole, *of.without.values()])

    def _again(self, table_id: int) -> None:
        if self._name_of(table_id):
            self.want(table_id)

    def _refused(self, table_id: int, name: str, lo: int, error: Exception) -> None:
        """The metastore cannot give them: they are read through for a while, unless the name was another table's."""
        if self._rebound_at(name) > lo:
            self._again(table_id)
        else:
            self._refusals.note(table_id)
            log.warning("partitions cannot be read", table=name, reason=str(error))


def _whole(table_id: int, kinds: Sequence[str], members: Sequence[Member], lo: int, hi: int) -> list[Change]:
    begun, complete = ([ObjectSet(kind, table_id, each, lo=f"{FLAVOR}/{lo}") for kind in kinds] for each in WHOLE)
    return [*begun, *changes_of(table_id, members, lo, hi), *complete]


def _is_without_statistics(change: ObjectImage) -> bool:
    return (change.kind, change.change) == (PARTITION_STATISTICS, "dropped")
