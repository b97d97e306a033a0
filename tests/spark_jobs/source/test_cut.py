"""A table as of a token or a time is what it was after that transaction, in all partitions at once."""

from __future__ import annotations

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.partition import FoldTask
from spark_jobs.source.cut import AsOf, AsOfError, Cut, Survey, _shortened, cutter, parse_as_of
from spark_jobs.source.datasource import TableReader
from spark_jobs.source.filters import keeps, only_partition, used
from spark_jobs.source.reading import Plan, _places_before
from spark_jobs.source.table import Base, TablePartition
from stream.kafka.connection import KafkaCluster
from stream.wire.codec import HEADER_SIZE, PartitionReader, decode, encode
from stream.wire.events import ABSENT, VALUE
from stream.wire.keys import Layout
from tests.consumers.histories import (
    SHARD,
    Folded,
    encode_version_1,
    event,
    frame,
    gtid,
    key,
    marker,
    of_tomorrow,
    start,
)
from tests.consumers.owning import schema, vector
from tests.spark_jobs.source.shop import BEGUN, COLUMNS, LAYOUT, Shop, void
from tests.spark_jobs.topics import in_arrow
from tokens import Position, Vector

FRAME: dict[str, Any] = {
    "shard": SHARD,
    "epoch": 1,
    "ordinal": 2,
    "keys": [key(1)],
    "images": [b"{}"],
    "operations": bytes([VALUE]),
    "ordinals": [1],
    "transactions": [1],
    "gtids": [gtid(3)],
    "positions": [],
    "timestamps": [BEGUN],
    "origins": [],
}
"""A frame of one row."""


def survey(shop: Shop, as_of: AsOf) -> Survey:
    """What the partitions say of a moment."""
    found = Survey("shop.items", as_of)
    for partition, messages in enumerate(shop.partitions):
        found.read(partition, messages)
    return found


def table(shop: Shop, cut: Cut, bases: dict[int, Base] | None = None) -> dict[bytes, tuple[str, Any]]:
    """Key → kind and image of all rows at a cut."""
    rows: dict[bytes, tuple[str, Any]] = {}
    for number, messages in enumerate(shop.partitions):
        base = (bases or {}).get(number)
        partition = TablePartition("shop.items", number, cut, base)
        first = base.head.offset if base else 0
        partition.fold(list(enumerate(messages))[first:])
        for row in partition.rows():
            if row["_kind"] != "incomplete":
                rows[f"shop.items\0{row['_key']}".encode()] = row["_kind"], row.get("image", {}).get("name")
    return rows


def expected(shop: Shop, number: int) -> dict[bytes, tuple[str, Any]]:
    """The same from the history's own book."""
    kinds = {key: each for key, each in shop.states[number].items() if each[0] != ABSENT}
    return {
        key: ("value", image.decode().split('"')[-2]) if kind == VALUE else ("void", None)
        for key, (kind, image) in kinds.items()
    }


def test_frames_of_a_newer_version_are_cut_too() -> None:
    """What is announced is read as by the fold: a row of later is not in the table of before."""
    told: dict[str, Any] = {"layout": LAYOUT, "as_of_ms": 0}
    later, announced = of_tomorrow(frame([(key(1), VALUE, b'{"name":"late"}', 4)]))
    messages = [start(), schema(2), announced, frame([(key(1), VALUE, b'{"name":"early"}', 3)]), marker(3, **told)]
    shop = Shop(Random(0))
    shop.partitions = [[*messages, later, marker(4, **told)]]
    cut = survey(shop, parse_as_of(vector(3))).cut
    assert cut == {SHARD: (1, 4)}
    assert table(shop, cut) == {key(1): ("value", "early")}


