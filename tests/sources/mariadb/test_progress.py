"""What a source publishes when the choice of its tables changes, and what it remembers of its last transaction."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from stream.sources.mariadb import position, source
from stream.sources.mariadb.binlog.catalog import HELD
from stream.sources.mariadb.binlog.progress import UNDESCRIBED, Progress, fingerprint, has_all_of, remembered
from stream.sources.mariadb.connection import ConnectionSettings, MariaDBError, NotResumable, SourceHistoryLost
from stream.sources.mariadb.schema import TableFilter
from stream.wire.batch import Framer
from stream.wire.events import (
    EVERY_TABLE,
    VALUE,
    BeginScope,
    Change,
    DescribeTable,
    ResumePoint,
    RowChange,
    SourceTransaction,
    VoidTable,
)
from stream.wire.keys import Layout

PLACE = "MariaDB/0-1-5"
ITEMS = DescribeTable("shop.items", (), (), True, "", 0)


def resumed(ordinal: int, **more: Any) -> Progress:
    """A source that resumes at `PLACE` after the event of this ordinal."""
    return Progress(ResumePoint("shop/0", 1, ordinal, PLACE, 1_700_000_000, PLACE, **more))


def described(progress: Progress) -> list[type]:
    """The kinds of changes of the transaction that describes one table."""
    return [type(change) for change in progress.description(TableFilter(), [ITEMS], 7).changes]


def test_another_choice_voids_then_begins_its_scope_then_describes() -> None:
    """A description before the scope would be out of it, and a void after them would void what it describes."""
    progress = resumed(9)
    assert described(progress) == [VoidTable, BeginScope, DescribeTable]
    assert progress.description(TableFilter(), [ITEMS], 7).changes[0] == VoidTable(
        EVERY_TABLE, "the choice of tables or the format of images has changed"
    )


@pytest.mark.parametrize(("ordinal", "is_new"), [(0, True), (1, True), (2, False)])
def test_only_a_history_with_events_is_voided(ordinal: int, is_new: bool) -> None:
    """A new history's only event is its beginning; whatever came after that may be of other tables."""
    first = described(resumed(ordinal))[0]
    assert first is (BeginScope if is_new else VoidTable)


def test_a_partly_published_description_is_repeated_after_what_is_out() -> None:
    """The publisher skips as many events as are out, so all of the description must come after them."""
    progress = resumed(9, partial_gtid=PLACE, partial_events=2)
    assert progress.may_describe
    assert described(progress)[2:] == [VoidTable, BeginScope, DescribeTable]
    progress.mark_described(7)
    assert described(progress) == [VoidTable, BeginScope, DescribeTable]


def test_a_partly_published_transaction_is_finished_before_anything_is_described() -> None:
    """Its events are skipped by number, so no others may come first."""
    assert not resumed(9, partial_gtid="MariaDB/0-1-6", partial_events=2).may_describe
    assert resumed(9).may_describe


BEFORE = TableFilter(("shop",), ("shop.a*",), ("shop.ax",), (("shop.ab", 1),))
KEYED = DescribeTable("shop.ab", (), ("id", "n"), True, "", 1)


def begun(tables: TableFilter = BEFORE, choice: int | None = None, *described: DescribeTable) -> ResumePoint:
    """A point in a topic that was described with ``tables``."""
    number = fingerprint(tables) if choice is None else choice
    found = {each.table: each for each in described or (KEYED,)}
    words = dict(remembered(tables))
    return ResumePoint("shop/0", 1, 9, PLACE, 1, PLACE, table_choice=number, annotations=words, descriptions=found)


@pytest.mark.parametrize(
    ("tables", "has_all"),
    [
        (BEFORE, True),
        (replace(BEFORE, databases=("shop", "other"), include=()), True),
        (replace(BEFORE, exclude=()), True),
        (replace(BEFORE, exclude=("shop.ab",)), False),
        (replace(BEFORE, include=("shop.b*",)), False),
        (replace(BEFORE, prefixes=()), False),
        (replace(BEFORE, prefixes=(("shop.ab", 1), ("shop.ac", 2))), True),
        (TableFilter(("other",)), False),
    ],
)
def test_a_choice_that_loses_no_published_table_only_adds(tables: TableFilter, has_all: bool) -> None:
    """What is published decides, not the patterns; a table whose rows go to other partitions is another one."""
    assert has_all_of(tables, begun()) is has_all


