"""What is kept, what is told, and what takes the place of what: L1, L3, L5, L8, L12 to L16, L18, L22, L25."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.locations import cache as cache_module
from serving.locations import queues as queues_module
from serving.locations.absent import ABSENT_S, ABSENT_S_MAX, Absences
from serving.locations.cache import AGES_S, FORCED_S, REMEMBERED_S, RENEWED_EVERY_S, SWEEP_S, LocationCache, Report
from serving.locations.errors import TIMED_OUT, LocationError, code_of
from serving.locations.limits import FORCED_PER_S
from serving.locations.places import (
    EXPIRES_S,
    FOREVER,
    JITTER,
    NEVER,
    Entry,
    Found,
    Key,
    Kind,
    Location,
    Origin,
    Replica,
    Version,
)
from serving.locations.queues import Batch
from serving.reads.locations import explain
from tests.serving.locations.places import KEY, at, led_by

ROOT = Key("", 0, Kind.LOCATIONS)
ORIGINS = (Origin.TOPIC, Origin.PUSH, Origin.PEERS, Origin.HINT, Origin.SNAPSHOT)


def holding(location: Location, now: float = 100.0, origin: Origin = Origin.TOPIC) -> LocationCache:
    cache = LocationCache()
    assert cache.install(location, origin, now, now)
    return cache


def batch_of(cache: LocationCache, now: float) -> Batch:
    batch = cache.next_batch(now)
    assert batch is not None
    return batch


def refused(code: str, cache: LocationCache, key: Key, now: float) -> LocationError:
    with pytest.raises(LocationError) as caught:
        cache.nonblock_get_leader(key, now)
    assert caught.value.code == code
    return caught.value


@pytest.mark.parametrize(("newer_than", "is_hit"), [(0.0, True), (99.9, True), (100.0, False), (FOREVER, False)])
def test_an_entry_is_told_if_it_was_renewed_after_what_is_asked(newer_than: float, is_hit: bool) -> None:
    """L1: the same moment is not after it; `FOREVER` is after everything."""
    cache = holding(led_by("a"), 100.0)
    found = cache.lookup(KEY, newer_than, 101.0)
    assert (found is not None) is is_hit
    assert cache.counts["hit"] == is_hit
    assert cache.lookup(Key("shop", 1), 0.0, 101.0) is None


def test_a_full_queue_takes_no_answer_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """L3, L16: a location that the peers confirm is told, whether or not there is room for a look at the topic."""
    monkeypatch.setattr(queues_module, "USER_MAX", 0)
    cache, now = holding(led_by("a")), 200.0 + FORCED_S
    cache.install(led_by("a"), Origin.PEERS, now, now)
    assert cache.nonblock_get(KEY, now).location.leader == at("a")
    assert cache.lookup(KEY, 0.0, now) is not None


def test_an_old_entry_is_told_and_refreshed_once() -> None:
    """L3: nobody waits; between keys the age differs by up to a tenth, so that not all go at once."""
    cache, old, ages = LocationCache(), 100.0 + EXPIRES_S * (1 + JITTER), set[bool]()
    for number in range(50):
        cache.install(led_by("a", key=Key("shop", number)), Origin.TOPIC, 100.0, 100.0)
        ages.add(cache.nonblock_get(Key("shop", number), 100.0 + EXPIRES_S).is_stale)
    assert ages == {True, False}
    for number in range(50):
        assert not cache.nonblock_get(Key("shop", number), 100.0 + EXPIRES_S * (1 - JITTER) - 1).is_stale
    for _ in range(11):
        assert cache.nonblock_get(KEY, old).is_stale
        assert cache.nonblock_get_leader(KEY, old) == at("a")
    assert KEY in batch_of(cache, old).keys
    assert cache.next_batch(old) is None


@pytest.mark.parametrize("ended_by", ["age", "doubt", "withdrawal"])
def test_a_leader_is_told_from_its_own_table_until_the_entry_is_old(ended_by: str) -> None:
    """The fast way asks for nothing, and ends with the entry's age, doubt or withdrawal."""
    cache, now = holding(led_by("a"), 100.0), 101.0
    assert cache.nonblock_get_leader(KEY, now) == at("a")
    assert "nonblock_hit" not in cache.counts
    if ended_by == "age":
        now += 2 * EXPIRES_S
    elif ended_by == "doubt":
        cache.report(KEY, at("a"), Version(1, 0, "a"), Report.NOT_LEADER, now)
    else:
        cache.install(led_by("a")._replace(gone=True), Origin.PUSH, now, now)
    assert cache.nonblock_get_leader(KEY, now) == at("a")  # still better than nobody
    assert cache.counts["nonblock_hit"] == 1
    assert batch_of(cache, now).keys == (KEY,)