def test_behind_a_base_they_are_read_by_what_it_holds_as_announced() -> None:
    """The announcement lies before it, and is not read again."""
    told: dict[str, Any] = {"layout": LAYOUT, "as_of_ms": 0}
    later, announced = of_tomorrow(frame([(key(1), VALUE, b'{"name":"late"}', 4)]))
    early = frame([(key(1), VALUE, b'{"name":"early"}', 3)])
    folded = Folded(start(), schema(2), announced, early, marker(3, **told))
    base, offset = Base(folded.state.head, folded.entries), folded.state.head.offset
    shop, found = Shop(Random(0)), Survey("shop.items", parse_as_of(vector(3)))
    found.read(0, [later, marker(4, **told)], base.reached(), base.texts())
    assert found.cut == {SHARD: (1, 4)}
    shop.partitions = [[*[b""] * offset, later, marker(4, **told)]]
    assert table(shop, found.cut, {0: base}) == {key(1): ("value", "early")}


@pytest.mark.parametrize("seed", range(6))
def test_a_table_as_of_each_token_is_what_it_was_then(seed: int) -> None:
    """After every transaction, also in the middle of frames, and from a token's text."""
    shop = Shop(Random(seed))
    for number in range(1, len(shop.states)):
        found = survey(shop, parse_as_of(vector(number)))
        assert table(shop, found.cut) == expected(shop, number), number
        assert found.description().primary_key == ("id",)


@pytest.mark.parametrize(
    ("token", "cut", "names"),
    [
        ("0-1-3,1-1-1", 5, ("a", "a")),
        ("0-1-4,1-1-1", 6, ("b", "a")),
        ("0-1-3,1-1-2", 8, ("b", "c")),
        ("0-1-3,1-1-3", 9, ("b", "d")),
        ("0-1-4,1-1-3", 9, ("b", "d")),
    ],
)
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_token_with_gaps_gets_all_that_it_has(token: str, cut: int, names: tuple[str, str], partitions: int) -> None:
    """Of two domains a session may have seen the later transaction: its own write must be in the table."""

    def rows(number: int, names: str, ordinal: int, gtid: str) -> bytes:
        """A transaction that writes these names to one row, in turn."""
        images = [b'{"name":"%s"}' % each.encode() for each in names]
        written = [(key(number), VALUE, image, ordinal + at) for at, image in enumerate(images)]
        return frame(written, gtids=[f"MariaDB/{gtid}"], transactions=[len(names)], timestamps=[BEGUN])

    first = [rows(1, "a", 3, "0-1-3"), rows(1, "b", 5, "0-1-4"), rows(1, "e", 9, "0-1-5")]
    second = [rows(2, "a", 4, "1-1-1"), rows(2, "bc", 6, "1-1-2"), rows(2, "d", 8, "1-1-3"), rows(2, "e", 10, "1-1-4")]
    begin, end = [start(), schema(2, gtid="MariaDB/0-1-2")], [marker(10, position="MariaDB/0-1-5,1-1-4", layout=LAYOUT)]
    shop, in_order = Shop(Random(0)), [*(each for pair in zip(first, second, strict=False) for each in pair), second[3]]
    split = [[*begin, *first, *end], [*begin, *second, *end]]
    shop.partitions = split if partitions == 2 else [[*begin, *in_order, *end]]
    found = survey(shop, parse_as_of(str(Vector({SHARD: (1, Position.parse(f"MariaDB/{token}"))}))))
    assert found.cut == {SHARD: (1, cut)}
    assert table(shop, found.cut) == {key(1): ("value", names[0]), key(2): ("value", names[1])}


def test_a_frame_is_read_to_its_end_for_a_token_with_gaps() -> None:
    """Behind a transaction that the session has not seen there may be its own write, in the same frame."""
    gtids = ["MariaDB/0-1-3", "MariaDB/0-1-4", "MariaDB/1-1-1", "MariaDB/0-1-5"]
    rows = frame([(key(at), VALUE, b'{"name":"a"}', at + 3) for at in range(4)], gtids=gtids)
    found = Survey("shop.items", parse_as_of(str(Vector({SHARD: (1, Position.parse("MariaDB/0-1-3,1-1-1"))}))))
    found.read(0, [start(), rows, marker(6, position="MariaDB/0-1-5,1-1-1", layout=LAYOUT)])
    assert found.cut == {SHARD: (1, 6)}