def test_what_the_topic_does_not_prove_is_no_addition() -> None:
    """Another format of images has another fingerprint; an older version remembered nothing; names may be ambiguous."""
    assert not has_all_of(BEFORE, begun(choice=fingerprint(BEFORE) + 1))
    assert not has_all_of(BEFORE, replace(begun(), annotations={}))
    assert not has_all_of(BEFORE, begun(BEFORE, None, replace(KEYED, table="shop.a.b")))
    many = replace(BEFORE, include=tuple(f"shop.{each}" for each in range(1_000)))
    assert not any(remembered(many).values())


def test_an_addition_voids_and_describes_no_other_table() -> None:
    """The void stands before the description, and gives fills of the table their floor."""
    typed = replace(ITEMS, table="shop.typed")  # published already: the topic lacks the words for its types
    added = resumed(9, checksum=3, cursor="MariaDB/0-1-4").addition({KEYED: True, ITEMS: True, typed: False}, 7)
    assert [(type(each), getattr(each, "table", "")) for each in added.changes] == [
        (VoidTable, "shop.ab"),
        (VoidTable, "shop.items"),
        (DescribeTable, "shop.ab"),
        (DescribeTable, "shop.items"),
        (DescribeTable, "shop.typed"),
    ]
    assert (added.table_choice, added.checksum, added.cursor, added.position) == (7, 3, "MariaDB/0-1-4", PLACE)


def test_the_last_transaction_is_remembered_whole() -> None:
    """A checksum says something only with the place after which its transaction is found in the binlog."""
    progress = resumed(9, checksum=3, cursor="MariaDB/0-1-4")
    place = "MariaDB/0-1-6"
    progress.moved(SourceTransaction(place, place, 1_700_000_001, [], checksum=77, cursor=PLACE))
    assert (progress.position, progress.timestamp) == (place, 1_700_000_001)
    assert (progress.checksum, progress.cursor) == (77, PLACE)
    described = progress.description(TableFilter(), [ITEMS], 7)
    assert (described.gtid, described.position, described.timestamp) == (place, place, 1_700_000_001)
    assert (described.checksum, described.cursor, described.table_choice) == (77, PLACE, 7)
    progress.moved(SourceTransaction("MariaDB/0-1-7", "MariaDB/0-1-7", 1_700_000_002, []))
    assert progress.position == "MariaDB/0-1-7"
    assert (progress.checksum, progress.cursor) == (77, PLACE), "one without a checksum proves nothing"


def test_a_new_epoch_has_described_nothing() -> None:
    """Its tables are described, and nothing of it needs to be voided."""
    progress = resumed(9, table_choice=7)
    assert progress.table_choice == 7
    progress.begin(ResumePoint("shop/0", 2, 1, PLACE, 1_700_000_000, PLACE))
    assert (progress.table_choice, progress.epoch) == (0, 2)
    assert described(progress)[0] is BeginScope


def test_a_partly_published_transaction_of_another_choice_voids_what_follows() -> None:
    """Its rows are others now, so skipping by number would lose some: everything is void, and nothing described."""
    progress = resumed(9, partial_gtid="MariaDB/0-1-6", partial_events=1, table_choice=7)
    changes: list[Change] = [VoidTable("shop.items", "") for _ in range(3)]
    fitted = progress.aligned(SourceTransaction("MariaDB/0-1-6", "MariaDB/0-1-6", 1, changes), 8)
    assert [each.table for each in fitted.changes if isinstance(each, VoidTable)] == [EVERY_TABLE] * 2
    assert fitted.table_choice == progress.table_choice == UNDESCRIBED


def test_a_transaction_that_hid_rows_is_not_continued_by_one_that_does_not() -> None:
    """A full disk, say, made one table void. Read again it has that table's rows first: others would be left out."""
    place, rows = "MariaDB/0-1-6", [RowChange(b"shop.z\0[%d]" % number, VALUE, b"{}") for number in range(3)]
    cut = SourceTransaction(place, place, 1, [*rows, VoidTable("shop.a", "its rows are lost")])
    words = resumed(9).repeatable(cut)
    whole = SourceTransaction(place, place, 1, [RowChange(b"shop.a\0[1]", VALUE, b"{}"), *rows])
    assert not resumed(9).repeatable(whole)
    for said, is_same in ((words, False), ({}, True)):
        progress = resumed(9, partial_gtid=place, partial_events=1, table_choice=7, annotations=dict(said))
        assert (progress.aligned(whole, 7) is whole) is is_same


