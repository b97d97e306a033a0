"""What a request says, parsed: paths, query parameters and bodies, each with a limit and a clear refusal. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from serving.client.keys import format_key
from serving.errors import ReadError
from serving.reads.demands import NO_VECTOR, ReadDemand, RowOptions, RowWanted, TableWanted
from tokens import EventToken, TokenError, ValidWriteIdList, Vector


@dataclass(frozen=True, slots=True)
class QueryLimits:
    """Bounds of a demand. ``wait_ms_default`` holds where the request says nothing."""

    wait_ms_max: int = 10_000
    wait_ms_default: int = 0
    batch_keys_max: int = 1000


ROW_PARAMETERS = frozenset({"token", "max_wait_ms", "include_event_token", "compare_event_token"})
TABLE_PARAMETERS = frozenset({"token", "max_wait_ms", "catalog", "valid_write_ids", "table_id"})

_TRUE = frozenset({"", "1", "true", "yes"})
_FALSE = frozenset({"0", "false", "no"})
_NO_PARAMETERS: dict[str, str] = {}
_NO_OPTIONS = RowOptions()


def path_text(segment: bytes, what: str) -> str:
    """A path segment, percent-decoded. Raises `ReadError` ``bad_parameter``."""
    try:
        text = unquote_to_bytes(segment).decode()
    except UnicodeDecodeError as error:
        raise ReadError("bad_parameter", f"{what} in the path is not UTF-8") from error
    if not text or "\0" in text:
        raise ReadError("bad_parameter", f"{what} in the path is {'empty' if not text else 'no name'}")
    return text


def parameters(query: bytes, allowed: frozenset[str]) -> dict[str, str]:
    """The query parameters. An unknown one is refused: a misspelt ``token`` must not become a read without one."""
    if not query:
        return _NO_PARAMETERS
    found: dict[str, str] = {}
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=32)
    except ValueError as error:
        raise ReadError("bad_parameter", f"the query string cannot be read: {error}") from error
    for name, value in pairs:
        if name not in allowed:
            raise ReadError("bad_parameter", f"unknown parameter {name!r}", hint=f"known: {', '.join(sorted(allowed))}")
        if name in found:
            raise ReadError("bad_parameter", f"parameter {name!r} is given twice")
        found[name] = value
    return found


def demand_of(token: str | None, max_wait_ms: str | int | None, limits: QueryLimits) -> ReadDemand:
    """The demand in a request. An empty token is none. Raises `ReadError`."""
    wait_ms = _wait_ms(max_wait_ms, limits)
    if not token:
        return ReadDemand(NO_VECTOR, False, wait_ms)
    try:
        return ReadDemand(Vector.parse(token), True, wait_ms)
    except TokenError as error:
        raise ReadError("bad_token", f"token: {error}", hint=error.hint) from error


def _wait_ms(text: str | int | None, limits: QueryLimits) -> int:
    if text is None:
        return limits.wait_ms_default
    if not str(text).isascii() or not str(text).isdigit() or len(str(text)) > 10:
        raise ReadError("bad_parameter", f"max_wait_ms: {text!r} is no number of milliseconds")
    return min(int(text), limits.wait_ms_max)


def row_options(found: dict[str, str]) -> RowOptions:
    """The options in a row's parameters. Raises `ReadError`."""
    if "include_event_token" not in found and "compare_event_token" not in found:
        return _NO_OPTIONS
    compare = found.get("compare_event_token")
    try:
        return RowOptions(
            _flag("include_event_token", found.get("include_event_token", "0")),
            EventToken.parse(compare) if compare else None,
        )
    except TokenError as error:
        raise ReadError("bad_token", f"compare_event_token: {error}", hint=error.hint) from error


def _flag(name: str, text: str) -> bool:
    value = text.lower()
    if value not in _TRUE | _FALSE:
        raise ReadError("bad_parameter", f"{name}: {text!r} is neither true nor false")
    return value in _TRUE


def table_wanted(catalog: str, db: str, table: str, write_ids: str | None, table_id: str | int | None) -> TableWanted:
    """The catalog table that a request names. Raises `ReadError`."""
    number = 0
    if table_id is not None:
        if not str(table_id).isascii() or not str(table_id).isdigit() or len(str(table_id)) > 19:
            raise ReadError("bad_parameter", f"table_id: {table_id!r} is no table id")
        number = int(table_id)
    parsed = None
    if write_ids is not None:
        if not write_ids:
            raise ReadError("bad_write_ids", "valid_write_ids is empty", hint="leave it out for an external table")
        try:
            parsed = ValidWriteIdList.parse(write_ids)
        except TokenError as error:
            raise ReadError("bad_write_ids", f"valid_write_ids: {error}", hint=error.hint) from error
    return TableWanted(catalog, db, table, parsed, number)


_Milliseconds = Annotated[int, msgspec.Meta(ge=0, le=10**10 - 1)]


class _RowKeyBody(msgspec.Struct, forbid_unknown_fields=True):
    table: str
    pk: str | int | list[str | int]


class RowBatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a row batch. ``pk``: text as in a path, or the key columns' values as a list."""

    keys: Annotated[list[_RowKeyBody], msgspec.Meta(min_length=1)]
    token: str | None = None
    max_wait_ms: _Milliseconds | None = None


class _TableBody(msgspec.Struct, forbid_unknown_fields=True):
    db: str
    table: str
    catalog: str = "hive"
    valid_write_ids: str | None = None
    table_id: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0


class TableBatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a table batch."""

    tables: Annotated[list[_TableBody], msgspec.Meta(min_length=1)]
    token: str | None = None
    max_wait_ms: _Milliseconds | None = None


_row_batch = msgspec.json.Decoder(RowBatchBody)
_table_batch = msgspec.json.Decoder(TableBatchBody)


def row_batch(body: bytes, limits: QueryLimits) -> tuple[list[RowWanted], ReadDemand]:
    """The keys and the one demand of a batch. Raises `ReadError` ``bad_body``, ``too_many_keys``, ``bad_token``."""
    found = _decode(_row_batch, body)
    _check_size(found.keys, limits)
    wanted = [RowWanted(key.table, _segment(key.pk)) for key in found.keys]
    return wanted, demand_of(found.token, found.max_wait_ms, limits)


def table_batch(body: bytes, limits: QueryLimits) -> tuple[list[TableWanted], ReadDemand]:
    """The tables and the one demand of a batch. Raises as `row_batch`, and ``bad_write_ids``."""
    found = _decode(_table_batch, body)
    _check_size(found.tables, limits)
    wanted = [table_wanted(t.catalog, t.db, t.table, t.valid_write_ids, t.table_id) for t in found.tables]
    return wanted, demand_of(found.token, found.max_wait_ms, limits)


def _segment(pk: str | int | list[str | int]) -> bytes:
    if isinstance(pk, list):
        return format_key(pk).encode() if pk else b""
    return str(pk).encode()


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise ReadError("bad_body", f"the body is not what /openapi.json describes: {error}") from error


def _check_size(elements: Iterable[object], limits: QueryLimits) -> None:
    count = len(list(elements))
    if count > limits.batch_keys_max:
        raise ReadError(
            "too_many_keys", f"{count} in one batch, at most {limits.batch_keys_max}", hint="split the batch"
        )
    if not count:
        raise ReadError("bad_body", "the batch is empty")
