"""What a metastore's log may hold: messages, their gzip, tables in Thrift's JSON, whole logs through the translator."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

from lab.simulation.hive.metastore import Metastore
from stream.sources.hive.messages import HiveMessageError, decode_message, parse_notification, parse_table
from stream.sources.hive.translator import HiveTranslator
from stream.wire.codec import CodecError, encode
from stream.wire.events import SourceTransaction
from stream.wire.records import event_record
from tests.fuzz.engine import Case, Misbehaved, Target, refused
from tests.fuzz.mutate import Rng, some_text, some_tree

BOMB = base64.b64encode(gzip.compress(b"[" + b"0," * 200_000, 9, mtime=0)).decode()
"""Small on the wire, large inside; a test of its own has one beyond the bound."""


def _log() -> list[dict[str, Any]]:
    server = Metastore()
    server.create("s.a", "full")
    server.create("s.b", "external")
    server.open_txns(3)
    server.allocate("s.a", [1, 2])
    server.alter("s.a", 1)
    server.end(1, commit=True)
    server.end(2, commit=False)
    server.allocate("s.a", [3])
    return server.log


def _packed(message: Any, rng: Rng) -> Any:
    """A message in one of the forms in which a server gives it."""
    match rng.randrange(4):
        case 0:
            return message
        case 1:
            return json.dumps(message)
        case 2:
            return base64.b64encode(gzip.compress(json.dumps(message).encode(), 1, mtime=0)).decode()
        case _:
            return some_text(
                rng, [json.dumps(message), base64.b64encode(gzip.compress(b'{"txnid":1}', 1, mtime=0)).decode()]
            )


def _messages() -> Case:
    log = _log()

    def draw(rng: Rng) -> dict[str, Any]:
        row = rng.choice(log)
        if rng.random() < 0.01:
            return row | {"message": BOMB}
        changed = some_tree(rng, row)
        if isinstance(changed, dict) and "message" in changed:
            changed = changed | {"message": _packed(changed["message"], rng)}
        return changed if isinstance(changed, dict) else row

    def run(row: dict[str, Any]) -> None:
        refused(HiveMessageError, decode_message, row.get("message"))
        refused(HiveMessageError, parse_notification, row)

    return Case(draw, run)


def _tables() -> Case:
    struct = {
        "1": {"str": "T"},
        "2": {"str": "S"},
        "3": {"str": "me"},
        "7": {"rec": {"1": {"lst": ["rec", 1, {"1": {"str": "id"}, "2": {"str": "int"}}]}, "2": {"str": "file:/x"}}},
        "8": {"lst": ["rec", 0]},
        "9": {"map": ["str", "str", 1, {"transactional": "true"}]},
        "12": {"str": "MANAGED_TABLE"},
        "25": {"i64": 7},
    }

    def draw(rng: Rng) -> Any:
        changed = some_tree(rng, struct)
        return json.dumps(changed) if rng.random() < 0.5 else changed

    def run(drawn: Any) -> None:
        found = refused(HiveMessageError, parse_table, {"t": drawn}, "t")
        if found is not None and not isinstance(json.loads(found.image), dict):
            raise Misbehaved(f"the image of {found.name} is not a JSON object")

    return Case(draw, run)


def _translator() -> Case:
    log = _log()

    def draw(rng: Rng) -> list[dict[str, Any]]:
        rows = []
        for row in log:
            changed = some_tree(rng, row) if rng.random() < 0.2 else row
            changed = changed if isinstance(changed, dict) else row
            if rng.random() < 0.2 and "message" in changed:
                changed = changed | {"message": _packed(changed["message"], rng)}
            rows.append(changed)
        return rows

    def run(rows: list[dict[str, Any]]) -> None:
        translator = HiveTranslator(with_images=True)
        for row in rows:
            found = refused(HiveMessageError, translator.translate, row)
            if found is not None:
                _publishable(found)

    return Case(draw, run)


def _publishable(transaction: SourceTransaction) -> None:
    """Checks that a translated transaction can be encoded. Raises `Misbehaved`."""
    place = {"shard": "hive/0", "epoch": 1, "ordinal": 1, "gtid": transaction.gtid}
    place["timestamp"] = transaction.timestamp
    for change in transaction.changes:
        name, fields = event_record(change, transaction.position, 10**6)
        try:
            encode(name, place | fields)
        except CodecError as error:
            raise Misbehaved(f"{change} cannot be published: {error}") from error


TARGETS = (
    Target("hive_message", "notification events, also gzip in base64", _messages, 0.5),
    Target("hive_table", "tables in Thrift's JSON", _tables),
    Target("hive_translator", "logs with mutated events", _translator, 0.2),
)
