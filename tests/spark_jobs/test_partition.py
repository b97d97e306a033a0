"""The task's fold without Spark gives the live store's state for any batching and spilling."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from consumers.fold.state import is_head_key
from consumers.store.errors import RebuildNeededError
from consumers.store.manifest import INDEXED_VERSION, Manifest, read_manifest, write_manifest
from consumers.store.rocks.database import Rocks
from consumers.store.store import PartitionStore, partition_directory
from spark_jobs.output import STATE_NAME, Begun, RebuildError, _locked, exclusive, find_stores, read_begun, staged
from spark_jobs.partition import BEGUN_NAME, FoldTask, complete_task, run_task
from spark_jobs.verify import verify_stores
from tests.consumers.histories import SHARD, marker, start
from tests.consumers.store.test_dropping import MANY, WHOLE, deleted, held, open_at
from tests.consumers.store.test_dropping import fold as fold_live
from tests.docs.naming import ROOT
from tests.patience import PATIENCE_S
from tests.spark_jobs.topics import Items, history, in_arrow, items_of, rows
from tests.upgrades.next_version import announcements
from tests.upgrades.next_version import topic as newer


def task(root: Path, spill_rows: int = 1_000_000, low: int = 0, **more: Any) -> FoldTask:
    """A task for partition 0 of a topic with id ``t1``."""
    return FoldTask("shop", "t1", str(root), {0: low}, {0: low}, spill_rows, **more)


def test_a_task_stops_before_the_end_that_was_asked_for(tmp_path: Path) -> None:
    """What lies beyond a named end is left out, also within a batch of Spark's."""
    messages = history()
    with task(tmp_path / "out", end={0: 23}).open(0) as fold:
        fold.fold(*in_arrow(range(20), messages[:20]))
        fold.fold(*in_arrow(range(20, len(messages)), messages[20:]))
        assert fold.finish().offset == 23
    with task(tmp_path / "out", end={0: 23}).open(0) as fold:
        fold.fold(*in_arrow(range(23, len(messages)), messages[23:]))
        assert fold.finish().messages == 0
    assert items_of(partition_directory(tmp_path / "out", "shop", 0)) == live_items(tmp_path / "live", messages[:23])


def test_a_task_waits_for_one_whose_process_lives_on(tmp_path: Path) -> None:
    """A killed driver's task may have the store open for a moment when the next run opens it."""
    first = task(tmp_path).open(0)
    timer = threading.Timer(0.3, first.__exit__)
    timer.start()
    with task(tmp_path).open(0) as second:
        assert not timer.is_alive() or timer.finished.is_set()
        assert second.finish().messages == 0


FULL = """
import json, os, resource, sys
from pathlib import Path
import pyarrow as pa
from spark_jobs.export import ExportTask, run_export
from spark_jobs.exporting.changes import Exported
from spark_jobs.partition import FoldTask, run_task
from stream.wire.events import VALUE
from tests.consumers.histories import start, value

messages = [start(), *(value(n, b'{"n":"%s"}' % os.urandom(5_000).hex().encode(), n) for n in range(2, 200))]
columns = [pa.array([0] * 199, pa.int32()), pa.array(range(199), pa.int64()), pa.array(messages, pa.binary())]
batch = pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "value"])
root = Path(sys.argv[1])
(root / "staged").mkdir()
(root / "fold").mkdir()
(root / "fold" / "streaming.json").touch()
fold = FoldTask("shop", "t1", str(root / "fold"), {0: 0}, {0: 0})
export = ExportTask(str(root / "staged"), {0: Exported(0)}, {0: 199})

def tell(batches):
    [answer] = batches
    [error], [summary] = answer.column("error").to_pylist(), answer.column("summary").to_pylist()
    print(json.dumps(json.loads(error) if error else {"code": "", "there": bool(summary)}))

resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
tell(run_task(fold, iter([batch])))
tell(run_export(export, iter([batch])))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
tell(run_task(fold, iter([batch])))
"""
"""A fold and an export into a place that takes no large file, as a full one; and the fold again when it does."""


