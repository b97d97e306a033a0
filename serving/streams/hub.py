"""One reader of Kafka for all streams of a keyspace that have caught up: a thread that fills a `Ring`."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from time import monotonic
from typing import Final

import structlog

from serving.streams.ring import BYTES_MAX, Ring
from stream.changes.checkpoint import Checkpoint
from stream.changes.following import Follower
from stream.changes.starting import start_and_end, start_at_checkpoint
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import check_topics
from tokens.errors import FreshetError

IDLE_S: Final = 30.0
"""How long it goes on without readers."""
RETRY_S: Final = 1.0
POLL_S: Final = 0.2
_REPLACED: Final = frozenset({"checkpoint_lost", "stream_too_old", "offset_out_of_range"})

_log = structlog.get_logger(__name__)


class Hub:
    """The shared reader of one keyspace. Its methods belong to one event loop; its thread to itself.

    ``moved`` is set, and replaced by a new event, whenever the ring has more.
    """

    def __init__(
        self, kafka: KafkaCluster, keyspace: str, loop: asyncio.AbstractEventLoop, ring_bytes_max: int = BYTES_MAX
    ) -> None:
        self._kafka, self._keyspace, self._loop = kafka, keyspace, loop
        self._ring_bytes_max = ring_bytes_max
        self.ring: Ring | None = None
        """None until it has begun, and after the topic was replaced."""
        self.failure: FreshetError | None = None
        """Why it has not begun."""
        self.moved = asyncio.Event()
        self.readers = 0
        self._used_at = monotonic()
        self._stops = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to read, unless it does already."""
        self._used_at = monotonic()
        if self._thread is None or not self._thread.is_alive():
            self._stops.clear()
            self._thread = threading.Thread(target=self._run, name=f"stream-{self._keyspace}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread, and waits for it."""
        self._stops.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._keep_following()
        finally:  # whatever ended it: a reader must not wait for a ring that nobody fills
            self.ring = None
            self._wake()

    def _keep_following(self) -> None:
        checkpoint: Checkpoint | None = None
        while not self._stops.is_set():
            try:
                self._follow(checkpoint)
                return
            except FreshetError as error:
                self.failure = error
                _log.warning("the change stream pauses", keyspace=self._keyspace, code=error.code, error=str(error))
                ring = self.ring
                checkpoint = ring.end()[1].checkpoint if ring is not None and error.code not in _REPLACED else None
                if checkpoint is None:
                    if ring is not None:
                        ring.lost = error
                    self.ring = None
                self._wake()
                self._stops.wait(RETRY_S)

    def _follow(self, checkpoint: Checkpoint | None) -> None:
        """Until it is stopped, or has had no readers for a while. Goes on at ``checkpoint``, else begins now."""
        topic = check_topics(self._kafka, self._keyspace)
        if checkpoint is not None:  # it may be of a topic that was replaced meanwhile
            start, begun = start_at_checkpoint(self._kafka, self._keyspace, topic, checkpoint), checkpoint.offsets
        else:
            start, begun = start_and_end(self._kafka, self._keyspace, topic)
        with ExitStack() as stack:
            follower = stack.enter_context(Follower(self._kafka, topic, start))
            if self.ring is None:
                self.ring = Ring(start.checkpoint, begun, self._ring_bytes_max)
            ring, self.failure = self.ring, None
            self._wake()
            while not self._stops.is_set() and not self._is_idle():
                if items := follower.poll(POLL_S):
                    ring.append(items)
                    self._wake()

    def _is_idle(self) -> bool:
        if self.readers:
            self._used_at = monotonic()
        return monotonic() - self._used_at > IDLE_S

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._set_moved)

    def _set_moved(self) -> None:
        self.moved.set()
        self.moved = asyncio.Event()
