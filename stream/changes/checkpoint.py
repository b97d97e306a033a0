"""Checkpoints: where a change stream goes on, as opaque text. Pure.

A checkpoint says two things. ``offsets``: everything that was not given out yet lies at or after them. ``places``: of
each shard the last event that was given out, so that nothing behind the offsets is given out again. Together they go
on exactly where a stream ended, also in the middle of what had been read.

Offsets lie right behind a marker, and ``anchors`` has a digest of it. Kafka may lose the end of a partition and fill it
again. Then another message is there, or none, and what was lost can't be passed over unnoticed.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import msgspec
import xxhash

from tokens.errors import FreshetError

_PREFIX: Final = "c2."
"""The version. A later one gets another number; this one stays readable."""
_WITHOUT_ANCHORS: Final = "c1."
"""An earlier version, still written where no anchor is known."""
_CHECK_BYTES: Final = 4
TEXT_MAX: Final = 64 * 1024
_fields = msgspec.msgpack.Decoder(tuple[str, str, list[int], dict[str, tuple[int, int]]])
_fields_with_anchors = msgspec.msgpack.Decoder(tuple[str, str, list[int], dict[str, tuple[int, int]], list[int]])


class Place(NamedTuple):
    """An event's place in its shard. A later epoch is later, whatever the ordinals."""

    epoch: int
    ordinal: int


NOWHERE: Final = Place(0, 0)
"""Before every event."""


class CheckpointError(FreshetError, ValueError):
    """A text that is no checkpoint, or one of something else; code ``bad_checkpoint``."""

    code = "bad_checkpoint"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where the stream of a keyspace goes on. ``topic_id``: Kafka's own id. ``offsets``: one for each partition.

    ``anchors``: partition → `anchor_of` the message before its offset; 0: it is not known. Empty: none is.
    """

    keyspace: str
    topic_id: str
    offsets: tuple[int, ...]
    places: Mapping[str, Place] = field(default_factory=dict)
    anchors: tuple[int, ...] = ()

    def __str__(self) -> str:
        fields: tuple[object, ...] = (self.keyspace, self.topic_id, self.offsets, self.places)
        has_anchors = any(self.anchors)
        body = msgspec.msgpack.encode((*fields, self.anchors) if has_anchors else fields)
        return (_PREFIX if has_anchors else _WITHOUT_ANCHORS) + urlsafe_b64encode(_check(body) + body).decode().rstrip(
            "="
        )

    @staticmethod
    def is_text(text: str) -> bool:
        """Whether ``text`` means to be a checkpoint."""
        return text.startswith((_PREFIX, _WITHOUT_ANCHORS))

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """The checkpoint that ``str()`` wrote as ``text``. Raises `CheckpointError`."""
        if not cls.is_text(text) or len(text) > TEXT_MAX:
            raise _refusal("it does not begin like one" if len(text) <= TEXT_MAX else "it is too long")
        try:
            raw = urlsafe_b64decode(text[len(_PREFIX) :].encode("ascii") + b"==")
            body = raw[_CHECK_BYTES:]
            if raw[:_CHECK_BYTES] != _check(body):
                raise ValueError("its characters were changed or cut off")
            anchors: list[int] = []
            if text.startswith(_PREFIX):
                keyspace, topic_id, offsets, places, anchors = _fields_with_anchors.decode(body)
            else:
                keyspace, topic_id, offsets, places = _fields.decode(body)
            if anchors and len(anchors) != len(offsets):
                raise ValueError("it has not an anchor for each partition")
        except (Base64Error, ValueError) as error:
            raise _refusal(str(error)) from error
        named = {shard: Place(*each) for shard, each in places.items()}
        return cls(keyspace, topic_id, tuple(offsets), named, tuple(anchors))

    def at_or_past(self, places: Mapping[str, Place]) -> Checkpoint:
        """This checkpoint with each shard at least at its place in ``places``: the offsets are before those anyway."""
        later = {shard: place for shard, place in places.items() if place > self.places.get(shard, NOWHERE)}
        return replace(self, places={**self.places, **later}) if later else self


def anchor_of(message: bytes) -> int:
    """The digest by which a message is known again."""
    return xxhash.xxh3_64_intdigest(message) or 1


def _check(body: bytes) -> bytes:
    return xxhash.xxh32_digest(body)


def _refusal(why: str) -> CheckpointError:
    return CheckpointError(f"this is no checkpoint: {why}", hint="send the checkpoint of an event unchanged")
