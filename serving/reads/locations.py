"""Answers ``/v1/locations``: who answers for a partition or for what the system needs, why, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from serving.client.answers import (
    LocationAnswer,
    LocationsAnswer,
    NodeAnswer,
    PlaceAnswer,
    RefreshAnswer,
    RouteAnswer,
    RoutesAnswer,
    ShardPlace,
)
from serving.errors import ReadError
from serving.locations.cache import LocationCache
from serving.locations.errors import LocationError
from serving.locations.places import FOREVER, NEVER, Key, Kind, Location, Origin, Replica
from serving.locations.refreshing import ROOT, ROOT_S, Locations
from serving.reads.owners import OwnerAway, Owners
from serving.reads.spaces import RowSpace, TableSpace, epochs_of, learn_watermarks
from stream.access.networks import Network, leads_within
from tokens import Vector

Entity = Literal["partition", "keyspace", "events", "dead_letters", "local", "distributed", "root"]
"""What is located: a `Kind`, or virtual: this process, all instances, the leader of the announcements' topic."""

_WHO: Final = {
    Origin.TOPIC: "the topic, which was read for it",
    Origin.PUSH: "its announcement",
    Origin.PEERS: "its instances",
    Origin.HINT: "an instance that it had moved from",
    Origin.SNAPSHOT: "the file of an earlier process, unverified",
    Origin.FIXED: "the settings",
}


class LocationReads:
    """The answer's token is the partition's watermarks; sessions learn epochs from it."""

    def __init__(
        self,
        owners: Owners,
        locations: Locations,
        spaces: Mapping[str, RowSpace | TableSpace],
        networks: tuple[Network, ...] = (),
    ) -> None:
        """``networks``: an announced front elsewhere is told to no client, who would show it a token; (): anywhere."""
        self._networks = networks
        self._owners = owners
        self._locations = locations
        self._spaces = spaces
        self._last: dict[tuple[str, int], str] = {}
        self._address = ""

    def listens_at(self, address: str) -> None:
        """The front listens at ``address``, host:port."""
        self._address = address

    def of(self, spaces: Mapping[str, RowSpace | TableSpace]) -> LocationReads:
        """The same for other keyspaces."""
        found = LocationReads(self._owners, self._locations, spaces, self._networks)
        found._last = self._last
        found.listens_at(self._address)
        return found

    async def read(self, keyspace: str, partition: int, seen: Vector, wait_ms: int = 0) -> LocationAnswer:
        """The owner of a partition. Raises `ReadError` ``unknown_keyspace``, ``no_owner``.

        While the owner is away, the epochs are those that the front knows or another owner names: sessions need no
        more. ``seen``: what the session has seen. It may know of a newer epoch than the owner. ``wait_ms``: how long to
        wait until there is an owner.
        """
        space = self._space_of(keyspace, partition)
        key = Key(keyspace, partition)
        if wait_ms:
            deadline = self._locations.clock() + wait_ms / 1000
            try:
                await self._locations.get_leader_until(key, deadline)
            except LocationError as unknown:
                raise OwnerAway(f"{unknown}; waited {wait_ms} ms") from unknown
        why = "the owner, as it announced itself; the token is the partition's watermark"
        epochs: Mapping[str, int] = {}
        try:
            token = await self._owners.ask(
                keyspace, partition, lambda client: learn_watermarks(client, space, partition)
            )
            self._last[keyspace, partition] = token
        except OwnerAway as away:
            last, epochs = self._last.get((keyspace, partition)), await epochs_of(self._owners, space)
            if last is None and not epochs:
                raise
            token = last or str(Vector())
            why = f"{away}; {'only epochs are known' if last is None else 'the token is the last known watermark'}"
        address = self._owners.address_of(keyspace, partition) or ""
        shards = _places(token, epochs, seen)
        return LocationAnswer("cache", "eventual", why, token, keyspace, partition, address, shards)

    async def locate(self, entity: Entity, keyspace: str, partition: int, *, force: bool = False) -> LocationsAnswer:
        """Who answers for an entity. ``force``: as of now. Raises `LocationError`, `ReadError` ``unknown_keyspace``."""
        if entity == "local":
            return LocationsAnswer([PlaceAnswer("", 0, "local", self._address, why="this front")])
        if entity == "distributed":
            return LocationsAnswer(self._instances())
        if entity == "root":
            key, newer_than = ROOT, self._locations.clock() - ROOT_S
        else:
            self._space_of(keyspace, partition)
            key, newer_than = Key(keyspace, partition, Kind(entity)), 0.0
        found, _ = await self._locations.get(key, expire_renew_time=FOREVER if force else newer_than)
        return LocationsAnswer([self._place(found.location)])

    def dump(self) -> LocationsAnswer:
        """All that is known, without asking anybody."""
        self._locations.follow()
        shown = (each.location for each in self._locations.cache.entries() if self._is_shown(each.location.key))
        return LocationsAnswer([self._place(each) for each in shown])

    def routes(self, keyspace: str) -> RoutesAnswer:
        """Where clients reach a keyspace's partitions, without asking anybody. Raises `ReadError` ``unknown_keyspace``.

        What is not known is refreshed, so that the next caller is told.
        """
        layout = self._space_of(keyspace, 0).layout
        found = [self._route(Key(keyspace, partition)) for partition in range(layout.partitions)]
        return RoutesAnswer(str(layout), [each for each in found if each is not None])

    def _route(self, key: Key) -> RouteAnswer | None:
        try:
            location = self._locations.find(key).location
        except LocationError:
            return None
        leader = self._node(key, location.leader) if location.leader is not None and not location.gone else None
        followers = [self._node(key, each) for each in location.followers]
        return RouteAnswer(key.partition, location.version.epoch, location.version.term, leader, followers)

    def _node(self, key: Key, replica: Replica) -> NodeAnswer:
        front = self._locations.front_of(key, replica.instance)
        if self._networks and not leads_within(front, self._networks):
            front = ""
        return NodeAnswer(front, replica.zone, replica.instance)

    def _is_shown(self, key: Key) -> bool:
        """Whether it is of a keyspace that exists for the caller, or of none."""
        return not key.keyspace or key.keyspace in self._spaces

    def refresh(self, keyspace: str, partition: int, server: str, *, flush: bool) -> RefreshAnswer:
        """Has entries refreshed now: one, those of a keyspace, those that name the address ``server``, or all.

        ``flush``: forgets them instead; they are asked for anew when they are used.
        """
        self._locations.follow()
        cache = self._locations.cache

        def is_meant(key: Key) -> bool:
            entry = cache.entry(key)
            named = not server or (
                entry is not None and any(each.address == server for each in entry.location.replicas)
            )
            return named and self._is_shown(key) and keyspace in ("", key.keyspace) and partition in (-1, key.partition)

        if flush:
            return RefreshAnswer(self._locations.flush(is_meant))
        meant = [each.location.key for each in cache.entries() if is_meant(each.location.key)]
        for key in meant:
            self._locations.renew(key)
        return RefreshAnswer(len(meant))

    def _space_of(self, keyspace: str, partition: int) -> RowSpace | TableSpace:
        space = self._spaces.get(keyspace)
        if space is None:
            raise ReadError("unknown_keyspace", f"no keyspace {keyspace!r} is served here")
        if not 0 <= partition < space.layout.partitions:
            raise ReadError("unknown_path", f"{keyspace} has the partitions 0 to {space.layout.partitions - 1}")
        return space

    def _instances(self) -> list[PlaceAnswer]:
        """Each instance that any location names."""
        self._locations.follow()
        down = self._locations.cache.down
        shown = {
            each
            for entry in self._locations.cache.entries()
            if not entry.location.key.is_system and self._is_shown(entry.location.key)
            for each in entry.location.replicas
        }
        named = sorted({(each.address, each.zone, each in down) for each in shown})
        return [
            PlaceAnswer("", 0, "instance", address, zone=zone, why="does not answer" if away else "announced")
            for address, zone, away in named
        ]

    def _place(self, location: Location) -> PlaceAnswer:
        key = location.key
        why = explain(self._locations.cache, key, self._locations.clock())
        leader = location.leader or Replica("")
        followers = [each.address for each in location.followers]
        version = location.version
        of = version.epoch, version.term, leader.instance, leader.zone
        return PlaceAnswer(key.keyspace, key.partition, str(key.kind), leader.address, *of, followers, why)


