"""The front: everything that a request's handler works with, put together from the keyspaces that are served."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from consumers.owner.client import Identity
from serving.errors import ReadError
from serving.http.bytes.files import Files
from serving.http.limits import CallerLimits, RequestLimits
from serving.http.status.backfills import Backfills
from serving.http.status.watch import Watch
from serving.locations.metrics import LocationMetrics
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.descriptions import Descriptions
from serving.reads.fills import Fills
from serving.reads.locations import LocationReads
from serving.reads.objects import ObjectReads
from serving.reads.owners import Owners
from serving.reads.privileges.reading import PrivilegeReads
from serving.reads.ranges.reading import RangeReads
from serving.reads.readiness import Readiness
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace, TableSpace
from serving.reads.tables import TableReads
from serving.streams.reading import Streams
from stream.access.grants import Access, Grant
from stream.kafka.connection import KafkaCluster

Closer = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Front:
    """What the handlers of `serving.http.routes` work with. Make one with `make_front`."""

    row_spaces: dict[str, RowSpace]
    table_spaces: dict[str, TableSpace]
    rows: RowReads
    ranges: RangeReads
    tables: TableReads
    objects: ObjectReads
    privileges: PrivilegeReads
    locations: LocationReads
    readiness: Readiness
    watch: Watch
    metrics: FrontMetrics
    descriptions: Descriptions
    owners: Owners
    limits: RequestLimits
    access: Access
    closers: Sequence[Closer]
    """Awaited in order when the front stops."""
    kafka: KafkaCluster | None = None
    """None: there are no streams and no dead letters."""
    resolves_letters: bool = False
    """Whether the page puts dead letters back, and takes them off the list."""
    callers: CallerLimits = field(default_factory=CallerLimits)
    streams: Streams | None = None
    """None: there is no Kafka to read them from."""
    backfills: Backfills | None = None
    """None: there is no Kafka to read their progress from."""
    files: Files | None = None
    """None: no file is served."""
    clock: Callable[[], float] = time.time
    """Seconds since 1970. ``max_staleness_ms`` compares it with the clocks of sources."""
    _views: dict[frozenset[str], Front] = field(default_factory=dict)

    def seen_by(self, caller: Grant) -> Front:
        """The front as if it had the caller's keyspaces only. What is of no keyspace, a file, is for those who see all.

        A handler can't reach, nor name, what the caller may not see.
        """
        if caller.keyspaces is None:
            return self
        seen = frozenset(name for name in (*self.row_spaces, *self.table_spaces) if caller.sees(name))
        view = self._views.get(seen)
        if view is None:
            rows = {name: space for name, space in self.row_spaces.items() if name in seen}
            tables = {name: space for name, space in self.table_spaces.items() if name in seen}
            spaces: dict[str, RowSpace | TableSpace] = {**rows, **tables}
            view = self._views[seen] = replace(
                self,
                row_spaces=rows,
                table_spaces=tables,
                locations=self.locations.of(spaces),
                readiness=self.readiness.of(spaces),
                files=None,
                _views={},
            )
        return view

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return int(self.clock() * 1000)

    def row_space(self, name: str) -> RowSpace:
        """A keyspace of rows. Raises `ReadError` ``unknown_keyspace``."""
        space = self.row_spaces.get(name)
        if space is None:
            raise _unknown(f"no keyspace {name!r} of rows is served here", self.row_spaces)
        return space

    def table_space(self, name: str) -> TableSpace:
        """A catalog. Raises `ReadError` ``unknown_keyspace``."""
        space = self.table_spaces.get(name)
        if space is None:
            raise _unknown(f"no catalog {name!r} is served here", self.table_spaces)
        return space


def _unknown(message: str, served: Collection[str]) -> ReadError:
    """``served``: those that the caller may know."""
    return ReadError("unknown_keyspace", message, hint=f"served here: {', '.join(served)}" if served else "")


def make_front(
    spaces: Sequence[RowSpace | TableSpace],
    locations: Locations,
    *,
    identity: Identity | None = None,
    access: Access | None = None,
    limits: RequestLimits | None = None,
    callers: CallerLimits | None = None,
    stale_if_down: bool = False,
    kafka: KafkaCluster | None = None,
    resolves_letters: bool = False,
    files: Files | None = None,
) -> Front:
    """A front over ``spaces``. ``locations``: who owns which partition.

    ``identity``: what the front shows to owners. ``access``: who may ask; None: everybody.
    ``stale_if_down``: as in `TableReads` and `ObjectReads`. ``kafka``: for change streams and dead letters.
    ``resolves_letters``: whether the page has buttons for them. ``files``: for ``/v1/bytes``.
    """
    metrics = FrontMetrics()
    owners = Owners(locations, metrics, identity=identity)
    metrics.registry.register(LocationMetrics(locations))
    fills = Fills(owners, metrics)
    by_name = {space.name: space for space in spaces}
    descriptions = Descriptions(owners)
    if files is not None:
        metrics.registry.register(files.metrics)
    streams = Streams(kafka, metrics) if kafka is not None else None
    catalogs = [space.source.close for space in spaces if isinstance(space, TableSpace) and space.source is not None]
    rows = [source.close for space in spaces if isinstance(space, RowSpace) for source in space.all_sources]
    return Front(
        row_spaces={name: space for name, space in by_name.items() if isinstance(space, RowSpace)},
        table_spaces={name: space for name, space in by_name.items() if isinstance(space, TableSpace)},
        rows=RowReads(owners, descriptions, fills, metrics),
        ranges=RangeReads(owners, descriptions, metrics),
        tables=TableReads(owners, fills, metrics, stale_if_down=stale_if_down),
        objects=ObjectReads(owners, metrics, stale_if_down=stale_if_down),
        privileges=PrivilegeReads(owners, metrics),
        locations=LocationReads(owners, locations, by_name, identity.networks if identity is not None else ()),
        readiness=Readiness(owners, by_name),
        watch=Watch(owners, by_name, metrics),
        metrics=metrics,
        descriptions=descriptions,
        owners=owners,
        limits=limits or RequestLimits(),
        access=access or Access(),
        kafka=kafka,
        resolves_letters=resolves_letters,
        callers=callers or CallerLimits(),
        streams=streams,
        backfills=Backfills(kafka) if kafka is not None else None,
        files=files,
        closers=(
            *([streams.close] if streams is not None else []),
            fills.close,
            owners.close,
            *catalogs,
            *rows,
            *([files.close] if files is not None else []),
        ),
    )
