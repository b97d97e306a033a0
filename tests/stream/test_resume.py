"""The resume point of a publisher, computed from the states in the topic."""

from __future__ import annotations

from typing import Any

import pytest

from stream.publish.resume import ResumeError, resume_point
from stream.wire.codec import decode, encode


def _state(
    sequence: int, *, whole: bool, epoch: int = 1, opened: tuple[int, ...] = (), closed: tuple[int, ...] = ()
) -> Any:
    transactions = [{"txn": txn, "write_ids": [], "seen_open": True, "wrote": []} for txn in opened]
    state = {
        "shard": "s/0",
        "epoch": epoch,
        "ordinal": sequence * 10,
        "position": f"HiveEvent/{sequence}",
        "timestamp": sequence,
        "low_water": "HiveEvent/0",
        "partial_gtid": "",
        "partial_events": 0,
        "sequence": sequence,
        "whole": whole,
        "opened": transactions,
        "closed": list(closed),
        "layout": "xxh3_64;partitions=1",
        "table_choice": 0,
    }
    return decode(encode("SourceState", state))[1]


def test_deltas_build_on_the_last_whole_map() -> None:
    """The map of open transactions is the last whole one plus the changes since."""
    states = [
        _state(3, whole=True, opened=(1, 2)),
        _state(4, whole=True, opened=(2, 3)),
        _state(5, whole=False, opened=(4,), closed=(2,)),
        _state(6, whole=False, closed=(9,)),
    ]
    point = resume_point(states)
    assert (set(point.open_transactions), point.sequence, point.ordinal) == ({3, 4}, 6, 60)


def test_the_choice_of_tables_is_that_of_the_last_state() -> None:
    """The choice of tables is taken from the last state, so that a source does not describe and void again."""
    states = [_state(3, whole=True) | {"table_choice": 5}, _state(4, whole=False) | {"table_choice": 6}]
    assert resume_point(states).table_choice == 6


def test_what_the_source_left_for_a_restart_is_that_of_the_last_state() -> None:
    """Cursor, checksum and annotations, and where everything is declared, are taken from the last state."""
    left = {"cursor": "b.7:4", "checksum": 9, "annotations": {"a": "b"}, "declared_at": 3, "continuity": 5}
    point = resume_point([_state(3, whole=True), _state(4, whole=False) | left])
    assert {field: getattr(point, field) for field in left} == left


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], "open_map_lost"),
        ([_state(2, whole=False)], "open_map_lost"),
        ([_state(2, whole=True), _state(4, whole=False)], "states_contradict"),
        ([_state(2, whole=True), _state(2, whole=False)], "states_contradict"),
        ([_state(2, whole=True), _state(3, whole=False, epoch=2)], "states_contradict"),
    ],
    ids=["none", "no whole one", "gap", "twice", "another epoch"],
)
def test_a_map_that_cannot_be_built_is_an_error(states: list[Any], code: str) -> None:
    """Missing or contradicting states are an error, so that no open transaction is lost."""
    with pytest.raises(ResumeError) as lost:
        resume_point(states)
    assert lost.value.code == code
