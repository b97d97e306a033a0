"""Rebuilds from the beginning to the report: what micro-batches, runs and their failures leave to what follows them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import spark_jobs.rebuild
from consumers.store.digest import digest_items
from consumers.store.directory import remove_unless_kept
from spark_jobs.offsets import OffsetsError
from spark_jobs.output import REPORT_NAME, RebuildError, find_stores, read_report
from spark_jobs.rebuild import RebuildRequest, checkpoint_begins, rebuild
from stream.wire.codec import READER_VERSION, NewerWireError
from tests.consumers.histories import marker, start
from tests.spark_jobs.in_memory import CONTROL, JvmDied, TopicInMemory
from tests.spark_jobs.test_streaming import differences
from tests.spark_jobs.topics import items_of, rows

Topics = Callable[[int], TopicInMemory]
SMALL = 14
"""Offsets of a micro-batch: a rebuild of a history takes several."""


def filled_topic(in_memory: Topics, partitions: int = 2) -> TopicInMemory:
    """A topic with a history in each partition, of different lengths, which ends as a transaction does."""
    filled = in_memory(partitions)
    for partition in range(partitions):
        filled.write(partition, [*filled.history(frames=20 - 9 * partition), CONTROL])
    return filled


def request_of(filled: TopicInMemory, target: Path, **more: Any) -> RebuildRequest:
    """A rebuild in small micro-batches."""
    return replace(RebuildRequest(filled.keyspace, filled.kafka, target, offsets_per_batch=SMALL), **more)


def fails() -> None:
    """An executor ends."""
    raise PySparkException("an executor has no memory left")


def dies() -> None:
    """The virtual machine is killed."""
    raise JvmDied("Answer from Java side is empty")


def nothing() -> None:
    """All goes on."""


def left_beside(target: Path) -> list[str]:
    """What a run leaves in its directory beside the stores and its notes, and what it leaves beside the directory."""
    others = [*target.parent.glob(f".{target.name}*"), *target.glob(".*")]
    return sorted(each.name for each in others)


def test_micro_batches_add_up_to_the_report_of_one(in_memory: Topics, tmp_path: Path) -> None:
    """Its messages and dead letters are those of the run, its digests and offsets those of the stores in the end."""
    filled = filled_topic(in_memory)
    whole = rebuild(filled.session(), request_of(filled, tmp_path / "whole", offsets_per_batch=1_000))
    parts = rebuild(filled.session(), request_of(filled, tmp_path / "parts"))
    one, other = ([replace(each, seconds=0, rows=0) for each in report.partitions] for report in (whole, parts))
    assert one == other
    assert (parts.dead_letters > 3, parts.messages) == (True, sum(filled.ends().values()) - 2)
    assert min(each.rows for each in parts.partitions) > SMALL
    for partition, store in find_stores(tmp_path / "parts").items():
        digest, items = digest_items(items_of(store))
        assert parts.partitions[partition].digest == digest
        assert 0 < parts.partitions[partition].entries < items
    assert read_report(tmp_path / "parts") == parts
    assert differences(filled, tmp_path / "parts", tmp_path / "live") == []
    assert left_beside(tmp_path / "parts") == []


def test_a_directory_may_have_any_name(in_memory: Topics, tmp_path: Path) -> None:
    """A URL has it otherwise, and Spark decodes nothing: its notes would be in another one, that is then left there."""
    filled, target = filled_topic(in_memory), tmp_path / "my 100% data #1 é" / "out"
    target.parent.mkdir()
    rebuild(filled.session(), request_of(filled, target))
    assert differences(filled, target, tmp_path / "live") == []
    assert left_beside(target) == []


def test_a_run_that_failed_is_gone_on_with_and_folds_nothing_twice(in_memory: Topics, tmp_path: Path) -> None:
    """There is no report until all is whole; what was folded stays, and so does what the notes say of the run."""
    filled, target = filled_topic(in_memory), tmp_path / "out"
    with pytest.raises(RebuildError, match="no memory left"):
        rebuild(filled.session([nothing, nothing, fails]), request_of(filled, target))
    assert not (target / REPORT_NAME).exists()
    report = rebuild(filled.session(), request_of(filled, target))
    assert [each.start for each in report.partitions] == [SMALL, SMALL]
    assert report.messages == sum(filled.ends().values()) - 2 - 2 * SMALL
    assert differences(filled, target, tmp_path / "live") == []
    assert left_beside(target) == []
    again = rebuild(filled.session(), request_of(filled, target))
    assert (again.messages, again.ends) == (0, filled.ends())


def test_what_a_task_says_is_told_with_its_own_code(in_memory: Topics, tmp_path: Path) -> None:
    """Spark turns it into a failure of the query: whoever is told that alone looks for it in Spark's log."""
    filled = in_memory(1)
    filled.write(0, [start(), marker(1, reader_version=READER_VERSION + 1)])
    with pytest.raises(RebuildError) as refused:
        rebuild(filled.session(), request_of(filled, tmp_path / "out"))
    assert refused.value.code == NewerWireError.code != RebuildError.code


