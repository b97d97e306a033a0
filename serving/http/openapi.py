"""The OpenAPI description, generated from the route table and its types."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from serving.client.answers import STATUS_OF_CODE, Problem, RowAnswer, TableAnswer
from serving.errors import HINTS
from serving.http.guard import OPEN_PATHS
from serving.http.responses import PROBLEM
from serving.http.route import Route

VERSION = "1"

JsonObject = dict[str, Any]

_REF = "#/components/schemas/{name}"
_EVERYWHERE = ("bad_request", "request_timeout", "head_too_large", "internal", "stopping")
_GUARDED = ("unauthorized", "forbidden", "request_too_long", "too_many_requests")
"""Errors of `BoundedConnection` and `Guard`, which any route can answer with."""


def describe(routes: Sequence[Route[Any, Any]]) -> JsonObject:
    """The OpenAPI document."""
    used = [kind for route in routes for kind in (route.answer, route.body) if kind is not None]
    types = list(dict.fromkeys((*used, Problem)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of: dict[Any, JsonObject] = dict(zip(types, schemas, strict=True))
    paths: JsonObject = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Freshet",
            "summary": "A materialized cache that can prove each answer fresh.",
            "version": VERSION,
        },
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {"bearer": []}],
    }


def _operation(route: Route[Any, Any], schema_of: dict[Any, JsonObject]) -> JsonObject:
    found: JsonObject = {
        "operationId": route.name,
        "summary": route.summary,
        "description": route.text,
        "tags": [route.tag],
        "parameters": _parameters(route),
        "responses": _responses(route, schema_of),
    }
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": _json(schema_of[route.body])}
    return found


_TOKEN_HEADER = {
    "name": "Freshet-Token",
    "in": "header",
    "required": False,
    "description": "As `token`. If both are given, both count.",
    "schema": {"type": "string"},
}
_ANSWER_HEADERS = {
    "Freshet-Token": "The session's new vector, as `token`.",
    "Freshet-Freshness": "As `freshness`.",
    "Freshet-Served-From": "As `served_from`.",
}
_FILE_HEADERS = {
    "Freshet-Served-From": "`cache` if no byte of the first 4 MiB had to be fetched, else `source`.",
    "Freshet-Hits": "Reads answered from the cache. This header and the next ones: of an answer up to 4 MiB.",
    "Freshet-Misses": "Reads of which something was fetched.",
    "Freshet-Hit-Bytes": "Bytes from the cache.",
    "Freshet-Miss-Bytes": "Bytes fetched.",
}


def _parameters(route: Route[Any, Any]) -> list[JsonObject]:
    header = [_TOKEN_HEADER] if route.takes_token else []
    if route.parameters is None:
        return header
    _, components = msgspec.json.schema_components((route.parameters,), ref_template=_REF)
    described = components[route.parameters.__name__]
    return [
        {
            "name": name,
            "in": "path" if name in route.path_names else "query",
            "required": name in described["required"],
            "description": schema.pop("description", ""),
            "schema": schema,
        }
        for name, schema in described["properties"].items()
    ] + header


def _responses(route: Route[Any, Any], schema_of: dict[Any, JsonObject]) -> JsonObject:
    text: JsonObject = {"text/plain": {"schema": {"type": "string"}}}
    content = (
        text if route.answer is None else {each: {"schema": schema_of[route.answer]} for each in route.content_types}
    )
    found: JsonObject = {"200": {"description": route.returns, "content": content}}
    if route.is_file:
        found = _file_responses(route.returns)
    if route.takes_token:
        found["200"]["headers"] = _headers(_ANSWER_HEADERS)
    if route.answer in (RowAnswer, TableAnswer):
        found["200"]["headers"] |= _headers(
            {"ETag": "Of what was read. Send it as `If-None-Match` with the next read."}
        )
        why = {"Freshet-Why": "As `why`."}
        held = "`If-None-Match` names what was read: it has been read and proved again, and is what you hold."
        found["304"] = {"description": held, "headers": found["200"]["headers"] | _headers(why)}
    codes = _codes(route)
    for status in sorted({STATUS_OF_CODE[code] for code in codes}):
        meant = [code for code in STATUS_OF_CODE if code in codes and STATUS_OF_CODE[code] == status]
        content = {PROBLEM.decode(): {"schema": schema_of[Problem]}}
        if "not_found" in meant:
            content |= _json(schema_of[route.answer])
        lines = "\n".join(f"- `{code}`: {HINTS[code]}" for code in meant)
        found[str(status)] = {"description": lines, "content": content}
        if status in (429, 503):
            found[str(status)]["headers"] = _headers({"Retry-After": "Seconds."})
    return found


def _file_responses(whole: str) -> JsonObject:
    octets: JsonObject = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    several: JsonObject = {"multipart/byteranges": {"schema": {"type": "string", "format": "binary"}}}
    headers = _headers({"ETag": "Of the version that was read; strong.", **_FILE_HEADERS})
    return {
        "200": {"description": whole, "content": octets, "headers": headers},
        "206": {
            "description": "The ranges.",
            "content": octets | several,
            "headers": headers | _headers({"Content-Range": "Of a single range."}),
        },
        "304": {"description": "`If-None-Match` names the version that the store has.", "headers": headers},
    }


def _headers(described: dict[str, str]) -> JsonObject:
    return {name: {"description": text, "schema": {"type": "string"}} for name, text in described.items()}


def _codes(route: Route[Any, Any]) -> frozenset[str]:
    """Every error code that ``route`` can answer with."""
    found: Iterable[str] = (*_EVERYWHERE, *route.errors)
    if route.path not in OPEN_PATHS:
        found = (*found, *_GUARDED)
    if route.parameters is not None:
        found = (*found, "bad_parameter")
    if route.body is not None:
        found = (*found, "bad_body", "body_too_large")
    return frozenset(found)


def _json(schema: JsonObject) -> JsonObject:
    return {"application/json": {"schema": schema}}
