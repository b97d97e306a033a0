"""What a state of whole tables does without: it answers the same with and without those that it may drop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from consumers.fold.backfills import Drops, drop_lines, live_items
from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.messages import fold_message
from consumers.fold.state import Dropped, Head, PartitionState, head_entries, read_head
from consumers.owner.evidence import demand_of
from consumers.owner.protocol import UNKNOWN_KEY, OwnerRow
from consumers.owner.rows import decide_row, last_known_row, table_of, view_row
from consumers.store.dropping import LastDropped
from tests.consumers.fold.test_backfills import TABLE, begun, complete, kind, topology, whole
from tests.consumers.histories import SHARD, Folded, event, frame, gtid, key, marker, start, value
from tests.consumers.owning import vector
from tokens import Position

OTHER = "shop.others"
KEYS = [key(number, table) for table in (TABLE, OTHER) for number in range(3)]


class Dropping:
    """A state that drops a choice of the entries that it may drop, and the same state that drops none."""

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.left: dict[bytes, bytes] = {}
        self.last: dict[tuple[str, str], LastDropped] = {}
        self.states = [PartitionState(Head(), each.get) for each in (self.kept, self.left)]
        self.messages: list[bytes] = []

    @property
    def head(self) -> Head:
        return self.states[1].head

    def fold(self, message: bytes) -> None:
        """Folds a message in both states."""
        self.messages.append(message)
        for state, entries in zip(self.states, (self.kept, self.left), strict=True):
            changes = fold_message(state, state.head.offset, message)
            entries.update(changes.entries)
            state.apply(changes)

    def drop(self, chosen: Callable[[bytes], bool]) -> None:
        """Drops those entries that are ``chosen``."""
        drops = Drops(self.head)
        for each in [each for each, entry in self.left.items() if chosen(each) and drops.entry(each, entry)]:
            entry = decode_entry(self.left.pop(each))
            scope = table_of(each), entry.shard
            if entry.kind == ABSENT:
                last = LastDropped(entry.epoch, entry.ordinal, entry.position)
                self.last[scope] = max(last, self.last.get(scope, last))

    def rows(self, each: bytes) -> tuple[OwnerRow, OwnerRow]:
        """How a key reads with all tombstones, and without those that were dropped."""
        without = view_row(self.head, each, self.left.get(each), lambda *scope: self.last.get(scope))
        return view_row(self.states[0].head, each, self.kept.get(each)), without


def check(state: Dropping) -> None:
    """Both states are compared as equal, and each key reads the same for every demand."""
    heads = head_entries(state.states[0].head), head_entries(state.head)
    assert heads[0] == heads[1]
    assert dict(live_items(state.head, state.kept.items())) == dict(live_items(state.head, state.left.items()))
    for each in KEYS:
        kept, left = state.rows(each)
        known = (VALUE, ABSENT)
        if kept.kind not in known:
            assert left.kind not in known
            continue
        assert (left.kind, left.image) == (kept.kind, kept.image)
        assert Position.parse(left.hi).at_or_past(Position.parse(kept.hi))
        for sequence in range(1, state.head.lineages[SHARD].ordinal + 2):
            decided = []
            for row in state.rows(each):
                decide_row(row, demand_of(vector(sequence)))
                decided.append((row.served, row.freshness))
            assert decided[0] == decided[1]


steps = st.one_of(
    st.tuples(st.sampled_from(["value", "absent", "absent", "void row"]), st.sampled_from(KEYS)),
    st.tuples(st.sampled_from(["begun", "complete", "void", "image"]), st.sampled_from([TABLE, OTHER])),
    st.tuples(st.sampled_from(["marker", "marker", "behind", "scope", "gap", "poison"]), st.none()),
    st.tuples(st.just("repeat"), st.integers(0, 20)),
    st.tuples(st.just("drop"), st.sets(st.sampled_from(KEYS))),
)


def play(state: Dropping, steps: list[tuple[str, Any]]) -> None:
    """Folds what the steps say, each event with the next ordinal, and checks after each."""
    ordinal, link = 2, 1
    for step, what in steps:
        ordinal += 1
        match step:
            case "value":
                state.fold(frame([(what, VALUE, b"%d" % ordinal, ordinal)]))
            case "absent":
                state.fold(frame([(what, ABSENT, b"", ordinal)]))
            case "void row":
                state.fold(frame([(what, VOID, b"", ordinal)]))
            case "begun" | "complete":
                state.fold(event("TableBackfill", ordinal, table=what, complete=step == "complete"))
            case "void":
                state.fold(event("TableVoid", ordinal, table=what, reason="DDL"))
            case "image":  # whole at once, so that much can be dropped
                state.fold(begun(ordinal, what))
                ordinal += 1
                state.fold(complete(ordinal, what))
                state.fold(marker(ordinal, continuity=link + 1, previous=link))
                link += 1
            case "marker" | "behind":
                at = ordinal if step == "marker" else max(ordinal - 2, 1)
                state.fold(marker(at, continuity=link + 1, previous=link))
                link += 1
            case "gap":
                state.fold(marker(ordinal, continuity=link + 2, previous=link + 1))
                link += 2
            case "scope":
                state.fold(event("Scope", ordinal, tables=[]))
            case "poison":
                state.fold(b"poison")
            case "repeat":
                rows = [each for each in state.messages if b"[" in each]
                if rows:
                    state.fold(rows[what % len(rows)])
            case "drop":
                state.drop(lambda each, what=what: each in what)  # type: ignore[misc]
        check(state)


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(steps, max_size=25))
@example(
    steps=[
        ("value", key(0)),
        ("void", TABLE),
        ("begun", TABLE),
        ("complete", TABLE),
        ("marker", None),
        ("drop", {key(0)}),
    ]
)
@example(steps=[("absent", key(0)), ("image", TABLE), ("drop", {key(0)}), ("begun", TABLE)])
def test_every_read_is_answered_as_if_nothing_had_been_dropped(steps: list[tuple[str, Any]]) -> None:
    """At each point, for each key and demand; also when rows come again, and when a table is whole no more, or anew."""
    state = Dropping()
    for message in (start(), topology(SHARD), marker(2, continuity=1)):
        state.fold(message)
    play(state, steps)


def test_only_what_a_marker_covers_may_go() -> None:
    """The tombstone that no marker has passed is the only proof for a session that has seen it."""
    folded = whole(frame([(key(1), ABSENT, b"", 5)]))
    assert not Drops(folded.state.head).entry(key(1), folded.entries[key(1)])
    folded.fold(marker(5))
    assert Drops(folded.state.head).entry(key(1), folded.entries[key(1)])


@pytest.mark.parametrize(
    ("number", "operation"), [(1, VALUE), (2, VOID), (3, ABSENT)], ids=["value", "unknown image", "tombstone"]
)
def test_only_tombstones_may_go(number: int, operation: int) -> None:
    """A row whose image is unknown is not absent."""
    folded = whole(frame([(key(number), operation, b"{}" if operation == VALUE else b"", 5)]), marker(5))
    assert (Drops(folded.state.head).entry(key(number), folded.entries[key(number)]) is not None) == (
        operation == ABSENT
    )


@pytest.mark.parametrize("operation", [VALUE, VOID, ABSENT])
def test_what_a_void_is_behind_may_go_once_the_table_is_whole_again(operation: int) -> None:
    """Nothing would ever remove the rows of before a TRUNCATE whose keys don't come again."""
    image = b"{}" if operation == VALUE else b""
    folded = whole(frame([(key(1), operation, image, 5)]), event("TableVoid", 6, table=TABLE, reason="TRUNCATE"))
    old = folded.entries[key(1)]
    assert Drops(folded.state.head).entry(key(1), old) is None
    for message in (begun(7), frame([(key(2), VALUE, b"{}", 8)]), complete(9)):
        folded.fold(message)
    assert kind(folded, 1) != ABSENT, "the backfill is not over"
    folded.fold(marker(9))
    drops = Drops(folded.state.head)
    assert kind(folded, 1) == ABSENT
    assert drops.entry(key(1), old) is not None
    assert drops.entry(key(2), folded.entries[key(2)]) is None
    folded.fold(event("TableVoid", 10, table=TABLE, reason="TRUNCATE"))
    drops = Drops(folded.state.head)
    assert drops.entry(key(1), old) is not None, "a store that has dropped it and one that has not differ"
    assert drops.entry(key(2), folded.entries[key(2)]) is None
    assert last_known_row(folded.state.head, key(1), old) is None
    assert last_known_row(folded.state.head, key(2), folded.entries[key(2)]) is not None


