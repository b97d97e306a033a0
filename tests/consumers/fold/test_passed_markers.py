"""Markers of a run that are not folded, since the next one undoes what they change, leave the state that they would."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from consumers.fold import runs
from consumers.fold.messages import fold_message, fold_messages
from consumers.fold.state import Head, Lineage, PartitionState
from stream.wire.codec import READER_VERSION, CodecError, NewerWireError, decode
from stream.wire.events import VALUE
from stream.wire.single import marker_form, read_long, read_marker
from tests.consumers.fold.test_fold_together import Records, by_column, in_text, in_text_and_list, one_by_one
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import LAYOUT, SHARD, event, frame, gtid, key, marker, start

SHARDS = (SHARD, "shop/1")
ROWS = {"row": 0, "late": -1, "ahead": 20}
"""What a row's ordinal has more than the marker after it."""
BEGIN = 5
"""Messages after which the layout is known, and what low-water is."""
LARGE = (1 << 62) + 12_345
"""An integer that is ten bytes long on the wire."""
ODD: list[dict[str, Any]] = [
    {"previous": 77},
    {"previous": 0},
    {"continuity": 0},
    {"continuity": LARGE},
    {"low_water": gtid(1)},
    {"low_water": ""},
    {"whole": False},
    {"layout": "xxh3_64;partitions=2"},
    {"position": "x"},
    {"position": "MariaDB/" + ",".join(f"{domain}-1-5" for domain in range(20))},
    {"timestamp": -1},
    {"timestamp": 32},
    {"as_of_ms": 1_700_000_000_123},
    {"as_of_ms": -1},
    {"reader_version": READER_VERSION},
    {"reader_version": READER_VERSION + 1},
    {"ordinal": 1},
    {"ordinal": -1},
    {"ordinal": 1 << 62},
]
"""What a marker may say that the one before it did not."""
Damage = tuple[int, bytes, int]
"""Where, what is put there, and how many bytes it takes the place of."""
damages = st.tuples(st.integers(0, 200), st.binary(max_size=2), st.integers(0, 1))
steps = st.tuples(
    st.sampled_from(SHARDS),
    st.sampled_from(["", "again", *ROWS, "row", "void", "bad"]),
    st.one_of(st.just({}), st.just({}), st.just({}), st.sampled_from(ODD)),
    st.integers(0, 2),
    st.none() | st.none() | st.none() | damages,
)


def damaged(whole: bytes, damage: Damage | None) -> bytes:
    """A message with bytes put in or changed or taken out somewhere, or as it is."""
    if damage is None:
        return whole
    place, put, taken = damage
    place %= len(whole)
    return whole[:place] + put + whole[place + taken :]


def history(wanted: list[tuple[str, str, dict[str, Any], int, Damage | None]]) -> Records:
    """Two shards' batches: a row or a void or neither, then a marker that follows the last, but for what is odd."""
    begin = [start(), topology(*SHARDS), start(shard=SHARDS[1])]
    begin += [marker(1, shard=shard, continuity=LARGE - 1) for shard in SHARDS]
    records: Records = list(enumerate(begin))
    ordinals, links = dict.fromkeys(SHARDS, 1), dict.fromkeys(SHARDS, LARGE - 1)
    for shard, before, odd, more, damage in wanted:
        ordinals[shard] += more
        ordinal, at = ordinals[shard], len(records)
        if before in ROWS:
            row = (key(at % 3 + 10 * SHARDS.index(shard)), VALUE, b"x", max(1, ordinal + ROWS[before]))
            records.append((at, frame([row], shard=shard)))
        elif before == "void":
            records.append((at, event("TableVoid", ordinal, shard=shard, table="shop.items", reason="x")))
        elif before == "bad":
            records.append((at, b"what voids all, up to the marker that has seen as much"))
        chain = {"previous": links[shard], "continuity": links[shard] + (before != "again")}
        links[shard] = chain["continuity"]
        fields: dict[str, Any] = chain | odd
        told = marker(fields.pop("ordinal", ordinal), sequence=ordinal, shard=shard, **fields)
        records.append((len(records), damaged(told, damage)))
    return records


