"""A copy in another database: the seed's rules, and a copy that equals its source after random crash schedules."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from serving.client import StreamChange, StreamColumn, StreamEvent
from serving.client.answers import DescribedColumn, DescriptionAnswer, Page, Row
from serving.client.errors import TooManyRequests, Unavailable, Unreachable
from serving.sink import awaiting
from serving.sink.applying import Batch, is_taken, remove_unread, write_rows
from serving.sink.awaiting import AwaitedShards
from serving.sink.errors import SinkError
from serving.sink.running import Sink
from serving.sink.state import Copying, SinkState, StateTable
from serving.sink.tables import COPY, TOKEN, CopyTable, key_types, open_table
from tests.lengths import length
from tokens import EventToken, Position, Vector

SHARD, TABLE = "shop/0", "shop.items"
ITEMS = DescriptionAnswer(TABLE, [DescribedColumn("id", "int"), DescribedColumn("v", "text")], ["id"], cacheable=True)
READ_THROUGH = DescriptionAnswer(TABLE, ITEMS.columns, ["id"], cacheable=False, reason="it is read through")


def token(number: int, shard: str = SHARD) -> str:
    return str(EventToken(number, shard, Position.parse(f"MariaDB/0-1-{number}"), epoch=1))


def vector(number: int) -> Vector:
    return Vector({SHARD: (1, Position.parse(f"MariaDB/0-1-{number}"))})


def in_memory(columns: str = "") -> sa.Engine:
    """A database that is the same for every connection. ``columns``: of the copy that it has; "": it is empty."""
    engine = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    if columns:
        with engine.begin() as connection:
            own = "freshet_token TEXT, freshet_copy INT"
            connection.execute(sa.text(f"CREATE TABLE items ({columns}, {own})"))
    return engine


def opened(engine: sa.Engine, described: DescriptionAnswer = ITEMS) -> CopyTable:
    return open_table(engine, sa.MetaData(), described)


def rows_of(engine: sa.Engine) -> dict[Any, str]:
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(sa.text("SELECT id, v FROM items"))}


class Killed(BaseException):
    """The process has gone."""


class LyingFront:
    """Describes another table than it was asked for."""

    def describe(self, _: str, __: str) -> DescriptionAnswer:
        return msgspec.structs.replace(ITEMS, table="shop.kept")


def test_a_front_names_no_other_table_of_the_copy() -> None:
    """Only who runs the sink says what it makes, writes and drops: not the front, nor a table called as the sink's."""
    engine = in_memory()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE kept (id INTEGER)"))
    for front, table in ((LyingFront(), TABLE), (FakeFront(random.Random(1), 0), "shop.freshet_sink")):
        sink = Sink(front, "shop", engine, [table], [SHARD], follows_schemas=True)  # type: ignore[arg-type]
        with pytest.raises(SinkError) as refused:
            sink.run()
        assert refused.value.code == "sink_refused"
    assert set(sa.inspect(engine).get_table_names()) == {"kept", "freshet_sink"}


class FakeFront:
    """A source of one table whose history grows while it is read, and that kills its reader now and then.

    A change is told row by row, or as a void of the table (a cascade). Pages are of any moment at or past the demand.
    """

    def __init__(self, choose: random.Random, kill_share: float) -> None:
        self.choose, self.kill_share, self.away_share = choose, kill_share, 0.0
        self.states: list[dict[int, str]] = [{}]
        self.told: list[list[StreamChange]] = []
        self.is_quiet = False

    def step(self) -> None:
        """Something happens, or the reader is killed."""
        if self.is_quiet:
            return
        if self.choose.random() < self.kill_share:
            raise Killed
        if self.choose.random() < 0.6:
            self.write()

    def write(self) -> None:
        number, state = len(self.states), dict(self.states[-1])
        changes = []
        for key in self.choose.sample(range(9), self.choose.randint(1, 3)):
            if key in state and self.choose.random() < 0.4:
                del state[key]
                changes.append(StreamChange("row", TABLE, [key], "deleted"))
            else:
                state[key] = f"{key}@{number}"
                changes.append(StreamChange("row", TABLE, [key], "value", {"id": key, "v": state[key]}))
        if self.choose.random() < 0.3:
            changes = [StreamChange("row", TABLE, each.key, "void") for each in changes]
        if self.choose.random() < 0.15:
            changes = [StreamChange("void", TABLE, reason="a cascade")]
        self.states.append(state)
        self.told.append(changes)

    # --- as FreshetClient ---

    def describe(self, _: str, __: str) -> DescriptionAnswer:
        return ITEMS

    def stream(self, _: str, begin: str, **__: Any) -> Iterator[StreamEvent]:
        at = len(self.told) if begin == "now" else int(begin)
        yield StreamEvent("watermark", checkpoint=str(at))
        while True:
            self.step()
            if at < len(self.told):
                at += 1
                yield StreamEvent("transaction", str(at), token(at), SHARD, changes=self.told[at - 1])
            if at == len(self.told) or self.choose.random() < 0.3:
                self.step()
                yield StreamEvent("watermark", str(at), str(vector(at)))

    def session(self, seen: str) -> FakeFront:
        demanded = Vector.parse_known(seen)[0].get(SHARD)
        number = int(str(demanded.position).rpartition("-")[2]) if demanded is not None else 0
        self.at = self.choose.randint(min(number, len(self.told)), len(self.told))
        return self

    def answer(self) -> None:
        """Something happens, or the front is away."""
        if self.choose.random() < self.away_share:
            raise self.choose.choice((Unreachable, Unavailable, TooManyRequests))("not now")
        self.step()

    def find(self, _: str, __: str, *, limit: int, page: str) -> Page:
        del limit
        self.answer()
        self.at = self.choose.randint(self.at, len(self.told))
        state = self.states[self.at]
        found = [key for key in sorted(state) if not page or key > int(page)]
        rows = [{"id": key, "v": state[key]} for key in found[:3]]
        return Page("cache", "fresh", "", str(vector(self.at)), rows, page=str(found[2]) if len(found) > 3 else "")

    def get_row(self, _: str, __: str, key: int) -> Row:
        self.answer()
        value = self.states[self.at].get(key)
        found = {"id": key, "v": value} if value is not None else None
        return Row("cache", "fresh", "", str(vector(self.at)), found is not None, found)


