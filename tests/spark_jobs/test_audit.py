"""The audit of a live keyspace: from its last verified snapshot, and what it tells of a wrong entry."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import find_snapshots
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from consumers.store.rocks.database import Rocks
from consumers.store.store import ROCKS_NAME, PartitionStore
from freshet.auditing import Audit, Audited, audit, audit_again_and_again
from freshet.local.artifacts import jars
from freshet.owners import live_checkpoint
from spark_jobs.output import find_stores
from spark_jobs.rebuild import RebuildRequest, run_rebuild
from spark_jobs.session import SparkSettings
from stream.kafka.connection import KafkaCluster
from tests.consumers.consuming import until
from tests.patience import PATIENCE_S
from tests.spark_jobs.conftest import java_home
from tests.spark_jobs.test_live_verify import FRESHET, consuming
from tests.spark_jobs.topics import TestTopic, history, rows
from tokens.errors import FreshetError

Topics = Callable[[int], TestTopic]


def settings(directory: Path) -> SparkSettings:
    """Of a session on one core."""
    return SparkSettings(master="local[1]", jars=jars("spark"), java_home=java_home(), log_file=directory / "spark.log")


@pytest.fixture
def audited(tmp_path: Path) -> Callable[[TestTopic, Path], Audited]:
    """Audits a keyspace with snapshots at a place, in this process."""
    return lambda filled, place: audit(Audit(filled.keyspace, filled.kafka, settings(tmp_path), place=str(place)))


def test_an_audit_goes_on_from_the_last_one_and_names_what_is_wrong(
    topic: Topics, tmp_path: Path, audited: Callable[[TestTopic, Path], Audited]
) -> None:
    """The first goes on from a rebuild, not from what the owners said; the next from the first, so each reads a tail.

    A wrong entry is told with both values, tags and its events.
    """
    filled, place = topic(2), tmp_path / "snapshots"
    for partition in range(2):
        filled.write(partition, history(partitions=2))
    run_rebuild(RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "rebuilt"), settings(tmp_path))
    stores = find_stores(tmp_path / "rebuilt")
    rebuilt = write_snapshot(Place(str(place)), stores, made_from="rebuild", replayed=True)
    for partition in range(2):
        filled.write(partition, history(first=3000, partitions=2))
    with consuming(filled, tmp_path / "data"):
        live = live_checkpoint(filled.kafka, filled.keyspace, [])
        owners = write_snapshot(Place(str(place)), live, made_from="owners")
        first = audited(filled, place)
        assert (first.verdict.equal, first.since) == (True, rebuilt.name)
        for partition in range(2):
            filled.write(partition, history(first=5000, partitions=2))
        second = _standing(filled, place)
    assert (second["equal"], second["since"]) == (True, first.snapshot)
    found = find_snapshots(Place(str(place)), filled.keyspace)
    unverified = {each.name for each in found if each.snapshot is not None and not each.snapshot.verified}
    assert unverified == {rebuilt.name, owners.name}
    key = _plant(tmp_path / "data", filled)
    filled.write(0, [rows(9000, 1)])  # at the same offset the owner would give the checkpoint from before
    with consuming(filled, tmp_path / "data"):
        third = audited(filled, place)
        base = str(tmp_path / "data" / "checkpoints")
        trusting = audit(Audit(filled.keyspace, filled.kafka, settings(tmp_path), base=base, place=str(place)))
    assert (trusting.verdict.equal, trusting.snapshot) == (True, ""), "the next audit would begin with the wrong entry"
    assert third.snapshot == ""
    assert third.verdict.differences == 1
    [wrong] = [each for partition in third.verdict.partitions for each in partition.first]
    assert wrong["key_hex"] == key.hex()
    left, right = wrong["left"], wrong["right"]
    assert isinstance(left, dict)
    assert isinstance(right, dict)
    assert left["image"] == '{"n":"wrong"}'
    assert left["ordinal"] == right["ordinal"]
    assert right["image"] != left["image"]
    events = wrong["events"]
    assert isinstance(events, list)
    made = [each for each in events if each["event"] == "row"]
    assert made[-1]["ordinal"] == right["ordinal"], "the audit began before the event that made it"
    assert made[-1]["image"] == right["image"]


def test_a_verdict_is_not_lost_with_what_follows_it(
    topic: Topics, tmp_path: Path, audited: Callable[[TestTopic, Path], Audited], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both states are equal: that no snapshot can be left is another matter."""

    def unreachable(*_: object, **__: object) -> None:
        raise SnapshotError("the store of snapshots does not answer")

    monkeypatch.setattr("consumers.snapshots.writing.write_snapshot", unreachable)
    filled = topic(1)
    filled.write(0, history())
    with consuming(filled, tmp_path / "data"):
        found = audited(filled, tmp_path / "snapshots")
    assert (found.verdict.equal, found.snapshot) == (True, "")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("the JVM is gone")])