def test_no_space_at_the_target_is_told_and_the_task_goes_on_later(tmp_path: Path) -> None:
    """One line with a way out instead of a worker's traceback; nothing half-written is taken for folded."""
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    fold, export, again = map(json.loads, done.stdout.splitlines())
    for error in (fold, export):
        assert error["code"] == "disk_full", done.stdout + done.stderr
        assert "no space left" in error["message"]
        assert "(--to; for verify TMPDIR); run it again" in error["hint"]
    assert again == {"code": "", "there": True}


def live_items(directory: Path, messages: list[bytes | None]) -> Items:
    """The state that the live consumer's store has after ``messages``."""
    store = PartitionStore.open(directory, keyspace="shop", partition=0, topic_id="t1")
    store.fold(list(enumerate(messages)))
    store.close()
    return items_of(store.directory)


@pytest.mark.parametrize(("batch", "spill_rows"), [(1, 1_000_000), (7, 3), (1000, 1), (1000, 25)])
def test_any_batching_and_spilling_folds_to_the_live_state(tmp_path: Path, batch: int, spill_rows: int) -> None:
    """The state does not depend on batches and spilled files."""
    messages = history()
    with task(tmp_path / "out", spill_rows).open(0) as fold:
        for at in range(0, len(messages), batch):
            chunk = messages[at : at + batch]
            fold.fold(*in_arrow(range(at, at + len(chunk)), chunk))
        summary = fold.finish()
    found = items_of(partition_directory(tmp_path / "out", "shop", 0))
    assert found == live_items(tmp_path / "live", messages)
    assert summary.offset == len(messages)
    assert summary.entries == sum(not is_head_key(key) for key, _ in found)
    assert summary.dead_letters > 0


def test_the_output_is_a_store_that_the_owner_can_continue(tmp_path: Path) -> None:
    """A rebuild that replaces the live store is opened and continued from its offset."""
    messages = history(frames=12)
    with task(tmp_path).open(0) as fold:
        fold.fold(*in_arrow(range(20), messages[:20]))
        fold.finish()
    manifest = read_manifest(partition_directory(tmp_path, "shop", 0))
    assert manifest is not None
    assert (manifest.offset, manifest.keyspace, manifest.topic_id) == (20, "shop", "t1")
    assert live_items(tmp_path, messages) == live_items(tmp_path / "live", messages)


def test_messages_that_were_folded_before_are_skipped(tmp_path: Path) -> None:
    """A micro-batch that Spark runs again changes nothing."""
    messages = history()
    with task(tmp_path / "out").open(0) as fold:
        fold.fold(*in_arrow(range(30), messages[:30]))
        fold.finish()
    with task(tmp_path / "out").open(0) as fold:
        fold.fold(*in_arrow(range(10, len(messages)), messages[10:]))
        summary = fold.finish()
    assert summary.messages == len(messages) - 30
    assert items_of(partition_directory(tmp_path / "out", "shop", 0)) == live_items(tmp_path / "live", messages)


def test_deletions_behind_a_base_are_dropped_by_the_owner(tmp_path: Path) -> None:
    """The base says that its tables were swept: what a rebuild adds to it was not."""
    with closing(open_at(tmp_path / "live")) as store:
        fold_live(store, *WHOLE)
        store.commit()
        store.manifest = replace(store.manifest, format_version=INDEXED_VERSION)
        base = store.state.head.offset
        store.checkpoint(tmp_path / "out" / "shop" / "0")
    more = [deleted(1, 2, first=31), marker(32)]
    rebuild = FoldTask("shop", "topic-1", str(tmp_path / "out"), {0: 0}, {0: base})
    with rebuild.open(0) as fold:
        fold.fold(*in_arrow(range(base, base + len(more)), more))
        fold.finish()
    manifest = read_manifest(tmp_path / "out" / "shop" / "0")
    assert manifest is not None
    assert manifest.format_version == INDEXED_VERSION, "what the base has of indexes is still in it"
    with closing(open_at(tmp_path / "out")) as store:
        assert held(store) == set(range(MANY))
        fold_live(store, marker(33))
        store.commit()
        assert held(store) == set(range(MANY)) - {1, 2}


