"""The description at /openapi.json of the routes that are dispatched by hand, made from the types of their answers."""

from __future__ import annotations

from typing import Any

import msgspec

from serving.client.answers import LocationAnswer, Problem, RowAnswer, RowBatchAnswer, TableAnswer, TableBatchAnswer
from serving.http.query import RowBatchBody, TableBatchBody

JsonObject = dict[str, Any]

_TYPES = (
    RowAnswer,
    TableAnswer,
    RowBatchAnswer,
    TableBatchAnswer,
    LocationAnswer,
    Problem,
    RowBatchBody,
    TableBatchBody,
)
_REF = "#/components/schemas/{name}"

PROBLEM: JsonObject = {"content": {"application/json": {"schema": {"$ref": _REF.format(name="Problem")}}}}
"""The content of a response that is no answer, for routes that FastAPI describes."""

_ERRORS = {
    "400": "The request is wrong: `bad_token`, `bad_key`, `bad_parameter`, `bad_body`, `bad_request`, "
    "`missing_write_ids`, `bad_write_ids`.",
    "401": "`unauthorized`: no valid bearer token.",
    "409": "`history_lost`: the source lost what the token had seen; go on with the `token` of this answer. "
    "`table_id_changed`: the table was dropped and created again.",
    "408": "`request_timeout`: the rest of the request did not come.",
    "414": "`request_too_long`: the URL.",
    "431": "`head_too_large`: the headers.",
    "413": "`body_too_large`, `too_many_keys`.",
    "429": "`too_many_requests`: try again shortly.",
    "500": "`internal`: an unexpected error, with an incident id that is in the server's log.",
    "503": "Nobody can prove an answer now: `source_unreachable`, `source_behind`, `source_failed`, `no_owner`, "
    "`not_ready`, `stopping`.",
}


def add_reads(described: JsonObject) -> JsonObject:
    """``described`` (FastAPI's own description) with the reads added."""
    schemas, components = msgspec.json.schema_components(_TYPES, ref_template=_REF)
    known = described.setdefault("components", {})
    known.setdefault("schemas", {}).update(components)
    known.setdefault("securitySchemes", {})["bearer"] = {"type": "http", "scheme": "bearer"}
    described["security"] = [{}, {"bearer": []}]
    reference = dict(zip((kind.__name__ for kind in _TYPES), schemas, strict=True))
    paths = described.setdefault("paths", {})
    for methods in paths.values():
        for operation in methods.values():
            operation["responses"].pop("422", None)  # what FastAPI refuses is answered with 400 here
    paths.update(_paths(reference))
    return described


def _paths(reference: dict[str, JsonObject]) -> JsonObject:
    problem = reference["Problem"]
    row = _responses(reference["RowAnswer"], problem, "The row.", not_found=reference["RowAnswer"])
    table = _responses(reference["TableAnswer"], problem, "The table.", not_found=reference["TableAnswer"])
    row_batch = _responses(reference["RowBatchAnswer"], problem, "The rows, in the order of the keys.")
    table_batch = _responses(reference["TableBatchAnswer"], problem, "The tables, in the order asked for.")
    return {
        "/v1/rows/{keyspace}/{table}/{pk}": {
            "get": _operation("getRow", "Read one row", _ROW_TEXT, _row_parameters(), row),
        },
        "/v1/rows/{keyspace}:batch": {
            "post": _operation(
                "getRows", "Read rows", _BATCH_TEXT, [_path("keyspace")], row_batch, reference["RowBatchBody"]
            ),
        },
        "/v1/tables/{db}/{table}": {
            "get": _operation("getTable", "Read a catalog table", _TABLE_TEXT, _table_parameters(), table),
        },
        "/v1/tables:batch": {
            "post": _operation(
                "getTables", "Read catalog tables", _BATCH_TEXT, [], table_batch, reference["TableBatchBody"]
            ),
        },
    }


_ROW_TEXT = (
    "Answered from the cache if that is provably as fresh as `token`; else from the source of truth, whose answer "
    "fills the cache. Without a token the answer is `eventual`. Send the `token` of the answer with the next read."
)
_TABLE_TEXT = (
    "Answered from the cache if its write-id list covers `valid_write_ids`, the table id matches, and it is as fresh "
    "as `token`; else from the source. A managed table needs `valid_write_ids` and `table_id`."
)
_BATCH_TEXT = "One demand for all elements; each element is judged, and fails, for itself."


def _operation(
    name: str,
    summary: str,
    text: str,
    parameters: list[JsonObject],
    responses: JsonObject,
    body: JsonObject | None = None,
) -> JsonObject:
    found: JsonObject = {"operationId": name, "summary": summary, "description": text, "tags": ["reads"]}
    found["parameters"] = parameters
    if body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": body}}}
    found["responses"] = responses
    return found


def _responses(answer: JsonObject, problem: JsonObject, text: str, not_found: JsonObject | None = None) -> JsonObject:
    found = {"200": _response(text, answer)}
    if not_found is not None:
        found["404"] = _response(
            "`not_found`: known not to exist, with the same proof and token as an answer; or `unknown_keyspace`, "
            "`unknown_table`.",
            {"anyOf": [not_found, problem]},
        )
    else:
        found["404"] = _response("`unknown_keyspace`.", problem)
    found.update({status: _response(meaning, problem) for status, meaning in _ERRORS.items()})
    return dict(sorted(found.items()))


def _response(text: str, schema: JsonObject) -> JsonObject:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _path(name: str, text: str = "") -> JsonObject:
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {"type": "string"}}


def _query(
    name: str, text: str, kind: str = "string", default: object = None, maximum: int | None = None
) -> JsonObject:
    schema: JsonObject = {"type": kind}
    if maximum is not None:
        schema |= {"minimum": 0, "maximum": maximum}
    if default is not None:
        schema["default"] = default
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


_TOKEN = _query("token", "The session's vector: the `token` of its last answer.")
_WAIT_TEXT = "How long to wait for the token's position before asking the source."
_WAIT = _query("max_wait_ms", _WAIT_TEXT, "integer", 0, 10**10 - 1)


def _row_parameters() -> list[JsonObject]:
    return [
        _path("keyspace"),
        _path("table", "`db.table`, or a table of the keyspace's database."),
        _path("pk", "Key columns in key order, comma-separated, each percent-encoded."),
        _TOKEN,
        _WAIT,
        _query("include_event_token", "Adds `event_token`: the place in history that the row stands for.", "boolean"),
        _query("compare_event_token", "Adds `fresher`: whether the row is as new as this event token, where known."),
    ]


def _table_parameters() -> list[JsonObject]:
    return [
        _path("db"),
        _path("table"),
        _query("catalog", "The catalog's name.", default="hive"),
        _query("valid_write_ids", "The reader's ValidWriteIdList, as Hive writes it."),
        _query("table_id", "The table's id; 0 means not given.", "integer", maximum=2**63 - 1),
        _TOKEN,
        _WAIT,
    ]
