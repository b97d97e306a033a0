"""What one caller may take of a front, in the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from freshet.sections.values import Section

if TYPE_CHECKING:
    from serving.http.limits import CallerLimits, ConnectionLimits


class LimitsSettings(Section):
    """Of all callers, and of one: a token, or an address where none is asked for. ``rate_per_s`` 0: no rate.

    ``in_flight_of_caller``, ``files_of_caller``, ``connections_of_address`` 0: as usual, but no more than its part of
    what is set of all, so that a second one finds room. ``burst``: what may be spent at once after a pause; 0: two
    seconds' worth.
    """

    in_flight: int = Field(default=512, ge=1, le=100_000)
    in_flight_of_caller: int = Field(default=0, ge=0, le=100_000)
    streams_of_caller: int = Field(default=256, ge=1, le=100_000)
    files_of_caller: int = Field(default=0, ge=0, le=10_000)
    rate_per_s: float = Field(default=0.0, ge=0, le=10_000_000)
    burst: float = Field(default=0.0, ge=0, le=100_000_000)
    request_timeout_s: float = Field(default=60.0, ge=1, le=3_600)
    connections: int = Field(default=8_192, ge=1, le=1_000_000)
    connections_of_address: int = Field(default=0, ge=0, le=1_000_000)

    @property
    def of_caller(self) -> CallerLimits:
        """As the guard takes them."""
        from serving.http.limits import CallerLimits

        return CallerLimits(
            self.rate_per_s,
            self.burst,
            _part(self.in_flight_of_caller, 256, self.in_flight // 2),
            self.streams_of_caller,
            _part(self.files_of_caller, 32, self.in_flight // 4),  # who reads a file has a request under way
        )

    @property
    def of_connections(self) -> ConnectionLimits:
        """As the server takes them."""
        from serving.http.limits import ConnectionLimits

        return ConnectionLimits(self.connections, _part(self.connections_of_address, 4_096, self.connections // 2))


def _part(given: int, usual: int, most: int) -> int:
    """As it is set; else as usual, but no more than ``most``."""
    return given or min(usual, max(1, most))
