"""Long requests that pause: how much of them is done before a short one has its turn."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

from serving.turns import ELEMENTS_A_TURN, in_turns
from stream.access.who import asking

LONG = 10 * ELEMENTS_A_TURN


def turns_of(*callers: str) -> list[list[str]]:
    """For each turn of the event loop, whose elements were done in it; each caller has a long request."""
    turns: list[list[str]] = [[]]

    async def long(caller: str) -> None:
        asking.set(caller)
        async for some in in_turns(range(LONG)):
            turns[-1] += [caller] * len(some)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        requests = [loop.create_task(long(caller), context=copy_context()) for caller in callers]
        while not all(each.done() for each in requests):
            await asyncio.sleep(0)
            turns.append([])

    asyncio.run(run())
    assert sum(map(len, turns)) == LONG * len(callers)
    return turns


def test_of_many_long_requests_one_goes_on_in_a_turn() -> None:
    """So what a short one waits for is the same, however many there are; each has its first part when it comes."""
    first, *later = (len(each) for each in turns_of(*(["a"] * 20)))
    assert first + later[0] == 20 * ELEMENTS_A_TURN
    assert max(later[1:]) == ELEMENTS_A_TURN


def test_callers_go_on_one_after_the_other() -> None:
    """Between two parts of a lone request are at most two of a caller who has very many."""
    turns = turns_of(*(["many"] * 20), "one")
    last = max(at for at, each in enumerate(turns) if "one" in each)
    before = sum(each.count("many") for each in turns[: last + 1])
    assert before <= 20 * ELEMENTS_A_TURN + 2 * LONG


def test_one_that_leaves_while_it_waits_holds_nobody_up() -> None:
    """Its turn is skipped."""

    async def run() -> list[int]:
        async def long() -> list[int]:
            return [each async for some in in_turns(range(LONG)) for each in some]

        leaving, staying = asyncio.ensure_future(long()), asyncio.ensure_future(long())
        await asyncio.sleep(0)
        leaving.cancel()
        return await staying

    assert asyncio.run(run()) == list(range(LONG))
