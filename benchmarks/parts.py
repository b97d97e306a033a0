"""(b) The parts of materializing, each alone on one core and from memory: decode, fold, store write, framing."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, Final

from benchmarks.materialize import as_in_production
from benchmarks.topics import is_frame, records_of
from benchmarks.workload import START_POSITION, START_SECONDS, describe_table, transactions
from consumers.fold.messages import fold_messages
from consumers.fold.rows import fold_rows
from consumers.fold.state import Changes, Head, Lineage, PartitionState
from consumers.process.loop import BATCH_MESSAGES
from consumers.store.store import PartitionStore
from freshet.settings import ConsumerSettings, PublisherSettings
from stream.kafka.connection import KafkaCluster
from stream.wire.batch import BatchLimits, Framer
from stream.wire.codec import decode
from stream.wire.keys import Layout

ROWS: Final = 150_000
"""Most rows of one partition."""


def parts(kafka: KafkaCluster, keyspace: str, rows: int = ROWS) -> dict[str, Any]:
    """Rows per second of each part over one partition's records. Runs in a child process."""
    records = records_of(kafka, keyspace, 0)
    frames = [(offset, value) for offset, value in records if is_frame(value)]
    counts = [len(decode(value)[1]["keys"]) for _, value in frames]
    kept = _first(counts, rows)
    frames, total = frames[:kept], sum(counts[:kept])
    as_in_production()
    decoded: list[dict[str, Any]] = []
    changes: list[Changes] = []
    return {
        "rows": total,
        "rows_a_frame": total / kept,
        "decode_rows_s": total / _timed(lambda: decoded.extend(decode(value)[1] for _, value in frames)),
        "fold_rows_s": total / _timed(lambda: _fold_decoded(frames, decoded, changes)),
        "decode_and_fold_rows_s": total / _timed(lambda: _fold_all(frames)),
        "store_write_rows_s": _write(changes),
    }


def _first(counts: list[int], rows: int) -> int:
    total = 0
    for number, count in enumerate(counts, 1):
        total += count
        if total >= rows:
            return number
    return len(counts)


def _timed(work: Callable[[], object]) -> float:
    """Processor time of this thread in seconds: these parts only compute."""
    began = thread_time()
    work()
    return thread_time() - began


def _new_state(shard: str, epoch: int) -> tuple[PartitionState, dict[bytes, bytes]]:
    entries: dict[bytes, bytes] = {}
    head = Head(lineages={shard: Lineage(epoch, 0, 0, "", 0, START_POSITION)})
    return PartitionState(head, entries.get), entries


def _fold_decoded(frames: list[tuple[int, bytes]], decoded: list[dict[str, Any]], changes: list[Changes]) -> None:
    state, entries = _new_state(decoded[0]["shard"], decoded[0]["epoch"])
    for (offset, _), frame in zip(frames, decoded, strict=True):
        changed = fold_rows(state, offset + 1, frame)
        entries.update(changed.entries)
        state.apply(changed)
        changes.append(changed)


def _fold_all(frames: list[tuple[int, bytes]]) -> None:
    _, frame = decode(frames[0][1])
    state, entries = _new_state(frame["shard"], frame["epoch"])
    for at in range(0, len(frames), BATCH_MESSAGES):
        for changed in fold_messages(state, frames[at : at + BATCH_MESSAGES]):
            entries.update(changed.entries)
            state.apply(changed)


def _write(changes: list[Changes]) -> float:
    """Entries per second of building and ingesting files of the consumer's commit size."""
    commit_rows = ConsumerSettings().commit_rows
    rows, seconds = 0, 0.0
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        store = PartitionStore.open(Path(directory), keyspace="bench", partition=0, topic_id="bench")
        for changed in changes:
            store.apply(changed)
            if store.pending_rows >= commit_rows or changed is changes[-1]:
                began = perf_counter()
                done = store.commit()
                seconds += perf_counter() - began
                rows += done.rows if done is not None else 0
        store.close()
    return rows / seconds


def framing(rows: int = ROWS, rows_a_frame: int = 0) -> dict[str, Any]:
    """Rows per second of framing and encoding single-row transactions, without Kafka. Runs in a child process."""
    defaults = PublisherSettings()
    limits = BatchLimits(
        rows_max=rows_a_frame or defaults.frame_rows_max,
        bytes_max=defaults.frame_bytes_max,
        batch_bytes=defaults.batch_bytes,
    )
    framer = Framer("bench/0", Layout(4), None, limits)
    framer.start_epoch(START_POSITION, START_SECONDS, "first_start")
    framer.take()
    history = [describe_table(), *islice(transactions(rows), rows)]
    as_in_production()
    began = thread_time()
    size = 0
    for transaction in history:
        end = framer.room(transaction)
        if end < 0:
            size += framer.take().bytes
            end = framer.room(transaction)
        framer.add(transaction, 0, end)
    size += framer.take().bytes
    seconds = thread_time() - began
    return {"framing_rows_s": rows / seconds, "bytes": size}
