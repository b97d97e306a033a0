"""How long a follower answers for a partition that its group takes away, gives back, and takes away again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.process.announcing import SILENT_S
from consumers.store.errors import DiskFullError
from tests.consumers.process.test_swapping import Owners


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owners]:
    """No owner yet."""
    found = Owners(tmp_path, monkeypatch)
    yield found
    found.close()


def test_a_follower_waits_anew_for_the_next_one_of_its_group(owners: Owners) -> None:
    """Counted from the first time, it would go at once, and its readers have no follower until the next one says so."""
    (blue, _), (green, of_green) = owners.start("blue", 7, "old"), owners.start("green", 3, "new", follower=True)
    green._reader = owners.reader
    owners.turn(blue)
    owners.turn(green)
    assert [each.instance for each in owners.reader.followers("shop", 0)] == ["green"]
    for leaving, later_s, is_over in (
        (True, -SILENT_S - 1, True),
        (False, 0.0, False),
        (True, 0.0, False),
    ):
        of_green.leaving = leaving
        owners.turn(green, later_s=later_s)
        assert green.is_succeeded(of_green) is is_over


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_follower_with_a_copied_name_takes_another_one(owners: Owners, is_gone: bool) -> None:
    """Its data directory is a copy of the owner's: it took what that had announced for its own, and its place."""
    (blue, of_blue), (green, _) = owners.start("blue", 7, "old"), owners.start("green", 900, "new", follower=True)
    names, disk_is_full = ["blue"], True

    def rename() -> None:
        if disk_is_full:
            raise DiskFullError("no space left")
        names.append("green")

    green._instance, green._rename = lambda: names[-1], rename
    owners.turn(blue)
    if is_gone:
        owners.turn(blue, lambda: blue.withdraw(of_blue))
    stands = owners.stands()
    assert owners.turn(green) == []
    disk_is_full = False
    assert [(each.role, each.instance) for each in owners.turn(green)] == [("follower", "green")]
    assert owners.turn(green) == []
    assert (owners.stands(), names) == (stands, ["blue", "green"])


def test_a_second_group_with_a_copied_name_takes_another_one(owners: Owners) -> None:
    """Each took the other's announcement for its own, and went above it, again and again. The first one stays."""
    (blue, _), (green, _) = owners.start("blue", 7, "old"), owners.start("green", 900, "new")
    names = ["blue"]
    green._instance, green._rename = lambda: names[-1], lambda: names.append("green")
    owners.turn(blue)
    assert owners.turn(green) == []
    assert (owners.stands(), names) == ("blue", ["blue", "green"])
    assert owners.turn(blue) == []


def test_a_process_that_was_given_to_another_group_keeps_its_name(owners: Owners) -> None:
    """What stands is its own of before, at its own address: it goes on at once."""
    (blue, _), (again, _) = owners.start("blue", 7, "old"), owners.start("blue", 3, "new")
    again._rename = lambda: pytest.fail("nobody else has this name")
    owners.turn(blue)
    assert [each.role for each in owners.turn(again)] == ["owner"]