versions = st.builds(Version, st.integers(1, 4), st.integers(0, 2), st.sampled_from("ab"))


@given(st.lists(st.tuples(versions, st.sampled_from(ORIGINS), st.integers(0, 9)), max_size=30))
def test_what_is_told_never_goes_back(said: Sequence[tuple[Version, Origin, int]]) -> None:
    """L5: by any source, in any order, also of late answers: (epoch, term) only grows, and ends at the highest."""
    cache, highest = LocationCache(), Version()
    for now, (version, origin, place) in enumerate(said):
        location = Location(KEY, version, at(version.instance), place=place if origin is Origin.TOPIC else 0)
        cache.install(location, origin, now, now)
        found = cache.nonblock_get(KEY, now).location.version
        assert found >= highest
        highest = max(highest, version)
        assert found == highest


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_lower_term_of_the_same_epoch_and_a_lower_epoch_are_ignored(origin: Origin) -> None:
    """L5, also if both claim to lead; and it is counted."""
    cache = holding(led_by("a", 5, term=2))
    for epoch, term in ((5, 1), (4, 9)):
        assert not cache.install(led_by("z", epoch, term=term), origin, 101.0, 101.0)
    assert cache.counts["backward"] == 2
    assert cache.nonblock_get_leader(KEY, 101.0) == at("a")


def test_a_topic_made_anew_begins_anew() -> None:
    """L5: its numbers are lower; only the directory knows which topic is the later one, by the place."""
    cache = holding(led_by("a", 7, place=3))
    again = led_by("b", 1, topic_id="new")
    for origin in (Origin.PEERS, Origin.HINT, Origin.SNAPSHOT):
        assert not cache.install(again, origin, 101.0, 101.0)
    assert not cache.install(again._replace(place=2), Origin.PUSH, 101.0, 101.0)
    assert cache.install(again._replace(place=4), Origin.PUSH, 101.0, 101.0)
    assert not cache.install(led_by("a", 9, place=3), Origin.TOPIC, 102.0, 102.0)  # a late answer about the old one
    assert cache.nonblock_get_leader(KEY, 102.0) == at("b", topic_id="new")


def test_who_asks_for_leaders_only_has_the_topic_read_too() -> None:
    """L8: a leader is told without a look at its entry, but not for longer than the topic's word is enough."""
    cache, now = holding(led_by("a")), 200.0 + FORCED_S
    cache.install(led_by("a"), Origin.PEERS, now - 1, now - 1)
    assert cache.nonblock_get_leader(KEY, now) == at("a")
    assert batch_of(cache, now).topic_only == {KEY}


def test_an_answer_is_as_of_when_its_batch_began() -> None:
    """What happened since then it may lack."""
    cache = LocationCache()
    cache.nonblock_renew(KEY, 101.0)
    cache.finish(batch_of(cache, 101.0), {KEY: (led_by("a"), Origin.TOPIC)}, 103.0)
    assert cache.lookup(KEY, 101.5, 103.0) is None
    assert cache.lookup(KEY, 100.5, 103.0) is not None


def test_an_answer_that_was_long_under_way_makes_no_entry_older() -> None:
    """It is as of when its batch began: what was confirmed meanwhile stays confirmed."""
    cache = holding(led_by("a"), 102.0)
    cache.install(led_by("a"), Origin.PEERS, 101.0, 103.0)
    assert cache.lookup(KEY, 101.5, 103.0) is not None


