"""Which of a connection's statements may have committed something, and what to ask the server then. No I/O.

A *plan* is a generator: it yields a query, and is sent the first row of its result, or None if it could not be asked.
Blocking and asyncio connections run the same plans.

Several things can be between a COMMIT and the question for its GTID: the connection broke, a driver opened it again,
a proxy (ProxySQL, MaxScale) sent the question over another connection, results are unread. So each answer says which
connection of which server gave it. What can't be known becomes a doubt (`serving.client.session.Doubt`), and the
session's reads demand everything until it is ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ..session import Doubt, SessionState
from ..tracked import IN_TRANSACTION, WITHIN_TRANSACTION, Statement
from .current import current

Asking: TypeAlias = Generator[str, Sequence[Any] | None, None]

_STAYS_IN_TRANSACTION: Final = WITHIN_TRANSACTION | {"with", "savepoint", "release", "rollback", "set"}
"""Statements after which a transaction that is still open shows that they committed nothing."""


class _Flavor(NamedTuple):
    name: str
    ask: str
    """Connection, server, GTIDs of this session's last commit ("": this server can't tell), all that is committed.
    Then, unless replicas refuse to answer, whether it takes no writes."""


MARIADB: Final = _Flavor(
    "MariaDB", "SELECT @@pseudo_thread_id, @@server_id, @@last_gtid, @@gtid_binlog_pos, @@read_only"
)
MYSQL: Final = _Flavor(
    "MySQL56",
    "SELECT @@pseudo_thread_id, @@server_id, '', @@GLOBAL.gtid_executed, @@read_only, @@innodb_read_only",
)
POSTGRES: Final = _Flavor(
    "Postgres",
    "SELECT pg_catalog.pg_backend_pid(), (SELECT system_identifier FROM pg_catalog.pg_control_system()), '',"
    " ('x' || pg_catalog.left(pg_catalog.pg_walfile_name(lsn), 8))::bit(32)::int || ':' || lsn"
    " FROM pg_catalog.pg_current_wal_insert_lsn() AS lsn",
)


BEGIN: Final = Statement("begin", False)
COMMIT: Final = Statement("commit()", False)
ROLLBACK: Final = Statement("rollback()", False)
"""The driver's own. SQL's are not equal to them: ``ROLLBACK TO SAVEPOINT`` leaves the transaction open."""
SET: Final = Statement("set", False)
UNKNOWN: Final = Statement("", True)


class Commits:
    """One connection's commits, told to the session that is current when they end.

    ``shard``: as in the settings, e.g. ``shop/0``. ``clock``: Unix time in seconds, for doubts. ``whose``: the session,
    if another one is meant. ``flavors``: those that the connection's server may be of.
    """

    def __init__(
        self,
        shard: str,
        clock: Callable[[], float] = time.time,
        *,
        whose: Callable[[], SessionState | None] = current,
        flavors: Sequence[_Flavor] = (MARIADB, MYSQL),
    ) -> None:
        self._shard, self._clock, self.whose, self._flavors = shard, clock, whose, flavors
        self._flavor: _Flavor | None = None
        self._thread = self._server = 0
        self._left: set[int] = set()
        """Servers that take writes, to which the connection does not lead any more."""
        self._is_spread = False
        """It led to one of them again: no switchover, but a router, or a pool of several servers."""
        self._is_idle = False
        """Nothing was run since the last commit, as far as is known."""
        self.owes: SessionState | None = None
        """Whom a commit may not have been told yet."""

    def before(self, statement: Statement) -> Asking:
        """Before a call that may commit: says where the connection leads. A proxy pins it from here on."""
        if not (statement.only_reads or self.whose() is None):
            yield from self.meet()

    def meet(self) -> Asking:
        """Learns where the connection leads, unless it is known."""
        if self._flavor is not None:
            return
        for flavor in self._flavors:
            told = yield flavor.ask
            if told is not None:
                self._flavor, self._thread, self._server = flavor, int(told[0]), self._writer(told)
                return

    def after(self, statement: Statement, *, in_transaction: bool, has_rows: bool) -> Asking:
        """After a call that ended well. ``has_rows``: its result may be unread, so nothing can be asked now."""
        stays = in_transaction and statement.word in _STAYS_IN_TRANSACTION and not statement.has_further
        was_idle, self._is_idle = self._is_idle, statement in (COMMIT, ROLLBACK)
        if not (statement.only_reads or stays or statement == ROLLBACK or (was_idle and self._is_idle)):
            self.owes = self.whose() or self.owes
        yield from self.settle(can_ask=not (has_rows or statement.has_further))

    def failed(self, statement: Statement, *, can_ask: bool) -> Asking:
        """After a call that failed: it may have committed. ``can_ask``: False where it was cut off."""
        self._is_idle = False
        if not statement.only_reads:
            self.owes = self.whose() or self.owes
            yield from self.settle(can_ask=can_ask)

    def settle(self, *, can_ask: bool = True) -> Asking:
        """Tells whom it owes what was committed. What can't be asked now is a doubt until it can."""
        session, flavor = self.owes, self._flavor
        if session is None:
            return
        before = session.doubt_about(self._shard)  # another connection's commit may come into doubt while this one asks
        told = (yield flavor.ask) if flavor is not None and can_ask else None
        if told is None or flavor is None or not self._heard(session, flavor, told, before):
            session.doubt(self._shard, Doubt(self._server, self._clock()))
        else:
            self.owes = None

    def _heard(self, session: SessionState, flavor: _Flavor, told: Sequence[Any], before: Doubt | None) -> bool:
        """Whether what was told stands for the commit. Another connection's last GTID is none of this one's."""
        thread, _, last, executed = (_text(each) for each in told[:4])
        server = self._writer(told)
        if server == 0 or server != self._server:
            # Who took the commit? No server can say. The next one that may commit finds out first where it goes.
            if server and self._server:
                self._left.add(self._server)
            self._server, self._flavor, self.owes = 0, flavor if self._is_spread else None, None
            return False
        everything = f"{flavor.name}/{executed}" if executed else ""
        is_own = flavor is MARIADB and int(thread) == self._thread
        self._thread = int(thread)
        if is_own and last:
            session.observe(self._shard, f"{flavor.name}/{last}")
        elif not is_own and everything:
            session.observe(self._shard, everything)
        session.end_doubt(self._shard, before, self._server, everything)
        return is_own or bool(everything)

    def _writer(self, told: Sequence[Any]) -> int:
        """The server that answers, if it may be the one that takes the connection's writes; else 0.

        A router sends questions to replicas, which are read-only: two answers of one of them agree by chance. Where
        replicas take writes too, a connection that leads back to one shows that its questions are spread.
        """
        server = int(told[1]) if all(_text(each) in ("0", "OFF") for each in told[4:]) else 0
        self._is_spread |= server in self._left
        return 0 if self._is_spread else server


def in_transaction(connection: Any) -> bool:
    """Whether a driver says that a transaction is open, or that none ends by itself. False: it does not say."""
    connection = getattr(connection, "driver_connection", connection)  # SQLAlchemy's, around a driver for asyncio
    known = getattr(connection, "in_transaction", None)  # mysql-connector
    if isinstance(known, bool):
        return known
    status = getattr(connection, "server_status", None)  # PyMySQL, aiomysql, asyncmy
    if isinstance(status, int):
        return bool(status & IN_TRANSACTION)
    get_autocommit = getattr(connection, "get_autocommit", None)  # mysqlclient
    return callable(get_autocommit) and get_autocommit() is False


def _text(value: object) -> str:
    return value.decode() if isinstance(value, (bytes, bytearray)) else str(value if value is not None else "")
