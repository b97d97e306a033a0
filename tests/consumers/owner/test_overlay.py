"""What the overlay keeps, and in which order it forgets."""

from __future__ import annotations

import tracemalloc

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from consumers.owner.overlay import Overlay, OverlayFill
from consumers.owner.protocol import FillTable
from tests.consumers.histories import gtid

LOW = gtid(1)


def fill(image: bytes | None = b"", *, lo: int = 5, stamp: bytes = b"s", low_water: str = LOW) -> OverlayFill:
    """A fill that was read at ``lo``."""
    return OverlayFill(image, gtid(lo), gtid(lo), 1, stamp, low_water)


def size_of(key: bytes, *fills: OverlayFill) -> int:
    """What the last of ``fills`` takes under ``key``."""
    sizes, overlay = [0], Overlay(100_000)
    for number, each in enumerate(fills):
        assert overlay.put(bytes([number]) * len(key), each)
        sizes.append(overlay.bytes)
    return sizes[-1] - sizes[-2]


SIZE = size_of(b"a", fill(), fill())
"""Of a fill without image, under a key of one byte, with the stamp and the low-water of another one."""
OVER = size_of(b"a", fill()) - SIZE
"""Of its stamp and low-water."""


def keys(overlay: Overlay, *names: bytes) -> list[bytes]:
    """Those of ``names`` that it has."""
    return [name for name in names if name in overlay]


def name(number: int) -> bytes:
    """A key of one byte."""
    return bytes([number])


def test_it_keeps_as_much_as_fits_exactly() -> None:
    """Keys, images and lists count, and what each fill takes besides; the oldest that was not used goes first."""
    room = OVER + 2 * SIZE + 10
    overlay = Overlay(room)
    assert (overlay.bytes, overlay.evictions, len(overlay)) == (0, 0, 0)
    assert overlay.put(b"a", fill(b"1" * 10))
    assert overlay.put(b"b", fill(b""))
    assert (overlay.bytes, overlay.evictions, len(overlay)) == (room, 0, 2)
    assert overlay.get(b"a", b"s", LOW) is not None
    assert overlay.put(b"c", fill())
    assert keys(overlay, b"a", b"b", b"c") == [b"a", b"c"], "the first one was used"
    assert (overlay.evictions, len(overlay)) == (1, 2)
    assert overlay.put(b"a", fill(b"2"))
    assert overlay.bytes == 2 * SIZE + 1
    assert not overlay.put(b"d", fill(b"1" * (room - SIZE + 1)))
    assert overlay.put(b"d", fill(b"1" * (room - SIZE - 1))), "an image of 256 bytes has a longer head"
    assert (overlay.bytes, overlay.evictions, len(overlay)) == (room, 3, 1)
    overlay.clear()
    assert (overlay.bytes, len(overlay), overlay.get(b"d", b"s", LOW)) == (0, 0, None)
    assert overlay.put(b"d", fill())


def test_what_is_given_is_what_was_put() -> None:
    """Fills are packed: absence, other positions and old times are not lost by it, nor a table's answer."""
    listed = "d.t:5:9223372036854775807::"
    table = FillTable(0, "k", 0, 7, "d.t", "transactional", b"image", listed, gtid(5), gtid(6), b"s")
    given = [
        fill(None),
        fill(b"x" * 70_000),
        OverlayFill(b"{}", gtid(5), gtid(9), -1, b"s", LOW),
        OverlayFill(b"image", gtid(5), gtid(6), 0, b"s", LOW, table),
    ]
    overlay = Overlay(1 << 20)
    for number, each in enumerate(given):
        assert overlay.put(name(number), each)
    assert [overlay.get(name(number), b"s", LOW) for number in range(len(given))] == given


def test_stamps_of_their_own_count_and_a_shared_one_once() -> None:
    """Over tombstones each fill has a stamp of its own. A low-water that it reaches later counts, too."""
    overlay = Overlay(100_000)
    for number in range(50):
        overlay.put(name(number), fill(stamp=b"%d" % (100 + number)))
    assert overlay.bytes == 50 * (SIZE + OVER + 2)
    for number in range(50):
        assert overlay.get(name(number), b"%d" % (100 + number), gtid(4)) is not None
    assert overlay.bytes == 50 * (SIZE + OVER + 2)
    for number in range(50):
        overlay.put(name(number), fill())
    assert overlay.bytes == 50 * SIZE + OVER


def test_a_scan_does_not_drive_out_what_is_used() -> None:
    """Rows that are read once leave through the small queue; those that are read again stay."""
    overlay = Overlay(20 * SIZE + OVER)
    assert left_by_a_scan(overlay) >= 16, "with the least recently used first none would be left"
    assert overlay.bytes <= 20 * SIZE + OVER


