"""Which servers others are preferred to for a while, because they were left. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from stream.sources.mariadb.connection import ConnectionSettings

MAX_S: Final = 320.0
"""How long a replica is passed over at most."""


class PassedOver:
    """Each is passed over for a while, and twice as long if it is left again soon after that."""

    def __init__(self) -> None:
        self._until: dict[ConnectionSettings, float] = {}
        self._for: dict[ConnectionSettings, float] = {}

    def add(self, server: ConnectionSettings, now: float, least_s: float) -> None:
        """It is left ``now``, and passed over for ``least_s`` or longer."""
        span = self._for.get(server, 0.0)
        is_again = server in self._until and now < self._until[server] + span
        self._for[server] = min(max(least_s, MAX_S), 2 * span) if is_again else least_s
        self._until[server] = now + self._for[server]

    def has(self, server: ConnectionSettings, now: float) -> bool:
        """Whether others are preferred to it now."""
        return now < self._until.get(server, now)

    def last(self, servers: Iterable[ConnectionSettings], now: float) -> list[ConnectionSettings]:
        """``servers`` in their order, but those that are passed over come last: there may be no other."""
        return sorted(servers, key=lambda server: self.has(server, now))
