"""Finds the topics of the configured keyspaces, waits for those that are missing, and notices a replaced one.

It also looks for partitions that nobody has, and has the group assign them.

A keyspace is consumed once its own topic exists; a source that has not started yet does not delay the others.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Final

import structlog
from confluent_kafka import KafkaException

from stream.kafka.connection import KafkaCluster, KafkaRequestError, KafkaUnreachable
from stream.kafka.topics import Topic, TopicError, check_topics, describe_topic
from stream.kafka.unassigned import rebalance, unassigned
from tokens.errors import FreshetError

log = structlog.get_logger(__name__)

ASK_EVERY_S: Final = 2.0
"""For topics that are missing."""
CHECK_EVERY_S: Final = 10.0
"""Whether the topics that were found still have their id. librdkafka goes on in a topic that was deleted and made anew
if it did not happen to look in between: it knows topics by name."""


class TopicSearch:
    """Used by the fold thread. `find_more` asks in another thread, because an unreachable broker takes seconds."""

    def __init__(self, kafka: KafkaCluster, group: str, keyspaces: Sequence[str]) -> None:
        self._kafka = kafka
        self._group = group
        self._keyspaces = tuple(keyspaces)
        self._reported: dict[str, str] = {}
        """Keyspace → code of the last error logged for it."""
        self._asking: threading.Thread | None = None
        self._answer: dict[str, Topic] = {}
        self._next_ask_at = self._next_check_at = 0.0
        self._unassigned: frozenset[tuple[str, int]] = frozenset()
        """Partitions (topic, number) that nobody had at the last check."""
        self.replaced: frozenset[str] = frozenset()
        """Names of topics that have another id than the one that was found."""
        self.found: dict[str, tuple[str, Topic]] = {}
        """Topic name → keyspace and topic."""

    @property
    def missing(self) -> tuple[str, ...]:
        """The keyspaces whose topic has not been found yet."""
        with_topic = {keyspace for keyspace, _ in self.found.values()}
        return tuple(name for name in self._keyspaces if name not in with_topic)

    def begin(self, now: float) -> None:
        """Looks for all topics anew; logs each missing one once. Raises `KafkaUnreachable`."""
        self.found, self.replaced = {}, frozenset()
        self._add(self._ask(self._keyspaces))
        self._next_ask_at, self._next_check_at = now + ASK_EVERY_S, now + CHECK_EVERY_S

    def find_more(self, now: float) -> bool:
        """Whether a missing topic has been found; also sets ``replaced``. ``now`` is of the monotonic clock."""
        if self._asking is None:
            missing = self.missing if now >= self._next_ask_at else ()
            known = dict(self.found) if now >= self._next_check_at else {}
            if missing or known:
                self._next_check_at = now + CHECK_EVERY_S if known else self._next_check_at
                asked = (missing, known)
                self._asking = threading.Thread(target=self._ask_in_thread, args=asked, name="topics", daemon=True)
                self._asking.start()
            return False
        if self._asking.is_alive():
            return False
        self._asking, self._next_ask_at = None, now + ASK_EVERY_S
        answer, self._answer = self._answer, {}
        self._add(answer)
        return bool(answer)

    def _add(self, answer: dict[str, Topic]) -> None:
        for keyspace, topic in answer.items():
            self.found[topic.name] = (keyspace, topic)
            if self._reported.pop(keyspace, None):
                log.info("found the keyspace's topic", keyspace=keyspace, topic=topic.name)

    def _ask_in_thread(self, keyspaces: Sequence[str], known: Mapping[str, tuple[str, Topic]]) -> None:
        try:
            self._answer = self._ask(keyspaces)
            replaced = (
                name
                for name, (_, topic) in known.items()
                if describe_topic(self._kafka, name).topic_id != topic.topic_id
            )
            self.replaced = frozenset(replaced)
            if known:
                self._assign_what_nobody_has(known)
        except (FreshetError, KafkaException):
            return  # the fold thread meets the same error and logs it

    def _assign_what_nobody_has(self, known: Mapping[str, tuple[str, Topic]]) -> None:
        """What nobody has at two checks in a row stays nobody's: a rebalance is over sooner."""
        counts = {name: topic.partitions for name, (_, topic) in known.items()}
        found = unassigned(self._kafka, self._group, counts)
        if stuck := sorted(found & self._unassigned):
            log.warning("partitions are assigned to nobody: the group has to share them out anew", partitions=stuck)
            rebalance(self._kafka, self._group)
            found = frozenset()
        self._unassigned = found

    def _ask(self, keyspaces: Sequence[str]) -> dict[str, Topic]:
        """The valid topics of ``keyspaces``; logs why others have none. Raises `KafkaUnreachable`."""
        fit: dict[str, Topic] = {}
        for keyspace in keyspaces:
            try:
                fit[keyspace] = check_topics(self._kafka, keyspace)
            except KafkaUnreachable:
                raise
            except (TopicError, KafkaRequestError) as error:
                if self._reported.get(keyspace) != error.code:
                    self._reported[keyspace] = error.code
                    log.warning(
                        "waiting for the keyspace's topic",
                        keyspace=keyspace,
                        code=error.code,
                        reason=str(error),
                        hint=error.hint,
                    )
        return fit
