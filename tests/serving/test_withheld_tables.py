"""A table that the stream withholds again and again: each time is a time of its own."""

from __future__ import annotations

import pytest

from serving.client import StreamEvent
from serving.sink import running
from serving.sink.errors import SinkError
from tests.serving.test_sink import READ_THROUGH, SHARD, Withholding, in_memory, sink_of, token


def test_a_table_that_is_withheld_once_more_is_waited_for_as_long_as_the_first_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A DDL each day ends no sink: only the time since the last one began counts."""
    now = [0.0]
    monkeypatch.setattr(running, "monotonic", lambda: now[0])
    front = Withholding(again=True)
    _, withheld, told = front.told
    sink = sink_of(front, in_memory())
    sink._open()

    def taken(number: int) -> None:
        changes = told if number % 2 else withheld
        sink._take(StreamEvent("transaction", str(number), token(number), SHARD, changes=changes))
        sink._check_withheld()

    taken(2)
    now[0] += running.SHARD_WAIT_S - 1
    taken(3)
    front.again, front.described = False, READ_THROUGH
    now[0] += running.SHARD_WAIT_S - 1
    taken(4)
    now[0] += running.SHARD_WAIT_S - 1
    sink._check_withheld()
    now[0] += 1
    with pytest.raises(SinkError, match="it is read through"):
        sink._check_withheld()
