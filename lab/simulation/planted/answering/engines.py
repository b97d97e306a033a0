"""Planted bugs of the Thrift front: what engines are shown from the cache."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, warehouse
from serving.thrift.answering import Answers
from serving.thrift.log_end import LogEnd

BUGS: Final = (
    warehouse(
        "list_without_id_is_enough",
        "a list without an id is not demanded as of the end of the log, so that the name may be another table's",
        Replace(Answers._prove, "await self._move(session)", "1 << 60"),
    ),
    warehouse(
        "end_of_the_log_from_before_the_call",
        "a call takes the end of the log that an earlier one has asked for",
        Replace(LogEnd.now, "self._next is None", "self._next is None and self._running is None"),
        Replace(LogEnd.now, "await asyncio.shield(self._next)", "await asyncio.shield(self._next or self._running)"),
    ),
)
