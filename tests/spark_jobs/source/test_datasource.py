"""The data source on a real topic: typed rows and changes, at a moment or as they come, by Spark's own interface."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from consumers.snapshots.manifest import Snapshot
from consumers.snapshots.places import Place
from consumers.snapshots.writing import write_snapshot
from consumers.store.store import StoreView
from freshet.spark import register
from spark_jobs.export import ExportError
from spark_jobs.offsets import OffsetsError
from spark_jobs.output import find_stores
from spark_jobs.partition import FoldTask
from spark_jobs.source.cut import AsOf, AsOfError, parse_as_of
from spark_jobs.source.datasource import ChangeStream, TableSource
from spark_jobs.source.origins import FromSnapshot
from spark_jobs.source.reading import Plan, change_batches, plan, table_batches
from spark_jobs.source.writing import write_table
from stream.wire.codec import HEADER_SIZE, ROW_FRAME_HEADER
from stream.wire.events import ABSENT, VALUE
from tests.consumers.histories import SHARD, frame, gtid, key, marker, of_tomorrow
from tests.consumers.owning import schema, vector
from tests.spark_jobs.source.shop import COLUMNS, Shop
from tests.spark_jobs.test_live_verify import FRESHET
from tests.spark_jobs.topics import TestTopic, in_arrow

Topics = Callable[[int], TestTopic]
TABLE = "shop.items"


@pytest.fixture
def shop(topic: Topics) -> tuple[Shop, TestTopic]:
    """A history, written into a topic; some of it twice, as a publisher that tries again does."""
    made, filled = Shop(Random(11)), topic(2)
    for partition, messages in enumerate(made.partitions):
        filled.write(partition, [*messages, messages[-2], messages[-1]])
    return made, filled


def test_a_session_reads_tables_changes_and_streams(spark: Any, shop: tuple[Shop, TestTopic], tmp_path: Path) -> None:
    """By ``spark.read`` and ``readStream``, from the settings file, with filters pushed down."""
    made, filled = shop
    (tmp_path / "freshet.toml").write_text(f'[kafka]\nbootstrap = "{filled.kafka.bootstrap}"\n')
    register(spark, tmp_path / "freshet.toml")
    read = spark.read.format("freshet").option("keyspace", filled.keyspace).option("table", TABLE)
    now = read.load()
    assert [each.simpleString() for each in now.schema][-2:] == ["id:bigint", "name:string"]
    at = read.option("asOf", vector(12)).load()
    for loaded, number in ((now, len(made.states) - 1), (at, 12)):
        rows = {row["_key"]: row["name"] for row in loaded.where("_kind = 'value'").collect()}
        state = made.states[number]
        images = {key.split(b"\0")[1].decode(): image for key, (kind, image) in state.items() if kind == VALUE}
        assert {key: f'"{name}"' in images[key].decode() for key, name in rows.items()} == dict.fromkeys(images, True)
    [one] = now.where("id = 3").collect() or [None]
    assert one is None or one["_key"] == "[3]"
    changes = read.option("changes", "true").option("asOf", "").load().where("_kind in ('value', 'deleted', 'void')")
    places = [(row["_ordinal"]) for row in changes.select("_ordinal").collect()]
    assert sorted(places) == sorted(set(places)), "what was written twice is one change"
    query = (
        spark.readStream.format("freshet")
        .option("keyspace", filled.keyspace)
        .option("table", TABLE)
        .load()
        .writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", (tmp_path / "checkpoint").as_uri())
        .start()
    )
    try:
        query.processAllAvailable()
        filled.write(0, [marker(900, sequence=900)])
        query.processAllAvailable()
    finally:
        query.stop()
    streamed = spark.table("streamed").where("_kind in ('value', 'deleted', 'void')").select("_ordinal").collect()
    assert sorted(row["_ordinal"] for row in streamed) == sorted(places)


def test_a_micro_batch_that_begins_anywhere_has_each_change_once(shop: tuple[Shop, TestTopic]) -> None:
    """Ranges of any size, one after the other, give the changes of the whole: no repeated message is a change twice."""
    made, filled = shop
    planned = plan(filled.kafka, filled.keyspace, TABLE, AsOf())
    for partition, end in planned.end.items():
        whole = changes_of(planned, partition, [0, end])
        for size in (1, 3):
            assert changes_of(planned, partition, [*range(0, end, size), end]) == whole
        ordinals = [row["_ordinal"] for row in whole if row["_key"]]
        assert ordinals == sorted(set(ordinals))
    kinds = {kind for state in made.states for kind, _ in state.values()}
    assert ABSENT in kinds


def test_a_micro_batch_under_a_newer_publisher_reads_what_was_announced_before_it(
    topic: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its changes, and the places before it, from which it knows what is repeated."""
    monkeypatch.setattr("stream.kafka.announced.WINDOW", 4)
    monkeypatch.setattr("spark_jobs.source.reading.LOOK_BACK", 2)
    made, filled = Shop(Random(11)), topic(2)
    for partition, messages in enumerate(made.partitions):
        repeated = [*messages, messages[-2], messages[-1]]
        frames = {each: of_tomorrow(each) for each in repeated if each[:HEADER_SIZE] == ROW_FRAME_HEADER}
        announced = {told for _, told in frames.values()}
        newer = [frames[each][0] if each in frames else each for each in repeated]
        filled.write(partition, [newer[0], *announced, *newer[1:]])
    planned = plan(filled.kafka, filled.keyspace, TABLE, AsOf())
    for partition, end in planned.end.items():
        whole = changes_of(planned, partition, [0, end])
        assert {"value", "unreadable"} & {row["_kind"] for row in whole} == {"value"}
        assert changes_of(planned, partition, [0, *range(1, end, 5), end]) == whole


