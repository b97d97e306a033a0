"""Judges what the replay of a log shows by what the metastore itself has. It calls nothing of the product."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lab.simulation.hive.metastore import Metastore

STALE: Final = "no stale answer"
UNCOMMITTED: Final = "nothing uncommitted"
SERVERS_OWN: Final = "the list is the server's own"
RECOVERS: Final = "recovers by itself"
RULES: Final = (STALE, UNCOMMITTED, SERVERS_OWN, RECOVERS)


class Shown(NamedTuple):
    """A table as the replay shows it. ``write_ids``: None for an external table."""

    table_id: int
    write_ids: str | None
    servable: bool
    why: str
    image: bytes | None


@dataclass
class Truth:
    """What a replay cannot know of a metastore, or should."""

    server: Metastore
    is_whole: bool = True
    """Every event came, and could be read."""
    may_have_kept: bool = False
    """A DROP has left write ids, which its event does not tell."""
    wrote: dict[int, set[int]] = field(default_factory=dict)
    """Table id → transactions that wrote it."""
    awaited: set[int] = field(default_factory=set)
    """Ids of tables whose last write showed no image."""
    suspected: dict[int, set[int]] = field(default_factory=dict)
    """Table id → transactions that may have written it: those with an open write id on it, at each of its writes."""

    def writes(self, name: str, txn: int, *, shown: bool) -> None:
        """A table is written, by a transaction or by none (0).

        One without a write id on the table is as good as none: a metastore undoes nothing, so the write stays.
        No transaction is awaited for an external table.
        """
        table_id, kind = self.server.tables[name]
        (self.awaited.discard if shown else self.awaited.add)(table_id)
        if kind != "external" and self.server.held_by(name, txn):
            self.wrote.setdefault(table_id, set()).add(txn)
        holders = {row[1] for row in self.server.rows if row[0] == name}
        self.suspected.setdefault(table_id, set()).update(self._open(holders))

    def is_pending(self, table_id: int) -> bool:
        """Whether a transaction that wrote the table is open."""
        return bool(self._open(self.wrote.get(table_id, set())))

    def may_be_pending(self, table_id: int) -> bool:
        """Whether one is open that may have written it, as far as the log tells."""
        return bool(self._open(self.suspected.get(table_id, set())))

    def _open(self, txns: set[int]) -> set[int]:
        return {txn for txn in txns if self.server.txns[txn] == "open"}


def check(truth: Truth, shown: dict[str, Shown], complain: Callable[[str, str], None]) -> None:
    """Complains of every table that a reader would get wrong, or would not get although the log has all of it."""
    server = truth.server
    for name, table in shown.items():
        if table.servable:
            _check_servable(truth, name, table, complain)
    if not truth.is_whole:
        return
    found = {name: table.table_id for name, table in shown.items()}
    expected = {name: table_id for name, (table_id, _) in server.tables.items()}
    if found != expected:
        complain(SERVERS_OWN, f"the tables are {found}, the metastore has {expected}")
        return
    for name, (table_id, kind) in server.tables.items():
        own = server.valid_write_ids(name) if kind != "external" else None
        if shown[name].write_ids != own and not truth.may_have_kept:
            complain(SERVERS_OWN, f"the list of {name} is {shown[name].write_ids}, the metastore's is {own}")
        if not shown[name].servable and table_id not in truth.awaited and not truth.may_be_pending(table_id):
            complain(RECOVERS, f"{name} is not servable: {shown[name].why}; no writer of it is open")


def _check_servable(truth: Truth, name: str, table: Shown, complain: Callable[[str, str], None]) -> None:
    server = truth.server
    if name not in server.tables or server.tables[name][0] != table.table_id:
        complain(STALE, f"{name} (id {table.table_id}) is servable; the metastore has {server.tables.get(name)}")
        return
    if truth.is_pending(table.table_id):
        complain(UNCOMMITTED, f"{name} is servable while a transaction that wrote it is open: {table.why}")
    image = json.loads(table.image or b"{}")
    stored = server.parameters(name)
    if f"{image.get('dbName')}.{image.get('tableName')}" != name or image.get("parameters") != stored:
        complain(STALE, f"{name} is servable as {image}, the metastore has {stored}")
    if table.write_ids is not None and (extra := too_many(table.write_ids, server.valid_write_ids(name))):
        complain(UNCOMMITTED, f"write id {extra} of {name} is valid in {table.write_ids}, and not at the metastore")


def too_many(found: str, own: str) -> int:
    """An id that is valid in the list ``found`` and not in the metastore's own; 0: there is none.

    An id of an aborted transaction is as good as none: nothing can be read from it.
    """
    hwm, exceptions, _ = read_list(found)
    own_hwm, own_exceptions, own_aborted = read_list(own)
    beyond = range(own_hwm + 1, min(hwm, own_hwm + len(exceptions) + 1) + 1)
    suspects = (*(own_exceptions - own_aborted), *beyond)
    return next((each for each in suspects if each <= hwm and each not in exceptions), 0)


def read_list(text: str) -> tuple[int, set[int], set[int]]:
    """High-water mark, exceptions, and those of them that are aborted."""
    *_, hwm, _, opened, aborted = text.split(":")
    open_ids, aborted_ids = ({int(each) for each in ids.split(",") if each} for ids in (opened, aborted))
    return int(hwm), open_ids | aborted_ids, aborted_ids
