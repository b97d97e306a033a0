"""What is known to lie before a moment, and what a table keeps from one message to the next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_jobs.source import reading
from spark_jobs.source import table as tables
from spark_jobs.source.cut import AsOf, AsOfError, Survey, parse_as_of
from spark_jobs.source.table import Base, TablePartition
from stream.wire.codec import PartitionReader
from stream.wire.events import VALUE
from tests.consumers.fold.test_shards import topology
from tests.consumers.histories import SHARD, Folded, frame, gtid, key, marker, of_tomorrow, start
from tests.consumers.owning import schema, vector
from tests.spark_jobs.source.shop import BEGUN, COLUMNS, LAYOUT


@pytest.mark.parametrize(("as_of_ms", "is_known"), [(0, False), (999, False), (1_000 * BEGUN, True)])
def test_a_clock_that_is_not_known_puts_nothing_before_a_time(as_of_ms: int, is_known: bool) -> None:
    """The source may have been read to its end at any time: transactions of later may be in what was read."""
    assert AsOf(seconds=BEGUN + 5).has_all(SHARD, 1, gtid(3), BEGUN, as_of_ms) is is_known


def test_a_base_with_rows_behind_its_last_marker_is_refused() -> None:
    """It says how far it surely is, and holds more than that: rows of later, perhaps of half a transaction."""
    told = [start(), schema(2, columns=COLUMNS), frame([(key(1), VALUE, b"{}", 3)]), marker(3, layout=LAYOUT)]
    whole, ahead = Folded(*told), Folded(*told, frame([(key(2), VALUE, b"{}", 4)]))
    moment = parse_as_of(vector(3))
    Base(whole.state.head, whole.entries).check(moment)
    with pytest.raises(AsOfError) as refused:
        Base(ahead.state.head, ahead.entries).check(moment)
    assert refused.value.code == "bad_as_of"


def test_a_base_that_holds_what_is_left_out_is_refused() -> None:
    """What it has folded of a transaction that another partition's end does not reach can't be taken back.

    What no partition has a marker of is left out, too.
    """
    told = [start(), schema(2, columns=COLUMNS), frame([(key(1), VALUE, b"{}", 3)]), marker(3, layout=LAYOUT)]
    base = Base((folded := Folded(*told)).state.head, folded.entries)
    assert base.ahead({SHARD: (1, 4)}) == ""
    for cut in ({SHARD: (1, 3)}, {SHARD: (0, 0)}, {}):
        assert "more of shop/0" in base.ahead(cut)


def test_rows_now_may_begin_amid_a_batch_that_is_whole_by_now() -> None:
    """A checkpoint is made wherever its owner is: as a rule that is behind rows whose marker has not come yet."""
    told = [start(), schema(2, columns=COLUMNS), frame([(key(1), VALUE, b"{}", 3)]), marker(3, layout=LAYOUT)]
    folded = Folded(*told, frame([(key(1), VALUE, b"{}", 4)], gtids=[gtid(4)]))
    base, found = Base(folded.state.head, folded.entries), Survey("shop.items", AsOf())
    base.check(AsOf())
    found.read(0, [], base.reached(), base.texts(), base.over())
    assert base.ahead(found.cut) != ""
    found = Survey("shop.items", AsOf())
    found.read(0, [marker(4, sequence=4, layout=LAYOUT)], base.reached(), base.texts(), base.over())
    assert base.ahead(found.cut) == ""


@pytest.mark.parametrize(("whole", "cut"), [(False, (1, 10)), (True, (2, 5))])
def test_rows_now_reach_to_markers_at_a_transactions_end_only(whole: bool, cut: tuple[int, int]) -> None:
    """Amid a transaction nothing new is counted as reached, not even its epoch, whatever ordinal the marker has."""
    found = Survey("shop.items", AsOf())
    for number in range(2):
        found.read(number, [marker(9), marker(4, epoch=2, whole=whole)])
    assert found.cut == {SHARD: cut}


def test_half_a_transaction_of_a_shard_that_is_over_is_in_nobodys_way() -> None:
    """Its successors publish it again, and it never gets a marker: no snapshot could be begun with any more."""
    succeeded = topology("shop/1", shard="shop/1", ordinal=0, ancestors={SHARD: 1})
    folded = Folded(
        start(), frame([(key(1), VALUE, b"{}", 3)]), succeeded, start(shard="shop/1"), marker(1, shard="shop/1")
    )
    base = Base(folded.state.head, folded.entries)
    assert base.ahead({SHARD: (1, 2), "shop/1": (1, 2)}) == ""


def test_what_was_announced_is_known_in_all_that_is_folded_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of millions of messages is folded some at a time; a newer publisher announces once in a while."""
    monkeypatch.setattr(tables, "FOLDED_TOGETHER", 1)
    later, announced = of_tomorrow(frame([(key(1), VALUE, b'{"name":"late"}', 3)]))
    partition = TablePartition("shop.items", 0, {})
    partition.fold(enumerate([start(), schema(2, columns=COLUMNS), announced, later]))
    assert [row["image"] for row in partition.rows() if row["_kind"] == "value"] == [{"name": "late"}]


@pytest.mark.parametrize("text", ["²", "1²", "9" * 5_000])
def test_digits_that_are_no_seconds_are_refused_in_plain_words(text: str) -> None:
    """No number can be made of them, and none that a source's clock ever shows."""
    with pytest.raises(AsOfError, match="neither a token nor a time"):
        parse_as_of(text)
    assert parse_as_of("007") == AsOf(seconds=7)


def test_each_shard_is_looked_for_up_to_a_marker_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a shard that a publisher only said again within the window, what lies behind would be told a second time."""
    monkeypatch.setattr(reading, "LOOK_BACK", 2)
    other, again = "shop/1", frame([(key(1), VALUE, b"{}", 3)])
    kept = [again, frame([(key(2), VALUE, b"{}", 7)]), marker(7), again, marker(5, shard=other)]
    looks: list[tuple[int, int]] = []

    def messages(_: int, first: int, end: int) -> list[tuple[int, bytes]]:
        looks.append((first, end))
        return [*enumerate(kept)][first:end]

    planned: Any = SimpleNamespace(messages=messages)
    assert reading._places_before(planned, 0, 0, 5, PartitionReader()) == {SHARD: (1, 7), other: (1, 5)}
    assert looks == [(3, 5), (0, 5)]
