"""Export: a keyspace's change log as Parquet files by table and day, or as Delta tables, each change exactly once.

Structured Streaming replays the topic as in a rebuild (`spark_jobs.streaming`). A task writes what a micro-batch has of
a partition into ``DIR/_freshet/staged``; the driver then writes one *commit*, which names these files and how far each
partition is, and moves them to their places. A run that was killed before the commit leaves files that nobody reads;
what one that was killed after it has not moved, the next run moves. So each change is in ``DIR`` once in the end, and
what is in ``DIR`` was committed. For Delta the files of a commit are appended to the tables instead of moved
(`spark_jobs.exporting.delta`).
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyarrow.lib import ArrowException
from xxhash import xxh3_128_hexdigest

from consumers.store.manifest import sync_directory, write_atomically
from spark_jobs.engine.executors import check_executors, check_shared
from spark_jobs.exporting.changes import Changes, Exported
from spark_jobs.exporting.columns import table_of
from spark_jobs.exporting.compaction import compact_days
from spark_jobs.exporting.delta import append_files, check_delta, compact, delta_columns, is_appended, table_in
from spark_jobs.offsets import Beginning, Range, check_topic, choose_range, topic_bounds
from spark_jobs.output import RebuildError, exclusive, not_shared
from spark_jobs.partition import error_json
from spark_jobs.streaming import Micro, answers, stream_messages
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import events_topic
from stream.wire.announced import Announced
from tokens.errors import FreshetError

NOTES: Final = "_freshet"
"""Beside the tables' directories; Spark and others skip names that begin so."""
COMMIT_NAME: Final = "commit.json"
STAGED: Final = "staged"
COMPACTING: Final = "compacting"
OFFSETS_PER_COMMIT: Final = 1_000_000
COMMITS_UNCOMPACTED: Final = 100
"""After so many, an export that follows the topic makes few files of many; else it does so at its end."""
NAME_BYTES_MAX: Final = 255 - len("table=")
"""Of a table, as its directory is called."""
ROWS_PER_FILE: Final = 500_000
BYTES_PER_FILE: Final = 128 << 20
"""Of keys and images. A task holds some times as much, since each row is a Python object until it is written."""
_STAGED_NAME: Final = re.compile(r"[0-9a-f]{16}\.parquet")
_PLACE: Final = re.compile(
    rf"table=(?!(\.{{0,2}}|{NOTES})/)[^/\0]+/day=\d{{4}}-\d{{2}}-\d{{2}}/part-\d+-\d{{20}}-[0-9a-f]{{16}}\.parquet"
)
PARQUET: Final = "parquet"
DELTA: Final = "delta"


class ExportError(FreshetError):
    """An export was refused. Codes: ``export_exists``, ``export_damaged``, ``export_cut``."""

    code = "export_exists"


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """What to export. A target that is an export already is gone on with."""

    keyspace: str
    kafka: KafkaCluster
    target: Path
    ends: Mapping[int, int] | None = None
    follow: bool = False
    offsets_per_commit: int = OFFSETS_PER_COMMIT
    format: str = PARQUET


