"""The routes of the API: what each one takes, answers and refuses, and its handler."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Final, Literal

import msgspec

from serving.client.answers import (
    DescribedColumn,
    DescriptionAnswer,
    KeptAnswer,
    ObjectsAnswer,
    RangeAnswer,
    RowAnswer,
    RowBatchAnswer,
    TableAnswer,
    TableBatchAnswer,
)
from serving.errors import ReadError
from serving.http.batches import row_batch_answer, source_asked, table_batch_answer
from serving.http.bytes.routes import BYTES
from serving.http.front import Front
from serving.http.letters.routes import LETTERS
from serving.http.lists import LISTS
from serving.http.locating.routes import LOCATIONS
from serving.http.privileges.routes import PRIVILEGES
from serving.http.query import (
    ConstraintsParameters,
    DatabaseParameters,
    DatabasesParameters,
    DescriptionParameters,
    FunctionParameters,
    FunctionsParameters,
    GivenRowBody,
    GivenRowParameters,
    PartitionsParameters,
    RangeParameters,
    RowBatchBody,
    RowBatchParameters,
    RowParameters,
    StatisticsParameters,
    TableBatchBody,
    TableBatchParameters,
    TableIdParameters,
    TableParameters,
    demand_of,
    partition_names,
    requested_list,
    requested_partitions,
    requested_range,
    requested_statistics,
    requested_table,
    row_batch,
    row_options,
    table_batch,
)
from serving.http.responses import Response, answer_response, plain_response, read_response
from serving.http.route import Route
from serving.http.status.routes import STATUS
from serving.http.streaming.routes import STREAMING
from serving.keeping import keep_row
from serving.reads.demands import ReadDemand, RequestedRow, RequestedTable
from serving.reads.objects import RequestedObjects, demand_of_page
from stream.access.grants import METRICS

SCRAPE_WAIT_S: Final = 1.0
"""How long a scrape waits for owners that may have become ready."""


class StatusAnswer(msgspec.Struct):
    """The answer of ``/healthz`` and ``/readyz``."""

    status: Literal["ok", "ready"]


def _demand(front: Front, parameters: Any) -> ReadDemand:
    """Of a request that may demand a token and a time. Raises `ReadError` ``bad_token``."""
    waiting, staleness = parameters.max_wait_ms, parameters.max_staleness_ms
    return demand_of(parameters.token, waiting, front.limits, staleness, front.now_ms())


async def get_row(front: Front, parameters: RowParameters, _: None) -> Response:
    """One `RowAnswer`."""
    options, demand = row_options(parameters), _demand(front, parameters)
    demand = demand._replace(consistency=parameters.consistency, last_known=parameters.last_known)
    wanted = [RequestedRow(parameters.table, parameters.pk.encode("latin-1"))]
    [answer] = await front.rows.read_many(front.row_space(parameters.keyspace), wanted, demand, options)
    return read_response(answer)


async def put_row(front: Front, parameters: GivenRowParameters, body: GivenRowBody) -> Response:
    """One `KeptAnswer`."""
    demand = demand_of(parameters.token, parameters.max_wait_ms, front.limits)
    wanted = RequestedRow(parameters.table, parameters.pk.encode("latin-1"))
    space = front.row_space(parameters.keyspace)
    return answer_response(await keep_row(front.rows, space, wanted, body.row, demand))


async def get_rows(front: Front, parameters: RowBatchParameters, body: RowBatchBody) -> Response:
    """One `RowBatchAnswer`."""
    space = front.row_space(parameters.keyspace)
    wanted, demand = row_batch(body, front.limits, front.now_ms())
    found = await front.rows.read_many(space, wanted, demand)
    return answer_response(row_batch_answer(found, demand), from_source=source_asked(found))


async def find_rows(front: Front, parameters: RangeParameters, _: None) -> Response:
    """One `RangeAnswer`."""
    demand = _demand(front, parameters)._replace(consistency=parameters.consistency)
    space = front.row_space(parameters.keyspace)
    found = await front.ranges.read(space, requested_range(parameters), demand)
    return answer_response(found, asked=len(found.rows))


async def get_table(front: Front, parameters: TableParameters, _: None) -> Response:
    """One `TableAnswer`."""
    demand, wanted = _demand(front, parameters), requested_table(parameters)
    [answer] = await front.tables.read_many([(front.table_space(parameters.catalog), wanted)], demand)
    return read_response(answer)


async def get_tables(front: Front, _: TableBatchParameters, body: TableBatchBody) -> Response:
    """One `TableBatchAnswer`."""
    wanted, demand = table_batch(body, front.limits, front.now_ms())
    with_catalogs = [(front.table_space(each.catalog), each) for each in wanted]
    found = await front.tables.read_many(with_catalogs, demand)
    return answer_response(table_batch_answer(found, demand), from_source=source_asked(found))


async def get_table_by_id(front: Front, parameters: TableIdParameters, _: None) -> Response:
    """One `TableAnswer`."""
    demand = _demand(front, parameters)
    wanted = RequestedTable(parameters.catalog, "", "", requested_list(parameters.valid_write_ids), parameters.table_id)
    [answer] = await front.tables.read_many([(front.table_space(parameters.catalog), wanted)], demand)
    return read_response(answer)


async def get_partitions(front: Front, parameters: PartitionsParameters, _: None) -> Response:
    """One `ObjectsAnswer`."""
    return await _objects(front, parameters, requested_partitions(parameters))


async def get_statistics(front: Front, parameters: StatisticsParameters, _: None) -> Response:
    """One `ObjectsAnswer`."""
    return await _objects(front, parameters, requested_statistics(parameters))


async def get_constraints(front: Front, parameters: ConstraintsParameters, _: None) -> Response:
    """One `ObjectsAnswer`."""
    return await _objects(front, parameters, RequestedObjects("constraints", requested_table(parameters), names=((),)))


async def get_databases(front: Front, parameters: DatabasesParameters, _: None) -> Response:
    """One `ObjectsAnswer`."""
    return await _objects(front, parameters, _listed("database", (), parameters))


async def get_database(front: Front, parameters: DatabaseParameters, _: None) -> Response:
    """One `ObjectsAnswer`."""
    return await _objects(front, parameters, RequestedObjects("database", names=((parameters.db.lower(),),)))


async def get_functions(front: Front, parameters: FunctionsParameters, _: None) -> Response:
    """One `ObjectsAnswer`."""
    return await _objects(front, parameters, _listed("function", (parameters.db.lower(),), parameters))


async def get_function(front: Front, parameters: FunctionParameters, _: None) -> Response:
    """One `ObjectsAnswer`."""
    name = (parameters.db.lower(), parameters.function.lower())
    return await _objects(front, parameters, RequestedObjects("function", names=(name,)))


def _listed(
    kind: str, prefix: tuple[str, ...], parameters: DatabasesParameters | FunctionsParameters
) -> RequestedObjects:
    page, limit = parameters.page, parameters.limit
    return RequestedObjects(kind, prefix=prefix, page=page, limit=limit, names_only=parameters.names_only)


async def _objects(front: Front, parameters: Any, wanted: RequestedObjects) -> Response:
    """200; 404 if one object was asked for by its name and is known not to exist."""
    demand = _demand(front, parameters)
    if wanted.page and parameters.max_staleness_ms:  # 0: all that is committed by now, as a session in doubt demands
        demand = demand_of_page(demand, wanted.page)
    answer = await front.objects.read(front.table_space(parameters.catalog), wanted, demand)
    is_absent = len(wanted.names) == 1 and not answer.count
    asked = max(len(wanted.names), len(answer.objects))  # a list of names alone is one call
    return answer_response(answer, 404 if is_absent else 200, asked=asked)


async def get_row_description(front: Front, parameters: DescriptionParameters, _: None) -> Response:
    """One `DescriptionAnswer`."""
    space = front.row_space(parameters.keyspace)
    found = await front.descriptions.get(space, space.full_name(parameters.table))
    columns = [DescribedColumn(each.name, each.kind, each.sql_type) for each in found.columns]
    key = [each.name for each in found.key]
    return plain_response(DescriptionAnswer(found.name, columns, key, found.cacheable, found.reason, found.prefix))


async def get_health(_: Front, __: None, ___: None) -> Response:
    """One `StatusAnswer`."""
    return Response(200, b'{"status":"ok"}')


async def get_readiness(front: Front, _: None, __: None) -> Response:
    """One `StatusAnswer`. Raises `ReadError` ``not_ready``."""
    missing = await _missing(front)
    if missing and not front.access.is_open:  # a probe needs no token, and is told no names
        raise ReadError("not_ready", f"not caught up: {len(missing)} lines in /v1/status")
    if missing:
        raise ReadError("not_ready", f"not caught up: {'; '.join(missing)}")
    return Response(200, b'{"status":"ready"}')


async def _missing(front: Front) -> list[str]:
    missing = await front.readiness.missing()
    front.metrics.ready.set(0 if missing else 1)
    return missing


async def get_metrics(front: Front, _: None, __: None) -> Response:
    """The text that Prometheus scrapes."""
    with suppress(TimeoutError):
        async with asyncio.timeout(SCRAPE_WAIT_S):
            await asyncio.gather(_missing(front), *([front.files.count()] if front.files is not None else []))
    return Response(200, front.metrics.exposition(), b"text/plain; version=0.0.4; charset=utf-8")


_BATCH_TEXT = (
    "One demand for all elements. Each element is decided on its own; one that fails does not affect the others."
)
_READ_ERRORS = (
    *("bad_token", "unknown_keyspace", "unknown_table", "history_lost"),
    *("no_owner", "source_unreachable", "source_behind", "source_failed"),
)
_OBJECT_ERRORS = (
    *("bad_token", "unknown_keyspace", "history_lost"),
    *("no_owner", "source_unreachable", "source_behind", "source_failed"),
)
_TABLE_ERRORS = (*_OBJECT_ERRORS, "missing_write_ids", "bad_write_ids")
_BATCH_ERRORS = ("bad_token", "unknown_keyspace", "history_lost", "too_many_keys")
"""Errors of a whole batch. The error of an element stands in the element's place."""

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
        text="Answered from the cache if the cached row is provably as fresh as `token`; else from the source of "
        "truth, whose answer fills the cache. Without a token the answer is `eventual`. Send the `token` of the answer "
        "with the next read.",
        returns="The row.",
    ),
    Route(
        method="PUT",
        path="/v1/rows/{keyspace}/{table}/{pk:raw}",
        handler=put_row,
        parameters=GivenRowParameters,
        body=GivenRowBody,
        answer=KeptAnswer,
        errors=(*_READ_ERRORS, "bad_key", "fill_lost"),
        name="putRow",
        tag="reads",
        summary="Give the cache a row",
        text="Nothing is believed: the row is compared with what the cache proves for `token`, or with the source's in "
        "a snapshot at or past it, which fills the cache. 409 `fill_lost` if the row is another one by then. "
        "This writes nothing to the source.",
        returns="The row is the one that was given.",
    ),
    Route(
        method="GET",
        path="/v1/rows/{keyspace}/{table}",
        handler=find_rows,
        parameters=RangeParameters,
        answer=RangeAnswer,
        errors=(*_READ_ERRORS, "bad_key", "no_index", "sort_too_large", "bad_page"),
        name="findRows",
        tag="reads",
        summary="Find rows by leading columns of the primary key, or by an index",
        text="The rows as they were at one position, in the order of `order_by` and the primary key. "
        "Answered from the cache if the table (and the index) is complete in it and every partition proves `token` at "
        "that position; else from the source of truth. "
        "While there are more rows the answer has a `page`.",
        returns="The rows.",
    ),
    Route(
        method="POST",
        path="/v1/rows/{keyspace}:batch",
        handler=get_rows,
        parameters=RowBatchParameters,
        body=RowBatchBody,
        elements=lambda _, body: len(body.keys),
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
        path="/v1/descriptions/{keyspace}/{table}",
        handler=get_row_description,
        parameters=DescriptionParameters,
        answer=DescriptionAnswer,
        errors=("unknown_keyspace", "unknown_table", "no_owner", "source_unreachable", "source_failed"),
        name="getDescriptionOfRows",
        tag="reads",
        summary="Describe a table of rows",
        text="Its columns, the kinds of their values, and its primary key, as known here: nothing is demanded.",
        returns="The description.",
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
        elements=lambda _, body: len(body.tables),
        answer=TableBatchAnswer,
        errors=(*_BATCH_ERRORS, "bad_write_ids"),
        name="getTables",
        tag="reads",
        summary="Read catalog tables",
        text=_BATCH_TEXT,
        returns="The tables, in the order of the request.",
    ),
    Route(
        method="GET",
        path="/v1/table-ids/{table_id}",
        handler=get_table_by_id,
        parameters=TableIdParameters,
        answer=TableAnswer,
        errors=(*_TABLE_ERRORS, "unknown_table"),
        name="getTableById",
        tag="catalog",
        summary="Read a catalog table by its id",
        text="As by name. Whatever it is called by now: a table keeps its id when it is renamed.",
        returns="The table.",
    ),
    Route(
        method="GET",
        path="/v1/tables/{db}/{table}/partitions",
        handler=get_partitions,
        parameters=PartitionsParameters,
        elements=lambda parameters, _: len(partition_names(parameters)),
        answer=ObjectsAnswer,
        errors=(*_TABLE_ERRORS, "bad_filter", "page_expired", "too_many_keys", "not_found"),
        name="getPartitions",
        tag="catalog",
        summary="Read partitions",
        text="All, those in `names`, those that begin with `values`, or those that pass `filter`. Decided by the "
        "table's list: from the first write of a transaction to its commit the cache answers none. Pages are of one "
        "moment; where the partitions changed in between, the next page is 409 `page_expired`.",
        returns="The partitions.",
    ),
    *LISTS,
    Route(
        method="GET",
        path="/v1/statistics/{db}/{table}",
        handler=get_statistics,
        parameters=StatisticsParameters,
        answer=ObjectsAnswer,
        errors=(*_TABLE_ERRORS, "not_found"),
        name="getStatistics",
        tag="catalog",
        summary="Read column statistics",
        text="Of the table, of a partition, or of all partitions together. `stats_compliant` says whether they hold "
        "for `valid_write_ids`. It is absent if the request has no list, or if nobody can tell: so it is of all "
        "partitions of a transactional table that has many.",
        returns="The statistics.",
    ),
    Route(
        method="GET",
        path="/v1/constraints/{db}/{table}",
        handler=get_constraints,
        parameters=ConstraintsParameters,
        answer=ObjectsAnswer,
        errors=(*_TABLE_ERRORS, "not_found"),
        name="getConstraints",
        tag="catalog",
        summary="Read a table's constraints",
        text="Decided by the table's list.",
        returns="The constraints, all kinds in one object.",
    ),
    Route(
        method="GET",
        path="/v1/databases",
        handler=get_databases,
        parameters=DatabasesParameters,
        answer=ObjectsAnswer,
        errors=(*_OBJECT_ERRORS, "page_expired"),
        name="getDatabases",
        tag="catalog",
        summary="Read all databases",
        text="Databases have no list: `token` decides.",
        returns="The databases.",
    ),
    Route(
        method="GET",
        path="/v1/databases/{db}",
        handler=get_database,
        parameters=DatabaseParameters,
        answer=ObjectsAnswer,
        errors=(*_OBJECT_ERRORS, "not_found"),
        name="getDatabase",
        tag="catalog",
        summary="Read a database",
        text="Databases have no list: `token` decides.",
        returns="The database.",
    ),
    Route(
        method="GET",
        path="/v1/functions/{db}",
        handler=get_functions,
        parameters=FunctionsParameters,
        answer=ObjectsAnswer,
        errors=(*_OBJECT_ERRORS, "page_expired"),
        name="getFunctions",
        tag="catalog",
        summary="Read a database's functions",
        text="Functions have no list: `token` decides. Hive logs no event when a function is altered.",
        returns="The functions.",
    ),
    Route(
        method="GET",
        path="/v1/functions/{db}/{function}",
        handler=get_function,
        parameters=FunctionParameters,
        answer=ObjectsAnswer,
        errors=(*_OBJECT_ERRORS, "not_found"),
        name="getFunction",
        tag="catalog",
        summary="Read a function",
        text="Functions have no list: `token` decides. Hive logs no event when a function is altered.",
        returns="The function.",
    ),
    *PRIVILEGES,
    *STREAMING,
    *BYTES,
    *LOCATIONS,
    Route(
        method="GET",
        path="/healthz",
        handler=get_health,
        answer=StatusAnswer,
        role=None,
        name="getHealth",
        tag="operations",
        summary="Is the process alive?",
        text="Always 200 while the process answers; says nothing about owners or sources.",
        returns="The process is alive.",
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=get_readiness,
        answer=StatusAnswer,
        errors=("not_ready",),
        role=None,
        name="getReadiness",
        tag="operations",
        summary="Has every partition had an owner that was caught up?",
        text="200 once each partition of each keyspace has had an owner that reached the topic's end as of its start, "
        "and had something of a source, or of each shard of the keyspace's map.",
        returns="Every partition has had such an owner.",
    ),
    *STATUS,
    *LETTERS,
    Route(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        role=METRICS,
        name="getMetrics",
        tag="operations",
        summary="Prometheus metrics.",
        text="In Prometheus' text format.",
        returns="The metrics of this front.",
    ),
)
"""Every route that /openapi.json describes, the most frequent one first: the router tries them in order."""
