"""The client's side of HTTP without I/O: builds requests, and decodes responses into answers and errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar
from urllib.parse import quote

import msgspec

from ._tokens import TokenError, Vector
from .answers import (
    STATUS_OF_CODE,
    DescriptionAnswer,
    KeptAnswer,
    ListsAnswer,
    Objects,
    Page,
    Problem,
    Row,
    RowBatchAnswer,
    ShardPlace,
    Table,
)
from .errors import (
    BadRequest,
    ClientError,
    Conflict,
    HistoryLost,
    NotFoundError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from .keys import format_key, format_value

_BY_STATUS: Mapping[int, type[ClientError]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Unauthorized,
    404: NotFoundError,
    405: BadRequest,
    409: Conflict,
    410: Conflict,
    412: Conflict,
    413: BadRequest,
    414: BadRequest,
    416: BadRequest,
    429: TooManyRequests,
    503: Unavailable,
}
_BY_STATUS_OF_A_PROXY: Mapping[int, type[ClientError]] = {
    429: TooManyRequests,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}
"""The response of what stands before a front, while no front answers it, or too many ask."""
_AWAY = (502, 503, 504)

_CONTENT_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+)", re.ASCII)
_URL_MAX = 2_000
"""Characters of parameters, before they are encoded: servers and proxies take URLs of several times as many."""

Answer = TypeVar("Answer")

_ENVELOPE = b'{"served_from":'
"""How the JSON of an answer begins, so that it need not be decoded to know it from a problem."""


class Place(NamedTuple):
    """A row by its key, so that a client can tell which node holds it. ``table``: as it is called in the request."""

    keyspace: str
    table: str
    values: tuple[object, ...]


class HttpRequest(NamedTuple):
    """``path`` is percent-encoded; ``body`` is JSON, empty for GET; ``headers``: besides its content type.

    ``place``: the row that it is about, if it is about one. ``wait_ms``: as its body allows, where no parameter does.
    """

    method: str
    path: str
    params: dict[str, str]
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    place: Place | None = None
    wait_ms: int = 0


HttpResponse: TypeAlias = tuple[int, bytes]
"""Status and body."""


@lru_cache(maxsize=1024)
def _segment(name: str) -> str:
    segment = quote(name, safe="")
    return segment.replace(".", "%2E") if segment in (".", "..") else segment  # as of a key


def row_request(keyspace: str, table: str, pk: Sequence[object], params: Mapping[str, str]) -> HttpRequest:
    """GET of one row. Raises `BadRequest` ``bad_key``."""
    path = f"/v1/rows/{_segment(keyspace)}/{_segment(table)}/{format_key(pk)}"
    return HttpRequest("GET", path, dict(params), place=Place(keyspace, table, tuple(pk)))


def given_request(
    keyspace: str, table: str, pk: Sequence[object], row: Mapping[str, Any] | None, params: Mapping[str, str]
) -> HttpRequest:
    """PUT of one row. Raises `BadRequest` ``bad_key``."""
    path = f"/v1/rows/{_segment(keyspace)}/{_segment(table)}/{format_key(pk)}"
    body = msgspec.json.encode({"row": row})
    return HttpRequest("PUT", path, dict(params), body, place=Place(keyspace, table, tuple(pk)))


def rows_request(
    keyspace: str, keys: Sequence[tuple[str, Sequence[object]]], params: Mapping[str, str | int]
) -> HttpRequest:
    """POST of a batch: (table, key values) pairs. Raises `BadRequest` ``bad_key``."""
    wanted = [{"table": table, "pk": format_key(pk)} for table, pk in keys]
    body = msgspec.json.encode({"keys": wanted, **params})
    path, wait = f"/v1/rows/{_segment(keyspace)}:batch", params.get("max_wait_ms")
    return HttpRequest("POST", path, {}, body, wait_ms=wait if isinstance(wait, int) else 0)


def description_request(keyspace: str, table: str) -> HttpRequest:
    """GET of a table's description."""
    return HttpRequest("GET", f"/v1/descriptions/{_segment(keyspace)}/{_segment(table)}", {})


def range_request(keyspace: str, table: str, columns: Mapping[str, object], params: Mapping[str, str]) -> HttpRequest:
    """GET of the rows that ``columns`` name. Raises `BadRequest` ``bad_key``."""
    where = {f"where.{name}": format_value(value) for name, value in columns.items()}
    return HttpRequest("GET", f"/v1/rows/{_segment(keyspace)}/{_segment(table)}", {**where, **params})


