"""The judge of logs in files: of every log that was kept, and of each reason for another one."""

from __future__ import annotations

from typing import Any

import pytest

from lab.simulation.engine import History, run_one
from lab.simulation.installation.following import logs
from lab.simulation.installation.following.copies import TELLS_ALL
from lab.simulation.installation.world import InstallationWorld
from lab.simulation.planted.every import planted_bugs
from serving.client.errors import ClientError

WORLD = InstallationWorld()
KEPT: History = [("world", 7, 0, 0, 0, 0, 0, 0), ("let", 3), ("write", 0, 0, 1, 3), ("let", 3), ("keep log", 2)]
RESTARTED: History = [
    *KEPT,
    ("write", 0, 1, 1, 3),
    ("let", 2),
    ("keep log", 1),
    ("write", 0, 2, 1, 3),
    ("write", 0, 0, 1, 3),
    ("let", 2),
    ("keep log", 2),
    ("write", 0, 1, 1, 3),
    ("let", 2),
    ("read", 0, 1, 1, 3),
    ("read", 0, 0, 1, 3),
    ("read", 0, 2, 1, 3),
    ("let", 3),
]


def test_a_log_that_another_one_follows_is_judged_too() -> None:
    """The topic is replaced, so another log begins; what the first one lacks is found all the same."""
    replaced: History = [*RESTARTED, ("topic",), ("let", 3), ("write", 0, 1, 1, 3), ("let", 3)]
    passed = run_one(WORLD, replaced)
    assert not passed.violations
    assert passed.answers["log ended: stream_too_old"] == 1
    [bug] = planted_bugs("log_goes_on_without_its_checkpoint")
    with bug.planted():
        failed = run_one(WORLD, replaced)
    assert failed.answers["log ended: stream_too_old"] == 1
    assert {each.rule for each in failed.violations} == {TELLS_ALL}
    assert failed.violations[0].what.startswith("log 1 ")


@pytest.mark.parametrize("code", ["bad_checkpoint", "checkpoint_lost", "stream_too_old"])
def test_a_log_that_loses_its_place_for_nothing_is_found(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Kafka has everything in this history: a front that says otherwise is wrong."""

    def refuses(*_: Any, **__: Any) -> None:
        raise ClientError("as it was asked", code=code)

    monkeypatch.setattr(logs, "write_log", refuses)
    [violation, *_] = run_one(WORLD, KEPT).violations
    assert (violation.rule, violation.what) == (TELLS_ALL, f"the log ends for {code}: as it was asked")