def sink_of(front: FakeFront, engine: sa.Engine, *, follows_schemas: bool = False) -> Sink:
    """A process that copies the table."""
    return Sink(front, "shop", engine, [TABLE], [SHARD], follows_schemas=follows_schemas)  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(length(20, 100)))
def test_a_copy_equals_its_source_after_any_crashes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in any read or before any commit, over and over, while rows, voids and deletions go on.

    The front is away now and then, and busy: reads wait for it.
    """
    monkeypatch.setattr(awaiting, "FRONT_PAUSE_S", 0)
    front = FakeFront(random.Random(seed), kill_share=0.05)
    front.away_share = 0.2
    for _ in range(front.choose.randint(0, 8)):
        front.write()
    engine = in_memory()

    sa.event.listen(engine, "commit", lambda _: front.step())
    for _ in range(8):
        with pytest.raises(Killed):
            sink_of(front, engine).run()
    front.is_quiet = True
    end = vector(len(front.told))
    sink = sink_of(front, engine)
    sink.run(is_done=lambda reached: reached == end)
    assert rows_of(engine) == front.states[-1]
    engine.dispose()


def test_a_front_that_stays_away_ends_the_sink(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while somebody must look; the error is the front's own."""
    monkeypatch.setattr(awaiting, "FRONT_PAUSE_S", 0)
    monkeypatch.setattr(awaiting, "FRONT_WAIT_S", 0.05)
    front = FakeFront(random.Random(1), kill_share=0)
    front.away_share = 1.0
    with pytest.raises((Unreachable, Unavailable, TooManyRequests)):
        sink_of(front, in_memory()).run()


@pytest.mark.parametrize(
    ("kept", "taken"),
    [(None, True), ("", True), (token(4), True), (token(5), True), (token(6), False), (token(6, "shop/1"), True)],
)
def test_only_a_change_that_is_known_to_be_older_is_passed_over(kept: str | None, taken: bool) -> None:
    """No row or no token, an older or an unknown one: the change is taken (seed 001)."""
    assert is_taken(kept, token(5)) is taken
    assert is_taken("somebody's own", token(5))


def test_the_changes_of_a_batch_follow_each_other() -> None:
    """Of one key the last one counts, but for one that is older; of a row that is newer than all of them none does."""
    engine = in_memory()
    table = opened(engine)
    with engine.begin() as connection:
        write_rows(connection, table, {(9,): {"id": 9, "v": "new", TOKEN: token(8)}})
        batch = Batch()
        batch.add(table, [1], token(1), {"id": 1, "v": "a"}, 1)
        batch.add(table, [2], token(1), {"id": 2, "v": "b"}, 1)
        batch.add(table, [1], token(2), None, 1)
        batch.add(table, [1], token(3), {"id": 1, "v": "c"}, 1)
        batch.add(table, [1], token(2), {"id": 1, "v": "late"}, 1)
        batch.add(table, [2], token(3), None, 1)
        batch.add(table, [9], token(7), None, 1)
        batch.write(connection)
    assert rows_of(engine) == {1: "c", 9: "new"}


def test_what_a_reading_has_not_met_goes_also_without_a_number() -> None:
    """A row that somebody else has written has none. The source does not have it."""
    engine = in_memory()
    table = opened(engine)
    with engine.begin() as connection:
        write_rows(connection, table, {(key,): {"id": key, "v": "x", COPY: copy} for key, copy in ((1, None), (2, 3))})
        remove_unread(connection, table, 3)
    assert rows_of(engine) == {2: "x"}


def test_a_table_that_is_due_again_is_read_from_its_beginning() -> None:
    """Its reading has another number: the rows of pages before would be removed as not met."""
    state = SinkState(copies={TABLE: Copying(3, "page 7")}).with_due(TABLE)
    assert state.copies[TABLE] == Copying(4)


