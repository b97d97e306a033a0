"""Operators who ask owners, without a front: how they are, what they know of a table, and for a row.

They also tell an owner what an audit has found, and have one give up what it owns before they start it again.
"""

from __future__ import annotations

import json
from typing import Final

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError, PartitionStatus, Verdict
from lab.simulation.installation.judging import Answer
from lab.simulation.installation.kafka_faults import EVENTS
from lab.simulation.installation.operating.guarding import OPERATOR as OPERATES
from lab.simulation.installation.operating.strangers import Strangers
from lab.simulation.installation.parts import CONSUMERS
from lab.simulation.installation.processes import KAFKA
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ROWS, image_of
from lab.simulation.whole_processes.run import OPERATOR
from lab.simulation.whole_processes.words import EXPLAINS, LOG_IS_ANOTHER
from stream.kafka.locations import LocationsReader
from stream.wire.keys import Layout, row_key
from tokens.errors import FreshetError

COLUMNS: Final = ["id", "version"]
VALUE, ABSENT = 1, 2
DRAINS_IN_S: Final = 20.0
"""How long an operator waits: with nobody to hand over to, in vain."""


class AskingOwners(Strangers):
    """The op of who asks an owner."""

    def op_owner(self, row: int) -> None:
        """An operator asks the owner of a row, as ``freshet status`` and ``freshet inspect`` do."""
        self.kernel.spawn(OPERATOR, lambda: self._ask_owner(row % ROWS))
        self.let(1.0)

    def _ask_owner(self, row: int) -> None:
        key = row_key(ACCOUNTS.name, ACCOUNTS.key(row))
        partition = Layout(self.partitions).partition_of(key)
        try:
            with LocationsReader(KAFKA) as reader:
                owner = reader.owners(KEYSPACE)[partition]
            with OwnerConnection(owner.address, identity=self.credentials.identity(OPERATES)) as connection:
                for each in connection.status(KEYSPACE).partitions:
                    self._judge_status(each)
                self._tell(connection, Verdict(partition, row, equal=bool(row % 2), at_ms=self.kafka.wall_ms))
                described = connection.describe(KEYSPACE, ACCOUNTS.name)
                asked = self.judge.asked("", self.kernel.now)
                [found] = connection.get(KEYSPACE, partition, [key])
        except KeyError:
            return
        except FreshetError as error:
            self._count(f"owner: {error.code}")
            if isinstance(error, OwnerError) and error.code in ("unauthorized", "forbidden", "bad_answer"):
                self.complain(EXPLAINS, f"an operator asks an owner, and is told {error.code}: {error}")
            return
        self._count("owner answered")
        if described.columns and [each.name for each in described.columns] != COLUMNS:
            self.complain(EXPLAINS, f"an owner describes {ACCOUNTS.name} with {described.columns}")
        if found.served and found.kind in (VALUE, ABSENT):
            self.record_commits()
            image = image_of(json.loads(found.image)) if found.image else None
            answer = Answer((ACCOUNTS.name, (row,)), image, "cache", found.freshness, found.why)
            self.judge.answered("", asked, self.kernel.now, [answer])

    def _tell(self, connection: OwnerConnection, verdict: Verdict) -> None:
        """An audit's verdict is shown from then on."""
        for each in connection.tell_verdicts(KEYSPACE, [verdict]).partitions:
            if each.partition == verdict.partition and each.verdict != verdict:
                self.complain(EXPLAINS, f"an owner is told {verdict}, and shows {each.verdict}")

    def op_drain(self, consumer: int) -> None:
        """An operator has a consumer hand over what it owns, waits for that a while, and starts it again."""
        name = CONSUMERS[consumer % len(CONSUMERS)]
        at = {process: port for port, process in self.kernel.network.listening().items()}
        if not self.placed or not self.kernel.is_running(name) or name not in at:
            return
        self.say(f"{name} is drained")
        thread = self.kernel.spawn(OPERATOR, lambda: self._drain(f"127.0.0.1:{at[name]}"))
        self.run_until(lambda: thread.done, DRAINS_IN_S)
        self.kernel.kill(name)
        self.start(name)

    def _drain(self, address: str) -> None:
        """As ``freshet cluster drain``: what has handed over everything gets nothing until it is started again."""
        try:
            with OwnerConnection(address, identity=self.credentials.identity(OPERATES)) as connection:
                connection.drain()
                while (told := connection.status()).partitions or told.draining:
                    self._sleep(0.5)
                self._count("drained")
                self._sleep(1.0)
                if again := connection.status().partitions:
                    self.complain(EXPLAINS, f"a drained consumer owns {[each.partition for each in again]}")
        except FreshetError as error:
            self.say(f"the operator is told: {error}")

    def _judge_status(self, told: PartitionStatus) -> None:
        """It has folded no more than is there, and no more is durable than it has folded."""
        topic = self.kafka.topics.get(EVENTS)
        if topic is None or self.struck & LOG_IS_ANOTHER:
            return
        end = topic.logs[told.partition].end
        is_true = told.committed <= told.offset <= end and (not told.ready or told.offset <= told.position <= end)
        if not is_true:
            what = (
                f"{told.committed} are durable of {told.offset}, it reads at {told.position}, and the topic has {end}"
            )
            self.complain(EXPLAINS, f"the owner of partition {told.partition} says that {what}")
        whole = [table for table, is_whole in told.tables.items() if is_whole]
        if whole and not self.wide:
            self.complain(EXPLAINS, f"{whole} are said to be whole, and nobody backfills")
