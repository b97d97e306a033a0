"""The topic of announcements as the location cache's directory: what it told, and what it tells when it is read now."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from serving.locations.places import Key, Kind, Location, Replica, Version
from serving.locations.queues import Batch
from stream.kafka.locations import Announcement, LocationsReader
from stream.kafka.topics import dead_letter_topic, events_topic, locations_topic, topic_leaders

READ_S: Final = 1.5
"""How long a read of the topic to its end may take; a front's read waits no longer than `DEADLINE_S` for it."""


class TopicDirectory:
    """A `serving.locations.refreshing.Directory` over the announcements that a `LocationsReader` follows."""

    def __init__(self, reader: LocationsReader) -> None:
        self._reader = reader

    @property
    def change(self) -> int:
        """See `Directory`."""
        return self._reader.change

    def changed(self, after: int) -> tuple[int, Sequence[Location]]:
        """See `Directory`."""
        change, places = self._reader.changed_after(after)
        found = [self._location(keyspace, partition, at) for keyspace, partition, at in places]
        return change, [each._replace(anew=self._is_anew(each.key, after)) for each in found if each is not None]

    def _is_anew(self, key: Key, after: int) -> bool:
        return self._reader.anew_of(key.keyspace, key.partition) > after

    async def read(self, batch: Batch) -> Mapping[Key, Location]:
        """See `Directory`. One question to Kafka serves the batch. Raises `KafkaUnreachable`, `KafkaRequestError`."""
        if batch.kind in (Kind.PARTITION, Kind.KEYSPACE):
            await asyncio.to_thread(self._reader.catch_up, READ_S)
            read = self._keyspace if batch.kind is Kind.KEYSPACE else self._partition
            found = ((key, read(key)) for key in batch.keys)
            return {key: location for key, location in found if location is not None}
        topic = self._topic(batch)
        leaders = await asyncio.to_thread(topic_leaders, self._reader.kafka, [topic], timeout_s=READ_S)
        return {
            key: Location(key, Version(), Replica(leaders[topic, key.partition]), place=self.change)
            for key in batch.keys
            if (topic, key.partition) in leaders
        }

    def front_of(self, key: Key, instance: str) -> str:
        """URL of the read API in an instance that holds a partition; "" if it has none, or is not announced."""
        owner = self._reader.standing(key.keyspace, key.partition)
        announced = [*([owner] if owner is not None else []), *self._reader.followers(key.keyspace, key.partition)]
        return next((each.front for each in announced if each.instance == instance), "")

    def _topic(self, batch: Batch) -> str:
        kafka = self._reader.kafka
        if batch.kind is Kind.LOCATIONS:
            return locations_topic(kafka)
        of_keyspace = dead_letter_topic if batch.kind is Kind.DEAD_LETTERS else events_topic
        return of_keyspace(kafka, batch.keyspace)

    def _partition(self, key: Key) -> Location | None:
        return self._location(key.keyspace, key.partition, self._reader.change_of(key.keyspace, key.partition))

    def _location(self, keyspace: str, partition: int, place: int) -> Location | None:
        owner = self._reader.standing(keyspace, partition)
        followers = tuple(_replica(each) for each in self._reader.followers(keyspace, partition))
        key = Key(keyspace, partition)
        if owner is None:
            return Location(key, Version(), None, followers, place=place) if followers else None
        version = Version(owner.generation, owner.swap, owner.instance)
        return Location(key, version, _replica(owner), followers, owner.gone, place)

    def _keyspace(self, key: Key) -> Location | None:
        """All that hold something of a keyspace; the owner of its first partition is asked first."""
        owners = self._reader.owners(key.keyspace)
        if not owners:
            return None
        first, *others = _distinct(
            each
            for partition in sorted(owners)
            for each in (owners[partition], *self._reader.followers(key.keyspace, partition))
        )
        return Location(key, Version(), first, tuple(others), place=self.change)


def _replica(announced: Announcement) -> Replica:
    return Replica(announced.address, announced.topic_id, announced.zone, announced.instance)


def _distinct(announced: Iterable[Announcement]) -> list[Replica]:
    return list(dict.fromkeys(map(_replica, announced)))
