"""Whom commands ask about a partition that two processes fold: one owns it, and one follows and owns others."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import msgspec
import pytest

from consumers.owner.protocol import CheckpointPlace, OwnerError, PartitionStatus, Verdict
from freshet import cli, owners
from freshet.commands import lag
from freshet.owners import asked_owners, live_checkpoint, tell_verdicts
from spark_jobs.verify import VerifyError
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import Announcement

KAFKA = KafkaCluster("127.0.0.1:1")
ANNOUNCED = {0: "blue:1", 1: "green:2"}
"""Green's group follows; the readers of one partition were moved to it."""
FOLDED = {"blue:1": [0, 1], "green:2": [0, 1], "lone:3": [1]}


def status(partition: int) -> PartitionStatus:
    return PartitionStatus("shop", partition, 5, 5, 5, 5, True, "ready", [], 0, 0, 0, 0, "", "t")


class Consumers:
    """The consumers by their addresses, and what each was told."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.told: dict[str, list[int]] = {}
        self.gone: set[str] = set()
        for address, partitions in FOLDED.items():
            for partition in partitions:
                (root / address / str(partition)).mkdir(parents=True)
        monkeypatch.setattr(owners, "OwnerConnection", self.connection)
        monkeypatch.setattr("spark_jobs.verify.OwnerConnection", self.connection)
        monkeypatch.setattr(owners, "partitions_of", lambda *_: range(2))
        monkeypatch.setattr(owners, "LocationsReader", lambda _: nullcontext(self))

    def wait_for(self, keyspace: str, partition: int, _: float) -> Announcement:
        """As the topic of the announcements has it."""
        return Announcement(keyspace=keyspace, partition=partition, address=ANNOUNCED[partition], instance="i")

    def connection(self, address: str, **_: object) -> Any:
        """To one of them. Asked for no partition, it makes checkpoints of all that it folds."""

        class Owner:
            def __enter__(own) -> Self:
                if address in self.gone:
                    raise OwnerError(f"{address} is gone")
                return own

            def __exit__(self, *_: object) -> None: ...

            def status(self, _: str) -> Any:
                return SimpleNamespace(partitions=[status(each) for each in FOLDED[address]])

            def checkpoint(own, _: str, partition: int = -1) -> list[CheckpointPlace]:
                asked = FOLDED[address] if partition < 0 else [partition]
                return [CheckpointPlace(each, str(self.root / address / str(each)), 9) for each in asked]

            def tell_verdicts(own, _: str, verdicts: list[Verdict]) -> None:
                self.told[address] = [each.partition for each in verdicts]

        return Owner()


@pytest.fixture
def consumers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Consumers:
    return Consumers(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("given", "addresses"),
    [([], ["blue:1", "green:2"]), (["green:2"], ["green:2", "green:2"]), (["lone:3", "blue:1"], ["blue:1", "lone:3"])],
)
def test_a_partition_s_store_is_the_announced_owner_s_or_of_the_first_that_was_given(
    given: list[str], addresses: list[str], consumers: Consumers
) -> None:
    """An audit of another store would prove nothing of what the readers are told."""
    compared = live_checkpoint(KAFKA, "shop", given)
    assert compared == {each: consumers.root / address / str(each) for each, address in enumerate(addresses)}


@pytest.mark.usefixtures("consumers")
def test_a_partition_that_none_of_those_given_has_is_named() -> None:
    """A comparison without it would be taken for one of the whole keyspace."""
    with pytest.raises(VerifyError, match=r"shop/0 has no owner \(asked: lone:3\)") as refused:
        live_checkpoint(KAFKA, "shop", ["lone:3"])
    assert refused.value.code == "checkpoint_missing"


def test_a_verdict_is_told_to_those_alone_whose_store_was_compared(consumers: Consumers) -> None:
    """The page would call a store proved that nobody has looked at."""
    tell_verdicts("shop", asked_owners(KAFKA, "shop"), [Verdict(each, 9, True, 1) for each in range(2)])
    assert consumers.told == {"blue:1": [0], "green:2": [1]}


def test_an_owner_that_is_gone_keeps_the_verdict_from_no_other(consumers: Consumers) -> None:
    """An audit of hours would not be seen at the owners whose addresses come after it."""
    consumers.gone = {"blue:1"}
    with pytest.raises(OwnerError, match="blue:1 is gone"):
        tell_verdicts("shop", ANNOUNCED, [Verdict(each, 9, True, 1) for each in range(2)])
    assert consumers.told == {"green:2": [1]}


def test_lag_shows_of_a_partition_what_its_owner_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A follower may be far behind it. What nobody is announced for is read by one that will be."""
    folded = {"blue:1": [0, 1], "green:2": [0, 1, 2]}

    def connection(_: object, address: str) -> Any:
        said = [msgspec.structs.replace(status(each), topic_id=address) for each in folded[address]]
        return nullcontext(SimpleNamespace(status=lambda _: SimpleNamespace(partitions=said)))

    monkeypatch.setattr(lag, "owner_addresses", lambda *_: ANNOUNCED)
    monkeypatch.setattr(lag, "owner_connection", connection)
    monkeypatch.setattr(lag, "partitions_of", lambda *_: range(3))
    assert cli.run(["lag", "shop", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["partitions"]
    assert [each["topic_id"] for each in shown] == ["blue:1", "green:2", "green:2"]