def left_by_a_scan(overlay: Overlay) -> int:
    """How many of twenty fills that are used are there after two hundred that are not."""
    for number in range(20):
        overlay.put(name(number), fill())
        assert overlay.get(name(number), b"s", LOW) is not None
    for number in range(20, 220):
        overlay.put(name(number), fill())
    return len(keys(overlay, *map(name, range(20))))


def test_a_scan_does_not_drive_out_what_is_used_after_many_low_waters() -> None:
    """The first fill that reaches one pays for it. Uncounted, each would leave the small queue seemingly emptier."""
    overlay = Overlay(20 * SIZE + OVER)
    for low in range(100, 300):
        overlay.put(b"a", fill(lo=500, low_water=gtid(low)))
        assert overlay.get(b"a", b"s", gtid(low + 1)) is not None
        assert overlay.get(b"a", b"other", LOW) is None
    assert left_by_a_scan(overlay) >= 16


def test_what_comes_back_soon_after_it_went_is_kept_longer() -> None:
    """Its key is remembered for about as many fills as there are."""
    overlay = Overlay(20 * SIZE + OVER)
    for number in range(21):
        overlay.put(name(number), fill())
    assert name(0) not in overlay
    overlay.put(name(0), fill())
    for number in range(21, 50):
        overlay.put(name(number), fill())
    assert name(0) in overlay
    assert name(1) not in overlay


def test_what_is_used_no_more_goes_from_the_main_queue() -> None:
    """A row that was read often long ago makes room for those that are read now."""
    overlay = Overlay(10 * SIZE + OVER)
    for number in range(10):
        overlay.put(name(number), fill())
        for _ in range(9):
            overlay.get(name(number), b"s", LOW)
    for round_ in range(12):
        for number in range(10 + 10 * round_, 20 + 10 * round_):
            overlay.put(name(number), fill())
            overlay.get(name(number), b"s", LOW)
    assert keys(overlay, *map(name, range(10))) == []
    assert overlay.bytes <= 10 * SIZE + OVER


@given(st.lists(st.tuples(st.sampled_from("pgx"), st.integers(0, 30), st.integers(0, 3)), max_size=300))
def test_its_bytes_are_those_of_its_fills_and_never_more_than_may_be(ops: list[tuple[str, int, int]]) -> None:
    """Whatever is put, used and voided; what it gives is what was put last."""
    overlay, put = Overlay(7 * SIZE + OVER), dict[bytes, bytes]()
    overlay.put(b"first", fill())
    overlay.get(b"first", b"other", LOW)
    for op, number, size in ops:
        if op == "p":
            put[name(number)] = b"i" * size
            assert overlay.put(name(number), fill(b"i" * size))
        else:
            found = overlay.get(name(number), b"s" if op == "g" else b"other", LOW)
            assert found is None or found.image == put[name(number)]
        held = keys(overlay, *map(name, range(31)))
        assert overlay.bytes == sum(SIZE + len(put[each]) for each in held) <= overlay.bytes_max
        assert len(overlay) == len(held)


def test_positions_of_each_fill_count() -> None:
    """Where the source writes between reads, each fill has positions of its own, of many domains perhaps."""
    for domains in (1, 10, 30):
        tracemalloc.start()
        overlay, before = Overlay(1 << 20), tracemalloc.get_traced_memory()[0]
        for number in range(6_000):
            at = [",".join(f"{each}-1-{1_000_000 + number + more}" for each in range(domains)) for more in (0, 1)]
            overlay.put(b"shop.t\0[%d]" % number, OverlayFill(b"x" * 40, at[0], at[1], number, b"", LOW))
        used = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
        assert overlay.evictions
        assert used < 1.25 * overlay.bytes_max


def test_what_is_voided_and_filled_again_and_again_takes_no_more_memory() -> None:
    """Nothing is evicted meanwhile, which would take the keys from the queues."""
    overlay = Overlay(1_000_000)
    for _ in range(5_000):
        overlay.put(b"a", fill())
        overlay.get(b"a", b"other", LOW)
    [region] = overlay._regions
    assert len(region._small) < 1_100


