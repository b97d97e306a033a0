"""The fold of many row frames in one step, column by column. Pure; called by `consumers.fold.messages` only.

It takes what needs no decision: rows whose ordinals rise, in frames that `stream.wire.columns` reads, and the markers
between them (`consumers.fold.runs`). Where shards share the partition without a map, the keys of a run are looked up
together, and none may have another shard's entry. All else is left to the plain fold, which makes the same state of it.

Entries are not built here. A key maps to its row, and `RowEntries` builds the bytes when they are read or written: most
rows of a busy key never are (docs/decisions/0019-entries-in-columns.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from operator import methodcaller
from typing import Any, Final, TypeAlias

import numpy as np

from consumers.fold.entry import ABSENT, PREFIX, VALUE
from consumers.fold.runs import Record, fold_markers, gather
from consumers.fold.shards import has_own_keys, is_succeeded
from consumers.fold.state import Changes, Head, Lineage, PartitionState, Void
from stream.wire.columns import Columns, read_columns
from stream.wire.keys import SEPARATOR
from stream.wire.single import Numbers, single_prefix

RUN_BYTES_MIN: Final = 48 * 1024
"""Frames of fewer bytes together fold faster row by row."""
Kinds: TypeAlias = Sequence[int] | None
"""The kind of each of several rows; None: all have values."""


class EntryColumns:
    """Builds the entries of rows of one lineage."""

    def __init__(self, columns: Columns, shard: str, epoch: int) -> None:
        self.shard = f"{shard}\0".encode()
        """How the tag of each entry begins,"""
        self.begin = bytes(PREFIX.size) + self.shard
        """As an entry, up to there, with nothing in front of the tag."""
        self.array_bytes = columns.array_bytes
        """What it holds in memory besides the frames."""
        self.place = f"{shard}\0{epoch}\0".encode()
        """and the same up to its GTID."""
        self.columns, self.text = columns, columns.text

    def entry(self, row: int) -> bytes:
        """The entry of one row."""
        columns, text = self.columns, self.columns.text
        transaction, image = columns.transactions[row], int(columns.image_starts[row])
        start, number = int(columns.gtid_starts[transaction]), int(columns.gtid_numbers[transaction])
        gtid = text[start : start + int(columns.gtid_sizes[transaction])]
        tag = self.place + gtid + (b"%d" % number if number >= 0 else b"")
        head = PREFIX.pack(columns.operations[row], columns.ordinals[row], columns.timestamps[transaction], len(tag))
        return head + tag + text[image : image + int(columns.image_sizes[row])]

    def images(self, rows: Sequence[int] | Numbers) -> tuple[Kinds, list[bytes]]:
        """Kind and image of several rows."""
        columns, text = self.columns, self.columns.text
        at = np.asarray(rows, np.int64)
        starts = columns.image_starts[at]
        ends = (starts + columns.image_sizes[at]).tolist()
        images = [text[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        kinds = columns.operations[at]
        return (None if (kinds == VALUE).all() else kinds.tolist()), images

    def absent(self) -> Any:
        """Whether each row is a tombstone; None if none is."""
        found = self.columns.operations == ABSENT
        return found if found.any() else None

    @cached_property
    def prefix(self) -> bytes | None:
        """What stands before the number in all GTIDs; None if there is no such text."""
        columns = self.columns
        if columns.gtid_numbers.min() < 0:
            return None
        firsts = np.flatnonzero(np.diff(columns.gtid_starts, prepend=-1))  # a frame has one
        starts = columns.gtid_starts[firsts]
        spans = zip(starts.tolist(), (starts + columns.gtid_sizes[firsts]).tolist(), strict=True)
        found = {columns.text[start:end] for start, end in spans}
        return found.pop() if len(found) == 1 else None


class RowEntries(Mapping[bytes, bytes]):
    """Key → entry. The last row of a key counts."""

    def __init__(self, parts: list[tuple[list[bytes], EntryColumns]]) -> None:
        """``parts``: of each lineage, the keys of all rows, and what builds their entries."""
        self.parts = parts

    @cached_property
    def _rows(self) -> dict[bytes, tuple[EntryColumns, int]]:
        return {key: (built, row) for keys, built in self.parts for row, key in enumerate(keys)}

    def __getitem__(self, key: bytes) -> bytes:
        built, row = self._rows[key]
        return built.entry(row)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def fold_columns(state: PartitionState, records: Sequence[Record], at: int) -> tuple[Changes | None, int]:
    """Folds the run of frames and markers that begins at ``records[at]``: its changes, and the index after it.

    Without changes if they can't be folded this way, or too few to be worth it; the index is where the next try may be.
    """
    head = state.head
    run = gather(head, records, at)
    later = at + (run.end - at + 1) // 2  # so a message of another form costs its run a few tries, not one each
    if run.size < RUN_BYTES_MIN:
        return None, max(run.end, at + 1)
    marked, unread = fold_markers(head, records, run)
    if unread < run.end:
        return (None, later) if unread == at else fold_columns(state, records[:unread], at)
    parts, last = [], {}
    for shard, frames in run.frames.items():
        lineage = frames.lineage
        begin = len(single_prefix(shard, lineage.epoch))
        columns = read_columns(frames.values, begin, frames.floors(shard, marked))
        read = 0 if columns is None else columns.frames
        if read < len(frames.values):
            unread = min(unread, frames.places[read])
        if columns is not None:
            parts.append((columns.keys(), EntryColumns(columns, shard, lineage.epoch)))
            last[shard] = int(columns.ordinals[-1])
    if unread == at:
        return None, later
    if unread < run.end and len(run.frames) > 1:
        return fold_columns(state, records[:unread], at)
    if len(head.lineages) > 1 and not _are_apart(
        state, parts, is_mapped=all(has_own_keys(head, each) for each in last)
    ):
        return None, later
    changes = Changes(records[unread - 1][0] + 1, RowEntries(parts), messages=unread - at)
    return _moved(head, changes, [each for place, each in marked if place < unread], last), unread


def _moved(head: Head, changes: Changes, marked: list[Changes], last: dict[str, int]) -> Changes:
    """``changes`` with what the markers change, and the last ordinals of rows by shard."""
    lineages: dict[str, Lineage] = {}
    voids: dict[tuple[str, str], Void] = {}
    layout = ""
    for each in marked:
        lineages |= each.lineages
        voids |= each.voids
        layout = each.layout or layout
    for shard, ordinal in last.items():
        lineage = lineages.get(shard) or head.lineages[shard]
        lineages[shard] = lineage._replace(ordinal=max(lineage.ordinal, ordinal))
    return changes._replace(lineages=lineages, voids=voids, layout=layout)


def _dropped_by_others(head: Head, shard: str) -> tuple[bytes, ...]:
    """How keys begin that another shard may have deleted without leaving an entry."""
    return tuple(
        table.encode() + SEPARATOR
        for (table, other), line in head.dropped.items()
        if other != shard and not is_succeeded(head, other, line.epoch)
    )


def _are_apart(state: PartitionState, parts: list[tuple[list[bytes], EntryColumns]], *, is_mapped: bool) -> bool:
    """Whether each key has an entry of its own shard or none, here and before. Then no two shards are to be ordered.

    ``is_mapped``: only here, since no entry of before counts if it is another shard's.
    """
    if is_mapped:
        seen: set[bytes] = set()
        for keys, _ in parts:
            if not seen.isdisjoint(keys):
                return False
            seen.update(keys)
        return True
    new: set[bytes] = set()
    count = 0
    learnt = []
    for keys, built in parts:
        own = dict.fromkeys(keys)
        lined = _dropped_by_others(state.head, built.shard[:-1].decode())
        if lined and any(map(methodcaller("startswith", lined), own)):
            return False
        unknown = state.writers.unknown(own, built.shard)
        if unknown is None:
            return False
        learnt.append((unknown, built.shard))
        new.update(unknown)
        count += len(unknown)
        if len(new) < count:
            return False
        for begin in state.begins(unknown) if unknown else ():
            if begin is not None and not begin.startswith(built.shard, PREFIX.size):
                return False
    for unknown, shard in learnt:
        state.writers.learn(unknown, shard)
    return True
