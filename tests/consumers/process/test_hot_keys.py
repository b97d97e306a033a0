"""Which rows an owner asks for when a table was voided. Without Kafka."""

from __future__ import annotations

from consumers.process.kafka_output import HOT_MAX, hot_keys
from stream.wire.keys import row_key


def key(number: int, table: str = "d.t") -> bytes:
    """A row's key."""
    return row_key(table, [number])


def test_the_rows_that_are_read_most_come_first() -> None:
    """Of this table alone, each once, and of one whose name only begins alike none."""
    recent = [key(1), key(2), key(3), key(2), key(7, "d.t2"), key(2), key(3), key(9, "d.u")]
    assert hot_keys(recent, "d.t") == [key(2), key(3), key(1)]


def test_what_is_asked_for_at_once_is_bounded() -> None:
    """However many rows are read."""
    assert len(hot_keys(map(key, range(3 * HOT_MAX)), "d.t")) == HOT_MAX
