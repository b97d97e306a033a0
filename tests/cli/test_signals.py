"""Signals at moments at which a handler of Python's may neither raise nor wait."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from freshet import cli
from freshet.signals import SIGNALS, signals_held, stopping_on_signals

PATIENCE_S = 60


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_amid_a_wait_for_the_end_does_not_wait_for_itself(number: int) -> None:
    """`Event.set` in the handler would wait for a lock that the interrupted `Event.wait` holds, for ever."""
    stopping = threading.Event()
    with stopping_on_signals(stopping.set):
        with stopping._cond:  # type: ignore[attr-defined]  # as it does while it begins and ends to wait
            os.kill(os.getpid(), number)
        assert stopping.wait(PATIENCE_S)


def test_each_signal_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    """The second one makes `freshet up` kill what does not end."""
    told = threading.Semaphore(0)
    with stopping_on_signals(told.release):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            assert told.acquire(timeout=PATIENCE_S)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("number", SIGNALS)
def test_who_handled_signals_before_does_so_again(number: signal.Signals) -> None:
    """Also one that was ignored, as SIGINT is in the background of a script: it ends the service nevertheless."""
    told: list[int] = []
    before = signal.signal(number, lambda *_: told.append(1))
    try:
        with stopping_on_signals(lambda: None):
            pass
        os.kill(os.getpid(), number)
        assert told == [1]
        signal.signal(number, signal.SIG_IGN)
        with stopping_on_signals(lambda: told.append(2)):
            os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_IGN
        assert told == [1, 2]
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize(
    ("numbers", "code"),
    [((signal.SIGINT,), 130), ((signal.SIGTERM,), 143), ((signal.SIGTERM, signal.SIGINT), 143)],
)
def test_who_was_terminated_says_so_whatever_came_later(
    numbers: tuple[signal.Signals, ...], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor looks at the exit code; an impatient Ctrl-C amid the clean-up changes nothing."""
    monkeypatch.setattr(cli, "_run", cli._Run())
    for number in numbers:
        with pytest.raises(KeyboardInterrupt):
            cli._interrupt(os.getpid(), number, None)
    assert cli._interrupted() == code


@pytest.mark.parametrize(
    ("words", "is_service"),
    [
        ("consume", True),
        ("get shop t 1", False),
        ("verify shop", False),
        ("verify shop --every 60", True),
        ("verify shop --every=60", True),
        ("log shop --follow", True),
        ("sink shop sqlite:// --table t", True),
        ("sink shop sqlite:// --table t --once", False),
    ],
)
def test_what_goes_on_until_it_is_stopped_is_a_service(words: str, is_service: bool) -> None:
    """Its supervisor is told that it has failed, if its ordinary end is not taken for one."""
    name, *arguments = words.split()
    [entry] = [each for each in cli.ENTRIES if each.name == name]
    assert entry.is_service(arguments) is is_service


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_that_is_held_strikes_at_the_end(number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than may be held ends the process at once; not one that is ignored, as after nohup."""
    told: list[object] = []
    before = signal.signal(number, lambda *_: told.append("struck"))
    monkeypatch.setattr("freshet.signals.os.kill", lambda _, ends: told.append(ends))
    try:
        with signals_held(at_most=1):
            signal.raise_signal(number)
            assert told == []
        assert told == ["struck"]
        with signals_held(at_most=1):
            signal.raise_signal(number)
            signal.raise_signal(number)
            assert told == ["struck", number]
        told.clear()
        signal.signal(number, signal.SIG_IGN)
        with signals_held(at_most=0):
            signal.raise_signal(number)
        assert told == []
    finally:
        signal.signal(number, before)
