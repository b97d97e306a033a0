"""A catalog kept in MariaDB tables: transactions, write ids, table images, and a log of all changes.

Every operation is one MariaDB transaction that changes the catalog and appends to the log. As in Hive, CREATE, RENAME
and DROP take effect at once, and ABORT does not undo them. A write to a transactional table is *staged* by its
transaction: COMMIT makes it the table's image, ABORT discards it. Only one transaction at a time may have a write
staged on a table.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import pymysql

from lab.workload.schema import TABLES
from lab.workload.truth import FLAVOR, CatalogError, CatalogOperation, CatalogSnapshot, Kind, position_of
from stream.sources.mariadb.connection import LOST_CONNECTION, ConnectionSettings, translated
from tokens import ValidWriteIdList

__all__ = [
    "FLAVOR",
    "CatalogError",
    "CatalogSnapshot",
    "CatalogTable",
    "Kind",
    "WorkloadCatalog",
    "encode_image",
    "position_of",
    "version_of",
]


@dataclass(frozen=True, slots=True)
class CatalogTable:
    """A table in one snapshot of the catalog. ``position``: the log's end in that snapshot, which is lo and hi."""

    table_id: int
    name: str
    kind: Kind
    image: bytes
    write_ids: str
    """The write-id list; "" for an external table."""
    position: str
    timestamp: int


