"""A long request lets others be answered in between: an event loop has one thread, and a batch a thousand elements."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

Element = TypeVar("Element")

ELEMENTS_A_TURN: Final = 64
"""Of one request, worked on before others have their turn: a millisecond or two."""


async def in_turns(elements: Iterable[Element]) -> AsyncIterator[Element]:
    """The elements, with a pause after each `ELEMENTS_A_TURN` in which whatever else is due is done."""
    for number, element in enumerate(elements):
        if number and number % ELEMENTS_A_TURN == 0:
            await asyncio.sleep(0)
        yield element