@dataclass(slots=True)
class Commit:
    """The last commit. ``files``: staged name → name below the target; ``partitions``: how far each is."""

    keyspace: str
    topic_id: str
    number: int = 0
    rows: int = 0
    partitions: dict[int, Exported] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    format: str = PARQUET

    def places(self) -> dict[str, tuple[int, int]]:
        """The last place of each shard in any partition, as (epoch, ordinal)."""
        found: dict[str, tuple[int, int]] = {}
        for state in self.partitions.values():
            for shard, place in state.places.items():
                found[shard] = max(place, found.get(shard, place))
        return found


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What one run exported. ``rows``: of this run; ``total``: of the export."""

    keyspace: str
    ends: dict[int, int]
    rows: int
    total: int
    files: int
    commits: int
    seconds: float


def export(session: Any, request: ExportRequest) -> ExportReport:
    """Exports what is new into ``request.target``.

    Raises `ExportError`, `OffsetsError`, `RebuildError`, `ExecutorError`, `SparkUnavailable`.
    """
    root = Path(os.path.abspath(request.target))
    with exclusive(root):
        commit, chosen = prepare(request)
        check_executors(session)
        if request.format == DELTA:
            check_delta(session)
        (root / NOTES / STAGED).mkdir(parents=True, exist_ok=True)
        check_shared(session, root / NOTES / STAGED)
        _finish(session, root, commit)
        before, files, started = (commit.number, commit.rows), 0, time.monotonic()
        touched = set[str]()

        def handle(messages: Any, _: int) -> None:
            nonlocal files
            files += _export_batch(session, messages, root, commit, chosen, request)
            touched.update(str(Path(place).parent) for place in commit.files.values())
            if commit.number % COMMITS_UNCOMPACTED == 0:
                _settle(session, root, commit, touched)

        if chosen.messages or request.follow:
            messages = stream_messages(session, request.kafka, chosen, request.offsets_per_commit)
            micro = Micro(request.kafka, chosen, root / NOTES, handle, follow=request.follow)
            micro.run(messages)
            if not request.follow:
                _pass_control_records(commit, micro.reached(), chosen)
            _settle(session, root, commit, touched)
        seconds = round(time.monotonic() - started, 3)
    ends = {each: state.offset for each, state in sorted(commit.partitions.items())}
    return ExportReport(
        request.keyspace, ends, commit.rows - before[1], commit.rows, files, commit.number - before[0], seconds
    )


def prepare(request: ExportRequest) -> tuple[Commit, Range]:
    """The commit to go on from, and what to read. Raises as `export`; needs no Spark."""
    bounds = topic_bounds(request.kafka, events_topic(request.kafka, request.keyspace))
    commit = read_commit(request.target)
    if commit is None:
        cut = {partition: low for partition, low in bounds.low.items() if low}
        if cut:
            raise ExportError(
                f"the topic's beginning is gone: partitions and first offsets {cut}",
                hint="an export can't begin in the middle of a history without a gap",
                code="export_cut",
            )
        commit = Commit(request.keyspace, bounds.topic_id, format=request.format)
    if commit.format != request.format:
        raise ExportError(
            f"{request.target} is an export as {commit.format}, not as {request.format}",
            hint=f"go on with --format {commit.format}, or give another directory with --to",
        )
    if (commit.keyspace, commit.topic_id) != (request.keyspace, bounds.topic_id):
        raise ExportError(
            f"{request.target} is of {commit.keyspace}, topic id {commit.topic_id}; the topic's is {bounds.topic_id}",
            hint="give another directory with --to",
        )
    starts = dict.fromkeys(bounds.low, 0) | {each: state.offset for each, state in commit.partitions.items()}
    return commit, choose_range(bounds, request.ends, starts, Beginning.EXPORT)


def read_commit(target: Path) -> Commit | None:
    """The last commit of an export; None if ``target`` is absent or empty. Raises `ExportError`."""
    path = target / NOTES / COMMIT_NAME
    try:
        fields = json.loads(path.read_bytes())
        partitions = {int(partition): state_from(each) for partition, each in fields.pop("partitions").items()}
        if not all(_STAGED_NAME.fullmatch(name) and _PLACE.fullmatch(place) for name, place in fields["files"].items()):
            raise ValueError("it names files elsewhere")  # whoever may write it may not have us move others' files
        return Commit(**fields, partitions=partitions)
    except (FileNotFoundError, NotADirectoryError):
        if target.exists() and (not target.is_dir() or {each.name for each in target.iterdir()} - {NOTES}):
            raise ExportError(f"{target} exists and is no export", hint="give a new directory with --to") from None
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise ExportError(
            f"{path} is damaged", hint="export again into another directory", code="export_damaged"
        ) from error


def state_from(fields: Mapping[str, Any]) -> Exported:
    """How far a partition is, from JSON values."""
    places = {shard: (int(epoch), int(ordinal)) for shard, (epoch, ordinal) in fields["places"].items()}
    texts = {each: Announced(*told) for each, told in fields.get("texts", {}).items()}
    links = {shard: (int(epoch), int(continuity)) for shard, (epoch, continuity) in fields.get("links", {}).items()}
    return Exported(int(fields["offset"]), fields["columns"], fields["unpublished"], places, texts, links)


def _finish(session: Any, root: Path, commit: Commit) -> None:
    """Has the last commit in its tables, or in its places."""
    if commit.format == PARQUET:
        finish_commit(root, commit)
        return
    staged = root / NOTES / STAGED
    if commit.files and not is_appended(root / NOTES, commit.number):
        lost = [name for name in commit.files if not (staged / name).exists()]
        if lost:
            raise _lost(staged / lost[0])
        told = {"commit": commit.number, "offsets": {each: state.offset for each, state in commit.partitions.items()}}
        app = f"freshet-{commit.keyspace}-{commit.topic_id}"
        try:
            append_files(session, root, staged, commit.files, app, commit.number, told | {"places": commit.places()})
        except ArrowException as error:
            raise _damaged(f"a file of commit {commit.number} can't be read: {error}") from error
    for leftover in staged.iterdir():
        leftover.unlink()


def _lost(file: Path) -> ExportError:
    return _damaged(f"{file} was committed and is not there")


def _damaged(what: str) -> ExportError:
    hint = "what was committed was removed, or lost with the machine: export again into another directory"
    return ExportError(what, hint=hint, code="export_damaged")


def finish_commit(root: Path, commit: Commit) -> None:
    """Moves the files of the last commit to their places, if a killed run has not; removes what was never committed."""
    staged = root / NOTES / STAGED
    for name, place in commit.files.items():
        if (staged / name).exists():
            day = (root / place).parent
            day.mkdir(parents=True, exist_ok=True)
            os.replace(staged / name, root / place)
            for directory in (day, day.parent, root):
                sync_directory(directory)
        elif not (root / place).exists():
            raise _lost(root / place)
    for leftover in staged.iterdir():
        leftover.unlink()


def _export_batch(
    session: Any, messages: Any, root: Path, commit: Commit, chosen: Range, request: ExportRequest
) -> int:
    """Exports one micro-batch in one commit; returns its number of files."""
    task = ExportTask(
        str(root / NOTES / STAGED),
        {each: commit.partitions.get(each, Exported(0)) for each in chosen.end},
        {} if request.follow else chosen.end,
        request.format,
    )
    found = answers(messages, partial(run_export, task))
    if not found:
        return 0
    check_topic(request.kafka, chosen)  # before the commit: what it has stays
    commit.number += 1
    commit.files = {}
    for partition, answer in sorted(found.items()):
        done = json.loads(answer)
        commit.partitions[partition] = state_from(done["state"])
        commit.rows += done["rows"]
        commit.files |= done["files"]
    lost = [name for name in commit.files if not (root / NOTES / STAGED / name).exists()]
    if lost:  # of an executor that joined after `check_shared`
        raise not_shared(f"{root / NOTES / STAGED / lost[0]} was written by a task and is not there")
    sync_directory(root / NOTES / STAGED)
    _write_commit(root, commit)
    _finish(session, root, commit)
    return len(commit.files)


def _pass_control_records(commit: Commit, reached: Mapping[int, int], chosen: Range) -> None:
    """Has Kafka's own records behind the last messages count as exported: retention may pass them before more comes."""
    for partition, offset in reached.items():
        state = commit.partitions.setdefault(partition, Exported(0))
        state.offset = max(state.offset, min(offset, chosen.end[partition]))


