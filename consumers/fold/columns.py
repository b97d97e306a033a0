"""The fold of many row frames in one step, column by column. Pure; called by `consumers.fold.messages` only.

It takes what needs neither a look-up nor a decision: rows of the partition's only shard whose ordinals rise, in frames
that `stream.wire.columns` reads. All else is left to `consumers.fold.rows`, which makes the same state of it.

Entries are not built here. A key maps to its row, and `RowEntries` builds the bytes when they are read or written: most
rows of a busy key never are (docs/decisions/0019-entries-in-columns.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import numpy as np

from consumers.fold.entry import PREFIX
from consumers.fold.shards import is_succeeded
from consumers.fold.state import Changes, Head
from stream.wire.columns import Columns, Numbers, read_columns
from stream.wire.single import single_prefix

RUN_BYTES_MIN: Final = 48 * 1024
"""Frames of fewer bytes together fold faster row by row."""
RUN_BYTES_MAX: Final = 4 << 20
_HEADS: Final = np.dtype([("kind", "u1"), ("ordinal", ">u8"), ("timestamp", ">i8"), ("size", ">u4")])
"""As `PREFIX`."""


class EntryColumns:
    """Builds the entries of rows. ``place``: how their tags begin."""

    def __init__(self, columns: Columns, place: bytes) -> None:
        self._columns = columns
        self._place = place

    def entry(self, row: int) -> bytes:
        """The entry of one row."""
        columns, text = self._columns, self._columns.text
        transaction, image = columns.transactions[row], int(columns.image_starts[row])
        start, number = int(columns.gtid_starts[transaction]), int(columns.gtid_numbers[transaction])
        gtid = text[start : start + int(columns.gtid_sizes[transaction])]
        tag = self._place + gtid + (b"%d" % number if number >= 0 else b"")
        head = PREFIX.pack(columns.operations[row], columns.ordinals[row], columns.timestamps[transaction], len(tag))
        return head + tag + text[image : image + int(columns.image_sizes[row])]

    def entries(self, rows: Numbers) -> list[bytes]:
        """The entries of several rows, faster than one by one."""
        columns, text = self._columns, self._columns.text
        transactions = columns.transactions[rows]
        lead, ends = self._tags(transactions)
        heads = np.empty(len(rows), _HEADS)
        heads["kind"], heads["ordinal"] = columns.operations[rows], columns.ordinals[rows]
        heads["timestamp"], heads["size"] = columns.timestamps[transactions], list(map(len, ends))
        heads["size"] += len(lead)
        begins = np.empty((len(rows), _HEADS.itemsize + len(lead)), np.uint8)
        begins[:, : _HEADS.itemsize] = heads.view(np.uint8).reshape(len(rows), _HEADS.itemsize)
        begins[:, _HEADS.itemsize :] = np.frombuffer(lead, np.uint8)
        packed: list[Any] = begins.view(np.dtype((np.void, begins.shape[1]))).ravel().tolist()
        starts = columns.image_starts[rows]
        spans = zip(starts.tolist(), (starts + columns.image_sizes[rows]).tolist(), strict=True)
        images = [text[start:end] for start, end in spans]
        return list(map(b"".join, zip(packed, ends, images, strict=True)))

    def _tags(self, transactions: Numbers) -> tuple[bytes, list[bytes]]:
        """How the tags of all transactions begin, and how each goes on."""
        columns = self._columns
        numbers, starts = columns.gtid_numbers[transactions], columns.gtid_starts[transactions]
        if numbers.min() >= 0:
            _, first = np.unique(starts, return_index=True)
            prefixes = set(self._texts(transactions[first]))
            if len(prefixes) == 1:
                return self._place + prefixes.pop(), str(numbers.tolist())[1:-1].encode().split(b", ")
        gtids = self._texts(transactions)
        if numbers.max() >= 0:
            digits = [b"%d" % number if number >= 0 else b"" for number in numbers.tolist()]
            gtids = list(map(bytes.__add__, gtids, digits))
        return self._place, gtids

    def _texts(self, transactions: Numbers) -> list[bytes]:
        """What the columns have of each GTID as text."""
        text, starts = self._columns.text, self._columns.gtid_starts[transactions]
        ends = (starts + self._columns.gtid_sizes[transactions]).tolist()
        return [text[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]


class RowEntries(Mapping[bytes, bytes]):
    """Key → entry. The last row of a key counts."""

    def __init__(self, columns: Columns, place: bytes) -> None:
        self.row_keys = columns.keys()
        """The key of each row of ``built``."""
        self.built = EntryColumns(columns, place)

    @cached_property
    def _rows(self) -> dict[bytes, int]:
        return dict(zip(self.row_keys, range(len(self.row_keys)), strict=True))

    def __getitem__(self, key: bytes) -> bytes:
        return self.built.entry(self._rows[key])

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def fold_columns(head: Head, records: Sequence[tuple[int, bytes | None]], at: int) -> tuple[Changes | None, int]:
    """Folds the run of frames that begins at ``records[at]``: its changes, and the index after it.

    Without changes if they can't be folded this way, or too few to be worth it; the index is where the next try may be.
    """
    if len(head.lineages) != 1:
        return None, at + 1
    [(shard, lineage)] = head.lineages.items()
    prefix = single_prefix(shard, lineage.epoch)
    values: list[bytes] = []
    size, after = 0, head.offset
    for offset, value in records[at:]:
        if value is None or offset < after or not value.startswith(prefix):
            break
        values.append(value)
        size += len(value)
        after = offset + 1
        if size >= RUN_BYTES_MAX:
            break
    if size < RUN_BYTES_MIN or is_succeeded(head, shard, lineage.epoch):
        return None, at + max(1, len(values))
    columns = read_columns(values, len(prefix), lineage.ordinal)
    if columns is None:
        return None, at + (len(values) + 1) // 2  # so a frame of another form costs its run a few tries, not one each
    end = at + columns.frames
    entries = RowEntries(columns, f"{shard}\0{lineage.epoch}\0".encode())
    moved = {shard: lineage._replace(ordinal=int(columns.ordinals[-1]))}
    return Changes(records[end - 1][0] + 1, entries, moved, messages=columns.frames), end
