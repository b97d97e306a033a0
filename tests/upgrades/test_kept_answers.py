"""The HTTP answers that were kept when a version was made: this client reads them, and this front still gives them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serving.client.wire import read_row
from tests.upgrades.keep import KEPT, READERS, VERSION, answers, read

FILES = sorted(KEPT.glob("*.json"))
FOR_PEOPLE = {"why", "message", "detail", "hint", "title"}
"""Fields that may be reworded."""


def kept_in(file: Path) -> dict[str, dict[str, Any]]:
    """Name → answer."""
    kept: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return kept


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_older_fronts_answers_are_read(file: Path) -> None:
    """A client that is newer than its front makes the same of an answer as the front's own client did."""
    assert {name: read(answer) for name, answer in kept_in(file).items()} == {
        name: answer["read"] for name, answer in kept_in(file).items()
    }
    assert {answer["reader"] for answer in kept_in(file).values()} == set(READERS)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_older_client_finds_what_it_knows(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This front says all that the kept answers say, with the same values; it may say more, and word it otherwise."""
    now = answers(monkeypatch)
    for name, answer in kept_in(file).items():
        assert now[name]["status"] == answer["status"], name
        assert _lacks(json.loads(now[name]["body"]), json.loads(answer["body"])) == [], name
        assert {header for header in answer["headers"] if header not in now[name]["headers"]} == set(), name


def _lacks(now: Any, then: Any) -> list[str]:
    """The fields of ``then`` that ``now`` has not, or has with another value."""
    if isinstance(then, dict) and isinstance(now, dict):
        missing = [name for name in then if name not in now]
        differing = [
            name for name, value in then.items() if name in now and name not in FOR_PEOPLE and _lacks(now[name], value)
        ]
        return missing + differing
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        return [each for pair in zip(now, then, strict=True) for each in _lacks(*pair)]
    return [] if now == then else [f"{then!r} is {now!r}"]


def test_this_version_is_kept() -> None:
    """There is a file to be read by later versions, and a field that goes missing is noticed."""
    assert VERSION in {file.stem for file in FILES}
    then = {"a": 1, "rows": [{"code": "x", "why": "one"}]}
    assert _lacks({"a": 1, "rows": [{"code": "x", "why": "other", "b": 2}], "c": 3}, then) == []
    assert _lacks({"rows": [{"code": "y", "why": "one"}]}, then) == ["a", "rows"]
    assert read_row(200, kept_in(KEPT / f"{VERSION}.json")["row"]["body"].encode()).found
