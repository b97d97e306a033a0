"""The read API: keys in paths, queries, bodies, whole requests to the front, and answers as the client reads them."""

from __future__ import annotations

import asyncio
import json
import posixpath
from typing import Any
from urllib.parse import unquote

from serving.client import ClientError
from serving.client.answers import STATUS_OF_CODE
from serving.client.keys import format_key
from serving.client.wire import read_epochs, read_row, read_rows, read_table
from serving.errors import ReadError
from serving.http.app import make_app
from serving.http.bytes.naming import root_of
from serving.http.bytes.ranges import PIECE, parts_of, pieces_of, ranges_of
from serving.http.front import make_front
from serving.http.limits import RequestLimits
from serving.http.query import (
    RowBatchBody,
    RowParameters,
    TableBatchBody,
    TableParameters,
    demand_of,
    requested_table,
    row_batch,
    row_options,
    table_batch,
)
from serving.http.route import body_of, parameters_of
from serving.locations.refreshing import Locations
from serving.reads.rowkey import parse_row_key
from serving.reads.spaces import RowSpace, TableSpace
from serving.sources.source import RowTable
from stream.wire.events import Column
from stream.wire.keys import Layout, split_row_key
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, some_bytes, some_text, some_tree
from tests.fuzz.targets.tokens import EVENTS, LISTS, VECTORS

KINDS = (
    *("int", "bit", "year", "decimal", "float", "double", "text", "json", "enum", "set", "date", "datetime"),
    *("timestamp", "time", "uuid", "inet", "binary", "opaque"),
)
SEGMENTS = (
    *(b"7", b"-7", b"7,12", b"M%C3%BCller%2C%20Co", b"2024-01-01", b"1.50", b"1e5", b"%00%FF", b"::1", b"10.0.0.1"),
    b"00010203-0405-1607-8809-0a0b0c0d0e0f",
)
PIECES = (
    "%",
    "%00",
    "%FF",
    "%ED%A0%80",
    ",",
    "/",
    "?",
    "&",
    "=",
    "+",
    "%0A",
    "%2C",
    "..",
    ":batch",
    ";",
    "#",
    "%E2%80%A8",
)


def _rowkey() -> Case:
    def draw(rng: Rng) -> tuple[RowTable, bytes]:
        kinds = [rng.choice(KINDS) for _ in range(rng.choice((1, 1, 2, 3)))]
        table = RowTable(
            "shop.t", tuple(Column(f"c{n}", kind, rng.random() < 0.5) for n, kind in enumerate(kinds)), True
        )
        parts = [some_bytes(rng, SEGMENTS) if rng.random() < 0.7 else rng.choice(SEGMENTS) for _ in kinds]
        return table, b",".join(parts) if rng.random() < 0.9 else some_bytes(rng, SEGMENTS)

    def run(drawn: tuple[RowTable, bytes]) -> None:
        table, segment = drawn
        found = refused(ReadError, parse_row_key, table, segment)
        if found is None:
            return
        name, values = split_row_key(found.key)
        if name != table.name or len(values) != len(table.key):
            raise Misbehaved(f"{segment!r} became {found}")
        refused(ClientError, format_key, [value for value in found.values if not isinstance(value, dict)])

    return Case(draw, run)


ROW_BODY = {
    "keys": [{"table": "shop.t", "pk": "1"}, {"table": "t", "pk": [1, "a"]}],
    "token": VECTORS[1],
    "max_wait_ms": 5,
}
TABLE_BODY = {"tables": [{"db": "d", "table": "t", "valid_write_ids": LISTS[0], "table_id": 7, "catalog": "hive"}]}


def _query_string(rng: Rng) -> bytes:
    from urllib.parse import quote

    pairs = []
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        name, values = rng.choice(
            (
                ("token", VECTORS),
                ("max_wait_ms", ("0", "100", "-1", "9" * 30)),
                ("include_event_token", ("1", "true", "x")),
                ("compare_event_token", EVENTS),
                ("valid_write_ids", LISTS),
                ("table_id", ("7", "0", "9" * 19)),
                ("catalog", ("hive", "x")),
            )
        )
        value = rng.choice(values) if rng.random() < 0.5 else some_text(rng, values, PIECES)[:2_000]
        pairs.append(f"{name}={quote(value, errors='replace') if rng.random() < 0.9 else value}")
    return "&".join(pairs).encode("utf-8", "replace")


