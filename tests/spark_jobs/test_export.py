"""The export: each change once, typed, by table and day; and what the topic can't tell as rows of its own kinds."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, date, datetime
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro.schema import to_parsing_canonical_form

import spark_jobs.export
from consumers.store.manifest import write_atomically
from spark_jobs.export import (
    COMMIT_NAME,
    NAME_BYTES_MAX,
    NOTES,
    STAGED,
    Commit,
    ExportError,
    ExportRequest,
    ExportTask,
    export,
    finish_commit,
    place_of,
    read_commit,
    run_export,
    state_from,
)
from spark_jobs.exporting.changes import Changes, Exported
from spark_jobs.exporting.columns import table_of
from spark_jobs.exporting.delta import table_in
from spark_jobs.output import RebuildError
from stream.wire.announced import fingerprint_of
from stream.wire.codec import READER_VERSION, NewerWireError, encode, header_of
from stream.wire.events import ABSENT, VALUE, VOID
from tests.consumers.consuming import until
from tests.consumers.histories import SHARD, event, frame, key, marker, of_tomorrow, start
from tests.docs.naming import ROOT
from tests.lengths import length
from tests.patience import PATIENCE_S
from tests.spark_jobs.topics import TestTopic, history

Topics = Callable[[int], TestTopic]
KINDS = {
    "id": "int",
    "price": "decimal",
    "born": "date",
    "seen": "datetime",
    "at": "timestamp",
    "raw": "binary",
    "ratio": "double",
}


def description(ordinal: int, kinds: Mapping[str, str] = KINDS, **more: Any) -> bytes:
    """A description of shop.items."""
    columns = [{"name": name, "kind": kind, "exact": True} for name, kind in kinds.items()]
    fields: dict[str, Any] = {
        "table": "shop.items",
        "columns": columns,
        "primary_key": ["id"],
        "cacheable": True,
        "reason": "",
    }
    return event("TableSchema", ordinal, **(fields | more))


def rows_in(root: Path) -> list[dict[str, Any]]:
    """All rows of an export, each file read with its own columns."""
    found = []
    for path in sorted(root.glob("table=*/day=*/*.parquet")):
        place = {"table": path.parts[-3].removeprefix("table="), "day": path.parts[-2]}
        found += [row | place for row in pq.ParquetFile(path).read().to_pylist()]
    return sorted(found, key=lambda row: (row["_partition"], row["_offset"], row["_ordinal"] or 0))


def exported(messages: Sequence[bytes | None], root: Path) -> list[dict[str, Any]]:
    """What one task writes of a partition's messages."""
    (root / NOTES / STAGED).mkdir(parents=True)
    task = ExportTask(str(root / NOTES / STAGED), {0: Exported(0)}, {0: len(messages)})
    [answer] = run_export(task, iter(batches(messages)))
    assert answer.column("error").to_pylist() == [None]
    done = json.loads(answer.column("summary").to_pylist()[0])
    finish_commit(root, Commit("shop", "t1", files=done["files"]))
    return rows_in(root)


def batches(messages: Sequence[bytes | None], size: int = 7) -> Iterator[pa.RecordBatch]:
    """Messages of partition 0 as Spark gives them."""
    for at in range(0, len(messages), size):
        part = messages[at : at + size]
        columns = [
            pa.array([0] * len(part), pa.int32()),
            pa.array(range(at, at + len(part)), pa.int64()),
            pa.array(part, pa.binary()),
        ]
        yield pa.RecordBatch.from_arrays(columns, names=["partition", "offset", "value"])