@pytest.mark.parametrize("seed", range(3))
def test_a_table_as_of_each_second_is_what_it_was_then(seed: int) -> None:
    """Up to the first later transaction, in all partitions, though times run backwards after it."""
    shop = Shop(Random(seed))
    for seconds in range(BEGUN, max(shop.times) + 1):
        found = survey(shop, parse_as_of(str(seconds)))
        assert table(shop, found.cut) == expected(shop, shop.at_time(seconds)), seconds


@pytest.mark.parametrize("seed", range(3))
def test_a_table_now_is_what_it_was_after_a_transaction_that_all_partitions_have(seed: int) -> None:
    """The ends of two partitions are of different moments, whichever is behind: a batch may be committed in one."""
    shop, rng = Shop(Random(seed)), Random(seed)
    ends = [
        [(at + 1, decode(each)[1]) for at, each in enumerate(messages) if each[:HEADER_SIZE] == marker(1)[:HEADER_SIZE]]
        for messages in shop.partitions
    ]
    for _ in range(20):
        behind = Shop(Random(seed))
        chosen = [rng.choice(each) for each in ends]
        behind.partitions = [messages[:at] for messages, (at, _) in zip(shop.partitions, chosen, strict=True)]
        last = min(int(told["position"].rpartition("-")[2]) for _, told in chosen)
        found = survey(behind, parse_as_of(""))
        assert table(behind, found.cut) == expected(shop, last)
        assert found.description().primary_key == ("id",)


def test_a_transaction_that_is_partly_published_is_not_in_a_table_now() -> None:
    """It spans batches, and its first half may be out for minutes: no account would be balanced meanwhile."""

    def moved(number: int, name: bytes, ordinal: int) -> bytes:
        return frame([(key(number), VALUE, b'{"name":"%s"}' % name, ordinal)], gtids=[gtid(5)])

    begin, shop = [start(), schema(2, columns=COLUMNS)], Shop(Random(0))
    both = marker(4, layout=LAYOUT)
    first = [*begin, frame([(key(1), VALUE, b'{"name":"100"}', 3)]), both]
    second = [*begin, frame([(key(2), VALUE, b'{"name":"100"}', 4)]), both]
    halved = marker(4, layout=LAYOUT, whole=False)
    shop.partitions = [[*first, moved(1, b"50", 5), halved], [*second, halved]]
    assert table(shop, survey(shop, AsOf()).cut) == {key(1): ("value", "100"), key(2): ("value", "100")}
    done = marker(6, sequence=5, layout=LAYOUT)
    shop.partitions = [[*shop.partitions[0], done], [*shop.partitions[1], moved(2, b"150", 6), done]]
    assert table(shop, survey(shop, AsOf()).cut) == {key(1): ("value", "50"), key(2): ("value", "150")}


@pytest.mark.parametrize(
    ("first", "second", "cut"),
    [
        ([(1, 9), (2, 4)], [(1, 9), (2, 3)], (2, 4)),
        ([(1, 7), (2, 4)], [(1, 9)], (1, 8)),
        ([(1, 7), (1, 5)], [(1, 9)], (1, 8)),
        ([(1, 7)], [], (0, 0)),
    ],
)
def test_a_table_now_is_of_the_last_epoch_that_all_partitions_have(
    first: list[tuple[int, int]], second: list[tuple[int, int]], cut: tuple[int, int]
) -> None:
    """Of one that ended, all have what the shortest has; of a shard that one has nothing of, nothing is in."""
    found = Survey("shop.items", AsOf())
    for number, told in enumerate((first, second)):
        found.read(number, [marker(ordinal, epoch=epoch) for epoch, ordinal in told])
    assert found.cut == {SHARD: cut}


