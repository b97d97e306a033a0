"""Where a source reads a connector's topics again after a restart. It is kept in the source's state. Pure."""

from __future__ import annotations

import zlib
from base64 import b85decode, b85encode
from dataclasses import dataclass, field
from typing import Final

import msgspec

PLACES: Final = "debezium"
"""The annotation in the source's state."""
_PLAIN_MAX: Final = 16_000
"""Characters of words that are not compressed, so that an older version reads them. Longer ones shrink to a third."""
_COMPRESSED: Final = "zlib:"


@dataclass(slots=True)
class Places:
    """``offsets``: (topic, partition) → the first message that may belong to something that is not published.

    They may be earlier than need be: what is published is passed over by its GTID. ``snapshot``: where in the binlog
    the connector's last snapshot was. ``connector``: the fingerprint of its choice of tables. ``told``: where the last
    commit ends that was read in the log's order, and ``storage``: what the tables' rows were stored in (PostgreSQL).
    """

    connector: int
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    snapshot: str = ""
    told: int = 0
    storage: int = 0

    def words(self, prefix: str) -> str:
        """The text of the annotation. ``prefix``: the beginning of all topics, which it leaves out."""
        shown: dict[str, dict[int, int]] = {}
        for (topic, partition), offset in sorted(self.offsets.items()):
            shown.setdefault(topic.removeprefix(prefix), {})[partition] = offset
        text: dict[str, object] = {
            "version": 1,
            "connector": self.connector,
            "snapshot": self.snapshot,
            "offsets": shown,
        }
        if self.told or self.storage:
            text |= {"told": self.told, "storage": self.storage}
        plain = msgspec.json.encode(text)
        return plain.decode() if len(plain) <= _PLAIN_MAX else _COMPRESSED + b85encode(zlib.compress(plain)).decode()


class _Words(msgspec.Struct):
    version: int
    connector: int
    snapshot: str
    offsets: dict[str, dict[int, int]]
    told: int = 0
    storage: int = 0


_words = msgspec.json.Decoder(_Words)


def read_places(words: str, prefix: str) -> Places | None:
    """The places of an annotation; None if there is none, or one of another version."""
    try:
        plain = words.encode()
        if words.startswith(_COMPRESSED):
            plain = zlib.decompress(b85decode(words.removeprefix(_COMPRESSED)))
        found = _words.decode(plain)
    except (ValueError, zlib.error):
        return None
    if found.version != 1:
        return None
    offsets = {
        (prefix + topic, partition): offset
        for topic, each in found.offsets.items()
        for partition, offset in each.items()
    }
    return Places(found.connector, offsets, found.snapshot, found.told, found.storage)
