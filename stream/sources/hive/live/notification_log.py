"""A metastore's log, read event by event from a position on.

It may be cleaned, or be lost and written anew, which is looked for: other events would be taken for those that follow.
"""

from __future__ import annotations

import time
from math import inf
from typing import Any, Final, NamedTuple

from stream.sources.hive.live.metastore import Metastore
from stream.sources.hive.messages import FLAVOR
from stream.sources.hive.progress import checksum_of
from stream.sources.hive.rpc.connection import MetastoreTimeout
from stream.sources.hive.structs import ThriftError
from stream.sources.status import SourceStatus
from stream.wire.events import ResumePoint
from tokens.errors import FreshetError

EVENTS_MAX: Final = 500
"""Events that are read with one call. Large ones are read with several."""
LOOK_S: Final = 1.0
"""How often the server is asked for its last event: so old is at least what is known of its time."""


class HiveHistoryLost(FreshetError):
    """The log no longer continues what was published; code ``history_lost``."""

    code = "history_lost"


class _Look(NamedTuple):
    """The server's last event, and when it was asked for, in ms since 1970 by this machine's clock.

    All that was committed by then is at or before the event.
    """

    end: int
    as_of_ms: int


class NotificationLog:
    """The events after ``resume``. Call `read`, then `passed` for each event, then `passed_all`."""

    def __init__(self, metastore: Metastore, resume: ResumePoint, status: SourceStatus) -> None:
        self._metastore = metastore
        self._status = status
        self.at = event_id_of(resume.position)
        """The event that was passed last."""
        self.timestamp = resume.timestamp
        """When it was written, in seconds since 1970."""
        self.checksum = resume.checksum
        self.goes_on = False
        """Whether the last read gave all that it asked for: there may be more."""
        self._count = EVENTS_MAX
        """So many events are asked for with one call."""
        self._looked: _Look | None = None
        """The last look at the end of the log, until that is reached."""
        self._lacks_since_s = inf
        """Since when the log gives nothing of what it has after our position."""
        self._look_at_s = time.monotonic()
        self._followed_s = self._followed_before_s = -inf
        """When the log last had something new. -inf: it has failed to answer since, and may be another one."""

    @property
    def position(self) -> str:
        """That of the event that was passed last."""
        return f"{FLAVOR}/{self.at}"

    def read(self) -> list[dict[str, Any]]:
        """The next events. Raises `HiveHistoryLost`, `MetastoreError`, `ThriftError`."""
        self._followed_before_s, self._followed_s = self._followed_s, -inf
        self._look_at_end()
        rows = self._ask()
        if rows and rows[0]["eventId"] > self.at + 1:
            raise HiveHistoryLost(f"the log has no event {self.at + 1}: its first one is {rows[0]['eventId']}")
        if rows:
            self._lacks_since_s = inf
        elif self._looked is not None and self.at < self._looked.end:
            self.lack(self._looked.end)
        if rows and time.monotonic() - self._followed_before_s >= LOOK_S:
            check_event(self._metastore, self.at, self.checksum)
        return rows

    def _ask(self) -> list[dict[str, Any]]:
        """The next events. After a failure half as many are asked for: the answer may have been too large, or too late.

        That this many can be read does not say that more can, so each time it is one more.
        """
        count = min(self._count, EVENTS_MAX)
        try:
            rows = self._metastore.events(self.at, count)
        except (ThriftError, MetastoreTimeout):
            self._count = max(count // 2, 1)
            raise
        self.goes_on = len(rows) >= count
        self._count = count + self.goes_on
        return rows

    def passed(self, row: dict[str, Any], timestamp: int) -> None:
        """An event is to be published; it was written at ``timestamp``."""
        self.at, self.timestamp, self.checksum = row["eventId"], timestamp, checksum_of(row)

    def passed_all(self, rows: list[dict[str, Any]]) -> int | None:
        """All events that were read were passed. As of when all is published, in ms since 1970, if that is news."""
        self._followed_s = time.monotonic() if rows else self._followed_before_s
        looked = self._looked
        if looked is None:
            return None
        if self.at < looked.end:
            self._status.is_behind()
            return None
        self._looked = None
        return looked.as_of_ms

    def _look_at_end(self) -> None:
        """Once in a while, unless the end that was seen last is still ahead. Raises `HiveHistoryLost`."""
        if self._looked is not None or time.monotonic() < self._look_at_s:
            return
        self._look_at_s = time.monotonic() + LOOK_S
        as_of_ms = int(self._status.wall_clock() * 1000)  # before the question
        end = self._metastore.last_event()
        if end < self.at:
            raise HiveHistoryLost(f"the log ends at event {end}, and event {self.at} was published")
        if end == self.at:
            check_event(self._metastore, self.at, self.checksum)  # a log may have been lost, and be as long again
        self._looked = _Look(end, as_of_ms)

    def lack(self, end: int) -> None:
        """The log gave nothing, and ends behind our position. One server may be behind another, but not for long.

        Raises `HiveHistoryLost`.
        """
        now_s = time.monotonic()
        self._lacks_since_s = min(self._lacks_since_s, now_s)
        if now_s - self._lacks_since_s > LOOK_S:
            raise HiveHistoryLost(f"the log's last event is {end}, and what follows event {self.at} was deleted")


def check_event(metastore: Metastore, at: int, checksum: int) -> None:
    """Raises `HiveHistoryLost` if the log has another event ``at`` than that of ``checksum`` (0: unknown).

    One that was cleaned away is no loss.
    """
    rows = metastore.events(at - 1, 1) if at and checksum else []
    if rows and rows[0]["eventId"] == at and checksum_of(rows[0]) != checksum:
        raise HiveHistoryLost(f"event {at} of the log is another one than that which was published")


def event_id_of(position: str) -> int:
    """The event id in ``HiveEvent/<id>``."""
    return int(position.removeprefix(f"{FLAVOR}/"))
