"""Transactions of the engine and what they lock: tables against changes of their definition, rows against writers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias, TypeVar

from pymysql.constants import ER

from lab.simulation.mariadb.log.events import Event
from lab.simulation.mariadb.sql.syntax import Name
from lab.simulation.mariadb.storage.errors import ServerError
from lab.simulation.mariadb.storage.tables import Key, Row, Table

T = TypeVar("T")


class Blocked(NamedTuple):
    """What a statement waits for: it goes on when ``ready()``, or at the time ``until``."""

    ready: Callable[[], bool]
    until: float


Steps: TypeAlias = Generator[Blocked, None, T]
"""A statement under way. It yields where it has to wait."""
Change: TypeAlias = tuple[Name, Key, Row | None]
"""A row that a commit leaves: its table, its key, None if it is deleted."""
WriteSet: TypeAlias = dict[tuple[Table, Key], Row | None]


@dataclass(eq=False)
class Transaction:
    """A transaction. ``snapshot``: the last commit that it sees; None before its first read."""

    read_only: bool = False
    snapshot: int | None = None
    writes: WriteSet = field(default_factory=dict)
    log: list[Event] = field(default_factory=list)
    """Its events for the binlog, without their frame."""

    def row(self, table: Table, key: Key, commit: int) -> Row | None:
        """The row as of ``commit``, or as this transaction left it."""
        if (table, key) in self.writes:
            return self.writes[table, key]
        return table.row(key, commit)

    def keys(self, table: Table) -> list[Key]:
        """Every key that a row of the table may have, in the order of the keys."""
        found = {*table.versions, *(key for other, key in self.writes if other is table)}
        return sorted(found, key=lambda key: tuple((each is not None, each) for each in key))

    def savepoint(self) -> tuple[WriteSet, int]:
        """What `back_to` needs to undo the statement that begins."""
        return dict(self.writes), len(self.log)

    def back_to(self, savepoint: tuple[WriteSet, int]) -> None:
        """Undo what was written since."""
        self.writes = savepoint[0]
        del self.log[savepoint[1] :]


class Locks:
    """Who holds tables and rows, and who waits for whom. An owner is any object that lives as long as its locks."""

    def __init__(self, now: Callable[[], float], settle: Callable[[], float]) -> None:
        """``settle``: ends the commits that are due, which frees what they hold, and returns when the next one is."""
        self._now = now
        self._settle = settle
        self._sharing: dict[Name, dict[Any, None]] = {}
        self._exclusive: dict[Name, Any] = {}
        self._queued: dict[Name, list[Any]] = {}
        self._rows: dict[tuple[Table, Key], Any] = {}
        self._waiting: dict[Any, set[Any]] = {}

    def share_table(self, owner: Any, name: Name, until: float) -> Steps[None]:
        """Hold a table as it is defined. A change that waits goes first. Raises `ServerError` 1205."""
        if owner in self._sharing.get(name, ()):
            return

        def blockers() -> set[Any]:
            return {each for each in (self._exclusive.get(name), *self._queued.get(name, ())) if each is not None} - {
                owner
            }

        yield from self._wait(owner, blockers, until)
        self._sharing.setdefault(name, {})[owner] = None

    def take_tables(self, owner: Any, names: Iterable[Name], until: float) -> Steps[None]:
        """Hold tables alone, to change them. Raises `ServerError` 1205."""
        for name in sorted(set(names)):
            queue = self._queued.setdefault(name, [])
            queue.append(owner)
            try:
                yield from self._wait(owner, lambda name=name: self._holders(name, owner), until)  # type: ignore[misc]
                self._exclusive[name] = owner
            finally:
                queue.remove(owner)

    def hold_table(self, owner: Any, name: Name) -> None:
        """Hold a table alone from now on, until `release`."""
        self._exclusive[name] = owner

    def _holders(self, name: Name, owner: Any) -> set[Any]:
        others = {each for each in self._sharing.get(name, ()) if each is not owner}
        holder = self._exclusive.get(name)
        return others if holder is None or holder is owner else {*others, holder}

    def take_row(self, owner: Any, table: Table, key: Key, until: float) -> Steps[None]:
        """Hold a row against other writers. Raises `ServerError` 1205, or 1213 if it would wait for itself."""
        place = table, key
        yield from self._wait(owner, lambda: {self._rows[place]} - {owner} if place in self._rows else set(), until)
        self._rows[place] = owner

    def _wait(self, owner: Any, blockers: Callable[[], set[Any]], until: float) -> Steps[None]:
        try:
            while True:
                next_at = self._settle()
                found = blockers()
                if not found:
                    return
                self._waiting[owner] = found
                if self._waits_for_itself(owner):
                    raise ServerError(
                        ER.LOCK_DEADLOCK, "Deadlock found when trying to get lock; try restarting transaction", "40001"
                    )
                if self._now() >= until:
                    raise ServerError(ER.LOCK_WAIT_TIMEOUT, "Lock wait timeout exceeded; try restarting transaction")
                yield Blocked(lambda: not blockers(), min(until, next_at))
        finally:
            self._waiting.pop(owner, None)

    def _waits_for_itself(self, owner: Any) -> bool:
        seen: set[Any] = set()
        left = list(self._waiting[owner])
        while left:
            other = left.pop()
            if other is owner:
                return True
            if other not in seen:
                seen.add(other)
                left += self._waiting.get(other, ())
        return False

    def release(self, owner: Any) -> None:
        """Let go of everything that ``owner`` holds."""
        for sharing in self._sharing.values():
            sharing.pop(owner, None)
        self._exclusive = {name: each for name, each in self._exclusive.items() if each is not owner}
        self._rows = {place: each for place, each in self._rows.items() if each is not owner}