def test_a_partition_without_a_message_since_it_was_cut_compares_as_equal(tmp_path: Path) -> None:
    """Its source has been away for longer than the topic keeps events: nothing is folded, and nothing is damaged."""
    with closing(open_at(tmp_path / "live")) as store:
        store.begin_at(7)
        store.checkpoint(tmp_path / "checkpoint")
        assert store.committed_offset == 7
    with FoldTask("shop", "topic-1", str(tmp_path / "out"), {0: 7}, {0: 7}, begin={0: 7}).open(0) as fold:
        assert fold.finish().offset == 7
    copies = {0: tmp_path / "checkpoint"}, {0: tmp_path / "out" / "shop" / "0"}
    assert verify_stores(*copies).equal


class Killed(BaseException):
    """The task's process ends here."""


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_task_that_is_killed_in_a_spill_is_continued_to_the_live_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, written: bool
) -> None:
    """A spill holds the state at its offset, whole: the next task folds nothing twice, and skips nothing."""
    messages, out, ingest, spills = history(), tmp_path / "out", Rocks.ingest, iter(range(1, 1000))

    def ingest_or_die(rocks: Rocks, entries: Any, scratch: Path, *of_indexes: Any) -> int:
        is_last = next(spills) == number
        size = ingest(rocks, entries, scratch, *of_indexes) if written or not is_last else 0
        if is_last:
            scratch.touch()
            raise Killed
        return size

    with monkeypatch.context() as patched, task(out, 3).open(0) as fold:
        patched.setattr(Rocks, "ingest", ingest_or_die)
        with pytest.raises(Killed):
            fold.fold(*in_arrow(range(len(messages)), messages))
    found = partition_directory(out, "shop", 0)
    with task(out, 3).open(0) as fold:
        begun = fold.state.head.offset
    assert {each.name for each in found.iterdir()} <= {"db", "manifest.json", BEGUN_NAME}
    assert (begun > 0) is (number > 1 or written)
    assert not begun or items_of(found) == live_items(tmp_path / "prefix", messages[:begun])
    with task(out, 3).open(0) as fold:
        fold.fold(*in_arrow(range(len(messages)), messages))
        assert fold.finish().messages == len(messages) - begun
    assert items_of(found) == live_items(tmp_path / "live", messages)


@pytest.mark.parametrize("batches", [[[0, 2, 1]], [[0, 1], [1, 2]], [[3, 4], [0, 1]]])
def test_offsets_that_do_not_rise_stop_the_task(tmp_path: Path, batches: list[list[int]]) -> None:
    """A partition that is split over tasks or read out of order is refused, since its state would differ."""
    messages = history()
    with task(tmp_path).open(0) as fold:
        for offsets in batches[:-1]:
            fold.fold(*in_arrow(offsets, [messages[offset] for offset in offsets]))
        with pytest.raises(RebuildError) as refused:
            fold.fold(*in_arrow(batches[-1], [messages[offset] for offset in batches[-1]]))
    assert refused.value.code == "offsets_not_rising"


def test_a_task_answers_errors_as_data(tmp_path: Path) -> None:
    """An error inside a Spark task comes back with code and hint, not as a traceback."""
    (tmp_path / STATE_NAME).touch()
    assert answered(run_task(task(tmp_path), batches([5, 4], [b"", None])))["code"] == "offsets_not_rising"


def batches(offsets: Sequence[int], values: Sequence[bytes | None]) -> Iterator[pa.RecordBatch]:
    """What Spark gives a task for partition 0."""
    columns = [pa.array([0] * len(offsets), pa.int32()), pa.array(offsets, pa.int64()), pa.array(values, pa.binary())]
    yield pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "value"])