def _places(token: str, epochs: Mapping[str, int], seen: Vector) -> dict[str, ShardPlace]:
    """Of each shard in the watermarks ``token`` or ``epochs`` its newest epoch, also if only the session has it."""
    places = {shard: ShardPlace(epoch, "") for shard, epoch in epochs.items()}
    for shard, (epoch, position) in Vector.parse(token).items():
        if epoch >= epochs.get(shard, epoch):
            places[shard] = ShardPlace(epoch, str(position))
    for shard, (epoch, position) in seen.items():
        if shard in places and epoch > places[shard].epoch:
            places[shard] = ShardPlace(epoch, str(position))
    return places


def explain(cache: LocationCache, key: Key, now: float) -> str:
    """Why a location is told as it is: who said it, when, and what is doubtful about it. One line."""
    entry = cache.entry(key)
    if entry is None:
        return "known not to exist" if cache.absences.holds(key, now) else "nobody has told it yet"
    parts = [f"said by {_WHO[entry.origin]}"]
    if entry.renewed_at > NEVER and entry.origin is not Origin.FIXED:
        parts.append(f"confirmed {max(now - entry.renewed_at, 0):.1f} s ago")
    if entry.location.gone:
        parts.append("its owner has withdrawn")
    elif entry.doubted_at <= now:
        parts.append("in doubt")
    if entry.location.leader in cache.down:
        parts.append("its owner does not answer")
    return ", ".join(parts)
