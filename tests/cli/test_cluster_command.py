"""`freshet cluster`: who is said to be there, and when a drained instance may be stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest

from consumers.owner.protocol import PartitionStatus
from freshet import cli
from freshet.settings import Settings
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement

PARTITIONS = 3


def owned(partition: int, address: str, keyspace: str = "shop", **more: Any) -> Announcement:
    """What the owner of a partition, or with a role a follower of it, has announced."""
    return Announcement(keyspace=keyspace, partition=partition, address=address, instance=address, **more)


class Cluster:
    """The topic of the announcements, and the instances by their addresses, with what each still has."""

    def __init__(self) -> None:
        self.owners = {number: owned(number, "a:1") for number in range(PARTITIONS)}
        self.others: list[Announcement] = []
        self.held = {"a:1": [0, 1, 2], "b:1": list[int]()}
        self.steps: list[str] = []
        self.takes_over = True
        self.joins_late: list[list[int]] = []
        """What one that is draining has at the next looks, before it leaves its group."""

    def reader(self, _: KafkaCluster) -> Any:
        """A reader of what stands."""
        cluster = self

        class Reader:
            def __enter__(self) -> Self:
                return self

            def __exit__(self, *_: object) -> None: ...

            def owners(self, keyspace: str) -> dict[int, Announcement]:
                found = [each for each in [*cluster.owners.values(), *cluster.others] if each.role == "owner"]
                return {each.partition: each for each in found if each.keyspace == keyspace}

            def owner_of(self, keyspace: str, partition: int) -> Announcement | None:
                return self.owners(keyspace).get(partition)

            def followers(self, keyspace: str, partition: int) -> list[Announcement]:
                place = keyspace, partition
                return [
                    each for each in cluster.others if (each.keyspace, each.partition) == place and each.role != "owner"
                ]

        return Reader()

    @contextmanager
    def connection(self, _: Settings, address: str) -> Iterator[Any]:
        """A connection to an instance, which hands one partition over between two looks."""

        def status() -> Any:
            left = self.held[address]
            found = [PartitionStatus("shop", each, 0, 0, 0, 0, True, "", [], 0, 0, 0, 0, "", "") for each in left]
            return SimpleNamespace(partitions=found, draining=bool(left or self.joins_late))

        def drain() -> Any:
            self.steps.append(f"drain {address}")
            return status()

        def look() -> Any:
            self.steps.append(f"look {address}")
            if self.joins_late:
                self.held[address] = self.joins_late.pop(0)
            elif self.held[address]:
                given = self.held[address].pop()
                if self.takes_over:
                    self.owners[given] = owned(given, "c:1")
            return status()

        yield SimpleNamespace(address=address, drain=drain, status=look)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cluster:
    """A keyspace of the settings, whose partitions one instance has."""
    found = Cluster()
    monkeypatch.chdir(tmp_path)
    Path("freshet.toml").write_text(f"[keyspaces.shop]\npartitions = {PARTITIONS}\n")
    monkeypatch.setattr("stream.kafka.locations.LocationsReader", found.reader)
    monkeypatch.setattr("freshet.commands.cluster.owner_connection", found.connection)
    monkeypatch.setattr("freshet.commands.cluster.POLL_S", 0.0)
    return found


def said(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """The lines of JSON that were printed."""
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("missing", [None, *range(PARTITIONS)])
def test_a_partition_without_an_owner_is_told_wherever_it_is(
    missing: int | None, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever runs it by a timer looks at the exit code alone; what comes later takes nothing back."""
    cluster.owners.pop(-1 if missing is None else missing, None)
    cluster.others = [owned(1, "b:1", role="follower")]
    assert cli.run(["cluster", "status", "--json"]) == (0 if missing is None else 1)
    told = said(capsys)
    assert [(each["keyspace"], each["partition"]) for each in told] == [("shop", at) for at in range(PARTITIONS)]
    for each in told:
        owner = [] if each["partition"] == missing else [("owner", "a:1")]
        follower = [("follower", "b:1")] if each["partition"] == 1 else []
        assert [(one["role"], one["address"]) for one in each["instances"]] == [*owner, *follower]


def test_a_keyspace_that_is_not_in_the_settings_is_shown_if_somebody_is_announced_for_it(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the name is misspelled."""
    cluster.others = [owned(7, "d:1", "lake")]
    assert cli.run(["cluster", "status", "lake", "--json"]) == 0
    assert [(each["keyspace"], each["partition"]) for each in said(capsys)] == [("lake", 7)]
    assert cli.run(["cluster", "status", "shpo"]) == 1
    assert "error[unknown_keyspace]: no keyspace 'shpo' in the settings, and nobody" in capsys.readouterr().err


def test_a_drained_instance_is_done_once_it_has_nothing_and_others_have_all_of_it(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """All are drained before one is waited for: else the first would give its own to the next."""
    cluster.held["b:1"] = [1]
    cluster.held["a:1"] = [0, 2]
    assert cli.run(["cluster", "drain", "a:1", "b:1", "--json"]) == 0
    assert cluster.steps[:2] == ["drain a:1", "drain b:1"]
    assert {each.address for each in cluster.owners.values()} == {"c:1"}
    last = {each["address"]: each["partitions"] for each in said(capsys)}
    assert last == {"a:1": [], "b:1": []}


def test_an_instance_that_has_nothing_yet_is_done_once_it_gets_nothing_any_more(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """One whose session has failed is given its partitions again, to hand them over: it must not be stopped before."""
    cluster.held["a:1"], cluster.joins_late = [], [[], [0, 1]]
    assert cli.run(["cluster", "drain", "a:1"]) == 0
    assert cluster.steps == ["drain a:1", *["look a:1"] * 4]
    told = ["a:1 hands over 2 partitions", "a:1 hands over 1 partitions"]
    assert capsys.readouterr().out.splitlines() == [*told, "a:1 has no partitions any more: it can be stopped"]
    cluster.joins_late = [[]] * 2
    assert cli.run(["cluster", "drain", "a:1", "--timeout", "0"]) == 1
    assert "a:1 still may get partitions: it has not left its group" in capsys.readouterr().err


def test_a_drained_instance_is_not_done_while_nobody_else_is_announced(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has given all away; what it had is still read from it, and it must not be stopped."""
    cluster.takes_over = False
    cluster.held["a:1"] = [1]
    assert cli.run(["cluster", "drain", "a:1", "--timeout", "0"]) == 1
    told = capsys.readouterr()
    assert "error[drain_unfinished]: nobody else is announced for shop/1, which a:1 had" in told.err
    assert "it can be stopped" not in told.out


@pytest.mark.parametrize(("before", "back"), [(["a:1"], "; back: freshet cluster move shop 2 a:1"), ([], "")])
def test_one_partitions_readers_move_and_the_way_back_is_told(
    before: list[str], back: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of the others stay where they are."""
    del cluster
    moved: list[tuple[Any, ...]] = []

    def move(_: Settings, *given: Any) -> tuple[int, list[str]]:
        moved.append(given)
        return 1, before

    monkeypatch.setattr("freshet.commands.swap.move_readers", move)
    assert cli.run(["cluster", "move", "shop", "2", "b:1"]) == 0
    assert capsys.readouterr().out == f"moved shop/2 to b:1{back}\n"
    assert cli.run(["cluster", "move", "shop", "2", "b:1", "--json"]) == 0
    assert said(capsys) == [{"keyspace": "shop", "partition": 2, "to": "b:1", "before": before}]
    assert moved == [("shop", ["b:1"], 2)] * 2
