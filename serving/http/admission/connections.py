"""How many connections there are, and of which address."""

from __future__ import annotations

import resource
from typing import Final

from serving.http.limits import ConnectionLimits
from stream.access.who import address_name
from stream.interpreter import raise_open_files

FILES_BESIDE: Final = 512
"""Open files that a front needs for other things than its connections: owners, sources, Kafka, files it serves."""


class Connections:
    """Counts connections. Belongs to one event loop."""

    def __init__(self, limits: ConnectionLimits) -> None:
        self._limits = limits
        self._addresses: dict[str, int] = {}
        self._all = 0

    def enter(self, address: str) -> bool:
        """Whether one more of the address may be; `leave` it if so."""
        name = address_name(address)
        has = self._addresses.get(name, 0)
        if self._all >= self._limits.all or has >= self._limits.of_address:
            return False
        self._addresses[name] = has + 1
        self._all += 1
        return True

    def leave(self, address: str) -> None:
        """One that entered has ended."""
        name = address_name(address)
        self._addresses[name] -= 1
        self._all -= 1
        if not self._addresses[name]:
            del self._addresses[name]


def fitting(limits: ConnectionLimits, beside: int = 0) -> ConnectionLimits:
    """``limits`` as far as the process may have open files. Raises that number to what the system allows it.

    ``beside``: files that others of its listeners may open.
    """
    most = raise_open_files()
    room = max(1, most - FILES_BESIDE - beside) if most != resource.RLIM_INFINITY else limits.all
    every = min(limits.all, room)
    # Half of what is there, so that one address never takes all.
    return ConnectionLimits(
        every, min(limits.of_address, max(1, every // 2)) if every < limits.all else limits.of_address
    )
