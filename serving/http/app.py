"""The read API as an ASGI application: reads are dispatched by hand for speed, the rest is FastAPI's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException

from serving.client.answers import LocationAnswer
from serving.errors import ReadError
from serving.http.answers import Reply, problem_bytes, reply_to
from serving.http.batches import row_batch_answer, table_batch_answer
from serving.http.guard import App, Guard, Receive, RequestLimits, Scope, Send, read_body, send_json
from serving.http.openapi import PROBLEM, add_reads
from serving.http.query import (
    ROW_PARAMETERS,
    TABLE_PARAMETERS,
    QueryLimits,
    demand_of,
    parameters,
    path_text,
    row_batch,
    row_options,
    table_batch,
    table_wanted,
)
from serving.metrics import FrontMetrics
from serving.reads.demands import RowWanted
from serving.reads.locations import Locations
from serving.reads.readiness import Readiness
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace, TableSpace
from serving.reads.tables import TableReads

VERSION = "1"

Closer = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Front:
    """Everything that answers requests; made by `serving.compose`."""

    row_spaces: dict[str, RowSpace]
    table_spaces: dict[str, TableSpace]
    rows: RowReads
    tables: TableReads
    locations: Locations
    readiness: Readiness
    metrics: FrontMetrics
    limits: RequestLimits = field(default_factory=RequestLimits)
    query_limits: QueryLimits = field(default_factory=QueryLimits)
    bearer_token: str | None = None
    closers: Sequence[Closer] = ()


def make_app(front: Front) -> App:
    """The application. Its lifespan ends with everything that ``front`` holds closed."""
    return Guard(
        Reads(front, _rest(front)), bearer_token=front.bearer_token, limits=front.limits, metrics=front.metrics
    )


class Reads:
    """Dispatches reads by the path as it was sent: a key may hold encoded slashes and commas."""

    def __init__(self, front: Front, rest: App) -> None:
        self._front = front
        self._rest = rest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request. Raises `ReadError`, which the guard turns into an answer."""
        if scope["type"] == "http":
            raw = scope.get("raw_path") or scope["path"].encode()
            if raw.startswith((b"/v1/rows", b"/v1/tables")):
                await self._read(scope, receive, send, raw.split(b"/")[2:])
                return
        await self._rest(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive, send: Send, path: list[bytes]) -> None:
        match path:
            case [b"rows", keyspace, table, pk]:
                _require(scope, "GET")
                answered = await self._row(scope, keyspace, table, pk)
            case [b"rows", last] if last.endswith(b":batch"):
                _require(scope, "POST")
                answered = await self._rows(scope, receive, last[: -len(b":batch")])
            case [b"tables", db, table]:
                _require(scope, "GET")
                answered = await self._table(scope, db, table)
            case [b"tables:batch"]:
                _require(scope, "POST")
                answered = await self._tables(scope, receive)
            case _:
                raise ReadError("unknown_path", f"nothing is at {scope['path']}")
        await send_json(send, answered.status, answered.body)

    async def _row(self, scope: Scope, keyspace: bytes, table: bytes, pk: bytes) -> Reply:
        front = self._front
        found = parameters(scope["query_string"], ROW_PARAMETERS)
        demand = demand_of(found.get("token"), found.get("max_wait_ms"), front.query_limits)
        space = self._row_space(path_text(keyspace, "keyspace"))
        wanted = [RowWanted(path_text(table, "table"), pk)]
        [answer] = await front.rows.read_many(space, wanted, demand, row_options(found))
        return reply_to(answer)

    async def _rows(self, scope: Scope, receive: Receive, keyspace: bytes) -> Reply:
        parameters(scope["query_string"], frozenset())
        space = self._row_space(path_text(keyspace, "keyspace"))
        wanted, demand = row_batch(
            await read_body(scope, receive, self._front.limits.body_bytes_max), self._front.query_limits
        )
        return reply_to(row_batch_answer(await self._front.rows.read_many(space, wanted, demand), demand))

    async def _table(self, scope: Scope, db: bytes, table: bytes) -> Reply:
        front = self._front
        found = parameters(scope["query_string"], TABLE_PARAMETERS)
        demand = demand_of(found.get("token"), found.get("max_wait_ms"), front.query_limits)
        wanted = table_wanted(
            found.get("catalog", "hive"),
            path_text(db, "database"),
            path_text(table, "table"),
            found.get("valid_write_ids"),
            found.get("table_id"),
        )
        [answer] = await front.tables.read_many([(self._table_space(wanted.catalog), wanted)], demand)
        return reply_to(answer)

    async def _tables(self, scope: Scope, receive: Receive) -> Reply:
        parameters(scope["query_string"], frozenset())
        body = await read_body(scope, receive, self._front.limits.body_bytes_max)
        wanted, demand = table_batch(body, self._front.query_limits)
        placed = [(self._table_space(each.catalog), each) for each in wanted]
        return reply_to(table_batch_answer(await self._front.tables.read_many(placed, demand), demand))

    def _row_space(self, name: str) -> RowSpace:
        space = self._front.row_spaces.get(name)
        if space is None:
            raise ReadError("unknown_keyspace", f"no keyspace {name!r} of rows is served here")
        return space

    def _table_space(self, name: str) -> TableSpace:
        space = self._front.table_spaces.get(name)
        if space is None:
            raise ReadError("unknown_keyspace", f"no catalog {name!r} is served here")
        return space


