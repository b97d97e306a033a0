"""What a run does around its folds: what it refuses, removes, asks again and compares, without Spark or Kafka."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from consumers.owner.protocol import CheckpointPlace, OwnerError
from consumers.store.errors import StoreError
from spark_jobs import verify
from spark_jobs.beginning import check_beginnings
from spark_jobs.engine.executors import check_shared
from spark_jobs.offsets import OffsetsError, Range, TopicBounds
from spark_jobs.output import REPORT_NAME, Begun, RebuildError
from spark_jobs.rebuild import Prepared, RebuildRequest, _check_stores, prepare, rebuild
from spark_jobs.source.datasource import ChangeStream, TableSource
from spark_jobs.source.reading import Plan
from spark_jobs.streaming import Micro
from stream.kafka.connection import KafkaCluster
from tests.spark_jobs.test_driver_steps import session_of
from tests.spark_jobs.test_partition import task
from tests.spark_jobs.topics import history, in_arrow
from tokens.errors import FreshetError

KAFKA = KafkaCluster("127.0.0.1:1")
TWO = Range("t", "t1", {0: 0, 1: 0}, {0: 3, 1: 0}, {0: 9, 1: 5})
WHOLE: list[bytes | None] = history()


@pytest.mark.parametrize(
    ("low", "begin", "messages", "gone"),
    [
        (7, 7, WHOLE[1:], "the beginning of shop/0"),
        (7, 7, [], "everything"),
        (7, 7, WHOLE, ""),
        (0, 0, WHOLE[1:], ""),
        (7, 9, WHOLE[1:], ""),
    ],
)
def test_a_partition_that_is_cut_is_read_for_its_beginning_unless_a_base_has_it(
    low: int, begin: int, messages: Sequence[bytes | None], gone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lacks it is told before a JVM is started and all is folded in vain."""
    read = [SimpleNamespace(value=lambda each=each: each) for each in messages]
    monkeypatch.setattr("spark_jobs.beginning.read_range", lambda *_: iter(read))
    chosen = Range("t", "t1", {0: low}, {0: begin}, {0: begin + len(messages)})
    if not gone:
        check_beginnings(KAFKA, chosen)
        return
    with pytest.raises(RebuildError, match=f"{gone} is gone") as refused:
        check_beginnings(KAFKA, chosen)
    assert refused.value.code == "history_incomplete"


