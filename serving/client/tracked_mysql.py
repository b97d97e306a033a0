"""A PyMySQL connection to MySQL that reports the GTIDs of each commit.

MySQL has no variable for a session's last GTID. It tells what a session commits in the packets that end statements, if
the client says at login that it understands that (``client_flag=CLIENT.SESSION_TRACK``). Without that, and where a
packet may be missing, all that the server has committed is taken: this session's commits are among it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .tracked import Result, TrackedConnection

SESSION_TRACK: Final = 1 << 23
"""CLIENT_SESSION_TRACK of the protocol."""
_STATE_CHANGED: Final = 1 << 14
"""SERVER_SESSION_STATE_CHANGED: a packet has news of the session."""
_GTIDS: Final = 3
"""SESSION_TRACK_GTIDS: the kind of such news."""


def is_mysql(connection: Any) -> bool:
    """Whether a PyMySQL connection leads to MySQL, and not to MariaDB."""
    return "mariadb" not in connection.get_server_info().lower()


class MysqlTrackedConnection(TrackedConnection):
    """As `TrackedConnection`. ``observe`` is called with a set of GTIDs (``uuid:5``)."""

    def __init__(
        self,
        connection: Any,
        observe: Callable[[str], None],
        watch: Callable[[TrackedConnection], None] = lambda _: None,
    ) -> None:
        super().__init__(connection, observe, watch)
        self._told: list[str] = []
        """What packets said and `_observe` was not called with yet."""
        self._has_ended_well = False
        """Whether the last call has read all packets that the server sent for it. One with an error tells nothing."""
        self._ask_for_news()

    def _ask_for_news(self) -> None:
        """Have the server tell what is committed, on this network connection."""
        if self._inner.client_flag & SESSION_TRACK:
            with self._inner.cursor() as cursor:
                cursor.execute("SET SESSION session_track_gtids = OWN_GTID")

    def begin(self) -> None:
        self._call(lambda: self._run("BEGIN"))

    def commit(self) -> None:
        self._call(lambda: self._run("COMMIT"))

    def autocommit(self, value: bool) -> None:
        def switch() -> None:
            self._inner.autocommit_mode = bool(value)
            if self._inner.get_autocommit() != bool(value):
                self._run(f"SET AUTOCOMMIT = {int(value)}")

        self._call(switch)

    def settle(self, force: bool = False) -> None:
        if force:
            self._has_ended_well = False
        super().settle(force)

    def _run(self, sql: str) -> None:
        """Runs a statement whose packet PyMySQL's own method would throw away. The caller's result stays."""
        before = self._inner._result
        try:
            self._inner.query(sql)
            self._listen()
        finally:
            self._inner._result = before

    def _call(
        self, run: Callable[[], Result], may_have_committed: Callable[[], bool] = lambda: True, *, is_read: bool = False
    ) -> Result:
        self._has_ended_well = False

        def heard() -> Result:
            result = run()
            self._listen()
            self._has_ended_well = True
            return result

        return super()._call(heard, may_have_committed, is_read=is_read)

    def _listen(self) -> None:
        result = self._inner._result
        message = getattr(result, "message", None)
        if message and result.server_status & _STATE_CHANGED:
            self._told += gtids_in(bytes(message))
            result.message = b""  # told once

    def _is_observed(self) -> bool:
        told, self._told = self._told, []
        for gtids in told:
            self._observe(gtids)
        is_same = self._inner.open and self._inner._sock is self._session
        if told and is_same and self._has_ended_well:
            return True
        found = self._asked("SELECT @@SESSION.session_track_gtids, @@GLOBAL.gtid_executed")
        if found is None:
            return False
        mode, executed = (each.decode() if isinstance(each, bytes) else str(each or "") for each in found)
        if not (self._has_ended_well and mode == "OWN_GTID" and self._inner.client_flag & SESSION_TRACK) and executed:
            self._observe(executed.replace("\n", ""))
        return True


def gtids_in(message: bytes) -> list[str]:
    """The sets of GTIDs in what follows the count of warnings in an OK packet with news. Empty if it is cut off."""
    found = []
    try:
        size, at = _packed(message, 0)
        size, at = _packed(message, at + size)
        end = at + size
        if end > len(message):
            return []
        while at < end:
            kind = message[at]
            size, at = _packed(message, at + 1)
            if kind == _GTIDS:
                length, start = _packed(message, at + 1)  # behind a byte for the encoding
                found.append(message[start : start + length].decode())
            at += size
    except (IndexError, UnicodeDecodeError):
        return []
    return found


def _packed(data: bytes, at: int) -> tuple[int, int]:
    """A length-encoded integer and the place after it. Raises IndexError."""
    first = data[at]
    if first < 251:
        return first, at + 1
    width = {252: 2, 253: 3, 254: 8}.get(first, 0)
    if not width or at + 1 + width > len(data):
        raise IndexError(at)
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width
