"""Keeps this version's HTTP answers for later ones: ``python -m tests.upgrades.keep`` adds a file, once a version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from serving.client import ClientError
from serving.client.wire import read_epochs, read_row, read_rows, read_table
from serving.sources.source import RowTable
from stream.wire.events import Column
from tests.serving.fakes import FakeRowSource, owner_row, seen
from tests.serving.test_http_manners import ROW, TABLE, Asking

KEPT = Path(__file__).parent / "answers"
VERSION = "v1"
"""Of the API, as in its paths. A version of Freshet that adds to the answers keeps them under a further name."""
TOKEN = str(seen("shop/0", "0-1-5"))
READERS: dict[str, Any] = {"row": read_row, "rows": read_rows, "table": read_table, "location": read_epochs}


def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Name → reader, status, headers and body of one answer of each kind."""
    source = FakeRowSource(b'{"id":7}', "0-1-5")
    source.described = RowTable("shop.items", (Column("id", "int", True),), True)
    asking = Asking(monkeypatch, source)
    found: dict[str, dict[str, Any]] = {}

    def keep(name: str, reader: str, method: str, path: str, **options: Any) -> None:
        response = asking(method, path, **options)
        body = response.content.decode()
        found[name] = {
            "reader": reader,
            "status": response.status_code,
            "headers": dict(response.headers),
            "body": body,
        }

    demand = {"token": TOKEN}
    batch = {"keys": [{"table": "items", "pk": 7}, {"table": "items", "pk": "x"}], **demand}
    keep("row", "row", "GET", ROW, params=demand)
    keep("row_with_event_token", "row", "GET", ROW, params={**demand, "include_event_token": "true"})
    keep("rows", "rows", "POST", "/v1/rows/shop:batch", json=batch)
    keep("table", "table", "GET", TABLE, params=demand)
    keep("location", "location", "GET", "/v1/locations/shop/0")
    keep("bad_token", "row", "GET", ROW, params={"token": "rubbish"})
    keep("unknown_keyspace", "row", "GET", "/v1/rows/bank/items/7")
    asking.owner.row, asking.owner.watermarks = owner_row(None, "0-1-1", "0-1-1"), str(seen("shop/0", "0-1-1"))
    keep("source_behind", "row", "GET", ROW, params={"token": str(seen("shop/0", "0-1-7"))})
    keep("history_lost", "row", "GET", ROW, params={"token": str(seen("shop/0", "0-1-5", epoch=0))})
    asking = Asking(monkeypatch, FakeRowSource(None, "0-1-5"))
    asking.owner.row, asking.owner.watermarks = owner_row(None, "0-1-1", "0-1-1"), str(seen("shop/0", "0-1-1"))
    keep("absence", "row", "GET", ROW, params=demand)
    return found


def read(kept: dict[str, Any]) -> Any:
    """What the client makes of an answer: plain values, or the error's kind and fields."""
    try:
        return msgspec.to_builtins(_plain(READERS[kept["reader"]](kept["status"], kept["body"].encode())))
    except ClientError as error:
        return _plain(error)


def _plain(value: Any) -> Any:
    if isinstance(value, ClientError):
        more = {"token": getattr(value, "token", "")}
        return {"error": type(value).__name__, "code": value.code, "line": str(value), "hint": value.hint} | more
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value


def main() -> None:
    """Writes the file of this version."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = answers(monkeypatch)
    kept = {name: {**answer, "read": read(answer)} for name, answer in found.items()}
    KEPT.mkdir(exist_ok=True)
    (KEPT / f"{VERSION}.json").write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