def test_two_sinks_of_one_copy_do_not_both_write() -> None:
    """The one that comes too late ends, and its rows are not written."""
    engine = in_memory()
    states = StateTable(sa.MetaData(), "shop")
    first, second = states.load(engine), states.load(engine)
    with engine.begin() as connection:
        assert states.save(connection, first).version == 1
    with pytest.raises(SinkError) as taken, engine.begin() as connection:
        states.save(connection, second)
    assert taken.value.code == "sink_taken"
    assert states.load(engine) == SinkState(version=1)


KINDS = (
    ("int", 2**62, 2**62),
    ("decimal", "12.50", "12.50"),
    ("double", 1.5, 1.5),
    ("text", "Zoë", "Zoë"),
    ("datetime", "0000-00-00 00:00:00", "0000-00-00 00:00:00"),
    ("binary", {"base64": "AP8="}, b"\0\xff"),
    ("kind of a later version", "x", "x"),
    ("json", None, None),
)


def test_a_table_that_is_made_loses_nothing() -> None:
    """Each kind of value comes out of the copy as it is in the stream, text for text; NULL too."""
    engine = in_memory()
    columns = [DescribedColumn("id", "int"), *(DescribedColumn(f"c{at}", each[0]) for at, each in enumerate(KINDS))]
    table = opened(engine, DescriptionAnswer(TABLE, columns, ["id"], cacheable=True))
    with engine.begin() as connection:
        batch = Batch()
        batch.add(table, [1], token(1), {"id": 1, **{f"c{at}": each[1] for at, each in enumerate(KINDS)}}, 1)
        batch.write(connection)
        row = connection.execute(sa.select(table.table)).mappings().one()
    assert [row[f"c{at}"] for at in range(len(KINDS))] == [each[2] for each in KINDS]


@pytest.mark.parametrize(
    ("kind", "sql_type", "made"),
    [
        ("text", "varchar(300)", "VARCHAR(300) COLLATE utf8mb4_0900_bin"),
        ("text", "char(4)", "VARCHAR(255) COLLATE utf8mb4_0900_bin"),
        ("text", "", "VARCHAR(255) COLLATE utf8mb4_0900_bin"),
        ("text", "character varying(300)", "VARCHAR(300) COLLATE utf8mb4_0900_bin"),
        ("text", "character(300)", "VARCHAR(300) COLLATE utf8mb4_0900_bin"),
        ("binary", "varbinary(1000)", "VARBINARY(1000)"),
        ("decimal", "decimal(65,30)", "VARCHAR(68) COLLATE utf8mb4_0900_bin"),
        ("int", "bigint(20) unsigned", "NUMERIC(20, 0)"),
    ],
)
def test_a_key_that_is_made_takes_the_longest_of_the_source(kind: str, sql_type: str, made: str) -> None:
    """MariaDB wants a bound of a key's text: the source's own, as MySQL or PostgreSQL writes it, where it is told."""
    assert made_key((kind, sql_type)) == [made]


def made_key(*columns: tuple[str, str], version: tuple[int, ...] = (8, 4, 0)) -> list[str]:
    """The types of a new key in MySQL, of columns of a kind and a type at the source."""
    engine = sa.create_engine("mysql+pymysql://copy")
    engine.dialect.server_version_info = version  # as its first connection finds it
    described = [DescribedColumn(str(at), kind, sql_type) for at, (kind, sql_type) in enumerate(columns)]
    return [each.compile(mysql.dialect()) for each in key_types(described, engine).values()]


def test_a_key_that_is_made_fits_into_its_database() -> None:
    """Of 3072 bytes: a source's characters may have one byte, and have four in the copy. The longest give way."""
    end = " COLLATE utf8mb4_0900_bin"
    assert made_key(("text", "varchar(1024)")) == [f"VARCHAR(768){end}"]
    assert made_key(("text", "varchar(400)"), ("text", "varchar(400)")) == [f"VARCHAR(384){end}"] * 2
    shared = made_key(("text", "varchar(1024)"), ("int", "int(11)"), ("binary", "varbinary(300)"), ("date", "date"))
    assert shared == [f"VARCHAR(680){end}", "NUMERIC(20, 0)", "VARBINARY(300)", f"VARCHAR(10){end}"]
    assert made_key(*[("text", "varchar(20)")] * 4) == [f"VARCHAR(192){end}"] * 4