def test_the_topic_is_read_at_intervals_a_few_keys_a_second() -> None:
    """L8: peers confirm an entry and don't see other zones' followers. A hit is told at once."""
    cache, now = LocationCache(), 200.0 + FORCED_S
    for number in range(100):
        key = Key("shop", number)
        cache.install(led_by("a", key=key), Origin.TOPIC, 100.0, 100.0)
        cache.install(led_by("a", key=key), Origin.PEERS, now - 1, now - 1)
    for number in range(100):
        assert not cache.nonblock_get(Key("shop", number), now).is_stale
    batch = batch_of(cache, now)
    assert len(batch.keys) == FORCED_PER_S
    assert batch.topic_only == set(batch.keys)
    assert cache.next_batch(now + 0.01) is None


def test_what_does_not_exist_is_not_asked_for_again_for_a_while() -> None:
    """L12: a second, then twice as long each time up to half a minute; an announcement ends it."""
    cache, now, asked = LocationCache(), 100.0, list[float]()
    while now < 300.0:
        refused("location_unknown", cache, KEY, now)
        if (batch := cache.next_batch(now)) is not None:
            cache.finish(batch, {}, now)
            asked.append(now)
        now += 0.5
    pauses = [later - earlier for earlier, later in pairwise(asked)]
    assert pauses[:5] == [ABSENT_S, 2, 4, 8, 16]
    assert set(pauses[5:]) == {ABSENT_S_MAX}
    cache.install(led_by("a"), Origin.PUSH, now, now)
    assert cache.nonblock_get_leader(KEY, now) == at("a")
    assert not len(cache.absences)


