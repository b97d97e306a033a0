"""The parameters and bodies of requests as types with bounds, and the reads that they ask for. Pure.

Requests are checked against these types, and /openapi.json describes them.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, Meta, UnsetType

from serving.client.keys import format_key
from serving.errors import ReadError
from serving.http.limits import RequestLimits
from serving.reads.demands import NO_OPTIONS, NO_VECTOR, ReadDemand, RequestedRow, RequestedTable, RowOptions
from tokens import EventToken, TokenError, ValidWriteIdList, Vector

Milliseconds = Annotated[int, Meta(ge=0, le=10**10 - 1)]
Given: TypeAlias = int | UnsetType | None
"""A number of a request. None or unset: the request doesn't say it."""
TableId = Annotated[int, Meta(ge=0, le=2**63 - 1)]

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


class RowParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of one row. ``pk`` is still percent-encoded."""

    keyspace: str
    table: Annotated[str, Meta(description="`db.table`, or a table of the keyspace's database.")]
    pk: Annotated[str, Meta(description="Key columns in key order, comma-separated, each percent-encoded.")]
    token: TokenParameter = ""
    max_wait_ms: WaitParameter | UnsetType = UNSET
    max_staleness_ms: StalenessParameter | UnsetType = UNSET
    include_event_token: Annotated[
        bool, Meta(description="Adds `event_token`: the place in history that the row stands for.")
    ] = False
    compare_event_token: Annotated[
        str, Meta(description="Adds `fresher`: whether the row is as new as this event token, where known.")
    ] = ""


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


class TableBatchParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a table batch, which has no parameters."""


class LocationParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a partition's location."""

    keyspace: str
    partition: int
    token: TokenParameter = ""


class _RowKeyBody(msgspec.Struct, forbid_unknown_fields=True):
    table: str
    pk: str | int | list[str | int]


class RowBatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a row batch. ``pk``: text as in a path, or the key columns' values as a list."""

    keys: Annotated[list[_RowKeyBody], Meta(min_length=1)]
    token: str | None = None
    max_wait_ms: Milliseconds | None = None
    max_staleness_ms: Milliseconds | None = None


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


def row_options(parameters: RowParameters) -> RowOptions:
    """The options in a row's parameters. Raises `ReadError` ``bad_token``."""
    if not parameters.include_event_token and not parameters.compare_event_token:
        return NO_OPTIONS
    compare = parameters.compare_event_token
    try:
        return RowOptions(parameters.include_event_token, EventToken.parse(compare) if compare else None)
    except TokenError as error:
        raise ReadError("bad_token", f"compare_event_token: {error}", hint=error.hint) from error


def requested_table(parameters: TableParameters | _TableBody) -> RequestedTable:
    """The catalog table that a request names. Raises `ReadError` ``bad_write_ids``."""
    parsed = None
    if isinstance(parameters.valid_write_ids, str):
        if not parameters.valid_write_ids:
            raise ReadError("bad_write_ids", "valid_write_ids is empty", hint="leave it out for an external table")
        try:
            parsed = ValidWriteIdList.parse(parameters.valid_write_ids)
        except TokenError as error:
            raise ReadError("bad_write_ids", f"valid_write_ids: {error}", hint=error.hint) from error
    return RequestedTable(parameters.catalog, parameters.db, parameters.table, parsed, parameters.table_id)


def row_batch(body: RowBatchBody, limits: RequestLimits, now_ms: int) -> tuple[list[RequestedRow], ReadDemand]:
    """The keys and the one demand of a batch. Raises `ReadError` ``too_many_keys``, ``bad_token``."""
    _check_size(body.keys, limits)
    wanted = [RequestedRow(key.table, _segment(key.pk)) for key in body.keys]
    return wanted, demand_of(body.token, body.max_wait_ms, limits, body.max_staleness_ms, now_ms)


def table_batch(body: TableBatchBody, limits: RequestLimits) -> tuple[list[RequestedTable], ReadDemand]:
    """The tables and the one demand of a batch. Raises as `row_batch`, and ``bad_write_ids``."""
    _check_size(body.tables, limits)
    return [requested_table(table) for table in body.tables], demand_of(body.token, body.max_wait_ms, limits)


def _segment(pk: str | int | list[str | int]) -> bytes:
    if isinstance(pk, list):
        return format_key(pk).encode() if pk else b""
    return str(pk).encode()


def _check_size(elements: Sized, limits: RequestLimits) -> None:
    if len(elements) > limits.batch_keys_max:
        raise ReadError("too_many_keys", f"{len(elements)} in one batch, at most {limits.batch_keys_max}")
