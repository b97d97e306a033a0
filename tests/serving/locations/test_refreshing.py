"""Refreshes carried out, and who waits for them: L1, L2, L6, L7, L13, L16, L19 to L21, on an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from consumers.owner.protocol import OwnerError
from lab.simulation.models.loop import VirtualLoop
from serving.locations.cache import REMEMBERED_S
from serving.locations.errors import LocationError
from serving.locations.limits import FAILURES_MIN
from serving.locations.metrics import LocationMetrics
from serving.locations.peers import PeerAnswer
from serving.locations.places import EXPIRES_S, FOREVER, Key, Kind, Location, Origin, Replica, Version
from serving.locations.queues import Batch
from serving.locations.refreshing import DEADLINE_S, STEP_S, Locations
from stream.kafka.connection import KafkaUnreachable
from tests.serving.locations.places import KEY, at, led_by

IN_TIME_S = 20.0


class Topic:
    """A directory whose reads wait until the test lets them end. ``failure`` is raised by them."""

    def __init__(self, *known: Location) -> None:
        self.change = 0
        self.known = {each.key: each for each in known}
        self.reads: list[Batch] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def changed(self, _: int) -> tuple[int, list[Location]]:
        return self.change, list(self.known.values())

    def announce(self, location: Location) -> None:
        """The topic tells it, and whoever follows hears it."""
        self.change += 1
        self.known[location.key] = location._replace(place=self.change)

    async def read(self, batch: Batch) -> Mapping[Key, Location]:
        self.reads.append(batch)
        await self.gate.wait()
        if self.failure is not None:
            raise self.failure
        return {key: self.known[key] for key in batch.keys if key in self.known}


def run(story: Callable[[], Awaitable[Any]]) -> None:
    asyncio.run(asyncio.wait_for(story(), IN_TIME_S))


async def until(is_so: Callable[[], bool]) -> None:
    """Lets others run until it is so; `run` has the deadline."""
    while not is_so():  # noqa: ASYNC110 - the conditions have no events
        await asyncio.sleep(0)


def test_a_hundred_readers_of_one_unknown_key_share_one_fetch() -> None:
    """L6: each has its own deadline: who has no time left is told so, and the others get the answer."""

    async def story() -> None:
        topic = Topic(led_by("a"))
        locations = Locations(topic)
        topic.gate.clear()
        asking = [asyncio.create_task(locations.get(KEY)) for _ in range(100)]
        hasty = asyncio.create_task(locations.get(KEY, deadline=locations.clock() - 1))
        with pytest.raises(LocationError) as late:
            await hasty
        assert (late.value.code, late.value.stale) == ("location_timeout", None)
        topic.gate.set()
        found = await asyncio.gather(*asking)
        assert {each.location.leader for each, _ in found} == {at("a")}
        assert {is_hit for _, is_hit in found} == {False}
        assert [batch.keys for batch in topic.reads] == [(KEY,)]
        _, is_hit = await locations.get(KEY)
        assert is_hit
        await locations.close()

    run(story)


@pytest.mark.parametrize("is_known", [False, True])
def test_who_wants_no_refresh_gets_none(is_known: bool) -> None:
    """L1, ``auto_update``: what is unknown or too old is refused with what is known, and what is old is told; nothing
    is read for either."""

    async def story() -> None:
        topic, clock = Topic(led_by("b", 2)), [1000.0]
        locations = Locations(topic, clock=lambda: clock[0])
        if is_known:
            locations.cache.install(led_by("a", 1), Origin.TOPIC, clock[0], clock[0])
            clock[0] += 2 * EXPIRES_S
            found, is_hit = await locations.get(KEY, auto_update=False)
            assert (found.location.leader, found.is_stale, is_hit) == (at("a"), True, True)
        with pytest.raises(LocationError) as refused:
            await locations.get(KEY, expire_renew_time=FOREVER, auto_update=False)
        assert refused.value.code == "location_unknown"
        assert (refused.value.stale is not None) is is_known
        await asyncio.sleep(0)
        assert (topic.reads, len(locations.cache.queues)) == ([], 0)
        await locations.close()

    run(story)


def test_who_asks_for_something_newer_during_a_fetch_gets_one_more() -> None:
    """L4, L6: what began before the question is not an answer to it."""

    async def story() -> None:
        topic = Topic(led_by("a", 1))
        locations = Locations(topic)
        topic.gate.clear()
        first = asyncio.create_task(locations.get(KEY))
        await until(lambda: bool(topic.reads))
        forced = [asyncio.create_task(locations.get_leader(KEY, force_renew=True)) for _ in range(5)]
        await asyncio.sleep(0)
        topic.gate.set()
        assert (await first)[0].location.leader == at("a")
        topic.known[KEY] = led_by("b", 2)
        assert set(await asyncio.gather(*forced)) == {at("b")}
        assert len(topic.reads) == 2
        await locations.close()

    run(story)


def test_an_error_is_shared_once_and_the_next_caller_tries_again() -> None:
    """L6, L13, L16: with what was known, which is kept and told."""

    async def story() -> None:
        topic = Topic()
        locations = Locations(topic)
        locations.restore([led_by("a")])
        topic.failure = KafkaUnreachable("no broker")
        asking = [asyncio.create_task(locations.get(KEY)) for _ in range(10)]
        errors = await asyncio.gather(*asking, return_exceptions=True)
        codes = {(each.code, each.stale and each.stale.leader) for each in errors if isinstance(each, LocationError)}
        assert (len(errors), codes) == (10, {("location_timeout", at("a"))})
        assert all("no broker" in str(each) for each in errors), "one of them waited for its own deadline"
        assert len(topic.reads) == 1
        assert locations.leader(KEY) == at("a")
        topic.failure = None
        topic.known[KEY] = led_by("b", 2)
        found, _ = await locations.get(KEY)
        assert found.location.leader == at("b")
        await locations.close()

    run(story)


def test_a_read_that_ends_with_an_error_nobody_thought_of_gives_its_place_back() -> None:
    """Some of them would else keep all others from being read, until the front starts again."""

    async def story() -> None:
        topic = Topic(led_by("a"))
        topic.failure = RuntimeError("unexpected")
        locations = Locations(topic)
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # it is told there, too
        with pytest.raises(LocationError) as failed:
            await locations.get(KEY)
        assert (failed.value.code, locations.cache.limits.under_way) == ("location_timeout", 0)
        await locations.close()

    run(story)


def test_while_the_breaker_is_open_nobody_is_asked_and_what_is_known_is_told() -> None:
    """L11: many failures, then none is even tried; the error has the last known location."""

    async def story() -> None:
        now = [100.0]
        topic = Topic()
        locations = Locations(topic, clock=lambda: now[0])
        locations.restore([led_by("a")])
        topic.failure = KafkaUnreachable("no broker")
        for _ in range(FAILURES_MIN):
            with pytest.raises(LocationError):
                await locations.get(KEY, deadline=now[0] + IN_TIME_S)
            now[0] += 0.2
        with pytest.raises(LocationError) as caught:
            await locations.get(KEY, expire_renew_time=FOREVER)
        assert (caught.value.code, caught.value.stale) == ("location_limited", led_by("a"))
        assert len(topic.reads) == FAILURES_MIN
        assert locations.leader(KEY) == at("a")
        await locations.close()

    run(story)


def test_a_key_that_nobody_knows_fails_alone() -> None:
    """L10: one bad key does not fail its batch; absent in the answer means that it does not exist."""

    async def story() -> None:
        keys = [Key("shop", number) for number in range(5)]
        topic = Topic(*(led_by("a", key=key) for key in keys[:4]))
        locations = Locations(topic)
        topic.gate.clear()
        asking = [asyncio.create_task(locations.get(key)) for key in keys]
        await asyncio.sleep(0)
        topic.gate.set()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert [isinstance(each, LocationError) for each in found] == [False] * 4 + [True]
        with pytest.raises(LocationError) as absent:
            await locations.get(keys[4])
        assert absent.value.code == "location_unknown"
        assert sum(keys[4] in batch.keys for batch in topic.reads) == 1
        await locations.close()

    run(story)


class Peers:
    """Instances that say what the test sets, by name; the others don't answer."""

    def __init__(self, **said: PeerAnswer) -> None:
        self.said = said
        self.asked: list[str] = []

    async def __call__(self, server: Replica, keyspace: str) -> Mapping[int, PeerAnswer]:
        self.asked.append(server.instance)
        if server.instance not in self.said:
            raise OwnerError("no", code="owner_unreachable")
        return dict.fromkeys(range(3), self.said[server.instance]) if keyspace == "shop" else {}