def test_absences_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten: it is only asked for once more."""
    monkeypatch.setattr("serving.locations.absent.KEPT_MAX", 2)
    absences = Absences()
    for number in range(3):
        absences.add(Key("shop", number), 0.0)
    assert [absences.holds(Key("shop", number), 0.0) for number in range(3)] == [False, True, True]


@pytest.mark.parametrize("key", [Key("", 0), Key("shop", -1), Key("shop", 0, Kind.LOCATIONS), Key("", -1, ROOT.kind)])
def test_what_cannot_exist_is_refused(key: Key) -> None:
    """L13: before anything is queued."""
    cache = LocationCache()
    refused("bad_location", cache, key, 0.0)
    with pytest.raises(LocationError):
        cache.nonblock_renew(key, 0.0)
    with pytest.raises(LocationError):
        cache.lookup(key, 0.0, 0.0)
    assert not len(cache.queues)


def test_whoever_could_not_be_asked_leaves_the_question_open() -> None:
    """L13: eight errors of a source mean that it took too long; what it does not know does not exist."""
    assert len(TIMED_OUT) == 8
    assert {code_of(each) for each in TIMED_OUT} == {"location_timeout"}
    assert code_of("topic_missing") == "location_unknown"


def test_a_hint_with_a_higher_epoch_is_kept_without_asking_anybody() -> None:
    """L14: the instance that was left names its successor; its followers go on."""
    cache = holding(led_by("a", 5, "b", "c"))
    assert cache.report(KEY, at("a"), Version(5, 0, "a"), Report.MOVED, 101.0, [led_by("b", 6)])
    found = cache.nonblock_get(KEY, 101.0)
    assert (found.location.leader, found.location.followers, found.is_stale) == (at("b"), (at("c"),), False)
    assert cache.next_batch(101.0) is None


def test_a_report_about_an_entry_that_was_replaced_is_ignored() -> None:
    """L14: compare and evict; one that comes late does not harm what is right now."""
    cache = holding(led_by("b", 6))
    for met, version in ((at("a"), Version(5, 0, "a")), (at("b"), Version(5, 0, "b")), (at("a"), Version(6, 0, "b"))):
        assert not cache.report(KEY, met, version, Report.NOT_LEADER, 101.0, [led_by("a", 5)])
    assert not cache.nonblock_get(KEY, 101.0).is_stale
    assert cache.next_batch(101.0) is None


@pytest.mark.parametrize("what", [Report.NOT_LEADER, Report.MOVED, Report.EPOCH_STALE])
def test_a_leader_that_refuses_puts_its_entry_in_doubt(what: Report) -> None:
    """L14: it is told while nobody knows better, and refreshed before those that only grow old."""
    cache = holding(led_by("a", 5))
    old = Key("shop", 9)
    cache.nonblock_renew(old, 101.0)
    assert cache.report(KEY, at("a"), Version(5, 0, "a"), what, 101.0)
    assert cache.nonblock_get(KEY, 101.0).is_stale
    assert batch_of(cache, 101.0).keys == (KEY,)
    assert cache.report(KEY, at("a"), Version(5, 0, "a"), what, 101.1)
    assert batch_of(cache, 101.2).keys == (old,)  # the entry is not refreshed again at once
    assert cache.counts["renew_limited"]


@pytest.mark.parametrize(
    ("origin", "is_doubted"), [(Origin.HINT, True), (Origin.SNAPSHOT, True), (Origin.TOPIC, False)]
)
def test_only_who_has_asked_or_heard_anew_ends_a_doubt(origin: Origin, is_doubted: bool) -> None:
    """Else a leader that refuses is believed again, each time that somebody repeats what misled before."""
    cache = holding(led_by("a", 5))
    cache.report(KEY, at("a"), Version(5, 0, "a"), Report.NOT_LEADER, 101.0)
    cache.install(led_by("a", 5), origin, 102.0, 102.0)
    assert cache.nonblock_get(KEY, 102.0).is_stale is is_doubted


def test_a_hint_that_its_leader_denies_gives_way_to_the_topic() -> None:
    """A claim that was never announced would else keep every reader from the owner, for good."""
    cache = holding(led_by("a", 5, place=1))
    cache.report(KEY, at("a"), Version(5, 0, "a"), Report.MOVED, 101.0, [led_by("z", 99)])
    assert cache.nonblock_get_leader(KEY, 101.0) == at("z")
    assert not cache.install(led_by("a", 5, place=2), Origin.PUSH, 102.0, 102.0)
    cache.report(KEY, at("z"), Version(99, 0, "z"), Report.NOT_LEADER, 103.0)
    assert not cache.install(led_by("a", 5), Origin.PEERS, 104.0, 104.0)
    assert cache.install(led_by("a", 5, place=2), Origin.TOPIC, 104.0, 104.0)
    assert cache.nonblock_get_leader(KEY, 104.0) == at("a")


@pytest.mark.parametrize("origin", [Origin.HINT, Origin.PEERS, Origin.SNAPSHOT])
def test_a_claim_whose_leader_is_away_gives_way_to_the_topic(origin: Origin) -> None:
    """An old file, or who was told wrong, may name an address that is gone for good: it can't even deny it."""
    cache = holding(led_by("z", 99), 100.0, origin)
    assert not cache.install(led_by("a", 5, place=2), Origin.TOPIC, 101.0, 101.0)
    cache.report(KEY, at("z"), Version(99, 0, "z"), Report.UNREACHABLE, 102.0)
    assert cache.install(led_by("a", 5, place=2), Origin.TOPIC, 103.0, 103.0)
    assert cache.nonblock_get_leader(KEY, 103.0) == at("a")
    assert not cache.down


def test_an_instance_that_nothing_names_is_not_kept_as_down() -> None:
    """A late failure of an owner that another has followed: nobody tries it again, and it would stay for ever."""
    cache = holding(led_by("b", 6))
    cache.report(KEY, at("a"), Version(5, 0, "a"), Report.UNREACHABLE, 102.0)
    assert not cache.down


def test_a_slow_answer_invalidates_nothing() -> None:
    """L14 (tidb#15989): one slow request must not take a server's cache away from all."""
    cache = holding(led_by("a"))
    assert not cache.report(KEY, at("a"), Version(1, 0, "a"), Report.SLOW, 101.0)
    assert not cache.down
    assert not cache.nonblock_get(KEY, 101.0).is_stale


