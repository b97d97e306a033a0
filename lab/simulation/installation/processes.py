"""The product's processes, wired as their commands wire them (`freshet.commands`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import CollectorRegistry

from consumers.owner.client import Identity
from consumers.process.loop import ConsumptionSettings
from consumers.process.run import OwnerSettings, serve
from consumers.snapshots.restoring import Snapshots
from lab.simulation.kernel.fronts import listen
from lab.simulation.kernel.scheduler import Kernel
from serving.http.front import make_front
from serving.http.limits import CallerLimits
from serving.locations.directory import TopicDirectory
from serving.locations.file import LocationFile
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from serving.sources.mariadb import MariaDBRows
from stream.access.grants import Access
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from stream.kafka.requests import RequestsReader
from stream.kafka.topics import RETENTION_MS_MIN, ensure_topics
from stream.monitoring import serve_monitoring
from stream.publish.publisher import Publisher
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.replicas.following import FollowingSource
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import MariaDBSource, SourceOptions
from stream.sources.metrics import SourceCollector
from stream.wire.batch import BatchLimits
from stream.wire.keys import Layout
from tokens.errors import FreshetError

KAFKA: Final = KafkaCluster("kafka:9092")
PRIMARY: Final = ConnectionSettings("primary", 3306, user="root")
REPLICA: Final = ConnectionSettings("replica", 3306, user="root")
DEPOT: Final = ConnectionSettings("depot", 3306, user="root")
SHARD: Final = "shop/0"
OTHER_SHARD: Final = "depot/0"
SPILL_BYTES: Final = 400
"""Of wide histories: transactions of two rows are on disk before they are published."""
LEAN: Final = BatchLimits(image_bytes_max=20)
"""Of lean histories: ``{"id":0,"version":9}`` is told, and what is longer is void."""
OVERLAY_BYTES: Final = 3_000
"""In lean histories: of a few fills."""
COMMIT_INTERVAL_S: Final = 1.0
METRICS_PORT: Final = 9_100
VERSION: Final = "simulated"
RATE_PER_S: Final = 500.0
"""Of each caller of a guarded front: more than any asks for."""
ZONES: Final = ("near", "far")
FOLLOWERS: Final = "followers"
"""The group of consumers that follow."""
GivesUp = Callable[[str, FreshetError], None]
"""Called by a process that ends with an error of one line, for its supervisor to start it again."""


class Published(NamedTuple):
    """What a source publishes. ``wide``: also what was there before; large transactions go through the disk.

    ``before``: also what each row was before its transaction. ``keyless``: also rows of tables without a primary key.
    ``lean``: longer images are left out. ``replicas``: of the server; the binlog is read there while they keep up.
    """

    keyspace: str
    shard: str
    server: ConnectionSettings
    partitions: int
    wide: bool = False
    before: bool = False
    keyless: bool = False
    lean: bool = False
    replicas: tuple[ConnectionSettings, ...] = ()

    @property
    def tables(self) -> TableFilter:
        """The keyspace's database."""
        return TableFilter((self.keyspace,))


class Requested:
    """What operators ask the source of the shop for, from when ``has_begun`` says that somebody has."""

    def __init__(self, has_begun: Callable[[], bool]) -> None:
        self._has_begun = has_begun
        self._reader = RequestsReader(KAFKA, "shop", SHARD)

    def new(self, offset: int) -> list[tuple[int, bytes]]:
        """See `stream.kafka.requests.RequestsReader.new`."""
        return self._reader.new(offset) if self._has_begun() else []

    def close(self) -> None:
        """See there."""
        self._reader.close()