def encode_image(version: int, fields: Mapping[str, Any]) -> bytes:
    """A table's image: compact JSON with sorted keys; ``version`` grows with each write of the table."""
    image = {**fields, "version": version}
    return json.dumps(image, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def version_of(image: bytes) -> int:
    """The version in an image. Raises `ValueError` if it has no version."""
    version = json.loads(image).get("version")
    if not isinstance(version, int):
        raise ValueError("the image has no version")
    return version


class WorkloadCatalog:
    """One session of the catalog. Not thread-safe: each thread needs its own. Every call may raise `MariaDBError`.

    After a lost connection the session reconnects for the next operation.
    """

    def __init__(self, settings: ConnectionSettings, database: str) -> None:
        self.settings = settings
        self.database = database
        self._connection: pymysql.connections.Connection[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(pymysql.err.Error, OSError):
                connection.close()

    def create_schema(self) -> None:
        """Creates the catalog's missing tables. The database must exist."""
        with translated(self.settings), self._session() as cursor:
            for statement in TABLES:
                cursor.execute(statement)

    # --- transactions ---

    def open_txn(self) -> int:
        """Opens a transaction and returns its id."""
        with self._operation() as change:
            txn = change.next("last_txn")
            change.run("INSERT INTO catalog_txns VALUES (%s, 'open')", txn)
            change.log("OPEN", txn=txn)
            return txn

    def alloc_write_id(self, txn: int, name: str) -> int:
        """The transaction's write id on a transactional table, allocated on the first call. Raises `CatalogError`."""
        with self._operation() as change:
            change.require_open(txn)
            table_id, kind, next_write_id = change.table(name)
            if kind != "transactional":
                raise CatalogError(f"{name} is an external table and has no write ids")
            held = change.rows("SELECT write_id FROM catalog_write_ids WHERE txn=%s AND table_id=%s", txn, table_id)
            if held:
                return int(held[0][0])
            change.run("INSERT INTO catalog_write_ids VALUES (%s, %s, %s)", table_id, next_write_id, txn)
            change.run("UPDATE catalog_tables SET next_write_id=next_write_id+1 WHERE table_id=%s", table_id)
            change.log("ALLOC", txn=txn, table_id=table_id, write_id=next_write_id)
            return next_write_id

    def commit(self, txn: int) -> None:
        """Commits a transaction: its staged writes become the tables' images. Raises `CatalogError`."""
        with self._operation() as change:
            change.require_open(txn)
            event = change.log("COMMIT", txn=txn)
            change.run(
                "UPDATE catalog_tables t JOIN catalog_staged s ON s.table_id=t.table_id SET t.image=s.image"
                " WHERE s.txn=%s",
                txn,
            )
            change.run(
                "UPDATE catalog_versions SET committed_event=%s WHERE txn=%s AND committed_event IS NULL", event, txn
            )
            change.run("DELETE FROM catalog_staged WHERE txn=%s", txn)
            change.run("UPDATE catalog_txns SET state='committed' WHERE txn=%s", txn)

    def abort(self, txn: int) -> None:
        """Aborts a transaction and discards its staged writes. Raises `CatalogError`."""
        with self._operation() as change:
            change.require_open(txn)
            change.log("ABORT", txn=txn)
            change.run("DELETE FROM catalog_staged WHERE txn=%s", txn)
            change.run("DELETE FROM catalog_versions WHERE txn=%s AND committed_event IS NULL", txn)
            change.run("UPDATE catalog_txns SET state='aborted' WHERE txn=%s", txn)

    # --- tables ---

    def create_table(self, name: str, kind: Kind = "transactional", fields: Mapping[str, Any] | None = None) -> int:
        """Creates a table whose image is version 1, and returns its id. Raises `CatalogError`."""
        if name.count(".") != 1 or name.startswith(".") or name.endswith(".") or ":" in name:
            raise CatalogError(f"invalid table name {name!r}", hint="name the table as db.table, without a colon")
        with self._operation() as change:
            if change.rows("SELECT 1 FROM catalog_tables WHERE name=%s", name):
                raise CatalogError(f"table {name} exists already", code="table_exists")
            table_id = change.next("last_table")
            image = encode_image(1, fields or {})
            change.run("INSERT INTO catalog_tables VALUES (%s, %s, %s, %s, 1, 1)", table_id, name, kind, image)
            event = change.log("CREATE", table_id=table_id, name=name, kind=kind, image=image)
            change.run("INSERT INTO catalog_versions VALUES (%s, 1, 0, 0, %s)", table_id, event)
            return table_id

    def write_table(self, name: str, fields: Mapping[str, Any] | None = None, txn: int = 0) -> int:
        """Writes a new version of the table's image and returns the version. Raises `CatalogError`.

        A transactional table needs a transaction with a write id on it. An external table is written outside any.
        """
        with self._operation() as change:
            table_id, kind, _ = change.table(name)
            if (kind == "transactional") != bool(txn):
                where = "in" if kind == "transactional" else "outside"
                raise CatalogError(f"table {name} is {kind} and must be written {where} a transaction")
            [[last_version]] = change.rows("SELECT last_version FROM catalog_tables WHERE table_id=%s", table_id)
            version = int(last_version) + 1
            image = encode_image(version, fields or {})
            change.run("UPDATE catalog_tables SET last_version=%s WHERE table_id=%s", version, table_id)
            if txn:
                self._stage(change, name, table_id, txn, version, image)
            else:
                change.run("UPDATE catalog_tables SET image=%s WHERE table_id=%s", image, table_id)
                event = change.log("WRITE", table_id=table_id, name=name, kind=kind, image=image)
                change.run("INSERT INTO catalog_versions VALUES (%s, %s, 0, 0, %s)", table_id, version, event)
            return version

    def _stage(self, change: CatalogOperation, name: str, table_id: int, txn: int, version: int, image: bytes) -> None:
        change.require_open(txn)
        held = change.rows("SELECT write_id FROM catalog_write_ids WHERE txn=%s AND table_id=%s", txn, table_id)
        if not held:
            raise CatalogError(f"transaction {txn} has no write id on {name}", hint="call alloc_write_id first")
        writer = change.rows("SELECT txn FROM catalog_staged WHERE table_id=%s", table_id)
        if writer and int(writer[0][0]) != txn:
            raise CatalogError(
                f"transaction {writer[0][0]} already has a write staged on {name}", code="write_conflict"
            )
        write_id = int(held[0][0])
        change.run("REPLACE INTO catalog_staged VALUES (%s, %s, %s, %s, %s)", table_id, txn, write_id, version, image)
        change.run("INSERT INTO catalog_versions VALUES (%s, %s, %s, %s, NULL)", table_id, version, write_id, txn)
        change.log("WRITE", txn=txn, table_id=table_id, name=name, kind="transactional", write_id=write_id, image=image)

    def rename_table(self, name: str, new_name: str) -> None:
        """Renames a table; it keeps its id and all write ids, also those of open writers. Raises `CatalogError`."""
        with self._operation() as change:
            table_id, kind, _ = change.table(name)
            if change.rows("SELECT 1 FROM catalog_tables WHERE name=%s", new_name):
                raise CatalogError(f"table {new_name} exists already", code="table_exists")
            change.run("UPDATE catalog_tables SET name=%s WHERE table_id=%s", new_name, table_id)
            change.log("RENAME", table_id=table_id, name=new_name, kind=kind, previous=name)

    def drop_table(self, name: str) -> None:
        """Drops a table and its write ids. A later table of the name gets a new id. Raises `CatalogError`."""
        with self._operation() as change:
            table_id, kind, _ = change.table(name)
            for table in ("catalog_tables", "catalog_write_ids", "catalog_staged", "catalog_versions"):
                change.run(f"DELETE FROM {table} WHERE table_id=%s", table_id)
            change.log("DROP", table_id=table_id, name=name, kind=kind)

    # --- reading ---

    def table_id(self, name: str) -> int:
        """The id of the table with this name. Raises `CatalogError` ``no_such_table``."""
        with self._snapshot() as read:
            return read.table(name)[0]

    def tables(self) -> list[tuple[str, int, Kind]]:
        """(name, table id, kind) of all tables, ordered by id."""
        with self._snapshot() as read:
            found = read.rows("SELECT name, table_id, kind FROM catalog_tables ORDER BY table_id")
        return [(name, int(table_id), kind) for name, table_id, kind in found]

    def valid_write_ids(self, name: str, own_txn: int = 0) -> str:
        """The table's write-id list, as Hive builds it, for a reader in ``own_txn`` (0: in no transaction)."""
        with self._snapshot() as read:
            table_id, kind, next_write_id = read.table(name)
            if kind != "transactional":
                raise CatalogError(f"{name} is an external table and has no write ids")
            return read.write_ids(name, table_id, next_write_id, own_txn)

    def position(self) -> tuple[str, int]:
        """The position of the log's end, and the time of its last event in seconds (0: the log is empty)."""
        with self._snapshot() as read:
            return read.position()

    def read_table(self, db: str, table: str, valid_write_ids: str | None = None) -> CatalogTable | None:
        """The table as it is now: id, image, list and the log's position, all of one snapshot. None: no such table.

        ``valid_write_ids``: the reader's own list. If the id of an open writer is valid in it, the reader is that
        writer, and gets its staged image with its own list. Raises `TokenError`.
        """
        name = f"{db}.{table}"
        wanted = ValidWriteIdList.parse(valid_write_ids) if valid_write_ids else None
        with self._snapshot() as read:
            found = read.rows("SELECT table_id, kind, next_write_id, image FROM catalog_tables WHERE name=%s", name)
            position, timestamp = read.position()
            if not found:
                return None
            table_id, kind, next_write_id, image = found[0]
            writers = read.open_writers(table_id) if kind == "transactional" else []
            own = next((txn for write_id, txn in writers if wanted and wanted.is_valid(write_id)), 0)
            staged = read.rows("SELECT image FROM catalog_staged WHERE table_id=%s AND txn=%s", table_id, own)
            text = read.write_ids(name, table_id, next_write_id, own) if kind == "transactional" else ""
            shown = staged[0][0] if staged else image
            return CatalogTable(int(table_id), name, kind, bytes(shown), text, position, timestamp)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[CatalogSnapshot]:
        """Reads that all see the same state of the catalog."""
        with self._snapshot() as read:
            yield read

    # --- sessions ---

    @contextlib.contextmanager
    def _session(self) -> Iterator[pymysql.cursors.Cursor]:
        if self._connection is None:
            self._connection = pymysql.connect(
                **self.settings.pymysql_arguments(), database=self.database, autocommit=True
            )
        try:
            with self._connection.cursor() as cursor:
                yield cursor
        except pymysql.err.Error as error:
            if isinstance(error, pymysql.err.InterfaceError) or error.args[:1] in {(code,) for code in LOST_CONNECTION}:
                self.close()
            raise
        except OSError:
            self.close()
            raise

    @contextlib.contextmanager
    def _operation(self) -> Iterator[CatalogOperation]:
        """One change of the catalog. It locks the sequence first, so changes and their events are in commit order."""
        with translated(self.settings), self._session() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("START TRANSACTION")
            try:
                cursor.execute("SELECT last_event FROM catalog_sequence WHERE id=1 FOR UPDATE")
                change = CatalogOperation(cursor)
                yield change
                cursor.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(pymysql.err.Error, OSError):
                    cursor.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _snapshot(self) -> Iterator[CatalogSnapshot]:
        with translated(self.settings), self._session() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY")
            try:
                yield CatalogSnapshot(cursor)
            finally:
                with contextlib.suppress(pymysql.err.Error, OSError):
                    cursor.execute("COMMIT")
