"""What counts of what shards and servers say: not those that are over, nor indexes that no cache can keep."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from consumers.owner.protocol import PartitionStatus, ShardStatus
from consumers.store.index import Index
from freshet.commands import lag
from freshet.indexes import indexes_to_keep
from freshet.lag.tables import table_lags
from freshet.settings import Settings
from stream.changes.last import LastChange
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.sources.learnt_indexes import LearntIndex


def status(*shards: str) -> PartitionStatus:
    """Of the only partition."""
    followed = [ShardStatus(each, 1, 1, "", 0, "", 0.0) for each in shards]
    return PartitionStatus("shop", 0, 5, 5, 5, 5, True, "live", followed, 0, 0, 0, 0, "", "")


def test_a_shard_that_is_over_is_not_asked_how_far_its_tables_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it said last says nothing, and one that nobody has heard of has said nothing."""
    asked: list[str] = []
    monkeypatch.setattr("freshet.lag.tables.describe_topic", lambda *_: Topic("t", "t1", 1))
    monkeypatch.setattr("freshet.lag.tables.last_changes", lambda *_: {})

    def read(_: KafkaCluster, __: Topic, shard: str) -> None:
        asked.append(shard)

    monkeypatch.setattr("freshet.lag.tables.read_point", read)
    settings = Settings(keyspaces={"shop": {"shard": "shop/1", "shards": ["shop/2"]}})  # type: ignore[dict-item]
    assert table_lags(settings, "shop", {0: status("shop/0", "shop/1")}) == []
    assert asked == ["shop/1"]
    asked.clear()
    assert table_lags(settings, "shop", {0: status("shop/0", "shop/2"), 1: status("shop/1")}) == []
    assert asked == ["shop/1", "shop/2"], "one with a source elsewhere publishes here, too"


@pytest.mark.parametrize(
    ("quiet", "told"),
    [
        ({}, ""),
        ({"shop/0": 90.0}, "nothing has arrived of shop/0 for 90 s: is its source running?\n"),
        ({"shop/1": -1.0}, ""),  # of an owner of before, or over
    ],
)
def test_a_shard_that_nobody_hears_of_is_named(
    quiet: dict[str, float], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the others, whose markers keep every partition awake. A partition that stands still is not its source."""
    heard = [replace(status("shop/0", "shop/1"), partition=number, silent_seconds=0.5) for number in (0, 1)]
    for each in heard:
        each.shards = [replace(shard, silent_seconds=quiet.get(shard.shard, 0.7)) for shard in each.shards]
    still = replace(status("shop/0", "shop/1"), partition=2, silent_seconds=0.5)
    still.shards = [replace(shard, silent_seconds=99.0) for shard in still.shards]
    lag._show({each.partition: each for each in (*heard, still)}, [], {})
    shown = capsys.readouterr()
    assert shown.err == told
    [line] = [each for each in shown.out.splitlines() if "shop/0" in each and each.split()[0] == "0"]
    assert f" {quiet.get('shop/0', 0.7)} s " in line


def test_an_index_that_no_cache_can_keep_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its order is the server's collation: rows would be found by it that have other values, or not at all."""
    learnt = [LearntIndex("shop.t", "a", ("a",)), LearntIndex("shop.t", "name", ("name",), "its texts are collated")]
    monkeypatch.setattr("freshet.indexes._learn", lambda _: learnt)
    settings = Settings(data_dir=tmp_path, keyspaces={"shop": {"indexes": "schema"}})  # type: ignore[dict-item]
    assert indexes_to_keep(settings, "shop") == (Index("shop.t", ("a",)),)


def test_the_last_change_is_one_that_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the topic behind the fold is in no answer yet: told as folded, it would hide that it is late."""
    looked: list[tuple[dict[int, int], set[str]]] = []

    def look(_: KafkaCluster, __: str, ends: dict[int, int], tables: set[str]) -> dict[str, LastChange]:
        looked.append((ends, tables))
        return {"shop.t": LastChange("shop.t", "row", "shop/0", "MariaDB/0-1-5", 1, 0, 3, 1, 5)}

    monkeypatch.setattr("freshet.lag.tables.describe_topic", lambda *_: Topic("t", "t1", 2))
    monkeypatch.setattr("freshet.lag.tables.last_changes", look)
    statuses = {
        number: msgspec.structs.replace(status(), partition=number, offset=at, position=at, end=9, tables=tables)
        for number, (at, tables) in enumerate([(4, {"shop.t": True}), (7, {"shop.t": False, "shop.u": True})])
    }
    found = {each.table: each for each in table_lags(Settings(), "shop", statuses)}
    assert looked == [({0: 4, 1: 7}, {"shop.t", "shop.u"})]
    assert {name: (each.whole, each.partitions, each.last is None) for name, each in found.items()} == {
        "shop.t": (1, 2, False),
        "shop.u": (1, 2, True),
    }
