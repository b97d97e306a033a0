"""How far each table of a shard is, as its source tells it in its state. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Final, Literal

import msgspec

from stream.sources.mariadb.backfill.choice import Choice
from stream.sources.mariadb.backfill.plan import Plan, unfit
from stream.sources.status import HOLDERS, PROGRESS, TableReading
from stream.wire.events import DescribeTable, ResumePoint

State = Literal["complete", "reading", "paused", "waiting", "cancelled", "off", "unfit"]


HOLDERS_CHARS_MAX: Final = 2_000


def progress_annotations(reading: TableReading, held: Mapping[str, str]) -> Mapping[str, str]:
    """The words that `table_progress` takes up. ``held``: table → who holds it up; as many as there is room for."""
    kept, left = {}, HOLDERS_CHARS_MAX
    for table, why in held.items():
        left -= len(json.dumps({table: why}, ensure_ascii=False))  # its braces are as long as a comma and a blank
        if left < 0:
            break
        kept[table] = why
    return {
        PROGRESS: json.dumps(astuple(reading), ensure_ascii=False) if reading.table else "",
        HOLDERS: json.dumps(kept, ensure_ascii=False) if kept else "",
    }


class TableProgress(msgspec.Struct, frozen=True):
    """How far one table is. ``rows``: of it that were read. ``reason``: why it is not read."""

    table: str
    state: State
    rows: int = 0
    estimated_rows: int = 0
    rows_per_s: int = 0
    eta_s: int = -1
    reason: str = ""


def table_progress(point: ResumePoint) -> list[TableProgress]:
    """The progress of each table that a shard has described, by name. ``point``: with descriptions."""
    plan, choice = Plan.resume(point), Choice.told(point.annotations)
    reading = TableReading.told(point.annotations)
    held = json.loads(point.annotations.get(HOLDERS) or "{}")
    return [
        _of_table(each, plan, choice, reading, held.get(each.table, ""))
        for _, each in sorted(point.descriptions.items())
    ]


def _of_table(described: DescribeTable, plan: Plan, choice: Choice, reading: TableReading, held: str) -> TableProgress:
    table = described.table
    if table in plan.complete:
        return TableProgress(table, "complete")
    if why := unfit(described):
        return TableProgress(table, "unfit", reason=why)
    cursor = plan.cursors.get(table)
    rows = cursor.rows if cursor else 0
    if not choice.wants(table):
        state: State = "cancelled" if choice.asked.get(table, choice.asked.get("")) is False else "off"
        return TableProgress(table, state, rows)
    if held:
        return TableProgress(table, "waiting", rows, reason=held)
    if cursor is None or table != reading.table:
        return TableProgress(table, "waiting", rows)
    known: dict[str, Any] = {
        "estimated_rows": reading.estimated_rows,
        "rows_per_s": reading.rows_per_s,
        "eta_s": reading.eta_s,
    }
    return TableProgress(table, "paused" if reading.paused else "reading", rows, reason=reading.paused, **known)