def table_request(
    catalog: str, db: str, table: str, write_ids: str | None, table_id: int, params: Mapping[str, str]
) -> HttpRequest:
    """GET of one catalog table."""
    query = {"catalog": catalog, **params}
    if write_ids is not None:
        query["valid_write_ids"] = write_ids
    if table_id:
        query["table_id"] = str(table_id)
    return HttpRequest("GET", f"/v1/tables/{_segment(db)}/{_segment(table)}", query)


def objects_request(kind: str, path: Sequence[str], query: Mapping[str, str]) -> HttpRequest:
    """GET of catalog objects: ``/v1/<kind>/<path>…``; of partitions, below their table."""
    names = "/".join(map(_segment, path))
    if kind == "partitions":
        return HttpRequest("GET", f"/v1/tables/{names}/partitions", dict(query))
    return HttpRequest("GET", f"/v1/{kind}/{names}".rstrip("/"), dict(query))


def lists_request(
    catalog: str, tables: Sequence[str], txn: int, txns: str, params: Mapping[str, str], url_max: int = _URL_MAX
) -> HttpRequest:
    """GET of what a transaction needs to read ``tables``; POST if they make a URL longer than ``url_max``."""
    query = {"catalog": catalog, "tables": msgspec.json.encode([*tables]).decode(), **params}
    query |= {"txn": str(txn)} if txn else {}
    query |= {"txns": txns} if txns else {}
    if sum(map(len, query.values())) <= url_max:
        return HttpRequest("GET", "/v1/lists", query)
    body = msgspec.json.encode({"catalog": catalog, "tables": [*tables], "txn": txn, "txns": txns, **params})
    return HttpRequest("POST", "/v1/lists", {}, body)


def location_request(keyspace: str, partition: int, params: Mapping[str, str]) -> HttpRequest:
    """GET of a partition's location. The answer names the epochs of its shards."""
    return HttpRequest("GET", f"/v1/locations/{_segment(keyspace)}/{partition}", dict(params))


def routes_request(keyspace: str) -> HttpRequest:
    """GET of where a keyspace's nodes answer."""
    return HttpRequest("GET", f"/v1/routes/{_segment(keyspace)}", {})


class FileBytes(NamedTuple):
    """Bytes of a file from ``start`` on. ``size``: of the whole file; ``etag``: of the version; "" if it has none."""

    data: bytes
    start: int
    size: int
    etag: str


def file_request(uri: str, start: int, end: int | None, etag: str) -> HttpRequest:
    """GET of a file's bytes from ``start`` to ``end`` (None: to its end), if it has the version ``etag`` ("": any).

    Raises `BadRequest` ``bad_range`` where there is none between them: a server would give the whole file.
    """
    if start < 0 or (end is not None and end <= start):
        raise BadRequest(
            f"no byte is between {start} and {end}", hint="places count from the beginning", code="bad_range"
        )
    headers = (("if-match", etag),) if etag else ()
    if start or end is not None:
        headers = (*headers, ("range", f"bytes={start}-{'' if end is None else end - 1}"))
    return HttpRequest("GET", f"/v1/bytes/{_segment(uri)}", {}, headers=headers)


def read_file(status: int, headers: Mapping[str, str], body: bytes) -> FileBytes:
    """The bytes in an answer. Raises `ClientError`."""
    etag = headers.get("etag", "")
    if status == 200:
        return FileBytes(body, 0, len(body), etag)
    place = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    if status != 206 or place is None or int(place[2]) - int(place[1]) + 1 != len(body):
        _fail(status, body)
    return FileBytes(body, int(place[1]), int(place[3]), etag)


class _Location(msgspec.Struct):
    token: str
    shards: dict[str, ShardPlace] = {}


_row = msgspec.json.Decoder(Row)
_description = msgspec.json.Decoder(DescriptionAnswer)
_kept = msgspec.json.Decoder(KeptAnswer)
_page = msgspec.json.Decoder(Page)
_table = msgspec.json.Decoder(Table)
_objects = msgspec.json.Decoder(Objects)
_lists = msgspec.json.Decoder(ListsAnswer)
_rows = msgspec.json.Decoder(RowBatchAnswer[msgspec.Raw])
_location = msgspec.json.Decoder(_Location)
_problem = msgspec.json.Decoder(Problem)
_object = msgspec.json.Decoder(dict[str, Any])


def read_row(status: int, body: bytes) -> Row:
    """The row in an answer. Raises `ClientError`."""
    return _decode(_row, body) if _is_answer(status, body) else _fail(status, body)


