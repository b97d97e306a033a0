"""A change log in a topic waits for the front wherever it asks it, if it shall go on."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from freshet import cli
from freshet.commands.log import _into_topic
from freshet.settings import Settings
from serving.changelog.files import Heading
from serving.changelog.writing import Included
from serving.client import NotFoundError, StreamEvent, Unavailable, Unreachable


class Client:
    """A front that is away at first, then not ready, and then knows one table."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._answers: list[Exception] = [Unreachable("it is away"), Unavailable("it is not ready")]

    def describe(self, keyspace: str, table: str) -> Any:
        self.asked.append(f"{keyspace} {table}")
        if table == "shop.gone":
            raise NotFoundError("there is no such table")
        if self._answers:
            raise self._answers.pop(0)
        return SimpleNamespace(columns=[SimpleNamespace(name="id", kind="int")])


class Topic:
    """A log that keeps how it asks for a table's columns."""

    def __init__(self, _: Any, __: str, ___: Heading, ____: Any, kinds: Any, *, keep_s: float | None) -> None:
        assert keep_s is None
        self.kinds = kinds

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None: ...


def write(_: Any, keyspace: str, log: Topic, *__: Any, **___: Any) -> None:
    """Writes a log of two tables, one of which is gone."""
    assert keyspace == "shop"
    assert log.kinds("shop.items") == {"id": "int"}
    assert log.kinds("shop.gone") == {}


@pytest.mark.parametrize("once", [False, True])
def test_a_front_that_is_away_while_a_table_is_described_is_waited_for(
    once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the log is read: a log that follows ends for no restart of the front, one that runs once does."""
    front = Client()
    client: Any = front
    monkeypatch.setattr("serving.changelog.topic.LogTopic", Topic)
    monkeypatch.setattr("freshet.commands.log.write_log", write)
    monkeypatch.setattr("freshet.commands.log.PAUSE_S", 0.0)
    included = Included(include_before=False, include_keyless=False)
    given = (Settings(), client, "shop.log", Heading("shop", ["shop.items"], included=[]), "earliest", None)
    if once:
        with pytest.raises(Unreachable):
            _into_topic(*given, once=True, included=included)
        assert front.asked == ["shop shop.items"]
    else:
        _into_topic(*given, once=False, included=included)
        assert front.asked == [*["shop shop.items"] * 3, "shop shop.gone"]


@pytest.mark.parametrize("tables", [["shop.a", "shop.b"], ["shop.b", "shop.a", "shop.b"]])
def test_a_log_goes_on_in_whatever_order_its_tables_are_named(
    tables: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is the same log; else its files would be refused as those of another one."""
    headings: list[Heading] = []

    def opened(to: Path, heading: Heading, *, keep_s: float | None) -> Any:
        assert (to, keep_s) == (tmp_path, 43_200.0)
        headings.append(heading)
        return nullcontext()

    monkeypatch.setattr("freshet.commands.log.front_client", lambda *_: nullcontext())
    monkeypatch.setattr("freshet.commands.log.LogFiles", opened)
    monkeypatch.setattr("freshet.commands.log.write_log", lambda *_, **__: None)
    words = [word for table in tables for word in ("--table", table)]
    assert cli.run(["log", "shop", "--to", str(tmp_path), "--keep-days", "0.5", "--before", *words]) == 0
    assert headings == [Heading("shop", ["shop.a", "shop.b"], included=["before"])]


@pytest.mark.parametrize(("words", "until"), [([], "now"), (["--follow"], "")])
def test_what_was_committed_is_printed_and_what_comes_later_only_if_it_is_followed(
    words: list[str], until: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How far a stream is, and that it has told all, is no event of the log."""
    asked: list[tuple[Any, ...]] = []

    def stream(keyspace: str, begin: str, **more: Any) -> list[StreamEvent]:
        asked.append((keyspace, begin, more["until"], more["tables"], more["key"], more["include_before"]))
        kinds = ("watermark", "transaction", "unreadable", "watermark", "transaction", "error", "end")
        return [StreamEvent(kind) for kind in kinds]

    monkeypatch.setattr("freshet.commands.log.front_client", lambda *_: nullcontext(SimpleNamespace(stream=stream)))
    assert cli.run(["log", "shop", "--table", "shop.t", "--key", "7,a%2Cb", "--from", "-60", *words]) == 0
    assert asked == [("shop", "-60", until, ["shop.t"], [b"7", b"a,b"], False)]
    told = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["transaction", "unreadable", "transaction", "error"]
