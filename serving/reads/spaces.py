"""The keyspaces that a front serves: their layouts, their sources, and the epochs of their shards."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from consumers.fold.shards import NO_KIN, Kin
from consumers.owner.client import OwnerClient
from consumers.store.index import Index
from serving.errors import ReadError
from serving.reads.owners import OwnerAway, Owners
from serving.sources.source import RowSource, RowTable, TableSource
from stream.shards.map import ShardMap
from stream.wire.keys import Layout
from tokens import Tag, Vector
from tokens.decision import is_unknown

LEARN_EVERY_S: Final = 0.05
CONFIRM_EVERY_S: Final = 1.0
"""How long the known epochs are used by reads of the source, before the owners are asked for them again."""
CONFIRM_WITHIN_S: Final = 0.2
"""How long after such questions began their answers are waited for. Then the known epoch is used."""
_EMPTY_VECTOR = str(Vector())


@dataclass(slots=True)
class Epochs:
    """The highest epoch that any answer has named, by shard; and the shards around each, as answers named them."""

    known: dict[str, int] = field(default_factory=dict)
    are_whole: bool = False
    """Whether an owner has named all shards that it knows: an answer about a row names its own."""
    asking: asyncio.Task[None] | None = None
    """The round of questions that is under way, or the last one."""
    asked_at: float = float("-inf")
    """When that one began, on the event loop's clock."""
    confirming: asyncio.Task[None] | None = None
    """The questions whether any partition has a higher one, which are under way, or the last ones."""
    confirmed_at: float = float("-inf")
    """When those began."""
    _kin: dict[str, tuple[int, Kin]] = field(default_factory=dict)
    """Shard → the shards around it, and the epoch of ``shard`` in which they were named."""

    def learn(self, shard: str, epoch: int) -> None:
        """Keeps an answer's epoch if it is the highest so far."""
        if shard and epoch > self.known.get(shard, -1):
            self.known[shard] = epoch

    def learn_kin(self, shard: str, epoch: int, kin: Kin) -> None:
        """Keeps what an owner knows of the shards around ``shard`` in ``epoch``. A newer epoch replaces what is known.

        In one epoch it is added: an owner that has folded little yet knows few of them.
        """
        self.learn(shard, epoch)
        at, known = self._kin.get(shard, (-1, NO_KIN))
        if not shard or epoch < at or (epoch == at and kin == known):
            return
        if epoch == at:
            caught_up = known.caught_up or kin.caught_up
            kin = Kin(known.topology | kin.topology, known.ancestors | kin.ancestors, caught_up)
        self._kin[shard] = epoch, kin

    def kin_of(self, shard: str, vector: Vector) -> Kin:
        """The shards around ``shard``, for a session that has seen ``vector``.

        What was named in one epoch says nothing of a later one, whoever knows of it: it has another history, and other
        ancestors.
        """
        epoch, kin = self._kin.get(shard, (-1, NO_KIN))
        component = vector.get(shard)
        newest = max(self.known.get(shard, -1), component.epoch if component is not None else -1)
        return kin if epoch >= newest else NO_KIN


