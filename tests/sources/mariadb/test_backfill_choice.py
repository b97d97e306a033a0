"""Which tables are backfilled when people ask for it, and what a source tells of its progress. Without a server."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from stream.kafka.requests import read_hot_keys
from stream.sources.mariadb.backfill import progress
from stream.sources.mariadb.backfill.choice import CHARS_MAX, BackfillRequest, Choice, read_request
from stream.sources.mariadb.backfill.plan import Plan
from stream.sources.mariadb.backfill.progress import HOLDERS_CHARS_MAX, progress_annotations, table_progress
from stream.sources.mariadb.schema import TableFilter
from stream.sources.status import HOLDERS, TableReading
from stream.wire.events import Column, DescribeTable, ResumePoint

SHOP = TableFilter(include=("shop.*",))
DESCRIBED = DescribeTable("shop.a", (Column("id", "int", True),), ("id",))


@pytest.mark.parametrize(
    ("asked", "wanted"),
    [
        ([], {"shop.a", "shop.b"}),
        ([("shop.a", False)], {"shop.b"}),
        ([("x.c", True)], {"shop.a", "shop.b", "x.c"}),
        ([("", False)], set()),
        ([("", False), ("shop.a", True)], {"shop.a"}),
        ([("shop.a", False), ("", True)], {"shop.a", "shop.b", "x.c"}),
        ([("", True), ("shop.a", False), ("shop.a", True)], {"shop.a", "shop.b", "x.c"}),
    ],
)
def test_what_was_asked_last_decides(asked: list[tuple[str, bool]], wanted: set[str]) -> None:
    """A table's own request wins over one for every table that came before, and both over the settings."""
    choice = Choice(SHOP)
    for table, start in asked:
        assert choice.ask(table, start)
    choice.offset = 7
    for each in (choice, Choice.resume(SHOP, choice.annotations), Choice.told(choice.annotations)):
        assert {table for table in ("shop.a", "shop.b", "x.c") if each.wants(table)} == wanted
        assert each.offset == 7


def test_without_settings_only_what_is_asked_for_is_wanted() -> None:
    """An empty list of patterns must not read every table."""
    assert not Choice().wants("shop.a")
    assert not Choice.told({}).wants("shop.a")
    assert not Choice.told(Choice().annotations).wants("shop.a")


