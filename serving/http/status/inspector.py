"""One key on the page: what its owner holds, and whether that may be served to a reader with a token. Reads no source.

`freshet inspect KEYSPACE TABLE KEY` tells the same on a terminal.
"""

from __future__ import annotations

from time import gmtime, strftime
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec

from consumers.owner.protocol import SCHEMA_CHANGED, UNKNOWN_KEY, OwnerRow
from serving.errors import ReadError
from serving.http.front import Front
from serving.http.query import demand_of
from serving.http.status.answers import KeyStatus
from serving.http.status.key_changes import Back, changes_of
from serving.reads.owners import OwnerAway
from serving.reads.rowkey import parse_row_key
from stream.wire.events import ABSENT, VALUE, VOID

KINDS: Final = {
    VALUE: "a row",
    ABSENT: "no such row, and that is known",
    VOID: "changed since, but not known to what",
    UNKNOWN_KEY: "nothing is known of the key",
}
"""`OwnerRow.kind` in words."""


class AskedKey(NamedTuple):
    """What the form says. ``key`` as in the API's path: key columns in key order, separated by commas.

    ``back``: how far its changes are looked for.
    """

    keyspace: str
    table: str
    key: str
    token: str
    back: Back


async def look_up(front: Front, asked: AskedKey) -> KeyStatus:
    """Asks the owner of the key's partition, without a wait, and reads its changes if that is asked for.

    Raises `ReadError`, as a read of the row does.
    """
    demand = demand_of(asked.token, 0, front.limits)
    space = front.row_space(asked.keyspace)
    table = await front.descriptions.get(space, space.full_name(asked.table))
    if not table.cacheable:
        return KeyStatus(None, False, "unknown", f"{table.name} is never cached: {table.reason}", {})
    key = parse_row_key(table, quote(asked.key, safe=",%").encode())
    partition = space.layout.partition_of(key.key, table.prefix)
    meanings = {table.name: table.meaning}
    try:
        [row] = await front.owners.ask(
            space.name,
            partition,
            lambda client: client.get(space.name, partition, [key.key], demand.token, 0, meanings),
        )
    except OwnerAway as away:
        raise ReadError("no_owner", str(away)) from away
    held = _told(row, partition)
    if asked.back:
        held.history = await changes_of(front, space, table.name, key.key, row, asked.back)
    return held


def _told(row: OwnerRow, partition: int) -> KeyStatus:
    kind = "the owner describes the table in another way" if row.code == SCHEMA_CHANGED else KINDS[row.kind]
    told = {
        "what is held": f"{kind}, read from the source" if row.filled else kind,
        "shard": row.shard,
        "epoch": str(row.epoch) if row.shard else "",
        "changed at the earliest": row.lo,
        "changed at the latest": row.hi,
        "time of the change": _time(row.timestamp),
        "the partition has all up to": row.watermark,
        "which the server had at": _time(row.as_of_ms / 1000),
        "nothing is filled from below": row.low_water,
    }
    fields = {name: value for name, value in told.items() if value}
    image = msgspec.Raw(row.image) if row.image is not None else None
    return KeyStatus(partition, row.served, row.freshness, row.why, fields, image)


def shown_time(unix_s: float) -> str:
    """A moment, UTC."""
    return strftime("%Y-%m-%d %H:%M:%S", gmtime(unix_s))


def _time(unix_s: float) -> str:
    return f"{shown_time(unix_s)} UTC" if unix_s > 0 else ""