def test_an_instance_that_is_down_is_not_told_and_its_entries_stay() -> None:
    """L15: at once for all that it leads, without touching them; others, and a new instance there, are told."""
    cache = LocationCache()
    for number in range(1_000):
        cache.install(led_by("ab"[number % 2], key=Key("shop", number)), Origin.TOPIC, 100.0, 100.0)
    cache.report(KEY, at("a"), Version(1, 0, "a"), Report.UNREACHABLE, 101.0)
    for number in range(0, 1_000, 2):
        refused("leader_unknown", cache, Key("shop", number), 101.0)
        assert cache.nonblock_get_leader(Key("shop", number + 1), 101.0) == at("b")
    assert cache.counts["installed_topic"] == 1_000
    restarted = led_by("a", 2)._replace(leader=Replica("a:1", "t", "", "a2"))
    cache.install(restarted, Origin.PUSH, 102.0, 102.0)
    assert cache.nonblock_get_leader(KEY, 102.0) == restarted.leader
    cache.back(at("a"))
    assert cache.nonblock_get_leader(Key("shop", 2), 102.0) == at("a")


@pytest.mark.parametrize("partitions", [1, 2])
def test_an_instance_that_is_down_stays_so_as_its_entries_are_refreshed(partitions: int) -> None:
    """L15: also where a single entry names it; else the reader after each refresh would wait for it in vain."""
    cache, now = LocationCache(), 101.0
    for number in range(partitions):
        cache.install(led_by("a", key=Key("shop", number)), Origin.PUSH, 100.0, 100.0)
    cache.report(KEY, at("a"), Version(1, 0, "a"), Report.UNREACHABLE, now)
    for _ in range(3):
        cache.finish(batch_of(cache, now), {KEY: (led_by("a"), Origin.TOPIC)}, now)
        now += 2 * RENEWED_EVERY_S
        refused("leader_unknown", cache, KEY, now)
    cache.back(at("a"))
    assert cache.nonblock_get_leader(KEY, now) == at("a")


def test_a_leader_that_fails_has_its_entry_refreshed_once_a_second() -> None:
    """Also where each refresh names it again. Another one that fails has it refreshed at once."""
    cache, refreshes = holding(led_by("a")), list[float]()
    cache.report(KEY, at("a"), Version(1, 0, "a"), Report.UNREACHABLE, 101.0)
    for step in range(25):
        now = 101.0 + step / 8
        refused("leader_unknown", cache, KEY, now)
        if (batch := cache.next_batch(now)) is not None:
            cache.finish(batch, {KEY: (led_by("a"), Origin.TOPIC)}, now)
            refreshes.append(now)
    assert refreshes == [101.0 + number * RENEWED_EVERY_S for number in range(4)]
    cache.install(led_by("b", 2), Origin.PUSH, 104.25, 104.25)
    cache.report(KEY, at("b"), Version(2, 0, "b"), Report.UNREACHABLE, 104.25)
    assert batch_of(cache, 104.25).keys == (KEY,)


def test_who_reads_another_partition_of_an_instance_that_is_down_has_it_refreshed() -> None:
    """L15: the one that met it was sent there for another key; without the topic nobody else would tell who leads now.

    At most once a second, and nothing of what other instances lead.
    """
    cache = LocationCache()
    for number in range(4):
        cache.install(led_by("ab"[number % 2], key=Key("shop", number)), Origin.TOPIC, 100.0, 100.0)
    cache.report(Key("shop", 0), at("a"), Version(1, 0, "a"), Report.UNREACHABLE, 101.0)
    for _ in range(3):
        refused("leader_unknown", cache, Key("shop", 2), 101.0)
        assert cache.nonblock_get_leader(Key("shop", 1), 101.0) == at("b")
    batch = cache.next_batch(101.0)
    assert batch is not None
    assert set(batch.keys) == {Key("shop", 0), Key("shop", 2)}
    cache.finish(batch, {Key("shop", 2): (led_by("b", 2, key=Key("shop", 2)), Origin.TOPIC)}, 101.0)
    assert cache.nonblock_get_leader(Key("shop", 2), 101.0) == at("b")


def test_an_instance_that_nothing_names_any_more_is_forgotten() -> None:
    """Instances come and go for years; only those of the present are kept."""
    cache = holding(led_by("a", 1, "f"))
    cache.report(KEY, at("a"), Version(1, 0, "a"), Report.UNREACHABLE, 101.0)
    cache.install(led_by("b", 2, "f"), Origin.PUSH, 102.0, 102.0)
    assert not cache.down
    assert set(cache.named) == {at("b"), at("f")}