@pytest.mark.parametrize("gtid", ["MariaDB/1-2-9", PLACE], ids=["of another domain", "what is void at the place"])
def test_what_another_server_has_first_ends_a_transaction_that_is_partly_published(gtid: str) -> None:
    """The publisher takes nothing else into its middle: it was lost each time. The transaction follows as a whole."""
    expected, rows = "MariaDB/0-1-6", [RowChange(b"shop.items\0[%d]" % number, VALUE, b"{}") for number in range(3)]
    point = ResumePoint("shop/0", 1, 9, PLACE, 1, PLACE, partial_gtid=expected, partial_events=1, table_choice=7)
    place = f"{PLACE},1-2-9" if gtid != PLACE else PLACE
    fitted = Progress(point).aligned(SourceTransaction(gtid, place, 1, [*rows]), 7)
    framer = Framer("shop/0", Layout(1), point)
    framer.add(fitted, 1, len(fitted.changes))
    assert [each.table for each in fitted.changes[1:] if isinstance(each, VoidTable)] == [EVERY_TABLE]
    assert (framer.partial_gtid, framer.resume.position) == ("", place)
    framer.add(SourceTransaction(expected, f"{place},0-1-6", 1, [*rows]), 0, 3)
    assert framer.resume.ordinal == 9 + 1 + 3


@pytest.mark.parametrize(("checksum", "count", "is_same"), [(7, 3, True), (8, 3, False), (7, 2, False)])
def test_a_transaction_that_took_the_gtid_of_one_that_is_partly_published_is_not_its_rest(
    checksum: int, count: int, is_same: bool
) -> None:
    """A server that was restored has other rows under it: as many of them as were out would never be published.

    With fewer changes made of the same log, events that were not out would be skipped.
    """
    place, rows = "MariaDB/0-1-6", [RowChange(b"shop.items\0[%d]" % number, VALUE, b"{}") for number in range(3)]
    framer = Framer("shop/0", Layout(1), ResumePoint("shop/0", 1, 9, PLACE, 1, PLACE, table_choice=7))
    framer.add(SourceTransaction(place, place, 1, [*rows], checksum=7), 0, 1)
    now = SourceTransaction(place, place, 1, rows[:count], checksum=checksum)
    assert (Progress(framer.resume).aligned(now, 7) is now) is is_same
    framer.take()
    framer.add(SourceTransaction(place, place, 1, [*rows], checksum=7), 1, 3)
    assert not framer.resume.annotations, "it is whole"


LAST = {"checksum": 77, "cursor": "MariaDB/0-1-4"}


@pytest.mark.parametrize(
    ("last", "raised", "compared"),
    [
        pytest.param(LAST, None, True, id="the server has it"),
        pytest.param(LAST, NotResumable, False, id="it is purged"),
        pytest.param({}, SourceHistoryLost, False, id="nothing was published"),
        pytest.param({"checksum": 77}, SourceHistoryLost, False, id="an old state has no cursor"),
    ],
)
def test_the_last_transaction_is_compared_where_the_server_has_it(
    monkeypatch: pytest.MonkeyPatch, last: dict[str, Any], raised: type[MariaDBError] | None, compared: bool
) -> None:
    """It is read again from the place before it, and its checksum compared with what was published."""
    asked: list[tuple[Any, ...]] = []

    def check_resumable(_: Any, position: str) -> None:
        assert position == "MariaDB/0-1-4"
        if raised is not None:
            raise raised("no", hint="")

    monkeypatch.setattr(source, "check_resumable", check_resumable)
    monkeypatch.setattr(source, "check_same", lambda *arguments, **_: asked.append(arguments[1:]))
    _source()._check_last(None, resumed(9, **last))
    assert asked == ([(4380, "MariaDB/0-1-4", PLACE, 77)] if compared else [])


