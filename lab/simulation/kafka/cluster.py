"""A simulated Kafka cluster: brokers and coordinators, and what can go wrong with them."""

from __future__ import annotations

import random
from typing import Final

from lab.simulation.kafka.brokers import EPOCH_S, Brokers
from lab.simulation.kafka.groups import Group
from lab.simulation.kafka.log import Draft
from lab.simulation.kafka.transactions import Transactions
from lab.simulation.kernel.waits import Waits

STRAY_TIMEOUT_S: Final = 10.0


class Cluster(Brokers):
    """What clients talk to, through `lab.simulation.kafka.connection.Connection`.

    Also out of reach: ``cut``, ``down``, ``coordinator_away``, ``slow_s``, ``answers_to_lose``.
    """

    def __init__(self, waits: Waits, rng: random.Random, *, epoch_s: float = EPOCH_S) -> None:
        self.transactions = Transactions(self)
        self.groups: dict[str, Group] = {}
        super().__init__(waits, rng, epoch_s=epoch_s)

    def group(self, name: str) -> Group:
        """The consumer group of this name."""
        if name not in self.groups:
            self.groups[name] = Group(self, name)
        return self.groups[name]

    def forget(self, process: str) -> None:
        """The process is dead: its connections are closed, and nobody speaks for it any more."""
        for group in self.groups.values():
            group.forget(process)

    def changed_reach(self) -> None:
        """Somebody reaches the brokers again, or no longer."""
        super().changed_reach()
        for group in self.groups.values():
            group.changed_reach()

    # --- faults ---

    def elect_uncleanly(self, topic: str, partition: int, lost: int, *, tears: bool = True) -> None:
        """The next leader of the partition lacks its last ``lost`` offsets.

        ``tears`` False: no transaction is torn, so some more may be lost. One that is torn hangs: its coordinator takes
        it for ended, so the partition can't be read further until its producer ends another one there.
        """
        log = self.topics[topic].logs[partition]
        end = log.end - lost
        log.truncate(end if tears else log.whole_until(end))

    def lose_beginning(self, topic: str, partition: int, before: int) -> None:
        """Retention has deleted what is before this offset."""
        self.topics[topic].logs[partition].delete_before(before)

    def replace(self, topic: str) -> None:
        """Somebody deletes the topic, and makes it again with the same settings."""
        old = self.topics.pop(topic)
        self.create(topic, len(old.logs), old.config, old.replicas)

    def leave_open(self, topic: str, partition: int, value: bytes) -> None:
        """Some publisher dies in a transaction: nobody ends it before the coordinator does."""
        name = f"stray-{self.rng.getrandbits(32):08x}"
        producer_id, epoch = self.transactions.initialize(name, STRAY_TIMEOUT_S)
        self.transactions.add(name, (producer_id, epoch), {(topic, partition)})
        draft = Draft(None, value, (), self.wall_ms)
        place = self.log(topic, partition)
        place.append([draft], producer_id=producer_id, producer_epoch=epoch, sequence=0, is_transactional=True)

    def compact(self, topic: str) -> None:
        """The cleaner has gone through a compacted topic."""
        for log in self.topics[topic].logs:
            log.compact()
