"""What is read of a table: where it begins, what it knows of before, and what ends it; over a topic in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from consumers.snapshots.places import Place
from freshet.commands.export import _export_table
from spark_jobs.offsets import OffsetsError
from spark_jobs.session import SparkSettings
from spark_jobs.source.cut import AsOf, AsOfError, parse_as_of
from spark_jobs.source.datasource import ChangeStream, TableSource
from spark_jobs.source.reading import LOOK_BACK, plan
from stream.wire.codec import HEADER_SIZE, decode, encode
from stream.wire.events import VALUE
from tests.consumers.histories import frame, gtid, key, marker
from tests.consumers.owning import schema, vector
from tests.spark_jobs.in_memory import TopicInMemory
from tests.spark_jobs.source.shop import COLUMNS, Shop
from tests.spark_jobs.source.test_datasource import TABLE, begun_with, changes_of, images, rows_of, snapshot

Made = tuple[Shop, TopicInMemory]


@pytest.fixture
def shop(in_memory: Callable[[int], TopicInMemory]) -> Made:
    """A history in a topic; the end of it twice, as a publisher that tries again writes it."""
    made, filled = Shop(Random(11)), in_memory(2)
    for partition, messages in enumerate(made.partitions):
        filled.write(partition, [*messages, messages[-2], messages[-1]])
    return made, filled


def test_changes_are_those_of_the_topic_whatever_a_snapshot_has(shop: Made, tmp_path: Path) -> None:
    """The rows begin with the newest one before the moment, which nobody asked for; there are no changes in it.

    Where the topic's beginning is gone, the rows are read all the same, and the changes are refused. A base that was
    asked for is where they begin.
    """
    made, filled = shop
    uri, last = (tmp_path / "snapshots").as_uri(), len(made.states) - 1
    old, after_old = snapshot(made, filled, Place(uri), 2, tmp_path / "old")
    new, after_new = snapshot(made, filled, Place(uri), 5, tmp_path / "new")
    for number, name in ((after_old - 1, ""), (after_new - 1, old.name), (last, new.name)):
        planned = plan(filled.kafka, "shop", TABLE, parse_as_of(vector(number)), snapshots=uri)
        assert (begun_with(planned), planned.of_changes().start) == ({name} - {""}, {0: 0, 1: 0})
        assert rows_of(planned) == images(made, number)
    for partition, offset in old.offsets.items():
        filled.delete_before(partition, offset)
    planned = plan(filled.kafka, "shop", TABLE, parse_as_of(vector(after_new - 1)), snapshots=uri)
    assert rows_of(planned) == images(made, after_new - 1)
    with pytest.raises(OffsetsError) as gone:
        planned.of_changes().check_whole()
    assert gone.value.code == "offsets_expired"
    with pytest.raises(OffsetsError):
        plan(filled.kafka, "shop", TABLE, parse_as_of(vector(after_old - 1)), snapshots=uri)
    asked = plan(filled.kafka, "shop", TABLE, AsOf(), str(tmp_path / "old"))
    asked.of_changes().check_whole()
    assert asked.of_changes().start == old.offsets


def test_a_plan_that_need_not_be_whole_still_has_its_moment_in_what_is_retained(shop: Made) -> None:
    """A stream that goes on needs a description alone; what is asked for as of a moment needs all before it."""
    made, filled = shop
    number = len(made.states) - 1
    described = schema(2_000, columns=COLUMNS, gtid=gtid(900))
    for partition, end in filled.ends().items():
        filled.write(partition, [described, marker(2_000, sequence=900)])
        filled.delete_before(partition, end - 1)
    plan(filled.kafka, "shop", TABLE, AsOf(), whole=False)
    for moment, whole in ((AsOf(), True), (parse_as_of(vector(number)), False)):
        with pytest.raises(OffsetsError) as gone:
            plan(filled.kafka, "shop", TABLE, moment, whole=whole)
        assert gone.value.code == "offsets_expired"


def test_a_table_now_ends_where_all_partitions_can_be_read_to_and_its_changes_do_not(
    shop: Made, tmp_path: Path
) -> None:
    """Half of a transaction is in no table; in the changes it is, since a stream of them goes on there.

    The newest snapshot may have that half: the one before it does.
    """
    made, filled = shop
    uri, last = (tmp_path / "snapshots").as_uri(), len(made.states) - 1
    old, _ = snapshot(made, filled, Place(uri), 2, tmp_path / "old")
    half = frame([(key(2), VALUE, b'{"id":2,"name":"half"}', 5_000)], gtids=[gtid(last + 1)])
    halved = encode("Marker", decode(made.partitions[0][-1])[1] | {"whole": False})
    for partition, more in enumerate(([half, halved], [halved])):
        made.partitions[partition] += more
        filled.write(partition, more)
    markers = sum(each[:HEADER_SIZE] == halved[:HEADER_SIZE] for each in made.partitions[1])
    snapshot(made, filled, Place(uri), markers, tmp_path / "new")
    planned = plan(filled.kafka, "shop", TABLE, AsOf(), snapshots=uri)
    assert begun_with(planned) == {old.name}
    assert rows_of(planned) == images(made, last)
    changes = planned.of_changes()
    told = changes_of(changes, 0, [0, changes.end[0]])
    assert [row["name"] for row in told if row["_ordinal"] == 5_000] == ["half"]


def halved(made: Shop, filled: TopicInMemory) -> int:
    """Half of a transaction, which describes the table anew, in the topic; and how many markers a partition has."""
    half = frame([(key(2), VALUE, b'{"id":2,"name":"half","more":7}', 5_001)], gtids=[gtid(len(made.states))])
    more = {"name": "more", "kind": "int", "exact": True}
    described = schema(5_000, columns=[*COLUMNS, more], gtid=gtid(len(made.states)))
    last = encode("Marker", decode(made.partitions[0][-1])[1] | {"whole": False})
    for partition, messages in enumerate(([described, half, last], [described, last])):
        made.partitions[partition] += messages
        filled.write(partition, messages)
    return sum(each[:HEADER_SIZE] == last[:HEADER_SIZE] for each in made.partitions[1])


def test_changes_and_streams_begin_with_a_base_that_no_rows_begin_with(
    shop: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have no cut, so a base amid a transaction is in nobody's way. For rows it is refused before Spark starts."""
    made, filled = shop
    base = tmp_path / "base"
    snapshot(made, filled, Place((tmp_path / "kept").as_uri()), halved(made, filled), base)
    # the half is behind the base's offset once more, since the topic has the end of the history twice
    filled.write(0, [frame([(key(2), VALUE, b'{"id":2,"name":"other","more":8}', 5_002)], gtids=[gtid(99)])])
    bound: Any = type("Bound", (TableSource,), {"kafka": filled.kafka})
    options = {"keyspace": "shop", "table": TABLE, "base": str(base)}
    changes = bound({**options, "changes": "true"})
    assert [each.name for each in changes.schema()][-3:] == ["id", "name", "more"]
    reader = changes.reader(changes.schema())
    [told] = [batch.to_pylist() for batch in reader.read(reader.partitions()[0])]
    assert [(row["name"], row["more"]) for row in told if row["_key"]] == [("half", 7), ("other", 8)]
    for more in ({}, {"changes": "true"}):
        source = bound({**options, **more})
        stream = source.streamReader(source.schema())
        begun = stream.initialOffset()
        [new] = [each for each in stream.partitions(begun, stream.latestOffset(begun, None)) if each.value[0] == 0]
        [told] = [batch.to_pylist() for batch in stream.read(new)]
        assert [row["name"] for row in told if row["_key"]] == ["half", "other"]
    with pytest.raises(AsOfError) as refused:
        bound(options).reader(bound(options).schema())
    assert refused.value.code == "as_of_ahead"
    monkeypatch.setattr("spark_jobs.session.spark_session", None)
    place, spark = ("shop", TABLE, "parquet"), SparkSettings()
    with pytest.raises(AsOfError) as refused:
        _export_table(filled.kafka, place, "", (base, ""), tmp_path / "out", spark, as_json=True)
    assert refused.value.code == "as_of_ahead"


