"""The indexes of one store: what a memtable adds to them, how they are built, and what is known of changes.

The fold thread notes rows before they become visible. The thread that commits writes the entries, and builds what is
missing. The thread that answers looks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from threading import Lock
from typing import Any, Final, Protocol

import numpy as np

from consumers.fold.columns import Kinds, RowEntries
from consumers.fold.entry import HEAD, Entry, decode_entry, kind_and_image
from consumers.fold.state import Head
from consumers.store.index import INDEX, Extraction, Index
from stream.wire.keys import SEPARATOR

BUILT_TOGETHER: Final = 100_000
"""Rows that one commit takes into an index that is not complete. It is half a second or so, beside the fold."""
CHANGES_MAX: Final = 2
"""Of each row of a memtable, on average. If there are more, the entries of all of them are not worth writing."""
OUTDATED_TOGETHER: Final = 5_000
"""Entries that one commit compares with their rows: some hundredths of a second."""
READ_TOGETHER: Final = 2_048
"""Images that are in memory at once: the next ones are made where these were, which the processor has at hand."""
BUILT: Final = ""
"""In place of where to go on: the index is complete."""
_END: Final = b"\x01"
"""Behind a table's name: after all of its keys."""

_Last = dict[str, Entry]


class Scanned(Protocol):
    """The part of `consumers.store.rocks.database.Rocks` that is needed here."""

    def get(self, key: bytes) -> bytes | None: ...
    def scan(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]: ...
    def scan_index(self, start: bytes, limit: int) -> list[bytes]: ...
    def keys_below(self, begins: Iterable[bytes], start: bytes = b"") -> Iterator[bytes]: ...


class Rows(Protocol):
    """The part of `consumers.store.memtable.Memtable` that is needed here."""

    def __len__(self) -> int: ...
    def get(self, key: bytes) -> bytes | None: ...
    def images(self, begin: bytes) -> Iterator[tuple[list[bytes], Kinds, list[bytes]]]: ...


class Hints:
    """The entries of indexes that the rows of one memtable make. One thread notes; others may look meanwhile.

    Rows are looked through when somebody asks, and then at once: a commit without questions makes the entries of the
    last images alone, many together.
    """

    def __init__(self, making: Mapping[bytes, Sequence[Extraction]], last: _Last, *, asked: bool = False) -> None:
        """``making``: by table name and separator. ``last``: of each table the newest entry; kept up to date.

        ``asked``: somebody asked the hints before these, so rows are looked through as they come.
        """
        self.asked = False
        """Somebody has asked these."""
        self._making = making
        self._last = last
        self._noted: deque[Mapping[bytes, bytes]] = deque()
        """What is not looked through."""
        self._looking = Lock()
        self._keys: dict[bytes, bytes | dict[bytes, None]] = {}
        """How the keys of entries begin → the primary key, or several."""
        self._seen = asked
        self._looked = 0
        """Rows that were looked through."""

    def note(self, entries: Mapping[bytes, bytes]) -> None:
        """Adds what rows make, and says which is the newest of each table."""
        changed = self._newest_row(entries) if isinstance(entries, RowEntries) else self._newest_entry(entries)
        if changed:
            self._noted.append(entries)
            if self._seen:
                self._look_through()

    def _newest_entry(self, entries: Mapping[bytes, bytes]) -> bool:
        newest: dict[bytes, tuple[int, bytes]] = {}
        for key, entry in entries.items():
            begin = key[: key.find(SEPARATOR) + 1]
            if begin in self._making:
                ordinal = HEAD.unpack_from(entry)[1]
                if begin not in newest or ordinal > newest[begin][0]:
                    newest[begin] = ordinal, entry
        for begin, (_, entry) in newest.items():
            self._changed(begin, entry)
        return bool(newest)

    def _newest_row(self, entries: RowEntries) -> bool:
        changed = False
        keys = entries.keys_of_rows
        for begin in self._making:
            row = next((row for row in range(len(keys) - 1, -1, -1) if keys[row].startswith(begin)), None)
            if row is not None:  # ordinals rise
                self._changed(begin, entries.columns.entry(row))
                changed = True
        return changed

    def _look_through(self) -> None:
        with self._looking:
            while self._noted:
                entries = self._noted[0]
                if isinstance(entries, RowEntries):
                    self._add_rows(entries)
                else:
                    self._add_entries(entries)
                self._noted.popleft()

    def _add_entries(self, entries: Mapping[bytes, bytes]) -> None:
        for key, entry in entries.items():
            begin = key[: key.find(SEPARATOR) + 1]
            if begin in self._making:
                self._looked += 1
                kind, image = kind_and_image(entry)
                for each in self._making[begin]:
                    self._add(each.begin_of_row(kind, image), key[len(begin) :])

    def _add_rows(self, entries: RowEntries) -> None:
        keys = entries.keys_of_rows
        for begin, making in self._making.items():
            marks = [key.startswith(begin) for key in keys]
            rows, own = np.flatnonzero(marks), [key[len(begin) :] for key in compress(keys, marks)]
            self._looked += len(own)
            for first in range(0, len(own), READ_TOGETHER):
                some = slice(first, first + READ_TOGETHER)
                kinds, images = entries.columns.images(rows[some])
                for each in making:
                    self._add_several(each.begins_of(kinds, images), own[some])

    def _add_several(self, begins: list[bytes], primary_keys: list[bytes]) -> None:
        new = dict(zip(begins, primary_keys, strict=True))
        if len(new) == len(begins) and b"" not in new and self._keys.keys().isdisjoint(new):
            self._keys.update(new)
            return
        for begin, primary_key in zip(begins, primary_keys, strict=True):
            self._add(begin, primary_key)

    def _add(self, begin: bytes, primary_key: bytes) -> None:
        held = self._keys.get(begin)
        if held is None:
            if begin:
                self._keys[begin] = primary_key
        elif type(held) is dict:
            held[primary_key] = None
        elif held != primary_key:
            self._keys[begin] = {held: None, primary_key: None}  # type: ignore[dict-item]

    def _changed(self, begin: bytes, value: bytes) -> None:
        """An entry that comes late does not move what is newest back."""
        table, entry = begin[:-1].decode(), decode_entry(value)._replace(image=b"")
        held = self._last.get(table)
        is_late = held is not None and held[3:5] == entry[3:5] and held.ordinal > entry.ordinal
        if not is_late:
            self._last[table] = entry

    def primary_keys(self, *begins: bytes) -> list[bytes]:
        """Of the entries whose keys begin so (`Index.entries_of`)."""
        self._seen = self.asked = True
        if self._noted:  # what has been taken from there can be found
            self._look_through()
        keys: list[bytes] = []
        for begin in begins:
            found = self._keys.get(begin)
            if found is not None:
                keys += [found] if isinstance(found, bytes) else found
        return keys

    def keys(self, rows: Rows) -> list[bytes]:
        """The keys of all entries, or of those of the last images alone, in no order. ``rows``: the memtable."""
        made: list[bytes] = []
        seen = self._seen  # asked once: another thread may set it, and has not looked through all of it then
        if seen:
            self._look_through()
        if not seen or self._looked > CHANGES_MAX * len(rows):
            for begin, making in self._making.items():
                for keys, kinds, images in rows.images(begin):
                    for each in making:
                        made += each.keys_of(keys, kinds, images)
            return made
        for begin, found in self._keys.items():
            if isinstance(found, bytes):
                made.append(begin + found)
            else:
                made += [begin + each for each in found]
        return made


