"""Runs seeded inputs against a target, each with a deadline, and reports the first that misbehaves with its seed.

Input number ``n`` of a target depends on (target, seed, n) only, so that each input can be run again by itself.
"""

from __future__ import annotations

import re
import resource
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.fuzz.mutate import Rng
from tokens.errors import LINE_CHARS_MAX, FreshetError

DEADLINE_S = 5.0
"""Limit of processor time for one input. Most inputs take microseconds."""
PATIENCE_S = 60.0
"""Limit of wall time for one input, which may have to wait on a busy machine."""
MESSAGE_CHARS_MAX = LINE_CHARS_MAX * 10
"""Longest allowed message: every character may have been escaped."""
T = TypeVar("T")

_CODE = re.compile(r"[a-z][a-z0-9_]*")


class Misbehaved(AssertionError):
    """An input caused forbidden behaviour."""


class Overdue(BaseException):
    """An input exceeded its deadline. It is a BaseException, so that no parser catches it."""


@dataclass(frozen=True)
class Case:
    """``draw`` makes an input; ``run`` gives it to the parser, raises if that misbehaves; ``close`` ends the case."""

    draw: Callable[[Rng], Any]
    run: Callable[[Any], None]
    close: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class Target:
    """A parser. ``build`` prepares it. ``weight``: share of the requested inputs that is run (small if it is slow)."""

    name: str
    what: str
    build: Callable[[], Case]
    weight: float = 1.0


@dataclass(frozen=True)
class Failure:
    """An input that misbehaved, and how to run it again."""

    target: str
    seed: int
    number: int
    input: str
    trace: str

    def __str__(self) -> str:
        command = f"python -m tests.fuzz --target {self.target} --seed {self.seed} --skip {self.number} --count 1"
        text = f"{self.trace}\ninput: {self.input}\nreproduce: {command}"
        return text.encode(errors="backslashreplace").decode()


@dataclass(frozen=True)
class Outcome:
    """What a run found. ``seconds`` of wall time; ``memory_mb`` is the process's high-water mark."""

    target: str
    executions: int
    seconds: float
    memory_mb: int
    failure: Failure | None

    @property
    def rate(self) -> float:
        """Executions a second."""
        return self.executions / self.seconds if self.seconds else 0.0


def refused(
    allowed: type[BaseException] | tuple[type[BaseException], ...], act: Callable[..., T], *arguments: Any
) -> T | None:
    """The result of ``act``; None if it raises an ``allowed`` error, which must be well formed."""
    try:
        return act(*arguments)
    except allowed as error:
        if isinstance(error, FreshetError):
            well_formed(error)
        return None


def well_formed(error: FreshetError) -> None:
    """Checks for a stable code, a message of one bounded line, and a hint of one line. Raises `Misbehaved`."""
    text = str(error)
    if not _CODE.fullmatch(error.code):
        raise Misbehaved(f"{error!r} has the code {error.code!r}")
    if len(text.splitlines()) > 1 or not text.isprintable() or len(text) > MESSAGE_CHARS_MAX:
        raise Misbehaved(f"{type(error).__name__} is not one line: {text[:500]!r} ({len(text)} characters)")
    if len(error.hint.splitlines()) > 1:
        raise Misbehaved(f"the hint of {error!r} is not one line: {error.hint!r}")


def run(
    target: Target,
    *,
    seed: int,
    count: int,
    skip: int = 0,
    seconds: float | None = None,
    deadline_s: float = DEADLINE_S,
) -> Outcome:
    """Runs ``count`` inputs, or fewer if ``seconds`` are over, until one misbehaves."""
    case = target.build()
    before = signal.signal(signal.SIGALRM, _overdue), signal.signal(signal.SIGPROF, _overdue)
    started = time.monotonic()
    done, failure = 0, None
    try:
        for number in range(skip, skip + count):
            rng = Rng(f"{target.name}/{seed}/{number}")
            drawn = case.draw(rng)
            done += 1
            try:
                _watch(deadline_s, PATIENCE_S)
                case.run(drawn)
                _watch(0, 0)
            except (Exception, Overdue):  # noqa: BLE001 - every error is a finding
                _watch(0, 0)
                failure = Failure(target.name, seed, number, shown(drawn), _trace())
                break
            if seconds is not None and not done & 63 and time.monotonic() - started > seconds:
                break
    finally:
        _watch(0, 0)
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGPROF, before[1])
        case.close()
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Outcome(target.name, done, time.monotonic() - started, memory_mb, failure)


def _watch(cpu_s: float, wall_s: float) -> None:
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, wall_s)


def _overdue(*_: Any) -> None:
    raise Overdue("the input took longer than its deadline")


def _trace() -> str:
    lines = [line if len(line) < 400 else f"{line[:400]}…" for line in traceback.format_exc().splitlines()]
    return "\n".join(lines if len(lines) < 60 else [*lines[:20], "…", *lines[-30:]])


def shown(value: Any) -> str:
    """An input as text of at most a few hundred characters."""
    text = repr(value)
    return text if len(text) <= 700 else f"{text[:500]}… ({len(text)} characters) …{text[-150:]}"
