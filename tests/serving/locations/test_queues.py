"""Which refresh is next: deduplication (L4), batches (L10), six priorities (L9), limits (L11)."""

from __future__ import annotations

import random
import time
from functools import partial
from itertools import pairwise

import pytest

from serving.locations import queues as queues_module
from serving.locations.errors import LocationError
from serving.locations.limits import (
    FAILURES_MIN,
    OPEN_S,
    OPEN_S_MAX,
    PARALLEL_MAX,
    READS_PER_S,
    READS_PER_S_OF_KEYSPACE,
    Breaker,
    Limits,
)
from serving.locations.places import FOREVER, Key, Kind, Priority
from serving.locations.queues import BATCH_MAX, REST_S, WAITS_LONG_S, Batch, Queues
from tests.lengths import length

ROOT = Key("", 0, Kind.LOCATIONS)
COLD = length(40_000, 400_000)


def put(queues: Queues, key: Key, now: float = 0.0) -> bool:
    return queues.put(key, key.priority, now)


def take(queues: Queues, now: float = 0.0) -> Batch:
    found = queues.take(now, lambda _: True)
    assert found is not None
    return found


def test_eleven_requests_are_one_refresh_and_one_that_comes_during_it_is_one_more() -> None:
    """OceanBase's case: 11 alike make one task; who wants something newer meanwhile gets one more, after the rest."""
    queues, key = Queues(), Key("shop", 0)
    assert [put(queues, key) for _ in range(11)] == [True] + [False] * 10
    batch = take(queues, 1.0)
    assert batch.keys == (key,)
    assert not queues.put(key, key.priority, 1.5, newer_than=0.5)  # the one that began at 1.0 is new enough
    assert [queues.put(key, key.priority, 1.5, newer_than=1.5) for _ in range(3)] == [True, False, False]
    assert queues.take(1.6, lambda _: True) is None
    queues.done(batch.keys, 2.0)
    assert queues.next_at() == 2.0 + REST_S
    assert queues.take(2.0 + REST_S / 2, lambda _: True) is None
    again = take(queues, 2.0 + REST_S)
    assert again.keys == (key,)
    queues.done(again.keys, 3.0)
    assert queues.take(100.0, lambda _: True) is None


@pytest.mark.parametrize("is_under_way", [False, True])
def test_who_wants_the_topics_word_gets_it_with_a_refresh_that_others_asked_for(is_under_way: bool) -> None:
    """Whether that one waits, or is under way and is repeated: peers would tell what they told before."""
    queues, key = Queues(), Key("shop", 0)
    put(queues, key)
    batch = take(queues, 1.0) if is_under_way else None
    queues.put(key, key.priority, 2.0, topic_only=True)
    if batch is not None:
        assert not batch.topic_only
        queues.done(batch.keys, 3.0)
    assert take(queues, 3.0 + REST_S).topic_only == {key}


def test_a_refresh_that_began_at_that_moment_is_not_new_enough() -> None:
    """What was announced since then it may lack."""
    queues, key = Queues(), Key("shop", 0)
    put(queues, key)
    take(queues, 1.0)
    assert queues.put(key, key.priority, 1.0, newer_than=1.0)


def test_a_key_rests_between_two_refreshes() -> None:
    """At most one in a tenth of a second, whoever asks."""
    queues, key, taken = Queues(), Key("shop", 0), []
    for step in range(1_000):
        now = step / 1_000
        queues.put(key, key.priority, now, newer_than=FOREVER)
        if (batch := queues.take(now, lambda _: True)) is not None:
            taken.append(now)
            queues.done(batch.keys, now)
    assert all(later - earlier > REST_S - 1e-9 for earlier, later in pairwise(taken))
    assert len(taken) in (9, 10)


def test_a_batch_is_of_one_keyspace_and_kind_and_the_root_goes_alone() -> None:
    """Groups take turns, so a large keyspace does not hold up a small one."""
    queues = Queues()
    for number in range(300):
        put(queues, Key("shop", number))
    for key in (Key("bank", 0), Key("shop", 0, Kind.KEYSPACE), ROOT):
        put(queues, key)
    batches = [take(queues) for _ in range(6)]
    assert [(each.keyspace, each.kind, len(each.keys)) for each in batches] == [
        ("", Kind.LOCATIONS, 1),
        ("shop", Kind.KEYSPACE, 1),
        ("shop", Kind.PARTITION, BATCH_MAX),
        ("bank", Kind.PARTITION, 1),
        ("shop", Kind.PARTITION, BATCH_MAX),
        ("shop", Kind.PARTITION, 300 - 2 * BATCH_MAX),
    ]
    assert len({key for each in batches for key in each.keys}) == 303


