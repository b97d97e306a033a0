"""A long request lets others be answered in between: an event loop has one thread, and a batch a thousand elements."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from stream.access.who import asking

Element = TypeVar("Element")

ELEMENTS_A_TURN: Final = 32
"""Of one request, worked on before others have their turn: a third of a millisecond or so."""

_Waiting: TypeAlias = dict[str, deque[asyncio.Future[None]]]
"""Caller → its requests that wait for their turn; who is first is next."""

_waiting: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, _Waiting]] = WeakKeyDictionary()


async def in_turns(elements: Iterable[Element]) -> AsyncIterator[Sequence[Element]]:
    """The elements, `ELEMENTS_A_TURN` at a time, with a `pause` in between."""
    every = elements if isinstance(elements, Sequence) else list(elements)
    for at in range(0, len(every), ELEMENTS_A_TURN):
        if at:
            await pause()
        yield every[at : at + ELEMENTS_A_TURN]


async def pause() -> None:
    """Has whatever else is due be done. Of all requests that pause, one goes on in a turn of the event loop.

    A short request needs a few turns, and would wait in each of them for as many as go on. Callers go on one after the
    other, however many requests each has.
    """
    loop = asyncio.get_running_loop()
    waiting = _waiting.setdefault(loop, {})
    if not waiting:
        loop.call_soon(_go_on, loop, waiting)
    waiting.setdefault(asking.get(), deque()).append(turn := loop.create_future())
    await turn


def _go_on(loop: asyncio.AbstractEventLoop, waiting: _Waiting) -> None:
    caller = next(iter(waiting))
    turns = waiting.pop(caller)
    turn = turns.popleft()
    if turns:
        waiting[caller] = turns
    if waiting:
        loop.call_soon(_go_on, loop, waiting)
    if not turn.done():  # whoever asked may have left
        turn.set_result(None)
