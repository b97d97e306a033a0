"""The brokers: topics, who reaches them, and what happens by itself as time passes.

Nothing runs in the background. What is due by now is done when somebody asks: first `advance`, then the question.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator, MutableSet
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from confluent_kafka import KafkaError

from lab.simulation.kafka.log import Draft, PartitionLog, Refused
from lab.simulation.kernel.waits import Waits

EPOCH_S: Final = 1_800_000_000
"""Wall-clock seconds at virtual time 0, unless the cluster is told another."""
LATENCY_S: Final = (0.0001, 0.002)
LEADERLESS_S: Final = 0.5
"""Brokers that are back have elected leaders after at most this time."""
ELECTION_S: Final = 0.05
"""A new topic has leaders, and is known, after at most this time."""
DEFAULTS: Final = {
    "cleanup.policy": "delete",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "16777216",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


class Absent(MutableSet[str]):
    """Names of processes; each change is reported when it has happened."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._names: set[str] = set()
        self._changed = changed

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._names))

    def __len__(self) -> int:
        return len(self._names)

    def add(self, value: str) -> None:
        """One more."""
        self._names.add(value)
        self._changed()

    def discard(self, value: str) -> None:
        """One less."""
        self._names.discard(value)
        self._changed()


@dataclass(eq=False)
class Topic:
    """A topic under its own id: one that is made again under the same name has another."""

    name: str
    topic_id: tuple[int, int]
    config: dict[str, str]
    known_at: float
    replicas: int = 1
    logs: list[PartitionLog] = field(default_factory=list)

    def setting(self, name: str) -> str:
        """A configuration of the topic, or the broker's."""
        return self.config.get(name, DEFAULTS[name])

    def check(self, drafts: list[Draft], wall_ms: int) -> list[Draft]:
        """``drafts`` as they may be written, or `Refused`."""
        if sum(draft.size for draft in drafts) > int(self.setting("max.message.bytes")):
            raise Refused(KafkaError.MSG_SIZE_TOO_LARGE)
        if self.setting("message.timestamp.type") == "LogAppendTime":
            return [draft._replace(timestamp_ms=wall_ms) for draft in drafts]
        before = int(self.setting("message.timestamp.before.max.ms"))
        after = int(self.setting("message.timestamp.after.max.ms"))
        if any(not wall_ms - before <= draft.timestamp_ms <= wall_ms + after for draft in drafts):
            raise Refused(KafkaError.INVALID_TIMESTAMP)
        return drafts


class Brokers:
    """Topics and reach; `lab.simulation.kafka.cluster.Cluster` adds the coordinators."""

    def __init__(self, waits: Waits, rng: random.Random, *, epoch_s: float = EPOCH_S) -> None:
        self.waits = waits
        self.rng = rng
        self.cut: MutableSet[str] = Absent(self.changed_reach)
        """Processes that do not reach any broker: cut off, or stopped."""
        self.slow_s = 0.0
        """How much longer a request takes each way."""
        self.behind_s = 0.0
        """How much later another broker than the one that lists topics learns of a new one."""
        self.answers_to_lose: dict[str, int] = {}
        """Process → so many of its next requests are carried out, and their answers are lost."""
        self.topics: dict[str, Topic] = {}
        self._down = False
        self._coordinator_away = False
        self._led_at = 0.0
        self._epoch_s = epoch_s
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count(1)

    # --- time ---

    @property
    def now(self) -> float:
        """Virtual seconds."""
        return self.waits.now

    @property
    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return int((self._epoch_s + self.waits.now) * 1000)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Has ``action`` done in ``delay_s`` seconds."""
        heapq.heappush(self._due, (self.now + delay_s, next(self._numbers), action))

    def advance(self) -> None:
        """Does all that is due."""
        while self._due and self._due[0][0] <= self.waits.now:
            heapq.heappop(self._due)[2]()

    def wait(self, ready: Callable[[], bool], deadline: float) -> bool:
        """Blocks the asking thread until ``ready()`` or ``deadline``; returns ``ready()``."""
        while True:
            self.advance()
            until = min(deadline, self._due[0][0]) if self._due else deadline
            self.waits.wait(ready, max(until - self.now, 0.0))
            self.advance()
            if ready():
                return True
            if self.now >= deadline:
                return False

    def latency_s(self) -> float:
        """How long a request, or its answer, is on its way."""
        return self.rng.uniform(*LATENCY_S) + self.slow_s

    # --- who reaches whom ---

    @property
    def down(self) -> bool:
        """Whether no broker answers."""
        return self._down

    @down.setter
    def down(self, value: bool) -> None:
        if self._down and not value:
            self._led_at = self.now + self.rng.uniform(0, LEADERLESS_S)
            self.after(self._led_at - self.now, lambda: None)  # who waits for a leader looks again
            for topic in self.topics.values():
                for log in topic.logs:
                    log.elect()
        self._down = value
        self.changed_reach()

    @property
    def coordinator_away(self) -> bool:
        """Whether groups and transactions have no coordinator for now; reading goes on."""
        return self._coordinator_away

    @coordinator_away.setter
    def coordinator_away(self, value: bool) -> None:
        self._coordinator_away = value
        self.changed_reach()

    def reaches(self, process: str, *, coordinator: bool = False) -> bool:
        """Whether a request of ``process`` is answered now."""
        return not self._down and process not in self.cut and not (coordinator and self._coordinator_away)

    def changed_reach(self) -> None:
        """Somebody reaches the brokers again, or no longer."""
        self.advance()

    @property
    def led(self) -> bool:
        """Whether partitions have leaders."""
        return self._led_at <= self.waits.now

    # --- topics ---

    def create(self, name: str, partitions: int, config: dict[str, str], replicas: int = 1) -> Topic:
        """Creates a topic, or `Refused`."""
        if name in self.topics:
            raise Refused(KafkaError.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        identity = self.rng.getrandbits(62), self.rng.getrandbits(62)
        known_at = self.now + self.rng.uniform(0, ELECTION_S)
        topic = Topic(name, identity, config, known_at, replicas, [PartitionLog() for _ in range(partitions)])
        self.topics[name] = topic
        return topic

    def delete(self, name: str) -> None:
        """Deletes a topic, or `Refused`."""
        self.topic(name)
        del self.topics[name]

    def topic(self, name: str) -> Topic:
        """The topic, once all brokers know it, or `Refused`."""
        topic = self.topics.get(name)
        if topic is None or topic.known_at > self.now:
            raise Refused(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return topic

    def log(self, name: str, partition: int) -> PartitionLog:
        """A partition's log, or `Refused`."""
        if not self.led or (name in self.topics and self.topics[name].known_at > self.now):
            raise Refused(KafkaError.LEADER_NOT_AVAILABLE)
        logs = self.topic(name).logs
        if not 0 <= partition < len(logs):
            raise Refused(KafkaError.UNKNOWN_TOPIC_OR_PART)
        return logs[partition]