def test_columns_have_the_types_of_the_description(tmp_path: Path) -> None:
    """Values are typed, and those without a form in their type are kept as they are."""
    image = (
        b'{"id":7,"price":"1.50","born":"2024-02-29","seen":"2024-01-02 03:04:05.5","at":"2024-01-02 03:04:05",'
        b'"raw":{"base64":"AAE="},"ratio":0.5}'
    )
    odd = b'{"id":9223372036854775808,"price":null,"born":"0000-00-00","new":[1]}'
    messages = [start(), description(2), frame([(key(7), VALUE, image, 3), (key(8), VALUE, odd, 4)])]
    _, plain, other = exported(messages, tmp_path)
    assert (plain["table"], plain["day"], plain["_kind"], plain["_key"]) == (
        "shop.items",
        "day=2023-11-14",
        "value",
        "[7]",
    )
    assert (plain["id"], plain["price"], plain["born"], plain["ratio"]) == (7, "1.50", date(2024, 2, 29), 0.5)
    assert plain["seen"] == datetime(2024, 1, 2, 3, 4, 5, 500_000)  # noqa: DTZ001 - a DATETIME has no zone
    assert plain["at"] == datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert (plain["raw"], plain["_untyped"]) == (b"\0\1", None)
    assert (other["id"], other["born"], other["price"]) == (None, None, None)
    assert dict(other["_untyped"]) == {"id": "9223372036854775808", "born": '"0000-00-00"', "new": "[1]"}


def test_a_column_that_a_directory_would_hide_is_kept_untyped() -> None:
    """Spark reads columns of these names from the paths, whatever the files say."""
    found = table_of(
        [{"image": {"day": "monday", "Table": "x", "id": 1}}], {"day": "text", "Table": "text", "id": "int"}
    )
    assert {"day", "Table"}.isdisjoint(found.column_names)
    [row] = found.to_pylist()
    assert (row["id"], dict(row["_untyped"])) == (1, {"day": '"monday"', "Table": '"x"'})


def test_a_committed_file_that_is_lost_is_noticed(tmp_path: Path) -> None:
    """Else the next run would go on behind a hole."""
    (tmp_path / NOTES / STAGED).mkdir(parents=True)
    with pytest.raises(ExportError) as refused:
        finish_commit(tmp_path, Commit("shop", "t1", files={"x.parquet": "table=a/day=b/part-x.parquet"}))
    assert refused.value.code == "export_damaged"


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("../../secret", "table=a.b/day=2026-01-02/part-0-00000000000000000007-0123456789abcdef.parquet"),
        ("0123456789abcdef.parquet", "../other/day=2026-01-02/part-0-00000000000000000007-0123456789abcdef.parquet"),
        ("0123456789abcdef.parquet", "table=../day=2026-01-02/part-0-00000000000000000007-0123456789abcdef.parquet"),
        ("0123456789abcdef.parquet", "table=a/b/day=2026-01-02/part-0-00000000000000000007-0123456789abcdef.parquet"),
        ("0123456789abcdef.parquet", "/etc/cron.d/x"),
    ],
)
def test_a_commit_names_no_file_outside_its_export(tmp_path: Path, name: str, place: str) -> None:
    """Whoever may write the notes of an export may not have the next run move files from or to elsewhere."""
    (tmp_path / NOTES).mkdir()
    good = "table=a.b/day=2026-01-02/part-0-00000000000000000007-0123456789abcdef.parquet"
    kept = Commit("shop", "t1", files={"0123456789abcdef.parquet": good})
    (tmp_path / NOTES / COMMIT_NAME).write_text(json.dumps(asdict(kept)))
    assert read_commit(tmp_path) == kept
    (tmp_path / NOTES / COMMIT_NAME).write_text(json.dumps(asdict(kept) | {"files": {name: place}}))
    with pytest.raises(ExportError) as refused:
        read_commit(tmp_path)
    assert refused.value.code == "export_damaged"


@pytest.mark.parametrize("table", ["..", ".", "", NOTES, "../../x", "a/b", "/etc"])
def test_a_table_that_no_database_has_is_a_directory_of_the_export(table: str) -> None:
    """An event may name any table: a Delta table's directory is called as it, and is one of the export's own."""
    place = place_of(table, "2026-01-02", 0, 7, "0123456789abcdef.parquet")
    assert table_in(place) not in ("", ".", "..", NOTES)
    assert place.count("/") == 2


