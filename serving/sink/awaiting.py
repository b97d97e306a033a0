"""The shards that must be heard of before tables are read, or before a copy counts as caught up."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic
from typing import Final

import structlog

from serving.sink.errors import SinkError
from tokens import Vector

WARN_S: Final = 5.0
_log = structlog.get_logger(__name__)


class AwaitedShards:
    """``wait_s``: how long a shard may be silent. Nothing can be said of a copy that lacks one."""

    def __init__(self, shards: Iterable[str], wait_s: float, clock: Callable[[], float] = monotonic) -> None:
        self._left, self._wait_s, self._clock = set(shards), wait_s, clock
        self._since: float | None = None
        self._has_warned = False

    def are_in(self, reached: Vector) -> bool:
        """Whether all have been heard of, ``reached`` included.

        Raises `SinkError` ``sink_shard_silent``, which names those that are missing.
        """
        self._left -= set(reached)
        if not self._left:
            return True
        self._since = self._clock() if self._since is None else self._since
        waited_s, names = self._clock() - self._since, ", ".join(sorted(self._left))
        if waited_s >= self._wait_s:
            raise SinkError(
                f"nothing was heard of {names} for {self._wait_s:g} s, so the copy can't be known to be complete",
                hint="start the source of each shard, or take out of the settings what is none",
                code="sink_shard_silent",
            )
        if waited_s >= WARN_S and not self._has_warned:
            self._has_warned = True
            _log.warning("waiting for a shard's first watermark", shards=names)
        return False