def test_a_virtual_machine_that_dies_is_told_in_one_line(in_memory: Topics, tmp_path: Path) -> None:
    """A machine without memory ends it: a user is not told of a defect in Freshet, and the next run goes on."""
    filled, target = filled_topic(in_memory), tmp_path / "out"
    for follow in (False, True):
        with pytest.raises(RebuildError, match="Spark failed: its JVM has ended") as refused:
            rebuild(filled.session([nothing, dies]), request_of(filled, target, follow=follow))
        assert refused.value.code == "rebuild_failed"
        assert not (target / REPORT_NAME).exists()
    rebuild(filled.session(), request_of(filled, target))
    assert differences(filled, target, tmp_path / "live") == []


def test_what_is_written_meanwhile_belongs_to_a_run_that_follows(in_memory: Topics, tmp_path: Path) -> None:
    """Until Ctrl-C; its report says where it has ended then. A run that does not follow ends where the topic did."""
    filled, told = filled_topic(in_memory), list[tuple[int, int]]()

    def more() -> None:
        filled.write(0, [rows(9_000, 3), CONTROL, marker(9_002, layout="xxh3_64;partitions=2")])

    first = rebuild(filled.session([more]), request_of(filled, tmp_path / "now"))
    assert first.ends == {each: end - 3 * (each == 0) for each, end in filled.ends().items()}
    following = request_of(filled, tmp_path / "follow", follow=True)
    report = rebuild(filled.session([], [more]), following, progress=lambda *at: told.append(at))
    assert report.ends == {each: end - (each == 1) for each, end in filled.ends().items()}, (
        "control records say nothing"
    )
    assert told[-1] == (report.messages, report.messages)
    for target in ("now", "follow"):
        assert differences(filled, tmp_path / target, tmp_path / f"live-{target}") == []


@pytest.mark.parametrize("happening", ["create_again", "add_partitions"])
def test_what_was_folded_of_another_topic_is_no_rebuild(happening: str, in_memory: Topics, tmp_path: Path) -> None:
    """Spark reads on under the name; so the driver asks after each micro-batch, the last one too."""
    filled = filled_topic(in_memory)
    happen = {"create_again": filled.create_again, "add_partitions": lambda: filled.add_partitions(3)}[happening]
    with pytest.raises(OffsetsError) as refused:
        rebuild(filled.session([happen]), request_of(filled, tmp_path / "out", offsets_per_batch=1_000))
    assert refused.value.code == {"create_again": "topic_changed", "add_partitions": "wrong_partition_count"}[happening]
    assert not (tmp_path / "out" / REPORT_NAME).exists()


def test_retention_that_passes_a_run_is_told_as_such(in_memory: Topics, tmp_path: Path) -> None:
    """And not in Spark's words. What was read already may be gone."""
    filled = filled_topic(in_memory, 1)
    with pytest.raises(OffsetsError) as passed:
        rebuild(
            filled.session([nothing, lambda: filled.delete_before(0, 2 * SMALL + 1)]),
            request_of(filled, tmp_path / "out"),
        )
    assert passed.value.code == "offsets_expired"
    filled.delete_before(0, 2 * SMALL)
    rebuild(filled.session(), request_of(filled, tmp_path / "out"))
    filled.delete_before(0, 0)
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []


@pytest.mark.parametrize("digests", [True, False])
def test_a_topic_that_is_cut_is_rebuilt_from_the_beginning_of_an_epoch(
    digests: bool, in_memory: Topics, tmp_path: Path
) -> None:
    """Its stores begin anew behind what is gone; where the epoch's beginning is gone, there is no report."""
    filled = in_memory(1)
    filled.write(0, [b"gone"] * 5 + filled.history())
    filled.delete_before(0, 5)
    report = rebuild(filled.session(), request_of(filled, tmp_path / "out", digests=digests))
    assert (report.partitions[0].start, report.ends) == (5, filled.ends())
    filled.delete_before(0, 6)
    with pytest.raises(RebuildError) as refused:
        rebuild(filled.session(), request_of(filled, tmp_path / "late", digests=digests))
    assert refused.value.code == "history_incomplete"
    assert not (tmp_path / "late" / REPORT_NAME).exists()


