"""The location cache as text, for the file that lets a front route at once after a start without Kafka. Pure.

One JSON object a line: a header, then one location each. What is read back is unverified: it is told, and refreshed as
soon as it is used. Its addresses may be another's by now; each request names the topic that it is for, so that one
refuses it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from serving.locations.places import Key, Location, Replica, Version

FORMAT: Final = 1


class _Header(msgspec.Struct):
    format: int
    cluster: str
    """Kafka's id of the topic of announcements; "" if it was not known."""


class _Line(msgspec.Struct):
    """A partition. Unknown fields are ignored."""

    keyspace: str
    partition: int
    epoch: int
    term: int
    instance: str
    leader: Replica | None
    followers: list[Replica] = []
    gone: bool = False


_header, _line = msgspec.json.Decoder(_Header), msgspec.json.Decoder(_Line)


class Snapshot(NamedTuple):
    """What a file holds."""

    cluster: str
    locations: list[Location]


def encode_snapshot(cluster: str, locations: Iterable[Location]) -> bytes:
    """The file's text. Only partitions are kept: the system's entities are asked for anew."""
    lines = [msgspec.json.encode(_Header(FORMAT, cluster))]
    for each in locations:
        if not each.key.is_system:
            place = (each.key.keyspace, each.key.partition, *each.version)
            lines.append(msgspec.json.encode(_Line(*place, each.leader, list(each.followers), each.gone)))
    return b"\n".join(lines) + b"\n"


def decode_snapshot(text: bytes) -> Snapshot:
    """Reads what `encode_snapshot` wrote. Raises ``ValueError`` for anything else, a later format, or a torn file."""
    if not text.endswith(b"\n"):
        raise ValueError("it ends amid a line")
    first, *lines = text.splitlines()
    header = _header.decode(first)
    if header.format != FORMAT:
        raise ValueError(f"it has the format {header.format}, this version reads {FORMAT}")
    return Snapshot(header.cluster, [_location(_line.decode(line)) for line in lines])


def _location(line: _Line) -> Location:
    version = Version(line.epoch, line.term, line.instance)
    return Location(Key(line.keyspace, line.partition), version, line.leader, tuple(line.followers), line.gone)