@settings(max_examples=500, deadline=None)
@given(st.lists(steps, min_size=4, max_size=24), st.sets(st.integers(BEGIN, 30), max_size=2))
@example([(SHARD, "row", {}, 1, None)] * 6 + [(SHARD, "row", {"ordinal": 3}, 1, None)] * 2, set())
@example([(SHARD, "row", {}, 1, None)] * 3 + [(SHARD, "row", {"position": "x"}, 1, None)] * 3, set())
@example([(SHARD, "row", {}, 1, None)] * 3 + [(SHARD, "row", {"previous": 77}, 1, None)] * 3, set())
@example(
    [(SHARD, "ahead", {}, 1, None), (SHARD, "bad", {}, 0, None)]
    + [(SHARD, "", {}, 2, None)] * 14
    + [(SHARD, "row", {}, 2, None)],
    {9},
)
@example([(SHARD, "", {}, 1, None)] * 3 + [(SHARD, "late", {}, 0, None)] * 3, set())
@example([(SHARD, "ahead", {}, 1, None)] + [(SHARD, "", {}, 1, None)] * 3 + [(SHARD, "row", {}, 1, None)] * 4, {7})
def test_what_is_passed_over_leaves_the_state_that_it_would(wanted: list[Any], cuts: set[int]) -> None:
    """The fold by column folds few of many markers, and its state is that of messages folded one by one."""
    records = history(wanted)
    try:
        expected = one_by_one(records)
    except NewerWireError:
        assume(False)
    for given_as in (list, in_text, in_text_and_list):
        assert by_column(records, {BEGIN, *cuts}, given_as) == expected


FIRST = [start(), marker(100, continuity=9)]
CHAIN = [marker(5 + at, previous=9 + at, continuity=10 + at) for at in range(4)]
NO_LINK = marker(8, previous=12, continuity=0)
BELOW = {
    "nothing links, then a gap": ([marker(5)] * 4 + [marker(101, previous=77, continuity=78)], {2}),
    "the last one links nothing": ([*CHAIN[:3], NO_LINK], {2}),
    "so does it, and another one follows": ([*CHAIN[:3], NO_LINK, marker(101, previous=12, continuity=13)], {2, 6}),
    "up to the watermark and beyond": ([*CHAIN, marker(100, previous=13, continuity=14)], {2}),
}


@pytest.mark.parametrize("given_as", [list, in_text, in_text_and_list])
@pytest.mark.parametrize("name", BELOW)
def test_below_the_watermark_each_is_folded(name: str, given_as: Any) -> None:
    """There a marker that links nothing does not end the chain, so no gap is made up, and none is missed."""
    messages, cuts = BELOW[name]
    records: Records = list(enumerate(FIRST + messages))
    assert by_column(records, cuts, given_as) == one_by_one(records)


@pytest.mark.parametrize("given_as", [list, in_text, in_text_and_list])
def test_where_low_water_is_not_known_each_is_folded(given_as: Any) -> None:
    """The first marker at a transaction's end gives its position, of a state that began in the middle."""
    begin = [start(), marker(1, whole=False, low_water="")]
    messages = [*begin, *(marker(2 + at, whole=at > 1, low_water="") for at in range(6))]
    records: Records = list(enumerate(messages, 5))

    def folded(cut: int, runs_of: Any) -> dict[str, Any]:
        head = Head()
        head.offset = head.begin = 5
        head.lineages[SHARD] = Lineage(1, 1, 0, "", 0, "")
        state = PartitionState(head, lambda _: None)
        with patch("consumers.fold.columns.RUN_BYTES_MIN", 1):
            for some in (records[1:cut], records[cut:]):
                for changes in fold_messages(state, runs_of(some)):
                    state.apply(changes)
        return dict(state.head.lineages)

    single = [folded(cut, list) for cut in range(2, 4)]
    assert single[0][SHARD].low_water == gtid(4)
    assert [folded(cut, given_as) for cut in range(2, 4)] == single


