"""Sessions that look at servers beside what is read: one for each, for as long as it answers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from stream.sources.mariadb.connection import Connection, ConnectionSettings, MariaDBError, connect, translated
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.position import end_of_log

Answer = TypeVar("Answer")

CONNECT_S: Final = 2.0
"""How long a server may take to answer: nothing is read meanwhile."""


class Sessions:
    """Asks servers. Not thread-safe."""

    def __init__(self) -> None:
        self._open: dict[ConnectionSettings, Connection] = {}

    def asked(self, server: ConnectionSettings, ask: Callable[[Connection], Answer]) -> Answer:
        """What a server says. Raises `MariaDBError`."""
        try:
            if server not in self._open:
                self._open[server] = connect(replace(server, connect_timeout_s=CONNECT_S, read_timeout_s=CONNECT_S))
            with translated(server):
                return ask(self._open[server])
        except MariaDBError:
            if (session := self._open.pop(server, None)) is not None:
                session._force_close()
            raise

    def end_of(self, server: ConnectionSettings) -> GtidPosition | None:
        """The end of a server's log; None: it does not say."""
        with suppress(MariaDBError):
            return self.asked(server, end_of_log)
        return None

    def close(self) -> None:
        """End them."""
        for session in self._open.values():
            session._force_close()
        self._open.clear()