def read_kept(status: int, body: bytes) -> KeptAnswer:
    """What became of a row that was given. Raises `ClientError`."""
    return _decode(_kept, body) if _is_answer(status, body) else _fail(status, body)


def read_description(status: int, body: bytes) -> DescriptionAnswer:
    """The description in an answer. Raises `ClientError`."""
    return _decode(_description, body) if status == 200 else _fail(status, body)


def read_rows(status: int, body: bytes) -> tuple[list[Row | ClientError], str]:
    """The rows of a batch in the order of its keys, each a row or its error; and the token. Raises `ClientError`."""
    batch = _decode(_rows, body) if _is_answer(status, body) else _fail(status, body)
    return [_element(bytes(element)) for element in batch.rows], batch.token


def read_page(status: int, body: bytes) -> Page:
    """The rows in an answer, or their number. Raises `ClientError`."""
    return _decode(_page, body) if _is_answer(status, body) else _fail(status, body)


def read_table(status: int, body: bytes) -> Table:
    """The table in an answer. Raises `ClientError`."""
    return _decode(_table, body) if _is_answer(status, body) else _fail(status, body)


def read_objects(status: int, body: bytes) -> Objects:
    """The objects in an answer. Raises `ClientError`."""
    return _decode(_objects, body) if _is_answer(status, body) else _fail(status, body)


def read_lists(status: int, body: bytes) -> ListsAnswer:
    """The lists in an answer. Raises `ClientError`."""
    return _decode(_lists, body) if _is_answer(status, body) else _fail(status, body)


def reader_of(kind: type[Answer]) -> Callable[[int, bytes], Answer]:
    """Gives the ``kind`` in an answer. Raises `ClientError`."""
    decoder = msgspec.json.Decoder(kind)
    return lambda status, body: _decode(decoder, body) if _is_answer(status, body) else _fail(status, body)


def read_epochs(status: int, body: bytes) -> dict[str, int]:
    """The epoch of each shard in a location answer. Raises `ClientError`."""
    location = _decode(_location, body) if status == 200 else _fail(status, body)
    if location.shards:
        return {shard: place.epoch for shard, place in location.shards.items()}
    try:  # an older front has said it only in the token
        known, _ = Vector.parse_known(location.token)
    except TokenError as error:
        raise ServerError(f"the token of the response: {error}", hint=error.hint, code="bad_answer") from error
    return {shard: component.epoch for shard, component in known.items()}


def _element(body: bytes) -> Row | ClientError:
    if body.startswith(_ENVELOPE):
        return _decode(_row, body)
    found = _decode(_object, body)
    if "served_from" in found:
        return _decode(_row, body)
    status = found.get("status")
    return error_of(status if isinstance(status, int) else STATUS_OF_CODE.get(str(found.get("code")), 500), body)


def _is_answer(status: int, body: bytes) -> bool:
    """Whether the body is an answer. A 404 may be one: the row is known not to exist."""
    if status != 404:
        return status == 200
    if body.startswith(_ENVELOPE):
        return True
    try:
        return "served_from" in _object.decode(body)
    except (ValueError, RecursionError):
        return False


def _decode(decoder: msgspec.json.Decoder[Answer], body: bytes) -> Answer:
    try:
        return decoder.decode(body)
    except (ValueError, RecursionError) as error:
        raise ServerError(
            f"the response is not Freshet's: {error}", hint="is this the URL of `freshet serve`?"
        ) from None


def _fail(status: int, body: bytes) -> NoReturn:
    raise error_of(status, body)


def is_of_a_proxy(status: int, body: bytes) -> bool:
    """Whether what stands before a front answers in its place, for now."""
    return status in _AWAY and error_of(status, body).code == "bad_answer"


def error_of(status: int, body: bytes) -> ClientError:
    """The error that a response is."""
    try:
        problem = _problem.decode(body)
    except (ValueError, RecursionError):
        kind = _BY_STATUS_OF_A_PROXY.get(status, ServerError)
        message = f"the response with HTTP status {status} is not Freshet's"
        return kind(message, hint="does a proxy answer in the front's place?", code="bad_answer", status=status)
    if problem.code == "history_lost":
        lost = HistoryLost(problem.message, hint=problem.hint, code=problem.code, status=status)
        lost.token = problem.token or ""
        return lost
    kind = _BY_STATUS.get(status, ServerError)
    return kind(problem.message, hint=problem.hint, code=problem.code, status=status)
