"""The resume point of a publisher, computed from the states in the topic."""

from __future__ import annotations

from typing import Any

import pytest

from stream.publish import resume
from stream.publish.resume import ResumeError, read_declarations, read_tail, resume_point
from stream.wire.codec import HEADER_SIZE, decode, encode
from tests.consumers.owning import schema
from tests.stream.memory_log import KAFKA, MemoryLog
from tests.stream.reopening import foreign
from tests.upgrades.next_version import TRANSFER, announcement, topic, written


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
        ([_state(2, whole=True), _state(4, whole=False)], "tail_lost"),
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


def test_all_windows_share_the_time_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each window waits for what the ones before it have left, and is still read when that is nothing."""
    log, patience, clock = MemoryLog(1), list[float](), iter(range(0, 10_000, 25))
    log.install(monkeypatch)
    for _ in range(40):
        log.commit([(0, encode("SourceState", _state(1, whole=False)))], 1)

    def read_range(*given: Any, timeout_s: float) -> Any:
        patience.append(timeout_s)
        return log.read_range(*given)

    monkeypatch.setattr(resume, "read_range", read_range)
    monkeypatch.setattr(resume, "monotonic", lambda: float(next(clock)))
    tail = read_tail(KAFKA, "t", 0, "s/0", timeout_s=60.0, window=2)
    assert tail.problem is not None
    assert tail.problem.code == "open_map_lost"
    assert patience == [35.0, 10.0, 0.001, 0.001]


TRANSFERRED = [announcement(TRANSFER, "s/0"), written(TRANSFER, {"shard": "s/0", "text": ""})]


@pytest.mark.parametrize("said", [[schema(2)[: HEADER_SIZE + 1]], topic([schema(2)], "s/0"), TRANSFERRED])
def test_a_declaration_that_cannot_be_read_is_lost(monkeypatch: pytest.MonkeyPatch, said: list[bytes]) -> None:
    """The publisher begins a new epoch and says everything again, instead of leaving it unsaid."""
    log = MemoryLog(1)
    log.install(monkeypatch)
    log.commit([(0, value) for value in said], 1)
    with pytest.raises(ResumeError) as lost:
        read_declarations(KAFKA, "t", 0, resume_point([_state(1, whole=True)]))
    assert lost.value.code == "declarations_lost"


def test_a_newer_record_before_the_last_state_is_passed_over_in_whatever_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Windows before the last one have older states; what a newer version published between them was undone."""
    log = MemoryLog(1)
    log.install(monkeypatch)
    states = [encode("SourceState", _state(number, whole=number == 1)) for number in range(1, 8)]
    for value in (states[0], *TRANSFERRED, *states[1:]):
        log.commit([(0, value)], 1)
    for window in range(1, 8):
        tail = read_tail(KAFKA, "t", 0, "s/0", window=window)
        assert tail.problem is None
        assert tail.point is not None
        assert tail.point.sequence == 7


def test_a_state_behind_the_open_transaction_of_another_shard_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of committed records do not see it yet. Resumed before it, events would be published twice."""
    log = MemoryLog(1)
    log.install(monkeypatch)
    log.commit([(0, encode("SourceState", _state(1, whole=True)))], 1)
    log.stable = [len(log.partitions[0])]
    log.commit([(0, encode("SourceState", _state(2, whole=False)))], 1)
    tail = read_tail(KAFKA, "t", 0, "s/0")
    assert tail.point is not None
    assert tail.point.sequence == 2


def test_the_record_time_is_the_highest_of_all_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record times never go back: offsets are found by them, and what seems old is deleted early."""
    log = MemoryLog(1)
    log.install(monkeypatch)
    for number, time_ms in ((1, 5), (2, 9), (3, 7)):
        log.commit([(0, encode("SourceState", _state(number, whole=number == 1)))], time_ms)
    for window in range(1, 8):
        assert read_tail(KAFKA, "t", 0, "s/0", window=window).record_time_ms == 9


@pytest.mark.parametrize(
    ("said", "low", "is_untruncated"),
    [([], 0, True), ([], 1, False), ([encode("Marker", foreign("s/9"))], 0, True), (TRANSFERRED[1:], 0, False)],
)
def test_a_shard_without_a_state_is_new_only_where_all_is_there_and_can_be_read(
    monkeypatch: pytest.MonkeyPatch, said: list[bytes], low: int, is_untruncated: bool
) -> None:
    """Retention may have taken its states, or a newer version has written them as nobody here can read them."""
    log = MemoryLog(1)
    log.install(monkeypatch)
    log.commit([(0, value) for value in (b"foreign", *said)], 1)
    log.lows = [low]
    tail = read_tail(KAFKA, "t", 0, "s/0")
    assert (tail.point, tail.is_untruncated) == (None, is_untruncated)
