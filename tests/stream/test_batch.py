"""Batches contain every change of the source transactions exactly once and in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.publish.resume import resume_point
from stream.wire.batch import Batch, BatchError, BatchLimits, Framer
from stream.wire.codec import ROW_FRAME_HEADER, decode
from stream.wire.events import (
    ABSENT,
    VALUE,
    VOID,
    BeginScope,
    Column,
    CommitTransaction,
    DescribeTable,
    OpenTransaction,
    ResumePoint,
    RowChange,
    RowImages,
    Rows,
    SingleRows,
    SourceTransaction,
    TableImage,
    VoidTable,
)
from stream.wire.frames import INT_MAX
from stream.wire.keys import KeyFormatError, Layout, row_key
from tests.stream.histories import declared, histories, partitions, read, record

SHARD = "shop/0"
TINY = BatchLimits(rows_max=3, bytes_max=120, batch_bytes=400, open_map_every=3, open_map_small=1)
HEAD = {"shard", "epoch", "ordinal", "gtid", "timestamp"}
layouts = st.builds(Layout, st.integers(1, 5), buckets=st.sampled_from([0, 4096]))
START = ResumePoint(SHARD, 1, 0, "MariaDB/0-1-0", 1_600_000_000, "MariaDB/0-1-0")


def publish(framer: Framer, txn: SourceTransaction, batches: list[Batch], start: int = 0) -> None:
    """Add a transaction as the publisher does: take the batch whenever there is no room."""
    while True:
        end = framer.room(txn, start)
        if end < 0:
            batches.append(framer.take())
            continue
        framer.add(txn, start, end)
        if end == len(txn.changes):
            return
        start = end


def _framed(history: list[SourceTransaction], layout: Layout, limits: BatchLimits = TINY) -> tuple[Framer, list[Batch]]:
    framer = Framer(SHARD, layout, START, limits)
    batches: list[Batch] = []
    for txn in history:
        publish(framer, txn, batches)
    batches.append(framer.take())
    return framer, batches


def _events(records: list[tuple[str, Any]]) -> list[tuple[int, str, Any]]:
    """Ordinal, name and own fields of the numbered records."""
    events = []
    for name, fields in records:
        if name == "row":
            events.append((fields["ordinal"], name, fields["change"]))
        elif name not in ("Marker", "SourceState"):
            own = {field: value for field, value in fields.items() if field not in HEAD}
            events.append((fields["ordinal"], name, own))
    return events


@given(histories(), layouts)
def test_each_partition_gets_its_changes_in_source_order(history: list[SourceTransaction], layout: Layout) -> None:
    """A reader sees the same changes in the same order, however transactions are split into frames and batches."""
    _, batches = _framed(history, layout)
    seen = read(batches)
    expected: dict[int, list[tuple[int, str, Any]]] = {partition: [] for partition in range(layout.partitions)}
    ordinal, prefixes = 0, dict[str, int]()
    found = {partition: dict.fromkeys(map(_ordinal, _events(seen[partition]))) for partition in expected}
    for txn in history:
        for change in txn.changes:
            ordinal += 1
            there = {partition for partition in expected if ordinal in found[partition]}
            assert there >= partitions(layout, change, prefixes)
            if isinstance(change, DescribeTable):
                prefixes[change.table] = change.prefix
            elif isinstance(change, BeginScope):
                prefixes.clear()
            for partition in there:
                expected[partition].append((ordinal, *record(txn, change)))
    assert {partition: _events(seen[partition]) for partition in expected} == expected


def _ordinal(event: tuple[int, str, Any]) -> int:
    return event[0]


def test_what_rows_were_before_changes_no_frame() -> None:
    """It is in a record of its own behind a batch's frames: who does not want it reads what there would be without."""
    rows = [RowChange(row_key("shop.t", [n]), VALUE, b"{}", b"" if n % 3 else b'{"v":%d}' % n) for n in range(20)]
    without = [RowChange(each.key, each.operation, each.image) for each in rows]
    values: list[list[bytes]] = []
    for changes in (rows, without):
        framer = Framer(SHARD, Layout(2), START, BatchLimits(rows_max=3))
        framer.add(SourceTransaction("MariaDB/0-1-1", "MariaDB/0-1-1", 1, changes), 0, 20)
        values.append([value for _, value in framer.take().records])
    named = [decode(value) for value in values[0]]
    assert [value for (name, _), value in zip(named, values[0], strict=True) if name != "BeforeImages"] == values[1]
    told = [record for name, record in named if name == "BeforeImages"]
    assert len(told) == 2, "one a partition"
    found = {
        each["ordinal"] + at: image for each in told for at, image in zip(each["ordinals"], each["images"], strict=True)
    }
    assert found == {n + 1: rows[n].before for n in range(20)}
    partition = [name for name, _ in named][: len(named) // 2]
    assert partition.index("BeforeImages") > max(n for n, name in enumerate(partition) if name == "RowFrame")


def test_what_a_row_was_before_is_not_told_where_its_image_would_not_be() -> None:
    """Above the wire's limit, and of tables whose changes are published without images."""
    limits = BatchLimits(image_bytes_max=10, bytes_max=50)
    large = RowChange(row_key("shop.t", [1]), VALUE, b"{}", b"x" * 11)
    hidden = RowChange(row_key("shop.secret", [1]), VALUE, b"{}", b"{}")
    small = [RowChange(row_key("shop.t", [n]), ABSENT, before=b"y" * 10) for n in range(2, 12)]
    framer = Framer(SHARD, Layout(1), START, limits, invalidated=["shop.secret"])
    framer.add(SourceTransaction("MariaDB/0-1-1", "MariaDB/0-1-1", 1, [hidden, large, *small]), 0, 12)
    told = [
        record for name, record in map(decode, (value for _, value in framer.take().records)) if name == "BeforeImages"
    ]
    assert [each["ordinal"] + at for each in told for at in each["ordinals"]] == list(range(3, 13))
    assert len(told) > 2, "a message is no larger than a frame"


@given(histories(), layouts)
def test_ordinals_are_complete_over_all_partitions(history: list[SourceTransaction], layout: Layout) -> None:
    """The changes are numbered 1 to n without a gap, since a gap would be a lost event."""
    framer, batches = _framed(history, layout)
    numbers = {ordinal for records in read(batches).values() for ordinal, *_ in _events(records)}
    total = sum(len(txn.changes) for txn in history)
    assert numbers == set(range(1, total + 1))
    assert framer.resume.ordinal == total


@given(histories(), layouts)
def test_a_marker_is_true(history: list[SourceTransaction], layout: Layout) -> None:
    """Everything up to a marker's position, and nothing later unless it is not whole, comes before the marker."""
    _, batches = _framed(history, layout)
    ends = {"MariaDB/0-1-0": 0}
    ordinal = 0
    for txn in history:
        ordinal += len(txn.changes)
        ends[txn.position] = ordinal
    seen = read(batches)
    everything = {partition: [event[0] for event in _events(seen[partition])] for partition in seen}
    for partition, records in seen.items():
        before: list[int] = []
        for name, fields in records:
            if name == "Marker":
                upto = fields["ordinal"]
                assert upto == ends[fields["position"]]
                assert [each for each in everything[partition] if each <= upto] == [e for e in before if e <= upto]
                assert not fields["whole"] or all(each <= upto for each in before)
                assert fields["layout"] == str(layout)
            elif name != "SourceState":
                before.append(fields["ordinal"])


@given(histories(), layouts)
def test_each_batch_ends_with_a_marker_everywhere_and_one_state(
    history: list[SourceTransaction], layout: Layout
) -> None:
    """Every batch ends with a marker in each partition, then the state in the home partition."""
    _, batches = _framed(history, layout)
    for batch in batches:
        last = {partition: decode(value)[0] for partition, value in batch.records[:-1]}
        assert last == dict.fromkeys(range(layout.partitions), "Marker")
        home, state = batch.records[-1]
        assert (home, decode(state)[0]) == (layout.home_partition(SHARD), "SourceState")


@given(histories(), layouts, st.data())
def test_a_publisher_that_dies_between_batches_resumes_exactly(
    history: list[SourceTransaction], layout: Layout, data: st.DataObject
) -> None:
    """The states alone let a restart continue after the last published change, also inside a transaction."""
    _, whole = _framed(history, layout)
    survived: list[Batch] = []
    published = iter(history)
    framer = Framer(SHARD, layout, START, TINY)
    for _ in range(data.draw(st.integers(0, 3))):
        batches: list[Batch] = []
        for txn in list(published):
            publish(framer, txn, batches, framer.resume.partial_events if framer.partial_gtid == txn.gtid else 0)
        batches.append(framer.take())
        survived += batches[: data.draw(st.integers(0, len(batches)))]
        states = [decode(batch.records[-1][1])[1] for batch in survived]
        point = resume_point(states) if states else START
        done = [txn.position for txn in history].index(point.position) + 1 if point.position != START.position else 0
        published = iter(history[done:])
        framer = Framer(SHARD, layout, point, TINY, declared=declared(survived, SHARD, 1))
    for txn in published:
        publish(framer, txn, survived, framer.resume.partial_events if framer.partial_gtid == txn.gtid else 0)
    survived.append(framer.take())
    once, again = read(whole), read(survived)
    assert {p: _events(again[p]) for p in again} == {p: _events(once[p]) for p in once}


@given(histories(), st.integers(1, 4))
def test_the_map_of_open_transactions_survives_in_the_states(history: list[SourceTransaction], every: int) -> None:
    """The last whole map and the deltas since give the publisher's map, wherever the topic ends."""
    layout, limits = Layout(2), BatchLimits(batch_bytes=300, open_map_every=every, open_map_small=0)
    framer = Framer(SHARD, layout, START, limits)
    batches: list[Batch] = []
    expected: dict[int, OpenTransaction] = {}
    for txn in history:
        publish(framer, txn, batches)
        batches.append(framer.take())
        expected.update((each.txn, each) for each in txn.opened)
        for closed in txn.closed:
            expected.pop(closed, None)
        states = [decode(batch.records[-1][1])[1] for batch in batches]
        point = resume_point(states)
        assert point.open_transactions == expected == framer.resume.open_transactions
        assert point == framer.resume


def _rows(count: int, size: int = 10) -> list[Any]:
    return [RowChange(row_key("t", [n]), VALUE, b"{%s}" % (b"x" * size)) for n in range(count)]


def _txn(number: int, changes: list[Any], **more: Any) -> SourceTransaction:
    return SourceTransaction(f"MariaDB/0-1-{number}", f"MariaDB/0-1-{number}", 1_700_000_000, changes, **more)


def test_many_small_transactions_share_a_frame() -> None:
    """At full rate many transactions share one frame, so that a reader pays per frame."""
    _, batches = _framed([_txn(n, _rows(1)) for n in range(1, 101)], Layout(1), BatchLimits())
    [batch] = batches
    name, frame = decode(batch.records[0][1])
    assert (name, len(frame["keys"]), len(frame["gtids"]), frame["positions"]) == ("RowFrame", 100, 100, [])
    assert (batch.rows, batch.transactions, batch.events) == (100, 100, 100)


def test_frames_are_bounded_in_rows_and_bytes() -> None:
    """No frame grows so large that a reader stalls on it."""
    _, batches = _framed([_txn(1, _rows(1200))], Layout(1), BatchLimits())
    counts = [len(decode(v)[1]["keys"]) for _, v in batches[0].records if decode(v)[0] == "RowFrame"]
    assert counts == [500, 500, 200]
    _, batches = _framed([_txn(1, _rows(10, 100_000))], Layout(1), BatchLimits())
    sizes = [len(v) for _, v in batches[0].records if decode(v)[0] == "RowFrame"]
    assert len(sizes) == 4
    assert max(sizes) < 400_000


@given(
    st.dictionaries(st.integers(0, 10_000), st.integers(1, 400).map(lambda size: b"x" * size), min_size=1, max_size=60),
    layouts,
    st.integers(0, 1),
    st.sampled_from([TINY, BatchLimits(rows_max=5), BatchLimits(image_bytes_max=300, key_bytes_max=9), BatchLimits()]),
    st.sampled_from([(), ("d.t",), ("d.other",)]),
)
def test_rows_as_columns_are_published_as_one_by_one(
    images: dict[int, bytes], layout: Layout, prefix: int, limits: BatchLimits, invalidated: tuple[str, ...]
) -> None:
    """A reader sees the same rows at the same ordinals, and no frame has more rows than it may."""
    keys = [row_key("d.t", [number, 1]) for number in images]
    as_columns = RowImages("d.t", keys, [*images.values()])
    told = DescribeTable("d.t", (), ("a", "b"), prefix=prefix)
    found = []
    for changes in ([*as_columns], as_columns):
        framer = Framer(SHARD, layout, START, limits, invalidated=invalidated)
        batches: list[Batch] = []
        for number, each in enumerate(([told], changes, changes), 1):
            publish(framer, _txn(number, each), batches)  # type: ignore[arg-type]
        batches.append(framer.take())
        found.append({partition: _events(events) for partition, events in read(batches).items()})
        frames = [decode(value)[1] for batch in batches for _, value in batch.records if value[:10] == ROW_FRAME_HEADER]
        assert all(len(frame["keys"]) <= limits.rows_max for frame in frames)
    assert found[0] == found[1]


def test_a_giant_transaction_is_alone_in_its_batches_until_it_ends() -> None:
    """Markers inside a split transaction repeat the last whole position and are not whole."""
    small, giant, after = _txn(1, _rows(2)), _txn(2, _rows(400)), _txn(3, _rows(1))
    _, batches = _framed([small, giant, after], Layout(2), BatchLimits(batch_bytes=4096))
    markers = [decode(v)[1] for batch in batches for p, v in batch.records if p == 0 and decode(v)[0] == "Marker"]
    assert len(batches) > 3
    assert (markers[0]["position"], markers[0]["ordinal"], markers[0]["whole"]) == (small.position, 2, True)
    for marker in markers[1:-1]:
        assert (marker["position"], marker["ordinal"], marker["whole"]) == (small.position, 2, False)
    assert (markers[-1]["position"], markers[-1]["ordinal"], markers[-1]["whole"]) == (after.position, 403, True)
    for batch in batches[1:-1]:
        gtids = {g for _, v in batch.records if decode(v)[0] == "RowFrame" for g in decode(v)[1]["gtids"]}
        assert gtids == {giant.gtid}


def test_descriptions_of_wide_tables_are_spread_over_batches() -> None:
    """A source describes all its tables in one transaction. A batch beyond the producer's queue could never be sent."""
    columns = tuple(Column(f"a_column_of_many_{number}", "text", True, "varchar(255)") for number in range(200))
    told = [DescribeTable(f"d.t{number}", columns, (columns[0].name,)) for number in range(100)]
    limits = BatchLimits(batch_bytes=1 << 20)
    _, batches = _framed([_txn(1, told)], Layout(64), limits)
    assert max(batch.bytes for batch in batches) < 2 * limits.batch_bytes


def test_an_image_above_the_bound_is_published_as_void() -> None:
    """A row that is too large is read through and does not stop the stream."""
    _, batches = _framed([_txn(1, [RowChange(b"t\0[1]", VALUE, b"x" * 900_001)])], Layout(1), BatchLimits())
    frame = decode(batches[0].records[0][1])[1]
    assert (frame["operations"], frame["images"]) == (bytes([VOID]), [b""])


def test_a_table_of_mode_invalidate_is_published_without_images() -> None:
    """Its rows are VOID: changed. Deletions are what they are, and other tables keep their images."""
    framer = Framer(SHARD, Layout(1), START, invalidated=["d.t"])
    changes = [RowChange(b"d.t\0[1]", VALUE, b"{}"), RowChange(b"d.t\0[2]", ABSENT)]
    publish(framer, _txn(1, [*changes, RowChange(b"d.t2\0[1]", VALUE, b"{}")]), [])
    frame = decode(framer.take().records[0][1])[1]
    assert (frame["operations"], frame["images"]) == (bytes([VOID, ABSENT, VALUE]), [b"", b"", b"{}"])


def a_run(*timestamps: int) -> SingleRows:
    """Transactions of these times that each insert a row."""
    gtids = [f"MariaDB/0-1-{number}" for number, _ in enumerate(timestamps, 1)]
    rows = Rows([row_key("d.t", [gtid]) for gtid in gtids], bytearray([VALUE]) * len(gtids), [b"{}"] * len(gtids))
    said: dict[str, Any] = {"gtids": gtids, "positions": gtids, "timestamps": [*timestamps]}
    return SingleRows(gtids[-1], gtids[-1], timestamps[-1], rows, **said)


@pytest.mark.parametrize(("invalidated", "is_taken"), [([], True), (["d.other"], False), (["d.t"], False)])
def test_a_run_is_not_taken_while_a_table_is_of_mode_invalidate(invalidated: list[str], *, is_taken: bool) -> None:
    """Its rows go into frames with their images, as they are: each of its transactions has to be looked at."""
    assert Framer(SHARD, Layout(1), START, invalidated=invalidated).takes(a_run(5, 6)) is is_taken


def test_a_batch_is_as_late_as_the_latest_transaction_of_a_run() -> None:
    """Clocks go back. Kafka's times must not, or a search by time would begin too late."""
    late = START.timestamp + 9
    framer = Framer(SHARD, Layout(1), START)
    framer.add_run(a_run(late - 4, late, late - 2))
    assert framer.take().timestamp_max == late


def test_a_key_above_the_bound_voids_its_table() -> None:
    """A row whose key is too large must not leave its old entry fresh."""
    change = RowChange(row_key("t", ["k" * 70_000]), VALUE, b"{}")
    _, batches = _framed([_txn(1, [change])], Layout(3), BatchLimits())
    voids = [p for p, v in batches[0].records if decode(v)[0] == "TableVoid" and decode(v)[1]["table"] == "t"]
    assert voids == [0, 1, 2]


def test_a_table_image_above_the_bound_becomes_an_awaited_write() -> None:
    """A table image that is too large is replaced by a write without image."""
    change = TableImage(7, "db.t", "transactional", "image", image=b"x" * 100)
    _, batches = _framed([_txn(1, [change])], Layout(1), BatchLimits(table_image_bytes_max=99))
    fields = decode(batches[0].records[0][1])[1]
    assert (fields["change"], fields["image"]) == ("written", None)


def test_a_commit_also_goes_where_its_transaction_wrote_without_a_write_id() -> None:
    """A COMMIT reaches every partition with an object that its transaction touched."""
    layout = Layout(64)
    opened = OpenTransaction(5, ((7, 1),), True, (8, 9))
    first = _txn(1, [], opened=(opened,))
    _, batches = _framed([first, _txn(2, [CommitTransaction(5, ((6, 1),))], closed=(5,))], layout, BatchLimits())
    there = {p for batch in batches for p, v in batch.records if decode(v)[0] == "CommitTxn"}
    assert there == {layout.table_partition(table) for table in (6, 7, 8, 9)}


def test_a_new_epoch_starts_alone_and_numbers_from_one() -> None:
    """A new epoch voids the old one in every partition and moves the low-water to its start."""
    framer, _ = _framed([_txn(1, _rows(3))], Layout(2), BatchLimits())
    framer.start_epoch("MariaDB/0-2-900", 1_700_000_100, "history_lost")
    with pytest.raises(BatchError):
        framer.start_epoch("MariaDB/0-2-900", 1_700_000_100, "history_lost")
    records = read([framer.take()])
    for partition in (0, 1):
        name, start = records[partition][0]
        assert (name, start["epoch"], start["ordinal"], start["position"]) == ("EpochStart", 2, 1, "MariaDB/0-2-900")
        marker = records[partition][1][1]
        assert (marker["epoch"], marker["ordinal"], marker["low_water"]) == (2, 1, "MariaDB/0-2-900")
    state = records[framer.layout.home_partition(SHARD)][-1][1]
    assert (state["sequence"], state["whole"]) == (1, True)


def test_an_epoch_never_goes_back() -> None:
    """An epoch below the current one is refused, because every store would drop its events."""
    framer = Framer(SHARD, Layout(1), START)
    with pytest.raises(BatchError):
        framer.start_epoch("MariaDB/0-1-1", 0, "restored", epoch=1)


def test_nothing_is_published_before_an_epoch_has_started() -> None:
    """A batch without an epoch is refused, because its records would have no order."""
    with pytest.raises(BatchError):
        Framer(SHARD, Layout(1)).take()


def test_only_the_partly_published_transaction_may_follow() -> None:
    """A source that resumed elsewhere must not mix its rows into a partly published transaction."""
    point = ResumePoint(
        SHARD, 1, 5, "MariaDB/0-1-1", 0, "MariaDB/0-1-0", partial_gtid="MariaDB/0-1-2", partial_events=3
    )
    with pytest.raises(BatchError):
        Framer(SHARD, Layout(1), point).add(_txn(3, _rows(5)), 0, 5)
    with pytest.raises(BatchError):
        Framer(SHARD, Layout(1), point).add(_txn(2, _rows(5)), 0, 5)
    with pytest.raises(BatchError):
        Framer(SHARD, Layout(1), point).advance("MariaDB/0-1-2", 0)
    framer = Framer(SHARD, Layout(1), point)
    framer.add(_txn(2, _rows(5)), 3, 5)
    assert (framer.resume.ordinal, framer.resume.partial_gtid) == (7, "")


@pytest.mark.parametrize("change", [RowChange(b"no separator", VALUE, b"{}"), RowChange(b"\0[1]", VALUE, b"{}")])
def test_a_row_without_a_table_is_refused_at_the_publisher(change: RowChange) -> None:
    """An invalid key is refused when published, so that it does not become a poison message for every reader."""
    with pytest.raises(KeyFormatError):
        _framed([_txn(1, [change])], Layout(1))


def test_an_invalid_operation_is_refused_at_the_publisher() -> None:
    """An unknown operation is refused when published, so that it does not become a poison message."""
    with pytest.raises(BatchError):
        _framed([_txn(1, [RowChange(b"t\0[1]", 4, b"")])], Layout(1))


def test_a_value_without_an_image_is_published_as_void() -> None:
    """An empty image is published as void, never as a known value."""
    _, batches = _framed([_txn(1, [RowChange(b"t\0[1]", VALUE, b"")])], Layout(1))
    assert decode(batches[0].records[0][1])[1]["operations"] == bytes([VOID])


def test_ordinals_far_apart_start_a_new_frame() -> None:
    """A new frame starts where the relative ordinals would not fit Avro's int."""
    framer = Framer(SHARD, Layout(2), START)
    key = next(row_key("t", [n]) for n in range(99) if Layout(2).partition_of(row_key("t", [n])) == 0)
    framer.add(_txn(1, [RowChange(key, VALUE, b"{}")]), 0, 1)
    framer._at.ordinal += INT_MAX
    framer.add(_txn(2, [RowChange(key, VALUE, b"{}"), VoidTable("t", "x")]), 0, 2)
    frames = [decode(v)[1] for p, v in framer.take().records if decode(v)[0] == "RowFrame"]
    assert [frame["ordinals"] for frame in frames] == [[1], [1]]


@pytest.mark.parametrize(
    "limits", [BatchLimits(bytes_max=16 << 20), BatchLimits(table_image_bytes_max=16 << 20), BatchLimits(rows_max=0)]
)
def test_limits_that_allow_a_frame_no_topic_takes_are_refused(limits: BatchLimits) -> None:
    """Limits that allow messages too large for the topic are refused, since they would stop the publisher."""
    BatchLimits(bytes_max=8 << 20).check(12 << 20)
    with pytest.raises(BatchError) as refused:
        limits.check(12 << 20)
    assert refused.value.code == "bad_limits"
