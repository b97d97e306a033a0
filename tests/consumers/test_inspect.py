"""`freshet inspect` and `freshet lag`, on a store directory and through the owners."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.owner.protocol import OwnerError, OwnerRow
from consumers.store.store import PartitionStore
from freshet.cli import run
from freshet.commands.inspect import _ask, inspect_key
from freshet.settings import Settings
from stream.kafka.connection import KafkaCluster
from stream.wire.keys import Layout
from tests.consumers.consuming import ConsumeProcess, Feed, caught_up, gtid, until
from tests.consumers.histories import event, marker, start, value
from tests.consumers.owning import COLUMNS, schema
from tokens.errors import FreshetError


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A closed store with one row, and a table void after it."""
    opened = PartitionStore.open(tmp_path, keyspace="shop", partition=0, topic_id="t")
    rows = [
        start(),
        schema(2),
        value(1, b'{"id":1}', 3),
        marker(3),
        event("TableVoid", 4, table="shop.items", reason="DDL"),
    ]
    opened.fold(list(enumerate(rows)))
    opened.close()
    return opened.directory


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """What `freshet` prints as JSON."""
    assert run([*arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_store_directory_says_what_it_is(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Manifest, offset, watermarks, voids, entries and digest, without its owner."""
    found = shown(capsys, "inspect", str(store), "--limit", "5", "--digest")
    assert (found["offset"], found["manifest"]["topic_id"]) == (5, "t")
    assert found["shards"]["shop/0"]["watermark"] == gtid(3)
    assert found["voids"][0]["table"] == "shop.items"
    assert found["first"][0]["image"] == {"id": 1}
    assert len(found["digest"]) == 32


def test_a_row_in_a_store_is_shown_as_it_reads_and_why(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both the stored value and the later void that hides it are shown."""
    found = shown(capsys, "inspect", str(store), "shop.items", "1")
    assert (found["reads_as"], found["entry"]["kind"]) == ("void", "value")
    assert "voided at ordinal 4" in found["why"]


@pytest.mark.parametrize("arguments", [["inspect", "nowhere"], ["inspect", "{store}", "shop.none", "1"]])
def test_a_missing_store_or_key_is_one_line_and_a_hint(
    store: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    """A wrong name gives an error with a code, not a traceback."""
    assert run([each.format(store=store) for each in arguments]) == 1
    assert "error[cannot_inspect]" in capsys.readouterr().err


def test_lag_and_inspect_ask_the_owners(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Partitions, watermarks and a key's answer come from the announced owners."""
    feed = Feed(kafka, keyspace_name)
    feed.ordinal += 1
    for partition in range(feed.partitions):
        described = {"table": "shop.items", "columns": COLUMNS, "primary_key": ["id"], "cacheable": True, "reason": ""}
        feed.send(partition, "TableSchema", gtid=gtid(feed.ordinal), timestamp=1, **described)
    feed.load(100)
    with ConsumeProcess(kafka, keyspace_name, tmp_path) as process:
        address = process.ready()
        until(lambda: caught_up(kafka, keyspace_name, address), "caught up")
        found = shown(capsys, "lag", keyspace_name, "--owner", address)
        assert [each["partition"] for each in found["partitions"]] == [0, 1]
        assert {shard["watermark"] for each in found["partitions"] for shard in each["shards"]} == {gtid(feed.ordinal)}
        row = shown(capsys, "inspect", keyspace_name, "shop.items", "5", "--owner", address)
        assert row["partition"] == Layout.parse(feed.layout).partition_of(b"shop.items\0[5]")
        assert row["why"]
        assert run(["lag", keyspace_name, "--owner", address]) == 0
        assert "ready" in capsys.readouterr().out
        assert process.terminate() == 0
    assert run(["lag", keyspace_name, "--owner", address]) == 1


@pytest.mark.parametrize("newer", ["shop/0", "shop/1"])
def test_a_row_is_found_by_the_newest_description(
    newer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two shards one may describe its table as it was long ago: by that key there is no such row."""
    opened = PartitionStore.open(tmp_path, keyspace="shop", partition=0, topic_id="t")
    old: dict[str, Any] = {"columns": [{"name": "code", "kind": "varchar", "exact": True}], "primary_key": ["code"]}
    for shard in ("shop/0", "shop/1"):
        is_newer = shard == newer
        told = schema(2, shard=shard, timestamp=2_000 + is_newer, **({} if is_newer else old))
        opened.fold([(opened.state.head.offset + at, each) for at, each in enumerate([start(shard=shard), told])])
    opened.fold([(opened.state.head.offset, value(1, b'{"id":1}', 3, shard=newer))])
    opened.close()
    found = shown(capsys, "inspect", str(opened.directory), "shop.items", "1")
    assert (found["key"], found["entry"]["image"]) == ("shop.items [1]", {"id": 1})


@pytest.mark.parametrize(
    ("codes", "asked", "ends"),
    [
        (["not_owner", ""], ["a:1", "b:1"], ""),
        (["", ""], ["a:1"], ""),
        (["not_owner", "not_owner"], ["a:1", "b:1"], "cannot_inspect"),
        (["unauthorized", ""], ["a:1"], "unauthorized"),
    ],
)
def test_of_owners_that_are_named_the_one_that_has_the_row_answers(
    codes: list[str], asked: list[str], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of them that is only they know. Whatever else one says is the answer."""
    column = SimpleNamespace(name="id", kind="int", exact=True)
    told = SimpleNamespace(found=True, layout="xxh3_64;partitions=1", prefix=0, columns=[column], primary_key=["id"])
    answers = dict(zip(("a:1", "b:1"), codes, strict=True))
    seen: list[str] = []

    def ask(_: Settings, address: str, *__: object) -> dict[str, Any]:
        seen.append(address)
        if answers[address]:
            raise OwnerError("not here", code=answers[address])
        return {"owner": address}

    described = nullcontext(SimpleNamespace(describe=lambda *_: told))
    monkeypatch.setattr("freshet.commands.inspect.owner_connection", lambda *_: described)
    monkeypatch.setattr("freshet.commands.inspect._ask", ask)
    given = (Settings(), "shop", "shop.items", "1", "", [*answers])
    if ends:
        with pytest.raises(FreshetError) as refused:
            inspect_key(*given)
        assert refused.value.code == ends
    else:
        assert inspect_key(*given) == {"owner": asked[-1]}
    assert seen == asked


def test_an_owner_is_asked_as_the_session_would_ask_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the session's token it would say fresh where the session is told to wait."""
    asked: list[tuple[Any, ...]] = []

    def get(*given: Any) -> list[OwnerRow]:
        asked.append(given)
        return [OwnerRow(1, b'{"id":1}', "fresh", "why", True, False, "shop/0", 1, "", "", 0, "", "", b"s")]

    connection = nullcontext(SimpleNamespace(get=get))
    monkeypatch.setattr("freshet.commands.inspect.owner_connection", lambda *_: connection)
    shown = _ask(Settings(), "a:1", "shop", 3, b"shop.items\0[1]", "the-token")
    assert asked == [("shop", 3, [b"shop.items\0[1]"], "the-token")]
    assert (shown["key"], shown["partition"], shown["owner"], shown["kind"]) == ("shop.items [1]", 3, "a:1", "value")
