"""Which messages are folded together by column: frames, and the markers and state records between them. Pure.

A frame changes entries and its shard's last ordinal. A marker changes no entry, and of that ordinal it only takes the
maximum, unless it is rejected. So the markers of a run are folded one after the other, as if no frame were between
them, and its frames together after that: a frame's rows must only rise above the markers before it. A state record
changes nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np

from consumers.fold.markers import fold_marker
from consumers.fold.shards import is_succeeded
from consumers.fold.state import Changes, Head, Lineage, PartitionState
from stream.wire.checks import check
from stream.wire.codec import HEADER_SIZE, current_schema, decode, headers
from stream.wire.frames import LONG_MAX
from stream.wire.single import Numbers, single_prefix
from tokens.errors import FreshetError

RUN_BYTES_MAX: Final = 4 << 20
_MARKER: Final = current_schema("Marker").header
_STATES: Final = headers("SourceState")

Record: TypeAlias = tuple[int, bytes | None]
"""Offset and value of a message."""
Marked: TypeAlias = list[tuple[int, Changes]]
"""Index of each marker, and what it changes."""


@dataclass(slots=True)
class Frames:
    """The frames of one shard in a run. ``places``: their indexes."""

    lineage: Lineage
    places: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)

    def floors(self, shard: str, marked: Marked) -> Numbers:
        """The ordinal of each frame that its rows must rise above: of the state before, and of the markers before it.

        What is beyond 64 bits is above all rows too.
        """
        places, ordinals = [], [min(self.lineage.ordinal, LONG_MAX)]
        for place, changes in marked:
            moved = changes.lineages.get(shard)
            if moved is not None:
                places.append(place)
                ordinals.append(min(moved.ordinal, LONG_MAX))
        found: Numbers = np.array(ordinals, np.int64)[np.searchsorted(places, self.places)]
        return found


@dataclass(slots=True)
class Run:
    """What may be folded together: ``size`` bytes of frames by shard, and the indexes of markers. ``end``: after it."""

    end: int
    size: int = 0
    frames: dict[str, Frames] = field(default_factory=dict)
    markers: list[int] = field(default_factory=list)


def gather(head: Head, records: Sequence[Record], at: int) -> Run:
    """The run that begins at ``records[at]``. It ends before the first message that is of another kind or shard."""
    known = _known(head)
    run = Run(len(records))
    size, after = 0, head.offset
    prefix: bytes | tuple[()] = ()
    shard = ""
    for place in range(at, len(records)):
        offset, value = records[place]
        if value is None or offset < after or size >= RUN_BYTES_MAX:
            run.end = place
            break
        after = offset + 1
        if not value.startswith(prefix):  # often it is of the kind and lineage of the one before it
            found = next(filter(value.startswith, known), None)
            if found is not None:
                prefix, shard = found, known[found]
            elif value[:HEADER_SIZE] in _STATES:
                continue
            else:
                run.end = place
                break
        if not shard:
            run.markers.append(place)
            continue
        frames = run.frames.get(shard)
        if frames is None:
            frames = run.frames[shard] = Frames(head.lineages[shard])
        frames.places.append(place)
        frames.values.append(value)
        size += len(value)
    run.size = size
    return run


def _known(head: Head) -> dict[bytes, str]:
    """How the frames of each lineage begin → its shard; how its markers begin → no name, which no shard has."""
    known = {}
    for shard, lineage in head.lineages.items():
        if not is_succeeded(head, shard, lineage.epoch):
            prefix = single_prefix(shard, lineage.epoch)
            known[prefix] = shard
            known[_MARKER + prefix[HEADER_SIZE:]] = ""
    return known


def fold_markers(head: Head, records: Sequence[Record], run: Run) -> tuple[Marked, int]:
    """What the markers of ``run`` change, and the index of the first that must be folded alone; the run's end if none.

    Alone: what can't be read, what is rejected, and what needs a newer Freshet.
    """
    state = PartitionState(head.copy(), lambda _: None)
    marked: Marked = []
    for place in run.markers:
        offset, value = records[place]
        try:
            name, marker = decode(value or b"")
            check(name, marker)
            changes = fold_marker(state.head, offset + 1, marker)
        except (FreshetError, ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error):
            return marked, place
        if changes.rejections:
            return marked, place
        state.apply(changes)
        marked.append((place, changes))
    return marked, run.end