def test_a_state_that_began_later_is_folded_from_there_in_any_run(in_memory: Topics, tmp_path: Path) -> None:
    """As a live store that retention had passed: also where the run is gone on with, and where nothing came since."""
    filled = in_memory(2)
    filled.write(0, [*filled.history()[:9], start(epoch=2), marker(1, epoch=2, layout="xxh3_64;partitions=2")])
    filled.write(1, [b"gone"] * 4)
    filled.delete_before(1, 4)
    begins = {0: 9, 1: 4}
    request = request_of(filled, tmp_path / "out", begins=begins)
    with pytest.raises(RebuildError):
        rebuild(filled.session([fails]), request)
    report = rebuild(filled.session(), request)
    assert [(each.start, each.offset) for each in report.partitions] == [(9, 11), (4, 4)]
    assert checkpoint_begins(find_stores(tmp_path / "out")) == begins


def contents(root: Path) -> dict[Path, bytes]:
    """All files below a directory."""
    return {each: each.read_bytes() for each in sorted(root.rglob("*")) if each.is_file()}


def test_a_base_stays_as_it_is(in_memory: Topics, tmp_path: Path) -> None:
    """Its stores are copied, and only what never changes is shared; the run goes on with them, from there alone."""
    filled, base = filled_topic(in_memory), tmp_path / "base"
    rebuild(filled.session(), request_of(filled, base, ends={0: 20, 1: 10}))
    before = contents(base)
    request = request_of(filled, tmp_path / "out", base=base)
    with pytest.raises(RebuildError):
        rebuild(filled.session([nothing, fails]), request)
    report = rebuild(filled.session(), request)
    assert report.partitions[0].start > 20
    assert contents(base) == before
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []
    with pytest.raises(RebuildError, match="begun from base") as refused:
        rebuild(filled.session(), replace(request, base=None))
    assert refused.value.code == "state_missing"


def test_stores_that_could_not_be_copied_leave_nothing(
    in_memory: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a directory that a later run would take for begun, nor half of a large copy beside it."""
    filled = filled_topic(in_memory)
    rebuild(filled.session(), request_of(filled, tmp_path / "base", ends={0: 20, 1: 10}))

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("spark_jobs.rebuild._link", full)
    with pytest.raises(RebuildError, match="no space left"):
        rebuild(filled.session(), request_of(filled, tmp_path / "out", base=tmp_path / "base"))
    assert sorted(each.name for each in tmp_path.iterdir()) == ["base"]


def test_a_base_that_finds_no_space_ends_the_rebuild_as_a_task_would(
    in_memory: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first file, with that file's error: of the copying's own, which has no number, a bug was told."""
    filled = filled_topic(in_memory)
    rebuild(filled.session(), request_of(filled, tmp_path / "base"))
    tried: list[str] = []

    def full(_: str, target: str) -> None:
        tried.append(target)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    monkeypatch.setattr("spark_jobs.rebuild.shutil.copy2", full)
    with pytest.raises(RebuildError, match="no space left") as refused:
        rebuild(filled.session(), request_of(filled, tmp_path / "out", base=tmp_path / "base"))
    assert (refused.value.code, len(tried)) == ("disk_full", 1)
    assert "consumer" not in refused.value.hint
    assert [each.name for each in tmp_path.iterdir()] == ["base"]


def test_a_base_is_kept_while_it_is_copied(in_memory: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner makes others meanwhile, and removes the old ones."""
    filled = filled_topic(in_memory)
    rebuild(filled.session(), request_of(filled, tmp_path / "base"))
    stores, copy, removed = find_stores(tmp_path / "base"), spark_jobs.rebuild._copy_stores, list[bool]()

    def noted(*given: Any) -> None:
        removed.extend(map(remove_unless_kept, stores.values()))
        copy(*given)

    monkeypatch.setattr("spark_jobs.rebuild._copy_stores", noted)
    rebuild(filled.session(), request_of(filled, tmp_path / "out", base=tmp_path / "base"))
    assert removed == [False, False]
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []
