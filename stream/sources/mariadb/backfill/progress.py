"""How far each table of a shard is, as its source tells it in its state. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import astuple
from typing import Any, Literal

import msgspec

from stream.sources.mariadb.backfill.choice import Choice
from stream.sources.mariadb.backfill.plan import Plan, unfit
from stream.sources.status import PROGRESS, TableReading
from stream.wire.events import DescribeTable, ResumePoint

State = Literal["complete", "reading", "paused", "waiting", "cancelled", "off", "unfit"]


def progress_annotations(reading: TableReading) -> Mapping[str, str]:
    """The words that `table_progress` takes up."""
    return {PROGRESS: json.dumps(astuple(reading), ensure_ascii=False) if reading.table else ""}


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
    return [_of_table(each, plan, choice, reading) for _, each in sorted(point.descriptions.items())]


def _of_table(described: DescribeTable, plan: Plan, choice: Choice, reading: TableReading) -> TableProgress:
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
    if cursor is None or table != reading.table:
        return TableProgress(table, "waiting", rows)
    known: dict[str, Any] = {
        "estimated_rows": reading.estimated_rows,
        "rows_per_s": reading.rows_per_s,
        "eta_s": reading.eta_s,
    }
    return TableProgress(table, "paused" if reading.paused else "reading", rows, reason=reading.paused, **known)
