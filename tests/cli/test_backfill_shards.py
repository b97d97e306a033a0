"""`freshet backfill` over several shards: each has its turn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from freshet import cli
from freshet.commands import backfill
from freshet.commands.backfill import BackfillError, _each, _known, _Place
from freshet.settings import Settings
from stream.wire.events import DescribeTable, ResumePoint


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


TABLES = ("bank.t", "shop.t", "shop.u")
UNFIT = "shop.u"


def point() -> ResumePoint:
    """Of a shard that publishes `TABLES`, of which one can't be read in chunks."""
    described = {each: DescribeTable(each, (), () if each == UNFIT else ("id",)) for each in TABLES}
    return ResumePoint("shop/0", 1, 5, "MariaDB/0-1-5", 0, "MariaDB/0-1-5", descriptions=described)


@pytest.mark.parametrize(
    ("named", "full", "problem"),
    [
        ("", "", ""),
        ("shop.t", "shop.t", ""),
        ("u", "shop.u", ""),
        ("t", "", "t is in several databases: bank.t, shop.t"),
        ("shop.v", "", "no table shop.v is published"),
        ("hop.t", "", "no table hop.t is published"),
    ],
)
def test_a_table_without_its_database_is_the_only_one_of_that_name(named: str, full: str, problem: str) -> None:
    """The first of several would be read, and not the one that is meant."""
    if not problem:
        assert _known(point(), named) == full
        return
    with pytest.raises(BackfillError, match=problem):
        _known(point(), named)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, bool, str]]:
    """What sources of two shards are asked for: of which shard, whether to start, and which table."""
    asked: list[tuple[str, bool, str]] = []

    def send(_: object, keyspace: str, shard: str, value: bytes) -> int:
        assert keyspace == "shop"
        told = json.loads(value)
        asked.append((shard, told["start"], told["table"]))
        return 7

    monkeypatch.chdir(tmp_path)
    (tmp_path / "freshet.toml").write_text(
        '[keyspaces.shop.source]\nkind = "mariadb"\ndatabases = ["shop"]\n'
        '[keyspaces.shop.shards."-80"]\n[keyspaces.shop.shards."80-"]\n'
    )
    monkeypatch.setattr(backfill, "_point", lambda *_: point())
    monkeypatch.setattr(backfill, "send_request", send)
    return asked


@pytest.mark.parametrize(
    ("taken", "code"), [(("shop/-80", "shop/80-"), 0), (("shop/-80",), 1), (("shop/80-",), 1), ((), 1)]
)
def test_a_request_is_taken_once_each_shard_has_taken_it(
    taken: tuple[str, ...],
    code: int,
    requests: list[tuple[str, bool, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Half of a table in the cache is not the table; the one whose source is down is told."""
    monkeypatch.setattr(backfill, "_await_taken", lambda place, *_: place.shard in taken)
    assert cli.run(["backfill", "start", "shop", "shop.t", "--json"]) == code
    assert requests == [("shop/-80", True, "shop.t"), ("shop/80-", True, "shop.t")]
    told = [json.loads(line)["taken"] for line in capsys.readouterr().out.splitlines()]
    assert told == ["shop/-80" in taken, "shop/80-" in taken]


def test_a_table_that_can_not_be_read_is_refused_but_may_be_cancelled(
    requests: list[tuple[str, bool, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have lost its key after it was asked for."""
    monkeypatch.setattr(backfill, "_await_taken", lambda *_: True)
    assert cli.run(["backfill", "start", "shop", "u", "--shard=-80"]) == 1
    assert requests == []
    assert cli.run(["backfill", "cancel", "shop", "u", "--shard=-80"]) == 0
    assert requests == [("shop/-80", False, UNFIT)]
