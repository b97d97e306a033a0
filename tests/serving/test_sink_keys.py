"""A copy of a table whose primary key has changed: what the stream tells by the key of before is passed over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa

from serving.client import StreamChange, StreamColumn, StreamEvent
from serving.client.answers import DescribedColumn, DescriptionAnswer, Page
from serving.sink.errors import SinkError
from serving.sink.running import Sink
from tests.serving.test_sink import SHARD, TABLE, FakeFront, in_memory, rows_of, sink_of, token, vector

BEFORE = {"id": "int", "v": "text"}
WIDER = {"id": "int", "region": "int", "v": "text"}
RENAMED = {"uid": "int", "v": "text"}
VALUES = {"id": 1, "uid": 1, "region": 7, "v": "b"}


def described(columns: dict[str, str], key: Sequence[str], *, void: bool = True) -> list[StreamChange]:
    """What the stream tells of a DDL, or (not ``void``) says again."""
    told = [StreamColumn(name, kind) for name, kind in columns.items()]
    schema = StreamChange("schema", TABLE, columns=told, primary_key=[*key])
    return [StreamChange("void", TABLE), schema] if void else [schema]


class Altered(FakeFront):
    """Its row 1 is in the copy when it is changed once more, and then the table gets another primary key."""

    def __init__(self, columns: dict[str, str], key: Sequence[str]) -> None:
        super().__init__(random.Random(1), 0)
        self.is_quiet, self.columns, self.key = True, columns, [*key]
        self.states = [{}, {1: "a"}]
        self.told = [[StreamChange("row", TABLE, [1], "value", {"id": 1, "v": "a"})]]
        self.is_behind = False
        """Whether it describes the table as it was before."""

    def alter(self) -> None:
        """While no sink runs. A description is said again, too, and the row is changed in three ways."""
        values = {name: VALUES[name] for name in BEFORE}
        row, again = StreamChange("row", TABLE, [1], "value", values), described(BEFORE, ["id"], void=False)
        void, deleted = StreamChange("row", TABLE, [2], "void"), StreamChange("row", TABLE, [3], "deleted")
        self.told += [[row], again, [void], [deleted], described(self.columns, self.key)]
        self.states += [{1: "b"}] * 5

    def describe(self, _: str, __: str) -> DescriptionAnswer:
        is_new = len(self.told) > 1 and not self.is_behind
        columns, key = (self.columns, self.key) if is_new else (BEFORE, ["id"])
        return DescriptionAnswer(TABLE, [DescribedColumn(*each) for each in columns.items()], key, cacheable=True)

    def find(self, _: str, __: str, *, limit: int, page: str) -> Page:
        del limit, page
        self.at = len(self.told)
        columns, values = (self.columns, VALUES) if self.at > 1 else (BEFORE, {"id": 1, "v": "a"})
        rows = [{name: values[name] for name in columns}]
        return Page("cache", "fresh", "", str(vector(self.at)), rows, page="")

    def get_row(self, *_: Any) -> Any:
        raise AssertionError("no row has such a key any more")


def copy_of(engine: sa.Engine, columns: dict[str, str]) -> list[tuple[Any, ...]]:
    """The rows in the copy."""
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.text(f"SELECT {', '.join(columns)} FROM items"))]


@pytest.mark.parametrize("follows", [True, False])
@pytest.mark.parametrize(
    ("columns", "key"), [(WIDER, ["id", "region"]), (RENAMED, ["uid"]), (BEFORE, ["v"])], ids=["wider", "renamed", "v"]
)
def test_a_sink_goes_on_behind_another_primary_key(columns: dict[str, str], key: list[str], follows: bool) -> None:
    """It was away when the key changed; what it has not read of before is told by the old one, and ended each start.

    Without ``--follow-schemas`` it says what to do first, and that is done: the copy is dropped.
    """
    engine, front = in_memory(), Altered(columns, key)
    sink_of(front, engine, follows_schemas=follows).run(is_done=lambda reached: reached == vector(1))
    assert rows_of(engine) == {1: "a"}
    front.alter()
    if not follows:
        with pytest.raises(SinkError) as refused:
            sink_of(front, engine).run()
        assert refused.value.code == "sink_schema_changed"
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE items"))
    for _ in range(2):
        sink = sink_of(front, engine, follows_schemas=follows)
        sink.run(is_done=lambda reached: reached == vector(6))
        assert copy_of(engine, columns) == [tuple(VALUES[name] for name in columns)]
        assert sink._state.copies[TABLE].others == {}


def test_a_sink_that_is_killed_before_the_stream_tells_the_key_passes_over_the_rest_too() -> None:
    """It is kept by which key the stream tells the rows: the copy has the new one already."""
    engine, front = in_memory(), Altered(WIDER, ["id", "region"])
    sink_of(front, engine).run(is_done=lambda reached: reached == vector(1))
    front.alter()
    killed = sink_of(front, engine, follows_schemas=True)
    killed._open()
    killed._take(StreamEvent("transaction", "2", token(2), SHARD, changes=front.told[1]))
    killed._commit()
    assert (killed._state.due, killed._state.withheld) == ([], [TABLE]), "it would be read in vain"
    sink_of(front, engine, follows_schemas=True).run(is_done=lambda reached: reached == vector(6))
    assert copy_of(engine, WIDER) == [(1, 7, "b")]


def test_the_rows_of_a_shard_that_has_the_key_of_before_are_passed_over() -> None:
    """Another shard's table is altered already. The copy is read once both are."""
    engine, front = in_memory(), Altered(WIDER, ["id", "region"])
    sink = Sink(front, "shop", engine, [TABLE], [SHARD, "shop/1"], follows_schemas=True)  # type: ignore[arg-type]
    sink._open()
    old = [StreamChange("row", TABLE, [5], "value", {"id": 5, "v": "old"})]
    new = [StreamChange("row", TABLE, [6, 7], "value", {"id": 6, "region": 7, "v": "new"})]
    again, altered = described(BEFORE, ["id"], void=False), described(WIDER, ["id", "region"])
    for number, (shard, changes) in enumerate(
        ((SHARD, altered), ("shop/1", old), ("shop/1", again), (SHARD, new)), start=1
    ):
        sink._take(StreamEvent("transaction", str(number), token(number, shard), shard, changes=changes))
    sink._commit()
    assert copy_of(engine, WIDER) == [(6, 7, "new")]
    assert (sink._state.due, sink._state.withheld) == ([], [TABLE])
    sink._take(StreamEvent("transaction", "5", token(5, "shop/1"), "shop/1", changes=altered))
    assert (sink._state.due, sink._state.withheld) == ([TABLE], [])


def test_a_key_of_which_the_sink_has_not_heard_is_passed_over_too() -> None:
    """A table that a sink copies from now on, which goes on at its checkpoint; or the state of an earlier version."""
    engine, front = in_memory(), Altered(WIDER, ["id", "region"])
    front.alter()
    sink = sink_of(front, engine)
    sink._open()
    for number, changes in enumerate(front.told[:2], start=1):
        sink._take(StreamEvent("transaction", str(number), token(number), SHARD, changes=changes))
    assert (sink._state.due, sink._state.withheld) == ([], [TABLE])
    sink._take(StreamEvent("transaction", "6", token(6), SHARD, changes=front.told[5]))
    sink._commit()
    assert (sink._state.due, sink._state.withheld, copy_of(engine, WIDER)) == ([TABLE], [], [])


def started_behind(*, follows: bool = True) -> tuple[sa.Engine, Altered, Sink]:
    """A sink that has the changed key, and is started again with a description of before that a front has kept."""
    engine, front = in_memory(), Altered(WIDER, ["id", "region"])
    sink_of(front, engine, follows_schemas=True).run(is_done=lambda reached: reached == vector(1))
    front.alter()
    sink_of(front, engine, follows_schemas=True).run(is_done=lambda reached: reached == vector(6))
    front.is_behind = True
    if not follows:
        with engine.begin() as connection:
            connection.execute(sa.text("DROP TABLE items"))
    sink = Sink(front, "shop", engine, [TABLE], [SHARD], follows_schemas=follows, shard_wait_s=0)  # type: ignore[arg-type]
    sink._open()
    return engine, front, sink


def told_again(sink: Sink, number: int) -> None:
    """The source says once more what key the table has."""
    changes = described(WIDER, ["id", "region"], void=False)
    sink._take(StreamEvent("transaction", str(number), token(number), SHARD, changes=changes))


@pytest.mark.parametrize("is_told", [True, False])
def test_a_sink_that_starts_with_a_description_of_before_gets_the_key_that_is_told(is_told: bool) -> None:
    """It passed over all rows for good. Where the source says nothing for long, the front is asked again, too."""
    engine, front, sink = started_behind()
    told_again(sink, 7)
    sink._check_withheld()
    sink._check_withheld()
    assert (sink._state.due, sink._state.withheld) == ([], [TABLE]), "the front is behind"
    front.is_behind = False
    if is_told:
        told_again(sink, 8)
    else:
        sink._check_withheld()
    assert (sink._state.due, sink._state.withheld) == ([TABLE], [])
    sink._read_due()
    assert copy_of(engine, WIDER) == [(1, 7, "b")]
    number = sink._state.copies[TABLE].number
    told_again(sink, 9)
    assert sink._state.copies[TABLE].number == number, "it is read once"


@pytest.mark.parametrize("is_told", [True, False])
def test_a_sink_that_follows_no_schemas_says_that_it_has_a_key_of_before(is_told: bool) -> None:
    """Its copy was dropped, and made from a description that a front had kept."""
    _, front, sink = started_behind(follows=False)
    sink._check_withheld()
    front.is_behind = False
    with pytest.raises(SinkError) as refused:
        told_again(sink, 7) if is_told else sink._check_withheld()
    assert refused.value.code == "sink_schema_changed"
