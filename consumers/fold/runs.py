"""Which messages are folded together by column: frames, and the markers and state records between them. Pure.

A frame changes entries and its shard's last ordinal. A marker changes no entry, and of that ordinal it only takes the
maximum, unless it is rejected. So the markers of a run are folded one after the other, as if no frame were between
them, and its frames together after that: a frame's rows must only rise above the markers before it. Of markers that
follow each other from the watermark on, and say nothing but where they stand, the next one undoes all that each
changes: only the first and the last are folded. A state record changes nothing.

Messages that come in one text (`Messages`) are looked at all together, others one by one: the same runs come out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias, overload

import numpy as np

from consumers.fold.markers import fold_marker
from consumers.fold.shards import is_succeeded
from consumers.fold.state import Changes, Head, Lineage, PartitionState
from stream.wire.checks import check
from stream.wire.codec import HEADER_SIZE, current_schema, decode, headers
from stream.wire.columns import Text, begin_with, join_text, words_of
from stream.wire.frames import LONG_MAX
from stream.wire.single import Numbers, marker_form, read_marker, single_prefix
from tokens import Position
from tokens.errors import FreshetError

RUN_BYTES_MAX: Final = 4 << 20
_MARKER: Final = current_schema("Marker").header
_STATES: Final = headers("SourceState")
_LOW_WATER_MAX: Final = 1_024
"""Characters. To look for a longer one costs more than markers do."""

Record: TypeAlias = tuple[int, bytes | None]
"""Offset and value of a message."""


@dataclass(slots=True)
class Marks:
    """The markers of one shard in a run: index of each that moves the shard → its ordinal, and what they change."""

    ordinals: dict[int, int] = field(default_factory=dict)
    changes: list[Changes] = field(default_factory=list)

    def floors(self, lineage: Lineage, places: Numbers) -> Numbers:
        """What the rows of frames at ``places`` must rise above: the ordinals of the state and of markers before them.

        What is beyond 64 bits is above all rows too.
        """
        before = min(lineage.ordinal, LONG_MAX)
        if not self.ordinals:
            return np.full(len(places), before, np.int64)
        moves, ordinals = zip(*sorted(self.ordinals.items()), strict=True)
        risen = np.array([before, *(min(max(before, each), LONG_MAX) for each in ordinals)], np.int64)
        found: Numbers = risen[np.searchsorted(moves, places)]
        return found


@dataclass(slots=True)
class Frames:
    """The frames of a run, in order. ``places``: their indexes; ``joined``: the frames, if they are in one text."""

    shards: list[str] = field(default_factory=list)
    """Those that go on in the partition, each perhaps more than once,"""
    of: list[int] = field(default_factory=list)
    """and which of them each frame is of."""
    places: list[int] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    joined: Text | None = None

    def text(self) -> Text:
        """The frames in one text."""
        return join_text(self.values) if self.joined is None else self.joined

    def by_shard(self) -> dict[str, Numbers]:
        """Each shard that has frames here, and which ones."""
        of = np.array(self.of)
        return {self.shards[each]: np.flatnonzero(of == each) for each in sorted(set(self.of))}


@dataclass(slots=True)
class Run:
    """What may be folded together: ``size`` bytes of frames, and where markers are, by shard. ``end``: after it."""

    end: int
    size: int = 0
    frames: Frames = field(default_factory=Frames)
    markers: dict[str, list[int]] = field(default_factory=dict)


class Messages(Sequence[Record]):
    """Messages in one text, all with values, whose offsets rise.

    One that is asked for is cut out of it, unless ``values`` are given.
    """

    def __init__(self, offsets: Numbers, joined: Text, values: Sequence[bytes] | None = None) -> None:
        self._offsets, self._joined, self._values = offsets, joined, values
        self._looked: tuple[dict[bytes, str], Numbers, Numbers, Numbers] | None = None

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, place: int) -> Record: ...
    @overload
    def __getitem__(self, place: slice) -> Messages: ...
    def __getitem__(self, place: int | slice) -> Record | Messages:
        text, starts, ends = self._joined
        values = self._values
        if isinstance(place, slice):
            some = None if values is None else values[place]
            return Messages(self._offsets[place], Text(text, starts[place], ends[place]), some)
        value = text[starts[place] : ends[place]] if values is None else values[place]
        return int(self._offsets[place]), value

    @property
    def size(self) -> int:
        """Bytes of all values."""
        _, starts, ends = self._joined
        return int((ends - starts).sum())

    def gather(self, known: dict[bytes, str], at: int) -> Run:
        """As `gather`."""
        kinds, others, before = self._look(known)
        if kinds[at] < 0:
            return Run(at)
        ends = [len(self), int(np.searchsorted(before, before[at] + RUN_BYTES_MAX))]
        end = min(ends + others[np.searchsorted(others, at) :][:1].tolist())
        some, (text, starts, stops) = kinds[at:end], self._joined
        places = at + np.flatnonzero(np.diff(before[at : end + 1]))
        joined = Text(text, starts[places], stops[places])
        frames = Frames(list(known.values()), kinds[places].tolist(), places.tolist(), joined=joined)
        run = Run(end, int(before[end] - before[at]), frames)
        for kind, (begin, shard) in enumerate(known.items()):
            if not _is_frame(begin) and len(found := np.flatnonzero(some == kind)):
                run.markers[shard] = (at + found).tolist()
        return run

    def _look(self, known: dict[bytes, str]) -> tuple[Numbers, Numbers, Numbers]:
        """Which of ``known`` each message begins with, or a state record; where others are; bytes of frames before."""
        if self._looked is not None and self._looked[0] == known:
            return self._looked[1:]
        text, starts, stops = self._joined
        words, sizes = words_of(text), stops - starts
        kinds, left = np.full(len(self), -1), np.arange(len(self))
        for kind, begin in [*enumerate(known), *((len(known), each) for each in _STATES)]:
            found = begin_with(begin, words, starts[left], sizes[left])
            kinds[left[found]] = kind
            left = left[~found]
        is_frame = np.array([*map(_is_frame, known), False, False])[kinds]  # the last one: -1, another message
        before = np.concatenate(([0], np.cumsum(np.where(is_frame, sizes, 0))))
        self._looked = known, kinds, left, before
        return kinds, left, before


def bytes_of(records: Sequence[Record]) -> int:
    """Of the values of messages."""
    if isinstance(records, Messages):
        return records.size
    return sum(len(value) for _, value in records if value is not None)


def gather(head: Head, records: Sequence[Record], at: int) -> Run:
    """The run that begins at ``records[at]``. It ends before the first message that is of another kind or shard."""
    known = _known(head)
    if isinstance(records, Messages):
        return records.gather(known, at)
    numbers = {begin: number for number, begin in enumerate(known)}
    run = Run(len(records), frames=Frames(list(known.values())))
    frames, size, after = run.frames, 0, head.offset
    prefix: bytes | tuple[()] = ()
    number = 0
    for place in range(at, len(records)):
        offset, value = records[place]
        if value is None or offset < after or size >= RUN_BYTES_MAX:
            run.end = place
            break
        after = offset + 1
        if not value.startswith(prefix):  # often it is of the kind and lineage of the one before it
            found = next(filter(value.startswith, known), None)
            if found is not None:
                prefix, number = found, numbers[found]
            elif value[:HEADER_SIZE] in _STATES:
                continue
            else:
                run.end = place
                break
        if value.startswith(_MARKER):
            run.markers.setdefault(frames.shards[number], []).append(place)
            continue
        frames.of.append(number)
        frames.places.append(place)
        frames.values.append(value)
        size += len(value)
    run.size = size
    return run


def _is_frame(begin: bytes) -> bool:
    """Whether messages that begin so, of those that `_known` knows, are frames; if not they are markers."""
    return not begin.startswith(_MARKER)


def _known(head: Head) -> dict[bytes, str]:
    """How the frames of each lineage begin, and how its markers do → its shard."""
    known = {}
    for shard, lineage in head.lineages.items():
        if not is_succeeded(head, shard, lineage.epoch):
            prefix = single_prefix(shard, lineage.epoch)
            known[prefix] = shard
            known[_MARKER + prefix[HEADER_SIZE:]] = shard
    return known


def fold_markers(head: Head, records: Sequence[Record], run: Run) -> tuple[dict[str, Marks], int]:
    """What the markers of ``run`` change, by shard, and the index of the first that must be folded alone, or its end.

    Alone: what can't be read, what is rejected, and what needs a newer Freshet. Nothing is said of the others then.
    """
    state = PartitionState(head.copy(), lambda _: None)
    marks = {shard: Marks() for shard in run.markers}
    after: set[int] = set()
    left: list[tuple[int, str]] = []
    for shard, places in run.markers.items():
        ordinals = _passed_over(head, shard, (records[place][1] or b"" for place in places)) if places[3:] else []
        end = len(ordinals) + 1
        if ordinals:
            marks[shard].ordinals.update(zip(places[1:end], ordinals, strict=True))
            after.add(places[end])
        left += [(place, shard) for place in (places[0], *places[end:])]
    for place, shard in sorted(left):
        offset, value = records[place]
        try:
            name, marker = decode(value or b"")
            check(name, marker)
            if place in after:
                lineage = state.head.lineages[shard]
                state.head.lineages[shard] = lineage._replace(continuity=marker["previous"])  # as after the last one
            changes = fold_marker(state.head, offset + 1, marker)
        except (FreshetError, ValueError, KeyError, TypeError, IndexError, OverflowError, struct.error):
            return {}, place
        if changes.rejections:
            return {}, place
        state.apply(changes)
        marks[shard].changes.append(changes)
        if shard in changes.lineages:
            marks[shard].ordinals[place] = changes.lineages[shard].ordinal
    return marks, run.end


def _passed_over(head: Head, shard: str, values: Iterable[bytes]) -> list[int]:
    """The ordinals of markers of which nothing is left after the next one: from the second of ``values`` on.

    Each follows the one before it, and so does the next. None is below the watermark, where a marker moves no position
    and one that links nothing leaves the chain as it is. They end no void, and say what is known of low-water.
    """
    lineage = head.lineages[shard]
    waits = any(scope[1] == shard for scope in head.waiting)
    if waits or not head.layout or not 0 < len(lineage.low_water) <= _LOW_WATER_MAX:
        return []
    form = marker_form(shard, lineage.epoch, lineage.low_water, head.layout)
    found: list[int] = []
    ordinal, continuity = lineage.watermark_ordinal, None
    for value in values:
        mark = read_marker(form, value)
        if mark is None or mark.ordinal < ordinal or continuity not in (None, mark.previous):
            break
        try:
            Position.parse(mark.position)
        except FreshetError:
            break
        ordinal, continuity = mark.ordinal, mark.continuity
        found.append(ordinal)
    return found[1:-1]
