"""Threads that read many rows leave the interpreter to the event loop, one at a time and with rests."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterator

import pytest

from stream import interpreter
from stream.interpreter import ROWS_A_SPELL, at_work_on, others_wait, raise_open_files

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


@pytest.mark.parametrize("kind", [ValueError, OSError])
def test_a_system_that_refuses_what_it_allows_keeps_the_open_files_as_they_are(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer or front starts with as many as it has: it ended with a traceback."""

    def refuse(*_: object) -> None:
        raise kind("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_open_files() == 256
