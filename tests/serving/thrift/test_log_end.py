"""The end of the log that a caller gets is of after it came, whoever else asks at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from serving.errors import ReadError
from serving.thrift.log_end import LogEnd
from tests.patience import PATIENCE_S
from tests.serving.test_flight import settle


class Metastore:
    """Its questions are answered when a test says so."""

    def __init__(self) -> None:
        self.asked: list[asyncio.Future[int]] = []
        self.end = LogEnd(self._fetch)

    async def _fetch(self) -> int:
        self.asked.append(asyncio.get_running_loop().create_future())
        return await self.asked[-1]

    async def come(self) -> asyncio.Task[int]:
        """A caller that waits."""
        task = asyncio.create_task(self.end.now())
        await settle()
        return task


def run(use: Callable[[Metastore], Awaitable[None]]) -> None:
    """Within an event loop."""

    async def main() -> None:
        await asyncio.wait_for(use(Metastore()), PATIENCE_S)

    asyncio.run(main())


def test_no_caller_gets_an_answer_of_a_question_from_before_it_came() -> None:
    """What was committed in between would be missing. Those that come meanwhile share the next question."""

    async def use(metastore: Metastore) -> None:
        first = await metastore.come()
        late = [await metastore.come() for _ in range(3)]
        assert len(metastore.asked) == 1
        metastore.asked[0].set_result(5)
        await settle()
        assert (first.done(), [each.done() for each in late], len(metastore.asked)) == (True, [False] * 3, 2)
        last = await metastore.come()
        metastore.asked[1].set_result(6)
        await settle()
        assert (await first, [await each for each in late], last.done()) == (5, [6] * 3, False)
        metastore.asked[2].set_result(7)
        assert await last == 7
        assert len(metastore.asked) == 3

    run(use)


def test_callers_that_come_together_share_a_question() -> None:
    """None has begun before them. A later one asks anew, though nothing is under way."""

    async def use(metastore: Metastore) -> None:
        together = [asyncio.create_task(metastore.end.now()) for _ in range(3)]
        await settle()
        metastore.asked[0].set_result(5)
        assert await asyncio.gather(*together) == [5] * 3
        assert len(metastore.asked) == 1
        later = await metastore.come()
        metastore.asked[1].set_result(6)
        assert await later == 6

    run(use)


def test_a_failure_is_of_all_who_share_it_and_of_no_later_one() -> None:
    """Those who came meanwhile ask themselves."""

    async def use(metastore: Metastore) -> None:
        sharing = [asyncio.create_task(metastore.end.now()) for _ in range(2)]
        await settle()
        late = await metastore.come()
        metastore.asked[0].set_exception(ReadError("source_unreachable", "away"))
        for each in sharing:
            with pytest.raises(ReadError, match="away"):
                await each
        await settle()
        metastore.asked[1].set_result(6)
        assert await late == 6

    run(use)


def test_a_caller_that_leaves_takes_no_answer_from_the_others() -> None:
    """Neither from those who share its question, nor from those who wait for its end."""

    async def use(metastore: Metastore) -> None:
        leaving, staying = [asyncio.create_task(metastore.end.now()) for _ in range(2)]
        await settle()
        late = [await metastore.come() for _ in range(2)]
        leaving.cancel()
        late[0].cancel()
        await settle()
        assert leaving.cancelled()
        metastore.asked[0].set_result(5)
        assert await staying == 5
        await settle()
        metastore.asked[1].set_result(6)
        assert await late[1] == 6

    run(use)