def test_a_hot_table_has_room_of_its_own() -> None:
    """Neither drives the other out. Without room for others a hot table is kept all the same."""
    size = size_of(b"d.hot\0[1]", fill(), fill())
    overlay = Overlay(2 * size + OVER, {"d.hot": 3 * size + OVER})
    for number in range(9):
        overlay.put(b"d.hot\0[%d]" % number, fill())
        overlay.put(b"d.not\0[%d]" % number, fill())
    assert (len(overlay), overlay.bytes, overlay.evictions) == (5, 5 * size, 13), "what came first has paid and is gone"
    assert keys(overlay, b"d.hot\0[8]", b"d.not\0[8]") == [b"d.hot\0[8]", b"d.not\0[8]"]
    alone = Overlay(0, {"d.hot": size + OVER})
    assert alone.put(b"d.hot\0[1]", fill())
    assert not alone.put(b"d.not\0[1]", fill())
    assert alone.get(b"d.hot\0[1]", b"other", LOW) is None
    assert alone.put(b"d.hot\0[2]", fill())
    alone.clear()
    assert len(alone) == 0


def test_a_value_that_is_too_large_takes_the_old_one_with_it() -> None:
    """The old one is no longer the newest that is known."""
    overlay = Overlay(SIZE + OVER)
    assert overlay.put(b"a", fill())
    assert not overlay.put(b"a", fill(b"1" * (OVER + 1)))
    assert overlay.get(b"a", b"s", LOW) is None
    assert overlay.bytes == 0


def test_a_tables_list_counts() -> None:
    """Lists of long open transactions are larger than images."""
    overlay = Overlay(10_000)
    listed = "d.t:5:9223372036854775807::"
    table = FillTable(0, "k", 0, 7, "d.t", "transactional", b"i", listed, gtid(5), gtid(5), b"s")
    overlay.put(b"a", fill(b"i")._replace(table=table))
    more = "d.t:5:9223372036854775807:1,2,3:4"
    overlay.put(b"b", fill(b"i")._replace(table=msgspec.structs.replace(table, write_ids=more)))
    overlay.put(b"c", fill(b"i")._replace(table=table))
    with_more = overlay.bytes
    overlay.get(b"b", b"other", LOW)
    overlay.put(b"d", fill(b"i")._replace(table=table))
    assert with_more - overlay.bytes == len(more) - len(listed)


def test_a_fill_of_a_shard_without_a_low_water_is_given_while_there_is_none() -> None:
    """Nothing has been dropped of it then; once something may have been, nobody knows of the fill what."""
    overlay = Overlay(10_000)
    overlay.put(b"a", fill(low_water=""))
    assert [overlay.get(b"a", b"s", "") is not None for _ in range(2)] == [True, True]


def test_a_stamp_is_paid_for_once_whatever_comes_between() -> None:
    """Fills of two tables take turns: the second fill over each stamp shares what the first has paid."""
    one, other = (fill(stamp=stamp * 20) for stamp in (b"s", b"t"))
    assert size_of(b"a", one, other, one) == size_of(b"a", one, one)


def test_only_a_fill_over_the_same_state_is_given() -> None:
    """Another stamp or a low-water that it has not reached drops it for good."""
    overlay = Overlay(10_000)
    overlay.put(b"a", fill())
    assert overlay.get(b"a", b"other", LOW) is None
    assert overlay.get(b"a", b"s", LOW) is None
    for low_water, kept in ((gtid(5), True), (gtid(6), False), ("", False)):
        overlay.put(b"a", fill())
        found = overlay.get(b"a", b"s", low_water)
        assert (found is not None) is kept
        assert found is None or found.low_water == low_water
        assert (overlay.get(b"a", b"s", low_water) is not None) is kept
    assert overlay.bytes == 0


def test_states_that_nobody_fills_over_any_more_take_no_memory() -> None:
    """Each event that makes a key void gives it another stamp: what fills share is remembered of the last ones only."""
    overlay = Overlay(100_000)
    for number in range(3_000):
        overlay.put(b"a", fill(stamp=b"%d" % number))
    [region] = overlay._regions
    assert len(region._overs) < 300
    assert overlay.bytes == SIZE + OVER + len(b"2999") - len(b"s")


def test_what_was_used_leaves_room_for_what_is_new() -> None:
    """What has moved to the main queue counts in the small one no more: the first new rows stay for a while."""
    overlay = Overlay(20 * SIZE + OVER)
    for number in range(20):
        overlay.put(name(number), fill())
        assert overlay.get(name(number), b"s", LOW) is not None
    overlay.put(name(20), fill())
    overlay.put(name(21), fill())
    assert keys(overlay, name(20), name(21)) == [name(20), name(21)]


def test_a_fill_counts_from_before_it_was_read() -> None:
    """Between the two ends of its read its row may have been deleted, and the tombstone dropped since."""
    overlay = Overlay(1 << 20)
    overlay.put(b"a", fill(lo=5)._replace(hi=gtid(7)))
    assert overlay.get(b"a", b"s", gtid(5)) is not None
    assert overlay.get(b"a", b"s", gtid(6)) is None
