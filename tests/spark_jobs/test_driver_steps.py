"""What the driver of a job decides around Spark: whom it asks, where it goes on, what it names in a commit."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import Found
from consumers.store.manifest import Manifest, write_manifest
from spark_jobs.engine.executors import ExecutorError, check_executors
from spark_jobs.engine.kafka_options import java_settings
from spark_jobs.export import NOTES, STAGED, Commit, ExportRequest, _export_batch
from spark_jobs.exporting.changes import Exported
from spark_jobs.offsets import OffsetsError, Range, TopicBounds, check_topic
from spark_jobs.output import Begun, RebuildError, _locked, exclusive, find_stores
from spark_jobs.rebuild import _reached
from spark_jobs.session import signals_deferred
from spark_jobs.source.cut import AsOf, AsOfError
from spark_jobs.source.datasource import ChangeStream
from spark_jobs.source.origins import newest_snapshots
from spark_jobs.source.reading import Plan
from spark_jobs.streaming import Micro
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic

KAFKA = KafkaCluster("127.0.0.1:1")


def test_retention_may_come_right_to_where_a_run_is_and_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has read may be gone; what it reads next must be there."""
    monkeypatch.setattr("spark_jobs.offsets.describe_topic", lambda *_, **__: Topic("t", "t1", 1))
    monkeypatch.setattr("spark_jobs.offsets.start_offsets", lambda *_: {0: 5})
    chosen = Range("t", "t1", {0: 0}, {0: 0}, {0: 9})
    check_topic(KAFKA, chosen, {0: 5})
    with pytest.raises(OffsetsError) as passed:
        check_topic(KAFKA, chosen, {0: 4})
    assert passed.value.code == "offsets_expired"


def test_a_live_store_beside_a_checkpoint_is_ambiguous(tmp_path: Path) -> None:
    """A live store has no offset that a newer one could be told by."""
    manifest = Manifest("shop", 0, "t1", "")
    for name, each in (("1", manifest), ("2", replace(manifest, offset=20))):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, each)
    with pytest.raises(RebuildError) as refused:
        find_stores(tmp_path)
    assert refused.value.code == "ambiguous_stores"


@pytest.mark.parametrize(("names", "is_one"), [(("1", "2"), True), (("a/1", "b/2"), False), (("1", "1/2"), False)])
def test_only_what_lies_side_by_side_are_checkpoints_of_one_store(
    names: tuple[str, str], is_one: bool, tmp_path: Path
) -> None:
    """What is farther and lies elsewhere is another data set: nobody has said which of them is meant."""
    for offset, name in enumerate(names, 7):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
        write_manifest(tmp_path / name, Manifest("shop", 0, "t1", "", offset=offset))
    if is_one:
        assert find_stores(tmp_path) == {0: tmp_path / names[1]}
        return
    with pytest.raises(RebuildError) as refused:
        find_stores(tmp_path)
    assert refused.value.code == "ambiguous_stores"


def test_a_lock_that_was_removed_meanwhile_is_none_though_another_run_has_made_it_anew(tmp_path: Path) -> None:
    """Each of the two would lock a file of its own, and both would write."""
    target, path = tmp_path / "out", tmp_path / ".out.lock"
    with path.open("a") as old:
        path.unlink()
        with exclusive(target):
            assert not _locked(old, path, target)


def test_a_store_that_was_not_begun_begins_where_it_was_asked_to(tmp_path: Path) -> None:
    """Also in a run that is gone on with: a store that began elsewhere equals no other one."""
    bounds = TopicBounds("t", "t1", {0: 0, 1: 2}, {0: 9, 1: 9})
    assert _reached(tmp_path, Begun("shop", "t1", begins={0: 5}), bounds) == {0: 5, 1: 2}


