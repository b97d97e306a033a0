"""The transaction of a session: the tables that it holds, its commit, and XA."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pymysql.constants import ER, SERVER_STATUS

from lab.simulation.mariadb.log import events
from lab.simulation.mariadb.sql.syntax import Name
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.schema_changes import no_such_table
from lab.simulation.mariadb.storage.tables import Table
from lab.simulation.mariadb.transactions import Blocked, Steps, Transaction
from lab.simulation.mariadb.variables import SessionVariables

if TYPE_CHECKING:
    from lab.simulation.mariadb.server import SimulatedServer, Xid

READ_ONLY_TRANSACTION: Final = 0x2000
"""A flag that PyMySQL has no name for."""
NEVER: Final = float("inf")


class Transacting:
    """What a session has open. ``current``: its transaction. ``is_explicit``: it outlives its statement.

    ``deadline``: when the statement under way has taken too long.
    """

    def __init__(self, server: SimulatedServer, variables: SessionVariables) -> None:
        self._server = server
        self._variables = variables
        self.current: Transaction | None = None
        self.is_explicit = False
        self._xa: Xid | None = None
        self.deadline = NEVER

    @property
    def status(self) -> int:
        """The status flags of an answer."""
        found = SERVER_STATUS.SERVER_STATUS_AUTOCOMMIT if self._variables.variable("", "autocommit") else 0
        if (self.current is not None and self.is_explicit) or self._xa is not None:
            found |= SERVER_STATUS.SERVER_STATUS_IN_TRANS
        if self.current is not None and self.current.read_only:
            found |= READ_ONLY_TRANSACTION
        return found

    def set_deadline(self) -> None:
        """Give the statement that begins the time that the session allows."""
        limit = self._variables.number("max_statement_time")
        self.deadline = self._server.waits.now + limit if limit else NEVER

    def until(self, limit: str) -> float:
        """When a wait has to end that the variable ``limit`` limits."""
        return min(self._server.waits.now + self._variables.number(limit), self.deadline)

    # -- its tables ----------------------------------------------------------------------------------------------------

    def begin(self, *, read_only: bool, consistent: bool) -> None:
        """``START TRANSACTION``. ``consistent``: with its snapshot."""
        self.current = Transaction(read_only, self._server.committed if consistent else None)
        self.is_explicit = True

    def begun(self) -> Transaction:
        """The open transaction; with autocommit, the statement's own."""
        if self.current is None:
            self.current = Transaction()
            self.is_explicit = not self._variables.variable("", "autocommit")
        return self.current

    def open(self, name: Name) -> Steps[Table]:
        """The table, which stays as it is until the transaction ends."""
        yield from self._server.locks.share_table(self.begun(), name, self.until("lock_wait_timeout"))
        table = self._server.databases.find(name)
        if table is None:
            raise no_such_table(name)
        return table

    def glance(self, name: Name) -> Steps[None]:
        """Wait until nobody changes a table."""
        visitor = object()
        yield from self._server.locks.share_table(visitor, name, self.until("lock_wait_timeout"))
        self._server.locks.release(visitor)

    # -- its end -------------------------------------------------------------------------------------------------------

    def commit(self) -> Steps[None]:
        """End it, and wait until others see what it wrote."""
        transaction, self.current, self.is_explicit = self.current, None, False
        if transaction is None:
            return
        server = self._server
        if not transaction.log:
            server.locks.release(transaction)
            return
        gtid = server.next_gtid(int(self._variables.number("gtid_domain_id")))
        now = server.timestamp
        group = (
            events.gtid(now, gtid, events.TRANSACTIONAL),
            *transaction.log,
            events.xid(now, server.id, len(server.history)),
        )
        changes = [(table.name, key, row) for (table, key), row in transaction.writes.items()]
        number = server.commit(gtid, group, changes, owner=transaction)
        self._variables.committed(gtid)
        yield from self.shown(number)

    def shown(self, number: int) -> Steps[None]:
        """Wait until reads see commit ``number``."""
        while self._server.committed < number:
            yield Blocked(lambda: False, self._server.visible_at(number))

    def roll_back(self) -> None:
        """End it, and undo what it wrote."""
        transaction, self.current, self.is_explicit = self.current, None, False
        if transaction is not None:
            self._server.locks.release(transaction)

    # -- XA ------------------------------------------------------------------------------------------------------------

    def start_xa(self, xid: Xid) -> None:
        """``XA START``."""
        self.current, self.is_explicit, self._xa = Transaction(), True, xid

    def prepare(self, xid: Xid) -> Steps[None]:
        """``XA PREPARE``, and wait until others are told that it is prepared."""
        transaction, self.current, self.is_explicit = self.current, None, False
        if transaction is None or self._xa != xid:
            raise ServerError(ER.XAER_NOTA, "XAER_NOTA: Unknown XID", "XAE04")
        server = self._server
        server.prepared[xid] = transaction
        gtid = server.next_gtid(int(self._variables.number("gtid_domain_id")))
        now = server.timestamp
        group = (
            events.gtid(now, gtid, events.PREPARED_XA, _packed_xid(xid)),
            *transaction.log,
            events.query(now, server.id, "", f"XA END {_printed_xid(xid)}", placed=False),
            events.xa_prepare(now, server.id, *xid),
        )
        prepared = [(table.name, key, row) for (table, key), row in transaction.writes.items()]
        number = server.commit(gtid, group, xid=xid, prepared=prepared)
        self._variables.committed(gtid)
        yield from self.shown(number)

    def end_xa(self, xid: Xid, *, commits: bool) -> Steps[None]:
        """``XA COMMIT`` or ``XA ROLLBACK``."""
        server = self._server
        transaction = server.prepared.pop(xid, None)
        if transaction is None:
            raise ServerError(ER.XAER_NOTA, "XAER_NOTA: Unknown XID", "XAE04")
        self._xa = None
        gtid = server.next_gtid(int(self._variables.number("gtid_domain_id")))
        now, verb = server.timestamp, "COMMIT" if commits else "ROLLBACK"
        group = (
            events.gtid(now, gtid, events.COMPLETED_XA, _packed_xid(xid)),
            events.query(now, server.id, "", f"XA {verb} {_printed_xid(xid)}"),
        )
        writes = transaction.writes.items() if commits else ()
        changes = [(table.name, key, row) for (table, key), row in writes]
        number = server.commit(gtid, group, changes, owner=transaction, xid=xid)
        self._variables.committed(gtid)
        yield from self.shown(number)


def _packed_xid(xid: Xid) -> bytes:
    return bytes([len(xid[0]), len(xid[1])]) + xid[0] + xid[1]


def _printed_xid(xid: Xid) -> str:
    return f"X'{xid[0].hex()}',X'{xid[1].hex()}',1"
