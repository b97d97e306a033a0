"""The fold of many row frames in one step, column by column. Pure; `consumers.fold.messages` alone folds by it.

It takes what needs no decision: rows whose ordinals rise, in frames that `stream.wire.columns` reads, and the markers
between them (`consumers.fold.runs`). Where shards share the partition without a map, the keys of a run are looked up
together, and none may have another shard's entry. All else is left to the plain fold, which makes the same state of it.

Entries are not built here. A key maps to its row, and `RowEntries` builds the bytes when they are read or written: most
rows of a busy key never are (docs/decisions/0019-entries-in-columns.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, compress
from operator import methodcaller
from typing import Any, Final, TypeAlias

import numpy as np

from consumers.fold.entry import ABSENT, PREFIX, VALUE
from consumers.fold.runs import Frames, Marks, Messages, Record, fold_markers, gather
from consumers.fold.shards import has_own_keys, is_succeeded
from consumers.fold.state import Changes, Head, Lineage, PartitionState, Void
from stream.wire.columns import Columns, Floors, join_text, read_columns
from stream.wire.keys import SEPARATOR
from stream.wire.single import Numbers, single_prefix

RUN_BYTES_MIN: Final = 48 * 1024
"""Frames of fewer bytes together fold faster row by row."""
_NO_PREFIX: Final = bytes(PREFIX.size)
Kinds: TypeAlias = Sequence[int] | None
"""The kind of each of several rows; None: all have values."""


class EntryColumns:
    """Builds the entries of rows of some lineages."""

    def __init__(self, columns: Columns, lineages: Sequence[tuple[str, int]], of: Any = None) -> None:
        """``lineages``: shard and epoch of each; ``of``: of each row, which is its own. None: all are of the first."""
        self.columns, self.text, self.of = columns, columns.text, of
        self.shards = [f"{shard}\0".encode() for shard, _ in lineages]
        """How the tags of each lineage's entries begin,"""
        self.places = [f"{shard}\0{epoch}\0".encode() for shard, epoch in lineages]
        """and the same up to the position."""
        self.array_bytes = columns.array_bytes + (0 if of is None else of.nbytes)
        """What it holds in memory besides the frames."""

    def lineage(self, row: int) -> int:
        """The number of the row's lineage."""
        return 0 if self.of is None else int(self.of[row])

    def begin(self, row: int) -> bytes:
        """The entry of one row up to its shard, with nothing in front of the tag."""
        return _NO_PREFIX + self.shards[self.lineage(row)]

    def entry(self, row: int) -> bytes:
        """The entry of one row."""
        columns, text = self.columns, self.columns.text
        transaction, image = columns.transactions[row], int(columns.image_starts[row])
        start, number = int(columns.position_starts[transaction]), int(columns.position_numbers[transaction])
        position = text[start : start + int(columns.position_sizes[transaction])]
        tag = self.places[self.lineage(row)] + position + (b"%d" % number if number >= 0 else b"")
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
    def leads(self) -> list[bytes] | None:
        """What stands before the number in the tags of each lineage; None if there is no such text for one of them."""
        columns = self.columns
        if columns.position_numbers.min() < 0:
            return None
        firsts = np.flatnonzero(np.diff(columns.position_starts, prepend=-1))  # a frame has one
        starts = columns.position_starts[firsts]
        of = [0] * len(firsts) if self.of is None else self.of[np.searchsorted(columns.transactions, firsts)].tolist()
        spans = zip(of, starts.tolist(), (starts + columns.position_sizes[firsts]).tolist(), strict=True)
        found = sorted({(lineage, columns.text[start:end]) for lineage, start, end in spans})
        if len(found) > len(self.places):
            return None
        return [place + prefix for place, (_, prefix) in zip(self.places, found, strict=True)]


class RowEntries(Mapping[bytes, bytes]):
    """Key → entry. The last row of a key counts."""

    def __init__(self, keys: list[bytes], built: EntryColumns) -> None:
        """``keys``: of all rows, of which there is one; ``built``: what builds their entries."""
        self.keys_of_rows, self.columns = keys, built

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        return {key: row for row, key in enumerate(self.keys_of_rows)}

    def __getitem__(self, key: bytes) -> bytes:
        return self.columns.entry(self._rows[key])

    def keys_of(self, lineage: int) -> Iterator[bytes]:
        """The keys of the rows of one lineage."""
        of = self.columns.of
        return iter(self.keys_of_rows) if of is None else compress(self.keys_of_rows, (of == lineage).tolist())

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __bool__(self) -> bool:
        return True  # to count its keys is dear


