"""A hand-over may last longer than Kafka lets a member of a group be without a poll."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlparse

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient

from consumers.owner.client import OwnerConnection
from consumers.process.loop import SESSION_TIMEOUT_MS
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from freshet.owners import live_checkpoint
from lab.faults.network import LinkConditions, Network
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.locations import LocationError, LocationsReader
from tests.consumers.consuming import ConsumeProcess, Feed, caught_up, digest_of, expected, until
from tests.patience import PATIENCE_S
from tests.servers.s3 import S3Address

INTERVAL_S: Final = SESSION_TIMEOUT_MS / 1_000
"""Between two polls: the least that Kafka's client takes, which is the session's time."""


def members(kafka: KafkaCluster, group: str, *, settled: bool = False) -> int:
    """How many members the group has; ``settled``: 0 while it shares its partitions out."""
    name = kafka.group_id(group)
    admin = AdminClient(client_settings(kafka))
    found = admin.describe_consumer_groups([name], request_timeout=PATIENCE_S)[name].result()
    return len(found.members) if found.state == ConsumerGroupState.STABLE or not settled else 0


def held(address: str, keyspace: str) -> list[int]:
    """The partitions that the owner at an address answers for."""
    with OwnerConnection(address) as owner:
        return sorted(each.partition for each in owner.status(keyspace).partitions)


def checkpoint(kafka: KafkaCluster, keyspace: str) -> Any:
    """`live_checkpoint`, as soon as all owners are announced."""
    with suppress(LocationError):
        return live_checkpoint(kafka, keyspace, [])
    return None


def test_a_hand_over_outlasts_the_poll_interval_and_nobody_loses_its_membership(
    kafka: KafkaCluster, keyspace_name: str, s3: S3Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The next owner waits for its snapshot so long: it stays a member, and the one before folds and answers
    for all until the other one has caught up."""
    feed, uri, server = Feed(kafka, keyspace_name), f"s3://{s3.new_bucket()}/kept", urlparse(s3.endpoint)
    feed.load(40)
    times = dict.fromkeys(("session.timeout.ms", "max.poll.interval.ms"), str(SESSION_TIMEOUT_MS))
    monkeypatch.setenv("FRESHET_KAFKA__EXTRA", json.dumps(times))
    with (
        Network() as network,
        LocationsReader(kafka) as reader,
        ConsumeProcess(kafka, keyspace_name, tmp_path / "first") as first,
    ):
        address = first.ready()
        stores = until(lambda: caught_up(kafka, keyspace_name, address) and checkpoint(kafka, keyspace_name), "a fold")
        write_snapshot(Place(uri), stores, made_from="owners")
        link = network.link("s3", (str(server.hostname), server.port or 80))
        link.set_conditions(LinkConditions(blocked=True))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{link.address}")
        second = ConsumeProcess(kafka, keyspace_name, tmp_path / "second", flags=["--from-snapshot", uri])
        with second:

            def given() -> list[int]:
                leaving = [number for number, each in reader.owners(keyspace_name).items() if each.leaving]
                return leaving if members(kafka, keyspace_name, settled=True) == 2 else []

            [moved], began = until(given, "a partition is given to the second one"), time.monotonic()
            while time.monotonic() < began + 1.5 * INTERVAL_S:
                feed.load(5)
                until(lambda: caught_up(kafka, keyspace_name, address), "the first one folds what comes")
                assert held(address, keyspace_name) == [0, 1]
                assert members(kafka, keyspace_name) == 2
            link.clear()
            until(lambda: reader.owners(keyspace_name)[moved].address != address, "the second one is announced")
            until(lambda: held(address, keyspace_name) == [1 - moved], "the first one has released it")
            assert [process.lines("consuming was interrupted, retrying") for process in (first, second)] == [[], []]
            assert len(second.lines("store made from a snapshot")) == 1
            assert (second.terminate(), first.terminate()) == (0, 0)
    for number, where in ((moved, "second"), (1 - moved, "first")):
        wanted = expected(kafka, feed.topic, number, tmp_path / f"whole-{number}")
        assert digest_of(tmp_path / where, keyspace_name, number) == wanted
