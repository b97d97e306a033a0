"""`freshet snapshots` and `freshet consume --from-snapshot` on real servers: Kafka, and an S3-compatible one."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

import pytest

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from freshet.owners import live_checkpoint
from lab.faults.network import LinkConditions, Network
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationError, LocationsReader
from tests.consumers.consuming import ConsumeProcess, until
from tests.servers.s3 import S3Address
from tests.spark_jobs.test_live_verify import FRESHET, consuming
from tests.spark_jobs.topics import Items, TestTopic, history, items_of

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(kafka: KafkaCluster) -> Run:
    """Runs `freshet` with this Kafka."""

    def freshet(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        given = os.environ | {"FRESHET_KAFKA__BOOTSTRAP": kafka.bootstrap} | environment
        return subprocess.run(
            [*FRESHET, *arguments], capture_output=True, text=True, timeout=300, check=False, env=given
        )

    return freshet


def test_a_new_consumer_begins_with_a_snapshot_in_s3(
    kafka: KafkaCluster, keyspace_name: str, s3: S3Address, run: Run, tmp_path: Path
) -> None:
    """The topic's beginning is gone: the new consumer still has the state of the whole log, byte for byte."""
    filled = TestTopic(kafka, keyspace_name, 3)
    uri = f"s3://{s3.new_bucket()}/kept"
    for partition in range(3):
        filled.write(partition, history(partitions=3))
    with consuming(filled, tmp_path / "first"):
        made = run("snapshots", "make", keyspace_name, "--to", uri, "--json")
        assert made.returncode == 0, made.stderr
        for partition in range(2):
            filled.write(partition, history(first=5000, partitions=3))
        wanted = until(lambda: at_end(filled), "the first consumer is at the end")
    name = json.loads(made.stdout)["name"]
    listed = [
        json.loads(line) for line in run("snapshots", "ls", keyspace_name, "--at", uri, "--json").stdout.splitlines()
    ]
    assert [each["name"] for each in listed] == [name]
    checked = run("snapshots", "verify", keyspace_name, "--at", uri)
    assert (checked.returncode, checked.stdout) == (0, f"{name}  good\n"), checked.stderr
    for partition in range(3):
        filled.delete_before(partition, listed[0]["offsets"][str(partition)])
    others = ["--group", f"{keyspace_name}-second"]  # the first one's group would wait until that lapses
    with consuming(filled, tmp_path / "second", more=[*others, "--from-snapshot", uri]):
        assert until(lambda: at_end(filled), "the second consumer is at the end") == wanted
    log = (tmp_path / "second.log").read_text()
    assert log.count('"event": "store made from a snapshot"') == 3
    assert "topic_cut" not in log
    shown = log + made.stderr + checked.stdout
    assert s3.secret not in shown
    assert s3.key not in shown
    pruned = run("snapshots", "prune", keyspace_name, "--at", uri, "--keep", "1")
    assert pruned.stdout == f"{name}  stays: is the newest\n", pruned.stderr


def test_other_partitions_are_folded_and_answered_while_a_store_is_made_from_a_snapshot(
    kafka: KafkaCluster, keyspace_name: str, s3: S3Address, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A damaged store waits for a place that does not answer: the other one goes on, and the process can be stopped."""
    filled, data, uri = TestTopic(kafka, keyspace_name, 2), tmp_path / "data", f"s3://{s3.new_bucket()}/kept"
    for partition in range(2):
        filled.write(partition, history(partitions=2))
    with ConsumeProcess(kafka, keyspace_name, data) as process:
        process.ready()
        stores = until(lambda: at_end(filled) and live_checkpoint(kafka, keyspace_name, []), "all is folded")
        snapshot = write_snapshot(Place(uri), stores, made_from="owners")
        assert process.terminate() == 0
    (data / keyspace_name / "0" / "manifest.json").write_bytes(b"{}")
    filled.write(1, history(first=5000, partitions=2))
    server = urlparse(s3.endpoint)
    with Network() as network:
        link = network.link("s3", (str(server.hostname), server.port or 80))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{link.address}")
        link.set_conditions(LinkConditions(blocked=True))
        for stops in (True, False):
            with ConsumeProcess(kafka, keyspace_name, data, flags=["--from-snapshot", uri]) as process:
                address = until(lambda: owner_at_end(filled, 1), "the other partition is announced, and folded whole")
                with OwnerConnection(address) as owner:
                    assert [each.partition for each in owner.status(keyspace_name).partitions] == [1]
                assert not process.lines("ready")
                if stops:
                    assert process.terminate() == 0
                    continue
                link.clear()
                assert process.ready() == address
                wanted = [filled.folded(partition, tmp_path / "whole")[0] for partition in range(2)]
                assert until(lambda: at_end(filled), "all is folded") == wanted
                [line] = process.lines("store made from a snapshot")
                assert (line["partition"], line["snapshot"]) == (0, snapshot.name)
                assert process.terminate() == 0


def owner_at_end(filled: TestTopic, partition: int) -> str:
    """The address of the partition's announced owner once it has folded all of it."""
    with LocationsReader(filled.kafka) as reader:
        found = reader.owner_of(filled.keyspace, partition)
    if found is None:
        return ""
    try:
        with OwnerConnection(found.address) as owner:
            status = {each.partition: each for each in owner.status(filled.keyspace).partitions}
    except OwnerError:
        return ""  # of the process before
    return found.address if partition in status and status[partition].position >= filled.ends()[partition] else ""


def at_end(filled: TestTopic) -> list[Items]:
    """The items of all owners' checkpoints if they are announced, and at the topic's end; else nothing."""
    try:
        live = live_checkpoint(filled.kafka, filled.keyspace, [])
    except (LocationError, OwnerError):
        return []  # not announced yet, but for the process before perhaps
    if {partition: int(directory.name) for partition, directory in live.items()} != filled.ends():
        return []
    return [items_of(directory) for _, directory in sorted(live.items())]


def test_missing_credentials_are_told(s3: S3Address, run: Run, keyspace_name: str) -> None:
    """Without a key the error names the place and what to do, in one line."""
    without = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": "/nonexistent"}
    done = run("snapshots", "ls", keyspace_name, "--at", f"s3://{s3.new_bucket()}/kept", **without)
    assert done.returncode == 1
    assert "error[snapshot_unreachable]: cannot" in done.stderr
    assert "credentials" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 2, done.stderr
