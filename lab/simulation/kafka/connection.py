"""A client's way to the brokers: requests and answers take time, get lost, and are made again until a deadline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.log import Refused

T = TypeVar("T")
Settings = Mapping[str, Any]

RETRY_S: Final = 0.02
DOWN_AFTER_S: Final = 0.1
"""A client that has reached no broker for this long says so."""
TRANSIENT: Final = frozenset(
    {
        KafkaError.CONCURRENT_TRANSACTIONS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
    }
)
"""Errors that librdkafka handles by asking again."""


class Unreachable(Exception):
    """No broker has answered in time."""


class Connection:
    """Of one client, and of the process that made it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.process = cluster.waits.current

    def reaches(self, *, coordinator: bool = False) -> bool:
        """Whether a broker would answer now."""
        return self.cluster.reaches(self.process, coordinator=coordinator)

    def ask(
        self,
        request: Callable[[], T],
        deadline: float,
        *,
        coordinator: bool = False,
        transient: frozenset[int] = TRANSIENT,
    ) -> T:
        """What ``request``, done at the brokers, answers. It is done again if it, or its answer, was lost.

        Raises `Unreachable` at ``deadline``, and what the brokers `Refused`, unless it is ``transient``.
        """
        while True:
            if not self.cluster.wait(lambda: self.reaches(coordinator=coordinator), deadline):
                raise Unreachable
            self._travel(deadline)
            if self.reaches(coordinator=coordinator):
                try:
                    answer = request()
                except Refused as refused:
                    if refused.code not in transient:
                        self._travel(deadline)
                        raise
                else:
                    if self._arrives(deadline):
                        return answer
            self._pause(deadline)

    def _travel(self, deadline: float) -> None:
        """The time that a request or an answer takes. Raises `Unreachable` if it is too late then."""
        arrives_at = self.cluster.now + self.cluster.latency_s()
        self.cluster.wait(lambda: False, min(arrives_at, deadline))
        if self.cluster.now < arrives_at:
            raise Unreachable

    def _arrives(self, deadline: float) -> bool:
        lost = self.cluster.answers_to_lose
        if lost.get(self.process, 0) > 0:
            lost[self.process] -= 1
            return False
        self._travel(deadline)
        return self.reaches()

    def _pause(self, deadline: float) -> None:
        again_at = self.cluster.now + RETRY_S
        if deadline < again_at:
            self.cluster.wait(lambda: False, deadline)
            raise Unreachable
        self.cluster.wait(lambda: False, again_at)


def failure(code: int, reason: str = "", *, retriable: bool = False, fatal: bool = False) -> KafkaException:
    """The exception that confluent_kafka raises for an error; without a ``reason`` with librdkafka's own words."""
    words = reason or KafkaError(code).str()
    return KafkaException(KafkaError(code, words, fatal=fatal, retriable=retriable))


def seconds(settings: Settings, name: str, default_ms: float) -> float:
    """A setting in milliseconds, as seconds."""
    return float(settings.get(name, default_ms)) / 1000