def agreeing(leader: str, epoch: int, *names: str) -> Peers:
    members = frozenset(names)
    return Peers(**{each: PeerAnswer(each, each == leader, leader, epoch, 0, members) for each in names})


def test_peers_are_asked_before_the_topic_and_once_for_a_batch() -> None:
    """L7: a change of leader is seen without the topic, which may be out of reach."""

    async def story() -> None:
        topic = Topic(*(led_by("a", 5, "b", key=Key("shop", number)) for number in range(3)))
        topic.change = 1
        locations = Locations(topic)
        locations.follow()
        peers = locations.ask_peer = agreeing("b", 6, "a", "b")
        topic.failure = KafkaUnreachable("no broker")
        asking = [locations.get_leader(Key("shop", number), force_renew=True) for number in range(3)]
        assert await asyncio.gather(*asking) == [at("b")] * 3
        assert sorted(peers.asked) == ["a", "b"]
        assert not topic.reads
        assert locations.cache.counts["installed_peers"] == 3
        await locations.close()

    run(story)


def test_peers_that_prove_nothing_leave_it_to_the_topic() -> None:
    """L7: one of them does not answer; or the time is up, of which they have half."""

    async def story() -> None:
        topic = Topic(led_by("a", 5, "b"))
        topic.change = 1
        locations = Locations(topic)
        peers = locations.ask_peer = agreeing("a", 5, "a", "b")
        del peers.said["b"]
        assert await locations.get_leader(KEY, force_renew=True) == at("a")
        assert len(topic.reads) == 1
        assert locations.cache.counts["peers_failed"] == 1

        given_up: list[str] = []

        async def silent(server: Replica, _: str) -> Mapping[int, PeerAnswer]:
            try:
                await asyncio.Event().wait()
            finally:
                given_up.append(server.instance)
            raise AssertionError

        locations.ask_peer = silent
        deadline = locations.clock() + 5.0
        assert await locations.get_leader(KEY, force_renew=True, deadline=deadline) == at("a")
        assert len(topic.reads) == 2
        assert sorted(given_up) == ["a", "b"], "nothing of them is waited for any more"
        await locations.close()

    run(story)


