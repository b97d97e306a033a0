"""A front's event loop under one caller's many requests: in each of its turns only one of them is begun, or refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from serving.http.admission.callers import ALONE_S, MANY, Callers
from serving.http.guard import Guard, read_body
from serving.http.limits import LONG_BODY_BYTES, CallerLimits, RequestLimits
from serving.metrics import FrontMetrics
from tests.access.test_limits import ACCESS, bearer
from tests.serving.test_guard import hello, scope_of

CROWD = 100


def turns_of(scopes: Sequence[dict[str, Any]], limits: CallerLimits | None = None) -> list[int]:
    """In which turn of the event loop each request begins, or is refused; all of them come at once."""

    async def story() -> list[int]:
        loop, turn, found = asyncio.get_running_loop(), count(), dict[int, int]()
        gate, now = asyncio.Event(), [0]

        def ticks() -> None:
            now[0] = next(turn)
            loop.call_soon(ticks)

        async def held(scope: Scope, receive: Receive, send: Send) -> None:
            found[scope["number"]] = now[0]
            await gate.wait()
            await hello(scope, receive, send)

        async def ask(scope: dict[str, Any]) -> None:
            async def receive() -> Message:
                raise AssertionError

            async def send(message: Message) -> None:
                if message.get("status", 200) != 200:
                    found[scope["number"]] = now[0]

            await guard(scope, receive, send)

        guard = Guard(held, access=ACCESS, limits=RequestLimits(), metrics=FrontMetrics(), callers=limits)
        ticks()
        asked = [asyncio.create_task(ask(each | {"number": number})) for number, each in enumerate(scopes)]
        async with asyncio.timeout(20):
            while len(found) < len(scopes):  # noqa: ASYNC110 - what is waited for is in this thread
                await asyncio.sleep(0)
            gate.set()
            await asyncio.gather(*asked)
        return [found[number] for number in range(len(scopes))]

    return asyncio.run(story())


def most_in_a_turn(turns: Sequence[int]) -> int:
    """Of these requests."""
    return max(turns.count(each) for each in turns)


def test_of_a_callers_many_requests_one_begins_in_a_turn() -> None:
    """Another caller's request waits for no more than one of them in each turn that it takes."""
    other, *crowd = turns_of([bearer("other"), *[bearer("reader")] * CROWD])
    assert other == crowd[0]
    assert crowd.count(crowd[0]) == MANY
    assert most_in_a_turn(crowd[MANY:]) == 1


def test_a_lone_callers_requests_begin_when_they_come() -> None:
    """Where one application reads, nobody waits for turns."""
    turns = turns_of([bearer("reader")] * CROWD)
    assert set(turns) == {turns[0]}


def test_crowds_take_turns_with_each_other() -> None:
    """A caller with few more than `MANY` is not behind all of one with very many."""
    began, *turns = turns_of([bearer("other"), *[bearer("reader")] * CROWD, *[bearer("other")] * (MANY + 5)])
    assert turns[-1] - began <= 2 * (MANY + 5 + 1)
    assert max(turns) - began >= CROWD - MANY


@pytest.mark.parametrize(
    ("refused", "limits"),
    [
        (bearer("wrong"), None),
        (bearer("reader"), CallerLimits(in_flight=1)),
        (scope_of("/healthz"), None),
    ],
    ids=["a wrong token", "too many requests", "probes"],
)
def test_refusals_and_probes_come_one_in_a_turn(refused: dict[str, Any], limits: CallerLimits | None) -> None:
    """To ask for what is not given costs a front as much as a read, and it is not bounded by requests under way."""
    first, other, *crowd = turns_of([refused, bearer("other"), *[refused] * CROWD], limits)
    assert other <= first
    assert most_in_a_turn(crowd) == 1


def test_of_long_bodies_one_is_decoded_in_a_turn() -> None:
    """However few requests they are; a short one waits for no turn."""

    async def story() -> list[int]:
        loop, now = asyncio.get_running_loop(), [0]

        def ticks() -> None:
            now[0] += 1
            loop.call_soon(ticks)

        async def read(size: int) -> int:
            async def receive() -> Message:
                return {"type": "http.request", "body": bytes(size)}

            await read_body(scope_of(), receive, size)
            return now[0]

        ticks()
        return await asyncio.gather(read(LONG_BODY_BYTES), *(read(LONG_BODY_BYTES + 1) for _ in range(5)))

    short, *long = asyncio.run(story())
    assert short < min(long)
    assert most_in_a_turn(long) == 1


def test_who_has_not_asked_for_a_while_is_nobody() -> None:
    """After a second without others a caller is alone again; another one's request changes that."""
    callers = Callers(CallerLimits())
    callers.enter("a", "in_flight", 0.0)
    for _ in range(MANY + 1):
        callers.enter("b", "in_flight", 0.0)
    assert callers.crowds("b", 0.9 * ALONE_S)
    assert not callers.crowds("a", 0.9 * ALONE_S)
    assert not callers.crowds("b", 1.1 * ALONE_S)
    callers.pay("a", 1.0, 1.1 * ALONE_S)
    assert callers.crowds("b", 1.1 * ALONE_S)
    callers.leave("b", "in_flight")
    assert not callers.crowds("b", 1.1 * ALONE_S)


def test_more_than_one_asks_as_long_as_another_one_did_lately() -> None:
    """Threads that read a source rest for others; whoever is alone again after a second reads at full speed."""
    callers = Callers(CallerLimits())
    callers.enter("one", "in_flight", 0.0)
    callers.enter("one", "in_flight", 0.1)
    assert not callers.many_ask(0.1)
    callers.enter("other", "in_flight", 0.2)
    assert callers.many_ask(0.2)
    callers.enter("one", "in_flight", 0.3)
    assert callers.many_ask(0.3)
    callers.enter("one", "in_flight", 0.2 + 2 * ALONE_S)
    assert not callers.many_ask(0.2 + 2 * ALONE_S)


def test_requests_of_two_callers_have_threads_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard knows who asks, and tells those who read a source."""
    told: list[float] = []
    monkeypatch.setattr("serving.http.guard.others_wait", told.append)
    turns_of([bearer("reader")] * 2)
    assert told == []
    turns_of([bearer("reader"), bearer("other")])
    assert len(told) == 1
