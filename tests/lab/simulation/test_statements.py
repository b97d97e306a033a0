"""The simulator keeps executing the product: no module falls below the figures that the page has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from lab.simulation.statements import ROOMS, ModuleCount, count_json, count_lines, counting, left_out, merged
from tests.lengths import LONG, length
from tokens import Vector

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = ROOT / "docs/internals/simulated-statements.md"
HISTORIES: Final = length(share=40, whole=200)
"""As many as the page's command has, or a share, which meets fewer rare states."""
FLOOR: Final = 0.8 if LONG else 0.705
"""Of all statements, in a long run also of each room's. It only goes up, but for code that comes without a world."""
TOLERANCE: Final = 0.05
"""A module's share may fall so much: a changed world has other histories, and which of them fail is chance."""
_ROW: Final = re.compile(r"^\| `([\w/.]+)` \| ([\d,]+) \| ([\d,]+) \|", re.MULTILINE)


def fallen(before: dict[str, float], counted: dict[str, dict[str, int]]) -> list[str]:
    """The modules of which a smaller share is executed than ``before``; those that are gone are not meant."""
    now = {path: each["executed"] / each["statements"] for path, each in counted.items()}
    return [
        f"{path}: {share:.0%} -> {now[path]:.0%}"
        for path, share in before.items()
        if path in now and now[path] < share - TOLERANCE
    ]


def share_of_room(room: str, counted: dict[str, dict[str, int]]) -> float:
    """The share of a room's statements that is executed."""
    inside = [each for path, each in counted.items() if path.startswith(f"{room}/")]
    return sum(each["executed"] for each in inside) / sum(each["statements"] for each in inside)


def shares_of(page: str) -> dict[str, float]:
    """Module → the share that a page of ours says."""
    found = {path: (executed, statements) for path, executed, statements in _ROW.findall(page)}
    return {path: int(a.replace(",", "")) / int(b.replace(",", "")) for path, (a, b) in found.items()}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.nightly
def test_no_module_is_executed_less_than_the_page_says() -> None:
    """A world that no longer reaches a module proves nothing about it; in a long run the module is named."""
    command = [
        sys.executable,
        "-m",
        "freshet",
        "simulate",
        "--statements",
        "--histories",
        str(HISTORIES),
        "--seed",
        "2",
        "--jobs",
        "2",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1_800, check=True)
    counted = json.loads(done.stdout)
    if LONG:
        assert fallen(shares_of(PAGE.read_text(encoding="utf-8")), counted["modules"]) == []
        assert {room: share for room in ROOMS if (share := share_of_room(room, counted["modules"])) < FLOOR} == {}
    assert counted["executed"] / counted["statements"] >= FLOOR


def test_statements_of_functions_are_counted_and_no_others() -> None:
    """What ran inside the context is executed, what did not is missed, by line; imports count for nothing."""
    with counting() as counted:
        assert not Vector()
    by_path = {each.path: each for each in counted}
    assert by_path["tokens/vector.py"].executed > 0
    assert by_path["stream/publish/publisher.py"].executed == 0
    assert len(by_path["stream/publish/publisher.py"].missed) == by_path["stream/publish/publisher.py"].statements


def test_what_one_of_several_processes_executed_is_executed() -> None:
    """Histories that run side by side execute as much as one after the other."""
    one, other = ModuleCount("serving/a.py", 10, (3, 4)), ModuleCount("serving/a.py", 10, (4, 5))
    assert merged([[one], [other]]) == [ModuleCount("serving/a.py", 10, (4,))]


def test_a_module_that_fell_is_named() -> None:
    """The page and the counts are compared module by module, beyond what noise explains."""
    before = shares_of(
        "\n".join(count_lines([ModuleCount("serving/a.py", 10, (3,)), ModuleCount("tokens/b.py", 4, ())]))
    )
    now = count_json([ModuleCount("serving/a.py", 10, (3, 4, 5)), ModuleCount("tokens/b.py", 4, ())])
    assert fallen(before, now["modules"]) == ["serving/a.py: 90% -> 70%"]
    assert share_of_room("serving", now["modules"]) == 0.7


def test_what_is_left_out_is_counted() -> None:
    """A folder has the statements of its modules: a share says little while nobody tells of what."""
    folder = "serving/bytecache/shared/"
    modules = sorted((ROOT / folder).rglob("*.py"))
    each = [left_out(path.relative_to(ROOT).as_posix()) for path in modules]
    assert left_out(folder) == sum(each) > max(each) > 0
