"""What a metastore has refused to give, and when it is asked again.

A metastore refuses with a declared exception: for a moment, say while its database is busy, or for as long as one of
its objects is damaged. No event tells when that is over, so time has to. Readers are answered by the metastore
meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

RETRY_S: Final = 30.0
"""After this long what was refused is asked for again."""
RETRY_MAX_S: Final = 600.0
"""The wait doubles with each refusal, up to this."""

Thing = TypeVar("Thing", bound=Hashable)


@dataclass(slots=True)
class _Wait:
    seconds: float
    until_s: float
    is_over: bool = False


class Refusals(Generic[Thing]):
    """Things that were refused, each until it is forgotten because it was given, or is gone."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waits: dict[Thing, _Wait] = {}

    def __iter__(self) -> Iterator[Thing]:
        return iter(list(self._waits))

    def __contains__(self, thing: object) -> bool:
        return thing in self._waits

    def __len__(self) -> int:
        return len(self._waits)

    def waits(self, thing: Thing) -> bool:
        """Whether it was refused, and is not to be asked for yet."""
        found = self._waits.get(thing)
        return found is not None and not found.is_over

    def note(self, thing: Thing) -> None:
        """It was refused, maybe again."""
        before = self._waits.get(thing)
        seconds = min(2 * before.seconds, RETRY_MAX_S) if before is not None else RETRY_S
        self._waits[thing] = _Wait(seconds, self._clock() + seconds)

    def forget(self, thing: Thing) -> None:
        """It was given, or there is no such thing any more."""
        self._waits.pop(thing, None)

    def due(self, count: int | None = None) -> list[Thing]:
        """Those to ask for now, at most ``count``.

        They are kept: if nobody hears of them, they are due after another wait.
        """
        if not self._waits:
            return []
        now_s = self._clock()
        found = [(thing, wait) for thing, wait in self._waits.items() if wait.until_s <= now_s][:count]
        for _, wait in found:
            wait.until_s, wait.is_over = now_s + wait.seconds, True
        return [thing for thing, _ in found]