def test_a_leader_is_waited_for_until_there_is_one() -> None:
    """L2: who waits for a hand-over gets the new owner as soon as it is announced, else the last error."""

    async def story() -> None:
        topic = Topic()
        locations = Locations(topic)
        with pytest.raises(LocationError) as none:
            await locations.get_leader_until(KEY, locations.clock() + 0.3)
        assert none.value.code == "location_unknown"
        waiting = asyncio.create_task(locations.get_leader_until(KEY, locations.clock() + IN_TIME_S))
        await asyncio.sleep(0)
        topic.announce(led_by("a"))
        assert await waiting == at("a")
        topic.announce(led_by("a")._replace(gone=True))
        with pytest.raises(LocationError) as gone:
            await locations.get_leader(KEY)
        assert gone.value.code == "leader_unknown"
        await locations.close()

    run(story)


def test_a_change_that_the_topic_told_is_known_at_the_next_read() -> None:
    """L21: nothing is fetched; and what is not told for long is asked for, so a lost watch is only slower."""

    async def story() -> None:
        now = [100.0]
        topic = Topic()
        locations = Locations(topic, clock=lambda: now[0])
        topic.announce(led_by("a", 1))
        assert locations.leader(KEY) == at("a")
        topic.announce(led_by("b", 2))
        assert locations.leader(KEY) == at("b")
        assert not topic.reads
        now[0] += 1_000.0
        topic.known[KEY] = led_by("c", 3)  # the watch does not tell it
        assert locations.leader(KEY) == at("b")
        await until(lambda: locations.leader(KEY) == at("c"))
        assert len(topic.reads) == 1
        await locations.close()

    run(story)


