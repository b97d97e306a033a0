"""Every order in which source, consumer, front and client are upgraded: a reader goes on, and sees its own writes."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from serving.client import BadRequest
from tests.consumers.histories import SHARD
from tests.upgrades.running import COMPONENTS, Installation


@pytest.fixture
def installation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """Everything of this version."""
    return Installation(tmp_path, monkeypatch)


def goes_on(installation: Installation, value: int) -> None:
    """A write is seen at once, proved and from the cache; so are an older one, an absence, and a batch."""
    session = installation.session
    session.observe(SHARD, installation.write(7, value))
    row = session.get_row("shop", "items", 7)
    assert (row.value, row.freshness, row.served_from) == ({"id": 7, "v": value}, "fresh", "cache"), row.why
    rows = session.get_rows("shop", [("items", (7,)), ("items", (7,))])
    assert [each.value for each in rows] == [{"id": 7, "v": value}] * 2
    if value % 2:
        installation.hand_over()
    assert installation.owner.partition.store.newer is None


@pytest.mark.parametrize("order", list(permutations(COMPONENTS)), ids="-".join)
def test_a_reader_goes_on_in_every_order(installation: Installation, order: tuple[str, ...]) -> None:
    """One session reads its own writes before, between and after the upgrades; nothing is refused."""
    goes_on(installation, 0)
    for value, component in enumerate(order, 1):
        installation.upgrade(component)
        goes_on(installation, value)
    assert set(installation.statuses) == {200}


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_component_goes_back(installation: Installation, component: str) -> None:
    """The upgrade of one component alone is undone, and the reader goes on."""
    goes_on(installation, 0)
    installation.upgrade(component)
    goes_on(installation, 2)
    installation.go_back(component)
    if component == "front":  # it wrote a token that this version's front must refuse, which no next version does
        with pytest.raises(BadRequest, match="format v3") as refused:
            goes_on(installation, 3)
        assert refused.value.code == "bad_token"
        assert "newer" in refused.value.hint
        return
    goes_on(installation, 4)
