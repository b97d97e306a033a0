"""Single flight, with futures that the test controls."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from functools import partial
from operator import add, le

import pytest

from serving.errors import ReadError
from serving.reads.flight import Flights
from stream.access.who import asking


async def settle() -> None:
    """Lets every task that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)


Make = Callable[[int], int | Exception]
"""From what a read of the source brought to the result of one key of it."""


def as_it_is(found: int) -> int:
    """The result is what was read."""
    return found


class Source:
    """A source whose reads end when the test says so; one read brings all keys of a flight."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[int]] = []
        self.asked: list[list[str]] = []

    async def fetch(self, wanted: Mapping[str, Make]) -> dict[str, int | Exception]:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.reads.append(future)
        self.asked.append(list(wanted))
        found = await future
        return {key: make(found) for key, make in wanted.items()}


def flights_of(source: Source, on_shared: Callable[[], None] = lambda: None) -> Flights[str, Make, int]:
    """Flights to ``source``."""
    return Flights(source.fetch, on_shared)


def test_concurrent_reads_of_a_key_ask_the_source_once() -> None:
    """Any number of concurrent readers of a key cause one read of the source."""

    async def story() -> None:
        shared: list[int] = []
        source = Source()
        flights = flights_of(source, lambda: shared.append(1))
        readers = [asyncio.create_task(flights.read("k", as_it_is, lambda found: found >= 5)) for _ in range(50)]
        await settle()
        assert len(source.reads) == 1
        source.reads[0].set_result(5)
        assert await asyncio.gather(*readers) == [5] * 50
        await settle()
        assert (len(flights), len(shared)) == (0, 49)

    asyncio.run(story())


def test_reads_of_other_keys_fly_alone() -> None:
    """Reads of different keys do not wait for each other."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        readers = [asyncio.create_task(flights.read(key, as_it_is, lambda _: True)) for key in "ab"]
        await settle()
        assert len(source.reads) == 2
        for value, future in enumerate(source.reads):
            future.set_result(value)
        assert await asyncio.gather(*readers) == [0, 1]

    asyncio.run(story())


def test_a_flight_that_started_too_early_is_not_shared() -> None:
    """A read that began before the reader's own write may miss it: the reader takes the next flight."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        early = asyncio.create_task(flights.read("k", as_it_is, lambda found: found >= 1))
        await settle()
        late = [asyncio.create_task(flights.read("k", as_it_is, lambda found: found >= 2)) for _ in range(20)]
        await settle()
        source.reads[0].set_result(1)
        await settle()
        assert len(source.reads) == 2
        source.reads[1].set_result(2)
        assert await early == 1
        assert await asyncio.gather(*late) == [2] * 20

    asyncio.run(story())


def test_a_second_unproved_flight_leads_to_a_read_of_its_own() -> None:
    """A reader takes the result of a joined flight only if it proves the demand, else it reads for itself."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        tasks = [asyncio.create_task(flights.read("k", as_it_is, lambda _: True))]
        await settle()
        proofs = [partial(le, need) for need in (2, 3)]
        tasks += [asyncio.create_task(flights.read("k", as_it_is, proof)) for proof in proofs]
        await settle()
        source.reads[0].set_result(1)
        await settle()
        source.reads[1].set_result(2)
        await settle()
        assert len(source.reads) == 3
        source.reads[2].set_result(3)
        assert await asyncio.gather(*tasks) == [1, 2, 3]

    asyncio.run(story())


def test_a_reader_that_leaves_does_not_end_the_flight() -> None:
    """The disconnect of one client does not fail the others."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        first = asyncio.create_task(flights.read("k", as_it_is, lambda _: True))
        await settle()
        second = asyncio.create_task(flights.read("k", as_it_is, lambda _: True))
        await settle()
        first.cancel()
        await settle()
        source.reads[0].set_result(7)
        assert await second == 7

    asyncio.run(story())


def test_a_failure_reaches_every_reader_and_the_next_one_tries_again() -> None:
    """All readers of a failed flight get its error, and the next reader starts a new one."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        readers = [asyncio.create_task(flights.read("k", as_it_is, lambda _: True)) for _ in range(3)]
        await settle()
        source.reads[0].set_exception(ConnectionError("away"))
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionError] * 3
        again = asyncio.create_task(flights.read("k", as_it_is, lambda _: True))
        await settle()
        source.reads[1].set_result(1)
        assert await again == 1

    asyncio.run(story())


