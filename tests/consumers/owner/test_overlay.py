"""What the overlay keeps, and in which order it forgets."""

from __future__ import annotations

from consumers.owner.overlay import ENTRY_BYTES, Overlay, OverlayFill
from consumers.owner.protocol import FillTable
from tests.consumers.histories import gtid

LOW = gtid(1)


def fill(image: bytes | None = b"", *, lo: int = 5, stamp: bytes = b"s", low_water: str = LOW) -> OverlayFill:
    """A fill that was read at ``lo``."""
    return OverlayFill(image, gtid(lo), gtid(lo), 1, stamp, low_water)


SIZE = ENTRY_BYTES + 1 + 2 * len(gtid(5)) + 1
"""Of a fill without image, under a key of one byte."""


def test_it_keeps_as_much_as_fits_exactly() -> None:
    """Keys, images, positions, stamps and lists count; the least recently used goes first."""
    overlay = Overlay(2 * SIZE + 10)
    assert (overlay.bytes, overlay.evictions, len(overlay)) == (0, 0, 0)
    assert overlay.put(b"a", fill(b"1" * 10))
    assert overlay.put(b"b", fill(None))
    assert (overlay.bytes, overlay.evictions, len(overlay)) == (2 * SIZE + 10, 0, 2)
    assert overlay.get(b"a", b"s", LOW) is not None
    assert overlay.put(b"c", fill())
    assert overlay.get(b"b", b"s", LOW) is None, "it was used before the other one"
    assert overlay.get(b"a", b"s", LOW) is not None
    assert (overlay.evictions, len(overlay)) == (1, 2)
    assert overlay.put(b"a", fill(b"2"))
    assert overlay.bytes == 2 * SIZE + 1
    assert not overlay.put(b"d", fill(b"1" * (SIZE + 11)))
    assert overlay.put(b"d", fill(b"1" * (SIZE + 10)))
    assert (overlay.bytes, overlay.evictions, len(overlay)) == (2 * SIZE + 10, 3, 1)
    overlay.clear()
    assert (overlay.bytes, len(overlay), overlay.get(b"d", b"s", LOW)) == (0, 0, None)


def test_a_value_that_is_too_large_takes_the_old_one_with_it() -> None:
    """The old one is no longer the newest that is known."""
    overlay = Overlay(SIZE)
    assert overlay.put(b"a", fill())
    assert not overlay.put(b"a", fill(b"1"))
    assert overlay.get(b"a", b"s", LOW) is None
    assert overlay.bytes == 0


def test_a_tables_list_counts() -> None:
    """Lists of long open transactions are larger than images."""
    overlay = Overlay(10_000)
    listed = "d.t:5:9223372036854775807::"
    table = FillTable(0, "k", 0, 7, "d.t", "transactional", b"i", listed, gtid(5), gtid(5), b"s")
    overlay.put(b"a", fill(b"i")._replace(table=table))
    assert overlay.bytes == SIZE + 1 + len(listed)


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
