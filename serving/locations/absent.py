"""Entities that are known not to exist: nobody asks for them again for a while, longer each time. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from .places import Key

ABSENT_S: Final = 1.0
ABSENT_S_MAX: Final = 30.0
KEPT_MAX: Final = 100_000


class Absences:
    """Until when each key counts as absent."""

    def __init__(self) -> None:
        self._until: dict[Key, tuple[float, float]] = {}
        """Key → (until when, for how long)."""

    def __len__(self) -> int:
        return len(self._until)

    def add(self, key: Key, now: float) -> None:
        """It was asked for, and does not exist."""
        _, before_s = self._until.pop(key, (0.0, ABSENT_S / 2))
        for_s = min(2 * before_s, ABSENT_S_MAX)
        self._until[key] = now + for_s, for_s
        if len(self._until) > KEPT_MAX:
            del self._until[next(iter(self._until))]

    def holds(self, key: Key, now: float) -> bool:
        """Whether it needn't be asked for."""
        known = self._until.get(key)
        return known is not None and now < known[0]

    def clear(self, key: Key) -> None:
        """It exists."""
        self._until.pop(key, None)

    def drop(self, is_meant: Callable[[Key], bool]) -> None:
        """Forgets those that are meant."""
        self._until = {key: known for key, known in self._until.items() if not is_meant(key)}