@dataclass(slots=True)
class RowSpace:
    """A keyspace of rows. ``database``: the database of table names without a dot; "" if there is no default."""

    name: str
    layout: Layout
    database: str = ""
    source: RowSource | None = None
    epochs: Epochs = field(default_factory=Epochs)
    sources: Sequence[RowSource] = ()
    """Those of all shards, if a ``map`` says which keys each has."""
    map: ShardMap | None = None
    indexes: Sequence[Index] = ()
    """Those that its owners keep, by the same settings."""
    learns_indexes: bool = False
    """Rows are found by the source's indexes, too."""
    learnt: dict[str, tuple[Index, ...]] = field(default_factory=dict)
    """Table → those that the source has told last."""

    @property
    def all_sources(self) -> Sequence[RowSource]:
        """The source, or those of all shards."""
        return self.sources or ((self.source,) if self.source is not None else ())

    @property
    def mapped(self) -> Collection[str]:
        """The shards of the map."""
        return self.map.shards if self.map is not None else ()

    def source_at(self, keyspace_id: int) -> RowSource | None:
        """The source of the shard that has a keyspace id; None if there is none here."""
        if self.map is None:
            return self.source
        shard = self.map.shard_of(keyspace_id)
        return next((each for each in self.sources if each.shard == shard), None)

    def source_of(self, key: bytes, table: RowTable) -> RowSource | None:
        """The source of the shard that has a row key."""
        return self.source_at(self.layout.keyspace_id(key, table.prefix)) if self.map is not None else self.source

    def is_of(self, shard: str, key: bytes, table: RowTable) -> bool:
        """Whether a row key is of ``shard`` by the map here. An owner may know none yet, or another one."""
        return self.map is None or self.map.shard_of(self.layout.keyspace_id(key, table.prefix)) == shard

    async def describe(self, name: str) -> RowTable | None:
        """What a source says of a table: each has the same ones, so the first that answers does. Raises `ReadError`."""
        failure: ReadError | None = None
        for source in self.all_sources:
            try:
                return await source.describe(name)
            except ReadError as error:
                failure = error
        if failure is not None:
            raise failure
        return None

    def indexes_of(self, table: RowTable) -> list[Index]:
        """The indexes by which rows of a table are found."""
        if self.learns_indexes and table.indexes is not None:
            self.learnt[table.name] = tuple(Index(table.name, columns) for columns in table.indexes)
        named = [index for index in self.indexes if index.table == table.name]
        return list(dict.fromkeys([*named, *self.learnt.get(table.name, ())]))

    def full_name(self, table: str) -> str:
        """``db.table``. Raises `ReadError` ``unknown_table``."""
        if "." in table:
            return table
        if not self.database:
            raise ReadError("unknown_table", f"{table!r} has no database", hint="name it as db.table")
        return f"{self.database}.{table}"


@dataclass(slots=True)
class TableSpace:
    """A keyspace of catalog tables, named after its catalog."""

    name: str
    layout: Layout
    source: TableSource | None = None
    epochs: Epochs = field(default_factory=Epochs)


async def epoch_of(owners: Owners, space: RowSpace | TableSpace, shard: str) -> int | None:
    """The epoch of ``shard``: as known, else from any owner of the keyspace; None if no owner names it.

    The known one may be of a history that was replaced since, whoever has answered the read: its partition may be
    behind the others. So the owners are asked again, once in `CONFIRM_EVERY_S` for all readers.
    """
    epochs = space.epochs
    if shard in epochs.known:
        await _confirmed(owners, space)
    else:
        await _ask_until(owners, space, lambda: shard in epochs.known)
    return epochs.known.get(shard)


async def epochs_of(owners: Owners, space: RowSpace | TableSpace) -> Mapping[str, int]:
    """As `epoch_of`, of all shards of the keyspace; empty while they can't be told."""
    sources = space.all_sources if isinstance(space, RowSpace) else [space.source] if space.source is not None else []
    wanted, known = {each.shard for each in sources}, space.epochs.known

    def are_whole() -> bool:
        return bool(known) and wanted <= known.keys() and (bool(wanted) or space.epochs.are_whole)

    if are_whole():
        await _confirmed(owners, space)
    else:
        await _ask_until(owners, space, are_whole)
    return known if are_whole() else {}


async def _confirmed(owners: Owners, space: RowSpace | TableSpace) -> None:
    """Waits, though not for long, until the owners were asked for the epochs in the last moment."""
    loop, epochs = asyncio.get_running_loop(), space.epochs
    now, asking = loop.time(), epochs.confirming
    if (asking is None or asking.done()) and now >= epochs.confirmed_at + CONFIRM_EVERY_S:
        epochs.confirmed_at = now
        asking = epochs.confirming = loop.create_task(_confirm(owners, space))
    left_s = epochs.confirmed_at + CONFIRM_WITHIN_S - now
    if asking is not None and not asking.done() and left_s > 0:
        await asyncio.wait([asking], timeout=left_s)