def start_source(
    kernel: Kernel,
    name: str,
    what: Published,
    server_id: int,
    gives_up: GivesUp,
    *,
    new_epoch: bool = False,
    asked: Requested | None = None,
) -> None:
    """``freshet source mariadb``: binlog, publisher, Kafka."""

    def new_publisher() -> Publisher:
        ensure_topics(KAFKA, what.keyspace, what.partitions, retention_ms=RETENTION_MS_MIN)
        return Publisher(KAFKA, what.keyspace, what.shard, Layout(what.partitions), limits=LEAN if what.lean else None)

    options = SourceOptions(
        what.server,
        what.shard,
        what.tables,
        server_id,
        new_epoch=new_epoch,
        before_images=what.before,
        keyless_rows=what.keyless,
    )
    if what.wide:
        options = replace(options, backfill=BackfillOptions(what.tables), spill_bytes=SPILL_BYTES)
    made = partial(FollowingSource, options, what.replicas) if what.replicas else partial(MariaDBSource, options)
    source = made(new_publisher, new_requests=lambda: asked if what.wide else None)

    def run() -> None:
        registry = CollectorRegistry()
        registry.register(SourceCollector(what.keyspace, what.shard, source.status))
        place = "127.0.0.1", METRICS_PORT
        serve_monitoring(place, registry, lambda: source.status.not_ready, version=VERSION)
        try:
            source.run()
        except FreshetError as error:
            gives_up(name, error)

    kernel.spawn(name, run, "source")


class Consuming(NamedTuple):
    """What a consumer folds, and where. ``places``: keyspace → where its snapshots are. ``front``: as it announces.

    ``access``: who may ask it. ``lean``: it has hardly any room for what reads fetch, and accounts have their own.
    """

    keyspaces: tuple[str, ...]
    data_dir: Path
    places: Mapping[str, str]
    follows: bool = False
    front: str = ""
    access: Access = Access()
    lean: bool = False

    @property
    def settings(self) -> ConsumptionSettings:
        """For the process."""
        made = ConsumptionSettings(KAFKA, self.keyspaces, self.data_dir, commit_interval_s=COMMIT_INTERVAL_S)
        if self.lean:
            hot = {"shop": {"shop.accounts": OVERLAY_BYTES}}
            made = replace(made, overlay_bytes=OVERLAY_BYTES * len(self.keyspaces), hot=hot)
        return replace(made, group=FOLLOWERS if self.follows else made.group, snapshots=Snapshots(self.places))


def start_consumer(kernel: Kernel, name: str, what: Consuming, gives_up: GivesUp) -> None:
    """``freshet consume``: folds, commits, announces, and answers the owner protocol."""
    owner = OwnerSettings(
        metrics_port=METRICS_PORT,
        version=VERSION,
        follower=what.follows,
        zone=ZONES[0],
        front=what.front,
        access=what.access,
    )

    async def run() -> None:
        try:
            await serve(what.settings, owner)
        except FreshetError as error:
            gives_up(name, error)

    kernel.run_task(name, run)


class Serving(NamedTuple):
    """What a front serves, and to whom. ``kept``: its file of locations, if it has one. ``identity``: for owners."""

    published: Sequence[Published]
    port: int
    kept: Path | None
    access: Access
    identity: Identity | None = None


def start_front(kernel: Kernel, name: str, what: Serving) -> None:
    """``freshet serve``: finds owners, reads through, answers HTTP."""

    def start() -> None:
        reader = LocationsReader(KAFKA).start(patient=True)
        spaces = [
            RowSpace(each.keyspace, Layout(each.partitions), each.keyspace, _rows(each)) for each in what.published
        ]
        directory = TopicDirectory(reader)
        locations = Locations(directory, zone=ZONES[what.port % len(ZONES)] if what.kept is not None else "")
        locations.front_of = directory.front_of
        if what.kept is not None:
            LocationFile(what.kept, KAFKA, directory, locations).__enter__()
        front = make_front(
            spaces,
            locations,
            identity=what.identity,
            access=what.access,
            callers=CallerLimits(rate_per_s=0.0 if what.access.is_open else RATE_PER_S),
            kafka=KAFKA,
            resolves_letters=not what.access.is_open,
        )
        kernel.run_task(name, lambda: listen(front, what.port))

    kernel.spawn(name, start, "serve")


def _rows(what: Published) -> MariaDBRows:
    return MariaDBRows(what.server, what.shard, what.tables)
