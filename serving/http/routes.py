"""The routes of the API: what each one takes, answers and refuses, and the function that does it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from serving.client.answers import LocationAnswer, RowAnswer, RowBatchAnswer, TableAnswer, TableBatchAnswer
from serving.errors import ReadError
from serving.http.answers import encode
from serving.http.batches import row_batch_answer, table_batch_answer
from serving.http.front import Front
from serving.http.query import (
    LocationParameters,
    RowBatchBody,
    RowBatchParameters,
    RowParameters,
    TableBatchBody,
    TableBatchParameters,
    TableParameters,
    demand_of,
    row_batch,
    row_options,
    table_batch,
    table_wanted,
)
from serving.http.route import Reply, Route
from serving.reads.demands import RowWanted
from serving.reads.rows import FoundRow
from serving.reads.tables import FoundTable


class StatusAnswer(msgspec.Struct):
    """That the process answers, or is ready."""

    status: Literal["ok", "ready"]


def reply_to(answer: FoundRow | FoundTable | ReadError) -> Reply:
    """200, or 404 for what is known not to exist, which is an answer too. Raises the `ReadError` that it is."""
    if isinstance(answer, ReadError):
        raise answer
    return Reply(200 if answer.found else 404, encode(answer))


async def get_row(front: Front, asked: RowParameters, _: None) -> Reply:
    """One `RowAnswer`."""
    demand, options = demand_of(asked.token, asked.max_wait_ms, front.limits), row_options(asked)
    wanted = [RowWanted(asked.table, asked.pk.encode("latin-1"))]
    [answer] = await front.rows.read_many(front.row_space(asked.keyspace), wanted, demand, options)
    return reply_to(answer)


async def get_rows(front: Front, asked: RowBatchParameters, body: RowBatchBody) -> Reply:
    """One `RowBatchAnswer`."""
    space = front.row_space(asked.keyspace)
    wanted, demand = row_batch(body, front.limits)
    return Reply(200, encode(row_batch_answer(await front.rows.read_many(space, wanted, demand), demand)))


async def get_table(front: Front, asked: TableParameters, _: None) -> Reply:
    """One `TableAnswer`."""
    demand, wanted = demand_of(asked.token, asked.max_wait_ms, front.limits), table_wanted(asked)
    [answer] = await front.tables.read_many([(front.table_space(asked.catalog), wanted)], demand)
    return reply_to(answer)


async def get_tables(front: Front, _: TableBatchParameters, body: TableBatchBody) -> Reply:
    """One `TableBatchAnswer`."""
    wanted, demand = table_batch(body, front.limits)
    placed = [(front.table_space(each.catalog), each) for each in wanted]
    return Reply(200, encode(table_batch_answer(await front.tables.read_many(placed, demand), demand)))


async def get_location(front: Front, asked: LocationParameters, _: None) -> Reply:
    """One `LocationAnswer`."""
    return Reply(200, encode(await front.locations.read(asked.keyspace, asked.partition)))


async def get_health(_: Front, __: None, ___: None) -> Reply:
    """One `StatusAnswer`."""
    return Reply(200, b'{"status":"ok"}')


async def get_readiness(front: Front, _: None, __: None) -> Reply:
    """One `StatusAnswer`. Raises `ReadError` ``not_ready``."""
    missing = await front.readiness.missing()
    front.metrics.ready.set(0 if missing else 1)
    if missing:
        raise ReadError("not_ready", f"not caught up: {'; '.join(missing)}", hint="`freshet lag` shows how far")
    return Reply(200, b'{"status":"ready"}')


async def get_metrics(front: Front, _: None, __: None) -> Reply:
    """The text that Prometheus scrapes."""
    return Reply(200, front.metrics.exposition(), b"text/plain; version=0.0.4; charset=utf-8")


_BATCH_TEXT = "One demand for all elements; each element is judged, and fails, for itself."
_READ_ERRORS = (
    *("bad_token", "unknown_keyspace", "unknown_table", "history_lost"),
    *("no_owner", "source_unreachable", "source_behind", "source_failed"),
)
_BATCH_ERRORS = ("bad_token", "unknown_keyspace", "history_lost", "too_many_keys")
"""Of the whole batch: what is wrong with an element is said in its place."""

ROUTES: tuple[Route[Any, Any], ...] = (
    Route(
        method="GET",
        path="/v1/rows/{keyspace}/{table}/{pk:raw}",
        handler=get_row,
        parameters=RowParameters,
        answer=RowAnswer,
        errors=(*_READ_ERRORS, "bad_key", "not_found"),
        name="getRow",
        tag="reads",
        summary="Read one row",
        text="Answered from the cache if that is provably as fresh as `token`; else from the source of truth, whose "
        "answer fills the cache. Without a token the answer is `eventual`. Send the `token` of the answer with the "
        "next read.",
        returns="The row.",
    ),
    Route(
        method="POST",
        path="/v1/rows/{keyspace}:batch",
        handler=get_rows,
        parameters=RowBatchParameters,
        body=RowBatchBody,
        answer=RowBatchAnswer,
        errors=_BATCH_ERRORS,
        name="getRows",
        tag="reads",
        summary="Read rows",
        text=_BATCH_TEXT,
        returns="The rows, in the order of the keys.",
    ),
    Route(
        method="GET",
        path="/v1/tables/{db}/{table}",
        handler=get_table,
        parameters=TableParameters,
        answer=TableAnswer,
        errors=(*_READ_ERRORS, "missing_write_ids", "bad_write_ids", "table_id_changed", "not_found"),
        name="getTable",
        tag="reads",
        summary="Read a catalog table",
        text="Answered from the cache if its write-id list covers `valid_write_ids`, the table id matches, and it is "
        "as fresh as `token`; else from the source. A managed table needs `valid_write_ids` and `table_id`.",
        returns="The table.",
    ),
    Route(
        method="POST",
        path="/v1/tables:batch",
        handler=get_tables,
        parameters=TableBatchParameters,
        body=TableBatchBody,
        answer=TableBatchAnswer,
        errors=(*_BATCH_ERRORS, "bad_write_ids"),
        name="getTables",
        tag="reads",
        summary="Read catalog tables",
        text=_BATCH_TEXT,
        returns="The tables, in the order asked for.",
    ),
    Route(
        method="GET",
        path="/v1/locations/{keyspace}/{partition}",
        handler=get_location,
        parameters=LocationParameters,
        answer=LocationAnswer,
        errors=("unknown_keyspace", "unknown_path", "no_owner"),
        name="getLocation",
        tag="locations",
        summary="Who answers for a partition?",
        text="The owner's address, and as `token` how far the partition has come.",
        returns="The owner of the partition.",
    ),
    Route(
        method="GET",
        path="/healthz",
        handler=get_health,
        answer=StatusAnswer,
        name="getHealth",
        tag="operations",
        summary="Is the process alive?",
        text="Always 200 while the process answers; says nothing about owners or sources.",
        returns="It is alive.",
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=get_readiness,
        answer=StatusAnswer,
        errors=("not_ready",),
        name="getReadiness",
        tag="operations",
        summary="Has every partition had an owner that was caught up?",
        text="200 once each partition of each keyspace had an owner that reached the topic's end as of its own start.",
        returns="Every partition has had one.",
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        name="getMetrics",
        tag="operations",
        summary="Prometheus metrics.",
        text="In Prometheus' text format.",
        returns="The metrics of this front.",
    ),
)
"""Every route that /openapi.json describes; the one that is asked for most comes first."""
