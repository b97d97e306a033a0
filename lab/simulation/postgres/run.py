"""One history: a PostgreSQL, a connector that reads it, a source that reads the connector, and who reads the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.request import urlopen

import psycopg

from lab.simulation.connectors import captured
from lab.simulation.connectors.captured import (
    RECOVERS,
    ROWS,
    SETTLES_IN_S,
    SHARD,
    SOURCES,
    SPILL_BYTES,
    CapturedRun,
    partition_of,
)
from lab.simulation.connectors.connect import NAME, PREFIX, URL
from lab.simulation.connectors.judging import Truth
from lab.simulation.engine import Outcome
from lab.simulation.installation.processes import KAFKA
from lab.simulation.kernel.substitution import Twins
from lab.simulation.postgres.connector import PostgresWorker
from lab.simulation.postgres.reading import Reads
from lab.simulation.postgres.server import ALTERS, SimulatedPostgres, Transaction
from lab.simulation.postgres.sessions import Driver
from lab.simulation.postgres.tables import ALTERATIONS, GOODS, PARTS, Row, goods, parts
from lab.simulation.whole_processes.run import PAUSES_S, Bound
from stream.sources.debezium import source as debezium
from stream.sources.debezium.connector import KafkaConnect
from stream.sources.debezium.source import ConnectorOptions
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.connection import ConnectionSettings
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import SourceOptions
from stream.sources.postgres import chunks, connection
from stream.sources.postgres.snapshot import PostgresSnapshotReader
from stream.sources.postgres.source import PostgresSource

SHAPE: Final = 6
"""Integers in the first op."""
SERVER: Final = ConnectionSettings("postgres", 5432, user="freshet", database="shop", product="PostgreSQL")
WRITES: Final = 8
READS: Final = 5
LAGS: Final[Sequence[Sequence[float]]] = ((0.0,), (0.0, 0.02), (0.0, 0.4, 3.0))
"""How long a commit is not seen that is logged: one of these."""
Step = tuple[str, tuple[Any, ...], Callable[[Row | None], Row | None]]
"""Table, key, and what becomes of the row."""


class PostgresRun(CapturedRun):
    """A server, a connector, a source, and readers of the server."""

    server: SimulatedPostgres
    refusals = (psycopg.Error,)

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the scheduler's seed; 1 for topics of two partitions, little memory, images of before, no ends.

        With 1 as the last one tables are published from the beginning.
        """
        seed, partitions, self._lean, self._before, endless, fills = shape
        super().__init__(seed, outcome, trace)
        self.states = STATES
        self.server = SimulatedPostgres(self.kernel)
        self._tells_ends, self._fills = endless % 2 == 0, fills % 2 == 1
        self.worker = PostgresWorker(
            self.kernel, self.kafka, self.server, 1 + partitions % 2, tells_ends=self._tells_ends
        )
        self._version = 0
        self._reads: Reads | None = None

    def twins(self) -> Twins:
        """See `WholeProcesses.twins`."""
        driver = Driver(self.server)
        return {connection._session_class: lambda: driver, urlopen: self.worker.answer}

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        return [(debezium, "CHECK_EVERY_S", 2.0), (chunks, "ROWS_MAX", 3)]

    def begin(self) -> None:
        """Makes the tables, and starts the connector and a source."""
        for definition in (GOODS, PARTS):
            self.server.create(definition)
        for row in range(2):
            self._in_background("the first rows", partial(self._write, [self._put_goods(row), self._put_parts(row)]))
        self.run_until(lambda: not self.under_way, SETTLES_IN_S)
        self.start(NAME)
        self.start(SOURCES[0])

    def _start_source(self, name: str) -> None:
        """``freshet source debezium`` with ``server = "postgres"``."""
        options = SourceOptions(
            SERVER,
            SHARD,
            TableFilter(("shop",)),
            spill_bytes=SPILL_BYTES[self._lean % 2],
            before_images=bool(self._before % 2),
            backfill=BackfillOptions(TableFilter(("shop",))) if self._fills else None,
        )
        source = PostgresSource(options, ConnectorOptions(PREFIX, KafkaConnect(URL), KAFKA), self.new_publisher)
        self._run_source(name, source)

    # --- applications ---

    def _put_goods(self, row: int) -> Step:
        self._version += 1
        made = goods(row, self._version)
        return GOODS.name, (row,), lambda _: made

    def _put_parts(self, number: int) -> Step:
        made = parts(number, self._version)
        return PARTS.name, ("x", number), lambda _: made

    def _write(
        self, steps: Sequence[Step], *, hold_s: float = 0.0, ends: str = "commit", empties: bool = False
    ) -> None:
        server = self.server
        transaction = server.begin()
        try:
            if empties:
                server.empty(transaction, PARTS.name)
            for table, key, make in steps:
                if table == PARTS.name or not empties:  # else two could wait for each other
                    server.put(transaction, table, key, make)
            if ends == "prepare":
                server.prepare(transaction)
            self.kernel.wait(lambda: False, hold_s)
            if ends == "roll back":
                server.roll_back(transaction)
            else:
                self._commit(transaction)
        except psycopg.Error:
            if transaction.life:
                server.roll_back(transaction)
                raise
            self.kernel.wait(lambda: not server.down)  # what was prepared ends some time
            self._commit(transaction)

    def _commit(self, transaction: Transaction) -> None:
        self.server.commit(transaction)
        self.say(f"transaction {transaction.xid} is seen")

    def op_write(self, row: int, what: int, hold: int, pause: int) -> None:
        """The application writes: rows of one table or both; it deletes, moves a key, empties a table, or stops."""
        row %= ROWS
        put, other = self._put_goods(row), self._put_parts(row)
        version = self._version
        steps: Sequence[Step] = (
            [put],
            [put, other],
            [(GOODS.name, (row,), lambda _: None), other],
            [(PARTS.name, ("x", row), lambda now: now and {**now, "b": row + ROWS, "version": version})],
            [*(self._put_goods(each) for each in range(ROWS)), *(self._put_parts(each) for each in range(ROWS))],
            [put],
            [put, other],
            [(GOODS.name, (row,), lambda now: now and {**now, "version": version << 40})],
        )[what % WRITES]
        ends = {5: "roll back", 6: "prepare"}.get(what % WRITES, "commit")
        hold_s = PAUSES_S[hold % len(PAUSES_S)] if hold else 0.0
        self.say(f"a transaction writes {[(table, key) for table, key, _ in steps]}, and then: {ends}")
        empties = what // WRITES % 4 == 3
        work = partial(self._write, steps, hold_s=hold_s, ends=ends, empties=empties)
        self._in_background("a write", work)
        self.pause(pause)

    def op_alter(self, what: int, hold: int, pause: int) -> None:
        """Somebody alters a table, and takes a while before the end."""
        table, alteration = ALTERATIONS[what % len(ALTERATIONS)]
        self.count_fault(alteration.fault)
        self.say(f"{table}: {type(alteration).__name__}")

        def work() -> None:
            transaction = self.server.begin()
            self.server.alter(transaction, table, alteration)
            self.kernel.wait(lambda: False, PAUSES_S[hold % len(PAUSES_S)] if hold else 0.0)
            self._commit(transaction)

        self._in_background("altering a table", work)
        self.pause(pause)

    def op_read(self, row: int, what: int, pause: int) -> None:
        """Somebody reads the server past the cache."""
        if self._reads is None:
            self._reads = Reads(PostgresSnapshotReader(SERVER), self.server.truth, self.complain)
        reads, row = self._reads, row % ROWS
        work: Callable[[], str] = (
            partial(reads.by_key, [row], []),
            partial(reads.by_key, [row, (row + 1) % ROWS], [row]),
            partial(reads.by_key, [row, "no number"], [row + ROWS]),
            partial(reads.in_order, row),
            reads.again,
        )[what % READS]

        def read() -> None:
            found = work()
            self.outcome.answers[found] += 1
            self.say(f"a read: {found}")

        self._in_background("a read", read)
        self.pause(pause)

    # --- faults ---

    def op_server(self, down: int, pause: int) -> None:
        """PostgreSQL crashes, or comes back."""
        self.crash_or_return(self.server, down, pause)

    def op_promote(self, pause: int) -> None:
        """A standby that has everything is promoted."""
        self.count_fault("standby promoted")
        self.say("a standby is promoted")
        self.server.promote()
        self.pause(pause)

    def op_lag(self, commit: int) -> None:
        """Commits are seen later than they are logged, and not in their order."""
        self.count_fault("lag")
        seconds = LAGS[commit % len(LAGS)]
        self.server.commit_s = lambda: self.kernel.rng.choice(seconds)
        self.say(f"commits are seen after {seconds} s")

    def _forget_offsets(self) -> None:
        super()._forget_offsets()
        self.server.has_slot = False

    # --- the end ---

    def _truth(self) -> Truth:
        return self.server.truth

    def finish(self) -> None:
        """All faults end. Then every row that is written is in the topic, as it is."""
        self.kafka.down = False
        self.kafka.answers_to_lose.clear()
        self.server.start()
        self.server.commit_s = lambda: 0.0
        if not self.run_until(lambda: not self.under_way, SETTLES_IN_S):
            self.complain(RECOVERS, f"{self.under_way} transactions and reads have not ended")
        self._settle()

    def _settled(self) -> str:
        """Writes each row of both tables, waits a while, and says what the topic lacks then."""
        for row in range(ROWS):
            self._in_background("a last write", partial(self._write, [self._put_goods(row), self._put_parts(row)]))
            self.let(1.0)  # a source with little memory has no room for all of them at once
        self.let(3.0)
        found, last = self._judge(), len(self.server.history)
        if not found or any(max(each.marked, default=0) < last for each in found):
            return f"the topic is at {[max(each.marked, default=0) for each in found]} of {last}"
        truth = self.server.truth
        for slot in truth.rows(GOODS.name, last) + truth.rows(PARTS.name, last):
            is_written = self._tells_ends and json.loads(slot[1])[-1] < ROWS  # else it may be void for good
            if is_written and not found[partition_of(slot)].known.get(slot):
                return f"{slot} is not told"
        return ""


STATES: Final[Mapping[str, Callable[[PostgresRun], bool]]] = {
    **captured.STATES,
    "table locked": lambda run: any(ALTERS in held.values() for held in run.server.locks.values()),
}
