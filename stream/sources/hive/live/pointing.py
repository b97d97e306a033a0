"""Which tables' foreign keys an event may bring to light.

A metastore does not show a foreign key while the table that it points to has no primary or unique key of those columns.
Who has it may never have been told. So when such a key may have come, the metastore is asked who points to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import structlog

from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.messages import TableObject
from stream.sources.hive.object_events import CONSTRAINTS
from stream.sources.hive.rpc.connection import MetastoreRefused, MetastoreTimeout
from stream.sources.hive.structs import ThriftError
from stream.wire.events import Change, ObjectImage

log = structlog.get_logger(__name__)

BRINGS: Final = frozenset({"ADD_PRIMARYKEY", "ADD_UNIQUECONSTRAINT", "ALTER_TABLE"})
"""Events after which a table may have a key that it had not."""


def brought_to_light(
    metastore: Metastore,
    row: Mapping[str, Any],
    changes: Iterable[Change],
    name_of: Callable[[int], str],
    tables: Callable[[], Mapping[str, int]],
) -> list[ObjectImage]:
    """The writes of constraints that an event of the log brings along, besides its ``changes``.

    ``name_of``: table id → its name, or "". ``tables``: all of them, by name → id; if it cannot be told who points to
    the table, since the name is another one's by now, it may be any of them. Raises `MetastoreError`.
    """
    if row["eventType"] not in BRINGS:
        return []
    written = [each.table_id for each in changes if isinstance(each, ObjectImage) and each.kind == CONSTRAINTS]
    found: set[int] = set()
    for table_id in written:
        name = name_of(table_id)
        pointing = _pointing(metastore, name, table_id, tables) if name else set()
        found |= {*tables().values()} if pointing is None else {each for each in pointing if name_of(each)}
    return [ObjectImage(CONSTRAINTS, each, (), "written") for each in sorted(found.difference(written))]


def _pointing(
    metastore: Metastore, name: str, table_id: int, tables: Callable[[], Mapping[str, int]]
) -> set[int] | None:
    """The ids of the tables that point to the table, or None. A metastore that fails in this must not stop the log.

    One that cannot be read now may have been published earlier.
    """
    try:
        names = metastore.pointing_to(name)
        stored = metastore.tables([*dict.fromkeys([name, *names])])
    except (MetastoreRefused, MetastoreTimeout, ThriftError) as error:
        log.warning("who points to a table cannot be told", table=name, reason=str(error))
        return None
    ids = {each: table.table_id for each, table in stored.items() if isinstance(table, TableObject)}
    if ids.get(name) != table_id or not stored.keys() >= {*names}:
        return None
    unread = stored.keys() - ids.keys()
    known = tables() if unread else {}
    return {*ids.values(), *(known[each] for each in unread if each in known)}