def test_what_matters_more_goes_before_200_000_user_partitions() -> None:
    """All six queues, in their order, at once; a partition that starts to fail overtakes those that don't."""
    queues = Queues()
    for number in range(200_000):
        put(queues, Key("shop", number))
    failing = Key("shop", 199_999)
    queues.put(failing, Priority.FAILING, 0.0)
    kinds = (Kind.KEYSPACE, Kind.DEAD_LETTERS, Kind.EVENTS)
    began = time.process_time()
    for key in (*(Key("shop", 0, kind) for kind in kinds), ROOT):
        put(queues, key)
    taken = [take(queues)]
    took_s = time.process_time() - began
    assert sum(queues.depths().values()) == 200_003
    taken += [take(queues) for _ in range(5)]
    assert [each.kind for each in taken] == [
        Kind.LOCATIONS, Kind.EVENTS, Kind.DEAD_LETTERS, Kind.PARTITION, Kind.KEYSPACE, Kind.PARTITION,
    ]  # fmt: skip
    assert taken[3].keys == (failing,)
    assert took_s < 0.01


def test_nobody_starves() -> None:
    """While more important keys never end, one that has waited for long gets each eighth batch."""
    queues, key = Queues(), Key("shop", 0)
    put(queues, key)
    for turn in range(1, 30):
        put(queues, Key("shop", turn, Kind.EVENTS), WAITS_LONG_S + turn)
        if key in (taken := take(queues, WAITS_LONG_S + turn)).keys:
            break
    assert turn <= queues_module.TURNS
    assert taken.waited_s > WAITS_LONG_S


def test_a_full_queue_refuses_and_the_systems_is_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of user partitions takes no place from the system."""
    monkeypatch.setattr(queues_module, "USER_MAX", 3)
    monkeypatch.setattr(queues_module, "SYSTEM_MAX", 1)
    queues = Queues()
    for number in range(3):
        put(queues, Key("shop", number))
    with pytest.raises(LocationError) as full:
        put(queues, Key("shop", 3))
    assert full.value.code == "location_queue_full"
    assert put(queues, ROOT)
    with pytest.raises(LocationError):
        put(queues, Key("shop", 0, Kind.EVENTS))
    assert take(queues).keys == (ROOT,)
    assert put(queues, Key("shop", 0, Kind.EVENTS))


def test_dropped_keys_leave_their_room() -> None:
    """Else the system's few places are full, with nobody in them."""
    queues = Queues()
    for _ in range(queues_module.SYSTEM_MAX + 1):
        put(queues, ROOT)
        queues.drop(lambda _: True)
    assert put(queues, ROOT)


def test_the_refresh_after_the_rest_is_the_most_urgent_that_was_asked_for() -> None:
    """Who only finds an entry old does not put it behind those whose leader fails."""
    queues, key = Queues(), Key("shop", 0)
    put(queues, key)
    batch = take(queues, 1.0)
    for priority in (Priority.FAILING, Priority.PARTITION):
        queues.put(key, priority, 2.0, newer_than=FOREVER)
    queues.done(batch.keys, 3.0)
    put(queues, Key("shop", 1), 3.0 + REST_S)
    assert queues.depths()["failing"] == 1