def test_a_text_that_is_no_position_ends_no_reading() -> None:
    """The fold rejects it, and the table is what it is without it."""
    messages = [start(), schema(2, columns=COLUMNS), marker(2, sequence=2, layout=LAYOUT)]
    bad = frame([(key(1), VALUE, b"{}", 3)], gtids=["nonsense"])
    told = {**decode(marker(3, sequence=3, layout=LAYOUT))[1], "position": "nonsense"}
    messages += [bad, encode("Marker", told), marker(4, sequence=4, layout=LAYOUT)]
    found = Survey("shop.items", parse_as_of(vector(4)))
    found.read(0, messages)
    assert found.cut == {}


@pytest.mark.parametrize("bad", ["nonsense", "", "MariaDB/", "0-1-9"])
def test_a_text_that_is_no_position_moves_no_cut(bad: str) -> None:
    """Every token has the position that it stands for, so the cut would lie behind whatever is before it."""
    rows = [frame([(key(1), VALUE, b"{}", number)]) for number in (3, 4, 5)]
    messages = [start(), schema(2), *rows, frame([(key(1), VALUE, b"{}", 6)], gtids=[bad]), marker(6, layout=LAYOUT)]
    found = Survey("shop.items", parse_as_of(vector(3)))
    found.read(0, messages)
    assert found.cut == {SHARD: (1, 4)}


@pytest.mark.parametrize(
    "bad",
    [
        encode_version_1("RowFrame", FRAME | {"gtids": []}),
        encode_version_1("RowFrame", FRAME | {"ordinals": []}),
        encode_version_1("RowFrame", FRAME | {"transactions": [2, -1]}),
        marker(3, layout="nonsense"),
        marker(9, layout=LAYOUT, as_of_ms=-1),
    ],
)
@pytest.mark.parametrize("moment", ["", vector(3)])
def test_what_the_fold_rejects_is_no_place_of_a_cut(bad: bytes, moment: str) -> None:
    """It is passed over as the fold does, which voids by it what was before."""
    messages = [start(), schema(2, columns=COLUMNS), frame([(key(1), VALUE, b'{"name":"a"}', 3)]), bad]
    shop = Shop(Random(0))
    shop.partitions = [[*messages, marker(3, layout=LAYOUT)]]
    found = survey(shop, parse_as_of(moment))
    assert (found.cut, found.layout) == ({} if moment else {SHARD: (1, 4)}, LAYOUT)
    assert table(shop, found.cut) == {key(1): ("void", None)}


def test_a_token_of_what_was_lost_is_refused() -> None:
    """The topic never has the transactions that it names; what the lost history did have can be read as before."""
    told: dict[str, Any] = {"layout": LAYOUT}
    messages = [start(), schema(2, columns=COLUMNS), frame([(key(1), VALUE, b"{}", 3)]), marker(3, **told)]
    messages += [start(epoch=2, sequence=3), marker(1, epoch=2, sequence=3, **told)]
    found = Survey("shop.items", parse_as_of(vector(3)))
    found.read(0, messages)
    with pytest.raises(AsOfError) as refused:
        Survey("shop.items", parse_as_of(vector(4))).read(0, messages)
    assert refused.value.code == "bad_as_of"
    assert "lost" in str(refused.value)


def test_what_arrives_late_does_not_change_a_table_as_of_a_time() -> None:
    """By a marker the source's clock was past the time: what comes after it is left out, whatever its time."""
    said: dict[str, Any] = {"as_of_ms": 1000 * (BEGUN + 9), "layout": LAYOUT}
    messages = [start(), schema(2, columns=COLUMNS), marker(2, sequence=2, **said)]
    late = frame([(key(1), VALUE, b"{}", 3)], timestamps=[BEGUN + 1])
    for more in ([], [late, marker(3, **said)]):
        found = Survey("shop.items", AsOf(seconds=BEGUN + 5))
        found.read(0, [*messages, *more])
        assert found.cut == {SHARD: (1, 3)}