def test_more_names_than_there_is_room_for_are_refused() -> None:
    """The state of a shard has room for so much; what was asked before still holds."""
    choice = Choice()
    assert choice.ask("a" * (CHARS_MAX // 2), True)
    assert not choice.ask("b" * (CHARS_MAX // 2), True)
    assert choice.asked == {"a" * (CHARS_MAX // 2): True}


def test_many_patterns_do_not_fill_the_state() -> None:
    """Readers are told that every table is wanted; the source itself knows its settings."""
    choice = Choice(TableFilter(include=tuple(f"shop.table_{each}" for each in range(10_000))))
    assert len(str(choice.annotations)) < 100
    assert Choice.told(choice.annotations).wants("shop.other")
    assert not Choice.resume(choice.tables, choice.annotations).wants("shop.other")


DEEP = b'{"later":' + b"[" * 100_000


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"[]",
        b"{}",
        b'{"start": "yes"}',
        b"\xff",
        b'{"start":true,"table":"\xff"}',
        b'{"hot":"\xff","keys":[]}',
        DEEP,
    ],
)
def test_what_is_no_request_is_passed_over(value: bytes) -> None:
    """Anybody may write into the topic, and a source would read the same again at each start."""
    assert read_request(value) is None
    assert read_hot_keys(value) is None


def test_a_request_of_a_newer_version_is_read() -> None:
    """It may have more fields."""
    assert read_request(b'{"start": true, "table": "s.t", "later": 1}') == BackfillRequest(start=True, table="s.t")


def test_the_words_of_a_newer_version_are_read() -> None:
    """After a step back to this version the source must start; what it does not know it leaves out."""
    words = {
        "backfill_choice": '[7, {"s.t": true}, null, "more"]',
        "backfills": '[0, {"s.t": [[5], 3, "more"]}, "more"]',
        "backfill_progress": '["s.t", 3, 10, 1, "", "more"]',
    }
    described = {"s.t": replace(DESCRIBED, table="s.t")}
    point = ResumePoint("s", 0, 1, "", 1, "", annotations=words, descriptions=described)
    assert Choice.resume(None, words).wants("s.t")
    assert [(each.state, each.rows, each.eta_s) for each in table_progress(point)] == [("reading", 3, 7)]


def test_each_table_has_a_state() -> None:
    """What the command shows of complete, read, waiting, cancelled, unwanted and unfit tables."""
    names = ("s.complete", "s.reading", "s.begun", "s.waiting", "s.cancelled")
    described = {name: replace(DESCRIBED, table=name) for name in names}
    described["x.off"] = replace(DESCRIBED, table="x.off")
    described["s.unfit"] = replace(DESCRIBED, table="s.unfit", primary_key=())
    plan = Plan()
    for table in ("s.begun", "s.reading"):
        plan.begin(table, "MariaDB/0-1-1", 1)
    plan.cursors["s.reading"] = plan.cursors["s.reading"]._replace(rows=300)
    choice = Choice(TableFilter(include=("s.*",)))
    choice.ask("s.cancelled", False)

    def shown(reading: TableReading, held: str = "") -> dict[str, tuple[str, int, int]]:
        holders = {"s.reading": held} if held else {}
        words = {**plan.annotations, **choice.annotations, **progress_annotations(reading, holders)}
        point = ResumePoint("s", 0, 1, "", 1, "", annotations=words, descriptions=described)
        found = table_progress(replace(point, complete=frozenset({"s.complete"})))
        assert [each.table for each in found] == sorted(described)
        assert {each.table: each.reason for each in found if each.table in holders} == holders
        return {each.table: (each.state, each.rows, each.eta_s) for each in found}

    assert shown(TableReading("s.reading", 300, 1_000, 100)) == {
        "s.begun": ("waiting", 0, -1),
        "s.cancelled": ("cancelled", 0, -1),
        "s.complete": ("complete", 0, -1),
        "s.reading": ("reading", 300, 7),
        "s.unfit": ("unfit", 0, -1),
        "s.waiting": ("waiting", 0, -1),
        "x.off": ("off", 0, -1),
    }
    assert shown(TableReading("s.reading", 300, 0, 0, "behind"))["s.reading"] == ("paused", 300, -1)
    assert shown(TableReading(""))["s.reading"] == ("waiting", 300, -1)
    assert shown(TableReading("s.reading", 300, 1_000, 100), "held")["s.reading"] == ("waiting", 300, -1)
    many = {f"s.{number}": "held" * 10 for number in range(1_000)}
    assert len(progress_annotations(TableReading(""), many)[HOLDERS]) <= HOLDERS_CHARS_MAX


def test_as_many_holders_are_named_as_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are held, the words of those that have none are not written."""
    written: list[object] = []

    def dumps(value: object, **options: bool) -> str:
        written.append(value)
        return json.dumps(value, ensure_ascii=options["ensure_ascii"])

    monkeypatch.setattr(progress, "json", SimpleNamespace(dumps=dumps, loads=json.loads))
    for count in (1, 2, 20, 1_000):
        many = {f"s.ü{number}": "hält" * 10 for number in range(count)}
        words = progress_annotations(TableReading(""), many)[HOLDERS]
        named = json.loads(words)
        assert list(named.items()) == list(many.items())[: len(named)]
        more = dict(list(many.items())[: len(named) + 1])
        assert named == many or len(json.dumps(more, ensure_ascii=False)) > HOLDERS_CHARS_MAX >= len(words)
    assert len(written) < 100
