"""The backfill of a simulated shard: the real one, with chunks that are read when an op says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import Final, NamedTuple

from lab.simulation.rows.source import CHOICES, SLOT_OF, SLOTS, SLOTS_A_SHARD, SimulatedSource, image_of
from stream.sources.mariadb.backfill.plan import After, Chunk
from stream.sources.mariadb.backfill.reading import Wanted
from stream.sources.mariadb.backfill.rereading import Rereading
from stream.sources.mariadb.backfill.run import Backfill, BackfillOptions
from stream.sources.mariadb.cascades.family import Family
from stream.sources.mariadb.connection import MariaDBError
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import TableFilter
from stream.sources.status import SourceStatus
from stream.wire.batch import Framer
from stream.wire.declarations import Declarations
from stream.wire.events import ABSENT, VALUE, ResumePoint, RowChange, SourceTransaction

ALL: Final = BackfillOptions(TableFilter())


class SimulatedReading:
    """Chunks of one row of the wanted table."""

    def __init__(self, source: SimulatedSource) -> None:
        self._source = source
        self._wanted: Wanted | None = None
        self._ahead: deque[Chunk] = deque()
        self.failed: MariaDBError | None = None
        self.estimate = 0

    def want(self, wanted: Wanted | None) -> None:
        """Drops what was read."""
        self._wanted = wanted
        self._ahead.clear()

    @property
    def first(self) -> Chunk | None:
        """The chunk to publish next."""
        return self._ahead[0] if self._ahead else None

    def wait(self, _seconds: float) -> bool:
        """Whether there is one: a history reads them itself."""
        return bool(self._ahead)

    def take(self) -> None:
        """It is published."""
        self._ahead.popleft()

    def close(self) -> None:
        """Nothing is open."""

    def read(self, chunks: int, *, behind: int) -> int:
        """Reads up to so many chunks. ``behind``: by how many commits `lo` was asked for before the snapshot."""
        wanted, source, read = self._wanted, self._source, 0
        if wanted is not None and wanted.keys and not self._ahead:
            chunk = _rows_of(source, wanted, behind)
            self._ahead += [chunk] if chunk.follows(wanted.since) else []
            return len(self._ahead)
        while wanted is not None and read < chunks and not (self._ahead and self._ahead[-1].last is None):
            after = self._ahead[-1].last if self._ahead else wanted.after
            chunk = _chunk(source, wanted, after, behind)
            if not chunk.follows(wanted.since):
                break
            self._ahead.append(chunk)
            read += 1
        return read


def _chunk(source: SimulatedSource, wanted: Wanted, after: After | None, behind: int) -> Chunk:
    history, at = source.history, source.engine
    slots = range(source.first_slot, source.first_slot + SLOTS_A_SHARD)
    left = [each for each in slots if SLOTS[each].table == wanted.described.table and history.state(each, at)]
    found = next((each for each in left if after is None or list(SLOTS[each].values) > [*after.key]), None)
    rows: tuple[RowChange, ...] = ()
    if found is not None:
        rows = (RowChange(SLOTS[found].key, VALUE, history.state(found, at) or image_of(0)),)
    return Chunk(
        wanted.described, rows, *_bounds(source, behind), None if found is None else After(list(SLOTS[found].values))
    )


def _rows_of(source: SimulatedSource, wanted: Wanted, behind: int) -> Chunk:
    """The wanted keys' rows, or that there are none."""
    images = {key: source.history.state(SLOT_OF[key], source.engine) for key in wanted.keys}
    rows = tuple(RowChange(key, VALUE, image) if image else RowChange(key, ABSENT) for key, image in images.items())
    return Chunk(wanted.described, rows, *_bounds(source, behind), None)


def _bounds(source: SimulatedSource, behind: int) -> tuple[GtidPosition, GtidPosition]:
    positions = source.history.positions
    return GtidPosition.parse(positions[max(source.engine - behind, 0)]), GtidPosition.parse(positions[-1])


class ReadTo(NamedTuple):
    """A binlog that was read to a position, and has no more."""

    position: GtidPosition
    has_more: bool = False

    def has_reached(self, position: GtidPosition) -> bool:
        """Whether it was read as far."""
        return self.position.covers(position)


class FramedBackfill:
    """The backfill of a publisher's process. ``publish`` frames a transaction, and may end the process."""

    def __init__(
        self,
        source: SimulatedSource,
        framer: Framer,
        said: Iterable[bytes | None],
        choice: int,
        publish: Callable[[SourceTransaction], None],
    ) -> None:
        """``said``: the messages of the shard's home partition."""
        self.publish = publish
        self.reading = SimulatedReading(source)
        self._framer = framer
        declared = Declarations(source.name, framer.resume.epoch)
        for value in said:
            if value is not None:
                declared.read(value)
        point = replace(framer.resume, descriptions=declared.descriptions(), complete=declared.complete_tables())
        clock = count(0.0, 1_000.0).__next__  # so that no table waits
        self.family = Family()
        self.again = SimulatedReading(source)
        catalog = CHOICES[choice].catalog
        rereading = Rereading(self.again, catalog)
        self.run = Backfill(
            ALL, self.reading, self, catalog, point, SourceStatus(), clock, family=self.family, rereading=rereading
        )

    def read(self, chunks: int, *, behind: int) -> int:
        """As `SimulatedReading.read`, of tables, and of what foreign keys changed."""
        return self.reading.read(chunks, behind=behind) + self.again.read(1, behind=behind)

    def annotate(self, annotations: Mapping[str, str]) -> None:
        """The next batch has them."""
        self._framer.annotate(annotations)

    def has_room(self, _: float = 0.0, /) -> bool:
        """When a batch is committed is decided elsewhere."""
        return True

    def begin_epoch(self, point: ResumePoint) -> None:
        """As `MariaDBSource._new_epoch`."""
        self.run.begin_epoch(point)

    def step(self, position: str, timestamp: int) -> None:
        """As `MariaDBSource` between two transactions."""
        self.run.step(position, timestamp, ReadTo(GtidPosition.parse(position)))
