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
    """Whether a PyMySQL connection leads to MySQL, and not to MariaDB. A proxy may greet with a version of its own."""
    if "mariadb" in connection.get_server_info().lower():
        return False
    with connection.cursor() as cursor:
        cursor.execute("SHOW VARIABLES LIKE 'last_gtid'")  # MariaDB's
        return cursor.fetchone() is None


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
        self._can_tell = False
        """Whether all packets of the last call were heard, and can tell. An error's, and that behind rows, can't."""
        self._is_reading_on = False
        self._ask_for_news()

    def _ask_for_news(self) -> None:
        """Have the server tell what is committed, on this network connection."""
        if self._inner.client_flag & SESSION_TRACK:
            with self._inner.cursor() as cursor:
                cursor.execute("SET SESSION session_track_gtids = OWN_GTID")

    def begin(self) -> None:
        self._call(lambda: self._inner.query("BEGIN"))  # PyMySQL's own method throws the packet away

    def commit(self) -> None:
        self._call(lambda: self._inner.query("COMMIT"))

    def autocommit(self, value: bool) -> None:
        def switch() -> None:
            self._inner.autocommit_mode = bool(value)
            if self._inner.get_autocommit() != bool(value):
                self._inner.query(f"SET AUTOCOMMIT = {int(value)}")

        self._call(switch)

    def settle(self, force: bool = False) -> None:
        if force:
            self._can_tell = False
        super().settle(force)

    def next_result(self, unbuffered: bool = False) -> int:
        self._is_reading_on = True
        try:
            return super().next_result(unbuffered)
        finally:
            self._is_reading_on = False

    def _call(
        self, run: Callable[[], Result], may_have_committed: Callable[[], bool] = lambda: True, *, is_read: bool = False
    ) -> Result:
        self._can_tell = False
        before = self._inner._result
        # PyMySQL passes over results that were not read, before it sends a statement: nobody hears what they tell.
        is_unread = before is not None and (before.has_next or before.unbuffered_active) and not self._is_reading_on

        def heard() -> Result:
            result = run()
            self._can_tell = not is_unread
            if self._inner._result is not before:  # else nothing was sent
                self._listen()
            return result

        return super()._call(heard, may_have_committed, is_read=is_read)

    def _listen(self) -> None:
        result = self._inner._result
        # ANALYZE TABLE and its like commit, and answer with rows. What follows in the same text may have committed too.
        self._can_tell = self._can_tell and not result.field_count and not result.has_next
        message = getattr(result, "message", None)
        if message and result.server_status & _STATE_CHANGED:
            self._told += gtids_in(bytes(message))
            result.message = b""  # told once

    def _is_observed(self) -> bool:
        told, self._told = self._told, []
        for gtids in told:
            self._observe(gtids)
        is_same = self._inner.open and self._inner._sock is self._session
        if told and is_same and self._can_tell:
            return True
        found = self._asked("SELECT @@SESSION.session_track_gtids, @@GLOBAL.gtid_executed")
        if found is None:
            return False
        mode, executed = (each.decode() if isinstance(each, bytes) else str(each or "") for each in found)
        if not (self._can_tell and mode == "OWN_GTID" and self._inner.client_flag & SESSION_TRACK) and executed:
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