def test_a_tombstone_of_a_table_that_is_not_whole_stays() -> None:
    """Nothing else says that the row is gone."""
    folded = Folded(start(), topology(SHARD), begun(2), frame([(key(1), ABSENT, b"", 3)]), marker(3))
    assert not Drops(folded.state.head).entry(key(1), folded.entries[key(1)])


def test_a_tombstone_with_an_unreadable_position_stays() -> None:
    """It reads as unknown, not as absent."""
    folded = whole(frame([(key(1), ABSENT, b"", 5)], positions=["x"]), marker(5))
    assert kind(folded, 1) == VOID
    assert not Drops(folded.state.head).entry(key(1), folded.entries[key(1)])


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(event("TableVoid", 6, table=TABLE, reason="DDL"), id="void"),
        pytest.param(b"poison", id="poison"),
        pytest.param(begun(6), id="begun again"),
        pytest.param(topology(SHARD, "shop/1"), id="a second shard"),
    ],
)
def test_what_was_dropped_stays_dropped_when_a_table_is_whole_no_more(message: bytes) -> None:
    """The line is a fact of the log, which a store that opens again, and a rebuild, have too."""
    folded = whole(frame([(key(1), ABSENT, b"", 5)]), marker(5), message)
    line = {SHARD: Dropped(1, 5, gtid(5))}
    assert drop_lines(folded.state.head, TABLE) == line
    head = read_head(head_entries(folded.state.head).items())
    assert drop_lines(head, TABLE) == line
    assert (key(1), folded.entries[key(1)]) not in [*live_items(head, folded.entries.items())]
    del folded.entries[key(1)]
    folded.fold(value(1, b"{}", 3))
    assert key(1) not in folded.entries, "an event that came again has brought the row back"
    folded.fold(value(1, b"{}", 7))
    assert decode_entry(folded.entries[key(1)]).kind == VALUE


