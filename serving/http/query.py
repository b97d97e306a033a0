"""The parameters and bodies of requests as types with bounds, and the reads that they ask for. Pure.

Requests are checked against these types, and /openapi.json describes them.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from consumers.owner.protocol import KEYS_MAX
from serving.client.keys import format_key
from serving.errors import ReadError
from serving.http.limits import BATCH_COMPONENTS_MAX, RequestLimits
from serving.reads.demands import (
    NO_OPTIONS,
    NO_VECTOR,
    Consistency,
    ReadDemand,
    RequestedRange,
    RequestedRow,
    RequestedTable,
    RowOptions,
)
from serving.reads.objects import RequestedObjects
from stream.sources.hive.partition_names import told_by
from tokens import EventToken, TokenError, ValidWriteIdList, Vector

Milliseconds = Annotated[int, Meta(ge=0, le=10**10 - 1)]
Given: TypeAlias = int | UnsetType | None
"""A number of a request. None or unset: the request doesn't say it."""
RowLimit = Annotated[int, Meta(ge=1, le=KEYS_MAX)]
TableId = Annotated[int, Meta(ge=0, le=2**63 - 1)]

RowTableParameter = Annotated[str, Meta(description="`db.table`, or a table of the keyspace's database.")]
KeyParameter = Annotated[str, Meta(description="Key columns in key order, comma-separated, each percent-encoded.")]
TokenParameter = Annotated[
    str,
    Meta(description="The session's vector: the `token` of its last answer; several, separated by commas, all count."),
]
WaitParameter = Annotated[
    Milliseconds,
    Meta(description="How long to wait for the token's position before asking the source. The front has a default."),
]
StalenessParameter = Annotated[
    Milliseconds,
    Meta(description="The answer holds all that the source had committed until this long before the request."),
]

ConsistencyParameter = Annotated[
    Consistency,
    Meta(
        description="Who may answer from the cache: the owner (`leader`), a follower too while the owner is away or "
        "slow (`bounded`), or owner and followers in turn (`any`). Each proves its answer."
    ),
]
LastKnownParameter = Annotated[
    bool,
    Meta(
        description="Where a DDL has voided the row, its image of before will do, by the columns of then: `eventual`. "
        "It means nothing beside a token or `max_staleness_ms`."
    ),
]


class RowParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of one row. ``pk`` is still percent-encoded."""

    keyspace: str
    table: RowTableParameter
    pk: KeyParameter
    token: TokenParameter = ""
    max_wait_ms: WaitParameter | UnsetType = UNSET
    max_staleness_ms: StalenessParameter | UnsetType = UNSET
    consistency: ConsistencyParameter = "bounded"
    last_known: LastKnownParameter = False
    include_event_token: Annotated[
        bool, Meta(description="Adds `event_token`: the place in history that the row stands for.")
    ] = False
    compare_event_token: Annotated[
        str, Meta(description="Adds `fresher`: whether the row is as new as this event token, where known.")
    ] = ""


class GivenRowParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a row that is given. ``pk`` is still percent-encoded."""

    keyspace: str
    table: RowTableParameter
    pk: KeyParameter
    token: Annotated[
        str,
        Meta(description="The place in history that the row is of: the `event_token` or `token` it was read with."),
    ] = ""
    max_wait_ms: WaitParameter | UnsetType = UNSET


class RangeParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of the rows that some columns name."""

    keyspace: str
    table: RowTableParameter
    columns: Annotated[
        dict[str, str],
        Meta(
            description="Leading columns of the primary key and their values, as `customer=7`, or all columns of an "
            "index; none: all rows. "
            "A column that is named like another parameter is written `where.limit=7`."
        ),
    ] = {}
    order_by: Annotated[
        str,
        Meta(
            description="Columns, separated by commas, each after a `-` for descending, before those of the key. "
            "All in one direction."
        ),
    ] = ""
    limit: (
        Annotated[RowLimit, Meta(description="Of rows; by default 100. With `only=count`: count up to here.")]
        | UnsetType
    ) = UNSET
    page: Annotated[str, Meta(description="The `page` of the answer after which to go on.")] = ""
    only: Annotated[Literal["rows", "count"], Meta(description="`count`: the number of rows, without them.")] = "rows"
    token: TokenParameter = ""
    max_wait_ms: WaitParameter | UnsetType = UNSET
    max_staleness_ms: StalenessParameter | UnsetType = UNSET
    consistency: ConsistencyParameter = "bounded"


class DescriptionParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a table of rows."""

    keyspace: str
    table: RowTableParameter


class RowBatchParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a row batch."""

    keyspace: str


class TableParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of one catalog table."""

    db: str
    table: str
    catalog: Annotated[str, Meta(description="The catalog's name.")] = "hive"
    valid_write_ids: (
        Annotated[str, Meta(description="The reader's ValidWriteIdList, as Hive writes it.")] | UnsetType
    ) = UNSET
    table_id: Annotated[TableId, Meta(description="The table's id; 0 means not given.")] = 0
    token: TokenParameter = ""
    max_wait_ms: WaitParameter | UnsetType = UNSET
    max_staleness_ms: StalenessParameter | UnsetType = UNSET


class _CatalogParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    catalog: Annotated[str, Meta(description="The catalog's name.")] = "hive"
    token: TokenParameter = ""
    max_wait_ms: WaitParameter | UnsetType = UNSET
    max_staleness_ms: StalenessParameter | UnsetType = UNSET


class _OfTableParameters(_CatalogParameters, kw_only=True):
    db: str
    table: str
    valid_write_ids: (
        Annotated[str, Meta(description="The reader's ValidWriteIdList, as Hive writes it.")] | UnsetType
    ) = UNSET
    table_id: Annotated[TableId, Meta(description="The table's id; 0 means not given.")] = 0


NamesOnly = Annotated[bool, Meta(description="Leaves `objects` out.")]
PageLimit = Annotated[int, Meta(ge=1, le=10_000, description="Objects of a page, at most.")]
Page = Annotated[str, Meta(description="`next_page` of the answer before.")]


class _ListParameters(_CatalogParameters, kw_only=True):
    names_only: NamesOnly = False
    limit: PageLimit = 1_000
    page: Page = ""


class DatabasesParameters(_ListParameters, kw_only=True):
    """Of all databases."""


class DatabaseParameters(_CatalogParameters, kw_only=True):
    """Of one database."""

    db: str


class FunctionsParameters(_ListParameters, kw_only=True):
    """Of a database's functions."""

    db: str


class FunctionParameters(_CatalogParameters, kw_only=True):
    """Of one function."""

    db: str
    function: str


class ConstraintsParameters(_OfTableParameters, kw_only=True):
    """Of a table's constraints."""


class StatisticsParameters(_OfTableParameters, kw_only=True):
    """Of column statistics."""

    partition: Annotated[
        str, Meta(description="JSON array of a partition's values, for its statistics; empty: the table's.")
    ] = ""
    aggregate: Annotated[bool, Meta(description="Those of all partitions together.")] = False


class PartitionsParameters(_OfTableParameters, kw_only=True):
    """Of a table's partitions."""

    filter: Annotated[str, Meta(description="A filter in Hive's grammar over the partition keys.")] = ""
    names: Annotated[str, Meta(description="JSON array of partitions, each an array of its values.")] = ""
    values: Annotated[str, Meta(description="JSON array of the first values; an empty one matches any.")] = ""
    count: Annotated[bool, Meta(description="Only how many there are.")] = False
    names_only: NamesOnly = False
    limit: PageLimit = 1_000
    page: Page = ""


class TableIdParameters(_CatalogParameters, kw_only=True):
    """Of one catalog table, by id."""

    table_id: TableId
    valid_write_ids: (
        Annotated[str, Meta(description="The reader's ValidWriteIdList, as Hive writes it.")] | UnsetType
    ) = UNSET


class TableBatchParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a table batch, which has no parameters."""


class _RowKeyBody(msgspec.Struct, forbid_unknown_fields=True):
    table: str
    pk: str | int | list[str | int]


class RowBatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a row batch. ``pk``: text as in a path, or the key columns' values as a list."""

    keys: Annotated[list[_RowKeyBody], Meta(min_length=1)]
    token: str | None = None
    max_wait_ms: Milliseconds | None = None
    max_staleness_ms: Milliseconds | None = None
    consistency: ConsistencyParameter = "bounded"
    last_known: LastKnownParameter = False


class GivenRowBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a row that is given: column → canonical value, or null: there is no such row."""

    row: dict[str, Any] | None


class _TableBody(msgspec.Struct, forbid_unknown_fields=True):
    db: str
    table: str
    catalog: str = "hive"
    valid_write_ids: str | None = None
    table_id: TableId = 0


class TableBatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a table batch."""

    tables: Annotated[list[_TableBody], Meta(min_length=1)]
    token: str | None = None
    max_wait_ms: Milliseconds | None = None
    max_staleness_ms: Milliseconds | None = None


def demand_of(
    token: str | None, max_wait_ms: Given, limits: RequestLimits, max_staleness_ms: Given = None, now_ms: int = 0
) -> ReadDemand:
    """The demand of a request. An empty token counts as no token. Raises `ReadError` ``bad_token``.

    ``token``: one or several, from URL, body and header; all of them count. ``now_ms``: since 1970, when it came.
    """
    wait_ms = min(max_wait_ms if isinstance(max_wait_ms, int) else limits.wait_ms_default, limits.wait_ms_max)
    not_before_ms = max(now_ms - max_staleness_ms, 0) if isinstance(max_staleness_ms, int) else 0
    if not token:
        return ReadDemand(NO_VECTOR, False, wait_ms, not_before_ms)
    try:
        return ReadDemand(Vector.parse_all(token), True, wait_ms, not_before_ms)
    except TokenError as error:
        raise ReadError("bad_token", f"token: {error}", hint=error.hint) from error


def requested_range(parameters: RangeParameters) -> RequestedRange:
    """The rows that a request names by some columns."""
    limit = parameters.limit if isinstance(parameters.limit, int) else 0
    order_by = [name for name in parameters.order_by.split(",") if name]
    is_counted = parameters.only == "count"
    return RequestedRange(parameters.table, parameters.columns, order_by, limit, parameters.page, is_counted)


def row_options(parameters: RowParameters) -> RowOptions:
    """The options in a row's parameters. Raises `ReadError` ``bad_token``."""
    if not parameters.include_event_token and not parameters.compare_event_token:
        return NO_OPTIONS
    compare = parameters.compare_event_token
    try:
        return RowOptions(parameters.include_event_token, EventToken.parse(compare) if compare else None)
    except TokenError as error:
        raise ReadError("bad_token", f"compare_event_token: {error}", hint=error.hint) from error


def requested_table(parameters: TableParameters | _TableBody | _OfTableParameters) -> RequestedTable:
    """The catalog table that a request names. Raises `ReadError` ``bad_parameter``, ``bad_write_ids``."""
    check_db(parameters.db)
    parsed = requested_list(parameters.valid_write_ids)
    return RequestedTable(parameters.catalog, parameters.db, parameters.table, parsed, parameters.table_id)


def check_db(db: str) -> None:
    """Raises `ReadError` ``bad_parameter`` if a table of this database can't be told by its name."""
    if "." in db:
        hint = "db.table would not tell which table it is: ask the metastore for it, or rename the database"
        raise ReadError("bad_parameter", f"db: {db!r} has a dot", hint=hint)


def requested_list(text: str | UnsetType | None) -> ValidWriteIdList | None:
    """The list of a request, None if it has none. Raises `ReadError` ``bad_write_ids``."""
    if not isinstance(text, str):
        return None
    if not text:
        raise ReadError("bad_write_ids", "valid_write_ids is empty", hint="leave it out for an external table")
    try:
        return ValidWriteIdList.parse(text.lower())  # its only letters are the table's name
    except TokenError as error:
        raise ReadError("bad_write_ids", f"valid_write_ids: {error}", hint=error.hint) from error


