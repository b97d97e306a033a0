"""Dead letters that are put back while others of the same batch are not: none says more than it may."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from stream.kafka import dead_letters, unfolded
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import PUT_BACK, DeadLetter, DeadLetterPublisher, retry
from stream.kafka.unfolded import GAP_MAX, Place, nothing_left_behind
from tests.consumers.histories import event, frame, key, marker, start, value
from tests.stream.memory_log import MemoryLog

KAFKA = KafkaCluster("127.0.0.1:1")
TOPIC = "freshet.ks.events"
JUNK = b"junk"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """A topic that is read for what stands behind a letter."""
    made = MemoryLog(1)
    for name in ("end_offsets", "read_range"):
        monkeypatch.setattr(unfolded, name, getattr(made, name))
    return made


def late(wanted: list[int], lettered: list[int]) -> list[int]:
    """Which of some offsets may be folded late, while these have letters."""
    places = [(0, offset) for offset in wanted]
    found = nothing_left_behind(KAFKA, TOPIC, places, {(0, offset) for offset in lettered})
    return sorted(offset for _, offset in found)


def write(log: MemoryLog, *values: bytes) -> None:
    """Writes messages, each at the offset of its place."""
    for each in values:
        log.commit([(0, each)], 1)
        log.partitions[0].pop()


def test_the_earlier_of_two_letters_of_a_batch_waits_for_the_later_one(log: MemoryLog) -> None:
    """Both may be of one key, and the marker counts for both: the earlier one alone would be called fresh."""
    write(log, value(1, b"a", 3), value(1, b"b", 4), marker(4), value(1, b"c", 5), marker(5))
    assert late([0], [0, 1]) == []
    assert late([1], [0, 1]) == [1]
    assert late([0, 1], [0, 1]) == [0, 1]
    assert late([0], [0, 3]) == [0]
    assert late([0, 3], [0, 1, 3]) == [3]


def test_a_letter_waits_for_what_nobody_can_read(log: MemoryLog) -> None:
    """Its letter is perhaps not written yet."""
    write(log, value(1, b"a", 3), JUNK, marker(3), value(1, b"a", 4), marker(4), JUNK)
    assert late([0, 3], [0, 3]) == [3]


def test_only_a_marker_that_counts_for_a_letter_ends_what_may_follow_it(log: MemoryLog) -> None:
    """Another shard's does not, nor one of before it that is in the topic twice."""
    ahead = frame([(key(1), 1, b"a", 3), (key(2), 1, b"a", 9)])
    write(log, ahead, marker(9, shard="shop/1"), marker(8), value(1, b"b", 10), marker(10), value(2, b"b", 11))
    assert late([0], [0, 3]) == []
    assert late([0], [0, 5]) == [0]
    assert late([0], [0, 2]) == []


def test_letters_far_from_each_other_are_looked_at_one_by_one(log: MemoryLog) -> None:
    """All that lies between them is not read."""
    write(log, value(1, b"a", 3), marker(3), *[JUNK] * (GAP_MAX + 1), value(1, b"a", 4), JUNK, value(1, b"a", 5))
    assert late([0, GAP_MAX + 3, GAP_MAX + 5], []) == [0, GAP_MAX + 5]


@pytest.mark.parametrize("dismissed", [False, True])
def test_what_is_put_back_is_never_older_than_what_is_lost(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, dismissed: bool
) -> None:
    """Of two letters the later one goes first; and where that one is dismissed, the earlier one stays a letter."""
    messages = [start(), marker(2), value(1, b"a", 3), event("TableVoid", 4, table="shop.items", reason=""), marker(4)]
    write(log, *messages)
    letters = [DeadLetter("freshet.ks.events", 0, offset, "bad", "", messages[offset]) for offset in (2, 3)]
    told = [
        SimpleNamespace(
            key=lambda each=each: each.id.encode(), value=lambda: b"x", headers=lambda each=each: fields(each)
        )
        for each in letters
    ]
    listed = letters[:1] if dismissed else letters
    written: list[Place] = []
    resolved: list[str] = []
    monkeypatch.setattr(dead_letters, "_unresolved", lambda _, __, ___, kept: [kept(each) for each in listed])
    monkeypatch.setattr(dead_letters, "_messages", lambda *_: iter(told))
    monkeypatch.setattr(dead_letters, "_borne_out", lambda *_: [(each.id, each.value) for each in letters])
    monkeypatch.setattr(dead_letters, "_put_back", lambda _, good, __: written.extend(each.place for each in good))
    monkeypatch.setattr(DeadLetterPublisher, "resolve", lambda _, each, **__: resolved.append(each))
    results = retry(KAFKA, "ks")
    assert written == ([] if dismissed else [(0, 3), (0, 2)])
    assert len(resolved) == len(written)
    assert [bool(each.problem) for each in results] == ([True] if dismissed else [False, False])


def fields(letter: DeadLetter) -> list[tuple[str, bytes]]:
    """A letter's headers."""
    names = ("topic", "partition", "offset", "code", "reason", "size")
    return [(name, str(getattr(letter, name)).encode()) for name in names]


def test_a_letter_that_was_put_back_holds_none_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was dismissed does: what it said is lost."""
    letters = [DeadLetter("freshet.ks.events", 0, offset, "bad", "", b"x") for offset in (1, 2, 3)]
    records = [
        *(
            SimpleNamespace(key=each.id.encode, value=lambda: b"x", headers=lambda each=each: fields(each))
            for each in letters
        ),
        SimpleNamespace(key=letters[0].id.encode, value=lambda: None, headers=lambda: [(PUT_BACK, b"yes")]),
        SimpleNamespace(key=letters[1].id.encode, value=lambda: None, headers=lambda: None),
    ]
    monkeypatch.setattr(dead_letters, "_messages", lambda *_: iter(records))
    assert dead_letters._not_folded(KAFKA, "ks") == {(0, 2), (0, 3)}
