"""Single flight, with futures that the test controls."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from operator import le

import pytest

from serving.reads.flight import Flights


async def settle() -> None:
    """Lets every task that can run, run."""
    for _ in range(10):
        await asyncio.sleep(0)


class Source:
    """A source whose reads end when the test says so."""

    def __init__(self) -> None:
        self.reads: list[asyncio.Future[int]] = []

    async def read(self) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.reads.append(future)
        return await future


def test_concurrent_reads_of_a_key_ask_the_source_once() -> None:
    """A herd of readers is one read of the source."""

    async def story() -> None:
        shared: list[int] = []
        flights, source = Flights[str, int](lambda: shared.append(1)), Source()
        readers = [asyncio.create_task(flights.read("k", lambda found: found >= 5, source.read)) for _ in range(50)]
        await settle()
        assert len(source.reads) == 1
        source.reads[0].set_result(5)
        assert await asyncio.gather(*readers) == [5] * 50
        await settle()
        assert (len(flights), len(shared)) == (0, 49)

    asyncio.run(story())


def test_reads_of_other_keys_fly_alone() -> None:
    """Keys do not wait for each other."""

    async def story() -> None:
        flights, source = Flights[str, int](), Source()
        readers = [asyncio.create_task(flights.read(key, lambda _: True, source.read)) for key in "ab"]
        await settle()
        assert len(source.reads) == 2
        for value, future in enumerate(source.reads):
            future.set_result(value)
        assert await asyncio.gather(*readers) == [0, 1]

    asyncio.run(story())


def test_a_flight_that_took_off_too_early_is_not_shared() -> None:
    """A read that began before the reader's own write may miss it: the reader takes the next flight."""

    async def story() -> None:
        flights, source = Flights[str, int](), Source()
        early = asyncio.create_task(flights.read("k", lambda found: found >= 1, source.read))
        await settle()
        late = [asyncio.create_task(flights.read("k", lambda found: found >= 2, source.read)) for _ in range(20)]
        await settle()
        source.reads[0].set_result(1)
        await settle()
        assert len(source.reads) == 2
        source.reads[1].set_result(2)
        assert await early == 1
        assert await asyncio.gather(*late) == [2] * 20

    asyncio.run(story())


def test_a_second_flight_that_proves_nothing_leads_to_an_own_read() -> None:
    """A reader is never answered by a flight that its demand is not proved by, unless the flight is its own."""

    async def story() -> None:
        flights, source = Flights[str, int](), Source()
        tasks = [asyncio.create_task(flights.read("k", lambda _: True, source.read))]
        await settle()
        proofs = [partial(le, need) for need in (2, 3)]
        tasks += [asyncio.create_task(flights.read("k", proof, source.read)) for proof in proofs]
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
    """One client's disconnect must not fail the others."""

    async def story() -> None:
        flights, source = Flights[str, int](), Source()
        first = asyncio.create_task(flights.read("k", lambda _: True, source.read))
        await settle()
        second = asyncio.create_task(flights.read("k", lambda _: True, source.read))
        await settle()
        first.cancel()
        await settle()
        source.reads[0].set_result(7)
        assert await second == 7

    asyncio.run(story())


def test_a_failure_reaches_every_reader_and_the_next_one_tries_again() -> None:
    """A failed flight is not remembered."""

    async def story() -> None:
        flights, source = Flights[str, int](), Source()
        readers = [asyncio.create_task(flights.read("k", lambda _: True, source.read)) for _ in range(3)]
        await settle()
        source.reads[0].set_exception(ConnectionError("away"))
        results = await asyncio.gather(*readers, return_exceptions=True)
        assert [type(result) for result in results] == [ConnectionError] * 3
        again = asyncio.create_task(flights.read("k", lambda _: True, source.read))
        await settle()
        source.reads[1].set_result(1)
        assert await again == 1

    asyncio.run(story())


def test_a_flight_whose_readers_all_left_ends_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """An exception that nobody waits for is not reported as never retrieved."""

    async def story() -> None:
        flights, source = Flights[str, int](), Source()
        reader = asyncio.create_task(flights.read("k", lambda _: True, source.read))
        await settle()
        reader.cancel()
        await settle()
        source.reads[0].set_exception(ConnectionError("away"))
        await settle()
        assert len(flights) == 0

    asyncio.run(story())
    assert "never retrieved" not in caplog.text


def test_keys_that_nobody_reads_take_off_together_and_the_others_join() -> None:
    """A batch shares the flights that are under way, for each key alone, and its own keys' one flight is shared too."""

    async def story() -> None:
        shared: list[int] = []
        flights, source = Flights[str, int](lambda: shared.append(1)), Source()
        asked: list[list[str]] = []

        async def start(keys: Collection[str]) -> dict[str, int | Exception]:
            asked.append(list(keys))
            base = await source.read()
            return {key: KeyError(key) if key == "bad" else base + ord(key) for key in keys}

        single = asyncio.create_task(flights.read("a", lambda _: True, source.read))
        await settle()
        batch = asyncio.create_task(flights.read_many(["a", "b", "bad", "c"], lambda found: found > 0, start))
        await settle()
        other = asyncio.create_task(flights.read("b", lambda _: True, source.read))
        await settle()
        assert (asked, len(source.reads)) == ([["b", "bad", "c"]], 2)
        source.reads[1].set_result(1000)
        assert await other == 1098
        assert not batch.done()
        source.reads[0].set_result(7)
        found = await batch
        assert (found["a"], found["b"], found["c"]) == (7, 1098, 1099)
        assert isinstance(found["bad"], KeyError)
        assert (await single, len(shared), len(flights)) == (7, 2, 0)

    asyncio.run(story())


def test_a_batch_takes_again_only_what_took_off_too_early() -> None:
    """Keys of an early flight that proves nothing fly again, together; the others are kept as they landed."""

    async def story() -> None:
        flights, source = Flights[str, int](), Source()
        asked: list[list[str]] = []

        async def start(keys: Collection[str]) -> dict[str, int | Exception]:
            asked.append(list(keys))
            return dict.fromkeys(keys, await source.read())

        early = [asyncio.create_task(flights.read(key, lambda _: True, source.read)) for key in "ab"]
        await settle()
        batch = asyncio.create_task(flights.read_many("abc", lambda found: found >= 5, start))
        await settle()
        for number, landed in enumerate((1, 5, 9)):
            source.reads[number].set_result(landed)
        await settle()
        source.reads[3].set_result(6)
        assert await batch == {"a": 6, "b": 5, "c": 9}
        assert asked == [["c"], ["a"]]
        assert await asyncio.gather(*early) == [1, 5]

    asyncio.run(story())