@pytest.mark.parametrize("given_as", [list, in_text, in_text_and_list])
def test_of_a_long_chain_the_first_and_the_last_are_folded(given_as: Any) -> None:
    """Of each shard; and a newer reader's marker between them is not passed over."""
    records = history([(SHARDS[number % 2], "row", {}, 1, None) for number in range(40)])
    state = PartitionState(Head(), lambda _: None)
    for offset, message in records[:BEGIN]:
        state.apply(fold_message(state, offset, message))
    decoded = []

    def noted(message: bytes) -> Any:
        decoded.append(message)
        return decode(message)

    with patch.object(runs, "decode", noted), patch("consumers.fold.columns.RUN_BYTES_MIN", 1):
        [changes] = fold_messages(state, given_as(records[BEGIN:]))
        state.apply(changes)
    assert len(decoded) == 4
    assert {each.ordinal for each in state.head.lineages.values()} == {21}
    newer = marker(30, previous=LARGE + 19, continuity=LARGE + 20, reader_version=READER_VERSION + 1)
    more = [
        (len(records), newer),
        *((len(records) + 1 + at, message) for at, (_, message) in enumerate(records[BEGIN:])),
    ]
    with patch("consumers.fold.columns.RUN_BYTES_MIN", 1), pytest.raises(NewerWireError):
        list(fold_messages(state, given_as(more)))


@settings(max_examples=1_000, deadline=None)
@given(
    st.fixed_dictionaries(
        {
            "ordinal": st.integers(-2, 2**63 - 1),
            "position": st.sampled_from([gtid(7), "x", " ", "é", "MariaDB/" + "0-1-5," * 30, ""]),
            "timestamp": st.integers(-(2**63), 2**63 - 1) | st.integers(0, 200),
            "whole": st.booleans(),
            "continuity": st.integers(-2, 2**63 - 1) | st.integers(0, 200),
            "previous": st.integers(-2, 2**63 - 1) | st.integers(0, 200),
            "reader_version": st.integers(0, READER_VERSION + 1),
            "as_of_ms": st.integers(-2, 2**63 - 1) | st.integers(0, 200),
        }
    ),
    st.none() | damages,
)
def test_what_is_read_of_a_marker_is_what_it_says(
    fields: dict[str, Any], damage: tuple[int, bytes, int] | None
) -> None:
    """Whatever bytes are taken: the decoder reads the same of them, and no number is out of its range."""
    told = damaged(marker(sequence=None, **fields), damage)
    mark = read_marker(marker_form(SHARD, 1, gtid(0), LAYOUT), told)
    try:
        _, record = decode(told)
    except CodecError:
        record = None
    if mark is None:
        return
    assert record is not None
    assert (mark.ordinal, mark.position) == (record["ordinal"], record["position"])
    assert (record["shard"], record["epoch"], record["low_water"], record["layout"]) == (SHARD, 1, gtid(0), LAYOUT)
    for name, raw in (("continuity", mark.continuity), ("previous", mark.previous)):
        assert record[name] >= 0
        assert len(raw) > 9 or read_long(raw) == record[name]
    assert record["ordinal"] >= 0 <= record["as_of_ms"]
    assert 1 <= record["reader_version"] <= READER_VERSION


def test_most_markers_are_read() -> None:
    """Large and small numbers, with and without a whole transaction before them."""
    form = marker_form(SHARD, 1, gtid(0), LAYOUT)
    for more in (
        {},
        {"whole": False},
        {"continuity": 2**63 - 1, "previous": LARGE},
        {"reader_version": READER_VERSION},
    ):
        for ordinal in (0, 5, 1 << 40):
            mark = read_marker(form, marker(ordinal, as_of_ms=1_700_000_000_000, **more))
            assert mark is not None
            assert (mark.ordinal, mark.position) == (ordinal, gtid(ordinal))


@pytest.mark.parametrize("field", ["ordinal", "continuity", "previous", "as_of_ms"])
def test_a_marker_with_a_number_below_zero_is_not_passed_over(field: str) -> None:
    """It is refused when it is folded: what it says would otherwise count if others stand around it."""
    form = marker_form(SHARD, 1, gtid(0), LAYOUT)
    numbers: dict[str, Any] = {"ordinal": 5, "continuity": 5, "previous": 4, "as_of_ms": 1_700_000_000_000}
    for number in (-1, -64, -(1 << 40)):
        fields = numbers | {field: number}
        assert read_marker(form, marker(fields.pop("ordinal"), sequence=5, **fields)) is None
    assert read_marker(form, marker(numbers.pop("ordinal"), **numbers)) is not None
