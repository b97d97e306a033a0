"""A record of a newer version stops its partition, with a clear line; folding goes on after the upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumers.owner.client import OwnerConnection
from consumers.owner.partitions import NEWER_WIRE
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from stream.wire import checks
from tests.consumers.consuming import ConsumeProcess, Feed, gtid, until
from tests.consumers.process.test_pauses import consuming
from tests.patience import PATIENCE_S
from tokens import Position, Vector

LATER = 99


def raise_reader_version(feed: Feed, partition: int) -> None:
    """What a source of a later version writes first."""
    feed.send(
        partition,
        "Marker",
        position=gtid(feed.ordinal),
        timestamp=1_700_000_000,
        low_water=gtid(0),
        layout=feed.layout,
        whole=True,
        reader_version=LATER,
    )
    feed.flush()


def test_a_newer_record_stops_its_partition_only(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """What is folded answers, and is announced, also after a restart of the same version; the others go on."""
    feed = Feed(kafka, keyspace_name, partitions=2)
    feed.load(30)
    before = feed.ordinal
    raise_reader_version(feed, 0)
    feed.load(30)
    keys = feed.keys(0)
    for _ in range(2):
        with (
            ConsumeProcess(kafka, keyspace_name, tmp_path) as process,
            LocationsReader(kafka) as locations,
        ):
            address = process.ready()
            [line] = process.lines("a newer Freshet writes here, folding stopped; reads go on")
            assert (line["code"], line["partition"]) == ("newer_wire", f"{keyspace_name}/0")
            assert "update" in line["hint"]
            until(lambda n=locations: len(n.owners(keyspace_name)) == 2, "announced")  # type: ignore[misc]
            with OwnerConnection(address) as owner:
                sick, well = owner.status(keyspace_name).partitions
                assert (sick.state, well.state) == (NEWER_WIRE, "ready")
                assert sick.end > sick.position
                assert well.shards[0].watermark == gtid(feed.ordinal)
                known = str(Vector({feed.shard: (1, Position.parse(gtid(before)))}))
                newer = str(Vector({feed.shard: (1, Position.parse(gtid(feed.ordinal)))}))
                assert "fresh" in {row.freshness for row in owner.get(keyspace_name, 0, keys, known)}
                assert "fresh" not in {row.freshness for row in owner.get(keyspace_name, 0, keys, newer)}
            assert process.terminate() == 0


def test_folding_goes_on_after_the_upgrade(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store stops before the record, so a version that knows it continues there."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(10)
    raise_reader_version(feed, 0)
    feed.load(10)
    with consuming(kafka, keyspace_name, tmp_path) as consumption:
        [partition] = consumption.ownership
        assert partition.state == NEWER_WIRE
        assert partition.store.visible.lineages[feed.shard].ordinal < feed.ordinal
    monkeypatch.setattr(checks, "READER_VERSION", LATER)
    with consuming(kafka, keyspace_name, tmp_path) as consumption:
        [partition] = consumption.ownership
        until(
            lambda: partition.store.visible.lineages[feed.shard].ordinal == feed.ordinal, "folded", timeout_s=PATIENCE_S
        )
        assert consumption.rebuilds == 0