def changes_of(planned: Any, partition: int, ends: list[int]) -> list[dict[str, Any]]:
    """The changes of the ranges between offsets."""
    found: list[dict[str, Any]] = []
    for start, end in pairwise(ends):
        for table in change_batches(planned, partition, start, end, [], low=0):
            found += table.to_pylist()
    return found


def test_a_stream_ends_where_the_topic_is_another_one(shop: tuple[Shop, TestTopic]) -> None:
    """Offsets of a topic that was deleted and made again mean nothing."""
    _, filled = shop
    planned = plan(filled.kafka, filled.keyspace, TABLE, AsOf())
    stream = ChangeStream(planned, None)
    begun = stream.initialOffset()
    assert [each.value for each in stream.partitions(begun, stream.latestOffset(begun, None))] == [
        (partition, 0, 0, end) for partition, end in sorted(planned.end.items())
    ]
    again = ChangeStream(dataclasses.replace(planned, topic_id="another"), None)
    for ask in (lambda: again.latestOffset(begun, None), lambda: again.partitions(begun, begun)):
        with pytest.raises(AsOfError, match="another one"):
            ask()


def test_a_stream_goes_on_where_the_topics_beginning_is_gone(shop: tuple[Shop, TestTopic]) -> None:
    """What follows its own offsets is all it needs; a new one, and the rows as they are now, need the beginning."""
    made, filled = shop
    bound = type("Bound", (TableSource,), {"kafka": filled.kafka})
    options = {"keyspace": filled.keyspace, "table": TABLE}
    begun = bound(options)
    stream = begun.streamReader(begun.schema())
    reached = stream.latestOffset(stream.initialOffset(), None)
    described = schema(2000, columns=COLUMNS, gtid=gtid(900))
    for partition, end in filled.ends().items():
        filled.write(partition, [described, marker(2000, sequence=900)])
        filled.delete_before(partition, end - 1)
    filled.write(1, [made.partitions[1][-2], frame([(key(7), VALUE, b'{"id":7}', 2001)], gtids=[gtid(901)])])

    source = bound(options)  # as where the query is started again
    going = source.streamReader(source.schema())
    new = going.partitions(reached, going.latestOffset(reached, None))
    found = [row for each in new for batch in going.read(each) for row in batch.to_pylist()]
    assert [(row["_ordinal"], row["id"]) for row in found if row["_key"]] == [(2001, 7)], "nothing twice"
    for refused in (going.initialOffset, lambda: source.reader(source.schema())):
        with pytest.raises(OffsetsError, match="begins at offset") as gone:
            refused()
        assert gone.value.code == "offsets_expired"
    filled.write(0, [marker(2002, sequence=902)])
    filled.delete_before(0, filled.ends()[0])
    with pytest.raises(OffsetsError, match="retention has passed the stream") as passed:
        going.partitions(reached, going.latestOffset(reached, None))
    assert passed.value.code == "offsets_expired"


