"""The reads of one table leave sessions of the source for the reads of others."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest

from freshet.local.mariadb import MariaDBAddress
from serving.errors import ReadError
from serving.sources.mariadb import READS_MAX, MariaDBRows
from serving.sources.shares import WAITING_MAX, Shares
from serving.sources.source import SourceKey, SourceRow, SourceThreads
from stream.access.who import asking
from stream.sources.mariadb import snapshot
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.schema import TableFilter
from tests.patience import PATIENCE_S
from tokens import Position


async def refused(shares: Shares, *tables: str) -> bool:
    """Whether a read of ``tables`` is not admitted now."""
    try:
        async with shares.hold(tables, 0.01):
            return False
    except ReadError as error:
        return error.code == "too_many_requests"


def test_a_table_gets_as_many_sessions_as_stay_free() -> None:
    """One table gets half of the sessions, the next one half of the rest, and each leaves some for another."""

    async def story() -> None:
        shares = Shares(8)
        async with AsyncExitStack() as held:
            for name, count in (("a", 4), ("b", 2), ("c", 1)):
                for _ in range(count):
                    await held.enter_async_context(shares.hold([name], 0.01))
                assert await refused(shares, name)
                assert await refused(shares, "x", name)
            assert not await refused(shares, "d")
        async with shares.hold(["a"], 0.01):
            assert not await refused(shares, "a")

    asyncio.run(story())


def test_a_read_that_waits_is_admitted_when_another_ends_and_leaves_no_trace_when_it_gives_up() -> None:
    """Reads are admitted in order as sessions come free. One that is cancelled or late takes nothing with it."""

    async def story() -> None:
        shares = Shares(2)
        async with shares.hold(["a"], 0.01):
            waiting = [asyncio.create_task(_hold(shares, "a")) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            assert await refused(shares, "a")
        assert await asyncio.gather(*waiting[1:]) == ["a", "a"]
        for _ in range(4):
            assert not await refused(shares, "a")

    asyncio.run(story())


def test_a_read_that_gives_up_as_it_is_admitted_gives_its_session_back() -> None:
    """Else each time there would be one less, until nobody is admitted any more."""

    async def story() -> None:
        shares = Shares(2)
        async with shares.hold(["a"], 0.01):
            waiting = asyncio.create_task(_hold(shares, "a"))
            await asyncio.sleep(0)
            waiting.cancel()  # it is admitted before it hears of that
        with pytest.raises(asyncio.CancelledError):
            await waiting
        async with shares.hold(["a"], 0.01), shares.hold(["b"], 0.01):
            assert await refused(shares, "c")

    asyncio.run(story())


def test_a_wait_for_a_lagging_source_ends_in_its_time_wherever_it_queues() -> None:
    """A wait that gets a thread late has less time left, and one that gets it too late asks nothing."""
    rows = MariaDBRows(ConnectionSettings("127.0.0.1", 1, "u", ""), "shop/0", TableFilter(("shop.*",)))
    begun, patience = [], threading.Event()

    class Behind:
        def wait_for_position(self, _: str, timeout_s: float, tables: Collection[str]) -> bool:  # noqa: ARG002
            begun.append(timeout_s)
            patience.wait(timeout_s)
            return False

        def close(self) -> None:
            pass

    rows._waiter = cast("Any", Behind())

    async def story() -> None:
        waits = [rows.wait(Position.parse("MariaDB/0-1-5"), 0.2, ["shop.t"]) for _ in range(40)]
        assert await asyncio.gather(*waits) == [False] * 40
        await rows.close()

    asyncio.run(story())
    assert sum(begun) < 40 * 0.2 / 2
    assert len(begun) < 40


def test_a_read_that_may_not_enter_yet_lets_others_pass() -> None:
    """The reads of a locked table wait at the head of the line; a later read of another table goes on."""

    async def story() -> None:
        shares = Shares(4)
        async with AsyncExitStack() as locked:
            for _ in range(2):
                await locked.enter_async_context(shares.hold(["locked"], 0.01))
            async with AsyncExitStack() as others:
                for name in ("a", "b"):
                    await others.enter_async_context(shares.hold([name], 0.01))
                first = asyncio.create_task(_hold(shares, "locked"))
                await asyncio.sleep(0)
                second = asyncio.create_task(_hold(shares, "c"))
                await asyncio.sleep(0)
            assert await asyncio.wait_for(second, 1.0) == "c"
            assert not first.done()
        assert await first == "locked"

    asyncio.run(story())


async def _hold_as(shares: Shares, caller: str, order: list[str]) -> None:
    asking.set(caller)
    async with shares.hold(["cold"], 5.0):
        order.append(caller)


def test_a_caller_who_asks_for_much_is_passed_by_who_holds_less() -> None:
    """A lone caller has all sessions but one, which a new one gets at once; the next goes before its waiting reads."""

    async def story() -> None:
        shares, order = Shares(8), list[str]()
        async with AsyncExitStack() as others, AsyncExitStack() as much:
            asking.set("much")
            for number in range(7):
                await much.enter_async_context(shares.hold([f"t{number}"], 0.01))
            assert await refused(shares, "another")
            asking.set("new")
            await others.enter_async_context(shares.hold(["another"], 0.01))
            waiting = [asyncio.create_task(_hold_as(shares, who, order)) for who in ("much", "much", "new", "third")]
            await asyncio.sleep(0)
            assert order == []
            await much.aclose()
        await asyncio.gather(*waiting)
        assert order.index("third") < order.index("new") < order.index("much")

    asyncio.run(story())


def test_one_caller_does_not_fill_the_queue() -> None:
    """Half of those who wait may be one caller's; what is more is refused, and another still finds room to wait."""

    async def story() -> None:
        shares, order = Shares(1), list[str]()
        async with shares.hold(["cold"], 0.01):
            waiting = [asyncio.create_task(_hold_as(shares, "much", order)) for _ in range(WAITING_MAX)]
            await asyncio.sleep(0)
            assert sum(each.done() for each in waiting) == WAITING_MAX // 2
            other = asyncio.create_task(_hold_as(shares, "other", order))
            await asyncio.sleep(0)
            assert not other.done()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert {each.code for each in outcomes if isinstance(each, ReadError)} == {"too_many_requests"}
        await other
        assert sorted(order) == ["much"] * (WAITING_MAX // 2) + ["other"]

    asyncio.run(story())


def test_a_share_is_held_until_its_thread_has_ended() -> None:
    """Who asked may have left; the thread works on, so another read would only wait behind it."""
    goes_on, begun = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait(PATIENCE_S)

    async def story() -> None:
        source = SourceThreads("of a test", threads=1)
        left = asyncio.create_task(source.run(work))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        with pytest.raises(ReadError):
            await source.run(time.monotonic, timeout_s=0.01)
        goes_on.set()
        assert await source.run(time.monotonic, timeout_s=PATIENCE_S) > 0
        source.close()

    asyncio.run(story())


def test_who_holds_nothing_is_forgotten() -> None:
    """Tables and callers come and go for months: a front keeps nothing of those that have ended."""

    async def story() -> None:
        shares = Shares(4)
        for number in range(3):
            asking.set(f"caller {number}")
            async with shares.hold([f"t{number}"], 0.01):
                assert (len(shares._held), len(shares._held_by)) == (1, 1)
        assert (len(shares._held), len(shares._held_by)) == (0, 0)

    asyncio.run(story())


async def _hold(shares: Shares, name: str) -> str:
    async with shares.hold([name], 5.0):
        await asyncio.sleep(0)
        return name


@pytest.mark.integration
def test_a_locked_table_holds_no_read_of_another(
    mariadb: MariaDBAddress, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While ten reads wait for a locked table, another table is read at once; the ten end with the reason.

    In a batch of both, the other table is read too, also if the columns of both must be read again.
    """
    settings = ConnectionSettings(mariadb.host, mariadb.port, mariadb.user, mariadb.password)

    async def story() -> None:
        rows = MariaDBRows(settings, "s/0", TableFilter((database,)))
        described = [await rows.describe(f"{database}.{name}") for name in ("locked", "other")]
        locked, other = (SourceKey(table, (1,)) for table in described if table is not None)
        lock.cursor().execute("LOCK TABLES locked WRITE")
        waiting = [asyncio.create_task(rows.read([locked])) for _ in range(READS_MAX + 2)]
        await asyncio.sleep(0.2)
        for _ in range(20):
            began = time.monotonic()
            (row,) = await rows.read([other])
            assert time.monotonic() - began < 4.0  # those of the locked one end after five seconds
            assert isinstance(row, SourceRow)
        for age_s in (snapshot.SCHEMA_AGE_MAX_S, 0.0):
            monkeypatch.setattr(snapshot, "SCHEMA_AGE_MAX_S", age_s)
            both = await rows.read([locked, other])
            assert [type(each) for each in both] == [ReadError, SourceRow]
        for outcome in await asyncio.gather(*waiting, return_exceptions=True):
            error = outcome[0] if isinstance(outcome, list) else outcome
            assert isinstance(error, ReadError)
            assert error.code in ("source_unreachable", "too_many_requests")
            assert f"{database}.locked" in str(error)
        lock.cursor().execute("UNLOCK TABLES")
        assert isinstance((await rows.read([locked]))[0], SourceRow)
        await rows.close()

    with mariadb.connect(database=database, autocommit=True) as lock, lock.cursor() as cursor:
        for name in ("locked", "other"):
            cursor.execute(f"CREATE TABLE {name} (id INT PRIMARY KEY)")
            cursor.execute(f"INSERT INTO {name} VALUES (1)")
        asyncio.run(story())