async def _confirm(owners: Owners, space: RowSpace | TableSpace) -> None:
    """Asks for each partition, since one may have folded what no other has: owners side by side.

    One that does not answer holds up only its own partitions, and for one of them: then it is known to be away.
    """
    of_owner = defaultdict[str | None, list[int]](list)
    for partition in range(space.layout.partitions):
        of_owner[owners.address_of(space.name, partition)].append(partition)

    async def ask(partitions: Iterable[int]) -> None:
        for partition in partitions:
            with suppress(ReadError):
                await owners.read(space.name, partition, partial(learn_watermarks, space=space, partition=partition))

    await asyncio.gather(*map(ask, of_owner.values()))


async def learn_shards(
    owners: Owners, space: RowSpace | TableSpace, vector: Vector, deadline: float, shard: str = ""
) -> None:
    """Asks the owners for the keyspace's shards, until those of ``vector`` are known or ``deadline``.

    ``shard``: as in `unknown_shards`. ``deadline`` is on the event loop's clock. Readers share rounds of questions, of
    which one begins in each `LEARN_EVERY_S` at most; each waits for one that began after it came.
    """
    loop, epochs = asyncio.get_running_loop(), space.epochs
    came_at = loop.time()
    while unknown_shards(vector, space, shard):
        if epochs.asking is None or epochs.asking.done():
            now, due = loop.time(), epochs.asked_at + LEARN_EVERY_S
            if epochs.asked_at >= came_at and now >= deadline:
                return
            if due > now:
                until = min(due, deadline) if epochs.asked_at >= came_at else due
                await asyncio.sleep(until - now)
                continue
            epochs.asked_at = now
            epochs.asking = loop.create_task(_ask_until(owners, space, partial(_knows, vector, space, shard)))
        await asyncio.shield(epochs.asking)  # a reader that leaves takes no answer from the others


async def _ask_until(owners: Owners, space: RowSpace | TableSpace, is_known: Callable[[], bool]) -> None:
    """Asks the owners of each partition in turn for its shards, until ``is_known``."""

    async def ask(client: OwnerClient, partition: int) -> str:
        return await learn_watermarks(client, space, partition)

    with suppress(OwnerAway):
        await owners.ask_any(
            space.name,
            range(space.layout.partitions),
            ask,
            lambda _: is_known(),
            each_partition=True,
        )


def _knows(vector: Vector, space: RowSpace | TableSpace, shard: str) -> bool:
    return not unknown_shards(vector, space, shard)


def unknown_shards(vector: Vector, space: RowSpace | TableSpace, shard: str = "") -> list[str]:
    """The shards of ``vector`` of which no owner has said what they are to ``shard``; "": the only source's."""
    if space.source is None:
        return []
    shard = shard or space.source.shard
    kin = space.epochs.kin_of(shard, vector)
    tag = Tag(shard, 0, None, None, None, topology=kin.topology, ancestors=kin.ancestors)
    return [name for name, (epoch, _) in vector.items() if is_unknown(name, epoch, tag)]


async def learn_watermarks(client: OwnerClient, space: RowSpace | TableSpace, partition: int) -> str:
    """A partition's watermarks as a vector's text; keeps their epochs. Raises `OwnerError`."""
    waited = await client.wait(space.name, partition, _EMPTY_VECTOR, 0)
    for each in waited.shards:
        space.epochs.learn_kin(each.shard, each.epoch, each.kin)
    watermarks = Vector.parse(waited.watermarks)
    for shard, component in watermarks.items():
        space.epochs.learn(shard, component.epoch)
    space.epochs.are_whole |= bool(watermarks)
    return waited.watermarks
