"""The owners' processes as a front reaches them: the real server behind an address, and fills that are on their way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from enum import Enum
from functools import partial
from typing import Any, Final

from consumers.owner.connection import FrontConnection
from consumers.owner.evidence import FillVerdict
from consumers.owner.partitions import Ownership, Partition
from consumers.owner.protocol import Answer, CheckpointPlace, Fill, Filled, FillTable, OwnerError, Request
from consumers.owner.server import OwnerServer
from lab.simulation.models.loop import VirtualLoop
from lab.simulation.models.owning import OwnedPartition
from lab.simulation.models.topic import TOPIC_ID
from serving.locations.places import Key, Location, Replica, Version
from serving.locations.queues import Batch
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.owners import Owners

PATIENCE_S: Final = 3_600.0
"""How long a front waits for an owner's answer: a fill may be on its way for a whole history."""
METRICS: Final = FrontMetrics()
"""Of all fronts. Nothing depends on them, and they cost more to make than a history."""


class Late(Enum):
    """What of a read is on its way until it is released."""

    QUESTION = "question"
    ANSWER = "answer"


class SimulatedOwnership(Ownership):
    """One owner's partitions. ``owned`` may change: a store that is lost is replaced by an empty one."""

    def __init__(self, name: str, owned: list[OwnedPartition]) -> None:
        self.instance = name
        self.awaited_keyspaces = frozenset()
        self.owned = owned

    def get(self, keyspace: str, number: int) -> Partition | None:
        """The partition, if there is one of this number."""
        owned = self.owned
        return owned[number].partition if number < len(owned) and owned[number].keyspace == keyspace else None

    def of(self, keyspace: str) -> list[Partition]:
        """All partitions."""
        return [each.partition for each in self.owned if keyspace in ("", each.keyspace)]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self.of(""))

    def __len__(self) -> int:
        return len(self.owned)


class FillUnderWay:
    """A fill that a front has sent, and that has not reached the owner yet.

    ``history``: in which the source was read, as the world that gave the answer knows.
    """

    arrives: asyncio.Future[None]

    def __init__(self, request: Fill | FillTable, history: int) -> None:
        self.request = request
        self.history = history
        self.verdict = FillVerdict(False, "it has not arrived")


class SimulatedOwner(OwnerServer):
    """An owner's server. Every fill that is sent to it is on its way until it is delivered."""

    def __init__(self, name: str, owned: list[OwnedPartition], network: Network) -> None:
        super().__init__(SimulatedOwnership(name, owned), _no_checkpoints)
        self.owned = owned
        self._network = network

    def answer(self, request: Request) -> Answer | Coroutine[Any, Any, Answer]:
        """As the server's. The answer to a fill waits until the fill is delivered."""
        if isinstance(request, Fill) and not request.lo:
            return super().answer(request)  # a lease ends: nothing is filled
        if not isinstance(request, Fill | FillTable):
            late = self._network.late
            return super().answer(request) if late is None else self._held(request, late)
        fill = FillUnderWay(request, self._network.giving)
        if self._network.is_slow:
            self._network.fills.append(fill)
            return self._answer_later(fill)
        return self._answer_fill(fill)

    async def _held(self, request: Request, late: Late) -> Answer:
        """The answer of the time at which it is given, or of the time at which the question comes."""
        found = super().answer(request) if late is Late.ANSWER else None
        released = asyncio.get_running_loop().create_future()
        self._network.held.append(released)
        await released
        found = super().answer(request) if found is None else found
        return await found if asyncio.iscoroutine(found) else found

    async def _answer_later(self, fill: FillUnderWay) -> Answer:
        fill.arrives = asyncio.get_running_loop().create_future()
        await fill.arrives
        return self._answer_fill(fill)

    def _answer_fill(self, fill: FillUnderWay) -> Answer:
        try:
            answer = super().answer(fill.request)
        except OwnerError as error:
            fill.verdict = FillVerdict(False, str(error))
            self._network.arrived(fill)
            raise
        assert isinstance(answer, Filled)
        fill.verdict = FillVerdict(answer.accepted, answer.why)
        self._network.arrived(fill)
        return answer


class OwnersEnd(FrontConnection):
    """The owner's end of a connection. It breaks in the middle of the next answer, if the network says so."""

    def __init__(self, owner: SimulatedOwner, number: int, network: Network) -> None:
        super().__init__(owner)
        self._number = number
        self._network = network

    def data_received(self, data: bytes) -> None:
        if self._network.tears == self._number and self._greeted:
            self._network.tears = None
            self._transport = HalfWritten(self._transport)
        super().data_received(data)


class HalfWritten:
    """A transport that breaks in the middle of the next write."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        """Sends the first half, and closes the connection."""
        self._transport.write(data[: len(data) // 2])
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


async def _no_checkpoints(_: list[Partition]) -> list[CheckpointPlace]:
    return []


class Network:
    """The owners of a keyspace at their addresses, on one loop."""

    def __init__(
        self, loop: VirtualLoop, owners: list[list[OwnedPartition]], arrived: Callable[[FillUnderWay], None]
    ) -> None:
        """``arrived`` is called with each fill that its owner has judged."""
        self.loop = loop
        self.fills: list[FillUnderWay] = []
        self.owners = [SimulatedOwner(f"owner{number}", owned, self) for number, owned in enumerate(owners)]
        for number, owner in enumerate(self.owners):
            loop.listeners[owner.instance] = partial(OwnersEnd, owner, number, self)
        self.arrived = arrived
        self.is_slow = True
        """Whether fills are on their way until they are delivered. Else they arrive at once."""
        self.giving = -1
        """The history of the source's answer that fronts are just getting."""
        self.late: Late | None = None
        """What of the next read is late."""
        self.held: list[asyncio.Future[None]] = []
        """Reads that are on their way to an owner, or back, until they are released."""
        self.tears: int | None = None
        """The owner whose next answer breaks off."""

    def deliver(self, number: int) -> None:
        """Lets a fill that is on its way reach its owner."""
        self.fills.pop(number).arrives.set_result(None)
        self.loop.run()

    def release(self, number: int) -> None:
        """Lets a read that was held go on."""
        self.held.pop(number).set_result(None)
        self.loop.run()


class Route:
    """Which owner a front believes in: the one that answers for every partition. It may change at any time."""

    def __init__(self, network: Network) -> None:
        self._replicas = [Replica(f"{owner.instance}:1", TOPIC_ID, "", owner.instance) for owner in network.owners]
        self._keys = [Key(each.keyspace, each.number) for each in network.owners[0].ownership.of("")]
        self._owner = 0
        self.change = len(self._replicas)
        self.locations = Locations(self, clock=network.loop.time)
        self.owners = Owners(self.locations, METRICS, request_timeout_s=PATIENCE_S)

    @property
    def owner(self) -> int:
        """The owner's number."""
        return self._owner

    @owner.setter
    def owner(self, number: int) -> None:
        if number != self._owner:
            self._owner = number
            self.change += 1

    def changed(self, after: int) -> tuple[int, list[Location]]:
        """See `serving.locations.refreshing.Directory`. Each instance owns something, so that connections stay."""
        del after
        others = [
            Location(Key("others", number), Version(1, 0, each.instance), each)
            for number, each in enumerate(self._replicas)
        ]
        return self.change, [*others, *(self._location(key) for key in self._keys)]

    async def read(self, batch: Batch) -> dict[Key, Location]:
        """See there."""
        return {key: self._location(key) for key in batch.keys}

    def _location(self, key: Key) -> Location:
        owner = self._replicas[self._owner]
        return Location(key, Version(self.change, 0, owner.instance), owner, place=self.change)
