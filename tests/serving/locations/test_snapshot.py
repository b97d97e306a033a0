"""The file of locations (L20): what was written is read back; anything else is ignored, and said."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from serving.locations.directory import TopicDirectory
from serving.locations.file import LocationFile, read_snapshot
from serving.locations.places import Key, Kind, Location, Origin, Replica, Version
from serving.locations.refreshing import Locations
from serving.locations.snapshot import FORMAT, Snapshot, decode_snapshot, encode_snapshot
from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.kafka.locations import LocationsReader
from stream.kafka.topics import Topic, describe_topic, locations_topic
from tests.serving.locations.places import at, led_by
from tests.serving.stack import eventually

LOCATIONS = [led_by("a", 5, "b", term=2), led_by("c", 1, key=Key("bänk", 3))._replace(gone=True)]
KEPT = (
    b'{"format":1,"cluster":"k"}\n'
    b'{"keyspace":"shop","partition":0,"epoch":5,"term":2,"instance":"a",'
    b'"leader":["a:1","t","w","a"],"followers":[["b:1","t","","b"]],"gone":false,"later":1}\n'
)
"""Written once, with a field of a later version."""


def test_what_was_written_is_read_back() -> None:
    """All partitions; the system's entities are asked for anew."""
    system = Location(Key("shop", 0, Kind.EVENTS), Version(), Replica("k:9092"))
    assert decode_snapshot(encode_snapshot("k", [*LOCATIONS, system])) == Snapshot("k", LOCATIONS)


def test_a_kept_file_is_still_read() -> None:
    """By every later version; fields that it does not know are ignored."""
    found = decode_snapshot(KEPT)
    leader = Replica("a:1", "t", "w", "a")
    assert found == Snapshot(
        "k", [Location(Key("shop", 0), Version(5, 2, "a"), leader, (Replica("b:1", "t", "", "b"),))]
    )


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\n",
        b"{}\n",
        b"[]\n",
        encode_snapshot("k", LOCATIONS)[:-1],
        KEPT.replace(b'"format":1', b'"format":%d' % (FORMAT + 1)),
        KEPT.replace(b'"partition":0', b'"partition":"0"'),
        KEPT.replace(b'["a:1"', b"[7"),
        b"\xff\xfe\n",
    ],
)
def test_a_damaged_file_is_ignored(tmp_path: Path, text: bytes) -> None:
    """It only saves time: a front starts without it. The log says so."""
    path = tmp_path / "locations"
    path.write_bytes(text)
    with capture_logs() as logged:
        assert read_snapshot(path) == Snapshot("", [])
    assert [each["event"] for each in logged] == ["location file is ignored"]


def test_a_file_that_is_not_there_is_nothing_to_speak_of(tmp_path: Path) -> None:
    """The first start has none."""
    with capture_logs() as logged:
        assert read_snapshot(tmp_path / "locations") == Snapshot("", [])
    assert logged == []


@pytest.mark.integration
@pytest.mark.parametrize("is_ours", [True, False])
def test_a_file_of_another_installation_is_given_up_once_kafka_tells_which_one_this_is(
    tmp_path: Path, kafka: KafkaCluster, is_ours: bool
) -> None:
    """A disk that was moved, or a Kafka that was made anew: until then it is told, since each answer proves itself."""
    key = Key(f"ks{tmp_path.name}", 0)
    with LocationsReader(kafka) as reader:
        cluster = describe_topic(kafka, locations_topic(kafka)).topic_id
        path = tmp_path / "locations"
        path.write_bytes(encode_snapshot(cluster if is_ours else "another", [led_by("a", key=key)]))
        directory = TopicDirectory(reader)
        locations = Locations(directory)
        file = LocationFile(path, kafka, directory, locations)
        entry = locations.cache.entry(key)
        assert entry is not None
        assert (entry.location.leader, entry.origin) == (at("a"), Origin.SNAPSHOT)
        with capture_logs() as logged, file:  # whose end is that of its thread
            eventually(lambda: file._cluster == cluster, what="the cluster's id")
        locations.follow()
        assert (locations.cache.entry(key) is not None) == is_ours
        assert [each["event"] for each in logged] == (
            [] if is_ours else ["location file of another installation is ignored"]
        )


class Told:
    """What was read of the topic."""

    change = 0

    def __init__(self, told: list[Location]) -> None:
        self._told = told

    def changed(self, _: int) -> tuple[int, list[Location]]:
        return 0, self._told


def file_of(path: Path, told: list[Location]) -> LocationFile:
    """Of a front that has been told these, and has learnt already whose file it is."""
    directory = cast("Any", Told(told))
    file = LocationFile(path, KafkaCluster("127.0.0.1:1"), directory, Locations(directory))
    file._cluster = "k"
    return file


def test_a_file_is_not_replaced_by_nothing(tmp_path: Path) -> None:
    """A front that is stopped before it has read the topic would else leave the next one without any location."""
    path = tmp_path / "locations"
    path.write_bytes(encode_snapshot("k", LOCATIONS))
    told: list[Location] = []
    file = file_of(path, told)
    file._save()
    assert read_snapshot(path) == Snapshot("k", LOCATIONS)
    told.append(LOCATIONS[0])
    file._save()
    assert read_snapshot(path) == Snapshot("k", told)


def test_a_file_is_written_a_last_time_when_its_front_stops(tmp_path: Path) -> None:
    """A rolling restart takes less than the time between two writes: the next one would know nothing of it."""
    path = tmp_path / "locations"
    with file_of(path, LOCATIONS):
        assert not path.exists()
    assert read_snapshot(path) == Snapshot("k", LOCATIONS)


@pytest.mark.parametrize(("kept_of", "is_kept"), [("k", True), ("", True), ("another", False)])
def test_a_file_of_another_installation_is_given_up_once_that_is_known(
    kept_of: str, is_kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While Kafka does not answer it is told. One that was written before anybody knew may be ours."""
    path = tmp_path / "locations"
    path.write_bytes(encode_snapshot(kept_of, LOCATIONS))
    answers: list[Topic] = []

    def describe(*_: object) -> Topic:
        if not answers:
            raise KafkaUnreachable("away")
        return answers[0]

    monkeypatch.setattr("serving.locations.file.describe_topic", describe)
    file = file_of(path, LOCATIONS)
    file._cluster = ""
    for cluster, count in (("", len(LOCATIONS)), ("k", len(LOCATIONS) if is_kept else 0)):
        file._learn_cluster()
        file._locations.follow()
        assert (file._cluster, len(file._locations.cache)) == (cluster, count)
        answers.append(Topic("t", "k", 1))