@pytest.mark.parametrize("begins", [None, {0: 5, 1: 0}, {0: 5}])
def test_partitions_that_begin_with_the_topic_need_not_be_named(
    begins: dict[int, int] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of the live state some began later, after retention had passed them; the others where the topic does."""
    bounds = TopicBounds("t", "t1", {0: 0, 1: 2}, {0: 9, 1: 9})
    monkeypatch.setattr("spark_jobs.rebuild.topic_bounds", lambda *_: bounds)
    found = prepare(RebuildRequest("shop", KAFKA, tmp_path / "out", begins=begins))
    assert found.chosen.start == {0: 5 if begins else 0, 1: 2}
    assert found.begun.begins == ({0: 5} if begins else {})


def test_a_run_that_fails_leaves_no_report_of_the_one_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A report says that the stores are whole; they are amid a fold then."""
    target = tmp_path / "out"
    target.mkdir()
    (target / REPORT_NAME).touch()

    def fails(*_: object) -> None:
        raise RebuildError("a task failed")

    monkeypatch.setattr("spark_jobs.rebuild.prepare", lambda _: Prepared(TWO, Begun("shop", "t1"), {}, True))
    monkeypatch.setattr("spark_jobs.rebuild.check_executors", lambda _: None)
    monkeypatch.setattr("spark_jobs.rebuild._fold", fails)
    with pytest.raises(RebuildError, match="a task failed"):
        rebuild(None, RebuildRequest("shop", KAFKA, target))
    assert not (target / REPORT_NAME).exists()


@pytest.mark.parametrize(
    ("partitions", "more", "code"), [(1, 0, ""), (2, 0, "wrong_partition_count"), (1, 1, "target_not_shared")]
)
def test_stores_of_another_layout_or_place_are_no_success(
    partitions: int, more: int, code: str, tmp_path: Path
) -> None:
    """An owner would look for their keys in other partitions; and a store that is behind is another machine's."""
    messages = history(partitions=partitions)
    with task(tmp_path).open(0) as fold:
        fold.fold(*in_arrow(range(len(messages)), messages))
        end = fold.finish().offset
    chosen = Range("t", "t1", {0: 0}, {0: 0}, {0: end})
    if not code:
        _check_stores(tmp_path, "shop", chosen, {0: end})
        return
    with pytest.raises((StoreError, RebuildError)) as refused:
        _check_stores(tmp_path, "shop", chosen, {0: end + more})
    assert isinstance(refused.value, FreshetError)
    assert refused.value.code == code


def test_a_query_is_at_its_end_once_it_has_read_to_each_partitions(tmp_path: Path) -> None:
    """As Spark tells it: a partition that it says nothing of is where it was; control records count too."""
    micro = Micro(KAFKA, TWO, tmp_path, lambda *_: None)
    assert (micro.reached(), micro._is_at_end()) == (TWO.start, False)
    for told, reached, is_at_end in (
        ('{"t": {"0": 9}}', {0: 9, 1: 0}, False),
        ('{"t": {"0": 9, "1": 6}, "other": {"0": 1}}', {0: 9, 1: 6}, True),
        ("", TWO.start, False),
    ):
        query: Any = SimpleNamespace(lastProgress=SimpleNamespace(sources=[SimpleNamespace(endOffset=told)]))
        micro._query = query
        assert (micro.reached(), micro._is_at_end()) == (reached, is_at_end)


@pytest.mark.parametrize(
    ("master", "is_asked"), [("local", False), ("local[4]", False), ("local-cluster[2,1,1024]", True), ("yarn", True)]
)
def test_executors_of_their_own_are_asked_whether_they_see_the_directory(
    master: str, is_asked: bool, tmp_path: Path
) -> None:
    """Only threads of the driver surely do. The mark that they look for is removed, whatever they say."""
    session = session_of("worker-1")
    session.sparkContext.master = master
    if is_asked:
        with pytest.raises(RebuildError, match="worker-1 does not see") as refused:
            check_shared(session, tmp_path)
        assert refused.value.code == "target_not_shared"
    else:
        check_shared(session, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("code", "left_s", "asks"), [("too_busy", 10, 3), ("too_busy", -1, 1), ("bad_token", 10, 1)])
def test_an_owner_that_puts_a_checkpoint_off_is_asked_again_for_a_while(
    code: str, left_s: float, asks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its dead letters come first. Whatever else it says is told at once, and so is that it stays busy."""
    place = CheckpointPlace(0, "there", 9)

    class Owner:
        asked = 0

        def checkpoint(self, _: str, partition: int) -> list[CheckpointPlace]:
            assert partition == 0
            self.asked += 1
            assert self.asked <= asks, "it was asked too often"
            if self.asked < 3:
                raise OwnerError("not now", code=code)
            return [place]

    owner: Any = Owner()
    monkeypatch.setattr(verify, "BUSY_S", left_s)
    monkeypatch.setattr(verify, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: None))
    if asks == 3:
        assert verify._checkpoint(owner, "shop", 0) == [place]
    else:
        with pytest.raises(OwnerError) as refused:
            verify._checkpoint(owner, "shop", 0)
        assert refused.value.code == code
    assert owner.asked == asks


def test_whoever_needs_the_topics_beginning_is_refused_where_it_is_gone() -> None:
    """A new stream, the rows, and the changes from the start would silently lack what was there."""
    planned = Plan(KAFKA, "shop", "shop.t", "t1", {0: 3}, {0: 0}, {0: 9}, {}, ())
    options = {"keyspace": "shop", "table": "shop.t"}
    for more in ({}, {"changes": "true"}):
        source = type("Bound", (TableSource,), {"kafka": KAFKA, "_planned": planned})({**options, **more})
        with pytest.raises(OffsetsError) as refused:
            source.reader(None)
        assert refused.value.code == "offsets_expired"
    with pytest.raises(OffsetsError) as gone:
        ChangeStream(planned, None).initialOffset()
    assert gone.value.code == "offsets_expired"
