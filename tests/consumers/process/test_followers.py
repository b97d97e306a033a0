"""How long a follower answers for a partition that its group takes away, gives back, and takes away again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.process.announcing import SILENT_S
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