def test_a_standing_audit_goes_on_after_whatever_error(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk today must not mean that nothing is audited from then on."""
    outcomes: list[Audited | FreshetError] = []

    def fails(_: Audit) -> Audited:
        raise error

    def twice(_: float) -> None:
        if len(outcomes) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("freshet.auditing.audit", fails)
    request = Audit("shop", KafkaCluster("127.0.0.1:1"), SparkSettings())
    with pytest.raises(KeyboardInterrupt):
        audit_again_and_again(request, 1, lambda outcome, _: outcomes.append(outcome), twice)
    assert [each.code for each in outcomes if isinstance(each, FreshetError)] == ["audit_failed"] * 2
    assert str(error) in str(outcomes[0])


def _plant(data_dir: Path, filled: TestTopic) -> bytes:
    """Another value in the store of partition 0, behind Freshet's back; its key."""
    store = PartitionStore.open(data_dir, keyspace=filled.keyspace, partition=0, topic_id=filled.topic_id())
    values = [pair for pair in store.items() if pair[1].endswith(b"}") and b'{"n":' in pair[1]]
    key, entry = values[-1]
    assert key != b"shop.items\0[0]", "which the next message writes"
    store.close()
    rocks = Rocks(store.directory / ROCKS_NAME)
    image = entry[entry.rindex(b'{"n":') :]
    rocks.ingest({key: entry.removesuffix(image) + b'{"n":"wrong"}'}, store.directory / "planted.sst")
    rocks.close()
    return key


def _standing(filled: TestTopic, place: Path) -> dict[str, object]:
    """The first outcome of a standing audit, whose metrics say the same, and which ends with 0."""
    command = ["verify", filled.keyspace, "--bootstrap", filled.kafka.bootstrap, "--snapshots", str(place), "--json"]
    process = subprocess.Popen(
        [*FRESHET, "--log-format", "json", *command, "--every", "3600", "--metrics-port", "0", "--master", "local[1]"],
        stdout=subprocess.PIPE,
        stderr=(place.parent / "standing.log").open("wb"),
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        log = (place.parent / "standing.log").read_text()
        address = re.search(r'"address": "([0-9.:]+)", "event": "metrics"', log)
        assert address is not None, log
        outcome: dict[str, object] = json.loads(line)

        def scraped() -> str:
            with urllib.request.urlopen(f"http://{address[1]}/metrics", timeout=30) as answer:
                return str(answer.read().decode())

        wanted = f'freshet_verify_keys{{keyspace="{filled.keyspace}"}} {float(str(outcome["items"]))}'
        until(lambda: wanted in scraped(), wanted)
        assert f'freshet_verify_differences{{keyspace="{filled.keyspace}"}} 0.0' in scraped()
        assert "freshet_verify_last_verified_timestamp_seconds{" in scraped()
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(PATIENCE_S)
    assert code == 0, (place.parent / "standing.log").read_text()
    return outcome
