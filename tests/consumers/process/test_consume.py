"""`freshet consume` on a real Kafka: crashes, bad input, damage, full disks, brokers that are away."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError
from consumers.store.manifest import read_manifest
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.dead_letters import read_letters
from stream.kafka.locations import LocationsReader
from tests.consumers.consuming import (
    ConsumeProcess,
    Feed,
    accounted_for,
    assert_equal_to_uninterrupted,
    caught_up,
    gtid,
    until,
)
from tests.lengths import length
from tests.patience import PATIENCE_S
from tokens import Position, Vector

LOAD_PAUSE_S = 0.1
"""Between two hundreds of frames: without it most of the test's time goes into folding what was written meanwhile."""


def folded_to_the_end(kafka: KafkaCluster, feed: Feed, process: ConsumeProcess) -> str:
    """Waits until all is folded; the owner's address."""
    address = process.ready()
    until(lambda: caught_up(kafka, feed.keyspace, address), "caught up")
    return address


@pytest.mark.slow
@pytest.mark.long
def test_kills_under_load_leave_the_state_of_an_uninterrupted_run(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """A kill -9 at any instant changes no answer: nothing is lost, nothing is folded twice."""
    feed = Feed(kafka, keyspace_name)
    rng = random.Random(7)
    done = threading.Event()

    def load() -> None:
        while not done.wait(LOAD_PAUSE_S):
            feed.load(200)

    loader = threading.Thread(target=load)
    loader.start()
    try:
        for _ in range(length(4, 10)):
            with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
                until(lambda p=process: p.lines("partition taken"), "partitions")  # type: ignore[misc]
                time.sleep(rng.random())  # the instant of the kill is what is random here
                process.kill()
    finally:
        done.set()
        loader.join()
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        assert process.terminate() == 0
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def test_it_answers_announces_and_stops_cleanly(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """Ready means answering; SIGTERM commits everything and takes the announcements back."""
    feed = Feed(kafka, keyspace_name)
    feed.load(300)
    with (
        ConsumeProcess(kafka, keyspace_name, tmp_path / "data", FRESHET_CONSUMER__METRICS_PORT="0") as process,
        LocationsReader(kafka) as locations,
    ):
        address = folded_to_the_end(kafka, feed, process)
        for partition in range(feed.partitions):
            owner = until(lambda n=partition: locations.owner_of(keyspace_name, n), "announced")  # type: ignore[misc]
            assert owner.address == address
        with OwnerConnection(address) as connection:
            token = Vector({feed.shard: (1, Position.parse(gtid(feed.ordinal)))})
            rows = connection.get(keyspace_name, 0, feed.keys(0, 500), str(token))
            assert {row.freshness for row in rows if row.kind in (1, 2)} == {"fresh"}
            status = connection.status()
            assert status.ready
            assert {each.partition for each in status.partitions} == {0, 1}
        assert process.terminate() == 0
        until(lambda: locations.owner_of(keyspace_name, 0) is None, "withdrawn")
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def test_poison_goes_to_the_dead_letter_topic_and_the_stream_goes_on(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Poison is kept once, with reason and place, even if a crash makes it be folded again."""
    feed = Feed(kafka, keyspace_name)
    feed.load(20)
    garbage = [b"", b"garbage", b"\xc3\x01" + b"12345678" + b"x", None]
    for message in garbage:
        feed.put(1, message)
    feed.load(20)
    with ConsumeProcess(
        kafka, keyspace_name, tmp_path / "data", FRESHET_CONSUMER__COMMIT_INTERVAL_MS="600000"
    ) as process:
        folded_to_the_end(kafka, feed, process)
        process.kill()
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        address = process.ready()
        until(lambda: accounted_for(kafka, keyspace_name, address), "all of it committed")
        assert process.terminate() == 0
    letters = read_letters(kafka, keyspace_name)
    assert len(letters) == len(garbage)
    assert {letter.partition for letter in letters} == {1}
    assert all(letter.reason and letter.code for letter in letters)
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def test_a_damaged_store_is_set_aside_and_rebuilt(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """Damage found at start causes a rebuild from the topic; the damaged files are kept."""
    feed = Feed(kafka, keyspace_name)
    feed.load(300)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        assert process.terminate() == 0
    damage(tmp_path / "data" / keyspace_name / "0")
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        [line] = process.lines("store moved aside, rebuilding it from the topic")
        assert line["code"] == "store_corrupt"
        assert process.terminate() == 0
    assert (tmp_path / "data" / keyspace_name / "0.corrupt-1").is_dir()
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def test_damage_found_while_serving_is_never_served(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """A damaged block under a running owner causes a rebuild; meanwhile reads get errors, not old bytes."""
    feed = Feed(kafka, keyspace_name)
    feed.load(300)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        assert process.terminate() == 0
    keys = feed.keys(0)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        address = folded_to_the_end(kafka, feed, process)
        for file in (tmp_path / "data" / keyspace_name / "0" / "db").glob("*.sst"):
            content = bytearray(file.read_bytes())
            content[200 : len(content) * 2 // 3] = b"\xff" * (len(content) * 2 // 3 - 200)
            with file.open("r+b") as damaged:
                damaged.write(content)

        def met() -> bool:
            try:
                with OwnerConnection(address) as owner:
                    owner.get(keyspace_name, 0, keys)
            except OwnerError as error:
                return error.code in ("store_corrupt", "not_owner")
            return False

        until(met, "damage met")
        until(lambda: process.lines("store moved aside, rebuilding it from the topic"), "set aside")
        until(lambda: caught_up(kafka, keyspace_name, address, feed.partitions), "rebuilt")
        assert process.terminate() == 0
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def damage(directory: Path) -> None:
    """Overwrites the middle of the store's largest table."""
    largest = max(directory.rglob("*.sst"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[10 : len(content) - 10] = bytes(len(content) - 20)
    largest.write_bytes(content)


def test_a_recreated_topic_causes_a_rebuild(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """If the topic id changes, the old store is set aside and that is logged."""
    feed = Feed(kafka, keyspace_name)
    feed.load(50)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        assert process.terminate() == 0
    delete_topic(kafka, feed.topic.name)
    again = until(lambda: try_feed(kafka, keyspace_name, feed.topic.topic_id), "topic made anew")
    again.load(30)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, again, process)
        codes = {line["code"] for line in process.lines("store moved aside, rebuilding it from the topic")}
        assert codes == {"topic_changed"}
        assert process.terminate() == 0
    assert_equal_to_uninterrupted(kafka, again, tmp_path / "data", tmp_path / "scratch")


def delete_topic(kafka: KafkaCluster, name: str) -> None:
    """Deletes a topic."""
    from confluent_kafka.admin import AdminClient

    admin = AdminClient(client_settings(kafka))
    for future in admin.delete_topics([name]).values():
        future.result(timeout=60)


def try_feed(kafka: KafkaCluster, keyspace: str, old_id: str = "") -> Feed | None:
    """A feed of a new topic; None while the old one is still there, or being deleted."""
    from tokens.errors import FreshetError

    try:
        feed = Feed(kafka, keyspace, seed=2)
    except FreshetError:
        return None
    return feed if feed.topic.topic_id != old_id else None


def test_a_store_beyond_the_topics_end_is_rebuilt(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """A store is not continued from a topic that lost folded events."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(50)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        assert process.terminate() == 0
    from consumers.fold.state import Changes
    from consumers.store.store import PartitionStore

    store = PartitionStore.open(tmp_path / "data", keyspace=keyspace_name, partition=0, topic_id=feed.topic.topic_id)
    store.apply(Changes(1_000_000, {}))
    store.close()
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        [line] = process.lines("store moved aside, rebuilding it from the topic")
        assert line["code"] == "offset_out_of_range"
        assert process.terminate() == 0
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def test_a_newer_store_ends_the_process_with_one_clear_line(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """An error that retrying can't fix ends the process with code and hint, without a traceback."""
    from dataclasses import replace

    from consumers.store.manifest import write_manifest

    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(5)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        folded_to_the_end(kafka, feed, process)
        assert process.terminate() == 0
    directory = tmp_path / "data" / keyspace_name / "0"
    manifest = read_manifest(directory)
    assert manifest is not None
    write_manifest(directory, replace(manifest, format_version=9))
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        assert process.process.wait(PATIENCE_S) == 1
        text = [line["event"] for line in process.lines()]
        assert any("error[store_newer]" in line for line in text)
        assert not any("Traceback" in line for line in text)


def test_an_outage_of_kafka_at_start_or_later_is_retried(
    new_kafka: Callable[..., Any], keyspace_name: str, tmp_path: Path
) -> None:
    """The outage is logged once, reads are answered meanwhile, and folding resumes by itself."""
    server = new_kafka()
    kafka = server.cluster
    feed = Feed(kafka, keyspace_name)
    feed.load(50)
    server.kill()
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        [line] = until(lambda: process.lines("consuming was interrupted, retrying"), "said")
        assert line["code"] == "kafka_unreachable"
        server.restart()
        address = folded_to_the_end(kafka, feed, process)
        server.kill()
        until(lambda: len(process.lines("consuming was interrupted, retrying")) == 2, "said again")
        with OwnerConnection(address) as owner:
            rows = owner.get(keyspace_name, 0, feed.keys(0))
            assert any(row.image for row in rows)
        server.restart()
        feed.load(50)
        until(lambda: caught_up(kafka, keyspace_name, address), "goes on")
        assert process.terminate() == 0
        assert len(process.lines("consuming was interrupted, retrying")) == 2
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def test_a_full_disk_stops_folding_until_there_is_space(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """With a full disk reads go on and nothing is lost; folding resumes by itself when there is space."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    with ExitStack() as stack:
        data, fill, free = small_disk(stack, tmp_path)
        with ConsumeProcess(kafka, keyspace_name, data) as process:
            address = folded_to_the_end(kafka, feed, process)
            fill(process)
            feed.load(300)
            [line] = until(lambda: process.lines("disk full, folding paused; reads go on"), "said")
            assert line["code"] == "disk_full"
            with OwnerConnection(address) as owner:
                assert owner.get(keyspace_name, 0, feed.keys(0, 1))
            free(process)
            until(lambda: caught_up(kafka, keyspace_name, address), "goes on")
            assert process.terminate() == 0
        assert_equal_to_uninterrupted(kafka, feed, data, tmp_path / "scratch")


def small_disk(
    stack: ExitStack, tmp_path: Path
) -> tuple[Path, Callable[[ConsumeProcess], None], Callable[[ConsumeProcess], None]]:
    """A data directory that can be filled and freed: a small tmpfs if we may mount one, else a file size limit."""
    data = tmp_path / "small"
    data.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "none", str(data)], check=False, capture_output=True
    )
    if mounted.returncode:
        return data, lambda process: limit_files(process, 4096), lambda process: limit_files(process, -1)
    stack.callback(subprocess.run, ["umount", "-l", str(data)], check=True)
    ballast = data / "ballast"

    def fill(_: ConsumeProcess) -> None:
        with ballast.open("wb") as file:
            left = shutil.disk_usage(data).free
            file.write(bytes(left - 8192))

    return data, fill, lambda _: ballast.unlink()


def limit_files(process: ConsumeProcess, size: int) -> None:
    """Limits the size of files that the process may write; -1: no limit."""
    import resource

    resource.prlimit(process.process.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def test_two_processes_never_share_a_data_directory(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """A second process on a data directory ends with store_locked; the first continues."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(5)
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as first:
        address = folded_to_the_end(kafka, feed, first)
        with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as second:
            assert second.process.wait(PATIENCE_S) == 1
            assert any("error[store_locked]" in line["event"] for line in second.lines())
        with OwnerConnection(address) as owner:
            assert owner.status().partitions
        assert not first.lines("partition released"), "the second one must not join the group in the first one's name"
        assert first.terminate() == 0


def test_a_process_can_be_interrupted_right_after_its_start(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Ctrl-C before any assignment ends the process cleanly."""
    with ConsumeProcess(kafka, keyspace_name, tmp_path / "data") as process:
        [line] = until(lambda: process.lines("waiting for the keyspace's topic"), "topic missing said")
        assert line["code"] == "topic_missing"
        process.process.send_signal(signal.SIGINT)
        assert process.process.wait(PATIENCE_S) == 0


def test_a_topic_whose_partition_count_changed_is_refused(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Keys would be looked up in the wrong partitions: none is announced. Other keyspaces of the process go on."""
    from confluent_kafka.admin import AdminClient, NewPartitions

    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.load(5)
    admin = AdminClient(client_settings(kafka))
    for future in admin.create_partitions([NewPartitions(feed.topic.name, 3)]).values():
        future.result(timeout=60)
    other = Feed(kafka, f"{keyspace_name}b", partitions=1)
    other.load(5)
    with (
        ConsumeProcess(kafka, keyspace_name, tmp_path / "data", [other.keyspace]) as process,
        LocationsReader(kafka) as locations,
    ):
        [line] = until(lambda: process.lines("partition can't be served, reads go to the source"), "said")
        assert (line["partition"], line["code"]) == (f"{keyspace_name}/0", "wrong_partition_count")
        until(lambda: locations.owner_of(other.keyspace, 0), "the other keyspace is served")
        assert locations.owner_of(keyspace_name, 0) is None
        assert process.terminate() == 0