def answered(answers: Iterator[pa.RecordBatch]) -> dict[str, Any]:
    """The summary or the error that a task answers."""
    [answer] = answers
    [summary], [error] = answer.column("summary").to_pylist(), answer.column("error").to_pylist()
    assert (summary is None) != (error is None)
    found: dict[str, Any] = json.loads(error or summary)
    return found


def test_executors_that_do_not_share_the_directory_are_refused(tmp_path: Path) -> None:
    """One that lacks what the driver has begun makes nothing; one whose store is behind folds and completes nothing."""
    messages = history()
    here, there = tmp_path / "driver" / "out", tmp_path / "executor" / "out"
    here.mkdir(parents=True)
    (here / STATE_NAME).touch()
    refused = answered(run_task(task(there), batches(range(20), messages[:20])))
    assert refused["code"] == "target_not_shared"
    assert "TMPDIR for verify" in refused["hint"]
    assert not there.exists()
    assert answered(run_task(task(here), batches(range(20), messages[:20])))["offset"] == 20
    there.mkdir(parents=True)
    (there / STATE_NAME).touch()  # of an earlier run, whose driver was there
    assert answered(run_task(task(there), batches(range(10), messages[:10])))["offset"] == 10
    reached = {0: 20}
    later = run_task(task(there, reached=reached), batches(range(20, 30), messages[20:30]))
    whole = complete_task(task(there, reached=reached), iter([pa.RecordBatch.from_pydict({"id": [0]})]))
    for answer in (later, whole):
        error = answered(answer)
        assert error["code"] == "target_not_shared"
        assert "is at offset 10 on" in error["message"]
    assert answered(run_task(task(here, reached=reached), batches(range(20, 30), messages[20:30])))["offset"] == 30


def test_a_store_of_another_topic_is_not_continued(tmp_path: Path) -> None:
    """A topic that was created anew under the same name is another history."""
    with task(tmp_path).open(0) as fold:
        fold.finish()
    with pytest.raises(RebuildNeededError) as refused:
        FoldTask("shop", "t2", str(tmp_path), {0: 0}, {0: 0}).open(0)
    assert refused.value.code == "topic_changed"


def test_a_cut_history_is_refused_unless_the_epochs_start_is_inside(tmp_path: Path) -> None:
    """Without its beginning a state may lack keys, unless an EpochStart voids all that was before."""
    messages = history()
    with task(tmp_path / "cut", low=1).open(0) as fold:
        fold.fold(*in_arrow(range(1, len(messages)), messages[1:]))
        with pytest.raises(RebuildError) as refused:
            fold.finish()
    assert refused.value.code == "history_incomplete"
    with task(tmp_path / "cut", low=1).open(0) as fold, pytest.raises(RebuildError) as again:
        fold.finish()
    assert again.value.code == "history_incomplete", "also when it goes on with what is durable"
    with task(tmp_path / "whole", low=7).open(0) as fold:
        fold.fold(*in_arrow(range(7, 7 + len(messages)), messages))
        assert fold.finish().offset == 7 + len(messages)


def test_the_epochs_start_of_a_cut_history_is_remembered_from_one_task_to_the_next(tmp_path: Path) -> None:
    """Micro-batches and killed tasks do not matter for what counts as whole."""
    messages = history()
    for at in (0, 20):
        with task(tmp_path, 3, low=7).open(0) as fold:
            fold.fold(*in_arrow(range(7, 27 + at), messages[: 20 + at]))
            fold.finish(complete=False)
    with task(tmp_path, low=7).open(0) as fold:
        assert fold.finish().offset == 47
    assert not (partition_directory(tmp_path, "shop", 0) / BEGUN_NAME).exists()


