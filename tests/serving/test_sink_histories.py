"""As of which history, and how much of it, a sink reads rows: also where the source has lost what it had seen."""

from __future__ import annotations

import pytest

from serving.client import HistoryLost, StreamChange, StreamEvent
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


@pytest.mark.parametrize("event", [StreamEvent("unreadable", "1"), StreamEvent("of a later version", "1")])
def test_what_nobody_here_can_read_may_have_changed_any_table(event: StreamEvent) -> None:
    """It is read again: else a copy would be wrong for ever after a front is upgraded before its sinks."""
    sink = sink_of(two_rows(), in_memory())
    sink._open()
    number = sink._state.copies[TABLE].number
    sink._take(event)
    assert (sink._state.copies[TABLE].number, sink._state.due) == (number + 1, [TABLE])