def fold_columns(state: PartitionState, records: Sequence[Record], at: int) -> tuple[Changes | None, int]:
    """Folds the run of frames and markers that begins at ``records[at]``: its changes, and the index after it.

    Without changes if they can't be folded this way, or too few to be worth it; the index is where the next try may be.
    """
    head = state.head
    run = gather(head, records, at)
    later = at + (run.end - at + 1) // 2  # so a message of another form costs its run a few tries, not one each
    if run.size < RUN_BYTES_MIN:
        return None, max(run.end, at + 1)
    marks, unread = fold_markers(head, records, run)
    if unread < run.end:
        return (None, later) if unread == at else fold_columns(state, records[:unread], at)
    own, places = run.frames.by_shard(), run.frames.places
    columns = _read(head, run.frames, own, marks)
    read = 0 if columns is None else len(columns.rows)
    if columns is None or read < len(places):
        return (None, later) if places[read] == at else fold_columns(state, records[: places[read]], at)
    entries = RowEntries(columns.keys(), _built(head, columns, own))
    if not all(has_own_keys(head, shard) for shard in own) and not _are_apart(state, entries, own):
        return None, later
    ends = np.cumsum(columns.rows)
    last = {shard: int(columns.ordinals[ends[some[-1]] - 1]) for shard, some in own.items()}
    changes = Changes(records[unread - 1][0] + 1, entries, messages=unread - at)
    return _moved(head, changes, [each for of_shard in marks.values() for each in of_shard.changes], last), unread


def _read(head: Head, frames: Frames, own: Mapping[str, Numbers], marks: Mapping[str, Marks]) -> Columns | None:
    """The columns of all frames up to the first that can't be read. ``own``: which are each shard's."""
    begins, least, before = np.empty((3, len(frames.places)), np.int64)
    places = np.array(frames.places)
    for shard, some in own.items():
        lineage = head.lineages[shard]
        begins[some] = len(single_prefix(shard, lineage.epoch))
        least[some] = marks.get(shard, Marks()).floors(lineage, places[some])
        before[some] = np.concatenate(([-1], some[:-1]))
    return read_columns(frames.text(), begins, Floors(least, before))


def _built(head: Head, columns: Columns, own: Mapping[str, Numbers]) -> EntryColumns:
    """What builds the entries of ``columns``."""
    lineages = [(shard, head.lineages[shard].epoch) for shard in own]
    if len(own) == 1:
        return EntryColumns(columns, lineages)
    of = np.empty(len(columns.rows), np.min_scalar_type(len(own)))
    for number, some in enumerate(own.values()):
        of[some] = number
    return EntryColumns(columns, lineages, np.repeat(of, columns.rows))


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


def _are_apart(state: PartitionState, entries: RowEntries, shards: Iterable[str]) -> bool:
    """Whether each key has an entry of its own shard or none, here and before. Then no two shards are to be ordered."""
    new: set[bytes] = set()
    count = 0
    learnt = []
    for number, shard in enumerate(shards):
        own = set(entries.keys_of(number))
        lined = _dropped_by_others(state.head, shard)
        if lined and any(map(methodcaller("startswith", lined), own)):
            return False
        begin_of_tag = entries.columns.shards[number]
        unknown = state.writers.unknown(own, begin_of_tag)
        if unknown is None:
            return False
        learnt.append((unknown, begin_of_tag))
        new.update(unknown)
        count += len(unknown)
        if len(new) < count:
            return False
        for begin in state.begins(list(unknown)) if unknown else ():
            if begin is not None and not begin.startswith(begin_of_tag, PREFIX.size):
                return False
    for unknown, begin_of_tag in learnt:
        state.writers.learn(unknown, begin_of_tag)
    return True


def in_slices(
    offsets: Sequence[int], values: Sequence[bytes | None], bytes_max: int
) -> Iterator[tuple[Sequence[Record], int]]:
    """Messages of one partition in slices that end as soon as they have ``bytes_max``, and the bytes of each."""
    texts = [value or b"" for value in values]
    until = list(accumulate(map(len, texts)))
    begin = done = 0
    while begin < len(texts):
        end = min(bisect_left(until, done + bytes_max) + 1, len(texts))
        some, size = slice(begin, end), until[end - 1] - done
        if size >= RUN_BYTES_MIN and all(texts[some]):
            yield Messages(np.array(offsets[some]), join_text(texts[some]), texts[some]), size
        else:  # too few to be folded by column, or with one that has no value
            yield list(zip(offsets[some], values[some], strict=True)), size
        begin, done = end, done + size