def test_an_older_mysql_has_a_collation_too() -> None:
    """In which blanks at the end of a key don't count: it has no other."""
    assert made_key(("text", "varchar(9)"), version=(5, 7, 44)) == ["VARCHAR(255) COLLATE utf8mb4_bin"]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("DATE", "0000-00-00"),
        ("DATE", 5),
        ("BIGINT", 2**63),
        ("BIGINT", "1.50"),
        ("BIGINT", "a"),
        ("DECIMAL(20, 0)", "1.50"),
        ("DECIMAL(20, 0)", 0.5),
        ("DECIMAL(20, 2)", "1.505"),
        ("DOUBLE", "0.12345678901234567890"),
        ("DOUBLE", 2**53 + 1),
        ("JSON", '{"a": 0.12345678901234567890}'),
    ],
)
def test_a_column_that_does_not_take_a_value_is_named(kind: str, value: Any) -> None:
    """A zero date fits no date: the sink ends and says which column, instead of writing another value."""
    engine = in_memory(f"id INT PRIMARY KEY, v {kind}")
    table = opened(engine)
    with pytest.raises(SinkError, match=r"shop\.items\.v has a value that the copy's column") as refused:
        Batch().add(table, [1], token(1), {"id": 1, "v": value}, 1)
    assert refused.value.code == "sink_value"


@pytest.mark.parametrize(
    ("kind", "value", "taken"),
    [
        ("BIGINT", -(2**63), -(2**63)),
        ("BIGINT", "7.00", 7),
        ("DECIMAL(20, 2)", "1.50", Decimal("1.50")),
        ("DECIMAL(65, 30)", "9" * 35 + "." + "9" * 30, Decimal("9" * 35 + "." + "9" * 30)),
        ("DOUBLE", "0.1", 0.1),
        ("DOUBLE", 1e300, 1e300),
        ("DOUBLE", 2**53, 2.0**53),
        ("JSON", '{"a": [1.50, 18446744073709551616]}', {"a": [1.5, 2**64]}),
        ("JSON", "null", sa.JSON.NULL),
        ("JSON", None, None),
    ],
)
def test_a_column_takes_what_it_holds_exactly(kind: str, value: Any, taken: Any) -> None:
    """Whatever kind the column is at the source by now."""
    assert opened(in_memory(f"id INT PRIMARY KEY, v {kind}")).values_of({"v": value}) == {"v": taken}


def test_a_text_with_a_nul_needs_bytes_in_postgresql() -> None:
    """PostgreSQL's texts have none: the column is named, and made one of bytes it takes the text."""
    engine = in_memory()
    row = {"id": 1, "v": "a\0b"}
    assert opened(engine).values_of(row) == row
    with pytest.raises(SinkError, match=r"shop\.items\.v has a value that the copy's column") as refused:
        replace(opened(engine), takes_nul=False).values_of(row)
    assert refused.value.hint == "make items.v a column of bytes, and start again"
    other = in_memory("id INT PRIMARY KEY, v BLOB")
    assert replace(opened(other), takes_nul=False).values_of(row) == {"id": 1, "v": b"a\0b"}


@pytest.mark.parametrize("made", ["id INT PRIMARY KEY", "id INT, v TEXT PRIMARY KEY, freshet_token, freshet_copy INT"])
def test_a_copy_of_another_form_is_refused(made: str) -> None:
    """A missing column, or another primary key, is found at the start."""
    engine = in_memory()
    with engine.begin() as connection:
        connection.execute(sa.text(f"CREATE TABLE items ({made})"))
    with pytest.raises(SinkError) as refused:
        opened(engine)
    assert refused.value.code == "sink_schema_changed"


class Redescribing(FakeFront):
    """Tells a description, and nothing after it."""

    def __init__(self, columns: Sequence[str]) -> None:
        super().__init__(random.Random(1), 0)
        self.is_quiet, self.columns = True, [StreamColumn(name, "text" if name != "id" else "int") for name in columns]
        self.states, self.told = [{}, {1: "a"}], [[StreamChange("row", TABLE, [1], "value", {"id": 1, "v": "a"})]]
        described = StreamChange("schema", TABLE, columns=self.columns, primary_key=["id"] if columns else [])
        self.told.append([described])
        self.states.append({1: "a"})

    def stream(self, _: str, begin: str, **__: Any) -> Iterator[StreamEvent]:
        yield from super().stream(_, "0" if begin == "now" else begin)


@pytest.mark.parametrize(("columns", "follows"), [(["id", "v", "w"], False), ([], False), ([], True)])
def test_a_changed_schema_ends_the_sink(columns: list[str], follows: bool) -> None:
    """What can't be followed, or shall not be, is told; what came before it is in the copy."""
    engine = in_memory()
    front = Redescribing(columns)
    sink = sink_of(front, engine, follows_schemas=follows)
    with pytest.raises(SinkError) as ended:
        sink.run(is_done=lambda reached: reached == vector(2))
    assert ended.value.code == "sink_schema_changed"


def test_a_schema_is_followed_by_making_the_copy_anew() -> None:
    """With the new column, and read again from its beginning."""
    engine = in_memory()
    front = Redescribing(["id", "v", "w"])
    sink = sink_of(front, engine, follows_schemas=True)
    sink.run(is_done=lambda reached: reached == vector(2))
    assert [column["name"] for column in sa.inspect(engine).get_columns("items")][:3] == ["id", "v", "w"]
    assert rows_of(engine) == {1: "a"}