def test_a_table_at_a_moment_is_written_whole_or_not_at_all(
    spark: Any, shop: tuple[Shop, TestTopic], tmp_path: Path
) -> None:
    """The files hold what the table was then; what is there already is left alone."""
    made, filled = shop
    planned = plan(filled.kafka, filled.keyspace, TABLE, parse_as_of(vector(9)))
    report = write_table(spark, planned, tmp_path / "out")
    kept = [kind for kind, _ in made.states[9].values() if kind != ABSENT]
    assert (report.rows, report.incomplete) == (len(kept), True)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert sum(row["_kind"] == "value" for row in rows) == kept.count(VALUE)
    with pytest.raises(ExportError) as refused:
        write_table(spark, planned, tmp_path / "out")
    assert refused.value.code == "export_exists"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out"]


def snapshot(made: Shop, filled: TestTopic, place: Place, markers: int, directory: Path) -> tuple[Snapshot, int]:
    """A snapshot of the state after each partition's first markers, in many files; and the last transaction in it."""
    task = FoldTask(filled.keyspace, filled.topic_id(), str(directory), {0: 0, 1: 0}, {0: 0, 1: 0})
    for number, messages in enumerate(made.partitions):
        at = [place for place, each in enumerate(messages) if each[:HEADER_SIZE] == marker(1)[:HEADER_SIZE]]
        end = at[markers - 1] + 1
        with task.open(number) as fold:
            fold.fold(*in_arrow(range(end), messages[:end]))
            fold.finish()
    stores = find_stores(directory)
    with StoreView(stores[0]) as view:
        reached = int(view.head.lineages[SHARD].watermark.rpartition("-")[2])
    return write_snapshot(place, stores, made_from="owners", file_bytes=200), reached


def test_a_table_begins_with_the_newest_snapshot_before_the_moment(
    spark: Any, shop: tuple[Shop, TestTopic], tmp_path: Path
) -> None:
    """Found by itself, for each moment; the topic's beginning may be gone. Changes are in no snapshot."""
    made, filled = shop
    uri = (tmp_path / "snapshots").as_uri()
    old, after_old = snapshot(made, filled, Place(uri), 2, tmp_path / "old")
    new, after_new = snapshot(made, filled, Place(uri), 5, tmp_path / "new")
    last = len(made.states) - 1
    assert after_old < after_new < last
    beginnings = {after_old - 1: "", after_old: old.name, after_new - 1: old.name, after_new: new.name, last: new.name}
    for number, name in beginnings.items():
        planned = plan(filled.kafka, filled.keyspace, TABLE, parse_as_of(vector(number)), snapshots=uri)
        assert begun_with(planned) == ({name} if name else set()), number
        assert rows_of(planned) == images(made, number)
    at = made.times[after_old] - 1  # the source's clock was past it when the old one was made
    assert begun_with(plan(filled.kafka, filled.keyspace, TABLE, AsOf(seconds=at), snapshots=uri)) == set()
    (tmp_path / "freshet.toml").write_text(
        f'[kafka]\nbootstrap = "{filled.kafka.bootstrap}"\n[keyspaces.{filled.keyspace}]\nsnapshots = "{uri}"\n'
    )
    register(spark, tmp_path / "freshet.toml")
    read = spark.read.format("freshet").option("keyspace", filled.keyspace).option("table", TABLE)
    changes = read.option("changes", "true").load().where("_key is not null").select("_ordinal").collect()
    assert min(row["_ordinal"] for row in changes) == 3
    for partition in range(2):
        filled.delete_before(partition, old.offsets[partition])
    read = read.option("changes", "false")
    for moment, number in ((vector(after_new - 1), after_new - 1), ("", last)):
        rows = read.option("asOf", moment).load().where("_kind = 'value'").collect()
        assert {row["_key"]: row["name"] for row in rows} == images(made, number)
    with pytest.raises(OffsetsError):
        plan(filled.kafka, filled.keyspace, TABLE, parse_as_of(vector(after_old - 1)), snapshots=uri)


