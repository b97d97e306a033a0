"""What befalls the source of truth besides outages: its tables change, somebody locks them, its binlog turns over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pymysql

from lab.simulation.installation.faults import Faults
from lab.simulation.installation.parts import SOURCES
from lab.simulation.installation.processes import KAFKA, PRIMARY, SHARD
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ORDERS, PARTS, PARTS_KEYS, TABLE
from lab.simulation.whole_processes.run import CLIENT, OPERATOR, PAUSES_S
from stream.kafka.requests import send_request
from stream.kafka.topics import describe_topic, events_topic
from stream.publish.resume import read_point
from stream.sources.mariadb.backfill.choice import BackfillRequest
from stream.sources.mariadb.backfill.progress import table_progress
from tokens.errors import FreshetError

OTHER: Final = "shop.accounts_new"
OLD: Final = "shop.accounts_old"
CHANGES: Final = (
    ("DDL", (f"ALTER TABLE {TABLE} MODIFY COLUMN version BIGINT NOT NULL",)),
    ("DDL", (f"ALTER TABLE {TABLE} MODIFY COLUMN version INT NOT NULL",)),
    ("table emptied", (f"TRUNCATE TABLE {TABLE}",)),
    (
        "table swapped",
        (
            f"DROP TABLE IF EXISTS {OTHER}, {OLD}",
            ACCOUNTS.create.replace(TABLE, OTHER),
            f"RENAME TABLE {TABLE} TO {OLD}, {OTHER} TO {TABLE}",
        ),
    ),
)
"""(fault, statements) that change the table."""
LOG_EVENTS: Final = ("binlog rotated", "statement logged")
STATEMENTS: Final = (
    "UPDATE accounts SET version = version",
    "CREATE INDEX v ON accounts (version)",
    "CREATE OR REPLACE TEMPORARY TABLE accounts (id INT)",
    "CREATE TABLE IF NOT EXISTS `else``where`.`t` (a INT)",
    "CREATE OR REPLACE ALGORITHM = MERGE VIEW w AS SELECT 1",
    "CREATE DATABASE elsewhere",
    "ALTER TABLE accounts ADD INDEX (version), RENAME INDEX v TO u, RENAME COLUMN a TO b",
    "ALTER ONLINE IGNORE TABLE IF EXISTS elsewhere.t RENAME TO elsewhere.u",
    "ALTER TABLE shop.accounts EXCHANGE PARTITION p WITH TABLE elsewhere.t",
    "ALTER DATABASE shop CHARACTER SET = utf8mb4",
    "ALTER USER reader IDENTIFIED BY 'x'",
    'DROP TABLE IF EXISTS elsewhere.t, "elsewhere".u',
    "DROP TEMPORARY TABLE accounts",
    "DROP INDEX v ON accounts",
    "DROP SCHEMA IF EXISTS elsewhere",
    "DROP VIEW w",
    "RENAME TABLE elsewhere.t WAIT 5 TO elsewhere.u, elsewhere.u TO elsewhere.t",
    "RENAME USER a TO b",
    "TRUNCATE elsewhere.t",
    "SET PASSWORD FOR reader = 'x'",
    "SET STATEMENT max_statement_time = 5 FOR CREATE INDEX v ON accounts (version)",
    "GRANT SELECT ON *.* TO reader",
    "LOAD DATA INFILE 'x' INTO TABLE accounts",
    "ALTER TABLE accounts COMMENT = 'it is open",
    "DROP everything",
    "no statement",
    "ANALYZE LOCAL TABLE accounts, `orders`",
    "ANALYZE UPDATE accounts SET version = 1",
    "CREATE OR REPLACE DATABASE IF NOT EXISTS elsewhere",
    r"CREATE UNIQUE INDEX v ON accounts (version) COMMENT 'a\'b'",
    "CREATE INDEX v",
    "CREATE",
    "ALTER TABLE accounts ADD CHECK ((version) > (0)), COMMENT = 'x', ALGORITHM = COPY",
    "ALTER TABLE accounts ADD INDEX primary (version), RENAME = elsewhere.t",
    "ALTER TABLE accounts ADD c INT DEFAULT (1",
    "ALTER `e` EVENT DISABLE",
    "ALTER nothing",
    "RENAME INDEX a TO b",
    "SET ROLE NONE",
    "SET x = 1",
    "SET STATEMENT x = 1 FOR SELECT 1",
    "SET STATEMENT x = 1",
    "DROP PREPARE p",
    "SAVEPOINT s",
    "TRUNCATE ,",
    "/* nothing */",
    "INSERT INTO ınventory VALUES ('a''b')",
)
"""Statements that somebody else's session has logged. None changes a row here: they must do no harm."""
LOGGED: Final = 6
"""Statements of one who works at the server."""
SETTINGS: Final = (
    ("binlog_row_image", "MINIMAL"),
    ("gtid_strict_mode", "OFF"),
    ("sync_binlog", 0),
    ("log_bin", "OFF"),
    ("wsrep_on", "ON"),
    ("version", "8.0.36"),
)
"""(variable, value) with which no source publishes."""
ASKED: Final = ("", TABLE, ORDERS.name, "shop.nothing")
"""Tables that operators have read from the beginning, or no further; "": every one."""
TABLE_FAULTS: Final = (
    *dict.fromkeys(fault for fault, _ in CHANGES),
    "primary key",
    "table locked",
    *LOG_EVENTS,
    "XA transaction",
    "server misconfigured",
)