def requested_partitions(parameters: PartitionsParameters) -> RequestedObjects:
    """The partitions that a request names. Raises `ReadError` ``bad_parameter``, ``bad_write_ids``."""
    names = partition_names(parameters)
    if len(names) > KEYS_MAX:
        raise ReadError("too_many_keys", f"{len(names)} partitions by name, at most {KEYS_MAX}")
    prefix = json_parameter("values", parameters.values, list[str]) or []
    if names and (prefix or parameters.filter):
        other = "values" if prefix else "filter"
        raise ReadError("bad_parameter", f"names and {other} are both given: ask for one of them")
    return RequestedObjects(
        "partition",
        requested_table(parameters),
        names=tuple(map(told_by, names)),
        prefix=tuple(prefix),
        filter=parameters.filter,
        page=parameters.page,
        limit=parameters.limit,
        names_only=parameters.names_only,
        count_only=parameters.count,
    )


def partition_names(parameters: PartitionsParameters) -> list[list[str]]:
    """The partitions that a request names one by one. Raises `ReadError` ``bad_parameter``."""
    names: list[list[str]] = json_parameter("names", parameters.names, list[list[str]]) or []
    return names


def requested_statistics(parameters: StatisticsParameters) -> RequestedObjects:
    """The statistics that a request names. Raises `ReadError` ``bad_parameter``, ``bad_write_ids``."""
    values = json_parameter("partition", parameters.partition, list[str])
    if values and parameters.aggregate:
        raise ReadError("bad_parameter", "partition and aggregate are both given: ask for one of them")
    kind = "aggregate_statistics" if parameters.aggregate else "partition_statistics" if values else "statistics"
    return RequestedObjects(kind, requested_table(parameters), names=(told_by(values or ()),))


def json_parameter(name: str, text: str, kind: Any) -> Any:
    """The JSON in a parameter, None if it is not given."""
    if not text:
        return None
    try:
        return msgspec.json.decode(text.encode(), type=kind)
    except (ValueError, RecursionError) as error:
        raise ReadError("bad_parameter", f"{name}: {error}") from error


def row_batch(body: RowBatchBody, limits: RequestLimits, now_ms: int) -> tuple[list[RequestedRow], ReadDemand]:
    """The keys and the one demand of a batch. Raises `ReadError` ``too_many_keys``, ``bad_token``."""
    demand = demand_of(body.token, body.max_wait_ms, limits, body.max_staleness_ms, now_ms)
    _check_size(body.keys, demand, limits)
    wanted = [RequestedRow(key.table, _segment(key.pk)) for key in body.keys]
    return wanted, demand._replace(consistency=body.consistency, last_known=body.last_known)


def table_batch(body: TableBatchBody, limits: RequestLimits, now_ms: int) -> tuple[list[RequestedTable], ReadDemand]:
    """The tables and the one demand of a batch. Raises as `row_batch`, and ``bad_write_ids``."""
    demand = demand_of(body.token, body.max_wait_ms, limits, body.max_staleness_ms, now_ms)
    _check_size(body.tables, demand, limits)
    return [requested_table(table) for table in body.tables], demand


def _segment(pk: str | int | list[str | int]) -> bytes:
    if isinstance(pk, list):
        return format_key(pk).encode() if pk else b""
    return str(pk).encode()


def _check_size(elements: Sized, demand: ReadDemand, limits: RequestLimits) -> None:
    shards = max(len(demand.vector), 1)
    most = min(limits.batch_keys_max, BATCH_COMPONENTS_MAX // shards)
    if len(elements) > most:
        told = f" with a token of {shards} shards" if most < limits.batch_keys_max else ""
        raise ReadError("too_many_keys", f"{len(elements)} in one batch{told}, at most {most}")
