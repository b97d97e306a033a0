"""A Hive Metastore as the source of truth for catalog tables. Read in threads, over a bounded number of connections."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Final

from serving.errors import ReadError
from serving.sources.breaker import Breaker
from serving.sources.source import SourceTable, SourceThreads
from stream.sources.hive.live.connection import MetastoreError, MetastoreUnreachable
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings, ServerList
from stream.sources.hive.messages import FLAVOR, HiveMessageError
from stream.sources.hive.structs import ThriftError
from tokens import Position, ValidWriteIdList
from tokens.writeid_state import WriteIds

READS_MAX: Final = 8
TIMEOUT_S: Final = 8.0
"""Of each call of a read; below the time that a front waits for its source."""


class HiveTables:
    """A `serving.sources.source.TableSource` over metastores."""

    def __init__(self, settings: MetastoreSettings, shard: str) -> None:
        self.shard = shard
        self._settings = replace(settings, timeout_s=min(settings.timeout_s, TIMEOUT_S))
        self._threads = SourceThreads("metastore-read", threads=READS_MAX)
        self._of_thread = threading.local()
        self._opened: list[Metastore] = []
        self._breaker = Breaker("the metastore")

    async def read(self, name: str, own_list: str | None = None) -> SourceTable:
        """See `TableSource`."""
        self._breaker.check()
        return await self._threads.run(lambda: self._read(name, own_list))

    async def close(self) -> None:
        """See `TableSource`."""
        self._threads.close()
        for metastore in self._opened:
            metastore.close()

    def _read(self, name: str, own_list: str | None) -> SourceTable:
        try:
            found = read_table(self._metastore(), name, own_list)
        except MetastoreUnreachable as error:
            self._breaker.failed(str(error))
            raise ReadError("source_unreachable", str(error), hint=error.hint) from error
        except (MetastoreError, ThriftError, HiveMessageError) as error:
            raise ReadError("source_failed", str(error), hint=error.hint) from error
        self._breaker.succeeded()
        return found

    def _metastore(self) -> Metastore:
        metastore: Metastore | None = getattr(self._of_thread, "metastore", None)
        if metastore is None:
            metastore = self._of_thread.metastore = Metastore(self._settings)
            self._opened.append(metastore)
        return metastore


def read_table(metastore: Metastore, name: str, own_list: str | None) -> SourceTable:
    """A position, the list, the object, and a position again: the list may be too old, never too new.

    Raises `MetastoreError`, `ThriftError`, `HiveMessageError`.
    """
    lo = metastore.last_event()
    listed = metastore.write_ids([name]).get(name.lower())
    table = metastore.table(name)
    position, hi = (Position.parse(f"{FLAVOR}/{event}") for event in (lo, metastore.last_event()))
    if table is None:
        return SourceTable(0, "", None, "", position, hi=hi)
    if not table.transactional:
        return SourceTable(table.table_id, "external", table.image, "", position, hi=hi)
    ids = (listed or ServerList(0, (), ())).write_ids()
    if own_list is not None:
        _count_own(ids, ValidWriteIdList.parse(own_list))
    return SourceTable(table.table_id, "transactional", table.image, ids.full_text(table.name), position, hi=hi)


def _count_own(ids: WriteIds, own: ValidWriteIdList) -> None:
    """Count the open ids that the reader counts as valid: they are its own, and a metastore shows each DDL at once."""
    for write_id, _ in list(ids.open):
        if own.is_valid(write_id):
            ids.commit(write_id)
