"""Exports from the beginning to the end: what commits, runs and their failures leave to what follows them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

import spark_jobs.export
from spark_jobs.export import (
    NOTES,
    STAGED,
    Commit,
    ExportError,
    ExportRequest,
    _write_commit,
    export,
    prepare,
    read_commit,
)
from spark_jobs.exporting.changes import Changes, Exported
from spark_jobs.offsets import OffsetsError
from spark_jobs.output import RebuildError
from stream.wire.events import VALUE
from tests.consumers.histories import frame, key, marker, of_tomorrow, start
from tests.spark_jobs.in_memory import CONTROL, TopicInMemory
from tests.spark_jobs.test_export import description, exported, rows_in
from tests.spark_jobs.topics import history, rows

Topics = Callable[[int], TopicInMemory]
SMALL = 20
"""Offsets of a commit: an export of two histories takes several."""


def request_of(filled: TopicInMemory, target: Path, **more: Any) -> ExportRequest:
    """An export in small commits."""
    return replace(ExportRequest(filled.keyspace, filled.kafka, target, offsets_per_commit=SMALL), **more)


def wanted(of_partitions: Sequence[Sequence[bytes | None]], scratch: Path) -> list[dict[str, Any]]:
    """What one task each writes of the partitions' messages."""
    found = []
    for number, messages in enumerate(of_partitions):
        found += [row | {"_partition": number} for row in exported(messages, scratch / str(number))]
    return found


def fails() -> None:
    """An executor ends."""
    raise PySparkException("an executor has no memory left")


def nothing() -> None:
    """All goes on."""


def test_commits_and_runs_add_up_to_each_change_once(in_memory: Topics, tmp_path: Path) -> None:
    """To a named end amid the topic, on after a failure, and to its end, which is no message's; then nothing is new."""
    filled, target = in_memory(2), tmp_path / "out"
    messages = [[*history(), description(9_000)], history(frames=9)]
    for number, each in enumerate(messages):
        filled.write(number, [*each, CONTROL, CONTROL])
    named = {0: 11, 1: 4}
    first = export(filled.session(), request_of(filled, target, ends=named))
    assert (first.ends, first.rows) == (named, len(rows_in(target)))
    assert {row["_partition"]: row["_offset"] for row in rows_in(target)} == {0: 10, 1: 2}
    with pytest.raises(RebuildError, match="no memory left"):
        export(filled.session([nothing, fails]), request_of(filled, target))
    kept = len(rows_in(target))
    rest = export(filled.session(), request_of(filled, target))
    found = rows_in(target)
    assert found == wanted(messages, tmp_path / "one")
    assert (rest.ends, rest.rows, rest.total) == (filled.ends(), len(found) - kept, len(found))
    assert (rest.commits > 1, rest.files > rest.commits) == (True, True)
    again = export(filled.session(), request_of(filled, target))
    assert (again.rows, again.files, again.commits, again.total) == (0, 0, 0, len(found))
    assert {each.name for each in (target / NOTES).iterdir()} == {STAGED, "commit.json"}
    assert list((target / NOTES / STAGED).iterdir()) == []


