"""What befalls the source of truth besides outages: its tables change, somebody locks them, its binlog turns over."""

from __future__ import annotations

from typing import Final

import pymysql

from lab.simulation.installation.faults import Faults
from lab.simulation.installation.parts import CLIENT
from lab.simulation.installation.processes import PRIMARY
from lab.simulation.installation.writing import CREATE_TABLE, TABLE

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
            CREATE_TABLE.replace(TABLE, OTHER),
            f"RENAME TABLE {TABLE} TO {OLD}, {OTHER} TO {TABLE}",
        ),
    ),
)
"""(fault, statements) that change the table."""
LOG_EVENTS: Final = ("binlog rotated", "statement logged")
TABLE_FAULTS: Final = (*dict.fromkeys(fault for fault, _ in CHANGES), "table locked", *LOG_EVENTS)


class TableFaults(Faults):
    """The ops that change tables and the binlog."""

    def op_change(self, what: int, pause: int) -> None:
        """Somebody changes the table; if the server goes away meanwhile, only in part."""
        fault, statements = CHANGES[what % len(CHANGES)]
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
        fault = LOG_EVENTS[what % len(LOG_EVENTS)]
        self.count_fault(fault)
        self.say(fault)
        if fault == "binlog rotated":
            self.primary.rotate()
        else:
            self.primary.log_statement("shop", "UPDATE accounts SET version = version")