class TableFaults(Faults):
    """The ops that change tables and the binlog."""

    asking = 0
    """Requests of operators that are on their way to Kafka."""

    def op_change(self, what: int, pause: int) -> None:
        """Somebody changes the table; if the server goes away meanwhile, only in part."""
        fault, statements = CHANGES[what % len(CHANGES)]
        self._change(fault, statements, pause)

    def _change(self, fault: str, statements: Sequence[str], pause: int) -> None:
        self.count_fault(fault)
        self.say("; ".join(statements))
        self.under_way += 1

        def change() -> None:
            try:
                connection = self.driver.connect(**PRIMARY.pymysql_arguments(), autocommit=True)
                with connection.cursor() as cursor:
                    for statement in statements:
                        cursor.execute(statement)
                connection.close()
            except (pymysql.err.Error, OSError) as error:
                self.say(f"changing the table failed: {error}")
            self.under_way -= 1

        self.kernel.spawn(CLIENT, change)
        self.pause(pause)

    def op_rekey(self, key: int, pause: int) -> None:
        """The rows of a table get another primary key, by which the same numbers mean other rows; or the same anew."""
        if self.rekeyed:
            column = PARTS_KEYS[key % len(PARTS_KEYS)]
            self._change(
                "primary key", (f"ALTER TABLE {PARTS.name} DROP PRIMARY KEY, ADD PRIMARY KEY ({column})",), pause
            )

    def op_backfill(self, table: int, cancels: int, pause: int) -> None:
        """An operator has tables read from the beginning, or no further, and looks how far they are."""
        if not self.wide:
            return
        self.is_operated = True
        name, start = ASKED[table % len(ASKED)], cancels % 2 == 0
        self.say(f"an operator {'starts' if start else 'cancels'} the backfill of {name or 'every table'}")

        def ask() -> None:
            self.ask_for(name, start=start)
            self.asking -= 1

        self.asking += 1
        self.kernel.spawn(OPERATOR, ask)
        self.pause(pause)

    def ask_for(self, table: str, *, start: bool) -> bool:
        """Asks the source for a backfill, in an operator's thread; whether Kafka has the request."""
        try:
            topic = describe_topic(KAFKA, events_topic(KAFKA, KEYSPACE))
            value = msgspec.json.encode(BackfillRequest(start=start, table=table))
            send_request(KAFKA, KEYSPACE, SHARD, value)
            point = read_point(KAFKA, topic, SHARD)
            for each in table_progress(point) if point is not None else ():
                self.say(f"the operator sees that {each.table} is {each.state}, {each.rows} rows")
        except FreshetError as error:
            self.say(f"the operator is told: {error}")
            return False
        return True

    def op_lock(self, pause: int) -> None:
        """Somebody holds the table for a while."""
        database, _, name = TABLE.partition(".")
        self.count_fault("table locked")
        self.say("the table is locked")
        self.primary.locks.hold_table(self, (database, name))
        self.pause(pause)
        self.primary.locks.release(self)

    def op_log(self, what: int) -> None:
        """A new file of the binlog begins, or a statement is logged whose rows are not."""
        if self.primary.down:
            return
        if what % (len(STATEMENTS) + 1) == 0:
            self.count_fault("binlog rotated")
            self.say("binlog rotated")
            self.primary.rotate()
        else:
            statement = STATEMENTS[what % (len(STATEMENTS) + 1) - 1]
            self.count_fault("statement logged")
            self.say(f"logged: {statement}")
            self.primary.log_statement("shop", statement)

    def op_log_many(self, what: int) -> None:
        """Somebody works at the server: some such statements are logged, one after the other."""
        for at in range(LOGGED):
            self.op_log(1 + (what + at) % len(STATEMENTS))

    def op_xa(self, row: int, commits: int, pause: int) -> None:
        """Another application writes a row in an XA transaction, and ends it a while after it was prepared."""
        slot, number = self.slot(row), len(self.primary.history)
        if slot.table.keyspace != KEYSPACE:
            return
        self.count_fault("XA transaction")
        self.say(f"{slot.text} is written as {-number} in an XA transaction, which is {'committed' * (commits % 2)}")
        words = (f"XA START 'x{number}'", "", f"XA END 'x{number}'", f"XA PREPARE 'x{number}'")
        end = f"XA {'COMMIT' if commits % 2 else 'ROLLBACK'} 'x{number}'"
        self.under_way += 1

        def write() -> None:
            try:
                connection = self.driver.connect(**PRIMARY.pymysql_arguments())
                with connection.cursor() as cursor:
                    for word in words:
                        if word:
                            cursor.execute(word)
                        else:
                            cursor.execute(slot.table.put, slot.table.values(slot.row, -number))
                    self.kernel.wait(lambda: False, PAUSES_S[pause % len(PAUSES_S)])
                    cursor.execute(end)
                connection.close()
            except (pymysql.err.Error, OSError) as error:
                self.say(f"the XA transaction failed: {error}")
            self.record_commits()
            self.under_way -= 1

        self.kernel.spawn(CLIENT, write)
        self.pause(pause)

    def op_setting(self, what: int, pause: int) -> None:
        """A source starts while its server is set so that its log cannot be relied on."""
        name, wrong = SETTINGS[what % len(SETTINGS)]
        right = self.primary.variables[name]
        self.count_fault("server misconfigured")
        self.say(f"{name} is {wrong} for a while")
        self.primary.variables[name] = wrong
        self.kill_sources()
        self.start(SOURCES[0])
        self.pause(pause)
        self.primary.variables[name] = right