def test_a_micro_batch_that_comes_after_the_end_is_not_handled(tmp_path: Path) -> None:
    """The stores may be another run's by then."""
    handled: list[int] = []
    micro = Micro(KAFKA, Range("t", "t1", {0: 0}, {0: 0}, {0: 9}), tmp_path, lambda _, number: handled.append(number))
    micro._handled(None, 1)
    micro._stop()
    micro._handled(None, 2)
    assert handled == [1]


def test_a_commit_names_its_own_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the one before are in their places, where compaction may have taken them away."""
    staged = tmp_path / NOTES / STAGED
    staged.mkdir(parents=True)
    names = [f"{number:016x}.parquet" for number in (1, 2)]
    places = [f"table=a.b/day=2026-01-02/part-0-{number:020d}-{name}" for number, name in enumerate(names)]
    commit, chosen = Commit("shop", "t1"), Range("t", "t1", {0: 0}, {0: 0}, {0: 9})
    monkeypatch.setattr("spark_jobs.export.check_topic", lambda *_: None)
    for name, place in zip(names, places, strict=True):

        def answered(*_: object, name: str = name, place: str = place) -> dict[int, str]:
            (staged / name).touch()
            return {0: json.dumps({"rows": 1, "files": {name: place}, "state": asdict(Exported(5))})}

        monkeypatch.setattr("spark_jobs.export.answers", answered)
        request = ExportRequest("shop", KAFKA, tmp_path)
        assert _export_batch(None, None, tmp_path, commit, chosen, request) == 1
        assert (commit.files, (tmp_path / place).exists()) == ({name: place}, True)
        (tmp_path / place).unlink()
    assert (commit.number, commit.rows) == (2, 2)


def test_a_micro_batch_of_changes_knows_where_its_shards_were(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a publisher said twice, in two batches, would else be told twice."""
    asked: list[tuple[object, ...]] = []

    def changes(_: Plan, *place: object, low: int | None = None) -> Iterator[Any]:
        asked.append((*place, low))
        return iter(())

    monkeypatch.setattr("spark_jobs.source.datasource.change_batches", changes)
    at = {0: 0}
    stream = ChangeStream(Plan(KAFKA, "shop", "shop.t", "t1", at, at, at, {}, ()), StructType([]))
    assert list(stream.read(InputPartition((0, 3, 10, 12)))) == []
    assert asked == [(0, 10, 12, [], 3)]