def _settle(session: Any, root: Path, commit: Commit, touched: set[str]) -> None:
    """Makes few files of many in the days that were written (``touched``, emptied). No commit names them then."""
    commit.files = {}  # they are in their places, where others may move them
    _write_commit(root, commit)
    if commit.format == DELTA:
        compact(session, root, set(map(table_in, touched)))
    else:
        compact_days(root, touched, root / NOTES / COMPACTING)
    touched.clear()


def _write_commit(root: Path, commit: Commit) -> None:
    text = json.dumps(asdict(commit), indent=1) + "\n"
    write_atomically(root / NOTES / COMMIT_NAME, text.encode())


@dataclass(frozen=True, slots=True)
class ExportTask:
    """The input of each task: where it writes, how far each partition is, and where to stop."""

    staged: str
    states: dict[int, Exported]
    end: dict[int, int]
    format: str = PARQUET


def run_export(task: ExportTask, batches: Iterator[Any]) -> Iterator[Any]:
    """For ``mapInArrow``: writes the files of one partition, yields one row of `RESULT_SCHEMA`."""
    import pyarrow as pa

    partition, answer, error = -1, None, None
    try:
        found = _export_partition(task, batches)
        if found is None:
            return
        partition, answer = found
    except (FreshetError, OSError) as failure:
        error = error_json(failure, task.staged)
    columns = [pa.array([partition], pa.int32()), pa.array([answer], pa.string()), pa.array([error], pa.string())]
    yield pa.RecordBatch.from_arrays(columns, names=["partition", "summary", "error"])


