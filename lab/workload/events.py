"""Translates rows of the catalog's log into source transactions. Pure.

As in Hive, a COMMIT names no table. The write ids that it ends are those of its ALLOC events if its OPEN was seen.
Otherwise they are looked up in the catalog (``lookup``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from lab.workload.catalog import CatalogSnapshot, position_of
from stream.wire.events import (
    EVERY_TABLE,
    AbortTransaction,
    AllocateWriteId,
    BindName,
    Change,
    CommitTransaction,
    OpenTransaction,
    ResetWriteIds,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from tokens.errors import FreshetError
from tokens.writeid_state import WriteIds

Pairs = Iterable[tuple[int, int]]
_STATES: Final = ("open", "committed", "aborted")


class WorkloadLogError(FreshetError, ValueError):
    """A row of the log is invalid; code ``bad_log_row``."""

    code = "bad_log_row"


@dataclass(frozen=True, slots=True)
class LogRow:
    """One event of the log. ``txn`` and ``table_id``: 0 if it has none. ``image``: empty if it has none."""

    event_id: int
    event_time: int
    event_type: str
    txn: int
    table_id: int
    fields: dict[str, Any]
    image: bytes


class Bootstrap(NamedTuple):
    """The whole catalog at one position, as one transaction."""

    position: str
    timestamp: int
    transaction: SourceTransaction


def parse_log_row(row: tuple[Any, ...]) -> LogRow:
    """A row of ``catalog_log``. Raises `WorkloadLogError`."""
    event_id, event_time, event_type, txn, table_id, message = row
    text, separator, image = bytes(message).partition(b"\0")
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WorkloadLogError(f"event {event_id} of the log has invalid JSON: {error}") from error
    if not separator or not isinstance(fields, dict):
        raise WorkloadLogError(f"event {event_id} of the log has no JSON object before its image")
    return LogRow(int(event_id), int(event_time), str(event_type), int(txn), int(table_id), fields, image)


class WorkloadTranslator:
    """Translates the log in order. ``open_transactions``: those in the topic from the run before.

    ``lookup``: transaction → its (table id, write id) pairs in the catalog.
    """

    def __init__(self, lookup: Callable[[int], Pairs], open_transactions: Iterable[OpenTransaction] = ()) -> None:
        self._lookup = lookup
        self._open = {known.txn: known for known in open_transactions}

    def translate(self, row: LogRow) -> SourceTransaction:
        """The row as a source transaction. A row that cannot be translated voids every table."""
        position = position_of(row.event_id)
        before = self._open.get(row.txn)
        try:
            changes = self._changes(row, position)
        except (KeyError, TypeError, ValueError) as error:
            changes = [VoidTable(EVERY_TABLE, f"event {row.event_id}: {type(error).__name__} {error}")]
        after = self._open.get(row.txn)
        opened = (after,) if after is not None and after != before else ()
        closed = (row.txn,) if row.event_type in ("COMMIT", "ABORT") else ()
        return SourceTransaction(position, position, row.event_time, changes, "", opened, closed)

    def _changes(self, row: LogRow, position: str) -> list[Change]:
        fields, table_id, txn = row.fields, row.table_id, row.txn
        match row.event_type:
            case "OPEN":
                self._open[txn] = OpenTransaction(txn)
                return []
            case "ALLOC":
                self._allocated(txn, table_id, fields["write_id"])
                return [AllocateWriteId(table_id, txn, fields["write_id"])]
            case "COMMIT":
                return [CommitTransaction(txn, self._ended(txn))]
            case "ABORT":
                return [AbortTransaction(txn, self._ended(txn))]
            case "CREATE":
                return [BindName(fields["name"], table_id), self._image(row, "created", position)]
            case "WRITE":
                self._wrote(txn, table_id)
                return [self._image(row, "written", position)]
            case "RENAME":
                return [BindName(fields["name"], table_id, fields["previous"])]
            case "DROP":
                return [BindName(fields["name"], 0), TableImage(table_id, fields["name"], fields["kind"], "dropped")]
        raise ValueError(f"type {row.event_type} is not known")

    def _image(self, row: LogRow, change: str, position: str) -> TableImage:
        fields = row.fields
        return TableImage(
            row.table_id,
            fields["name"],
            fields["kind"],
            change,
            txn=row.txn,
            write_id=fields.get("write_id", 0),
            staged=bool(row.txn),
            image=row.image,
            lo=position,
            hi=position,
        )

    def _allocated(self, txn: int, table_id: int, write_id: int) -> None:
        known = self._open.get(txn) or OpenTransaction(txn, seen_open=False)
        pairs = (*known.write_ids, (table_id, write_id))
        self._open[txn] = OpenTransaction(txn, pairs, known.seen_open, known.wrote)

    def _wrote(self, txn: int, table_id: int) -> None:
        known = self._open.get(txn)
        if known is not None and table_id not in known.wrote:
            wrote = tuple(sorted({*known.wrote, table_id}))
            self._open[txn] = OpenTransaction(txn, known.write_ids, known.seen_open, wrote)

    def _ended(self, txn: int) -> tuple[tuple[int, int], ...]:
        known = self._open.pop(txn, None)
        if known is not None and known.seen_open:
            return known.write_ids
        return tuple(sorted(self._lookup(txn)))


def bootstrap(read: CatalogSnapshot) -> Bootstrap:
    """Everything in the snapshot: names, write-id lists, images, staged writes, and the open transactions."""
    position, timestamp = read.position()
    changes: list[Change] = []
    tables = read.rows("SELECT table_id, name, kind, image, next_write_id FROM catalog_tables")
    for table_id, name, kind, image, next_write_id in tables:
        changes.append(BindName(name, int(table_id)))
        if kind == "transactional":
            changes += _list_changes(read, int(table_id), name, int(next_write_id) - 1)
        changes.append(TableImage(int(table_id), name, kind, "image", image=bytes(image), lo=position, hi=position))
        changes += _staged_changes(read, int(table_id), name, position)
    opened = tuple(_open_transactions(read))
    return Bootstrap(position, timestamp, SourceTransaction(position, position, timestamp, changes, "", opened))


def name_bindings(read: CatalogSnapshot) -> list[Change]:
    """Binds every name in the snapshot to its table."""
    found = read.rows("SELECT name, table_id FROM catalog_tables ORDER BY table_id")
    return [BindName(name, int(table_id)) for name, table_id in found]


def _list_changes(read: CatalogSnapshot, table_id: int, name: str, hwm: int) -> list[Change]:
    """The list up to ``hwm``, the last allocated id. Ids that the cleaner has removed count as valid."""
    ids = WriteIds()
    found = read.rows(
        "SELECT w.write_id, w.txn, t.state FROM catalog_write_ids w JOIN catalog_txns t ON t.txn=w.txn"
        " WHERE w.table_id=%s ORDER BY w.write_id",
        table_id,
    )
    by_state = {known: [int(write_id) for write_id, _, state in found if state == known] for known in _STATES}
    ids.replace(hwm, by_state["open"], by_state["aborted"], committed=bool(by_state["committed"]))
    holders = {int(write_id): int(txn) for write_id, txn, _ in found}
    changes: list[Change] = [ResetWriteIds(table_id, ids.full_text(name), ids.committed)]
    return changes + [AllocateWriteId(table_id, holders[write_id], write_id) for write_id, _ in ids.open]


def _staged_changes(read: CatalogSnapshot, table_id: int, name: str, position: str) -> list[Change]:
    found = read.rows("SELECT txn, write_id, image FROM catalog_staged WHERE table_id=%s", table_id)
    return [
        TableImage(
            table_id,
            name,
            "transactional",
            "written",
            txn=int(txn),
            write_id=int(write_id),
            staged=True,
            image=bytes(image),
            lo=position,
            hi=position,
        )
        for txn, write_id, image in found
    ]


def _open_transactions(read: CatalogSnapshot) -> Iterable[OpenTransaction]:
    pairs: dict[int, list[tuple[int, int]]] = {}
    for txn, table_id, write_id in read.rows(
        "SELECT t.txn, w.table_id, w.write_id FROM catalog_txns t LEFT JOIN catalog_write_ids w ON w.txn=t.txn"
        " WHERE t.state='open' ORDER BY t.txn, w.table_id"
    ):
        held = pairs.setdefault(int(txn), [])
        if table_id is not None:
            held.append((int(table_id), int(write_id)))
    staged = read.rows("SELECT txn, table_id FROM catalog_staged")
    for txn, held in pairs.items():
        wrote = tuple(sorted(int(table_id) for writer, table_id in staged if int(writer) == txn))
        yield OpenTransaction(txn, tuple(held), True, wrote)
