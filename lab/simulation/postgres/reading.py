"""Who reads PostgreSQL past the cache: each row must be as it was somewhere between the positions that are said."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from lab.simulation.connectors.judging import NO_STALE, position_of
from lab.simulation.postgres.server import Slot, Truth
from lab.simulation.postgres.tables import GOODS, PARTS
from lab.simulation.whole_processes.words import EXPLAINS
from stream.sources.key_range import KeyRange
from stream.sources.mariadb.by_key import Found, SelectedRow
from stream.sources.mariadb.connection import MariaDBError, MariaDBUnreachable
from stream.sources.mariadb.snapshot import NoSuchTable, SnapshotRead, SourceTimeout
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from tokens.errors import FreshetError

Complain = Callable[[str, str], None]
PAGE: Final = 2
PASSING: Final = (MariaDBUnreachable, NoSuchTable, SourceTimeout)
"""Why a table may not be read now."""


class Reads:
    """Reads of one process, judged by what was committed."""

    def __init__(self, reader: PostgresSnapshotReader, truth: Truth, complain: Complain) -> None:
        self._reader = reader
        self._truth = truth
        self._complain = complain
        self._last = self._last_table = ""

    def by_key(self, goods: Sequence[object], parts: Sequence[int]) -> str:
        """Reads rows of both tables in one snapshot. What came of it."""
        wanted: Mapping[str, Sequence[Sequence[object]]] = {
            GOODS.name: [[row] for row in goods],
            PARTS.name: [["x", row] for row in parts],
        }
        try:
            found = self._reader.read({name: keys for name, keys in wanted.items() if keys})
        except FreshetError as error:
            return error.code
        for name, read in found.items():
            if isinstance(read, MariaDBError):
                self._check_error(name, read)
            else:
                slots = [(name, json.dumps(list(key))) for key in wanted[name]]
                self._check(read, dict(zip(slots, read.rows, strict=True)))
        return "rows read"

    def in_order(self, descending: int) -> str:
        """Reads all of a table, page by page, and counts it."""
        rows: list[SelectedRow] = []
        after: Sequence[object] | None = None
        while True:
            wanted = KeyRange(after=after, descending=bool(descending % 2), limit=PAGE)
            try:
                read = self._reader.read_range(GOODS.name, wanted)
                counted = self._reader.read_range(GOODS.name, KeyRange())
            except FreshetError as error:
                return error.code
            if isinstance(read, MariaDBError) or isinstance(counted, MariaDBError):
                self._check_error(GOODS.name, read if isinstance(read, MariaDBError) else counted)
                return "range refused"
            page = {_slot(row): row for row in read.rows.rows}
            keys = [json.loads(key)[0] for _, key in page]
            if keys != sorted(keys, reverse=wanted.descending) or read.rows.number != len(keys):
                self._complain(EXPLAINS, f"a page of {GOODS.name} has the rows {keys}, {read.rows.number} of them")
            self._check(read, dict(page))
            self._check_gaps(read, keys, after, wanted)
            self._check_count(counted)
            rows += page.values()
            if not read.rows.more:
                return "range read"
            after = [keys[-1]]

    def again(self) -> str:
        """Waits until what the last read could not prove can be."""
        if not self._last:
            return "nothing to wait for"
        try:
            return "awaited" if self._reader.wait_for_position(self._last, 0.5, [self._last_table]) else "not awaited"
        except FreshetError as error:
            return error.code

    def _check_error(self, name: str, error: object) -> None:
        if not isinstance(error, PASSING):
            self._complain(EXPLAINS, f"{name} can't be read: {error}")

    def _between(self, read: SnapshotRead[Any]) -> tuple[int, int]:
        """The commits that it lies between."""
        self._last, self._last_table = read.hi, read.table.name
        since, until = (max(position_of(text), default=0) for text in (read.position, read.hi))
        if not since <= until:
            self._complain(EXPLAINS, f"a read lies between {read.position} and {read.hi}")
        return since, until

    def _check(self, read: SnapshotRead[Any], rows: Mapping[Slot, Found]) -> None:
        _, until = self._between(read)
        for place, (slot, row) in enumerate(rows.items()):
            since = max(position_of(read.proof_of(place)[0]), default=0)
            if isinstance(row, MariaDBError):
                if slot != (GOODS.name, '["no number"]'):
                    self._complain(EXPLAINS, f"{slot} can't be read: {row}")
                continue
            if isinstance(row, FreshetError):
                self._complain(EXPLAINS, f"{slot} has no canonical form: {row}")
                continue
            image = json.loads(row.image) if row is not None else None
            true = self._truth.images(slot, since, until)
            if image not in true:
                self._complain(NO_STALE, f"{slot} is read as {image} from {since} to {until}, and was {true}")

    def _check_gaps(
        self, read: SnapshotRead[Any], keys: Sequence[int], after: Sequence[object] | None, wanted: KeyRange
    ) -> None:
        """A row that the page passes over was not there at some time."""
        since, until = self._between(read)
        sign = -1 if wanted.descending else 1
        first = sign * int(str(after[0])) if after is not None else None
        last = sign * keys[-1] if read.rows.more else None
        for slot in self._truth.slots(GOODS.name):
            key = json.loads(slot[1])[0]
            within = (first is None or sign * key > first) and (last is None or sign * key < last)
            if within and key not in keys and None not in self._truth.images(slot, since, until):
                self._complain(NO_STALE, f"{slot} is left out from {since} to {until}")

    def _check_count(self, read: SnapshotRead[Any]) -> None:
        since, until = self._between(read)
        images = [self._truth.images(slot, since, until) for slot in self._truth.slots(GOODS.name)]
        least = sum(None not in each for each in images)
        most = sum(any(image is not None for image in each) for each in images)
        if not least <= read.rows.number <= most:
            self._complain(NO_STALE, f"{read.rows.number} rows are counted from {since} to {until}: {least} to {most}")


def _slot(row: SelectedRow) -> Slot:
    table, _, values = row.key.partition(b"\0")
    return table.decode(), json.dumps(json.loads(values))
