"""Locations for tests."""

from __future__ import annotations

from serving.locations.places import Key, Location, Replica, Version

KEY = Key("shop", 0)


def at(name: str, zone: str = "", topic_id: str = "t") -> Replica:
    """The instance ``name``, at the address ``name:1``."""
    return Replica(f"{name}:1", topic_id, zone, name)


def led_by(
    name: str, epoch: int = 1, *followers: str, key: Key = KEY, term: int = 0, topic_id: str = "t", place: int = 0
) -> Location:
    """A location whose leader is ``name``."""
    leader = at(name, topic_id=topic_id)
    return Location(key, Version(epoch, term, name), leader, tuple(map(at, followers)), place=place)
