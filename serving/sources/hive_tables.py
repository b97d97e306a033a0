"""Reads of a metastore's tables for one reader: a position, the list, the object, and a position again."""

from __future__ import annotations

from collections.abc import Sequence

from serving.sources.hive_latest import latest_event
from serving.sources.source import NOTHING, Folded, ListedTable, SourceLists, SourceTable
from stream.sources.hive.live.metastore import Metastore, ServerList, txn_list
from stream.sources.hive.messages import FLAVOR, HiveMessageError
from tokens import Position, ValidWriteIdList
from tokens.writeid_state import WriteIds
from tokens.writeids import list_text


def read_table(metastore: Metastore, name: str, own_list: str | None, known: Folded = NOTHING) -> SourceTable:
    """The table with its list, which may be too old, never too new.

    Raises `MetastoreError`, `ThriftError`, `HiveMessageError`.
    """
    lo, seen = seen_table(metastore, name, own_list)
    if seen.image is None:
        return seen
    latest = latest_event(metastore, name.lower(), lo, event_of(known.position), of_commits=seen.takes_commits)
    written = position_of(latest)
    if shows_more(seen, known):
        return seen._replace(hi=position_of(metastore.last_event()), written=written)
    return seen._replace(hi=written)


def shows_more(seen: SourceTable, known: Folded) -> bool:
    """Whether a list tells of writes as committed that the cache has not folded: it may be as late as the log's end.

    A COMMIT names no table, so that nobody can tell which event it was (docs/decisions/0198).
    """
    if not seen.server_ids:
        return False
    shown = ValidWriteIdList.parse(seen.server_ids)
    is_known = known.position and known.write_ids
    folded = ValidWriteIdList.parse(known.write_ids) if is_known else ValidWriteIdList(shown.table, 0)
    return not folded.covers(shown)


def seen_table(metastore: Metastore, name: str, own_list: str | None) -> tuple[int, SourceTable]:
    """The log's end, then the table; of one that is there nobody has looked up ``hi``. Raises as `read_table`."""
    lo = metastore.last_event()
    lists = metastore.write_ids([name])
    if own_list is not None:  # a list of one open id may hide the reader's own
        lists |= metastore.without_collapse(lists, metastore.transactions())
    listed = lists.get(name.lower())
    table = metastore.table(name)
    position = position_of(lo)
    if table is None:
        return lo, SourceTable(0, "", None, "", position, hi=position_of(metastore.last_event()))
    seen = SourceTable(table.table_id, "external", table.image, "", position, is_logged=not table.is_materialized)
    seen = seen._replace(takes_commits=table.takes_commits)
    if not table.transactional:
        return lo, seen
    listed = listed or ServerList(0, (), ())
    server_ids = listed.write_ids().full_text(table.name)
    write_ids = _text_of(listed, table.name, own_list)
    return lo, seen._replace(kind="transactional", write_ids=write_ids, server_ids=server_ids)


def read_lists(metastore: Metastore, names: Sequence[str], txn: int, txns: str) -> SourceLists:
    """What a transaction fetches when it begins: its list of transactions, the write-id lists, then the ids of tables.

    A transaction reads as of its own beginning, and its own ids are valid for it. Raises `MetastoreError`,
    `ThriftError`, `HiveMessageError`.
    """
    position = position_of(metastore.last_event())
    if not txns:
        known = metastore.transactions()
        hwm = min(txn, known.hwm) if txn else known.hwm
        exceptions = [{each for each in some if each <= hwm and each != txn} for some in (known.open, known.aborted)]
        txns = txn_list(hwm, *exceptions)
    listed = metastore.write_ids(names, txns) if names else {}
    stored = metastore.tables(names)
    tables = []
    for name in names:
        table = stored.get(name)
        if isinstance(table, HiveMessageError):
            raise table
        ids = listed.get(name) if table is not None and table.transactional else None
        text = str(ValidWriteIdList(name, ids.hwm, ids.open, ids.aborted)) if ids is not None else ""
        tables.append(ListedTable(name, table.table_id if table is not None else 0, text))
    return SourceLists(txns, tables, position)


def position_of(event_id: int) -> Position:
    """The position of an event."""
    return Position.parse(f"{FLAVOR}/{event_id}")


def event_of(position: str) -> int:
    """The event at a position of a metastore's log; 0 if it is none."""
    flavor, _, event = position.partition("/")
    return int(event) if flavor == FLAVOR and event.isdecimal() else 0


def _text_of(listed: ServerList, name: str, own_list: str | None) -> str:
    """The server's list for the reader."""
    ids = listed.write_ids()
    if own_list is not None:
        _count_own(ids, ValidWriteIdList.parse(own_list))
    elif not listed.open:  # the lowest exception alone may be an aborted one, before an open one
        return list_text(name, ids.hwm, listed.min_open, (), ids.aborted)
    return ids.full_text(name)


def _count_own(ids: WriteIds, own: ValidWriteIdList) -> None:
    """Count the open ids that the reader counts as valid: they are its own, and a metastore shows each DDL at once."""
    for write_id, _ in list(ids.open):
        if own.is_valid(write_id):
            ids.commit(write_id)
