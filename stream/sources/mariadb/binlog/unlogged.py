"""Changes that are not in the binlog: InnoDB's foreign keys change rows of other tables without logging them.

The table maps of a statement name all tables that it may change this way. `LiveSchema` knows the foreign keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.cascades.foreign_keys import Cascades
from stream.wire.events import EVERY_TABLE

_SEEN: Final = 1
_DELETED: Final = 2
_UPDATED: Final = 4
_KINDS: Final = (
    dict.fromkeys(events.WRITES, _SEEN)
    | dict.fromkeys(events.DELETES, _DELETED)
    | dict.fromkeys(events.UPDATES, _UPDATED)
)
_REASON_UNNAMED: Final = "the transaction may have changed rows by a foreign key, which this server does not log"
_REASON: Final = "the transaction may have changed rows by a foreign key (named in the binlog, without rows)"


class StatementTables:
    """The tables named by the current statement, and the kinds of row events that it logged for each."""

    __slots__ = ("_checks", "_seen", "_unpublished")

    def __init__(self) -> None:
        self._checks = 0
        self._seen: dict[str, int] = {}
        self._unpublished: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._seen)

    @property
    def names(self) -> Set[str]:
        """The tables named so far."""
        return self._seen.keys() - self._unpublished

    def named(self, table: str) -> None:
        """Record a table map."""
        self._seen.setdefault(table, 0)

    def named_unpublished(self, table: str) -> None:
        """Record one of a table that is not published: foreign keys lead from there to those that are."""
        self._seen.setdefault(table, 0)
        self._unpublished.add(table)

    def logged(self, table: str, kind: int) -> None:
        """Record a rows event of type ``kind``; 0: of a table that can't be decoded."""
        self._seen[table] = self._seen.get(table, 0) | _KINDS.get(kind, _SEEN)

    def checked(self, flags: int) -> None:
        """Record the flags of a rows event: whether the session had foreign keys on when it began."""
        self._checks |= 2 if flags & events.NO_FOREIGN_KEYS else 1

    @property
    def are_checks_mixed(self) -> bool:
        """Whether a trigger or a function switched foreign keys off for a part of the statement.

        InnoDB may then cascade nothing for the rest of it either, though the session has them on again.
        """
        return self._checks == 3

    def clear(self) -> None:
        """Begin a statement."""
        self._checks = 0
        self._seen.clear()
        if self._unpublished:
            self._unpublished.clear()

    @property
    def changed(self) -> Mapping[str, bool]:
        """Each table that had rows deleted or updated (True), or that is named without rows (False)."""
        kinds = self._seen.items()
        return {name: bool(logged) for name, logged in kinds if not logged or logged & (_DELETED | _UPDATED)}

    def end(self, cascades: Cascades, voids: dict[str, str]) -> None:
        """Add each table that the statement may have changed without logging to ``voids`` (table → reason)."""
        seen = self._seen
        if len(seen) == 1 and not cascades.on_delete and not cascades.on_update:
            if 0 in seen.values():
                self._void_unlogged(cascades, voids)
        elif seen:
            self._void_unlogged(cascades, voids)

    def end_unread(self, unread: Set[str], cascades: Cascades, voids: dict[str, str]) -> None:
        """As `end`, for foreign keys that are not known yet: those of ``unread`` tables, with `EVERY_TABLE` of any."""
        if any(self.changed.values()):
            below = {child for table in unread for child in cascades.below(table)}
            for name in self.names:
                if name in unread or name in below or EVERY_TABLE in unread:
                    voids.setdefault(name, _REASON)

    def end_unnamed(self, cascades: Cascades, published: Set[str], voids: dict[str, str]) -> None:
        """As `end`, for a server whose table maps don't name what foreign keys change: MySQL before 9.6.

        ``published``: the tables that can be in ``voids``.
        """
        for name, logged in self._seen.items():
            below = cascades.on_delete.get(name, frozenset()) if logged & _DELETED else frozenset()
            if logged & _UPDATED:
                below |= cascades.on_update.get(name, frozenset())
            for child in below & published:
                voids.setdefault(child, _REASON_UNNAMED)

    def _void_unlogged(self, cascades: Cascades, voids: dict[str, str]) -> None:
        """Void mapped tables without rows, and the tables below changed ones."""
        for name, logged in self._seen.items():
            if not logged:
                if name not in self._unpublished:
                    voids.setdefault(name, _REASON)
                below = cascades.on_delete.get(name, frozenset()) | cascades.on_update.get(name, frozenset())
            else:
                below = cascades.on_delete.get(name, frozenset()) if logged & _DELETED else frozenset()
                below |= cascades.on_update.get(name, frozenset()) if logged & _UPDATED else frozenset()
                below &= self._seen.keys()
            for child in below - self._unpublished:
                voids.setdefault(child, _REASON)