def test_a_last_transaction_that_is_another_one_is_a_lost_history(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the server lost the place before it, or has other changes under its GTID: the epoch is over."""
    lost = SourceHistoryLost("another transaction", hint="")

    def loses(*_: Any, **__: Any) -> None:
        raise lost

    mine = _source()
    monkeypatch.setattr(source, "check_resumable", lambda *_: None)
    monkeypatch.setattr(source, "check_same", loses)
    with pytest.raises(SourceHistoryLost):
        mine._check_last(None, resumed(9, **LAST))
    monkeypatch.setattr(source, "check_resumable", loses)
    monkeypatch.setattr(source, "check_same", lambda *_, **__: None)
    with pytest.raises(SourceHistoryLost):
        mine._check_last(None, resumed(9, **LAST))


@pytest.mark.parametrize(("partial_gtid", "is_lost"), [("MariaDB/0-1-6", True), ("", False), (PLACE, False)])
def test_a_transaction_that_is_partly_published_and_not_in_the_log_any_more_is_a_lost_history(
    monkeypatch: pytest.MonkeyPatch, partial_gtid: str, is_lost: bool
) -> None:
    """A replica that took over has all up to the position, and never had what follows it: its rows are in stores."""
    said = {"gtid_binlog_state": [("0-1-5,0-2-7", "0-2-7")], "SHOW": [("bin.000001",)], "GTID_POS": [("",)]}
    monkeypatch.setattr(position, "is_mysql", lambda _: False)
    monkeypatch.setattr(position, "fetch_all", lambda _, sql, *__: next(said[each] for each in said if each in sql))
    progress = resumed(9, partial_gtid=partial_gtid, partial_events=bool(partial_gtid))
    with pytest.raises(SourceHistoryLost, match="0-1-6") if is_lost else nullcontext():
        _source()._check_resumes(cast("Any", None), progress)


def _source() -> source.MariaDBSource:
    publisher: Any = SimpleNamespace()
    return source.MariaDBSource(source.SourceOptions(ConnectionSettings("nowhere"), "shop/0"), lambda: publisher)


def test_an_epoch_begins_without_the_tables_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that was restored may have none of them, or others of these names."""
    described: list[Any] = []
    schema: Any = SimpleNamespace(catalog=SimpleNamespace(describe_as=described.append))
    mine = _source()
    mine._new_epoch_for = "history_lost"
    monkeypatch.setattr(source, "connect", lambda _: SimpleNamespace(_force_close=lambda: None))
    monkeypatch.setattr(source, "check_server", lambda _: None)
    for name in ("_begin", "_new_epoch", "_note_histories"):
        monkeypatch.setattr(mine, name, lambda *_: None)
    mine._check(mine._new_publisher(), schema, resumed(9))
    assert (described, mine._new_epoch_for) == ([{}], "")


def test_a_source_goes_on_holding_what_the_one_before_it_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is read behind the XA COMMIT, so nothing else says for what a table waits."""
    held: list[str] = []
    catalog = SimpleNamespace(describe_as=lambda _: None)
    schema = SimpleNamespace(catalog=catalog, hold_again=held.append, close=lambda: None)
    publisher: Any = SimpleNamespace(annotate=lambda _: None)
    mine = _source()
    monkeypatch.setattr(mine, "_new_schema", lambda: schema)
    monkeypatch.setattr(mine, "_read", lambda *_: mine.stop())
    mine._follow(publisher, ResumePoint("shop/0", 1, 9, PLACE, 1, PLACE, annotations={HELD: "words"}))
    assert held == ["words"]


@pytest.mark.parametrize(("choice", "is_same"), [(7, True), (8, False)])
def test_rows_that_are_partly_published_go_on_with_the_same_choice_of_tables_alone(choice: int, is_same: bool) -> None:
    """Another choice has others at these places: some would be left out, and nobody would know which."""
    progress = resumed(9, partial_gtid="MariaDB/0-1-6", partial_events=1, table_choice=7)
    rows = [RowChange(b"shop.items\0[%d]" % number, VALUE, b"{}") for number in (1, 2)]
    given = SourceTransaction("MariaDB/0-1-6", "MariaDB/0-1-6", 1, [*rows])
    fitted = progress.aligned(given, choice)
    assert (fitted is given) is is_same
    assert [type(each) for each in fitted.changes] == [RowChange if is_same else VoidTable] * 2
