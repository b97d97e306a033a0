"""The transaction that is being read, and what is published of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import structlog

from stream.sources.mariadb.binlog import events
from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.binlog.coalesce import TransactionRows
from stream.sources.mariadb.gtid import Gtid, ServerGtid
from stream.wire.events import EVERY_TABLE, Change, KeylessRow, SourceTransaction, VoidTable

log = structlog.get_logger(__name__)

_NO_TABLES: Final[frozenset[bytes]] = frozenset()
_NOBODYS: Final = Gtid(0, 0, 0, 0)
_KEYLESS_OVERHEAD_BYTES: Final = 300
_TOO_MANY: Final = "the transaction has more rows without a key than are held"
_NOW_KNOWN: Final = "its schema is known from here on"


class OpenTransaction:
    """A transaction as far as it was read.

    ``voids``: table → why it is void. ``described``: the tables to describe after it. ``touched``: those that it has
    rows of.
    """

    __slots__ = (
        "_keeps_before",
        "_keyless",
        "_keyless_bytes",
        "_spill_bytes",
        "described",
        "gtid",
        "is_standalone",
        "rows",
        "touched",
        "voids",
    )

    def __init__(self, gtid: ServerGtid, spill_bytes: int, *, keeps_before: bool = False) -> None:
        """As `TransactionRows` has ``spill_bytes`` and ``keeps_before``."""
        self._spill_bytes, self._keeps_before = spill_bytes, keeps_before
        self.gtid = gtid
        self.is_standalone = not isinstance(gtid, Gtid) or bool(gtid.flags & events.STANDALONE)
        """Whether one statement is all of it. MySQL's is no longer so when it begins with BEGIN."""
        self.rows = self._no_rows()
        self._keyless: list[KeylessRow] = []
        self._keyless_bytes = 0
        self.voids: dict[str, str] = {}
        self.described: set[str] = set()
        self.touched: set[str] = set()

    @classmethod
    def of_nobody(cls, spill_bytes: int) -> OpenTransaction:
        """One that no server has logged: see `alone`."""
        return cls(_NOBODYS, spill_bytes)

    def _no_rows(self) -> TransactionRows:
        return TransactionRows(self._spill_bytes, keeps_before=self._keeps_before)

    def add_keyless(self, row: KeylessRow) -> None:
        """A row of a table without a primary key. If they are too many for memory, their tables are void."""
        if row.table in self.voids:
            return
        self._keyless.append(row)
        self._keyless_bytes += len(row.before) + len(row.after) + _KEYLESS_OVERHEAD_BYTES
        if self._keyless_bytes >= self._spill_bytes:
            for each in self._keyless:
                self.voids.setdefault(each.table, _TOO_MANY)
            self._keyless.clear()
            self._keyless_bytes = 0

    def announce(self, reasons: dict[str, str]) -> None:
        """Void and describe the tables of ``reasons`` (table → why), which is emptied: it is said once."""
        for name, reason in reasons.items():
            self.voids.setdefault(name, reason)
            self.described.add(name)
        reasons.clear()

    def settle(self, found: Mapping[str, bool]) -> None:
        """Describe, after it, the tables whose schema is known now. ``found``: as of `Catalog.settle`."""
        for name, is_void in found.items():
            if is_void:
                self.voids.setdefault(name, _NOW_KNOWN)
            self.described.add(name)

    def alone(self, position: str, timestamp: int, catalog: Catalog) -> SourceTransaction | None:
        """What is published of one that is nobody's, at the position that is published already; None: nothing is."""
        if not self.described and not self.voids:
            return None
        return SourceTransaction(position, position, timestamp, list(self.changes(catalog)))

    def void_touched(self, reason: str) -> None:
        """Void the touched tables: the binlog has rows that were then rolled back, or that are lost."""
        for name in self.touched:
            self.voids.setdefault(name, reason)

    def lose_rows(self, error: OSError) -> None:
        """Void what it changes: its rows need more memory than they may have, and no file takes them."""
        reason = f"the rows of a large transaction could not be kept: {error}"
        log.warning("a transaction is void", reason=reason, hint="give TMPDIR, or /tmp, room", gtid=self.gtid.bare)
        self.void_touched(reason)
        self.rows = self._no_rows()

    def changes(self, catalog: Catalog) -> Sequence[Change]:
        """What is published of it. ``catalog``: with the descriptions of after it."""
        try:
            if not self.voids and not self.described and not self._keyless:  # as nearly always
                return self.rows.changes(_NO_TABLES)
            return self.rows.changes(*self._tail(catalog))
        except OSError as error:
            self.lose_rows(error)
            return self.rows.changes(*self._tail(catalog))

    def _tail(self, catalog: Catalog) -> tuple[frozenset[bytes], Sequence[Change]]:
        """The key prefixes of the tables that it voids, and what follows its rows."""
        hidden = self.voids.keys()
        tail: list[Change] = [row for row in self._keyless if row.table not in hidden and EVERY_TABLE not in hidden]
        tail += [VoidTable(name, self.voids[name]) for name in sorted(self.voids)]
        tail += [catalog.description(name) for name in sorted(self.described)]
        return frozenset(name.encode() + b"\0" for name in self.voids), tail