def test_a_transaction_that_is_not_published_ends_what_is_read_as_of_a_time() -> None:
    """It is later, and so is what arrives after it: its marker says so, though the source is behind its clock."""
    said: dict[str, Any] = {"as_of_ms": 1000 * BEGUN, "layout": LAYOUT}
    messages = [start(), schema(2, columns=COLUMNS), marker(2, sequence=2, timestamp=BEGUN + 9, **said)]
    late = frame([(key(1), VALUE, b"{}", 3)], timestamps=[BEGUN + 1])
    for more in ([], [late, marker(3, timestamp=BEGUN + 1, **said)]):
        found = Survey("shop.items", AsOf(seconds=BEGUN + 5))
        found.read(0, [*messages, *more])
        assert found.cut == {SHARD: (1, 3)}


def test_a_transaction_that_is_partly_published_is_not_cut_in_its_middle() -> None:
    """The marker after its first part says of the source's clock that it is past; where to cut says a whole one."""
    said: dict[str, Any] = {"as_of_ms": 1000 * (BEGUN + 9), "layout": LAYOUT, "sequence": 2}
    told: dict[str, Any] = {"gtids": [gtid(3)], "timestamps": [BEGUN]}
    parts = [frame([(key(at), VALUE, b"{}", at + 2)], **told) for at in (1, 2)]
    messages = [start(), schema(2, columns=COLUMNS), parts[0], marker(3, whole=False, **said)]
    found = Survey("shop.items", AsOf(seconds=BEGUN + 5))
    with pytest.raises(AsOfError) as refused:
        found.read(0, messages)
    assert refused.value.code == "as_of_ahead"
    found = Survey("shop.items", AsOf(seconds=BEGUN + 5))
    found.read(0, [*messages, parts[1], marker(4, layout=LAYOUT, as_of_ms=1000 * (BEGUN + 9))])
    assert found.cut == {SHARD: (1, 5)}


def test_a_base_with_a_later_transaction_is_refused_though_its_source_was_behind() -> None:
    """The clock of when the source was last read to its end says nothing of what was read since."""
    said: dict[str, Any] = {"as_of_ms": 1000 * BEGUN, "layout": LAYOUT, "timestamp": BEGUN + 9}
    folded = Folded(start(), schema(2, columns=COLUMNS), frame([(key(1), VALUE, b"{}", 3)]), marker(3, **said))
    base = Base(folded.state.head, folded.entries)
    base.check(AsOf(seconds=BEGUN + 9))
    with pytest.raises(AsOfError) as refused:
        base.check(AsOf(seconds=BEGUN + 5))
    assert refused.value.code == "bad_as_of"