def _body(rng: Rng) -> bytes:
    good = rng.choice((ROW_BODY, TABLE_BODY))
    if rng.random() < 0.6:
        return json.dumps(some_tree(rng, good), ensure_ascii=rng.random() < 0.7).encode("utf-8", "surrogatepass")
    return some_bytes(
        rng, [json.dumps(good).encode(), b'{"keys":' + b"[" * 20_000, b'{"keys":[{"table":"t","pk":' + b"9" * 5_000]
    )


def _query() -> Case:
    limits = RequestLimits()
    row_path, table_path = {"keyspace": "shop", "table": "t", "pk": "7"}, {"db": "d", "table": "t"}

    def run(drawn: tuple[bytes, bytes]) -> None:
        query, body = drawn
        row = refused(ReadError, parameters_of, RowParameters, row_path, query)
        if row is not None:
            refused(ReadError, demand_of, row.token, row.max_wait_ms, limits, row.max_staleness_ms, 1_700_000_000_000)
            refused(ReadError, row_options, row)
        table = refused(ReadError, parameters_of, TableParameters, table_path, query)
        if table is not None:
            refused(ReadError, requested_table, table)
        rows = refused(ReadError, body_of, RowBatchBody, body)
        if rows is not None:
            refused(ReadError, row_batch, rows, limits, 1_700_000_000_000)
        tables = refused(ReadError, body_of, TableBatchBody, body)
        if tables is not None:
            refused(ReadError, table_batch, tables, limits)

    return Case(lambda rng: (_query_string(rng), _body(rng)), run)


