"""What goes wrong with Kafka in a history of the installation, beside that it is away."""

from __future__ import annotations

from typing import Final

from lab.simulation.engine import TracedRun
from lab.simulation.installation.processes import KAFKA, KEYSPACE
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.log import Draft
from lab.simulation.kernel.scheduler import Kernel
from stream.kafka.dead_letters import dismiss, retry
from stream.kafka.topics import dead_letter_topic, events_topic, locations_topic
from stream.wire.codec import current_schema
from tokens.errors import FreshetError

OPERATOR: Final = "operator"
EVENTS: Final = events_topic(KAFKA, KEYSPACE)
DEAD_LETTERS: Final = dead_letter_topic(KAFKA, KEYSPACE)
PAUSES_S: Final = (0.05, 0.3, 1.0, 3.0, 12.0, 25.0)
POISONS: Final = (
    b"",
    b"not a record",
    current_schema("RowFrame").header + b"\x02",
    current_schema("Marker").header + b"\x02",
    current_schema("EpochStart").header,
)
"""Values that no publisher writes."""
FAULTS: Final = (
    "coordinator away",
    "Kafka slow",
    "answers lost",
    "tail lost",
    "beginning lost",
    "topic replaced",
    "transaction left open",
    "poison",
    "dead letters' topic gone",
)
OPS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "coordinator": (1, (len(PAUSES_S),)),
    "slow": (1, (3, len(PAUSES_S))),
    "answers": (1, (3, 4)),
    "tail": (1, (2, 12)),
    "beginning": (1, (2, 5)),
    "topic": (1, (len(PAUSES_S),)),
    "stray": (1, (2,)),
    "poison": (2, (2, len(POISONS))),
    "letters topic": (1, (len(PAUSES_S),)),
    "letters": (1, (2,)),
    "compact": (1, ()),
}
"""Op → (weight, how many values each integer has)."""


class KafkaFaults(TracedRun):
    """The ops; a run has the rest."""

    kernel: Kernel
    kafka: Cluster
    partitions: int
    must_write_again: bool = False
    """Something of the events was lost for good: a row is in the cache again once it was written again."""

    def let(self, seconds: float) -> None:
        """Lets the world go on."""
        raise NotImplementedError

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        raise NotImplementedError

    def mend_kafka(self) -> None:
        """Ends every fault that lasts."""
        self.kafka.down = self.kafka.coordinator_away = False
        self.kafka.slow_s = 0.0
        self.kafka.answers_to_lose.clear()

    def _strikes(self, fault: str, what: str) -> None:
        self.count_fault(fault)
        self.say(what)

    def op_coordinator(self, pause: int) -> None:
        """Groups and transactions have no coordinator for a while."""
        self._strikes("coordinator away", "no coordinator answers")
        self.kafka.coordinator_away = True
        self.let(PAUSES_S[pause % len(PAUSES_S)])
        self.kafka.coordinator_away = False

    def op_slow(self, by: int, pause: int) -> None:
        """Requests take long for a while."""
        self.kafka.slow_s = (0.02, 0.3, 2.0)[by % 3]
        self._strikes("Kafka slow", f"each way to Kafka takes {self.kafka.slow_s} s")
        self.let(PAUSES_S[pause % len(PAUSES_S)])
        self.kafka.slow_s = 0.0

    def op_answers(self, process: int, count: int) -> None:
        """Requests of a process are carried out, and their answers are lost."""
        name = ("source", "consumer-0", "consumer-1")[process % 3]
        self._strikes("answers lost", f"{1 + count} answers to {name} are lost")
        self.kafka.answers_to_lose[name] = 1 + count
        self.let(1.0)

    def op_tail(self, partition: int, lost: int) -> None:
        """A leader is elected that lacks the end of a partition."""
        if EVENTS in self.kafka.topics:
            number = partition % self.partitions
            self._strikes("tail lost", f"partition {number} loses its last {1 + lost} offsets")
            self.kafka.elect_uncleanly(EVENTS, number, 1 + lost, tears=False)
            self.must_write_again = True
            self.let(1.0)

    def op_beginning(self, partition: int, quarters: int) -> None:
        """Retention deletes the first part of a partition."""
        if EVENTS in self.kafka.topics:
            number = partition % self.partitions
            before = self.kafka.topics[EVENTS].logs[number].end * (1 + quarters % 5) // 6
            self._strikes("beginning lost", f"partition {number} begins at {before}")
            self.kafka.lose_beginning(EVENTS, number, before)
            self.must_write_again = True

    def op_topic(self, pause: int) -> None:
        """Somebody deletes the events and makes their topic anew."""
        if EVENTS in self.kafka.topics:
            self._strikes("topic replaced", f"{EVENTS} is deleted and made anew")
            self.kafka.replace(EVENTS)
            self.must_write_again = True
            self.let(PAUSES_S[pause % len(PAUSES_S)])

    def op_stray(self, partition: int) -> None:
        """Some publisher dies in the middle of a transaction."""
        if EVENTS in self.kafka.topics and not self.kafka.down:
            number = partition % self.partitions
            self._strikes("transaction left open", f"a transaction in partition {number} is left open")
            self.kafka.leave_open(EVENTS, number, b"junk")

    def op_poison(self, partition: int, kind: int) -> None:
        """Somebody writes what is no record of Freshet's."""
        if EVENTS in self.kafka.topics and not self.kafka.down:
            number, value = partition % self.partitions, POISONS[kind % len(POISONS)]
            self._strikes("poison", f"poison in partition {number}: {value!r}")
            draft = Draft(None, value, (), self.kafka.wall_ms)
            self.kafka.topics[EVENTS].logs[number].append([draft])
            self.must_write_again = True
            self.let(1.0)

    def op_letters_topic(self, pause: int) -> None:
        """The topic of the dead letters is gone for a while."""
        topic = self.kafka.topics.pop(DEAD_LETTERS, None)
        if topic is not None:
            self._strikes("dead letters' topic gone", f"{DEAD_LETTERS} is gone")
            self.op_poison(pause, pause)
            self.let(PAUSES_S[pause % len(PAUSES_S)])
            self.kafka.topics[DEAD_LETTERS] = topic

    def op_letters(self, how: int) -> None:
        """An operator has the dead letters' messages put back, or dismisses them."""

        def work() -> None:
            try:
                (retry if how % 2 else dismiss)(KAFKA, KEYSPACE)
            except FreshetError as error:
                self.say(f"the operator is told: {error}")

        self.say("an operator looks after the dead letters")
        self.kernel.spawn(OPERATOR, work)
        self.let(1.0)

    def op_compact(self) -> None:
        """The cleaner has gone through the announcements."""
        if locations_topic(KAFKA) in self.kafka.topics:
            self.say("the announcements are compacted")
            self.kafka.compact(locations_topic(KAFKA))
