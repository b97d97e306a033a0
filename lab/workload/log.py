"""Reads the tail of the catalog's log: the rows after a position, in order, without gaps."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from lab.workload.catalog import FLAVOR, CatalogSnapshot, WorkloadCatalog, position_of
from lab.workload.events import LogRow, parse_log_row
from stream.sources.mariadb.connection import ConnectionSettings
from tokens.errors import FreshetError


class WorkloadLogLost(FreshetError):
    """The log does not continue at the read position: it was restored or truncated. Code ``history_lost``."""

    code = "history_lost"


def event_id_of(position: str) -> int:
    """The event id in ``HiveEvent/<id>``. Raises `WorkloadLogLost`."""
    flavor, _, number = position.partition("/")
    if flavor != FLAVOR or not number.isdecimal():
        raise WorkloadLogLost(
            f"{position} is not a position of this catalog's log",
            hint="check that the keyspace and the catalog's database belong together",
        )
    return int(number)


class WorkloadLog:
    """Reads the log after ``event_id``. Every call may raise `MariaDBError`."""

    def __init__(self, settings: ConnectionSettings, database: str, event_id: int) -> None:
        self.catalog = WorkloadCatalog(settings, database)
        self.event_id = event_id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.catalog.close()

    def read(self, rows_max: int = 500) -> list[LogRow]:
        """Up to ``rows_max`` next rows; empty at the end. Raises `WorkloadLogLost` if rows are missing."""
        with self.catalog.snapshot() as read:
            found = read.rows(
                "SELECT event_id, event_time, event_type, txn, table_id, message FROM catalog_log"
                " WHERE event_id>%s ORDER BY event_id LIMIT %s",
                self.event_id,
                rows_max,
            )
            if not found:
                self._check_end(read)
                return []
        rows = [parse_log_row(row) for row in found]
        for expected, row in enumerate(rows, self.event_id + 1):
            if row.event_id != expected:
                raise WorkloadLogLost(f"the log continues at event {row.event_id}, event {expected} is missing")
        self.event_id = rows[-1].event_id
        return rows

    def check_time(self, event_time: int) -> None:
        """Raises `WorkloadLogLost` unless the event at the read position has this time (s): ids may be reused."""
        with self.catalog.snapshot() as read:
            found = read.rows("SELECT event_time FROM catalog_log WHERE event_id=%s", self.event_id)
        if found and int(found[0][0]) != event_time:
            raise WorkloadLogLost(
                f"event {self.event_id} has time {found[0][0]} in the log, but was published with {event_time}"
            )

    def _check_end(self, read: CatalogSnapshot) -> None:
        end, _ = read.position()
        if event_id_of(end) != self.event_id:
            raise WorkloadLogLost(f"the log ends at {end}, but was read up to {position_of(self.event_id)}")

    def pairs_of(self, txn: int) -> list[tuple[int, int]]:
        """(table id, write id) pairs of a transaction in the catalog."""
        with self.catalog.snapshot() as read:
            found = read.rows("SELECT table_id, write_id FROM catalog_write_ids WHERE txn=%s", txn)
        return [(int(table_id), int(write_id)) for table_id, write_id in found]