def test_a_source_that_fails_or_knows_nothing_wipes_nothing() -> None:
    """L16 (vitess#15632): what was known is told as stale, for a bounded time; the version outlives it."""
    cache, now = holding(led_by("a", 5)), 200.0
    cache.nonblock_renew(KEY, now)
    cache.fail(batch_of(cache, now), "kafka_unreachable", now)
    assert not cache.nonblock_get(KEY, now).is_stale
    cache.nonblock_renew(KEY, now + 1)
    cache.finish(batch_of(cache, now + 1), {}, now + 1)
    found = cache.nonblock_get(KEY, now + 1)
    assert (found.location.leader, found.is_stale, found.renewed_at) == (at("a"), True, now + 1)
    cache.install(led_by("a", 5)._replace(leader=None, gone=True), Origin.TOPIC, now + 2, now + 2)
    assert cache.nonblock_get_leader(KEY, now + REMEMBERED_S) == at("a")
    refused("location_unknown", cache, KEY, now + 1 + REMEMBERED_S)
    assert not cache.install(led_by("z", 4), Origin.TOPIC, now + 2 + REMEMBERED_S, now + 2 + REMEMBERED_S)
    assert cache.install(led_by("b", 6), Origin.TOPIC, now + 3 + REMEMBERED_S, now + 3 + REMEMBERED_S)
    assert cache.nonblock_get_leader(KEY, now + 3 + REMEMBERED_S) == at("b")


def test_a_doubt_that_is_reported_again_is_not_a_new_one() -> None:
    """Else a leader that keeps refusing is told for ever."""
    cache, later = holding(led_by("a", 5)), 100.0 + REMEMBERED_S
    for now in (101.0, later):
        cache.report(KEY, at("a"), Version(5, 0, "a"), Report.NOT_LEADER, now)
    refused("location_unknown", cache, KEY, later + 1)


def test_followers_stay_named_when_their_leader_is_forgotten() -> None:
    """Else nobody could note any more that one of them is down, nor know it still."""
    cache = holding(led_by("a", 5, "f"))
    cache.lost(at("f"), 100.0)
    cache.install(led_by("a", 5, "f", place=1)._replace(gone=True), Origin.PUSH, 101.0, 101.0)
    assert cache.nonblock_get(KEY, 101.0 + REMEMBERED_S).location.replicas == (at("f"),)
    assert cache.named == {at("f"): 1}
    assert set(cache.down) == {at("f")}


def test_an_owner_that_had_withdrawn_before_the_start_is_not_asked() -> None:
    """Nobody here has ever known it at its address; its followers are told."""
    cache = holding(led_by("a", 5)._replace(gone=True))
    refused("location_unknown", cache, KEY, 100.0)
    cache.install(led_by("a", 5, "f", place=1)._replace(gone=True), Origin.PUSH, 101.0, 101.0)
    assert cache.nonblock_get(KEY, 101.0).location.followers == (at("f"),)
    refused("leader_unknown", cache, KEY, 101.0)


def test_of_an_owner_that_withdraws_its_own_address_is_told() -> None:
    """Not that of the owner before it, of which it is the successor."""
    cache = holding(led_by("a", 5))
    cache.install(led_by("b", 6)._replace(gone=True), Origin.PUSH, 101.0, 101.0)
    assert cache.nonblock_get_leader(KEY, 101.0) == at("b")


@pytest.mark.parametrize("epochs", [(0, 5), (5, 0), (0, 0)])
def test_what_has_no_number_takes_a_place_by_the_directory_only(epochs: tuple[int, int]) -> None:
    """Nothing else says which of the two is the later one."""
    known, new = (led_by(name, epoch) for name, epoch in zip("ab", epochs, strict=True))
    taken = [origin for origin in ORIGINS if holding(known).install(new, origin, 101.0, 101.0)]
    assert taken == [Origin.TOPIC, Origin.PUSH]


