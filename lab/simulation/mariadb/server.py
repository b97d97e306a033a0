"""A simulated MariaDB server: what it stores, its binlog, who is connected, and what befalls it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol
from uuid import UUID

from lab.simulation.mariadb.log import events
from lab.simulation.mariadb.log.binlog import BinaryLog
from lab.simulation.mariadb.log.events import Event, Gtid
from lab.simulation.mariadb.sql.definitions import SchemaChange
from lab.simulation.mariadb.storage.schema_changes import apply
from lab.simulation.mariadb.storage.tables import Databases
from lab.simulation.mariadb.transactions import Change, Locks, Transaction

if TYPE_CHECKING:
    from lab.simulation.kernel.waits import Waits

EPOCH_S: Final = 1_800_000_000
"""The wall clock of a server when a history begins."""
Xid = tuple[bytes, bytes]
"""gtrid and bqual of an XA transaction; its format is 1."""

DEFAULTS: Final[dict[str, str | int]] = {
    "version": "11.4.5-MariaDB-log",
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_checksum": "CRC32",
    "log_slave_updates": "ON",
    "slave_exec_mode": "STRICT",
    "gtid_strict_mode": "ON",
    "sync_binlog": 1,
    "innodb_flush_log_at_trx_commit": 1,
    "wsrep_on": "OFF",
    "wsrep_gtid_mode": "OFF",
    "read_only": "OFF",
    "gtid_domain_id": 0,
    "lower_case_table_names": 0,
}

MYSQL: Final[dict[str, str | int]] = {
    "version": "8.4.3",
    "log_replica_updates": "ON",
    "gtid_mode": "ON",
    "enforce_gtid_consistency": "ON",
    "binlog_row_value_options": "",
    "binlog_error_action": "ABORT_SERVER",
}
"""What differs at a server that says it is MySQL. It has the same tables and logs; nobody can read its binlog."""


class Connected(Protocol):
    """A session, as its server knows it."""

    process: str

    def end(self) -> None:
        """End it."""


class Commit(NamedTuple):
    """A transaction of a server's history. ``change``: DDL with its default database. ``at``: virtual seconds.

    ``prepared``: the rows of an XA transaction that is prepared here, which no read sees. ``xid``: of one that is
    prepared, committed or rolled back.
    """

    gtid: Gtid
    group: tuple[Event, ...]
    changes: tuple[Change, ...]
    change: tuple[SchemaChange, str] | None
    at: float
    prepared: tuple[Change, ...] = ()
    xid: Xid | None = None


class Break(NamedTuple):
    """A connection that will be lost. ``process``: whose; "" for anyone's. ``word``: at which statement; "" for any.

    ``place``: before the statement is executed, ``after`` it but before its answer, or in the ``middle`` of the answer.
    """

    process: str
    word: str
    place: str


@dataclass(eq=False)
class _Pending:
    """A commit that is in the binlog, and that reads do not see yet."""

    number: int
    visible_at: float
    place: tuple[str, int]
    owner: object
    xid: Xid | None = None
    prepares: bool = False


@dataclass
class Behaviour:
    """How the server behaves until it is told otherwise.

    ``commit_s``: from the binlog to the engine. ``latency_s``: a request and its answer. ``lag_s``: how far a replica
    follows behind. ``clock_shift_s``: its clock's error.
    """

    commit_s: Callable[[], float] = field(default=lambda: 0.0)
    latency_s: Callable[[], float] = field(default=lambda: 0.0)
    lag_s: float = 0.0
    clock_shift_s: float = 0.0
    zone_s: int = 0
    connections_max: int = 151


class SimulatedServer:
    """A MariaDB server. ``cut``: processes that can't reach it.

    Statements run in the threads of those who send them.
    """

    product = "MariaDB"

    def __init__(self, waits: Waits, *, id: int = 1, user: str = "root", password: str = "") -> None:
        self.waits = waits
        self.id = id
        self.user, self.password = user, password
        self.behaviour = Behaviour()
        self.variables = dict(DEFAULTS)
        self.binlog_do_db = ""
        self.cut: set[str] = set()
        self.down = False
        self.breaks: list[Break] = []
        self.source: SimulatedServer | None = None
        """The server that this one replicates."""
        self._applied = 0
        self.sessions: list[Connected] = []
        self.dumps: dict[int, Callable[[], None]] = {}
        """Id of a replica → what ends its connection when another replica of this id comes."""
        self._begin()

    def _begin(self) -> None:
        self.databases = Databases()
        self.locks = Locks(lambda: self.waits.now, self._settle)
        self.log = BinaryLog(self.id, self.timestamp)
        self.history: list[Commit] = []
        """Every transaction, oldest first. A commit's number is its place, from 1."""
        self.prepared: dict[Xid, Transaction] = {}
        self._pending: deque[_Pending] = deque()
        self._committed = 0
        self._committed_place = self.log.committed
        self.slave_position: dict[int, Gtid] = {}

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def time_s(self) -> float:
        """The server's clock: seconds since 1970."""
        return EPOCH_S + self.waits.now + self.behaviour.clock_shift_s

    @property
    def timestamp(self) -> int:
        """The server's clock as events have it."""
        return int(self.time_s)

    # -- commits -------------------------------------------------------------------------------------------------------

    @property
    def committed(self) -> int:
        """The last commit that reads see."""
        while self._pending and self._pending[0].visible_at <= self.waits.now:
            self._show(self._pending.popleft())
        return self._committed

    def _settle(self) -> float:
        _ = self.committed
        return self._pending[0].visible_at if self._pending else float("inf")

    @property
    def is_mysql(self) -> bool:
        """Whether it has the variables of one, whatever version it greets with."""
        return "gtid_mode" in self.variables

    @property
    def uuid(self) -> str:
        """``@@server_uuid`` of a MySQL."""
        return str(UUID(int=self.id))

    @property
    def gtid_executed(self) -> str:
        """What reads of a MySQL see. Its GTIDs have the numbers of commits."""
        return f"{self.uuid}:1-{self.committed}" if self.committed else ""

    @property
    def gtid_owned(self) -> str:
        """What is in the binlog of a MySQL, and not seen by reads."""
        owned = range(self.committed + 1, len(self.history) + 1)
        return ":".join([self.uuid, *(f"{number}#{number}" for number in owned)]) if owned else ""

    @property
    def committed_place(self) -> tuple[str, int]:
        """The place in the binlog up to which reads see everything."""
        _ = self.committed
        return self._committed_place

    def _show(self, pending: _Pending) -> None:
        self._committed = pending.number
        self._committed_place = pending.place
        self.locks.release(pending.owner)

    def visible_at(self, number: int) -> float:
        """When reads will see a commit."""
        return max((each.visible_at for each in self._pending if each.number <= number), default=self.waits.now)

    def next_gtid(self, domain: int) -> Gtid:
        """The GTID of the next transaction that is written here."""
        last = max((n for (each, _), n in self.log.state.items() if each == domain), default=0)
        return domain, self.id, last + 1

    def commit(
        self,
        gtid: Gtid,
        group: Sequence[Event],
        changes: Sequence[Change] = (),
        change: tuple[SchemaChange, str] | None = None,
        *,
        owner: object = None,
        xid: Xid | None = None,
        prepared: Sequence[Change] = (),
    ) -> int:
        """Write a transaction into the binlog, and its rows for reads that come later. Returns its number."""
        return self._write(
            Commit(gtid, tuple(group), tuple(changes), change, self.waits.now, tuple(prepared), xid), owner
        )

    def _write(self, commit: Commit, owner: object = None) -> int:
        number = len(self.history) + 1
        if commit.change is not None:
            apply(*commit.change, self.databases, number)
        for name, key, row in commit.changes:
            table = self.databases.find(name)
            if table is not None:
                table.put(key, number, row)
        self.history.append(commit)
        place = self.log.write(commit.gtid, commit.group)
        last = self._pending[-1].visible_at if self._pending else self.waits.now
        visible_at = max(last, self.waits.now + self.behaviour.commit_s())
        xid = commit.xid if commit.prepared or commit.changes else None  # what is rolled back is seen by nobody
        self._pending.append(_Pending(number, visible_at, place, owner, xid, bool(commit.prepared)))
        return number

    @property
    def invisible_xids(self) -> list[Xid]:
        """The XA transactions that are prepared, or whose commit reads do not see yet.

        One is in the binlog a moment before it is named among those that are prepared.
        """
        _ = self.committed
        unnamed = {each.xid for each in self._pending if each.prepares}
        ending = (each.xid for each in self._pending if each.xid is not None and not each.prepares)
        return [*(xid for xid in self.prepared if xid not in unnamed), *ending]

    # -- replication ---------------------------------------------------------------------------------------------------

    def follow(self, source: SimulatedServer | None) -> None:
        """Replicate ``source`` from what this server has of it; None: stop, as before a promotion."""
        self.source = source
        if source is not None:
            known = {commit.gtid for commit in self.history}
            self._applied = sum(commit.gtid in known for commit in source.history)
            self.variables["read_only"] = "ON"
        else:
            self.variables["read_only"] = "OFF"

    @property
    def is_behind(self) -> bool:
        """Whether the source committed something longer ago than the lag that is not applied here."""
        source = self.source
        if source is None or self.down or self._applied >= len(source.history):
            return False
        return source.history[self._applied].at + self.behaviour.lag_s <= self.waits.now

    def catch_up(self) -> None:
        """Apply what the source committed longer ago than the lag."""
        while self.source is not None and self.is_behind:
            commit = self.source.history[self._applied]
            self._applied += 1
            self.slave_position[commit.gtid[0]] = commit.gtid
            if commit.xid is not None and commit.prepared:
                self.prepared[commit.xid] = Transaction()
            elif commit.xid is not None:
                self.prepared.pop(commit.xid, None)
            self._write(commit)

    # -- faults --------------------------------------------------------------------------------------------------------

    def reaches(self, process: str) -> bool:
        """Whether packets pass between a process and the server."""
        return process not in self.cut

    def kill(self) -> None:
        """End the server's process. What is in the binlog is committed when it recovers; everything else is lost."""
        self.down = True
        self._end_sessions()
        for pending in self._pending:
            pending.visible_at = self.waits.now
        _ = self.committed

    def start(self) -> None:
        """Start it again. The binlog goes on in a new file."""
        self.down = False
        self.rotate(crashed=True)

    def rotate(self, *, crashed: bool = False) -> None:
        """Begin a new file of the binlog."""
        self.log.rotate(self.timestamp, crashed=crashed)
        if not self._pending:
            self._committed_place = self.log.committed

    def forget(self, process: str) -> None:
        """End the sessions of a process that died: its transactions are rolled back."""
        for session in [each for each in self.sessions if each.process == process]:
            session.end()

    def _end_sessions(self) -> None:
        for session in list(self.sessions):
            session.end()

    def restore(self, commits: int) -> None:
        """Put the server back to an older state: later transactions never happened, and their GTIDs come again."""
        self._end_sessions()
        kept = self.history[:commits]
        self._begin()
        for commit in kept:
            self._write(commit)
        for pending in self._pending:
            pending.visible_at = self.waits.now

    def lose_log(self) -> None:
        """RESET MASTER: the binlog and its positions are gone, the rows stay."""
        self.log.reset(self.timestamp)
        self._committed_place = self.log.committed

    def log_statement(self, database: str, sql: str) -> None:
        """Log a statement that changes no row here, as one that another session logged in statement format."""
        gtid = self.next_gtid(int(self.variables["gtid_domain_id"]))
        now = self.timestamp
        group = (
            events.gtid(now, gtid, events.TRANSACTIONAL),
            events.query(now, self.id, database, sql, placed=False),
            events.xid(now, self.id, len(self.history)),
        )
        self.commit(gtid, group)