def test_tables_with_long_names_are_exported(tmp_path: Path) -> None:
    """A letter may take nine bytes in a directory's name, and 255 are all that it may have; each table has its own."""
    tables = [f"shop.{'表' * 60}", f"shop.{'表' * 60}1", f"shop.{'t' * 300}", f"shop.{'t' * 300}1", "shop.表"]
    rows = [(f"{table}\0[1]".encode(), VALUE, b"{}", at) for at, table in enumerate(tables, 2)]
    found = exported([start(), frame(rows)], tmp_path)[1:]
    assert len({row["table"] for row in found}) == len(tables)
    assert found[-1]["table"] == "shop.%E8%A1%A8"
    assert {row["table"][:12] for row in found} == {"shop.%E8%A1%A8"[:12], "shop.ttttttt"}
    assert all(len(row["table"]) <= NAME_BYTES_MAX for row in found)


def test_what_the_topic_cannot_tell_is_a_row_of_its_own_kind(tmp_path: Path) -> None:
    """Voids of rows and tables, an uncached table, a new history and a message that can't be read: nothing is a gap."""
    uncached = description(6, cacheable=False, reason="no key")
    messages = [
        start(),
        frame([(key(1), VOID, b"", 2), (key(2), ABSENT, b"", 3), (key(3), VALUE, b"[]", 4)]),
        event("TableVoid", 5, table="shop.items", reason="ddl"),
        uncached,
        uncached,
        b"garbage",
        None,
        start(epoch=2),
    ]
    found = exported(messages, tmp_path)
    assert [(row["table"], row["_kind"]) for row in found] == [
        ("%2A", "epoch_start"),
        ("shop.items", "void"),
        ("shop.items", "deleted"),
        ("shop.items", "void"),
        ("shop.items", "table_void"),
        ("shop.items", "not_cached"),
        ("%2A", "unreadable"),
        ("%2A", "unreadable"),
        ("%2A", "epoch_start"),
    ]
    assert [row["_reason"] for row in found[4:6]] == ["ddl", "no key"]


def test_numbers_that_no_column_can_have_end_no_export(tmp_path: Path) -> None:
    """A time that is no date is null, a number without a form is untyped; what the fold rejects can't be read."""
    huge = b'{"id":1,"ratio":1' + b"0" * 400 + b"}"
    beyond = frame([(key(2), VALUE, b"{}", 4)], ordinal=2**63 - 1, ordinals=[5])
    messages = [
        start(),
        description(2),
        frame([(key(1), VALUE, huge, 3)], timestamps=[2**60]),
        beyond,
        event("TableVoid", 5, table="shop.items", reason="ddl", timestamp=-(2**62)),
        event("TableVoid", 6, epoch=0, table="shop.items", reason="ddl"),
        frame([(key(3), VALUE, b'{"id":3}', 7)]),
    ]
    found = exported(messages, tmp_path)
    assert [(row["_kind"], row["_ordinal"], row["_time"] is None, row["day"]) for row in found[1:]] == [
        ("value", 3, True, "day=1970-01-01"),
        ("unreadable", None, True, "day=1970-01-01"),
        ("table_void", 5, True, "day=1970-01-01"),
        ("unreadable", None, True, "day=1970-01-01"),
        ("value", 7, False, "day=2023-11-14"),
    ], "and the change after them is not taken for an old one"
    assert [name for name, _ in found[1]["_untyped"]] == ["ratio"]


def test_a_marker_that_asks_for_newer_readers_ends_an_export() -> None:
    """As it stops a consumer: what follows it may mean something else."""
    changes = Changes(0, Exported(0))
    with pytest.raises(NewerWireError):
        changes.add(range(2), [start(), marker(1, reader_version=READER_VERSION + 1)])