def test_a_column_of_another_kind_is_followed_by_making_the_copy_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its new values may not fit in the old column. So too if the sink was away when it changed."""
    engine = in_memory()
    front = Redescribing(["id", "v"])
    front.columns[1] = StreamColumn("v", "int")
    front.told[0] = [StreamChange("row", TABLE, [1], "value", {"id": 1, "v": 5})]
    monkeypatch.setattr(front, "states", [{}, {1: 5}, {1: 5}])

    def copied() -> tuple[str, dict[int, Any]]:
        sink_of(front, engine, follows_schemas=True).run(is_done=lambda reached: reached == vector(2))
        return str(sa.inspect(engine).get_columns("items")[1]["type"]), rows_of(engine)

    assert copied() == ("BIGINT", {1: 5})
    now = msgspec.structs.replace(ITEMS, columns=[ITEMS.columns[0], DescribedColumn("v", "double")])
    monkeypatch.setattr(front, "describe", lambda *_: now)
    assert copied() == ("DOUBLE", {1: 5.0})


class Withholding(FakeFront):
    """Its row 1 changes while the stream does not tell of the table. ``again``: it does in the end."""

    def __init__(self, *, again: bool) -> None:
        super().__init__(random.Random(1), 0)
        self.is_quiet, self.again = True, again
        columns = [StreamColumn("id", "int"), StreamColumn("v", "text")]
        withheld, told = (
            StreamChange("schema", TABLE, columns=columns, primary_key=["id"], cacheable=each) for each in (False, True)
        )
        self.states = [{}, {1: "a"}, {1: "a"}, {1: "b"}]
        self.told = [
            [StreamChange("row", TABLE, [1], "value", {"id": 1, "v": "a"})],
            [withheld],
            [told] if again else [],
        ]
        self.kills_at = 0
        self.described = ITEMS

    def stream(self, _: str, begin: str, **__: Any) -> Iterator[StreamEvent]:
        for event in super().stream("", "0" if begin == "now" else begin):
            yield event
            if self.kills_at and event.checkpoint == str(self.kills_at) and event.kind == "watermark":
                raise Killed

    def describe(self, _: str, __: str) -> DescriptionAnswer:
        described, self.described = self.described, ITEMS if self.again else READ_THROUGH
        return described


@pytest.mark.parametrize("kills_at", [0, 2])
def test_a_table_that_the_stream_withholds_for_a_while_is_read_again(kills_at: int) -> None:
    """As between a DDL and what describes it. The sink does not end, nor does a kill meanwhile make it forget."""
    engine, front = in_memory(), Withholding(again=True)
    if kills_at:
        front.kills_at, later = kills_at, front.told.pop()
        with pytest.raises(Killed):
            sink_of(front, engine).run()
        assert rows_of(engine) == {1: "a"}
        front.kills_at = 0
        front.told.append(later)
    sink_of(front, engine).run(is_done=lambda reached: reached == vector(3))
    assert rows_of(engine) == {1: "b"}


def test_a_table_that_the_stream_withholds_for_good_ends_the_sink() -> None:
    """Else a copy would be old, and nobody would be told. A sink without that table goes on, and does not forget it."""
    engine, front = in_memory(), Withholding(again=False)
    sink = Sink(front, "shop", engine, [TABLE], [SHARD], shard_wait_s=0.01)  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="it is read through") as ended:
        sink.run(is_done=lambda _: True)
    assert ended.value.code == "sink_refused"
    without = Sink(front, "shop", engine, [], [SHARD], shard_wait_s=0.01)  # type: ignore[arg-type]
    without.run(is_done=lambda reached: reached == vector(3))
    front.again, front.described = True, ITEMS
    again = sink_of(front, engine)
    again._open()
    assert [*again._state.due, *again._state.withheld] == [TABLE]


def test_a_table_that_one_of_two_shards_withholds_is_not_read() -> None:
    """Another one describes it too. That says nothing of the first one's rows."""
    engine, front = in_memory(), Withholding(again=True)
    other = StreamChange("schema", TABLE, columns=front.told[1][0].columns, primary_key=["id"], cacheable=True)
    sink = Sink(front, "shop", engine, [TABLE], [SHARD, "shop/1"])  # type: ignore[arg-type]
    sink._open()
    sink._take(StreamEvent("transaction", "1", token(2), SHARD, changes=front.told[1]))
    sink._take(StreamEvent("transaction", "2", token(7, "shop/1"), "shop/1", changes=[other]))
    assert (sink._state.withheld, sink._state.due) == ([TABLE], [])
    sink._take(StreamEvent("transaction", "3", token(3), SHARD, changes=front.told[2]))
    assert (sink._state.withheld, sink._state.due) == ([], [TABLE])


def test_a_table_that_two_shards_withhold_waits_for_both() -> None:
    """That one of them tells of it again says nothing of the other's rows."""
    front = Withholding(again=True)
    sink = Sink(front, "shop", in_memory(), [TABLE], [SHARD, "shop/1"])  # type: ignore[arg-type]
    sink._open()
    for number, (shard, changes) in enumerate(
        ((SHARD, front.told[1]), ("shop/1", front.told[1]), (SHARD, front.told[2]))
    ):
        sink._take(StreamEvent("transaction", str(number), token(2 + number, shard), shard, changes=changes))
    assert (sink._state.withheld, sink._state.due) == ([TABLE], [])


