"""By how much clocks have been wrong, in histories whose clocks differ and are set. Pure."""

from __future__ import annotations

from collections.abc import Iterable


class Clocks:
    """The errors of all times. What a clock of before it was set has stamped may count for long after that."""

    def __init__(self) -> None:
        self._errors_s: dict[str, tuple[float, float]] = {}
        """Whose clock → its least and its greatest error; positive: ahead."""

    def note(self, whose: str, error_s: float) -> None:
        """From now on a clock is wrong by so much."""
        least, greatest = self._errors_s.get(whose, (error_s, error_s))
        self._errors_s[whose] = min(least, error_s), max(greatest, error_s)

    def lead_s(self, ahead: Iterable[str], behind: Iterable[str]) -> float:
        """By how much one of some clocks may have been ahead of one of others, at some other time or the same."""
        right = 0.0, 0.0
        greatest = max(self._errors_s.get(whose, right)[1] for whose in ahead)
        return max(greatest - min(self._errors_s.get(whose, right)[0] for whose in behind), 0.0)