def test_a_base_saves_what_lies_before_it_and_may_not_be_past_the_moment(tmp_path: Path) -> None:
    """From a rebuild's stores and the tail after them comes the same; a newer base is refused."""
    shop = Shop(Random(5))
    found = [(len(messages) // 2 + 2, messages) for messages in shop.partitions]
    task = FoldTask("shop", "t1", str(tmp_path), {0: 0, 1: 0}, {0: 0, 1: 0})
    bases = {}
    half = [
        max(at for at in range(most) if messages[at - 1][:HEADER_SIZE] == marker(1)[:HEADER_SIZE])
        for most, messages in found
    ]
    for number, messages in enumerate(shop.partitions):
        with task.open(number) as fold:
            fold.fold(*in_arrow(range(half[number]), messages[: half[number]]))
            fold.finish()
        bases[number] = Base.read(tmp_path / "shop" / str(number), "shop.items")
    last = len(shop.states) - 1
    cut = survey(shop, parse_as_of(vector(last))).cut
    assert table(shop, cut, bases) == expected(shop, last)
    assert [each["table"] for each in bases[0].descriptions("shop.items")] == ["shop.items"]
    for number, base in bases.items():
        base.check(AsOf())
        base.check(parse_as_of(vector(last)))
        base.check(AsOf(seconds=max(shop.times)))
        for early in (vector(2), str(BEGUN)):
            with pytest.raises(AsOfError, match="not known to be before that moment"):
                base.check(parse_as_of(early))
        again = Survey("shop.items", parse_as_of(vector(3)))
        again.read(number, [], base.reached())  # nothing came after it: the base itself has reached the moment


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("nonsense", "bad_as_of", "neither a token nor a time"),
        (vector(10_000), "as_of_ahead", "does not reach that moment yet"),
        (str(BEGUN + 10_000), "as_of_ahead", "does not reach that moment yet"),
        (vector(1, shard="shop/7"), "bad_as_of", "does not name the shard shop/0"),
    ],
)
def test_a_moment_that_cannot_be_read_is_an_error(text: str, code: str, said: str) -> None:
    """Nothing is answered for a moment that the topic does not reach, or that says nothing of a shard."""
    with pytest.raises(AsOfError, match=said) as refused:
        survey(Shop(Random(1)), parse_as_of(text))
    assert refused.value.code == code


def test_a_table_that_nothing_describes_is_an_error() -> None:
    """Also if it is described later than the moment."""
    found = Survey("shop.items", parse_as_of(vector(3)))
    found.read(0, [start(), marker(3), schema(9, columns=COLUMNS)])
    with pytest.raises(AsOfError) as refused:
        found.description()
    assert refused.value.code == "table_unknown"


def test_a_void_hides_rows_only_from_its_own_place_on() -> None:
    """What is not known is a row of its own kind; garbage after the moment says nothing of it."""
    shop = Shop(Random(3))
    last = len(shop.states) - 1
    for messages in shop.partitions:
        messages += [void(500, gtid=f"MariaDB/0-1-{last + 1}"), b"garbage", marker(500, sequence=last + 1)]
    assert table(shop, survey(shop, parse_as_of(vector(last))).cut) == expected(shop, last)
    kinds = {kind for kind, _ in table(shop, survey(shop, parse_as_of(vector(last + 1))).cut).values()}
    assert kinds == {"void"}


@pytest.mark.parametrize(("columns", "reasons"), [(COLUMNS, []), ([], [f"the source of {SHARD} sees no such table"])])
def test_a_table_that_its_source_does_not_see_is_not_read_whole(
    columns: list[dict[str, Any]], reasons: list[str]
) -> None:
    """It is complete without a row, so that stores let go of it. The source may only lack a privilege."""
    gone = schema(2, columns=columns, primary_key=["id"] if columns else [], cacheable=bool(columns))
    filled = [event("TableBackfill", 3 + done, table="shop.items", complete=bool(done)) for done in (0, 1)]
    topology = event("Topology", 1, shards=[SHARD], ancestors=[], succeeded=[])
    partition = TablePartition("shop.items", 0, {})
    partition.fold(enumerate([start(), topology, gone, *filled, marker(4)]))
    assert [(each["_kind"], each["_reason"]) for each in partition.rows()] == [("incomplete", each) for each in reasons]


def test_times_are_read_as_utc() -> None:
    """With and without a zone, and as seconds."""
    assert parse_as_of("2023-11-14T22:13:20Z") == parse_as_of("2023-11-14 22:13:20") == AsOf(seconds=1_700_000_000)
    assert parse_as_of("2023-11-14T23:13:20+01:00") == parse_as_of("1700000000") == AsOf(seconds=1_700_000_000)


class EqualTo:
    """As PySpark's."""

    def __init__(self, attribute: tuple[str, ...], value: Any) -> None:
        self.attribute, self.value = attribute, value


class In(EqualTo):
    """As PySpark's."""