@pytest.mark.parametrize("table", ["", "*", TABLE])
def test_a_void_of_all_tables_has_each_read_again(table: str) -> None:
    """Whichever way it says that it is of all."""
    sink = sink_of(two_rows(), in_memory())
    sink._open()
    number = sink._state.copies[TABLE].number
    sink._take(StreamEvent("transaction", "1", token(1), SHARD, changes=[StreamChange("void", table)]))
    assert sink._state.copies[TABLE].number == number + 1


def test_an_event_without_a_checkpoint_leaves_the_one_before() -> None:
    """Without any the sink would go on at what is new then, and miss all that was between."""
    sink = sink_of(two_rows(), in_memory())
    sink._open()
    for checkpoint in ("7", ""):
        sink._take(StreamEvent("transaction", checkpoint, token(2), SHARD))
    assert sink._state.checkpoint == "7"


@pytest.mark.parametrize("columns", [["id", "v"], ["id", "v", "w"]])
def test_a_copy_that_was_dropped_is_read_again(columns: list[str]) -> None:
    """By a user, as the hint says: its rows are not lost. Nor if the source's columns changed while nobody followed."""
    engine = in_memory()
    front = Redescribing(["id", "v"])
    sink_of(front, engine).run(is_done=lambda _: True)
    if columns == ["id", "v"]:
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE items"))
    described = [DescribedColumn(name, "text" if name != "id" else "int") for name in columns]
    front.describe = lambda _, __: DescriptionAnswer(TABLE, described, ["id"], cacheable=True)  # type: ignore[method-assign]
    for _ in range(2):
        sink = sink_of(front, engine, follows_schemas=len(columns) > 2)
        sink._open()  # and it is killed
    sink.run(is_done=lambda reached: reached == vector(2))
    assert rows_of(engine) == {1: "a"}


def test_a_table_of_somebody_else_is_never_dropped() -> None:
    """One of the same name that no sink has made is refused, also where schemas are followed."""
    engine = in_memory()
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE items (id INT PRIMARY KEY, mine TEXT)"))
    front = Redescribing(["id", "v"])
    with pytest.raises(SinkError, match="no column"):
        sink_of(front, engine, follows_schemas=True).run()
    assert [column["name"] for column in sa.inspect(engine).get_columns("items")] == ["id", "mine"]


def two_rows() -> FakeFront:
    """Tells two rows, and nothing after it."""
    front = FakeFront(random.Random(1), 0)
    front.is_quiet = True
    front.states.append({1: "a", 2: "b"})
    front.told.append(
        [StreamChange("row", TABLE, [key], "value", {"id": key, "v": v}) for key, v in ((1, "a"), (2, "b"))]
    )
    return front


def test_a_copy_that_is_begun_anew_keeps_no_row_of_before() -> None:
    """The checkpoint was deleted, as where a stream is too old: what the source has deleted meanwhile goes."""
    engine, front = in_memory(), two_rows()
    sink_of(front, engine).run(is_done=lambda reached: reached == vector(1))
    front.told.append([StreamChange("row", TABLE, [2], "deleted")])
    front.states.append({1: "a"})
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM freshet_sink"))
    sink_of(front, engine).run(is_done=lambda reached: reached == vector(2))
    assert rows_of(engine) == {1: "a"}


class Renamed(FakeFront):
    """Describes a table of whatever database."""

    def describe(self, _: str, table: str) -> DescriptionAnswer:
        return msgspec.structs.replace(ITEMS, table=table)


def test_two_tables_of_one_name_never_share_a_copy() -> None:
    """Of another database it takes the place of the one that is named no more; another keyspace's is refused."""
    engine, front = in_memory(), Renamed(random.Random(1), 0)
    front.is_quiet = True
    for database, state in (("shop", {1: "a", 2: "b"}), ("market", {1: "c"}), ("shop", {2: "b"})):
        front.states, front.told = [{}, state], [[]]
        sink = Sink(front, "shop", engine, [f"{database}.items"], [SHARD])  # type: ignore[arg-type]
        sink.run(is_done=lambda reached: reached == vector(1))
        assert rows_of(engine) == state
    for keyspace, tables in (("market", ["market.items"]), ("shop", ["shop.items", "shop.Items"])):
        with pytest.raises(SinkError, match="name") as refused:
            Sink(front, keyspace, engine, tables, [SHARD]).run()  # type: ignore[arg-type]
        assert refused.value.code == "sink_refused"
    assert rows_of(engine) == {2: "b"}