class Indexing:
    """The indexes that a store keeps. Without any it does nothing."""

    def __init__(self, indexes: Sequence[Index], rocks: Scanned, head: Head) -> None:
        """``head``: the committed one, with which the store begins."""
        self._rocks = rocks
        self._making: dict[bytes, list[Extraction]] = {}
        for index in dict.fromkeys(indexes):
            self._making.setdefault(index.table.encode() + SEPARATOR, []).append(Extraction(index))
        self._extractions = {each.index: each for making in self._making.values() for each in making}
        self._opened = {shard: (lineage.epoch, lineage.ordinal) for shard, lineage in head.lineages.items()}
        self._since: dict[str, str] = {}
        self._last: _Last = {}
        self.settled: _Last = {}
        """Of each indexed table the newest entry: at least as new as the head that readers see."""
        self._cursors = self._kept(head) if indexes else {}
        """Index → where its building goes on, or `BUILT`."""
        self._built = self._complete()
        self._next = self._cursors
        self._outdated: dict[bytes, tuple[Extraction, bytes]] = {}
        """How entries begin many of which no row has any more → where to go on with removing them."""
        self._next_outdated: dict[bytes, bytes] = {}
        self._writes = 0
        """Grows before and after each commit."""
        self._hints: Hints | None = None
        """Of the newest memtable."""
        self._without_unknown: dict[Extraction, int] = {}
        """Of an index → `_writes` when it was seen to have no such entry in RocksDB."""

    def __bool__(self) -> bool:
        return bool(self._making)

    def hints(self) -> Hints | None:
        """For a new memtable; None if there is no index."""
        if not self._making:
            return None
        self._hints = Hints(self._making, self._last, asked=self._hints is not None and self._hints.asked)
        return self._hints

    def settle(self) -> None:
        """What is folded is about to be seen. Fold thread only."""
        if self._making:
            self.settled = dict(self._last)

    def built(self, index: Index) -> Extraction | None:
        """What makes the index's entries; None if not each image in the store has its entry."""
        return self._built.get(index)

    def _complete(self) -> dict[Index, Extraction]:
        return {index: each for index, each in self._extractions.items() if self._cursors.get(index) == BUILT}

    def durable_keys(self, extraction: Extraction, begin: bytes, limit: int) -> list[bytes]:
        """The primary keys of durable entries whose keys begin so, and of those that each look-up meets.

        ``limit`` of each. Mostly there are none of the latter, which is remembered: a look is as dear as the other.
        """
        keys = self._durable(begin, limit)
        writes = self._writes
        if self._without_unknown.get(extraction) == writes:
            return keys
        found = self._durable(extraction.unknown, limit)
        if not found:
            self._without_unknown[extraction] = writes
        return keys + found

    def _durable(self, begin: bytes, limit: int) -> list[bytes]:
        return [key[len(begin) :] for key in self._rocks.scan_index(begin, limit)]

    def note_outdated(self, index: Index, values: bytes) -> None:
        """Many rows had these values and have them no more: the next commits remove their entries."""
        extraction = self._built.get(index)
        if extraction is not None:
            for begin in (extraction.begin_of(values), extraction.unknown):
                self._outdated.setdefault(begin, (extraction, begin))

    def changes_known_since(self, head: Head, shard: str) -> str | None:
        """The position from which on `settled` tells of all changes; None: the watermark is not yet there.

        What was folded before the store was opened has left only its newest entries behind.
        """
        lineage = head.lineages[shard]
        epoch, ordinal = self._opened.get(shard, (-1, 0))
        if epoch != lineage.epoch:
            return ""
        if lineage.watermark_ordinal < ordinal:
            return None
        return self._since.setdefault(shard, lineage.watermark)

    # -- thread that commits -----------------------------------------------------------------------------------------

    def to_write(self, hints: Hints | None, rows: Rows, offset: int) -> dict[bytes, bytes | None]:
        """The entries that go with a commit of ``rows`` up to ``offset``, and the next ones that are built.

        None in place of an entry: it is removed.
        """
        if not self._making:
            return {}
        keys = hints.keys(rows) if hints is not None else []
        self._next = dict(self._cursors)
        for table, making in self._making.items():
            for each in making:
                if self._next[each.index] != BUILT:
                    self._next[each.index] = self._build(table, each, keys)
        self._writes += 1
        told = {str(index): cursor for index, cursor in self._next.items()}
        entries: dict[bytes, bytes | None] = dict.fromkeys(self._outdated_keys(rows))
        entries |= dict.fromkeys(keys, b"")
        entries[INDEX] = json.dumps({"offset": offset, "indexes": told}).encode()
        return entries

    def _build(self, table: bytes, extraction: Extraction, keys: list[bytes]) -> str:
        """Adds the entries of the next rows in RocksDB. Returns where to go on."""
        cursor = self._next[extraction.index]
        start = bytes.fromhex(cursor)
        rows, last = 0, b""
        for last, value in islice(self._rocks.scan(start, table[:-1] + _END), BUILT_TOGETHER):
            rows += 1
            begin = extraction.begin_of_row(*kind_and_image(value))
            if begin:
                keys.append(begin + last[len(table) :])
        return (last + SEPARATOR).hex() if rows == BUILT_TOGETHER else BUILT

    def _outdated_keys(self, rows: Rows) -> list[bytes]:
        """The next entries of values that their rows will not have once ``rows`` are durable.

        That such a row has left is not forgotten by it: an answer is that of positions from the last change of its
        table on (`changes_known_since`).
        """
        gone: list[bytes] = []
        left, self._next_outdated = OUTDATED_TOGETHER, {}
        for begin, (extraction, start) in list(self._outdated.items()):
            last = b""
            for last in islice(self._rocks.keys_below([begin], start), left):
                left -= 1
                row = extraction.table + last[len(begin) :]
                entry = rows.get(row)
                entry = self._rocks.get(row) if entry is None else entry
                if not entry or extraction.begin_of_row(*kind_and_image(entry)) != begin:
                    gone.append(last)
            self._next_outdated[begin] = last + SEPARATOR if not left else b""
            if not left:
                break
        return gone

    def written(self) -> None:
        """What `to_write` gave is durable."""
        for begin, start in self._next_outdated.items():
            if start:
                self._outdated[begin] = self._outdated[begin][0], start
            else:
                del self._outdated[begin]
        self._next_outdated = {}
        self._cursors = self._next
        self._built = self._complete()
        self._writes += 1

    def _kept(self, head: Head) -> dict[Index, str]:
        """Where the building of each index goes on. A store that went on without its indexes has lost them."""
        if head.offset == head.begin:
            return dict.fromkeys((each.index for making in self._making.values() for each in making), BUILT)
        beginnings = {each.index: begin.hex() for begin, making in self._making.items() for each in making}
        told = self._rocks.get(INDEX)
        try:
            known: Any = json.loads(told) if told is not None else {}
            if known.get("offset") != head.offset:
                return beginnings
            return {index: str(known["indexes"].get(str(index), begin)) for index, begin in beginnings.items()}
        except (AttributeError, KeyError, TypeError, ValueError):
            return beginnings
