"""The workload catalog as the source of truth for tables. Each thread reads in its own session."""

from __future__ import annotations

import threading
import time

from lab.workload.catalog import WorkloadCatalog
from serving.sources.mariadb import translated
from serving.sources.source import NOTHING, Folded, SourceTable, SourceThreads
from stream.sources.mariadb.connection import ConnectionSettings
from tokens import Position

READS_MAX = 4


class WorkloadTables:
    """A `serving.sources.source.TableSource` over the catalog's tables in MariaDB."""

    def __init__(self, settings: ConnectionSettings, database: str, shard: str) -> None:
        self.shard = shard
        self._settings = settings
        self._database = database
        self._threads = SourceThreads("catalog-read", threads=READS_MAX)
        self._of_thread = threading.local()
        self._sessions: list[WorkloadCatalog] = []

    async def read(self, name: str, own_list: str | None = None, known: Folded = NOTHING) -> SourceTable:  # noqa: ARG002 - `TableSource`'s
        """See `TableSource`."""
        return await self._threads.run(lambda: translated(lambda: self._read(name, own_list)))

    async def close(self) -> None:
        """See `TableSource`."""
        self._threads.close()
        for session in self._sessions:
            session.close()

    def _read(self, name: str, own_list: str | None) -> SourceTable:
        session = self._session()
        database, _, table = name.partition(".")
        began_ms = int(time.time() * 1000)  # as of the front, like a metastore
        while True:
            found = session.read_table(database, table, own_list)
            if found is not None:
                position = Position.parse(found.position)
                return SourceTable(
                    found.table_id,
                    found.kind,
                    found.image,
                    found.write_ids,
                    position,
                    found.timestamp,
                    as_of_ms=began_ms,
                )
            # The answer "no such table" needs the position of the snapshot in which the table is missing.
            with session.snapshot() as read:
                if not read.rows("SELECT 1 FROM catalog_tables WHERE name=%s", name):
                    text, timestamp = read.position()
                    return SourceTable(0, "", None, "", Position.parse(text), timestamp, as_of_ms=began_ms)

    def _session(self) -> WorkloadCatalog:
        session: WorkloadCatalog | None = getattr(self._of_thread, "session", None)
        if session is None:
            session = self._of_thread.session = WorkloadCatalog(self._settings, self._database)
            self._sessions.append(session)
        return session