def test_a_copy_that_another_keyspace_had_meanwhile_keeps_none_of_its_rows() -> None:
    """Also if both have read it as often: who names it again reads it under a number that no row has."""
    engine, front = in_memory(), Renamed(random.Random(1), 0)
    front.is_quiet, front.told = True, [[]]

    def copied(keyspace: str, tables: list[str], state: dict[int, str], voids: int = 0) -> None:
        front.states = [{}, state]
        sink = Sink(front, keyspace, engine, tables, [SHARD])  # type: ignore[arg-type]
        sink._open()
        for _ in range(voids):
            sink._state = sink._voided(sink._state, "*")
        sink._commit()
        sink.run(is_done=lambda reached: reached == vector(1))

    copied("one", ["a.items", "a.kept"], {1: "one"})
    copied("one", ["a.kept"], {1: "one"})
    copied("two", ["b.items"], {5: "two", 6: "two"}, voids=1)
    copied("two", ["b.other"], {})
    copied("one", ["a.items", "a.kept"], {1: "one"})
    assert rows_of(engine) == {1: "one"}


def test_a_column_that_the_copy_has_already_gets_its_values() -> None:
    """Added to the copy before the source: from the description on rows come with it, and those of before are read."""
    engine, front = in_memory("id INTEGER PRIMARY KEY, v TEXT, w TEXT"), Redescribing(["id", "v", "w"])
    sink = sink_of(front, engine)
    sink._open()
    number = sink._state.copies[TABLE].number
    for at, changes in enumerate(front.told, 1):
        sink._take(StreamEvent("transaction", str(at), token(at), SHARD, changes=changes))
    row = StreamChange("row", TABLE, [2], "value", {"id": 2, "v": "b", "w": "new"})
    sink._take(StreamEvent("transaction", "3", token(3), SHARD, changes=[row]))
    assert sink._state.due == [TABLE], "row 1 is read again"
    assert sink._state.copies[TABLE].number == number + 1
    sink._commit()
    with engine.connect() as connection:
        assert set(connection.execute(sa.text("SELECT id, v, w FROM items"))) == {(1, "a", None), (2, "b", "new")}


def test_a_column_that_only_one_shard_has_keeps_its_values() -> None:
    """A description of the other shard takes none from the rows of this one, and has nothing read again."""
    engine, front = in_memory("id INTEGER PRIMARY KEY, v TEXT, w TEXT"), Redescribing(["id", "v", "w"])
    sink = Sink(front, "shop", engine, [TABLE], [SHARD, "shop/1"])  # type: ignore[arg-type]
    sink._open()
    described = front.told[1][0]
    less = msgspec.structs.replace(described, columns=described.columns[:2])
    sink._take(StreamEvent("transaction", "1", token(1), SHARD, changes=[described]))
    number = sink._state.copies[TABLE].number
    sink._take(StreamEvent("transaction", "2", token(2, "shop/1"), "shop/1", changes=[less]))
    sink._take(StreamEvent("transaction", "3", token(3), SHARD, changes=[described]))
    assert sink._state.copies[TABLE].number == number
    rows = [({"id": 1, "v": "a", "w": "kept"}, SHARD), ({"id": 2, "v": "b"}, "shop/1")]
    for at, (row, shard) in enumerate(rows, 4):
        change = StreamChange("row", TABLE, [row["id"]], "value", row)
        sink._take(StreamEvent("transaction", str(at), token(at, shard), shard, changes=[change]))
    sink._commit()
    with engine.connect() as connection:
        assert set(connection.execute(sa.text("SELECT id, v, w FROM items"))) == {(1, "a", "kept"), (2, "b", None)}


def test_a_column_that_only_one_shard_has_keeps_its_values_over_a_restart() -> None:
    """The front describes the table as the other shard has it. So the sink remembers what it has been told."""
    engine, front = in_memory("id INTEGER PRIMARY KEY, v TEXT, w TEXT"), Redescribing(["id", "v", "w"])
    before = Sink(front, "shop", engine, [TABLE], [SHARD, "shop/1"])  # type: ignore[arg-type]
    before._open()
    before._take(StreamEvent("transaction", "1", token(1), SHARD, changes=[front.told[1][0]]))
    before._commit()
    after = Sink(front, "shop", engine, [TABLE], [SHARD, "shop/1"])  # type: ignore[arg-type]
    after._open()
    number = after._state.copies[TABLE].number
    row = StreamChange("row", TABLE, [1], "value", {"id": 1, "v": "a", "w": "kept"})
    after._take(StreamEvent("transaction", "2", token(2), SHARD, changes=[row, front.told[1][0]]))
    after._commit()
    with engine.connect() as connection:
        assert set(connection.execute(sa.text("SELECT id, v, w FROM items"))) == {(1, "a", "kept")}
    assert after._state.copies[TABLE].number == number, "nothing is read again"
    with engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE items DROP COLUMN w"))
    without = Sink(front, "shop", engine, [TABLE], [SHARD, "shop/1"])  # type: ignore[arg-type]
    without._open()
    assert set(without._tables[TABLE].kinds) == {"id", "v"}, "a column that the copy has no more is not written"


