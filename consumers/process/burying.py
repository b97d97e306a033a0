"""Sends dead letters, a thread for each keyspace: a dead-letter topic that is away must not stop the fold thread.

A fold thread that does not poll would be expelled from its group, with all its partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final

import structlog

from stream.kafka.connection import KafkaCluster, KafkaUnreachable
from stream.kafka.dead_letters import DeadLetter, DeadLetterPublisher

log = structlog.get_logger(__name__)

RETRY_S: Final = 2.0
_Burial = tuple[Sequence[DeadLetter], Future[None]]


class Burials:
    """`bury` returns at once. Letters are sent again until they are in their topic, or until `close`."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self._kafka = kafka
        self._closing = Event()
        self._waiting: dict[str, SimpleQueue[_Burial]] = {}

    def bury(self, keyspace: str, letters: Sequence[DeadLetter]) -> Future[None]:
        """Done when all ``letters`` are in their topic. It fails only after `close`."""
        waiting = self._waiting.get(keyspace)
        if waiting is None:
            waiting = self._waiting[keyspace] = SimpleQueue()
            Thread(target=self._work, args=(keyspace, waiting), name=f"bury {keyspace}", daemon=True).start()
        done: Future[None] = Future()
        waiting.put((letters, done))
        return done

    def close(self) -> None:
        """Gives up what is not sent: its messages are folded again after the next start."""
        self._closing.set()

    def _work(self, keyspace: str, waiting: SimpleQueue[_Burial]) -> None:
        publisher: DeadLetterPublisher | None = None
        reported = ""
        while not self._closing.is_set():
            letters, done = waiting.get()
            while not done.done():
                try:
                    publisher = publisher or DeadLetterPublisher(self._kafka, keyspace)
                    for letter in letters:
                        publisher.send(letter)
                    publisher.flush()
                except Exception as error:  # noqa: BLE001 - nothing may end the thread: its partitions would wait for ever
                    publisher = None  # it may have lost letters, so a new one sends all of them again
                    code = getattr(error, "code", type(error).__name__)
                    if code != reported:
                        reported = code
                        log.warning("dead letters can't be written, retrying", code=code, reason=str(error))
                    if self._closing.wait(RETRY_S):
                        done.set_exception(KafkaUnreachable("stopped before the dead letters were written"))
                else:
                    reported = ""
                    done.set_result(None)
