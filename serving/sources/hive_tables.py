"""Reads of a metastore's tables for one reader: a position, the list, the object, and a position again."""

from __future__ import annotations

from serving.sources.source import SourceTable
from stream.sources.hive.live.metastore import Metastore, ServerList
from stream.sources.hive.messages import FLAVOR
from tokens import Position, ValidWriteIdList
from tokens.writeid_state import WriteIds


def read_table(metastore: Metastore, name: str, own_list: str | None) -> SourceTable:
    """The table with its list, which may be too old, never too new.

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
