"""Threads that read many rows leave the interpreter to the event loop, one at a time and with rests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from stream import interpreter
from stream.interpreter import ROWS_A_SPELL, at_work_on, others_wait

ROWS = 3 * ROWS_A_SPELL


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """How long each rest was to be."""
    taken: list[float] = []
    monkeypatch.setattr(time, "sleep", taken.append)
    yield taken
    others_wait(0)


def test_who_reads_many_rows_rests_while_others_wait(rests: list[float]) -> None:
    """One caller's thousand rows don't keep the interpreter from those who ask for one."""
    others_wait(time.monotonic() + 60)
    assert list(at_work_on(range(ROWS))) == list(range(ROWS))
    assert len(rests) == 3


def test_who_is_alone_does_not_rest(rests: list[float]) -> None:
    """A lone application fills a cold cache as fast as it can, also after others have asked."""
    others_wait(time.monotonic() - 1)
    assert list(at_work_on(range(ROWS))) == list(range(ROWS))
    assert rests == []


def test_one_thread_is_at_work_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for one of them at each of its turns, not for each."""
    monkeypatch.setattr(interpreter, "TURN_S", 60)
    working = at_work_on(range(2))
    next(working)
    began = threading.Event()

    def work() -> None:
        for _ in at_work_on(range(1)):
            began.set()

    other = threading.Thread(target=work)
    other.start()
    try:
        assert not began.wait(0.1)
        assert list(working) == [1]
        assert began.wait(20)
    finally:
        working.close()
        other.join()
