"""The records of a change log in a topic: Avro of the schemas in ``schemas/log``.

Their schemas are the same for all tables, so that no DDL of a table can make a registry refuse the log. Values have
Avro's own types all the same: a row is a map from column to null, long, double, string or bytes. What has no such type
is text as in the change stream: decimals exact, times in UTC, integers above 63 bits by their digits.

A transaction that is too large for a record of the topic is cut into parts.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from fastavro import parse_schema, schemaless_writer

from serving.changelog.errors import ChangeLogError
from serving.changelog.files import MARKS
from serving.changelog.registry import SchemaRegistry
from serving.client import StreamChange, StreamEvent
from stream.wire.canonical import json_of
from stream.wire.codec import header_of

RECORDS: Final = ("Transaction", "Unreadable", "Watermark")
NAMESPACE: Final = "freshet.log"
MARGIN_BYTES: Final = 4_096
"""Of a record, for what is neither its changes nor its token."""
VOID_REASON: Final = "its image is above what a record of the log's topic may hold"
_SCHEMAS: Final = Path(__file__).resolve().parents[2] / "schemas" / "log"
_LONG_MAX: Final = 2**63 - 1
_UNSIGNED_END: Final = 2**64
"""Integer columns are below. A double of above may be no integer exactly: it is written with 17 digits and zeros."""
_FLOATS: Final = ("float", "double")

Kinds = Mapping[str, str]
"""Column → canonical kind."""
Describe = Callable[[str], Kinds]


@cache
def schema_text(name: str) -> str:
    """The schema of a record as its file has it, in one line."""
    return json.dumps(json.loads((_SCHEMAS / f"{name}.avsc").read_text(encoding="utf-8")), separators=(",", ":"))


def own_framing() -> dict[str, bytes]:
    """Record → what its messages begin with where there is no registry: Avro's single-object encoding."""
    return {name: header_of(json.loads(schema_text(name))) for name in RECORDS}


def registry_framing(registry: SchemaRegistry, topic: str) -> dict[str, bytes]:
    """Record → what its messages begin with: Confluent's framing, with the ids that the registry gives.

    The subjects are those of its ``TopicRecordNameStrategy``, since the topic holds several records. Raises
    `RegistryError`.
    """
    subjects = {name: f"{topic}-{NAMESPACE}.{name}" for name in RECORDS}
    ids = registry.register({subjects[name]: schema_text(name) for name in RECORDS})
    return {name: b"\0" + ids[subject].to_bytes(4, "big") for name, subject in subjects.items()}