def test_what_is_written_meanwhile_is_exported_by_a_run_that_follows(
    in_memory: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until Ctrl-C, however far behind it its start lies. Its days have few files once in a while, and at its end."""
    monkeypatch.setattr(spark_jobs.export, "COMMITS_UNCOMPACTED", 5)
    filled, files = in_memory(1), list[int]()
    written: list[bytes | None] = [start(), description(2, {"n": "int"})]
    filled.write(0, written)

    def more() -> None:
        files.append(len([*(tmp_path / "out").glob("table=shop.items/day=2023-11-14/*")]))
        late = rows(len(written) * 10, 3)
        written.append(late)
        filled.write(0, [late, CONTROL])

    report = export(filled.session([], [more] * 7), request_of(filled, tmp_path / "out", follow=True))
    found = rows_in(tmp_path / "out")
    assert [row["_ordinal"] for row in found[1:]] == [10 * at + each for at in range(2, 9) for each in range(3)]
    assert (report.rows, report.commits) == (len(found), 8)
    assert files == [0, 1, 2, 3, 1, 2, 3]
    assert len([*(tmp_path / "out").glob("table=shop.items/day=2023-11-14/*")]) == 1
    assert export(filled.session(), request_of(filled, tmp_path / "out")).rows == 0


def test_what_one_run_was_told_the_next_one_knows(in_memory: Topics, tmp_path: Path) -> None:
    """How the table is described, what a newer publisher announced, and how far each shard was."""
    newer, announced = of_tomorrow(frame([(key(1), VALUE, b'{"id":1}', 3)]))
    filled, target = in_memory(1), tmp_path / "out"
    for messages in ([start(), description(2, {"id": "int"}), announced], [newer, newer], [newer]):
        filled.write(0, messages)
        export(filled.session(), request_of(filled, target))
    [row] = rows_in(target)[1:]
    assert (row["_kind"], row["id"], row["_offset"]) == ("value", 1, 3)


@pytest.mark.parametrize("place", ["before", "amid", "after"])
def test_a_run_that_dies_around_a_commit_is_gone_on_with(
    place: str, in_memory: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of no commit are removed, and a commit whose files were not moved yet is finished, by whichever run."""
    filled, target = in_memory(1), tmp_path / "out"
    filled.write(0, history())
    name = "finish_commit" if place == "after" else "_write_commit"
    real, calls = getattr(spark_jobs.export, name), iter(range(100))

    def dies(root: Path, commit: Commit) -> None:
        is_last = next(calls) == (2 if place == "after" else 1)  # a run begins with the commit of the one before
        if place != "before" or not is_last:
            real(root, commit)
        if is_last:
            raise RebuildError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(spark_jobs.export, name, dies)
        with pytest.raises(RebuildError, match="killed"):
            export(filled.session(), request_of(filled, target))
    assert bool(list((target / NOTES / STAGED).iterdir())) is (place != "after")
    report = export(filled.session(), request_of(filled, target))
    assert rows_in(target) == wanted([history()], tmp_path / "one")
    assert report.total == len(rows_in(target))
    assert list((target / NOTES / STAGED).iterdir()) == []


def test_a_partition_of_which_nothing_was_committed_must_begin_with_its_topic(
    in_memory: Topics, tmp_path: Path
) -> None:
    """A run was killed when only the other partition had messages: behind what is gone there would be a gap."""
    filled, target = in_memory(2), tmp_path / "out"
    for number in range(2):
        filled.write(number, history(frames=3))
    (target / NOTES).mkdir(parents=True)
    _write_commit(target, Commit("shop", "t1", number=1, partitions={0: Exported(5)}))
    request = request_of(filled, target)
    assert prepare(request)[1].start == {0: 5, 1: 0}
    filled.delete_before(0, 5)
    filled.delete_before(1, 2)
    with pytest.raises(OffsetsError) as refused:
        prepare(request)
    assert refused.value.code == "offsets_expired"
    with pytest.raises(ExportError) as cut:
        prepare(replace(request, target=tmp_path / "other"))
    assert cut.value.code == "export_cut"


@pytest.mark.parametrize(("field", "given"), [("keyspace", "other"), ("topic_id", "t0"), ("format", "delta")])
def test_an_export_of_something_else_is_not_gone_on_with(
    field: str, given: str, in_memory: Topics, tmp_path: Path
) -> None:
    """Its offsets mean another topic's messages, or its files are no tables of this form."""
    filled = in_memory(1)
    (tmp_path / NOTES).mkdir()
    commit = Commit("shop", "t1", partitions={0: Exported(0)})
    setattr(commit, field, given)
    _write_commit(tmp_path, commit)
    with pytest.raises(ExportError) as refused:
        prepare(request_of(filled, tmp_path))
    assert refused.value.code == "export_exists"
    assert read_commit(tmp_path) is not None


def test_a_task_that_writes_some_at_a_time_tells_of_all(
    in_memory: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A micro-batch of many rows is in several files; each is named in the commit, and each row is counted."""
    monkeypatch.setattr(spark_jobs.export, "ROWS_PER_FILE", 3)
    filled = in_memory(1)
    filled.write(0, history())
    report = export(filled.session(), request_of(filled, tmp_path / "out", offsets_per_commit=1_000))
    assert rows_in(tmp_path / "out") == wanted([history()], tmp_path / "one")
    assert (report.rows, report.commits, report.files > 6) == (len(rows_in(tmp_path / "out")), 1, True)


@pytest.mark.parametrize(("bound", "value"), [("ROWS_PER_FILE", 3), ("BYTES_PER_FILE", 250)])
def test_a_task_holds_the_rows_of_a_file_and_of_one_message(
    bound: str, value: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many large rows Spark gives it in one piece: they would take gigabytes in each partition."""
    monkeypatch.setattr(spark_jobs.export, bound, value)
    held: list[tuple[int, int]] = []
    take = Changes.take

    def noted(changes: Changes) -> Any:
        held.append((changes.count, changes.size))
        return take(changes)

    monkeypatch.setattr(Changes, "take", noted)
    image = b'{"text":"%s"}' % (b"x" * (64 - len(key(1)) - 11))
    frames = [frame([(key(1), VALUE, image, at), (key(2), VALUE, image, at + 1)]) for at in range(2, 26, 2)]
    assert len(exported([start(), *frames], tmp_path)) == 25
    assert max(count for count, _ in held) <= 5, "with the row of the epoch"
    assert max(size for _, size in held) == 2 * 2 * 64


def test_an_export_that_retention_has_passed_is_told_so(in_memory: Topics, tmp_path: Path) -> None:
    """It has no base of which a newer one could be given."""
    filled = in_memory(1)
    filled.write(0, history())
    export(filled.session(), request_of(filled, tmp_path / "out"))
    at = filled.ends()[0]
    filled.write(0, [rows(500, 3), rows(503, 3)])
    filled.delete_before(0, at + 1)
    with pytest.raises(OffsetsError, match=f"begins at offset {at + 1}, the export ends at {at}$") as refused:
        prepare(request_of(filled, tmp_path / "out"))
    assert "base" not in refused.value.hint


@pytest.mark.parametrize("epoch", [1, 2])
def test_an_end_that_kafka_lost_and_that_was_written_again_is_told(
    epoch: int, in_memory: Topics, tmp_path: Path
) -> None:
    """Once, by whichever run comes to it: what was exported of it may not have happened.

    What took its place has its numbers, so they count anew. It may be a new epoch, whose beginning lies in it.
    """
    filled = in_memory(1)
    request = request_of(filled, tmp_path / "out")
    batches = [[frame([(key(at), VALUE, b"{}", at)]), marker(at, continuity=at, previous=at - 1)] for at in (2, 3, 4)]
    filled.write(0, [start(), *batches[0], *batches[1]])
    export(filled.session(), request)
    filled.write(0, batches[2])
    export(filled.session(), request)
    filled.lose_end(0, 3)
    ordinal, begun = (2, []) if epoch == 1 else (1, [start(epoch=2, sequence=2)])
    links = range(20, 26)
    idle = [marker(ordinal, epoch=epoch, continuity=at, previous=at - 1 if at > 20 else 2) for at in links]
    filled.write(0, [*begun, *idle])
    export(filled.session(), request)
    filled.write(0, [frame([(key(9), VALUE, b"{}", ordinal + 1)], epoch=epoch), marker(ordinal + 1, epoch=epoch)])
    export(filled.session(), request)
    found = [row for row in rows_in(tmp_path / "out") if row["_kind"] != "epoch_start"]
    assert [(row["_kind"], row["_key"], row["_epoch"], row["_reason"]) for row in found] == [
        *(("value", f"[{at}]", 1, None) for at in (2, 3, 4)),
        ("unreadable", None, epoch, "Kafka lost or replaced records"),
        ("value", "[9]", epoch, None),
    ]
    assert {row["table"] for row in found if row["_key"] is None} == {"%2A"}
