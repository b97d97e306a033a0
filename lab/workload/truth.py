"""Queries and changes of a workload catalog within one MariaDB transaction."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, Literal

import pymysql

from lab.workload.lists import server_list
from tokens.errors import FreshetError

FLAVOR: Final = "HiveEvent"
Kind = Literal["transactional", "external"]


class CatalogError(FreshetError):
    """The catalog refuses an operation.

    Codes: ``no_such_table``, ``table_exists``, ``no_such_transaction`` (it is not open), ``write_conflict`` (another
    transaction has a write staged there), ``bad_write`` (everything else, such as a wrong kind of table).
    """

    code = "bad_write"


def position_of(event_id: int) -> str:
    """``HiveEvent/<event id>``."""
    return f"{FLAVOR}/{event_id}"


class CatalogSnapshot:
    """Queries within the current transaction of a session."""

    def __init__(self, cursor: pymysql.cursors.Cursor) -> None:
        self._cursor = cursor

    def rows(self, sql: str, *arguments: object) -> Sequence[tuple[Any, ...]]:
        """Runs a query and returns all rows."""
        self._cursor.execute(sql, arguments or None)
        return self._cursor.fetchall()  # type: ignore[no-any-return]

    def table(self, name: str) -> tuple[int, Kind, int]:
        """(table id, kind, next write id). Raises `CatalogError` ``no_such_table``."""
        found = self.rows("SELECT table_id, kind, next_write_id FROM catalog_tables WHERE name=%s", name)
        if not found:
            raise CatalogError(f"there is no table {name}", code="no_such_table")
        table_id, kind, next_write_id = found[0]
        return int(table_id), kind, int(next_write_id)

    def position(self) -> tuple[str, int]:
        """The position of the last event and its time in seconds (0: the log is empty)."""
        [[event_id, event_time]] = self.rows(
            "SELECT s.last_event, COALESCE(l.event_time, 0) FROM catalog_sequence s"
            " LEFT JOIN catalog_log l ON l.event_id=s.last_event WHERE s.id=1"
        )
        return position_of(event_id), int(event_time)

    def open_writers(self, table_id: int) -> list[tuple[int, int]]:
        """(write id, transaction) of the open transactions that have a write id on the table."""
        found = self.rows(
            "SELECT w.write_id, w.txn FROM catalog_write_ids w JOIN catalog_txns t ON t.txn=w.txn"
            " WHERE w.table_id=%s AND t.state='open' ORDER BY w.write_id",
            table_id,
        )
        return [(int(write_id), int(txn)) for write_id, txn in found]

    def write_ids(self, name: str, table_id: int, next_write_id: int, own_txn: int = 0) -> str:
        """The table's write-id list, as Hive builds it, for a reader in ``own_txn`` (0: in no transaction)."""
        [[last_txn]] = self.rows("SELECT last_txn FROM catalog_sequence WHERE id=1")
        found = self.rows(
            "SELECT w.write_id, w.txn, t.state FROM catalog_write_ids w JOIN catalog_txns t ON t.txn=w.txn"
            " WHERE w.table_id=%s",
            table_id,
        )
        opened = {int(txn) for _, txn, state in found if state == "open"}
        aborted = {int(txn) for _, txn, state in found if state == "aborted"}
        pairs = [(int(write_id), int(txn)) for write_id, txn, _ in found]
        return server_list(name, pairs, next_write_id, opened, aborted, int(last_txn), own_txn)


class CatalogOperation(CatalogSnapshot):
    """One change of the catalog, while the sequence is locked."""

    def run(self, sql: str, *arguments: object) -> None:
        """Runs one statement."""
        self._cursor.execute(sql, arguments)

    def next(self, counter: str) -> int:
        """Increments a counter of ``catalog_sequence`` and returns it."""
        self.run(f"UPDATE catalog_sequence SET {counter}={counter}+1 WHERE id=1 AND %s", 1)
        [[number]] = self.rows(f"SELECT {counter} FROM catalog_sequence WHERE id=1")
        return int(number)

    def require_open(self, txn: int) -> None:
        """Raises `CatalogError` ``no_such_transaction`` unless ``txn`` is open."""
        found = self.rows("SELECT state FROM catalog_txns WHERE txn=%s", txn)
        if not found or found[0][0] != "open":
            what = f"is {found[0][0]}" if found else "was never opened"
            raise CatalogError(f"transaction {txn} {what}", code="no_such_transaction")

    def log(self, event_type: str, *, txn: int = 0, table_id: int = 0, image: bytes = b"", **fields: object) -> int:
        """Appends an event to the log and returns its id. ``image`` is stored after the JSON of ``fields``."""
        event_id = self.next("last_event")
        message = json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode() + b"\0" + image
        self.run(
            "INSERT INTO catalog_log VALUES (%s, UNIX_TIMESTAMP(), %s, %s, %s, %s)",
            event_id,
            event_type,
            txn,
            table_id,
            message,
        )
        return event_id