def test_a_snapshot_that_has_too_much_is_told_of_where_the_topics_beginning_is_gone(shop: Made, tmp_path: Path) -> None:
    """It can be read from in some seconds; of retention nothing has to be said."""
    made, filled = shop
    uri = (tmp_path / "snapshots").as_uri()
    kept, _ = snapshot(made, filled, Place(uri), halved(made, filled), tmp_path / "new")
    for partition, offset in kept.offsets.items():
        filled.delete_before(partition, offset)
    with pytest.raises(AsOfError) as refused:
        plan(filled.kafka, "shop", TABLE, AsOf(), snapshots=uri).check_whole()
    assert refused.value.code == "as_of_ahead"


def test_a_base_of_another_topic_is_refused(shop: Made, tmp_path: Path) -> None:
    """A snapshot of it is passed over, since nobody asked for it."""
    made, filled = shop
    uri = (tmp_path / "snapshots").as_uri()
    snapshot(made, filled, Place(uri), 2, tmp_path / "old")
    filled.create_again()
    with pytest.raises(AsOfError, match="topic id"):
        plan(filled.kafka, "shop", TABLE, AsOf(), str(tmp_path / "old"))
    assert begun_with(plan(filled.kafka, "shop", TABLE, AsOf(), snapshots=uri)) == set()


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("look_back", [1, LOOK_BACK])
def test_micro_batches_of_any_size_have_each_change_once(
    size: int, look_back: int, shop: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far back it has to be looked for the last place of a shard."""
    monkeypatch.setattr("spark_jobs.source.reading.LOOK_BACK", look_back)
    planned = plan(shop[1].kafka, "shop", TABLE, AsOf())
    for partition, end in planned.end.items():
        whole = changes_of(planned, partition, [0, end])
        assert changes_of(planned, partition, [*range(0, end, size), end]) == whole
        ordinals = [row["_ordinal"] for row in whole if row["_key"]]
        assert ordinals == sorted(set(ordinals)) != []


def test_a_stream_reads_what_is_new_in_the_same_topic(shop: Made) -> None:
    """Ranges with something new, each with what is retained before it; another topic of the name ends the stream."""
    made, filled = shop
    planned = plan(filled.kafka, "shop", TABLE, AsOf())
    stream = ChangeStream(planned, None)
    begun, ends = stream.initialOffset(), filled.ends()
    reached = stream.latestOffset(begun, None)
    assert [each.value for each in stream.partitions(begun, reached)] == [(0, 0, 0, ends[0]), (1, 0, 0, ends[1])]
    filled.delete_before(1, ends[1])
    filled.write(1, [made.partitions[1][-1]])
    later = stream.latestOffset(reached, None)
    assert [each.value for each in stream.partitions(reached, later)] == [(1, ends[1], ends[1], ends[1] + 1)]
    filled.delete_before(1, ends[1] + 1)
    with pytest.raises(OffsetsError) as passed:
        stream.partitions(reached, later)
    assert passed.value.code == "offsets_expired"
    with pytest.raises(AsOfError, match="other partitions"):
        stream.partitions({**reached, "offsets": {"0": 0}}, later)
    filled.create_again()
    with pytest.raises(AsOfError, match="another one"):
        stream.latestOffset(later, None)
    with pytest.raises(AsOfError, match="another one"):
        stream.partitions({**reached, "topic_id": filled.topic_id()}, later)


def test_a_source_asks_for_what_its_options_say(shop: Made) -> None:
    """A stream has no moment, and a table must be named."""
    bound: Any = type("Bound", (TableSource,), {"kafka": shop[1].kafka})
    named = {"keyspace": "shop", "table": TABLE}
    assert [each.name for each in bound(named).schema()][-2:] == ["id", "name"]
    with pytest.raises(AsOfError, match="takes no asOf"):
        bound({**named, "asOf": vector(3)}).streamReader(None)
    for name in named:
        with pytest.raises(AsOfError, match=f"{name} is missing"):
            bound({**named, name: ""}).schema()
    reader = bound({**named, "asOf": vector(3), "changes": "TRUE"}).reader(bound(named).schema())
    assert len(reader.partitions()) == 2
    assert reader._planned.cut != {}