def test_an_epochs_start_that_was_noted_and_not_folded_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task was killed before its first spill was durable, and retention has passed what it had noted."""
    messages = history()

    def die(*_: Any) -> int:
        raise Killed

    with monkeypatch.context() as patched, task(tmp_path, low=7).open(0) as fold:
        patched.setattr(Rocks, "ingest", die)
        fold.fold(*in_arrow(range(7, 27), messages[:20]))
        with pytest.raises(Killed):
            fold.commit()
    assert (partition_directory(tmp_path, "shop", 0) / BEGUN_NAME).exists()
    with task(tmp_path, low=17).open(0) as fold:
        fold.fold(*in_arrow(range(17, 7 + len(messages)), messages[10:]))
        with pytest.raises(RebuildError) as refused:
            fold.finish()
    assert refused.value.code == "history_incomplete"


def test_the_epochs_start_that_a_newer_publisher_wrote_counts_too(tmp_path: Path) -> None:
    """A task reads it by what the messages before it announce, or by what an earlier task has folded of that."""
    said = announcements(SHARD)
    begun = newer([start(), rows(2, 5), marker(6)], SHARD)
    with task(tmp_path / "whole", low=7).open(0) as fold:
        fold.fold(*in_arrow(range(7, 7 + len(said)), said))
        fold.finish(complete=False)
    end = 7 + len(said) + len(begun)
    with task(tmp_path / "whole", low=7).open(0) as fold:
        fold.fold(*in_arrow(range(7 + len(said), end), begun))
        assert fold.finish().offset == end
    messages = [*said, *newer([rows(2, 5), marker(6)], SHARD)]
    with task(tmp_path / "cut", low=7).open(0) as fold:
        fold.fold(*in_arrow(range(7, 7 + len(messages)), messages))
        with pytest.raises(RebuildError) as refused:
            fold.finish()
    assert refused.value.code == "history_incomplete"


def test_a_partition_with_nothing_left_in_it_is_refused(tmp_path: Path) -> None:
    """If retention removed everything the state is unknown, not empty."""
    with task(tmp_path, low=7).open(0) as fold, pytest.raises(RebuildError) as refused:
        fold.finish()
    assert refused.value.code == "history_incomplete"


def test_a_lock_is_removed_and_one_that_was_removed_meanwhile_locks_nobody_out(tmp_path: Path) -> None:
    """A rebuild leaves nothing beside its output, and two never write at once."""
    target = tmp_path / "out"
    with exclusive(target):
        with pytest.raises(RebuildError) as busy, exclusive(target):
            raise AssertionError("two runs at once")
        assert busy.value.code == "target_busy"
    assert list(tmp_path.iterdir()) == []
    with (tmp_path / ".out.lock").open("a") as old:
        (tmp_path / ".out.lock").unlink()
        assert not _locked(old, tmp_path / ".out.lock", target)


def test_a_directory_of_two_names_is_one_target(tmp_path: Path) -> None:
    """A link to it is locked with it, and an empty one behind a link is filled in its place."""
    target, link = tmp_path / "out", tmp_path / "elsewhere" / "link"
    target.mkdir()
    link.parent.mkdir()
    link.symlink_to(target)
    with exclusive(target):
        with pytest.raises(RebuildError) as busy, exclusive(link):
            raise AssertionError("two runs at once")
        assert busy.value.code == "target_busy"
    begun = Begun("shop", "t1")
    with exclusive(link), staged(link, begun) as staging:
        (staging / "shop").mkdir()
    assert link.is_symlink()
    assert read_begun(target) == begun
    assert {each.name for each in tmp_path.iterdir()} == {"out", "elsewhere"}


def test_a_live_store_is_no_older_checkpoint(tmp_path: Path) -> None:
    """Of an owner's checkpoints the newest counts. A store that names no offset is none, and is not passed over."""
    for name, offset in (("1", 7), ("2", 9)):
        (tmp_path / name).mkdir()
        write_manifest(tmp_path / name, Manifest("shop", 0, "t1", "", offset=offset))
    assert find_stores(tmp_path) == {0: tmp_path / "2"}
    write_manifest(tmp_path / "1", Manifest("shop", 0, "t1", ""))
    with pytest.raises(RebuildError) as refused:
        find_stores(tmp_path)
    assert refused.value.code == "ambiguous_stores"
