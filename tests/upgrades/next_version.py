"""The next version, as this one meets it: what it writes into the topic, and says to owners, fronts and clients.

It follows the rules that docs/operating/upgrading.md promises: fields are added with a default, a record that is new
says whether it may be passed over, and a token is read one version before it is written.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import to_parsing_canonical_form
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from consumers.owner.protocol import OLDEST, VERSION, Answer, Hello, Request
from stream.wire.announced import fingerprint_of
from stream.wire.codec import HEADER_SIZE, RECORDS, current_schema, decode, encode, header_of
from tests.consumers.owner.test_versions import longer
from tests.tokens.strategies import UUIDS

LATER = {"name": "later", "type": {"type": "map", "values": "string"}, "default": {}}


def _next_schema(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(current_schema(name).text)
    return schema | {"fields": [*schema["fields"], LATER]}


SCHEMAS = {name: _next_schema(name) for name in RECORDS}
"""Every record, with a field that this version does not have."""
HINT: dict[str, Any] = {
    "type": "record",
    "name": "freshet.Hint",
    "fields": [{"name": "shard", "type": "string"}, {"name": "text", "type": "string"}],
}
"""A record that may be passed over."""
TRANSFER: dict[str, Any] = {**HINT, "name": "freshet.Transfer"}
"""A record that a reader must understand."""
_PARSED = {schema["name"]: parse_schema(schema) for schema in (*SCHEMAS.values(), HINT, TRANSFER)}


def written(schema: dict[str, Any], record: dict[str, Any]) -> bytes:
    """A message of the next version."""
    out = BytesIO()
    out.write(header_of(schema))
    schemaless_writer(out, _PARSED[schema["name"]], record)
    return out.getvalue()


def as_written(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """The fields of this version's message of a record, as Avro has them: a frame's columns are packed."""
    body = BytesIO(encode(name, record)[HEADER_SIZE:])
    fields: Any = schemaless_reader(body, current_schema(name).writer, None)
    return dict(fields)


def announcement(schema: dict[str, Any], shard: str, *, skippable: bool = False) -> bytes:
    """The `SchemaText` that the next version writes before its first record of a schema.

    It is written as this version has it: it is what an older reader must be able to read.
    """
    text = to_parsing_canonical_form(schema)
    name = schema["name"].rpartition(".")[2]
    place = {"shard": shard, "epoch": 1, "ordinal": 0}
    told = {"name": name, "fingerprint": fingerprint_of(text), "text": text, "skippable": skippable}
    return encode("SchemaText", place | told)


def announcements(shard: str) -> list[bytes]:
    """Of all that the next version writes, the critical record included."""
    known = [announcement(schema, shard, skippable=current_schema(name).skippable) for name, schema in SCHEMAS.items()]
    return [*known, announcement(HINT, shard, skippable=True), announcement(TRANSFER, shard)]


def topic(messages: Iterable[bytes], shard: str) -> list[bytes]:
    """Messages of this version's publisher, as the next version's would write them, with a hint before each."""
    found: list[bytes] = []
    for message in messages:
        name, fields = decode(message)
        if name == "SchemaText":
            found.append(message)
            continue
        found.append(written(HINT, {"shard": shard, "text": f"before {name}"}))
        found.append(written(SCHEMAS[name], as_written(name, fields) | {"later": {UUIDS[0]: name}}))
    return found


def frame(message: Request | Answer) -> bytes:
    """A frame of the next version's owner protocol: two more fields in each struct."""
    body = msgspec.msgpack.encode(longer(message))
    return len(body).to_bytes(4, "big") + body


def hello(token: str) -> Hello:
    """The greeting of the next version's front, which speaks this version too."""
    return Hello(0, VERSION + 1, token, OLDEST)


def newer_token(text: str) -> str:
    """A token as a version after the next may write it."""
    return "v3." + urlsafe_b64encode(text.encode()).decode().rstrip("=") if text else ""


def older_tokens(text: str) -> str:
    """The tokens in ``text``, each in a format of this version."""
    found = []
    for token in text.split(","):
        raw = token.strip().removeprefix("v3.")
        padded = raw + "=" * (-len(raw) % 4)
        found.append(urlsafe_b64decode(padded).decode() if token.strip().startswith("v3.") else token)
    return ",".join(found)


class NextFront:
    """This version's front with the outside of a later one: more fields everywhere, in another order, and ``v3.``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        query = [
            (name, older_tokens(value) if name == "token" else value)
            for name, value in parse_qsl(scope["query_string"].decode(), keep_blank_values=True)
        ]
        start: Message = {}

        async def receive_older() -> Message:
            message = await receive()
            if message.get("body"):
                body = json.loads(message["body"])
                body["token"] = older_tokens(body["token"])
                message = {**message, "body": json.dumps(body).encode()}
            return message

        async def send_newer(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body = _newer_body(message["body"])
            headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
            headers += [(b"content-length", b"%d" % len(body)), (b"freshet-later", b"x")]
            await send({**start, "headers": headers})
            await send({**message, "body": body})

        inner = {**scope, "query_string": urlencode(query).encode()}
        inner["headers"] = [each for each in scope["headers"] if each[0] != b"content-length"]
        await self._app(inner, receive_older, send_newer)


def _newer_body(body: bytes) -> bytes:
    return json.dumps(_newer(json.loads(body))).encode() if body else b""


def _newer(value: Any) -> Any:
    if isinstance(value, list):
        return [_newer(each) for each in value]
    if not isinstance(value, dict) or not {"why", "code"} & set(value):
        return value
    known = {name: _newer(each) if name in ("rows", "tables") else each for name, each in value.items()}
    if known.get("token"):
        known["token"] = newer_token(known["token"])
    return {"later": {"why": ["x"]}, **known, "proof": {"mark": 7}}