PATHS = (
    *("/v1/rows/shop/t/7", "/v1/rows/shop/shop.t/7,12", "/v1/tables/d/t", "/v1/rows/shop:batch", "/v1/tables:batch"),
    *("/v1/locations/shop/0", "/healthz", "/readyz", "/metrics", "/openapi.json", "/v1/rows", "/", "/v1/stream"),
    *("/v1/bytes/file:///srv/a", "/v1/bytes/s3%3A%2F%2Flake%2Fa?range=bytes%3D0-5,7-"),
)
METHODS = ("GET", "GET", "GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "X")


def _front() -> Case:
    front = make_front(
        [RowSpace("shop", Layout(4), "shop"), TableSpace("hive", Layout(2))],
        Locations(),
        limits=RequestLimits(body_bytes_max=100_000),
    )
    app = make_app(front)
    runner = asyncio.Runner()

    def draw(rng: Rng) -> tuple[dict[str, Any], bytes]:
        path = rng.choice(PATHS) if rng.random() < 0.5 else some_text(rng, PATHS, PIECES)[:3_000]
        raw = path.encode("utf-8", "replace")
        path = raw.decode()
        if "%" in path:
            path = unquote(path, errors="replace")
        headers = [(b"content-length", rng.choice((b"5", b"-1", b"x", b"9" * 30)))] if rng.random() < 0.2 else []
        headers += [(b"authorization", b"Bearer \xff")] if rng.random() < 0.1 else []
        method = rng.choice(METHODS) if rng.random() < 0.6 else "POST"
        scope = {"type": "http", "method": method, "path": path, "raw_path": raw, "headers": headers}
        scope |= {"query_string": _query_string(rng), "scheme": "http", "server": ("127.0.0.1", 1), "root_path": ""}
        return scope | {"client": ("127.0.0.1", 2), "http_version": "1.1"}, _body(rng) if method == "POST" else b""

    def run(drawn: tuple[dict[str, Any], bytes]) -> None:
        scope, body = drawn
        status, headers, answer = runner.run(_ask(app, dict(scope), body))
        judge(status, headers, answer, scope["method"])

    return Case(draw, run, runner.close)


async def _ask(app: Any, scope: dict[str, Any], body: bytes) -> tuple[int, dict[bytes, bytes], bytes]:
    """One request to an ASGI application: status, headers, body."""
    sent: list[Any] = []
    parts = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start = sent[0]
    return start["status"], dict(start["headers"]), b"".join(each.get("body", b"") for each in sent[1:])


def judge(status: int, headers: dict[bytes, bytes], answer: bytes, method: str = "GET") -> None:
    """A good answer, or a problem with a known code, its status, one line and a hint; never a 500."""
    if status < 400:
        return
    if status == 500:
        raise Misbehaved(f"500: {answer!r}")
    if method == "HEAD" and not answer:
        return
    problem = json.loads(answer)
    expected = b"application/json" if problem.get("served_from") else b"application/problem+json"
    if headers.get(b"content-type") != expected:
        raise Misbehaved(f"{status} has the content type {headers.get(b'content-type')!r}: {answer!r}")
    if problem.get("served_from"):
        return  # an absence, proved like a row
    if STATUS_OF_CODE.get(problem["code"]) != status:
        raise Misbehaved(f"{status} has the code {problem['code']!r}")
    if not problem["hint"]:
        raise Misbehaved(f"{problem} has no hint")
    if not problem["message"].isprintable() or not problem["hint"].isprintable() or len(answer) > 20_000:
        raise Misbehaved(f"{problem} is not one line")


def _client() -> Case:
    envelope = {"served_from": "cache", "freshness": "fresh", "why": "x", "token": VECTORS[1], "found": True}
    row = envelope | {"row": {"id": 1}, "event_token": EVENTS[0], "fresher": True}
    table = envelope | {"table_id": 7, "write_ids": LISTS[0], "table": {"a": 1}}
    problem = {"code": "no_owner", "message": "m", "hint": "h", "token": VECTORS[0], "status": 503}
    batch = {name: value for name, value in envelope.items() if name != "found"} | {"rows": [row, problem]}
    where = envelope | {"keyspace": "shop", "partition": 0, "address": "a:1"}
    where |= {"shards": {"shop/0": {"epoch": 1, "position": "MariaDB/0-1-5"}}}
    answers = [row, table, problem, batch, where]

    def draw(rng: Rng) -> tuple[int, bytes]:
        status = rng.choice((200, 200, 404, 400, 409, 503, 500, 302))
        answer = some_tree(rng, rng.choice(answers))
        text = json.dumps(answer, separators=(",", ":")).encode()
        return status, text if rng.random() < 0.6 else some_bytes(
            rng, [text, b"<html>", b'{"served_from":' + b"[" * 9_000]
        )

    def run(drawn: tuple[int, bytes]) -> None:
        for read in (read_row, read_table, read_rows, read_epochs):
            try:
                read(*drawn)
            except ClientError as error:
                if not str(error).isprintable():
                    raise Misbehaved(f"{error!r} is not one line") from error

    return Case(draw, run)


ROOTS = ("file:///srv/lake", "s3://lake/warehouse/", "https://host/data")
URIS = (*(f"{root.rstrip('/')}/a/b" for root in ROOTS), "file:///srv/lake/../x", "s3://lake/warehouse/%2e%2e/x", "a::b")
RANGES = (
    "bytes=0-5",
    "bytes=-3",
    "bytes=7-",
    "bytes=0-0,5-9,-1",
    "bytes=9-5",
    "bytes=0-99999999999999999999",
    "lines=1-2",
)


def _files() -> Case:
    def draw(rng: Rng) -> tuple[str, str, int]:
        text = some_text(rng, RANGES, ("bytes=", "-", ",", "0", "18446744073709551616", " "))
        uri = some_text(rng, URIS, ("/", "..", "%2e", "%25", "~", "::", "\\", "?", "#", "\0"))
        return uri, text, rng.choice((0, 1, 10, 9 << 20))

    def run(drawn: tuple[str, str, int]) -> None:
        uri, text, size = drawn
        if (root := refused(ReadError, root_of, uri, ROOTS)) is not None:
            path, above = (each.partition("://")[2].rstrip("/") for each in (uri, root))
            if not posixpath.normpath(unquote(unquote(path))).startswith(f"{above}/"):
                raise Misbehaved(f"{uri!r} leads out of {root}")
        ranges = refused(ReadError, ranges_of, text, size) or [(0, size)]
        parts, _ = parts_of(ranges, size, b"x")
        pieces = list(pieces_of(parts))
        if any(not 0 <= start <= end <= size for start, end in ranges):
            raise Misbehaved(f"{ranges} of {size} bytes")
        if any(sum(part.end - part.start for part in piece) > PIECE for piece in pieces):
            raise Misbehaved(f"a piece of {ranges} is too large")
        if sum(part.end - part.start for piece in pieces for part in piece) != sum(end - at for at, end in ranges):
            raise Misbehaved(f"{ranges} became {pieces}")

    return Case(draw, run)


TARGETS = (
    Target("files", "URIs and ranges of files", _files),
    Target("rowkey", "canonical keys from URLs", _rowkey),
    Target("query", "query strings and bodies", _query, 0.5),
    Target("front", "whole requests to the front, in process", _front, 0.15),
    Target("client", "answers, as the client reads them", _client, 0.5),
)
