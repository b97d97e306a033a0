"""How far each table of a keyspace is: as its sources say, as the owners hold it, and its last change that is folded.

All of it is there already: the sources' states and the changes are in the topic, and the owners tell what is whole. So
a fold does nothing for it (docs/decisions/0134-the-last-change-of-a-table-is-looked-up.md).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import typer

from consumers.owner.protocol import PartitionStatus
from freshet.keyspaces import shards_in
from freshet.settings import Settings
from stream.changes.last import LastChange, last_changes
from stream.kafka.topics import describe_topic, events_topic
from stream.publish.resume import read_point
from stream.sources.mariadb.backfill.progress import TableProgress, table_progress
from tokens.errors import printable


class TableLag(msgspec.Struct, frozen=True):
    """``shards``: shard → how far its source is. ``whole``: partitions of ``partitions`` that hold all of the table."""

    table: str
    shards: dict[str, TableProgress]
    whole: int
    partitions: int
    last: LastChange | None
    age_s: float = -1.0
    """Of the last change, by the clock of this machine; -1: it is further back than was looked."""


def table_lags(settings: Settings, keyspace: str, statuses: Mapping[int, PartitionStatus]) -> list[TableLag]:
    """Of each table that a shard publishes or an owner holds, by name. ``statuses``: of the partitions that answered.

    Raises `TopicError`, `TopicReadError`, `KafkaUnreachable`.
    """
    kafka = settings.kafka.cluster
    topic = describe_topic(kafka, events_topic(kafka, keyspace))
    shards = {shard.shard for each in statuses.values() for shard in each.shards}
    if keyspace in settings.keyspaces:
        shards &= {*shards_in(settings, keyspace)}  # others are over: what they said last of a table says nothing
    told: dict[str, dict[str, TableProgress]] = {}
    for shard in sorted(shards):
        point = read_point(kafka, topic, shard)
        for each in table_progress(point) if point is not None else ():
            told.setdefault(each.table, {})[shard] = each
    names = told.keys() | {name for each in statuses.values() for name in each.tables}
    ends = {number: each.offset for number, each in statuses.items()}
    found, now = last_changes(kafka, topic.name, ends, names), time.time()
    return [_lag(name, told.get(name, {}), statuses.values(), found.get(name), now) for name in sorted(names)]


def _lag(
    table: str,
    shards: dict[str, TableProgress],
    statuses: Iterable[PartitionStatus],
    last: LastChange | None,
    now: float,
) -> TableLag:
    held = [each.tables.get(table, False) for each in statuses]
    age_s = round(max(now - last.timestamp, 0.0), 1) if last is not None else -1.0
    return TableLag(table, shards, sum(held), len(held), last, age_s)


def show_lags(keyspace: str, lags: list[TableLag], *, as_json: bool) -> None:
    """Prints them."""
    if as_json:
        typer.echo(json.dumps({"keyspace": keyspace, "tables": [_plain(each) for each in lags]}, ensure_ascii=False))
        return
    if not lags:
        typer.echo(f"{keyspace} publishes no tables of rows")
        return
    width = max(len(printable(each.table)) for each in lags)
    typer.echo(f"{'table':<{width}}  {'whole in':>12}  {'last change':>12}  GTID, and how far the table is read")
    for each in lags:
        age = f"{each.age_s:.1f} s ago" if each.last is not None else "long ago"
        gtid = "" if each.last is None else f"{each.last.gtid}{' (void)' if each.last.kind == 'void' else ''}, "
        read = "; ".join(_read(shard, one, len(each.shards) > 1) for shard, one in each.shards.items())
        whole = f"{each.whole} of {each.partitions}"
        typer.echo(
            f"{printable(each.table):<{width}}  {whole:>12}  {age:>12}  {gtid}{read or 'not published any more'}"
        )


def _read(shard: str, each: TableProgress, is_one_of_many: bool) -> str:
    about = f" of about {each.estimated_rows:,}" if each.estimated_rows else ""
    parts = [each.state, f"{each.rows:,}{about} rows" if each.rows else "", each.reason]
    return (f"{shard}: " if is_one_of_many else "") + ", ".join(filter(None, parts))


def _plain(lag: TableLag) -> dict[str, Any]:
    shards = {shard: msgspec.structs.asdict(each) for shard, each in lag.shards.items()}
    last = lag.last._asdict() if lag.last is not None else None
    return {**msgspec.structs.asdict(lag), "shards": shards, "last": last}