def test_a_state_of_before_the_columns_were_kept_goes_on() -> None:
    """The copies of before have none: they begin with those of the description."""
    engine = in_memory()
    front = FakeFront(random.Random(1), 0)
    sink_of(front, engine)._open()
    with engine.begin() as connection:
        kept = sink_of(front, engine)._states.load(engine).copies
        assert TABLE not in kept
        old = '{"shop.items":{"number":3,"page":"","is_due":false,"withheld_by":[],"is_wanted":true}}'
        connection.execute(sa.text("UPDATE freshet_sink SET copies = :old"), {"old": old})
    sink = sink_of(front, engine)
    sink._open()
    assert (sink._state.copies[TABLE].number, sink._state.due) == (3, [])
    assert sink._state.copies[TABLE].kinds == {"id": "int", "v": "text"}


def test_a_table_with_a_column_of_the_sink_is_refused() -> None:
    """Its values would be taken for the sink's own."""
    engine, front = in_memory(), two_rows()
    columns = [*ITEMS.columns, DescribedColumn("Freshet_token", "text")]
    front.describe = lambda _, __: msgspec.structs.replace(ITEMS, columns=columns)  # type: ignore[method-assign]
    with pytest.raises(SinkError, match="Freshet_token") as refused:
        sink_of(front, engine).run()
    assert refused.value.code == "sink_refused"


@pytest.mark.parametrize("at", ["before_drop", "after_drop", "after_create"])
def test_a_kill_while_a_copy_is_made_anew_loses_no_rows(at: str) -> None:
    """DDL is committed by itself: the new copy must not be taken for one that was read."""
    engine = in_memory()
    front = Redescribing(["id", "v", "w"])
    killed = sink_of(front, engine, follows_schemas=True)

    def kill(*_: Any, **__: Any) -> None:
        if killed._state.token:
            raise Killed

    sa.event.listen(sa.Table, at, kill)
    try:
        with pytest.raises(Killed):
            killed.run(is_done=lambda reached: reached == vector(2))
    finally:
        sa.event.remove(sa.Table, at, kill)
    described = [DescribedColumn("id", "int"), DescribedColumn("v", "text"), DescribedColumn("w", "text")]
    front.describe = lambda _, __: DescriptionAnswer(TABLE, described, ["id"], cacheable=True)  # type: ignore[method-assign]
    sink = sink_of(front, engine, follows_schemas=True)
    sink.run(is_done=lambda reached: reached == vector(2))
    assert rows_of(engine) == {1: "a"}


def test_a_shard_that_is_silent_is_named() -> None:
    """A shard of the settings that has no source: the sink ends and says which one, instead of waiting for ever."""
    front = FakeFront(random.Random(1), kill_share=0)
    front.is_quiet = True
    engine = in_memory()
    sink = Sink(front, "shop", engine, [TABLE], [SHARD, "shop/1"], shard_wait_s=0.1)  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="nothing was heard of shop/1 for") as silent:
        sink.run()
    assert silent.value.code == "sink_shard_silent"


def test_a_shard_is_waited_for_from_the_first_event_on() -> None:
    """Each shard counts once it was heard of; the time of a front that did not answer does not."""
    now = 0.0
    awaited = AwaitedShards([SHARD, "shop/1"], 60, clock=lambda: now)
    now = 1_000.0
    assert not awaited.are_in(vector(1))
    now += 59
    assert awaited.are_in(Vector({"shop/1": (1, Position.parse("MariaDB/0-1-1"))}))
    now += 1_000
    assert awaited.are_in(Vector())


class SideBySide(FakeFront):
    """Tables of which each page is given once a page of every other one is asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(random.Random(1), 0)
        self.is_quiet = True
        self.write()
        self.all_asked = threading.Barrier(count, timeout=30)

    def describe(self, _: str, table: str) -> DescriptionAnswer:
        return msgspec.structs.replace(ITEMS, table=table)

    def find(self, *_: object, limit: int, page: str) -> Page:
        del limit
        self.all_asked.wait()
        found = [{"id": int(page or 0), "v": "v"}]
        return Page("cache", "fresh", "", str(vector(1)), found, page=str(int(page or 0) + 1) if page != "2" else "")


def test_tables_are_read_side_by_side() -> None:
    """Three readers ask for three tables at once, page after page; the rows of each are in its copy."""
    engine = in_memory()
    names = [f"shop.t{number}" for number in range(3)]
    sink = Sink(SideBySide(3), "shop", engine, names, [SHARD], readers=3)  # type: ignore[arg-type]
    sink.run(is_done=lambda _: True)
    with engine.connect() as connection:
        for name in names:
            found = connection.execute(sa.text(f"SELECT id FROM {name.partition('.')[2]} ORDER BY id"))
            assert [row[0] for row in found] == [0, 1, 2]
    engine.dispose()


def test_a_description_that_is_said_again_changes_nothing() -> None:
    """They come every few minutes."""
    engine = in_memory()
    sink = sink_of(Redescribing(["id", "v"]), engine)
    sink.run(is_done=lambda reached: reached == vector(2))
    assert rows_of(engine) == {1: "a"}