def test_without_a_loop_what_is_known_is_told_and_refreshed_later() -> None:
    """A front is put together before its loop runs."""
    locations = Locations(Topic(led_by("a")))
    with pytest.raises(LocationError):
        locations.leader(KEY)

    async def story() -> None:
        assert await locations.get_leader(KEY) == at("a")
        await locations.close()

    run(story)


def test_a_front_that_ends_tells_those_who_wait() -> None:
    """L13: ``locations_closed``, now and for who asks later."""

    async def story() -> None:
        topic = Topic()
        topic.gate.clear()
        locations = Locations(topic)
        asking = asyncio.create_task(locations.get(KEY))
        await until(lambda: bool(topic.reads))
        await locations.close()
        codes: list[str] = []
        for each in (asking, locations.get(KEY)):
            with pytest.raises(LocationError) as ended:
                await each
            codes.append(ended.value.code)
        assert codes[0] in ("locations_closed", "location_timeout")
        assert codes[1] == "locations_closed"

    run(story)


def test_what_an_earlier_process_knew_is_used_at_once_and_refreshed() -> None:
    """L20: unverified, it routes the first read; then somebody is asked. Of another installation it is given up."""

    async def story() -> None:
        topic = Topic(led_by("b", 2))
        locations = Locations(topic)
        locations.restore([led_by("a", 1), led_by("x", 1, key=Key("shop", 1))])
        assert locations.leader(KEY) == at("a")
        await until(lambda: locations.leader(KEY) == at("b"))
        assert locations.find(Key("shop", 1)).is_stale
        locations.distrust_restored()
        with pytest.raises(LocationError):
            locations.leader(Key("shop", 1))
        assert locations.leader(KEY) == at("b")
        await locations.close()

    run(story)


def test_the_system_is_found_by_its_own_kinds() -> None:
    """L19: the topic of announcements and others are entities like partitions, in batches of their own."""

    async def story() -> None:
        root, events = Key("", 0, Kind.LOCATIONS), Key("shop", 0, Kind.EVENTS)
        topic = Topic(*(Location(key, Version(), Replica("k:9092")) for key in (root, events)), led_by("a"))
        locations = Locations(topic)
        found = await asyncio.gather(*(locations.get_leader(key) for key in (KEY, events, root)))
        assert found == [at("a"), Replica("k:9092"), Replica("k:9092")]
        assert [batch.kind for batch in topic.reads] == [Kind.LOCATIONS, Kind.EVENTS, Kind.PARTITION]
        await locations.close()

    run(story)


def test_how_long_locations_wait_is_counted() -> None:
    """L24: each batch once, by the key that waited longest; so a percentile can be had of it."""

    async def story() -> None:
        clock = iter(float(each) for each in range(100, 1_000, 2))
        locations = Locations(Topic(led_by("a")), clock=lambda: next(clock))
        await locations.get(KEY, deadline=10_000.0)
        await locations.close()
        [waits] = [each for each in LocationMetrics(locations).collect() if each.name.endswith("_wait_seconds")]
        buckets = {each.labels["le"]: each.value for each in waits.samples if each.name.endswith("_bucket")}
        assert [buckets[bound] for bound in ("0.005", "1.0", "3.0", "+Inf")] == [0, 0, 1, 1]
        assert locations.waited_s == 2.0

    run(story)


@pytest.mark.parametrize(("step_s", "told"), [(3.0, []), (4.0, [("shop", 4.0)])])
def test_locations_that_waited_long_are_logged(step_s: float, told: list[tuple[str, float]]) -> None:
    """L24: more than three seconds, with the keyspace."""

    async def story() -> None:
        clock = iter(100.0 + step_s * each for each in range(1_000))
        locations = Locations(Topic(led_by("a")), clock=lambda: next(clock))
        with capture_logs() as logs:
            await locations.get(KEY, deadline=10_000.0)
        await locations.close()
        long = [each for each in logs if each["event"] == "locations waited long"]
        assert [(each["keyspace"], each["seconds"]) for each in long] == told

    run(story)


