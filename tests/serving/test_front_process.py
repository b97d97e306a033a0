"""How `freshet serve` and `freshet node` set up their process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest

from freshet.commands.serve import run_server
from serving.http.server import make_server
from stream.interpreter import SWITCH_INTERVAL_S, prepare_to_answer
from tests.serving.test_http_manners import Asking


@pytest.fixture
def as_before() -> Iterator[None]:
    """The interpreter of the tests afterwards."""
    interval, threshold = sys.getswitchinterval(), gc.get_threshold()
    yield
    sys.setswitchinterval(interval)
    gc.set_threshold(*threshold)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_garbage_is_collected_a_little_at_a_time() -> None:
    """Whichever thread collects keeps the interpreter meanwhile, and nobody is answered."""
    collected: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            collected.append(info["collected"])

    prepare_to_answer()
    gc.callbacks.append(note)
    try:
        for _ in range(60_000):
            cycle: list[object] = []
            cycle.append(cycle)
    finally:
        gc.callbacks.remove(note)
    assert sum(collected) > 50_000
    assert max(collected) <= 10_000


@pytest.mark.usefixtures("as_before")
def test_threads_that_read_a_source_do_not_keep_a_front_from_answering(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front's threads give the interpreter back soon: Python's default would cost each answer beside them 5 ms."""
    found: list[float] = []

    async def look() -> None:
        found.append(sys.getswitchinterval())

    run_server(make_server(Asking(monkeypatch).front(), "127.0.0.1", 0), look)
    assert found == [pytest.approx(SWITCH_INTERVAL_S)]
