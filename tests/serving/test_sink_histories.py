"""As of which history, and how much of it, a sink reads rows: also where the source has lost what it had seen."""

from __future__ import annotations

import random

import pytest

from serving.client import HistoryLost, StreamChange, StreamEvent
from serving.client.answers import DescribedColumn, DescriptionAnswer, Row
from serving.sink.applying import write_page
from tests.serving.test_sink import SHARD, TABLE, FakeFront, in_memory, rows_of, sink_of, token, two_rows, vector
from tokens import Position, Vector


def losing(front: FakeFront) -> FakeFront:
    """Its next answer says that another history is there."""

    def lost() -> None:
        front.answer = answer  # type: ignore[method-assign]
        raise HistoryLost("the source was restored from a backup")

    answer, front.answer = front.answer, lost  # type: ignore[method-assign]
    return front


def test_a_table_is_read_of_the_history_that_is_there_now() -> None:
    """The session has it after the refusal: each later start of the sink would else end the same way."""
    engine = in_memory()
    sink_of(losing(two_rows()), engine).run(is_done=lambda reached: reached == vector(1))
    assert rows_of(engine) == {1: "a", 2: "b"}


def test_a_row_of_a_lost_history_is_left_to_the_epoch_that_follows() -> None:
    """It voids all that came before; what the row was then nobody can read any more."""
    sink = sink_of(losing(two_rows()), in_memory())
    sink._open()
    sink._take(StreamEvent("transaction", "1", token(1), SHARD, changes=[StreamChange("row", TABLE, [1], "void")]))
    assert sink._batch.changes == []
    number = sink._state.copies[TABLE].number
    sink._take(StreamEvent("transaction", "2", token(2), SHARD, changes=[StreamChange("epoch")]))
    assert sink._state.copies[TABLE].number == number + 1


def test_a_row_is_read_as_of_all_that_is_in_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other shards, too: one of them may have had it before, and an answer that lacks that would take it back."""
    front, seen = two_rows(), list[Vector]()
    session = front.session

    def noted(token: str) -> FakeFront:
        seen.append(Vector.parse(token))
        return session(token)

    monkeypatch.setattr(front, "session", noted)
    sink = sink_of(front, in_memory())
    sink._open()
    other = Vector({"shop/1": (1, Position.parse("MariaDB/0-1-7"))})
    sink._take(StreamEvent("watermark", "1", str(other)))
    sink._take(StreamEvent("transaction", "2", token(1), SHARD, changes=[StreamChange("row", TABLE, [1], "void")]))
    assert seen == [other.merge(vector(1))]


class Folding(FakeFront):
    """Finds the row of a key in whatever case, as a collation does."""

    def describe(self, _: str, __: str) -> DescriptionAnswer:
        columns = [DescribedColumn("id", "text"), DescribedColumn("v", "text")]
        return DescriptionAnswer(TABLE, columns, ["id"], cacheable=True)

    def get_row(self, _: str, __: str, key: object) -> Row:
        """The row of another spelling."""
        found = {"id": str(key).upper(), "v": "new"}
        return Row("source", "fresh", "", str(vector(2)), True, found)


@pytest.mark.parametrize("kept", ["abc", "ABC"])
def test_a_row_that_is_found_by_another_spelling_is_left_to_its_own_event(kept: str) -> None:
    """The row that is asked for is there no more, and pages may have told the other one: it would be there twice."""
    engine = in_memory()
    sink = sink_of(Folding(random.Random(1), 0), engine)
    sink._open()
    with engine.begin() as connection:
        write_page(connection, sink._tables[TABLE], [{"id": kept, "v": "of a page"}], 1)
    sink._take(StreamEvent("transaction", "1", token(1), SHARD, changes=[StreamChange("row", TABLE, ["abc"], "void")]))
    sink._commit()
    assert rows_of(engine) == ({} if kept == "abc" else {"ABC": "of a page"})
    moved = [
        StreamChange("row", TABLE, ["abc"], "deleted"),
        StreamChange("row", TABLE, ["ABC"], "value", {"id": "ABC", "v": "new"}),
    ]
    sink._take(StreamEvent("transaction", "2", token(2), SHARD, changes=moved))
    sink._commit()
    assert rows_of(engine) == {"ABC": "new"}


@pytest.mark.parametrize("event", [StreamEvent("unreadable", "1"), StreamEvent("of a later version", "1")])
def test_what_nobody_here_can_read_may_have_changed_any_table(event: StreamEvent) -> None:
    """It is read again: else a copy would be wrong for ever after a front is upgraded before its sinks."""
    sink = sink_of(two_rows(), in_memory())
    sink._open()
    number = sink._state.copies[TABLE].number
    sink._take(event)
    assert (sink._state.copies[TABLE].number, sink._state.due) == (number + 1, [TABLE])