class GreaterThan(EqualTo):
    """As PySpark's."""


def test_filters_keep_what_spark_keeps() -> None:
    """A null is not kept; a filter that has no meaning here, or a column that is not there, takes nothing away."""
    rows = pa.table({"id": pa.array([1, 2, None], pa.int64()), "name": pa.array(["a", "b", "c"])})
    filters = used([GreaterThan(("id",), 1), EqualTo(("gone",), 1), EqualTo(("name",), 1.5), EqualTo(("a", "b"), 1)])
    assert filters == [("GreaterThan", "id", 1), ("EqualTo", "gone", 1)]
    assert keeps(rows, filters)["id"].to_pylist() == [2]
    assert keeps(rows, used([In(("name",), ("a", "c"))]))["name"].to_pylist() == ["a", "c"]
    assert keeps(rows, used([EqualTo(("id",), "text")])).num_rows == 3


def test_a_whole_primary_key_leaves_one_partition() -> None:
    """Where the row is, by the topic's layout; a part of the key or a text leaves all."""
    layout, kinds = Layout.parse(LAYOUT), {"id": "int", "name": "varchar"}

    def only(key: tuple[str, ...], *filters: EqualTo) -> int | None:
        return only_partition(layout, "shop.items", key, kinds, 0, used(filters))

    assert only(("id",), EqualTo(("id",), 7)) == layout.partition_of(b"shop.items\0[7]")
    assert only(("id", "name"), EqualTo(("id",), 7)) is None
    assert only(("name",), EqualTo(("name",), "a")) is None


def test_a_primary_key_leaves_all_partitions_of_changes() -> None:
    """What changed while the table had another key lies where that key was."""
    kafka, at = KafkaCluster("nowhere:1"), {0: 0, 1: 0}
    planned = Plan(kafka, "shop", "shop.items", "t1", at, at, at, {"id": "int"}, ("id",), layout=LAYOUT)
    for changes, count in ((False, 1), (True, 2)):
        reader = TableReader(planned, None, changes=changes)
        reader.pushFilters([EqualTo(("id",), 1)])
        assert len(reader.partitions()) == count


def test_a_frame_is_cut_with_all_that_it_says_of_its_transactions() -> None:
    """Else its columns do not fit together, and the rows before the cut are rejected with it."""
    of_two = {"keys": [key(1), key(2)], "images": [b"{}"] * 2, "operations": bytes([VALUE] * 2), "ordinals": [1, 2]}
    of_two |= {name: FRAME[name] * 2 for name in ("transactions", "gtids", "timestamps")}
    positions, origins = {"positions": [gtid(3), gtid(4)]}, {"origins": ["a", "b"]}
    short = _shortened(FRAME | of_two | positions | origins, 1)
    assert short == FRAME | {"positions": [gtid(3)], "origins": ["a"]}


def test_a_message_that_can_not_be_read_is_left_out_once_anything_was() -> None:
    """It names no shard: it may be of what was left out, whatever of another shard comes in between."""
    before = cutter({SHARD: (1, 3), "shop/1": (1, 9)}, PartitionReader())
    later = frame([(key(1), VALUE, b"{}", 3)])
    other = event("TableVoid", 2, shard="shop/1", table="shop.items", reason="DDL")
    kept = [before(each) for each in (b"garbage", later, other, b"garbage")]
    assert kept == [b"garbage", b"", other, b""]


def test_what_a_publisher_said_again_moves_no_place_back() -> None:
    """Where a batch of changes goes on: by the last message what lies between would be told a second time."""
    said = [frame([(key(1), VALUE, b"{}", at)]) for at in (3, 5)]
    messages = [said[0], said[1], marker(5), said[0]]
    planned: Any = SimpleNamespace(messages=lambda *_: enumerate(messages))
    assert _places_before(planned, 0, 0, len(messages), PartitionReader()) == {SHARD: (1, 5)}