def test_rows_without_a_key_are_told_as_what_happened_to_them(tmp_path: Path) -> None:
    """Once each, with their columns typed, in the order of the log; a void of one row would say that others changed."""

    def keyless(ordinal: int, operation: str, before: bytes, after: bytes) -> bytes:
        more: dict[str, Any] = {"table": "shop.items", "operation": operation, "before": before, "after": after}
        return event("KeylessRow", ordinal, **more)

    updated = keyless(5, "updated", b'{"id":1}', b'{"id":2}')
    messages = [
        start(),
        description(2, cacheable=False, reason="it has no primary key"),
        keyless(3, "inserted", b"", b'{"id":1}'),
        keyless(4, "inserted", b"", b'{"id":1}'),
        updated,
        updated,
        keyless(6, "deleted", b'{"id":1}', b""),
        keyless(7, "inserted", b"", b""),
    ]
    found = [row for row in exported(messages, tmp_path) if row["_kind"].startswith("keyless")]
    assert [(row["table"], row["_kind"], row["id"], row["_ordinal"], row["_key"]) for row in found] == [
        ("shop.items", "keyless_inserted", 1, 3, None),
        ("shop.items", "keyless_inserted", 1, 4, None),
        ("shop.items", "keyless_before", 1, 5, None),
        ("shop.items", "keyless_updated", 2, 5, None),
        ("shop.items", "keyless_deleted", 1, 6, None),
        ("shop.items", "keyless_inserted", None, 7, None),
    ]
    assert found[-1]["_reason"] == "its image is too large to be published"
    assert found[0]["_time"] is not None


def test_a_description_counts_for_what_follows_it_and_repeated_messages_count_once() -> None:
    """Rows before and after a changed table are in files of their own columns; a publisher's retry is no change."""
    message = frame([(key(1), VALUE, b'{"id":1}', 3)])
    changes = Changes(0, Exported(0))
    values = [start(), description(2, {"id": "int"}), message, message, description(4, {"id": "text"})]
    changes.add(range(6), [*values, frame([(key(1), VALUE, b'{"id":"1"}', 5)])])
    found = [(columns, [row["image"] for row in rows]) for table, _, columns, rows in changes.take() if table != "*"]
    assert found == [({"id": "int"}, [{"id": 1}]), ({"id": "text"}, [{"id": "1"}])]
    assert changes.state.offset == 6
    assert [table_of([{"_kind": "value", "_partition": 0, "_offset": 0}], each).num_rows for each, _ in found] == [1, 1]


def test_that_a_table_is_not_cached_is_told_once_for_each_reason() -> None:
    """A source describes its tables at each start: only another reason is news."""
    changes, reasons = Changes(0, Exported(0)), ["no key", "no key", "too wide", "no key"]
    told = [description(at, cacheable=False, reason=reason) for at, reason in enumerate(reasons, 2)]
    changes.add(range(5), [start(), *told])
    found = [row for table, _, _, rows in changes.take() if table == "shop.items" for row in rows]
    assert [(row["_kind"], row["_reason"], row["_ordinal"]) for row in found] == [
        ("not_cached", "no key", 2),
        ("not_cached", "too wide", 4),
        ("not_cached", "no key", 5),
    ]


def test_what_a_newer_publisher_announces_is_read_and_what_must_not_be_passed_over_ends_it() -> None:
    """As in the fold, also if the announcement came in an earlier commit. Else an export would lose all of it."""
    newer, announced = of_tomorrow(frame([(key(1), VALUE, b'{"id":1}', 2)]))
    changes = Changes(0, Exported(0))
    changes.add(range(2), [start(), announced])
    state = state_from(json.loads(json.dumps(asdict(changes.state))))
    resumed = Changes(0, state)
    resumed.add([2], [newer])
    [(table, _, _, [row])] = resumed.take()
    assert (table, row["_kind"], row["image"]) == ("shop.items", "value", {"id": 1})
    note = {"type": "record", "name": "freshet.Note", "fields": [{"name": "text", "type": "string"}]}
    text = to_parsing_canonical_form(note)
    place = {"shard": SHARD, "epoch": 1, "ordinal": 2, "name": "Note", "text": text, "skippable": False}
    resumed.add([3], [encode("SchemaText", place | {"fingerprint": fingerprint_of(text)})])
    with pytest.raises(NewerWireError):
        resumed.add([4], [header_of(note) + b"\0"])


