"""What a sink waits for: the shards that must be heard of before tables are read, and a front that is away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import monotonic, sleep
from typing import Final, TypeVar

import structlog

from serving.client.errors import TooManyRequests, Unavailable, Unreachable
from serving.sink.errors import SinkError
from tokens import Vector

WARN_S: Final = 5.0
FRONT_WAIT_S: Final = 60.0
"""How long reads are tried again while the front is away, or can't answer now; not the first ones of a process."""
FRONT_PAUSE_S: Final = 0.5
Answer = TypeVar("Answer")
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


def patiently(read: Callable[[], Answer], clock: Callable[[], float] = monotonic) -> Answer:
    """A read that waits for a front, as the stream does. Raises `ClientError`."""
    since, has_warned = clock(), False
    while True:
        try:
            return read()
        except (Unreachable, Unavailable, TooManyRequests) as error:
            away_s, why = clock() - since, error
        if away_s >= FRONT_WAIT_S:
            raise why
        if away_s >= WARN_S and not has_warned:
            has_warned = True
            _log.warning("waiting for a front that answers", code=why.code, error=str(why))
        sleep(FRONT_PAUSE_S)