def _require(scope: Scope, method: str) -> None:
    if scope["method"] != method:
        refusal = ReadError("method_not_allowed", f"{scope['method']} is not served at {scope['path']}, {method} is")
        refusal.allow = method
        raise refusal


def _rest(front: Front) -> FastAPI:
    """Health, metrics, locations and the description."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            for close in front.closers:
                await close()

    app = FastAPI(
        title="Freshet",
        version=VERSION,
        summary="A materialized cache that can prove each answer fresh.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
    )
    _add_routes(app, front)
    _add_errors(app)
    described: dict[str, Any] = {}

    def describe() -> dict[str, Any]:
        if not described:
            described.update(
                add_reads(get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes))
            )
        return described

    app.openapi = describe  # type: ignore[method-assign]
    return app


def _json(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body, status, headers, media_type="application/json")


def _add_routes(app: FastAPI, front: Front) -> None:
    @app.get("/healthz", tags=["operations"], summary="Is the process alive?")
    async def healthz() -> dict[str, str]:
        """Always 200 while the process answers; says nothing about owners or sources."""
        return {"status": "ok"}

    @app.get(
        "/readyz",
        tags=["operations"],
        summary="Has every partition had an owner that was caught up?",
        responses={503: {"description": "`not_ready`, and what is missing.", **PROBLEM}},
    )
    async def readyz() -> Response:
        """200 once each partition of each keyspace had an owner that reached the topic's end as of its own start."""
        missing = await front.readiness.missing()
        front.metrics.ready.set(0 if missing else 1)
        if missing:
            raise ReadError("not_ready", f"not caught up: {'; '.join(missing)}", hint="`freshet lag` shows how far")
        return _json(b'{"status":"ready"}')

    @app.get(
        "/metrics",
        tags=["operations"],
        summary="Prometheus metrics.",
        response_class=PlainTextResponse,
    )
    async def metrics() -> Response:
        """In Prometheus' text format."""
        return Response(front.metrics.exposition(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get(
        "/v1/locations/{keyspace}/{partition}",
        tags=["locations"],
        summary="Who answers for a partition?",
        responses={
            200: {
                "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{LocationAnswer.__name__}"}}}
            },
            400: {"description": "`bad_parameter`.", **PROBLEM},
            404: {"description": "`unknown_keyspace`, or no such partition.", **PROBLEM},
            503: {"description": "`no_owner`.", **PROBLEM},
        },
    )
    async def location(keyspace: str, partition: int) -> Response:
        """The owner's address, and as ``token`` how far the partition has come."""
        return _json(await front.locations.read(keyspace, partition))


def _add_errors(app: FastAPI) -> None:
    async def read_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, ReadError)
        return _json(problem_bytes(error), error.status)

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code, "bad_parameter")
        problem = ReadError(code, f"{request.url.path}: {error.detail}")
        return _json(problem_bytes(problem), error.status_code, error.headers)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        return _json(problem_bytes(ReadError("bad_parameter", f"{place}: {first['msg']}")), 400)

    app.add_exception_handler(ReadError, read_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, invalid)
