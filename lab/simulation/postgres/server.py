"""A simulated PostgreSQL: rows by version, a log of commits that are seen later than logged, locks, and a slot.

Commits become visible in any order. Who writes a table, or alters it, holds its lock until everybody sees it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeVar

import psycopg
from psycopg import errors

from lab.simulation.connectors.judging import STEP
from lab.simulation.kernel.waits import Waits
from lab.simulation.mariadb.server import EPOCH_S
from lab.simulation.postgres.tables import Alteration, Definition, Row

Key = tuple[Any, ...]
Slot = tuple[str, str]
"""A row: its table, and the JSON of its key."""
WRITES, ALTERS = "RowExclusiveLock", "AccessExclusiveLock"
PREPARED: Final = "-1/"
T = TypeVar("T")
Versions = list[tuple[int, T]]
"""(commit, what there is from it on)"""


class Change(NamedTuple):
    """A row that a commit changes, as its log tells it. ``definition``: of the table then."""

    definition: Definition
    before: Row | None
    after: Row | None


class Commit(NamedTuple):
    """``emptied``: the tables that it has truncated, before its changes. ``number``: its place in the log."""

    number: int
    xid: int
    at: float
    changes: Sequence[Change]
    emptied: Sequence[Definition]


class Snapshot(NamedTuple):
    """What a read sees: the first ``end`` commits but for some."""

    end: int
    invisible: frozenset[int]

    def of(self, versions: Versions[T]) -> T | None:
        """The latest version that it sees."""
        return next((each for at, each in reversed(versions) if at <= self.end and at not in self.invisible), None)


@dataclass(eq=False)
class Transaction:
    """``holder``: as `pg_locks` names it. ``life``: of the server; 0: it outlives a crash."""

    xid: int
    holder: str
    life: int
    changes: list[Change] = field(default_factory=list)
    emptied: list[Definition] = field(default_factory=list)
    altered: dict[str, tuple[Definition, Alteration]] = field(default_factory=dict)


class Truth:
    """Every row as each commit left it."""

    def __init__(self) -> None:
        self._versions: dict[Slot, Versions[dict[str, Any] | None]] = {}
        self.changed: list[list[Slot]] = [[]]
        """Commit → the rows that differ after it."""

    def commit(self, images: Mapping[Slot, dict[str, Any] | None]) -> None:
        """Another commit, which leaves these rows."""
        number, changed = len(self.changed), []
        for slot, image in images.items():
            if self.image(slot, number) != image:
                self._versions.setdefault(slot, []).append((number, image))
                changed.append(slot)
        self.changed.append(changed)

    def image(self, slot: Slot, commit: int) -> dict[str, Any] | None:
        """A row as a commit left it."""
        return next((image for at, image in reversed(self._versions.get(slot, [])) if at <= commit), None)

    def images(self, slot: Slot, since: int, until: int) -> list[dict[str, Any] | None]:
        """What it has been from the commit ``since`` to the commit ``until``."""
        later = [image for at, image in self._versions.get(slot, []) if since < at <= until]
        return [self.image(slot, since), *later]

    def rows(self, table: str, commit: int) -> list[Slot]:
        """The rows that a table had."""
        return [slot for slot in self._versions if slot[0] == table and self.image(slot, commit) is not None]

    def slots(self, table: str) -> list[Slot]:
        """The rows that it ever had."""
        return [slot for slot in self._versions if slot[0] == table]


class SimulatedPostgres:
    """The server. ``cut``: processes that can't reach it. ``commit_s``: from the log to everybody's sight."""

    product = "PostgreSQL"
    is_mysql = False
    """For who takes it for another server."""

    def __init__(self, waits: Waits) -> None:
        self.waits = waits
        self.cut: set[str] = set()
        self.down = False
        self.timeline = 1
        self.commit_s: Callable[[], float] = lambda: 0.0
        self.history: list[Commit] = []
        self.truth = Truth()
        self.catalog: dict[str, Versions[Definition | None]] = {}
        self.rows: dict[str, dict[Key, Versions[Row | None]]] = defaultdict(dict)
        self.locks: dict[str, dict[str, str]] = {}
        """Who holds locks → table → mode."""
        self.prepared_at: dict[str, float] = {}
        """Who of them are prepared transactions, and since when."""
        self.readers: dict[str, set[object]] = defaultdict(set)
        """Table → sessions that read it, and keep it as it is."""
        self.marked: dict[tuple[str, Key], Transaction] = {}
        """Rows that somebody has begun to change, and that is not seen yet."""
        self._invisible: dict[int, float] = {}
        self.sessions: list[Any] = []
        self.has_slot = False
        self.confirmed = 0
        """Commits that the slot's reader has kept."""
        self._count, self._life = 0, 1

    def reaches(self, process: str) -> bool:
        """Whether packets pass between a process and the server."""
        return process not in self.cut

    @property
    def now_ms(self) -> int:
        """Its clock."""
        return int((EPOCH_S + self.waits.now) * 1000)

    @property
    def end(self) -> int:
        """The end of its log."""
        return len(self.history) * STEP

    def snapshot(self) -> Snapshot:
        """What is seen now."""
        now = self.waits.now
        self._invisible = {number: at for number, at in self._invisible.items() if at > now}
        return Snapshot(len(self.history), frozenset(self._invisible))

    def definition(self, name: str, snapshot: Snapshot | None = None) -> Definition | None:
        """A table as it is seen; None: there is none."""
        return (snapshot or self.snapshot()).of(self.catalog.get(name, []))

    def latest(self, name: str) -> Definition:
        """A table as whoever holds its lock finds it."""
        found = self.catalog[name][-1][1]
        assert found is not None
        return found

    # --- writers ---

    def begin(self) -> Transaction:
        """A transaction. Raises psycopg's error."""
        self._check()
        self._count += 1
        return Transaction(700 + self._count, f"{self._count % 7}/{self._count}", self._life)

    def _is_lost(self, transaction: Transaction | None) -> bool:
        return self.down or (transaction is not None and transaction.life not in (0, self._life))

    def _check(self, transaction: Transaction | None = None) -> None:
        if self._is_lost(transaction):
            raise psycopg.OperationalError("the connection is closed")

    def lock(self, transaction: Transaction, name: str, mode: str) -> None:
        """Hold a table until the transaction is seen."""

        def others() -> bool:
            held = [each.get(name) for holder, each in self.locks.items() if holder != transaction.holder]
            return ALTERS in held or (mode == ALTERS and (any(held) or bool(self.readers[name])))

        self.waits.wait(lambda: self._is_lost(transaction) or not others())
        self._check(transaction)
        self.locks.setdefault(transaction.holder, {})[name] = mode

    def put(self, transaction: Transaction, name: str, key: Key, make: Callable[[Row | None], Row | None]) -> None:
        """Write a row: ``make`` gets it as it is. Its own changes are seen by the transaction."""
        self.lock(transaction, name, WRITES)
        place = name, key
        self.waits.wait(lambda: self._is_lost(transaction) or self.marked.get(place, transaction) is transaction)
        self._check(transaction)
        definition = self.latest(name)
        versions = self.rows[name].get(key, [])
        before = None if definition in transaction.emptied else (versions[-1][1] if versions else None)
        for change in transaction.changes:
            for row, now in ((change.before, None), (change.after, change.after)):
                if row is not None and change.definition.name == name and definition.key_of(row) == key:
                    before = now
        after = make(before)
        if before is None and after is None:
            return
        self.marked[place] = transaction
        if after is not None:
            after = {column: after.get(column) for column, _ in definition.columns}  # some were added meanwhile
            self._move(transaction, name, key, definition.key_of(after))
        transaction.changes.append(Change(definition, before, after))

    def _move(self, transaction: Transaction, name: str, key: Key, to: Key) -> None:
        """A row gets another key, if no row has it."""
        self.waits.wait(lambda: self._is_lost(transaction) or self.marked.get((name, to), transaction) is transaction)
        self._check(transaction)
        versions = self.rows[name].get(to)
        if to != key and versions and versions[-1][1] is not None:
            raise errors.UniqueViolation("duplicate key value violates unique constraint")
        self.marked[name, to] = transaction

    def empty(self, transaction: Transaction, name: str) -> None:
        """TRUNCATE."""
        self.lock(transaction, name, ALTERS)
        transaction.emptied.append(self.latest(name))

    def alter(self, transaction: Transaction, name: str, alteration: Alteration) -> None:
        """ALTER TABLE, or what is like it."""
        self.lock(transaction, name, ALTERS)
        transaction.altered[name] = self.latest(name), alteration

    def create(self, definition: Definition) -> None:
        """CREATE TABLE."""
        transaction = self.begin()
        number = self._log(transaction)
        self.catalog[definition.name] = [(number, definition)]
        self.truth.commit({})

    def prepare(self, transaction: Transaction) -> None:
        """PREPARE TRANSACTION: its locks are nobody's."""
        held, transaction.life = self.locks.pop(transaction.holder, {}), 0
        transaction.holder = f"{PREPARED}{transaction.xid}"
        self.prepared_at[transaction.holder] = self.waits.now
        self.locks[transaction.holder] = held

    def roll_back(self, transaction: Transaction) -> None:
        """ROLLBACK, or the end of who had begun it."""
        self._release(transaction)

    def commit(self, transaction: Transaction) -> None:
        """COMMIT, and wait until everybody sees it."""
        self._check(transaction)
        number, images = self._log(transaction), dict[Slot, dict[str, Any] | None]()
        for definition in transaction.emptied:
            for key, versions in self.rows[definition.name].items():
                self._write(number, definition, key, versions, None, images)
        for change in transaction.changes:
            name = change.definition.name
            for row, now in ((change.before, None), (change.after, change.after)):
                if row is not None:
                    key = change.definition.key_of(row)
                    self._write(number, change.definition, key, self.rows[name].setdefault(key, []), now, images)
        for name, (before, alteration) in transaction.altered.items():
            after_it = alteration.definition(before)
            self.catalog[name].append((number, after_it))
            for key, versions in self.rows[name].items():
                row = versions[-1][1]
                after = None if row is None or after_it is None else alteration.row(row)
                self._write(number, after_it or before, key, versions, after, images)
        self.truth.commit(images)
        visible_at = self.waits.now + self.commit_s()
        self._invisible[number] = visible_at
        self.waits.wait(lambda: self.waits.now >= visible_at or self.down, visible_at - self.waits.now)
        self._check(transaction)
        self._release(transaction)

    def _log(self, transaction: Transaction) -> int:
        number = len(self.history) + 1
        self.history.append(
            Commit(number, transaction.xid, self.waits.now, tuple(transaction.changes), tuple(transaction.emptied))
        )
        return number

    def _write(
        self,
        number: int,
        definition: Definition,
        key: Key,
        versions: Versions[Row | None],
        row: Row | None,
        images: dict[Slot, dict[str, Any] | None],
    ) -> None:
        if versions and versions[-1][0] == number:
            versions.pop()
        versions.append((number, row))
        images[definition.name, json.dumps(list(key))] = definition.image(row)

    def _release(self, transaction: Transaction) -> None:
        self.locks.pop(transaction.holder, None)
        self.prepared_at.pop(transaction.holder, None)
        for place in [place for place, holder in self.marked.items() if holder is transaction]:
            del self.marked[place]

    # --- faults ---

    def kill(self) -> None:
        """It crashes: what is logged is committed, all else is lost, but for what is prepared."""
        self.down = True
        self._life += 1
        kept = {holder: held for holder, held in self.locks.items() if holder.startswith(PREPARED)}
        self.locks = {**kept}
        self.marked = {place: each for place, each in self.marked.items() if each.holder in kept}
        self._invisible.clear()
        self._end_sessions()

    def start(self) -> None:
        """Start it again."""
        self.down = False

    def promote(self) -> None:
        """Its standby, which has everything, takes its place, with the slot."""
        self.kill()
        self.timeline += 1
        self.start()

    def forget(self, process: str) -> None:
        """End the sessions of a process that died."""
        for session in [each for each in self.sessions if each.process == process]:
            session.end()

    def _end_sessions(self) -> None:
        for session in list(self.sessions):
            session.end()
