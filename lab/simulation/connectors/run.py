"""One history: a server, a connector that reads it, a source that reads the connector; what befalls them; the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.request import urlopen

import pymysql

from lab.simulation.connectors import tracking
from lab.simulation.connectors.captured import (
    KEYSPACE,
    ROWS,
    SETTLES_IN_S,
    SHARD,
    SOURCES,
    SPILL_BYTES,
    CapturedRun,
    partition_of,
)
from lab.simulation.connectors.committed import Truth
from lab.simulation.connectors.connect import NAME, PREFIX, URL, Worker
from lab.simulation.connectors.tables import CHANGES, CONFIGURATIONS, CREATE, MOMENT, PUT_GOODS, PUT_PARTS
from lab.simulation.engine import Outcome
from lab.simulation.installation.faults import PLACES
from lab.simulation.installation.processes import KAFKA, PRIMARY
from lab.simulation.kernel.substitution import Twins
from lab.simulation.mariadb.connections import twins as mariadb_twins
from lab.simulation.mariadb.server import MYSQL, Break, SimulatedServer
from lab.simulation.whole_processes.run import CLIENT, PAUSES_S, Bound
from stream.sources.debezium import source as debezium
from stream.sources.debezium.connector import KafkaConnect
from stream.sources.debezium.source import ConnectorOptions, DebeziumSource
from stream.sources.mariadb.backfill import chunks
from stream.sources.mariadb.backfill.run import BackfillOptions
from stream.sources.mariadb.schema import TableFilter
from stream.sources.mariadb.source import SourceOptions
from tokens.errors import FreshetError

SHAPE: Final = 6
"""Integers in the first op."""
FIRST_SERVER_ID: Final = 4_380
WRITES: Final = 6
HELD: Final = len(PAUSES_S)
HELD_S: Final = 6.0


class ConnectorsRun(CapturedRun):
    """A server, a connector that reads it, and a source that reads the connector."""

    server: SimulatedServer
    refusals = (pymysql.err.Error, OSError)

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the scheduler's seed; 1 for a backfill, topics of two partitions, little memory, a MySQL, a
        connector that does not tell where transactions end.
        """
        seed, fills, partitions, self._lean, mysql, endless = shape
        super().__init__(seed, outcome, trace)
        self.server = SimulatedServer(self.kernel)
        self.server.behaviour.zone_s = 3_600
        self._settings = PRIMARY
        if mysql % 2:
            self.server.variables |= MYSQL
            self._settings = replace(PRIMARY, product="MySQL")
        self._fills = fills % 2 == 1 and not mysql % 2  # the model knows no reads of chunks as MySQL has them
        self._tells_ends = endless % 2 == 0
        self.worker = Worker(self.kernel, self.kafka, self.server, 1 + partitions % 2, tells_ends=self._tells_ends)
        self._mariadb = mariadb_twins({(PRIMARY.host, PRIMARY.port): self.server}, self.kernel)
        self.driver: Any = self._mariadb[pymysql]
        self.truth = Truth()
        self._version = 0
        self._asks_for_an_epoch = False

    def twins(self) -> Twins:
        """See `WholeProcesses.twins`."""
        return {**self._mariadb, urlopen: self.worker.answer}

    def bounds(self) -> Sequence[Bound]:
        """See `WholeProcesses.bounds`."""
        return [(chunks, "ROWS_MAX", 3), (debezium, "CHECK_EVERY_S", 2.0)]

    def begin(self) -> None:
        """Makes the databases, and starts the connector and a source."""
        self._execute(("CREATE DATABASE shop", "CREATE DATABASE elsewhere"), "")
        self._execute(CREATE)
        for row in range(2):
            self._write_now([(PUT_GOODS, self._goods(row)), (PUT_PARTS, (row, 0))])
        self.start(NAME)
        self.start(SOURCES[0])

    def _start_source(self, name: str) -> None:
        """``freshet source debezium``."""
        options = SourceOptions(
            self._settings,
            SHARD,
            TableFilter((KEYSPACE,)),
            server_id=FIRST_SERVER_ID + SOURCES.index(name),
            spill_bytes=SPILL_BYTES[self._lean % 2],
            new_epoch=self._asks_for_an_epoch,
        )
        self._asks_for_an_epoch = False
        if self._fills:
            options = replace(options, backfill=BackfillOptions(TableFilter((KEYSPACE,))))
        source = DebeziumSource(options, ConnectorOptions(PREFIX, KafkaConnect(URL), KAFKA), self.new_publisher)
        self._run_source(name, source)

    def gave_up(self, name: str, error: FreshetError) -> None:
        """See `WholeProcesses.gave_up`. The next source does what the error's hint says."""
        self._asks_for_an_epoch |= error.code == "debezium_xa_transaction"
        super().gave_up(name, error)

    # --- the application ---

    def _goods(self, row: int) -> tuple[object, ...]:
        self._version += 1
        odd = (None, MOMENT)[self._version % 5 > 0]
        return row, self._version + (1 << 63) * (self._version % 2), f"n{self._version}", "-7.25", odd, odd, odd

    def _write_now(self, statements: Sequence[tracking.Statement], *, commits: bool = True) -> None:
        way = self._version
        flags = tracking.flags(way) if self.server.is_mysql else 0
        connection = self.driver.connect(**PRIMARY.pymysql_arguments(), database=KEYSPACE, client_flag=flags)
        if self.server.is_mysql:
            tracking.write(connection, statements, way, self.complain, commits=commits)
            return
        with connection.cursor() as cursor:
            for sql, values in statements:
                cursor.execute(sql, values)
        if commits:
            connection.commit()
        connection.close()

    def _execute(self, statements: Sequence[str], database: str = KEYSPACE) -> None:
        connection = self.driver.connect(**PRIMARY.pymysql_arguments(), database=database or None, autocommit=True)
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.close()

    def op_write(self, row: int, what: int, pause: int) -> None:
        """The application writes a transaction: one row, several, of both tables; it deletes, moves a key, or stops."""
        row %= ROWS
        put = (PUT_GOODS, self._goods(row))
        both = [put, (PUT_PARTS, (row, self._version))]
        statements: Sequence[tracking.Statement] = (
            [put],
            both,
            [("DELETE FROM goods WHERE id = %s", (row,)), (PUT_PARTS, (row, self._version))],
            [("UPDATE parts SET b = %s, version = version + 1 WHERE b = %s", (row + ROWS, row))],
            [*both, *((PUT_GOODS, self._goods(each)) for each in range(ROWS)), (PUT_GOODS, self._goods(row))],
            [put],
        )[what % WRITES]
        self.say(f"a transaction of {len(statements)} statements, the first {statements[0]}")
        self._in_background("a write", lambda: self._write_now(statements, commits=what % WRITES < WRITES - 1))
        self.pause(pause)

    def op_change(self, what: int, pause: int) -> None:
        """Somebody changes a table."""
        fault, statements = CHANGES[what % len(CHANGES)]
        self.count_fault(fault)
        self.say("; ".join(statements))
        self._in_background("changing a table", lambda: self._execute(statements))
        self.pause(pause)

    def op_xa(self, row: int, commits: int, pause: int) -> None:
        """Another application writes a row in an XA transaction, and ends it a while after it was prepared.

        With `HELD` added to the pause it is prepared for longer, while the history goes on.
        """
        self.count_fault("XA transaction")
        number = len(self.server.history)
        end = f"XA {'COMMIT' if commits % 2 else 'ROLLBACK'} 'x{number}'"
        self.say(f"XA transaction {number}, then {end}")
        put, values = PUT_GOODS, self._goods(row % ROWS)

        def work() -> None:
            connection = self.driver.connect(**PRIMARY.pymysql_arguments(), database=KEYSPACE)
            with connection.cursor() as cursor:
                cursor.execute(f"XA START 'x{number}'")
                cursor.execute(put, values)
                for word in (f"XA END 'x{number}'", f"XA PREPARE 'x{number}'"):
                    cursor.execute(word)
                self.kernel.wait(lambda: False, PAUSES_S[pause % HELD] + HELD_S * (pause // HELD))
                cursor.execute(end)
            connection.close()

        self._in_background("an XA transaction", work)
        self.pause(pause)

    def op_grant(self) -> None:
        """A statement is logged of which the connector tells nothing."""
        if not self.server.down:
            self.count_fault("statement without a message")
            self.server.log_statement("", "GRANT SELECT ON *.* TO reader")

    # --- faults ---

    def op_mariadb(self, down: int, pause: int) -> None:
        """MariaDB crashes, or comes back."""
        self.crash_or_return(self.server, down, pause)

    def op_lag(self, commit: int) -> None:
        """Commits are visible later than they are in the binlog, and in the connector's topics."""
        self.count_fault("lag")
        seconds = (0.0, 0.01, 0.4)[commit % 3]
        self.server.behaviour.commit_s = lambda: seconds
        self.say(f"commits are visible after {seconds} s")

    def op_break(self, place: int) -> None:
        """The connection of an application breaks when it commits."""
        self.count_fault("connection breaks")
        self.server.breaks.append(Break(CLIENT, "COMMIT", PLACES[place % len(PLACES)]))

    def op_configure(self, what: int, pause: int) -> None:
        """An operator sets the connector so that its messages can't be relied on, and sets it back."""
        self.count_fault("connector set otherwise")
        otherwise = CONFIGURATIONS[what % len(CONFIGURATIONS)]
        self.say(f"the connector is set to {otherwise}")
        self.worker.config |= otherwise
        self.pause(pause)
        self.worker.config = dict(self.worker.as_it_should_be)

    def op_rotate(self) -> None:
        """A new file of the binlog begins."""
        if not self.server.down:
            self.server.rotate()

    # --- the end ---

    def _truth(self) -> Truth:
        self.truth.record(self.server.history)
        return self.truth

    def finish(self) -> None:
        """All faults end. Then every row that is written is in the topic, as it is."""
        self.kafka.down = False
        self.kafka.answers_to_lose.clear()
        if self.server.down:
            self.server.start()
        self.server.breaks.clear()
        self.run_until(lambda: not self.under_way, SETTLES_IN_S)
        left = [f"XA ROLLBACK '{gtrid.decode()}'" for gtrid, _ in self.server.prepared]
        if left:  # those whose application died: no epoch begins while one is prepared
            self._execute(left)
        self._settle()

    def _settled(self) -> str:
        """Writes each row of both tables, waits a while, and says what the topic lacks then."""
        for row in range(ROWS):
            for statement in ((PUT_GOODS, self._goods(row)), (PUT_PARTS, (row, self._version))):
                self._in_background("a last write", partial(self._write_now, [statement]))
            self.let(1.0)  # a source with little memory has no room for all of them at once
        found = self._judge()
        last = len(self.server.history)
        if not found or any(len(each.marked) < last for each in found):
            return f"the topic lacks {[{*range(1, last + 1)} - each.marked for each in found]}"
        for slot in self.truth.rows("shop.goods", last) + self.truth.rows("shop.parts", last):
            image = self.truth.image(slot, last) or {}
            is_written = self._tells_ends and json.loads(slot[1])[-1] < ROWS  # else it may be void for good
            if is_written and None not in image.values() and not found[partition_of(slot)].known.get(slot):
                return f"{slot} is not told"
        return ""