def test_a_damaged_snapshot_is_passed_over_and_so_is_a_place_that_does_not_answer(
    shop: tuple[Shop, TestTopic], tmp_path: Path
) -> None:
    """An older one does, or the topic from its start; a base of another topic is refused."""
    made, filled = shop
    uri = (tmp_path / "snapshots").as_uri()
    old, _ = snapshot(made, filled, Place(uri), 2, tmp_path / "old")
    new, _ = snapshot(made, filled, Place(uri), 5, tmp_path / "new")
    file = tmp_path / "snapshots" / filled.keyspace / new.name / new.partitions[1].files[0].name
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    for place, name in ((uri, old.name), ("nosuch://there", ""), ((tmp_path / "none").as_uri(), "")):
        planned = plan(filled.kafka, filled.keyspace, TABLE, AsOf(), snapshots=place)
        assert begun_with(planned) == ({name} if name else set())
        assert rows_of(planned) == images(made, len(made.states) - 1)
    filled.create_again()
    with pytest.raises(AsOfError, match="topic id"):
        plan(filled.kafka, filled.keyspace, TABLE, AsOf(), str(tmp_path / "old"))


def begun_with(planned: Plan) -> set[str]:
    """The names of the snapshots that a plan begins with."""
    return {each.snapshot.name for each in planned.base.values() if isinstance(each, FromSnapshot)}


def rows_of(planned: Plan) -> dict[str, str]:
    """Key → name of the rows whose image is known, of all partitions."""
    tables = [each for partition in planned.end for each in table_batches(planned, partition, [])]
    rows = [row for each in tables for row in each.to_pylist() if row["_kind"] == "value"]
    return {row["_key"]: row["name"] for row in rows}


def images(made: Shop, number: int) -> dict[str, str]:
    """The same from the history's own book, after a transaction."""
    state = made.states[number].items()
    return {
        key.split(b"\0")[1].decode(): image.decode().split('"')[-2] for key, (kind, image) in state if kind == VALUE
    }


@pytest.mark.nightly
def test_the_command_writes_a_table_whose_beginning_is_in_a_snapshot_alone(
    shop: tuple[Shop, TestTopic], tmp_path: Path
) -> None:
    """`freshet export --table` finds it at the place that is set for the keyspace, or given."""
    made, filled = shop
    kept, reached = snapshot(made, filled, Place(str(tmp_path / "snapshots")), 3, tmp_path / "made")
    for partition in range(2):
        filled.delete_before(partition, kept.offsets[partition])
    given = ["--keyspace", filled.keyspace, "--bootstrap", filled.kafka.bootstrap, "--master", "local[1]", "--json"]
    table = ["--table", TABLE, "--as-of", vector(reached), "--to", "out"]
    done = subprocess.run(
        [*FRESHET, "export", *given, *table, "--snapshots", "snapshots"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    present = [kind for kind, _ in made.states[reached].values() if kind != ABSENT]
    assert json.loads(done.stdout)["rows"] == len(present)
    rows = pq.read_table(tmp_path / "out").to_pylist()
    assert {row["_key"]: row["name"] for row in rows if row["_kind"] == "value"} == images(made, reached)