def test_a_flood_of_user_partitions_evicts_nothing_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """L18: they are kept apart, and so are the leaders, exactly: no two keys share a place."""
    monkeypatch.setattr(cache_module, "ENTRIES_MAX", 1_000)
    cache = LocationCache()
    system = [ROOT, *(Key("shop", number, Kind.EVENTS) for number in range(20))]
    for key in system:
        cache.install(Location(key, Version(), Replica(f"k{key.partition}:9092")), Origin.TOPIC, 100.0, 100.0)
    for number in range(3_000):
        cache.install(led_by(f"n{number}", key=Key("shop", number)), Origin.TOPIC, 100.0, 100.0)
    assert len(cache) == 1_000 + len(system)
    for key in system:
        assert cache.nonblock_get_leader(key, 101.0) == Replica(f"k{key.partition}:9092")
    for number in range(2_000, 3_000):
        assert cache.nonblock_get_leader(Key("shop", number), 101.0) == at(f"n{number}")
    refused("location_unknown", cache, Key("shop", 0), 101.0)


@pytest.mark.parametrize("day", [86_400.0, -86_400.0])
def test_the_wall_clock_means_nothing(monkeypatch: pytest.MonkeyPatch, day: float) -> None:
    """L22 (oceanbase#2201): the core takes the time that it is given; nothing in it looks at a clock."""
    monkeypatch.setattr("time.time", lambda: 1e9 + day)
    cache = holding(led_by("a"), 100.0)
    assert cache.lookup(KEY, 99.0, 100.5) == Found(led_by("a"), False, Origin.TOPIC, 100.0)
    cache.nonblock_renew(KEY, 101.0)
    assert batch_of(cache, 101.0).began_at == 101.0


def test_a_dropped_keyspace_is_forgotten_and_asked_for_no_more() -> None:
    """L25 (obkv#79-81): its entries, absences and refreshes end; another one's go on."""
    cache, other = LocationCache(), Key("bank", 0)
    for key in (*(Key("shop", number) for number in range(10)), Key("shop", 0, Kind.EVENTS), other):
        cache.install(led_by("a", key=key), Origin.TOPIC, 100.0, 100.0)
        cache.nonblock_renew(key, 100.0)
    refused("location_unknown", cache, Key("shop", 99), 100.0)
    assert cache.erase(lambda key: key.keyspace == "shop") == 11
    assert batch_of(cache, 101.0).keys == (other,)
    assert cache.next_batch(200.0) is None
    assert (len(cache), len(cache.absences)) == (1, 0)


def test_a_keyspace_that_nobody_holds_any_more_is_erased() -> None:
    """L25: its owners have withdrawn, so it was dropped. Who still asks for it is refused, and the topic is read for
    that twice a minute at most. Others stay, and it is back as soon as anybody announces it."""
    cache, now = LocationCache(), 100.0
    shop = [Key("shop", number) for number in range(20)]
    gone = Key("bank", 1)
    for key in (*shop, Key("bank", 0), gone):
        cache.install(led_by("a", key=key), Origin.PUSH, now, now)
    cache.install(Location(Key("shop", 0, Kind.KEYSPACE), Version(), at("a")), Origin.TOPIC, now, now)
    for key in (*shop, gone):
        cache.install(led_by("a", key=key)._replace(gone=True), Origin.PUSH, now, now)
    cache.sweep(now + REMEMBERED_S - 1)
    assert len(cache) == 23
    now += REMEMBERED_S + SWEEP_S
    cache.sweep(now)
    assert {each.location.key for each in cache.entries()} == {Key("bank", 0), gone}
    assert (cache.counts["keyspace_dropped"], len(cache.queues)) == (1, 0)
    assert set(cache.named) == {at("a")}
    asked, end = 0, now + 600.0
    while now < end:
        refused("location_unknown", cache, shop[0], now)
        if (batch := cache.next_batch(now)) is not None:
            cache.finish(batch, {}, now)
            asked += 1
        now += 0.5
    assert asked <= 600 / ABSENT_S_MAX + 5
    assert len(cache) == 2
    cache.install(led_by("b", 2, key=shop[0]), Origin.PUSH, now, now)
    assert cache.nonblock_get_leader(shop[0], now) == at("b")


