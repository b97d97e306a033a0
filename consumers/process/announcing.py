"""Announces in the locations topic which partitions this process answers for, from a thread of its own.

The fold thread only leaves orders. An announcement is sent at once, again every `AGAIN_S`, and with a higher generation
when another one stands although the group still gives the partition to this process.

Two groups may own a partition side by side, an older and a newer version say. `freshet swap` moves the readers from one
to the other: it writes the announcement of the other one with a higher ``swap``. The owner that is named finds itself
announced and goes on with it, and so does its group; the others leave the readers there, until that group withdraws.

A process that was stopped for long, and goes on, may have lost its partitions and not know it (a *zombie*). Until it
has run for `SETTLED_S` it announces itself with its own generation only, which is below that of who took its place.

A follower's group leaves the readers where they are as one on standby does, and announces its owners as followers.
Fronts may ask them; fills go to the owner only. Any other second group leaves the readers too, as long as the first
one's owner goes on announcing itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final

import msgspec
import structlog

from consumers.owner.partitions import Partition
from consumers.owner.protocol import Standing
from consumers.store.errors import StoreError
from stream.kafka import locations
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement, LocationsReader, Role, supersedes

log = structlog.get_logger(__name__)

RETRY_S: Final = 2.0
CLOSE_TIMEOUT_S: Final = 3.0
"""Announcements not sent by then are dropped; a front notices by itself that an owner is gone."""
AGAIN_S: Final = 60.0
"""An announcement that was lost, or that compaction dropped, is missing for no longer."""
CHECK_S: Final = 5.0
SILENT_S: Final = 3 * AGAIN_S
"""An owner of another group that has not announced itself for so long is dead; its place is free."""
SETTLED_S: Final = 20.0
"""After this time a process that has lost its membership knows it: two of the group's session timeouts."""
LATE_S: Final = 2 * CHECK_S
"""A thread that looks so late was stopped, or its machine was: it may have lost its membership meanwhile."""
ERA_BITS: Final = 32
"""A generation is an era (upper bits) and the group's own number, which begins anew when the group is made anew."""


def generation_above(known: Announcement | None, partition: Partition, instance: str, *, settled: bool) -> int:
    """The generation to announce ``partition`` with, where ``known`` stands.

    The group's coordinator numbers its generations, so they order the owners of a partition. A lower number than the
    standing one is either a late announcement, which must lose, or that of a group made anew, which must win: nothing
    stands any more, or the group has left the partition here for long (``settled``).
    """
    own = max(partition.generation, 1)
    if known is None:
        return own
    era = known.generation >> ERA_BITS
    within = era << ERA_BITS | own
    if (within, instance) >= (known.generation, known.instance):
        return within
    certain = known.gone or known.instance == instance or settled
    return (era + 1 if certain else era) << ERA_BITS | own


@dataclass(frozen=True, slots=True)
class _Order:
    partition: Partition
    withdraw: bool


