"""`freshet backfill` over several shards: each has its turn."""

from __future__ import annotations

import pytest

from freshet.commands.backfill import BackfillError, _each, _Place
from freshet.settings import Settings


def test_a_shard_that_fails_keeps_no_other_from_its_turn(capsys: pytest.CaptureFixture[str]) -> None:
    """One that has published nothing is told, once the others were asked; each reason is told once."""
    reasons = {"a": "", "b": "shard b has published nothing", "c": "", "d": "no table", "e": "no table"}
    asked: list[str] = []

    def act(place: _Place) -> str:
        asked.append(place.shard)
        if reasons[place.shard]:
            raise BackfillError(reasons[place.shard])
        return place.shard

    with pytest.raises(BackfillError, match="shard b has published nothing"):
        _each([_Place(Settings(), "shop", shard) for shard in reasons], act)
    assert asked == [*reasons]
    assert capsys.readouterr().err == "error[backfill_refused]: no table\n"
    assert _each([_Place(Settings(), "shop", "a")], act) == ["a"]