def test_what_is_kept_is_looked_through_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Announcements come all the time, and each asks for it."""
    cache = holding(led_by("a")._replace(gone=True), 100.0)
    looked, entry = list[Key](), cache.entry

    def look(key: Key) -> Entry | None:
        looked.append(key)
        return entry(key)

    monkeypatch.setattr(cache, "entry", look)
    for step in range(100):
        cache.sweep(100.0 + step * SWEEP_S / 50)
    assert len(looked) == 2


def test_what_the_settings_fix_is_never_replaced_or_refreshed() -> None:
    """It is the operator's word; only a failure to answer makes it unusable for a while."""
    cache = LocationCache()
    fixed = Location(KEY, Version(), Replica("f:1"))
    cache.install(fixed, Origin.FIXED, FOREVER, 100.0)
    for origin in ORIGINS:
        assert not cache.install(led_by("a", 9, place=9), origin, 101.0, 101.0)
    cache.report(KEY, Replica("f:1"), Version(), Report.NOT_LEADER, 102.0)
    assert cache.nonblock_get_leader(KEY, 1e9) == Replica("f:1")
    assert not cache.nonblock_get(KEY, 1e9).is_stale


def test_why_an_entry_is_told_is_said_in_one_line() -> None:
    """L23: who said it, when, and what is doubtful about it."""
    cache = holding(led_by("a", 5))
    assert explain(cache, KEY, 103.0) == "said by the topic, which was read for it, confirmed 3.0 s ago"
    cache.report(KEY, at("a"), Version(5, 0, "a"), Report.NOT_LEADER, 103.0)
    cache.report(KEY, at("a"), Version(5, 0, "a"), Report.UNREACHABLE, 103.0)
    assert explain(cache, KEY, 103.0).endswith("in doubt, its owner does not answer")
    assert explain(cache, Key("shop", 1), 103.0) == "nobody has told it yet"
    cache.absences.add(Key("shop", 1), 103.0)
    assert explain(cache, Key("shop", 1), 103.0) == "known not to exist"
    restored = holding(led_by("a")._replace(gone=False), 100.0, Origin.SNAPSHOT)
    assert "unverified" in explain(restored, KEY, 100.0)


def test_how_old_what_is_told_was_is_counted() -> None:
    """L24: at each hit, by whichever way it is found; what an earlier process kept is of no known age."""
    cache = holding(led_by("a"), 100.0)
    cache.nonblock_get_leader(KEY, 100.5)
    cache.nonblock_get_leader(KEY, 103.0)
    cache.nonblock_get(KEY, 103.0)
    cache.lookup(KEY, 0.0, 140.0)
    cache.nonblock_get_leader(KEY, 100.0 + 2 * EXPIRES_S)
    cache.install(led_by("z", key=Key("shop", 1)), Origin.SNAPSHOT, NEVER, 100.0)
    cache.nonblock_get_leader(Key("shop", 1), 100.5)
    cache.install(Location(Key("shop", 2), Version(), Replica("f:1")), Origin.FIXED, FOREVER, 100.0)
    cache.nonblock_get_leader(Key("shop", 2), 500.0)
    refused("location_unknown", cache, Key("shop", 9), 101.0)
    assert {bound: count for bound, count in zip(AGES_S, cache.ages, strict=True) if count} == {
        1.0: 2, 5.0: 2, 60.0: 1, FOREVER: 2,
    }  # fmt: skip


def test_each_event_is_counted() -> None:
    """L24: what operators look at when locations are old."""
    cache = holding(led_by("a", 5))
    cache.nonblock_get(KEY, 101.0)
    cache.lookup(KEY, FOREVER, 101.0)
    cache.nonblock_renew(KEY, 101.0)
    cache.nonblock_renew(KEY, 101.0)
    cache.finish(batch_of(cache, 101.0), {KEY: (led_by("b", 6), Origin.PEERS)}, 101.0)
    cache.install(led_by("a", 5), Origin.PUSH, 102.0, 102.0)
    assert {name: cache.counts[name] for name in ("nonblock_hit", "miss", "renew_queued", "renew_ignored")} == {
        "nonblock_hit": 1, "miss": 1, "renew_queued": 1, "renew_ignored": 1,
    }  # fmt: skip
    assert (cache.counts["installed_peers"], cache.counts["backward"]) == (1, 1)
    assert RENEWED_EVERY_S > 0
    assert cache.entry(KEY) is not None
    assert cache.nonblock_get(KEY, 103.0).renewed_at > NEVER