def test_a_flight_whose_readers_all_left_ends_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An exception without waiting readers is not logged as never retrieved."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        reader = asyncio.create_task(flights.read("k", as_it_is, lambda _: True))
        await settle()
        reader.cancel()
        await settle()
        source.reads[0].set_exception(ConnectionError("away"))
        await settle()
        assert len(flights) == 0

    asyncio.run(story())
    assert "never retrieved" not in caplog.text


def test_keys_without_a_flight_start_one_together_and_the_others_join() -> None:
    """A batch joins the flights under way key by key, and other readers join the flight that it starts."""

    async def story() -> None:
        shared: list[int] = []
        source = Source()
        flights = flights_of(source, lambda: shared.append(1))
        wanted: dict[str, Make] = {key: partial(add, ord(key)) for key in "abc"} | {"bad": lambda _: KeyError("bad")}

        single = asyncio.create_task(flights.read("a", as_it_is, lambda _: True))
        await settle()
        batch = asyncio.create_task(flights.read_many(wanted, lambda found: found > 0))
        await settle()
        other = asyncio.create_task(flights.read("b", as_it_is, lambda _: True))
        await settle()
        assert source.asked == [["a"], ["b", "c", "bad"]]
        source.reads[1].set_result(1000)
        assert await other == 1098
        assert not batch.done()
        source.reads[0].set_result(7)
        found = await batch
        assert (found["a"], found["b"], found["c"]) == (7, 1098, 1099)
        assert isinstance(found["bad"], KeyError)
        assert (await single, len(shared), len(flights)) == (7, 2, 0)

    asyncio.run(story())


def test_a_batch_reads_again_only_keys_whose_flight_started_too_early() -> None:
    """Keys whose joined flight proves nothing are read again together; the other results are kept."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        early = [asyncio.create_task(flights.read(key, as_it_is, lambda _: True)) for key in "ab"]
        await settle()
        batch = asyncio.create_task(flights.read_many(dict.fromkeys("abc", as_it_is), lambda found: found >= 5))
        await settle()
        for number, result in enumerate((1, 5, 9)):
            source.reads[number].set_result(result)
        await settle()
        source.reads[3].set_result(6)
        assert await batch == {"a": 6, "b": 5, "c": 9}
        assert source.asked == [["a"], ["b"], ["c"], ["a"]]
        assert await asyncio.gather(*early) == [1, 5]

    asyncio.run(story())


def test_a_flight_that_has_landed_leaves_nothing_behind() -> None:
    """A front that runs for months must not keep a task for each of its reads."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        read = asyncio.create_task(flights.read("a", as_it_is, lambda _: True))
        await settle()
        assert len(flights._tasks) == 1
        source.reads[0].set_result(7)
        await read
        await settle()
        assert (len(flights._tasks), len(flights)) == (0, 0)

    asyncio.run(story())


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_an_error_is_never_judged(readers: int) -> None:
    """Whoever joined a read that failed gets its error; only a result can prove a demand."""

    async def story() -> None:
        source, error = Source(), ReadError("source_failed", "one of the keys")
        flights, shared = flights_of(source, lambda: shared.append(1)), list[int]()
        judged: list[object] = []

        def proves(found: object) -> bool:
            judged.append(found)
            return True

        wanted: dict[str, Make] = {"good": as_it_is, "bad": lambda _: error}
        tasks = [asyncio.create_task(flights.read_many(wanted, proves)) for _ in range(readers)]
        await settle()
        source.reads[0].set_result(5)
        assert await asyncio.gather(*tasks) == [{"good": 5, "bad": error}] * readers
        assert (len(source.reads), judged, len(shared)) == (1, [5] * (readers - 1), readers - 1)

    asyncio.run(story())