@pytest.mark.parametrize("error", [AsOfError("past that moment"), SnapshotError("its bytes differ")])
def test_a_snapshot_that_will_not_do_gives_way_to_an_older_one(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is damaged, or its head past the moment: its manifest does not say how far the source's clock was."""

    class Head:
        def __init__(self, name: str) -> None:
            self.name = name

        def check(self, _: AsOf) -> None:
            if self.name == "new":
                raise error

    found = [(Found(name, None), name) for name in ("new", "old")]
    monkeypatch.setattr("spark_jobs.source.origins._candidates", lambda *_: found)
    monkeypatch.setattr("spark_jobs.source.origins._headed", lambda origin: (origin, Head(origin.found.name)))
    bounds = TopicBounds("t", "t1", {0: 0, 1: 0}, {0: 9, 1: 9})
    [heads] = newest_snapshots("memory://", "shop", bounds, AsOf(seconds=5))
    begun: Any = heads
    assert {partition: head.name for partition, (_, head) in begun.items()} == {0: "old", 1: "old"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_had_to_wait_strikes_at_the_end(number: int) -> None:
    """A command that was told to stop while the JVM started must stop."""
    struck: list[int] = []
    before = signal.signal(number, lambda got, _: struck.append(got))
    try:
        with signals_deferred() as met:
            signal.raise_signal(number)
            assert (struck, [*met]) == ([], [number])
        assert struck == [number]
        with suppress(ValueError), signals_deferred():
            signal.raise_signal(number)
            raise ValueError("a JVM that did not start: a standing audit would go on")
        assert struck == [number, number]
    finally:
        signal.signal(number, before)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """A shell has its jobs in the background ignore Ctrl-C: it is meant for another program."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with signals_deferred() as met:
            signal.raise_signal(signal.SIGINT)
            assert not met
    finally:
        signal.signal(signal.SIGINT, before)


class Query:
    """A streaming query during which Ctrl-C comes; it may have failed by then. It ends by itself after a while."""

    lastProgress = None

    def __init__(self, *, fails: bool) -> None:
        self._fails = fails
        self.polls = 0

    def start(self) -> Self:
        return self

    def awaitTermination(self, _: float) -> bool:
        signal.raise_signal(signal.SIGINT)
        if self._fails:
            raise PySparkException("an executor has no memory left")
        self.polls += 1
        return self.polls == 3

    def stop(self) -> None: ...


def run_micro(query: Query, root: Path, *, follow: bool = False) -> None:
    """Runs a query whose topic has messages that it never reads."""
    chosen = SimpleNamespace(trigger=lambda **_: query)
    messages = SimpleNamespace(
        writeStream=SimpleNamespace(foreachBatch=lambda _: SimpleNamespace(option=lambda *_: chosen))
    )
    Micro(KAFKA, Range("t", "t1", {0: 0}, {0: 0}, {0: 9}), root, lambda *_: None, follow=follow).run(messages)


@pytest.mark.parametrize(
    ("follow", "fails", "is_told"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_an_interrupt_ends_a_query_that_follows_and_hides_no_failure(
    follow: bool, fails: bool, is_told: bool, tmp_path: Path
) -> None:
    """That is its ordinary end, after which all is reported as whole."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt) if is_told else nullcontext():
            run_micro(Query(fails=fails), tmp_path, follow=follow)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize(
    ("handler", "polls"), [(signal.SIG_IGN, 3), (lambda *_: None, 1)], ids=["ignored", "handled in another way"]
)
def test_a_query_that_a_signal_stops_before_its_end_is_no_success(
    handler: Any, polls: int, follow: bool, tmp_path: Path
) -> None:
    """A report of ends that were never reached; one that follows has none. Where it is ignored, nothing stops."""
    query, is_stopped = Query(fails=False), polls == 1
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(RebuildError, match="stopped") if is_stopped and not follow else nullcontext():
            run_micro(query, tmp_path, follow=follow)
    finally:
        signal.signal(signal.SIGINT, before)
    assert query.polls == polls


def session_of(answer: str) -> Any:
    """A Spark session on a cluster, whose executors answer so."""
    answered = SimpleNamespace(collect=lambda: [answer])
    asking = SimpleNamespace(mapPartitions=lambda _: answered)
    context = SimpleNamespace(
        applicationId="a", master="spark://m", pythonExec="python", defaultParallelism=1, parallelize=lambda *_: asking
    )
    return SimpleNamespace(sparkContext=context)


def test_executors_that_lack_something_are_refused_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only those that lack nothing are asked once: the next job of the session is told, too."""
    monkeypatch.setattr("spark_jobs.engine.executors._fit", set())
    for _ in range(2):
        with pytest.raises(ExecutorError, match="lacks numpy"):
            check_executors(session_of("it lacks numpy"))
    check_executors(session_of(""))
    check_executors(session_of("nobody asks any more"))


def test_a_mechanism_in_small_letters_has_its_own_login_module() -> None:
    """librdkafka takes it so; with the module of another one the broker would refuse each login."""
    credentials = {"sasl.mechanisms": "scram-sha-512", "sasl.username": "u", "sasl.password": "p"}
    assert ".scram.ScramLoginModule " in java_settings(credentials)["sasl.jaas.config"]


def test_a_user_without_a_mechanism_is_asked_for_as_librdkafka_does() -> None:
    """PLAIN is what is meant; the Java client's own default is Kerberos, by which nobody would be let in."""
    found = java_settings({"sasl.username": "u", "sasl.password": "p"})
    assert found["sasl.mechanism"] == "PLAIN"
    assert ".plain.PlainLoginModule " in found["sasl.jaas.config"]
