"""The client's side of the HTTP interface, without I/O: requests as values, answers and errors as types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from serving.client.answers import Problem, RowAnswer, RowBatchAnswer, TableAnswer
from serving.client.keys import format_key
from serving.errors import STATUS_OF_CODE
from tokens.errors import FreshetError


class ClientError(FreshetError):
    """A request that was not answered. ``status`` is HTTP's; 0 where there was no answer at all."""

    code = "client_error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, status: int = 0) -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status


class BadRequest(ClientError):
    """The request is wrong (400, 413, 414): ``bad_token``, ``bad_key``, ``missing_write_ids``, …"""


class Unauthorized(ClientError):
    """No bearer token, or not the right one (401, 403)."""


class NotFoundError(ClientError):
    """404 for a keyspace, table or path; a row that isn't there is an answer, not an error."""


class HistoryLost(ClientError):
    """409 ``history_lost``: the source lost what the session had seen. The session has adopted ``token`` already."""

    token: str = ""


class Conflict(ClientError):
    """The demand and the source disagree (other 409): ``table_id_changed``, …"""


class TooManyRequests(ClientError):
    """429: try again shortly."""


class Unavailable(ClientError):
    """503: neither the cache nor the source can prove an answer now, or the front is not ready. Try again."""


class Unreachable(ClientError):
    """The front did not answer; code ``unreachable``."""

    code = "unreachable"


class ServerError(ClientError):
    """500, or an answer that is none of ours."""


_BY_STATUS: Mapping[int, type[ClientError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFoundError,
    405: BadRequest,
    409: Conflict,
    413: BadRequest,
    414: BadRequest,
    429: TooManyRequests,
    503: Unavailable,
}


_ENVELOPE = b'{"served_from":'
"""What every answer begins with, and no problem does."""


class HttpRequest(NamedTuple):
    """One HTTP request: ``path`` is percent-encoded; ``body`` is JSON, empty for GET."""

    method: str
    path: str
    params: dict[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Row:
    """A row, or its absence. ``value``: column → canonical value (`docs/start/http-api.md`), None if not found."""

    found: bool
    value: dict[str, Any] | None
    freshness: str
    served_from: str
    why: str
    token: str = field(repr=False)
    event_token: str | None = None
    fresher: bool | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A catalog table as stored; ``write_ids`` is the list that ``value`` is good for."""

    found: bool
    value: dict[str, Any] | None
    table_id: int
    write_ids: str | None
    freshness: str
    served_from: str
    why: str
    token: str = field(repr=False)


def row_request(keyspace: str, table: str, pk: Sequence[object], params: Mapping[str, str]) -> HttpRequest:
    """GET of one row. Raises `serving.errors.ReadError` ``bad_key``."""
    path = f"/v1/rows/{quote(keyspace, safe='')}/{quote(table, safe='')}/{format_key(pk)}"
    return HttpRequest("GET", path, dict(params))


def rows_request(
    keyspace: str, keys: Sequence[tuple[str, Sequence[object]]], params: Mapping[str, str | int]
) -> HttpRequest:
    """POST of a batch: (table, key values) pairs. Raises `serving.errors.ReadError` ``bad_key``."""
    wanted = [{"table": table, "pk": format_key(pk)} for table, pk in keys]
    body = msgspec.json.encode({"keys": wanted, **params})
    return HttpRequest("POST", f"/v1/rows/{quote(keyspace, safe='')}:batch", {}, body)


def table_request(
    catalog: str, db: str, table: str, write_ids: str | None, table_id: int, params: Mapping[str, str]
) -> HttpRequest:
    """GET of one catalog table."""
    query = {"catalog": catalog, **params}
    if write_ids is not None:
        query["valid_write_ids"] = write_ids
    if table_id:
        query["table_id"] = str(table_id)
    return HttpRequest("GET", f"/v1/tables/{quote(db, safe='')}/{quote(table, safe='')}", query)


def location_request(keyspace: str, partition: int) -> HttpRequest:
    """GET of a partition's owner; its token is the partition's watermark."""
    return HttpRequest("GET", f"/v1/locations/{quote(keyspace, safe='')}/{partition}", {})


class _Location(msgspec.Struct):
    token: str


_row = msgspec.json.Decoder(RowAnswer)
_table = msgspec.json.Decoder(TableAnswer)
_rows = msgspec.json.Decoder(RowBatchAnswer)
_location = msgspec.json.Decoder(_Location)
_problem = msgspec.json.Decoder(Problem)
_object = msgspec.json.Decoder(dict[str, Any])
_nullable = msgspec.json.Decoder(dict[str, Any] | None)


def read_row(status: int, body: bytes) -> Row:
    """The row in an answer. Raises `ClientError`."""
    return _as_row(_decode(_row, body)) if _is_answer(status, body) else _fail(status, body)


def read_rows(status: int, body: bytes) -> tuple[list[Row | ClientError], str]:
    """The rows of a batch in the order of its keys, each a row or its error; the new token. Raises `ClientError`."""
    if not _is_answer(status, body):
        _fail(status, body)
    batch = _decode(_rows, body)
    return [_element(bytes(element)) for element in batch.rows], batch.token


def read_table(status: int, body: bytes) -> Table:
    """The table in an answer. Raises `ClientError`."""
    if not _is_answer(status, body):
        _fail(status, body)
    found = _decode(_table, body)
    value = _decode(_nullable, bytes(found.table))
    return Table(
        found.found, value, found.table_id, found.write_ids, found.freshness, found.served_from, found.why, found.token
    )


def read_location(status: int, body: bytes) -> str:
    """The token of a location answer. Raises `ClientError`."""
    if status != 200:
        _fail(status, body)
    return str(_decode(_location, body).token)


def _element(body: bytes) -> Row | ClientError:
    if body.startswith(_ENVELOPE):
        return _as_row(_decode(_row, body))
    return _error_of(STATUS_OF_CODE.get(str(_decode(_object, body).get("code")), 500), body)


def _as_row(found: RowAnswer) -> Row:
    return Row(
        found.found,
        _decode(_nullable, bytes(found.row)),
        found.freshness,
        found.served_from,
        found.why,
        found.token,
        found.event_token,
        found.fresher,
    )


def _is_answer(status: int, body: bytes) -> bool:
    """A 404 that carries the envelope is an answer: the row is known not to be there."""
    return status == 200 or (status == 404 and body.startswith(_ENVELOPE))


def _decode(decoder: msgspec.json.Decoder[Any], body: bytes) -> Any:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise ServerError(
            f"the answer is none of Freshet's: {error}", hint="is the URL that of `freshet serve`?"
        ) from None


def _fail(status: int, body: bytes) -> Any:
    raise _error_of(status, body)


def _error_of(status: int, body: bytes) -> ClientError:
    try:
        problem = _problem.decode(body)
    except (ValueError, RecursionError):
        return ServerError(f"HTTP {status} with an answer that is none of Freshet's", code="bad_answer", status=status)
    if problem.code == "history_lost":
        lost = HistoryLost(problem.message, hint=problem.hint, code=problem.code, status=status)
        lost.token = problem.token or ""
        return lost
    kind = _BY_STATUS.get(status, ServerError)
    return kind(problem.message, hint=problem.hint, code=problem.code, status=status)