def test_an_export_goes_on_and_has_each_change_once(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """In small commits, to a named end and then to all: as one task has it; Spark reads it by table and day."""
    filled = topic(2)
    filled.write(0, [*history(), description(9000)])
    filled.write(1, history(frames=9))
    request = ExportRequest(filled.keyspace, filled.kafka, tmp_path / "out", {0: 11, 1: 3}, offsets_per_commit=10)
    export(spark, request)
    assert {row["_offset"] for row in rows_in(tmp_path / "out") if row["_partition"] == 0} <= set(range(11))
    rest = ExportRequest(filled.keyspace, filled.kafka, tmp_path / "out", offsets_per_commit=10)
    report = export(spark, rest)
    assert report.ends == filled.ends()
    found = rows_in(tmp_path / "out")
    assert report.total == len(found)
    assert [row for row in found if row["_partition"] == 0] == exported(
        [*history(), description(9000)], tmp_path / "one"
    )
    assert export(spark, rest).rows == 0
    assert report.files > 4 > len(list((tmp_path / "out").glob("table=shop.items/day=*/*"))), "small ones become few"
    read = spark.read.parquet(str(tmp_path / "out"))
    assert read.where("table = 'shop.items' and day = date'2023-11-14'").count() > 0
    assert read.count() == len(found)


def test_each_table_of_an_export_is_read_as_its_page_says(spark: Any, tmp_path: Path) -> None:
    """Two tables may have columns of one name and different kinds, which no schema has both of."""
    tables = {"shop.orders": ("int", b'{"id":1}'), "shop.users": ("uuid", b'{"id":"ab"}')}
    messages, ordinal = [start()], 2
    for table, (kind, image) in tables.items():
        messages.append(description(ordinal, {"id": kind}, table=table))
        messages.append(frame([(key(1, table), VALUE, image, ordinal + 1)]))
        ordinal += 2
    exported(messages, tmp_path / "out")
    page = (ROOT / "docs/operating/export.md").read_text(encoding="utf-8")
    [told] = re.findall(r"`(spark\.read\.[^`]+table=shop\.orders[^`]+)`", page)
    found = []
    for table in tables:
        rows = eval(told.replace("shop.orders", table), {"spark": spark, "DIR": str(tmp_path / "out")})
        found += [(row["table"], str(row["day"]), row["id"]) for row in rows.collect()]
    assert found == [("shop.orders", "2023-11-14", 1), ("shop.users", "2023-11-14", "ab")]


@pytest.mark.parametrize("place", ["before_commit", "in_commit", "after_commit"])
def test_an_export_that_dies_around_a_commit_has_each_change_once(
    spark: Any, topic: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Files without a commit are removed, and a commit whose files were not moved yet is finished."""
    filled = topic(1)
    filled.write(0, history())
    request = ExportRequest(filled.keyspace, filled.kafka, tmp_path / "out", offsets_per_commit=15)
    real = write_atomically
    writes = iter(range(100))

    def write_or_die(path: Path, data: bytes) -> None:
        number = next(writes)
        if number == 1 and place == "before_commit":
            raise RebuildError("killed")
        real(path, data)
        if number == 1 and place == "in_commit":
            raise RebuildError("killed")

    finish = spark_jobs.export.finish_commit
    finishes = iter(range(100))

    def finish_or_die(root: Path, commit: Commit) -> None:
        finish(root, commit)
        if next(finishes) == 2 and place == "after_commit":
            raise RebuildError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(spark_jobs.export, "write_atomically", write_or_die)
        patched.setattr(spark_jobs.export, "finish_commit", finish_or_die)
        with pytest.raises(RebuildError, match="killed"):
            export(spark, request)
    assert list((tmp_path / "out" / NOTES / STAGED).iterdir()) or place == "after_commit"
    export(spark, request)
    assert rows_in(tmp_path / "out") == exported(history(), tmp_path / "one")
    assert list((tmp_path / "out" / NOTES / STAGED).iterdir()) == []


PROGRAM = """
import sys
from pathlib import Path
from freshet.spark import spark_settings
from spark_jobs.export import ExportRequest, export
from spark_jobs.session import spark_session
from stream.kafka.connection import KafkaCluster

bootstrap, prefix, keyspace, to, log = sys.argv[1:]
with spark_session("export", spark_settings("local[1]", "512m", Path(log), brief=True)) as session:
    export(session, ExportRequest(keyspace, KafkaCluster(bootstrap, prefix=prefix), Path(to), offsets_per_commit=5))
"""
KILLS = length(2, 3)
KILLED_WITHIN_S = 1.0
"""After the first commit of a run."""


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.nightly
def test_an_export_that_is_killed_at_random_instants_has_each_change_once(topic: Topics, tmp_path: Path) -> None:
    """SIGKILL to the driver alone, whose JVM and workers end later, or to all of them, amid small commits."""
    filled, rng = topic(1), Random(5)
    messages = [message for first in (1, 3000) for message in history(first=first, frames=60)]
    filled.write(0, messages)
    to, log = tmp_path / "out", tmp_path / "spark.log"
    place = [filled.kafka.bootstrap, filled.kafka.prefix, filled.keyspace, str(to), str(log)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", PROGRAM, *place], cwd=ROOT, start_new_session=True)

    def commits() -> int:
        commit = read_commit(to) if to.exists() else None
        return commit.number if commit is not None else 0

    def is_past(number: int) -> bool:
        return commits() > number

    for _ in range(KILLS):
        before, process = commits(), start()
        until(partial(is_past, before), "a commit")
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, KILLED_WITHIN_S))
        rng.choice((os.kill, os.killpg))(process.pid, signal.SIGKILL)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL, "it had ended: the topic is too short"
    assert start().wait(2 * PATIENCE_S) == 0, log.read_text()[-3000:]
    assert rows_in(to) == exported(messages, tmp_path / "one")
    assert list((to / NOTES / STAGED).iterdir()) == []


def test_an_export_goes_on_where_retention_has_passed_all_that_it_has(
    spark: Any, topic: Topics, tmp_path: Path
) -> None:
    """The last offset is not a message's: Kafka ends a transaction with a record of its own."""
    filled = topic(1)
    filled.transaction([(0, start()), (0, frame([(key(1), VALUE, b"{}", 2)]))], commit=True)
    request = ExportRequest(filled.keyspace, filled.kafka, tmp_path / "out")
    assert export(spark, request).rows == 2
    filled.delete_before(0, filled.ends()[0])
    assert export(spark, request).rows == 0
    filled.transaction([(0, frame([(key(2), VALUE, b"{}", 3)]))], commit=True)
    assert export(spark, request).total == 3


def test_a_directory_that_is_no_export_is_refused(topic: Topics, tmp_path: Path) -> None:
    """Nothing is written into something else, and a damaged commit is no empty one."""
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    with pytest.raises(ExportError) as taken:
        read_commit(tmp_path / "taken")
    assert taken.value.code == "export_exists"
    (tmp_path / "bad" / NOTES).mkdir(parents=True)
    (tmp_path / "bad" / NOTES / "commit.json").write_text("{}")
    with pytest.raises(ExportError) as damaged:
        read_commit(tmp_path / "bad")
    assert damaged.value.code == "export_damaged"
    filled = topic(1)
    filled.write(0, history())
    filled.delete_before(0, 5)
    with pytest.raises(ExportError) as cut:
        spark_jobs.export.prepare(ExportRequest(filled.keyspace, filled.kafka, tmp_path / "out"))
    assert cut.value.code == "export_cut"