def test_a_full_queue_keeps_nobody_from_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refresh that is due again after its rest finds no room, or finds it all the same: others go on."""
    monkeypatch.setattr(queues_module, "USER_MAX", 1)
    queues, first, second = Queues(), Key("shop", 0), Key("shop", 1)
    put(queues, first)
    batch = take(queues)
    assert put(queues, second)
    assert queues.put(first, first.priority, 0.5, newer_than=FOREVER)
    queues.done(batch.keys, 1.0)
    assert second in take(queues, 2.0).keys


def test_dropped_keys_are_refreshed_no_more() -> None:
    """Neither those that wait, nor again those that are under way or rest."""
    queues = Queues()
    keys = [Key("shop", number) for number in range(3)]
    for each in keys:
        queues.put(each, Priority.PARTITION, 0.0)
        if each != keys[2]:
            batch = take(queues)
            queues.put(each, Priority.PARTITION, 0.5, newer_than=FOREVER)
            if each == keys[0]:
                queues.done(batch.keys, 1.0)
    queues.drop(lambda key: key.keyspace == "shop")
    queues.done([keys[1]], 1.0)
    assert (len(queues), queues.next_at(), queues.take(50.0, lambda _: True)) == (0, None, None)


@pytest.mark.long
def test_cold_keys_take_full_batches_and_never_more_than_the_cap() -> None:
    """Read side by side as far as the limits allow: 400,000 take 3,128 batches, of four keyspaces."""
    queues, limits, now, batches, began = Queues(), Limits(), 0.0, 0, list[float]()
    for number in range(COLD):
        put(queues, Key(f"k{number % 4}", number))
    running: list[tuple[float, Batch]] = []
    rng = random.Random(3)
    while len(queues) or running:
        while limits.may_begin(now) and (batch := queues.take(now, partial(limits.take, now=now))) is not None:
            limits.under_way += 1
            running.append((now + rng.uniform(0.005, 0.05), batch))
            batches, began = batches + 1, [*began, now]
        assert len(running) <= PARALLEL_MAX
        now += 0.005
        for ended, batch in [each for each in running if each[0] <= now]:
            limits.under_way -= 1
            limits.breaker.end(now, good=True)
            queues.done(batch.keys, now)
            running.remove((ended, batch))
    assert batches == 4 * -(-COLD // 4 // BATCH_MAX)  # four keyspaces; the last batch of each is not full
    assert all(count <= READS_PER_S * (1 + at) + 1 for count, at in enumerate(began, 1))  # after a burst of as many
    assert began[int(READS_PER_S) + 10] > 0.04, "the cap was never reached"


def test_one_keyspace_does_not_take_the_tokens_of_another() -> None:
    """Each has its own, within those of all."""
    limits = Limits()
    taken = sum(limits.take("loud", 0.0) for _ in range(1_000))
    assert taken == READS_PER_S_OF_KEYSPACE
    assert limits.take("quiet", 0.0)
    assert not limits.take("loud", 0.001)
    assert limits.take("loud", 0.001 + limits.wait_s(0.001))


def test_the_breaker_opens_tries_one_and_closes() -> None:
    """Open for a second, longer each time that its one try fails; one success closes it."""
    breaker, now = Breaker(), 0.0
    for _ in range(FAILURES_MIN):
        assert not breaker.is_open(now)
        breaker.begin()
        breaker.end(now, good=False)
    assert breaker.is_open(now)
    open_s = OPEN_S
    for _ in range(7):
        assert breaker.is_open(now + open_s * 0.99)
        now += open_s
        assert not breaker.is_open(now)
        breaker.begin()
        assert breaker.is_open(now)  # one tries, the others wait
        breaker.end(now, good=False)
        open_s = min(2 * open_s, OPEN_S_MAX)
    now += open_s
    breaker.begin()
    breaker.end(now, good=True)
    assert not breaker.is_open(now)
    assert breaker.wakes_at is None


def test_some_failures_among_many_successes_open_nothing() -> None:
    """The share decides, and old failures are forgotten."""
    breaker = Breaker()
    for turn in range(200):
        breaker.end(turn / 100, good=turn % 3 != 0)
    assert not breaker.is_open(2.0)
    for turn in range(FAILURES_MIN - 1):
        breaker.end(20.0 * (turn + 2), good=False)
    assert not breaker.is_open(1_000.0)


def test_a_breaker_that_was_closed_opens_for_a_short_time_again() -> None:
    """However long it was open before: what fails now may be something else, which is back at once."""
    breaker, now = Breaker(), 0.0
    for good in (*[False] * FAILURES_MIN, False, False, True):
        now = max(now, breaker.wakes_at or 0.0)
        breaker.begin()
        breaker.end(now, good=good)
    for _ in range(FAILURES_MIN):
        assert not breaker.is_open(now)
        breaker.end(now, good=False)
    assert breaker.is_open(now + OPEN_S * 0.99)
    assert not breaker.is_open(now + OPEN_S)