class Encoder:
    """Makes records of the events of a change stream.

    ``framing``: what the messages of each record begin with. ``describe``: the columns of a table, as they are known
    now; asked once a table, since the log itself tells when they change. ``bytes_max``: of a record.
    """

    def __init__(self, keyspace: str, framing: Mapping[str, bytes], describe: Describe, bytes_max: int) -> None:
        self._keyspace, self._framing = keyspace, framing
        self._describe, self._bytes_max = describe, bytes_max
        self._kinds: dict[str, Kinds] = {}

    def records(self, event: StreamEvent) -> list[bytes]:
        """The messages of an event: one, or the parts of a large transaction.

        Raises `ChangeLogError` for a kind of event that only a later version knows.
        """
        if event.kind == "transaction":
            return self._transaction(event)
        if event.kind == "unreadable":
            fields = {"partition": event.partition, "offset": event.offset, "reason": event.reason}
            return [self._record("Unreadable", fields)]
        if event.kind not in MARKS:
            raise ChangeLogError(
                f"the front tells an event of a kind that this version has no record for: {event.kind}",
                hint="go on with the version of Freshet that the front has: the log goes on where it was",
            )
        fields = {"token": event.token, "timestamp": event.timestamp, "as_of_ms": event.as_of_ms}
        return [self._record("Watermark", fields)]

    def _record(self, name: str, fields: Mapping[str, Any]) -> bytes:
        return self._framing[name] + _encoded(_parsed(name), {"keyspace": self._keyspace, **fields})

    def _transaction(self, event: StreamEvent) -> list[bytes]:
        room = self._bytes_max - MARGIN_BYTES - len(event.token) - len(event.checkpoint)
        parts = list(_packed((self._change(change, room) for change in event.changes), room)) or [[]]
        head = {name: getattr(event, name) for name in ("shard", "epoch", "gtid", "timestamp", "token")}
        found = []
        for number, changes in enumerate(parts):
            # The changes are the last field: an array without items ends the record, so those that are encoded
            # already take the place of its last byte.
            empty = self._record("Transaction", {**head, "part": number, "parts": len(parts), "changes": []})
            found.append(empty[:-1] + _blocks(changes))
        return found

    def _change(self, change: StreamChange, room: int) -> bytes:
        if change.kind == "schema":
            self._kinds[change.table] = {column.name: column.kind for column in change.columns}
        kinds = self._kinds_of(change.table) if change.kind in ("row", "keyless") else {}
        fields: dict[str, Any] = {
            "kind": change.kind,
            "table": change.table,
            "op": change.op,
            "key": [_value(each, "") for each in change.key],
            "row": _values(change.row, kinds),
            "reason": change.reason,
            "complete": change.complete,
            "tables": change.tables,
            "columns": [
                {"name": column.name, "kind": column.kind, "sql_type": column.sql_type} for column in change.columns
            ],
            "primary_key": change.primary_key,
            "cacheable": change.cacheable,
            "was": change.was,
            "before": _values(change.before, kinds),
        }
        encoded = _encoded(_change_schema(), fields)
        if len(encoded) > room and change.before is not None:
            fields |= {"was": "", "before": None}
            encoded = _encoded(_change_schema(), fields)
        if len(encoded) > room and change.row is not None:
            encoded = _encoded(_change_schema(), {**fields, "row": None, "op": "void", "reason": VOID_REASON})
        return encoded

    def _kinds_of(self, table: str) -> Kinds:
        if table not in self._kinds:
            self._kinds[table] = self._describe(table)
        return self._kinds[table]


def _values(row: Mapping[str, Any] | None, kinds: Kinds) -> dict[str, Any] | None:
    """A row as a map of Avro's types."""
    return None if row is None else {name: _value(value, kinds.get(name, "")) for name, value in row.items()}


def _value(value: Any, kind: str) -> Any:
    """A canonical value as one of Avro's types. ``kind`` of its column, empty: unknown.

    The canonical form of the double 1.0 is ``1``: only the kind tells it from an integer. A row may be of before the
    DDL that made its column one of doubles, and then have an integer that no double is: that stays one.
    """
    if isinstance(value, int):
        if kind in _FLOATS and (float(value) == value or not -_LONG_MAX - 1 <= value < _UNSIGNED_END):
            return float(value)
        return value if -_LONG_MAX - 1 <= value <= _LONG_MAX else str(value)
    if value is None or isinstance(value, float | str):
        return value
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return b64decode(value["base64"])
    return json_of(value).decode()


def _packed(changes: Iterator[bytes], room: int) -> Iterator[list[bytes]]:
    """The changes in runs of at most ``room`` bytes, each of one at least."""
    run: list[bytes] = []
    size = 0
    for change in changes:
        if run and size + len(change) > room:
            yield run
            run, size = [], 0
        run.append(change)
        size += len(change)
    if run:
        yield run


def _blocks(items: Sequence[bytes]) -> bytes:
    """An Avro array of items that are encoded already."""
    if not items:
        return b"\0"
    return _encoded("long", len(items)) + b"".join(items) + b"\0"


def _encoded(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, schema, value)
    return out.getvalue()


@cache
def _parsed(name: str) -> Any:
    return parse_schema(json.loads(schema_text(name)))


@cache
def _change_schema() -> Any:
    return parse_schema(_parsed("Transaction")["fields"][-1]["type"]["items"])