def test_readers_of_a_read_that_is_cancelled_do_not_hang() -> None:
    """The loop ends, or the front stops: everybody who waits for the flight hears of it, and the key is free again."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)
        readers = [asyncio.create_task(flights.read("k", as_it_is, lambda _: True)) for _ in range(3)]
        await settle()
        [flight] = flights._tasks
        flight.cancel()
        ended = await asyncio.wait_for(asyncio.gather(*readers, return_exceptions=True), 20)
        assert [type(each) for each in ended] == [asyncio.CancelledError] * 3
        assert len(flights) == 0
        again = asyncio.create_task(flights.read("k", as_it_is, lambda _: True))
        await settle()
        source.reads[1].set_result(7)
        assert await again == 7

    asyncio.run(story())


class Reader:
    """Wants each of its keys as of ``demanded`` or later."""

    def __init__(self, flights: Flights[str, Make, int], keys: list[str], demanded: int) -> None:
        self.demanded = demanded
        wanted: dict[str, Make] = dict.fromkeys(keys, as_it_is)
        self.task = asyncio.create_task(flights.read_many(wanted, lambda found: found >= demanded))


async def fly_at_random(rng: random.Random) -> None:
    """Readers come, leave and wait, while the source changes, answers in any order, and fails."""
    source = Source()
    flights = flights_of(source)
    now, failures = 0, 0
    versions: list[int] = []
    """Of each read: what the source had when it began."""
    readers: list[Reader] = []

    async def step() -> None:
        await settle()
        versions.extend([now] * (len(source.reads) - len(versions)))

    def end_one(*, fails: bool) -> bool:
        left = [number for number, read in enumerate(source.reads) if not read.done()]
        if left:
            number = rng.choice(left)
            if fails:
                source.reads[number].set_exception(ReadError("source_unreachable", "gone"))
            else:
                source.reads[number].set_result(versions[number])
        return bool(left)

    for _ in range(40):
        match rng.randrange(6):
            case 0:
                now += 1
            case 1 | 2:
                readers.append(Reader(flights, rng.sample("abc", rng.randint(1, 3)), now))
            case 3 if readers:
                rng.choice(readers).task.cancel()
            case 4:
                failures += end_one(fails=True)
            case _:
                end_one(fails=False)
        if rng.random() < 0.7:  # else the next thing happens before any task has run
            await step()
    await step()
    while end_one(fails=False):
        await step()
    for reader in readers:
        assert reader.task.done()
        if not reader.task.cancelled():
            for found in reader.task.result().values():
                if isinstance(found, Exception):
                    assert failures
                else:
                    assert found >= reader.demanded
    assert (len(flights), flights._tasks) == (0, set())


def test_whoever_leaves_or_fails_nobody_hangs_and_nobody_gets_less_than_demanded() -> None:
    """Flights under cancellation: in any schedule each reader who stays gets an answer that proves its demand."""
    for seed in range(400):
        asyncio.run(fly_at_random(random.Random(seed)))


@pytest.mark.parametrize(
    ("caller", "code", "reads"),
    [("b", "too_many_requests", 2), ("a", "too_many_requests", 1), ("b", "source_failed", 1)],
)
def test_a_limit_that_another_caller_has_reached_is_not_shared(caller: str, code: str, reads: int) -> None:
    """Who joins a read of a caller that takes all of the source's sessions asks for itself; other errors are of all."""

    async def story() -> None:
        source = Source()
        flights = flights_of(source)

        async def read(who: str) -> int:
            asking.set(who)
            return await flights.read("k", as_it_is, lambda _: True)

        readers = [asyncio.create_task(read(who)) for who in ("a", caller)]
        await settle()
        source.reads[0].set_exception(ReadError(code, "no"))
        await settle()
        for later in source.reads[1:]:
            later.set_result(5)
        first, second = await asyncio.gather(*readers, return_exceptions=True)
        assert isinstance(first, ReadError)
        assert second == 5 if reads == 2 else isinstance(second, ReadError)
        assert len(source.reads) == reads

    asyncio.run(story())