def test_what_the_topic_is_asked_for_and_what_is_told_of_before_is_counted() -> None:
    """L24: reads of the source, what was told although it is old, and what was too old to be kept."""

    async def story() -> None:
        topic, clock = Topic(led_by("a", 2)), [1000.0]
        locations = Locations(topic, clock=lambda: clock[0])
        for _ in range(3):
            await locations.get(KEY, expire_renew_time=FOREVER)
            clock[0] += 1.0
        locations.cache.install(led_by("z", 1), Origin.HINT, clock[0], clock[0])
        clock[0] += 2 * EXPIRES_S
        assert locations.leader(KEY) == at("a")
        counts = locations.cache.counts
        names = ("topic_reads", "stale_served", "backward", "hit", "miss")
        assert [counts[each] for each in names] == [3, 1, 1, 0, 3]
        await locations.close()

    run(story)


def test_deadlines_and_steps_are_kept_to_a_hundredth_of_a_second() -> None:
    """L1, L2, L6: each caller's own, while nobody answers; and who waits for a leader looks each tenth of a second."""
    loop, topic = VirtualLoop(), Topic()
    topic.gate.clear()
    locations = Locations(topic, clock=loop.time)
    loop.advance(100.0)

    async def refused(asking: Awaitable[object]) -> tuple[str, float]:
        with pytest.raises(LocationError) as late:
            await asking
        return late.value.code, loop.time()

    deadlines = [100.25, 100.3, 101.0, 109.0]
    asking = [loop.create_task(refused(locations.get(KEY, deadline=each))) for each in deadlines]
    asking.append(loop.create_task(refused(locations.get_leader(KEY, force_renew=True, deadline=100.5))))
    asking.append(loop.create_task(refused(locations.get(KEY))))
    asking.append(loop.create_task(refused(locations.get_leader_until(KEY, 103.0))))
    loop.advance(20.0)
    ended = [each.result() for each in asking]
    assert {code for code, _ in ended} == {"location_timeout"}
    assert [at_s for _, at_s in ended] == pytest.approx([*deadlines, 100.5, 100 + DEADLINE_S, 103.0], abs=0.01)
    topic.gate.set()
    loop.advance(10.0)
    waiting = loop.create_task(locations.get_leader_until(KEY, loop.time() + 60))
    loop.advance(1.23)
    topic.announce(led_by("a"))
    loop.advance(STEP_S + 0.01)
    assert waiting.result() == at("a")


def test_a_dropped_keyspace_is_forgotten_as_its_withdrawals_are_told() -> None:
    """L25: without anybody who asks for it; what other keyspaces announce is enough."""

    async def story() -> None:
        topic, clock = Topic(), [1000.0]
        locations = Locations(topic, clock=lambda: clock[0])
        topic.announce(led_by("a", 1))
        locations.follow()
        topic.announce(led_by("a", 1)._replace(gone=True))
        locations.follow()
        for minute in range(12):
            assert (locations.cache.entry(KEY) is not None) is (minute * 60 < REMEMBERED_S)
            clock[0] += 60.0
            topic.known.pop(KEY, None)
            topic.announce(led_by("b", minute + 1, key=Key("bank", 0)))
            locations.follow()
        assert len(locations.cache) == 1
        topic.known[KEY] = led_by("a", 1)._replace(gone=True)
        for _ in range(3):
            with pytest.raises(LocationError) as unknown:
                await locations.get(KEY)
            assert unknown.value.code == "location_unknown"
        assert (len(topic.reads), len(locations.cache)) == (1, 1)
        await locations.close()

    run(story)


def test_what_is_flushed_is_learnt_anew_but_for_the_settings() -> None:
    """L23: an operator can have all of it forgotten, and loses nothing that is announced."""

    async def story() -> None:
        topic = Topic()
        locations = Locations(topic, fixed={("shop", 7): "f:1"})
        topic.announce(led_by("a", 1))
        locations.follow()
        locations.cache.install(led_by("z", 9), Origin.HINT, 0.0, locations.clock())
        assert locations.leader(KEY) == at("z")
        assert locations.flush(lambda key: key.keyspace == "shop") == 1
        assert locations.leader(KEY) == at("a")
        assert locations.leader(Key("shop", 7)) == Replica("f:1")
        await locations.close()

    run(story)