class Announcer:
    """`announce`, `withdraw` and `close` neither block nor raise; the thread does the rest."""

    def __init__(
        self,
        kafka: KafkaCluster,
        address: str,
        instance: Callable[[], str],
        group: str = "",
        *,
        standby: bool = False,
        follower: bool = False,
        zone: str = "",
        front: str = "",
        rename: Callable[[], None] = lambda: None,
    ) -> None:
        """``address``: host:port at which others reach the owner protocol. ``group``, ``zone``: as in the settings.

        ``instance``: the process's name, as it is now. ``rename``: gives it another one; raises `StoreError`.

        ``front``: URL of the read API in this process.

        ``standby``: announces nothing before `freshet swap` has moved readers to this group. ``follower``: announces
        followers until then.
        """
        self._kafka = kafka
        self._address = address
        self._instance, self._rename = instance, rename
        self._waits = standby or follower
        self._follower = follower
        self._zone = zone
        self._front = front
        self._looked_at = self._running_since = time.monotonic()
        self._heard: dict[str, tuple[Announcement, float]] = {}
        """The last announcement that was read of a place's owner, and when it was first seen here."""
        self._swaps: dict[str, int] = {}
        """How often the readers of a place had been moved when they were moved to this group."""
        self._left_free: dict[str, tuple[Announcement, float]] = {}
        """What stands where another group has the readers, and since when it was seen."""
        self._group = kafka.group_id(group)
        self._started_at = int(time.time())
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        """None ends the thread."""
        self._reader: LocationsReader | None = None
        self._owned: dict[str, Partition] = {}
        self._sent: dict[str, Announcement] = {}
        """The last announcement of each owned partition."""
        self._leaving_since: dict[str, float] = {}
        """When a partition was first seen to be leaving, by the monotonic clock."""
        self._due: set[str] = set()
        """Places to announce now, whatever was sent."""
        self._unsent: dict[str, Announcement] = {}
        self._again_at = 0.0
        self._closing = False
        self._reported_code = ""
        self._thread = Thread(target=self._run, name="announce", daemon=True)
        self._thread.start()

    def announce(self, partition: Partition) -> None:
        """Has the partition announced, and again periodically until it is withdrawn."""
        self._orders.put(_Order(partition, withdraw=False))

    def withdraw(self, partition: Partition) -> None:
        """Has the partition's announcement withdrawn, if there was one."""
        self._orders.put(_Order(partition, withdraw=True))

    def standing(self, keyspace: str, partition: int) -> Standing | None:
        """The owner of a partition and its followers, as announced. None: nobody is. From any thread."""
        owner = self._reader.owner_of(keyspace, partition) if self._reader is not None else None
        if owner is None or self._reader is None:
            return None
        members = [owner.instance, *(each.instance for each in self._reader.followers(keyspace, partition))]
        place = owner.address, owner.instance, owner.topic_id, owner.zone
        return Standing(*place, owner.generation, owner.swap, members)

    def is_succeeded(self, partition: Partition) -> bool:
        """Whether another process is announced in this one's place, or this one is not announced. From any thread.

        A follower whose group has no other one goes after `SILENT_S`, if there is an owner: nobody needs it.
        """
        said, reader = self._sent.get(partition.name), self._reader
        if said is None or reader is None:
            return True
        since = self._leaving_since.get(partition.name)
        if said.role == "follower" and since is not None and time.monotonic() - since >= SILENT_S:
            return reader.owner_of(partition.keyspace, partition.number) is not None
        known = self._of_role(reader, partition, said.role)
        return known is not None and known.instance != self._instance() and not known.gone and supersedes(known, said)

    def _of_role(self, reader: LocationsReader, partition: Partition, role: Role) -> Announcement | None:
        """What stands of the partition's owner, or of this group's follower."""
        if role == "owner":
            return reader.standing(partition.keyspace, partition.number)
        return reader.following(partition.keyspace, partition.number, self._group)

    def close(self) -> None:
        """Sends what is pending; gives up after `CLOSE_TIMEOUT_S` if Kafka does not answer."""
        self._orders.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        with LocationsReader(self._kafka).start(patient=True) as reader:
            self._reader = reader
            while not self._closing:
                self._take_orders(RETRY_S if self._unsent else CHECK_S)
                self._prepare(reader, time.monotonic())
                self._send()

    def _take_orders(self, wait_s: float) -> None:
        """Waits for an order, then takes all that are there."""
        try:
            order = self._orders.get(timeout=wait_s)
            while True:
                if order is None:
                    self._closing = True
                else:
                    self._obey(order)
                order = self._orders.get_nowait()
        except Empty:
            return

    def _obey(self, order: _Order) -> None:
        place = order.partition.name
        if not order.withdraw:
            self._owned[place] = order.partition
            self._due.add(place)
        elif self._owned.pop(place, None) is not None:
            self._due.discard(place)
            self._leaving_since.pop(place, None)
            said = self._unsent.pop(place, None) or self._sent.get(place)
            self._sent.pop(place, None)
            if said is not None:
                self._unsent[place] = msgspec.structs.replace(said, gone=True, positions={})

    def _prepare(self, reader: LocationsReader, now: float) -> None:
        """Adds to the unsent ones what has to be announced now."""
        if now - self._looked_at > LATE_S:
            self._running_since = now
        self._looked_at = now
        again = now >= self._again_at
        if again:
            self._again_at = now + AGAIN_S
        for place, partition in self._owned.items():
            known = reader.standing(partition.keyspace, partition.number)
            if self._is_of_namesake(known) and not self._take_another_name():
                continue
            if partition.leaving:
                self._leaving_since.setdefault(place, now)
            else:
                self._leaving_since.pop(place, None)
            role: Role = "owner"
            if self._leaves(place, known, now, lost=partition.lost):
                if not self._follower:
                    self._sent.pop(place, None)
                    self._unsent.pop(place, None)
                    continue
                role, known = "follower", self._of_role(reader, partition, "follower")
            said = self._sent.get(place)
            if said is not None and said.role != role:
                if partition.leaving and role == "follower":
                    continue  # its readers have another owner; `is_succeeded` finds that by what was said last
                said = None
            is_told = said is None or said.leaving == partition.leaving
            now_due = again or place in self._due or not is_told
            if not now_due and said is not None and (known is None or supersedes(said, known)):
                continue
            is_its_own = not (partition.lost or partition.leaving)
            settled = is_its_own and now - self._unsettled_until(reader, partition, known) >= SETTLED_S
            generation = generation_above(known, partition, self._instance(), settled=settled)
            if now_due or said is None or generation != said.generation:
                swap = self._swaps.get(place, 0) if role == "owner" else 0
                self._unsent[place] = self._announcement(partition, generation, swap, role)
        self._due.clear()

    def _is_of_namesake(self, known: Announcement | None) -> bool:
        """Whether what stands is of another group's process that has this one's name: a data directory is a copy.

        Who follows or stands by has no owner of its own, so it needs no look at the address: a copy has the port, too.
        """
        if known is None or known.instance != self._instance() or known.group in ("", self._group):
            return False
        return self._waits or known.address != self._address

    def _take_another_name(self) -> bool:
        """Whether it could. What was said by the name of before is said anew."""
        try:
            self._rename()
        except StoreError as error:
            log.warning("no other name can be taken, trying again", code=error.code, reason=str(error))
            return False
        self._sent.clear()
        return True

    def _unsettled_until(self, reader: LocationsReader, partition: Partition, known: Announcement | None) -> float:
        """When the last thing happened here that may have been the loss of the partition: it was taken, this process
        was stopped, or another one was first read as its owner. Monotonic seconds."""
        read_at = reader.known_since(known) if known is not None else 0.0
        return max(partition.taken_at, self._running_since, read_at)

    def _leaves(self, place: str, known: Announcement | None, now: float, *, lost: bool) -> bool:
        """Whether the readers of a place belong to another group, so that nothing is announced here.

        Within a group its generations decide who owns a partition. Readers that were moved to another group come back
        if that one's owner has withdrawn or is leaving, and no other has followed it, for `SETTLED_S`; or if the owner
        that was named has never said for so long that it goes on: it died, or its group gave the partition to another
        member; or if the owner has not announced itself for `SILENT_S`: it died later. ``lost``: Kafka does not answer,
        so nothing would be heard of it anyway.
        """
        if known is not None and (known.instance == self._instance() or known.group == self._group):
            self._swaps[place] = known.swap
            return False
        if self._waits and place not in self._swaps:
            return True
        if self._is_anothers(place, known, now):
            return True
        if known is None or known.swap <= self._swaps.get(place, 0):
            return False
        first, since = self._left_free.setdefault(place, (known, now))
        if first is not known or lost:  # each that is read is another object
            self._left_free[place] = known, now
            return True
        stays = not (known.gone or known.leaving)
        has_gone_on = stays and bool(known.group)  # `freshet swap` does not know the group
        if has_gone_on and now - max(since, self._running_since) < SILENT_S:
            return True
        if now - since < SETTLED_S:
            return True
        self._swaps[place] = known.swap + 1
        return False

    def _is_anothers(self, place: str, known: Announcement | None, now: float) -> bool:
        """Whether an owner of another group holds a place that was never swapped, and still announces itself.

        An announcement is read again as another object each time, so the same one means that none has come since.
        """
        if known is None or known.gone or not known.group or known.swap > self._swaps.get(place, 0):
            return False
        last, since = self._heard.get(place, (None, now))
        if last is not known:
            self._heard[place], since = (known, now), now
        return now - since < SILENT_S

    def _announcement(self, partition: Partition, generation: int, swap: int, role: Role) -> Announcement:
        head = partition.store.visible
        return Announcement(
            keyspace=partition.keyspace,
            partition=partition.number,
            address=self._address,
            instance=self._instance(),
            layout=head.layout,
            topic_id=partition.topic.topic_id,
            started_at=self._started_at,
            positions={name: each.watermark for name, each in head.lineages.items() if each.watermark},
            generation=generation,
            swap=swap,
            group=self._group,
            role=role,
            zone=self._zone,
            front=self._front,
            leaving=partition.leaving,
        )

    def _send(self) -> None:
        """Sends the unsent ones; if that fails, they stay."""
        if not self._unsent:
            return
        try:
            locations.announce(self._kafka, self._unsent.values())
        except Exception as error:  # noqa: BLE001 - nothing may end the thread: nobody would be announced any more
            code = getattr(error, "code", type(error).__name__)
            if self._reported_code != code:
                self._reported_code = code
                log.warning("announcing failed, retrying", partitions=list(self._unsent), code=code, reason=str(error))
            return
        self._reported_code = ""
        self._sent |= {place: each for place, each in self._unsent.items() if not each.gone}
        self._unsent = {}