def test_another_shard_cannot_tell_whether_it_is_newer_than_what_was_dropped() -> None:
    """As over the tombstone itself: changed, value unknown. Of a table that was never whole nothing was dropped."""
    folded = whole(marker(5), topology(SHARD, "shop/1"))
    folded.fold(frame([(key(7), VALUE, b"{}", 2)], shard="shop/1"))
    folded.fold(frame([(key(7, OTHER), VALUE, b"{}", 3)], shard="shop/1"))
    assert [decode_entry(folded.entries[key(7, table)]).kind for table in (TABLE, OTHER)] == [VOID, VALUE]


def test_who_has_seen_a_dropped_deletion_takes_its_position_along() -> None:
    """Else the session could be shown another row from before it."""
    folded = whole(frame([(key(1), ABSENT, b"", 6)]), marker(9))
    row = view_row(folded.state.head, key(1), None, lambda *_: LastDropped(1, 6, gtid(6)))
    assert (row.kind, row.lo, row.hi) == (ABSENT, gtid(4), gtid(6))
    earlier = whole().state.head
    row = view_row(earlier, key(1), None, lambda *_: LastDropped(1, 6, gtid(6)))
    assert (row.kind, row.hi, row.watermark) == (ABSENT, gtid(6), gtid(4)), (
        "the head was read before the tombstone went"
    )


def test_the_low_water_of_a_key_is_above_what_was_dropped_of_it() -> None:
    """When the table is whole no more, a fill from before the deletion has the same stamp again."""
    folded = whole(frame([(key(1), ABSENT, b"", 6)]), marker(9), begun(10))
    row = view_row(folded.state.head, key(1), None, lambda *_: LastDropped(1, 6, gtid(6)))
    assert (row.kind, row.low_water) == (UNKNOWN_KEY, gtid(6))


@pytest.mark.parametrize(("last", "low_water"), [(5, 6), (6, 6), (7, 7)])
def test_a_tombstone_that_is_left_behind_counts_beside_those_that_went(last: int, low_water: int) -> None:
    """The latest of them: a fill from before the key's own deletion would bring the row back."""
    folded = whole(frame([(key(1), ABSENT, b"", 6)]), marker(9), begun(10))
    gone = LastDropped(1, last, gtid(last))
    row = view_row(folded.state.head, key(1), folded.entries[key(1)], lambda *_: gone)
    assert (row.kind, row.low_water) == (UNKNOWN_KEY, gtid(low_water))