def _export_partition(task: ExportTask, batches: Iterator[Any]) -> tuple[int, str] | None:
    changes: Changes | None = None
    files: dict[str, str] = {}
    rows, partition = 0, -1
    for batch in batches:
        partitions = batch.column(0).unique().to_pylist()
        if changes is None:
            [partition] = partitions[:1]
            changes = Changes(partition, task.states[partition])
        if partitions != [partition]:
            raise RebuildError(f"one Spark task was given the partitions {partitions}", code="offsets_not_rising")
        offsets, values = batch.column(1).to_pylist(), batch.column(2).to_pylist()
        end = task.end.get(partition)
        kept = len(offsets) if end is None else sum(offset < end for offset in offsets)
        for offset, value in zip(offsets[:kept], values[:kept], strict=True):  # one message may have thousands of rows
            changes.add([offset], [value])
            if changes.count >= ROWS_PER_FILE or changes.size >= BYTES_PER_FILE:
                rows += _write(changes, task, files)
    if changes is None:
        return None
    rows += _write(changes, task, files)
    return partition, json.dumps({"rows": rows, "files": files, "state": asdict(changes.state)})


def _write(changes: Changes, task: ExportTask, files: dict[str, str]) -> int:
    """Writes the changes so far, a file for each table, description and day. Returns the number of rows."""
    import pyarrow.parquet as pq

    rows, staged = 0, Path(task.staged)
    for table, day, columns, group in changes.take():
        typed = delta_columns(columns) if task.format == DELTA else columns
        name = f"{secrets.token_hex(8)}.parquet"
        pq.write_table(table_of(group, typed), staged / name, compression="zstd")
        with open(staged / name, "rb") as written:
            os.fsync(written.fileno())
        files[name] = place_of(table, day, group[0]["_partition"], group[0]["_offset"], name)
        rows += len(group)
    return rows


def place_of(table: str, day: str, partition: int, offset: int, name: str) -> str:
    """Where a file of a table's day belongs, below the export's root. A Delta table is called as what follows ``=``.

    No file system has a directory with a longer name: such a name is cut, and ends with the table's XXH3-128.
    """
    called = quote(table, safe="")
    if called in ("", ".", "..", NOTES):  # tables that no database has, but an event may name
        called = "%" + "%".join(f"{byte:02X}" for byte in table.encode())
    if len(called) > NAME_BYTES_MAX:
        digest = xxh3_128_hexdigest(table.encode())
        called = re.sub("%.?$", "", called[: NAME_BYTES_MAX - len(digest) - 1]) + f"~{digest}"
    return f"table={called}/day={day}/part-{partition}-{offset:020d}-{name}"


if __name__ == "__main__":
    from spark_jobs.submitted import main

    main("export")
