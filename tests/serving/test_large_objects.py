"""Partitions by name that do not fit into one answer of their owner: it is asked for parts, and nobody else is."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from consumers.owner import framing
from consumers.owner.objects.answering import no_objects
from consumers.owner.protocol import GetObjects, OwnerError, OwnerObjects
from serving.errors import ReadError
from serving.locations.places import Replica
from serving.metrics import FrontMetrics
from serving.reads.demands import RequestedTable
from serving.reads.objects import ObjectReads, RequestedObjects
from serving.reads.owners import AnswerTooLarge
from serving.reads.spaces import TableSpace
from stream.wire.events import ObjectImage, ObjectSet
from stream.wire.keys import Layout
from tests.consumers.owning import KEYSPACE
from tests.serving.fakes import FakeOwner, Network, at, demand_of, seen
from tests.serving.test_object_reads import HiveSource, Installation

SHARD = "hive/0"
NAMES = tuple((f"d{number}",) for number in range(9))
TOO_LARGE = OwnerError("64 MiB at most", code="frame_too_large")


def test_partitions_that_do_not_fit_into_one_answer_are_read_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be read at the source each time, and never be cached."""
    running = Installation(tmp_path, source := HiveSource())
    running.table()
    images = [ObjectImage("partition", 7, (name, "0"), "image", b"{}".ljust(1_000)) for [name] in NAMES]
    running.publish(ObjectSet("partition", 7, "begun"), *images, ObjectSet("partition", 7, "complete"))
    monkeypatch.setattr(framing, "FRAME_BYTES_MAX", 4_000)
    wanted = [(name, "0") for [name] in (*NAMES, ("none",))]
    found = running.session.get_partitions("sales", "t", catalog=KEYSPACE, names=wanted)
    assert (found.served_from, found.freshness, found.count, source.asked) == ("cache", "fresh", 9, [])
    assert (found.names, found.objects) == ([list(each) for each in wanted], [{}] * 9 + [None])


class Parts(FakeOwner):
    """Has room for four objects in an answer. ``asked_for``: how many each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked_for: list[int] = []
        self.unlike: dict[str, Any] = {}
        """What the second part that fits has instead."""

    async def get_objects(self, wanted: GetObjects) -> OwnerObjects:
        """As `consumers.owner.client.OwnerClient.get_objects`."""
        self.asked_for.append(len(wanted.names))
        if not 0 < len(wanted.names) <= 4:
            raise TOO_LARGE
        found = self._found(wanted.names)
        if len([number for number in self.asked_for if number <= 4]) == 2:
            for name, value in self.unlike.items():
                setattr(found, name, value)
        return found

    def _found(self, names: list[str]) -> OwnerObjects:
        found = no_objects(7, 0, "proved")
        found.freshness, found.served, found.needs_source, found.version = "fresh", True, False, "1.5"
        found.shard, found.epoch, found.hi = SHARD, 1, str(at(f"0-1-{len(names)}"))
        found.names, found.images, found.count = names, [b"{}"] * len(names), len(names)
        return found


class Asked:
    """Reads of partitions over two owners, of which either can answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.owner, self.other, self.source = Parts(), Parts(), HiveSource()
        network = Network(monkeypatch, {"a:1": self.owner, "b:1": self.other})
        network.announced = {0: ["a:1"], 1: ["b:1"]}
        self._reads = ObjectReads(network.owners(), FrontMetrics())

    def read(self, names: tuple[tuple[str, ...], ...]) -> Any:
        """The answer; the source has none."""
        self.source.down = True
        wanted = RequestedObjects("partition", RequestedTable("hive", "db", "t"), names)
        space = TableSpace("hive", Layout(2), self.source)
        return asyncio.run(self._reads.read(space, wanted, demand_of(seen(SHARD, "0-1-1"))))


def test_the_session_takes_away_the_latest_of_all_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the answer is as fresh as the least of them."""
    asked = Asked(monkeypatch)
    asked.owner.unlike = {"freshness": "eventual", "why": "a part", "hi": str(at("0-1-8"))}
    found = asked.read(NAMES)
    assert (found.names, found.count, len(found.objects)) == ([list(name) for name in NAMES], 9, 9)
    assert (found.freshness, found.why, found.token) == ("eventual", "a part", str(seen(SHARD, "0-1-8")))
    assert (asked.owner.asked_for, asked.other.asked_for) == ([9, 4, 5, 2, 3], [])


@pytest.mark.parametrize("unlike", [{"version": "1.6"}, {"write_ids": "db.t:2::"}, {"served": False, "why": "voided"}])
def test_parts_of_two_moments_are_no_answer(monkeypatch: pytest.MonkeyPatch, unlike: dict[str, Any]) -> None:
    """What was changed between them would be there twice, or not at all."""
    asked = Asked(monkeypatch)
    asked.owner.unlike = unlike
    with pytest.raises(ReadError) as refused:
        asked.read(NAMES)
    assert (refused.value.code, len(asked.source.asked)) == ("source_unreachable", 1)


def test_no_other_owner_is_asked_for_what_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would have the table's owner make the same answer again: for nothing, and once for each owner."""
    asked = Asked(monkeypatch)
    with pytest.raises(ReadError):
        asked.read(())
    assert (asked.owner.asked_for, asked.other.asked_for) == ([0], [])


def test_nor_is_a_follower(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has as much to say."""
    owner, follower = FakeOwner(failure=TOO_LARGE), FakeOwner(failure=TOO_LARGE)
    network = Network(monkeypatch, {"a:1": owner, "f:1": follower})
    owners = network.owners(followers=[Replica("f:1", "", "f")])
    with pytest.raises(AnswerTooLarge):
        asyncio.run(owners.read("shop", 0, lambda client: client.describe("shop", "shop.items")))
    assert (owner.asked, follower.asked) == (["describe"], [])
