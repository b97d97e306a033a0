"""What the workload's log is translated to, without a database: above all where a commit's write ids come from."""

from __future__ import annotations

from typing import Any

import pytest

from lab.workload.events import LogRow, WorkloadTranslator
from stream.wire.events import (
    EVERY_TABLE,
    AbortTransaction,
    CommitTransaction,
    OpenTransaction,
    SourceTransaction,
    VoidTable,
)

OPEN, ALLOC, OTHER = ("OPEN", 0), ("ALLOC", 1), ("ALLOC", 2)
LOOKED_UP = [(9, 90), (1, 10)]


class Log:
    """Translates events of transaction 5; notes which transactions are looked up in the catalog."""

    def __init__(self, *open_before: OpenTransaction) -> None:
        self.looked_up: list[int] = []
        self._event = 0
        self._translator = WorkloadTranslator(self._pairs_of, open_before)

    def _pairs_of(self, txn: int) -> list[tuple[int, int]]:
        self.looked_up.append(txn)
        return LOOKED_UP

    def event(self, kind: str, table: int = 0, /, **fields: Any) -> SourceTransaction:
        """The next one."""
        self._event += 1
        if kind == "ALLOC":
            fields["write_id"] = 10 * table
        return self._translator.translate(LogRow(self._event, 1, kind, 5, table, fields, b"{}"))


@pytest.mark.parametrize(("ends", "ended"), [("COMMIT", CommitTransaction), ("ABORT", AbortTransaction)])
@pytest.mark.parametrize(
    ("before", "events", "pairs", "is_looked_up"),
    [
        ((), [OPEN, ALLOC, OTHER], ((1, 10), (2, 20)), False),
        ((), [OPEN], (), False),
        ((), [OTHER], ((1, 10), (9, 90)), True),
        ((), [], ((1, 10), (9, 90)), True),
        ((OpenTransaction(5, ((1, 10),), True),), [OTHER], ((1, 10), (2, 20)), False),
        ((OpenTransaction(5, ((1, 10),), False),), [OTHER], ((1, 10), (9, 90)), True),
    ],
)
def test_an_end_has_all_write_ids_of_its_transaction(
    ends: str,
    ended: type[CommitTransaction | AbortTransaction],
    before: tuple[OpenTransaction, ...],
    events: list[tuple[str, int]],
    pairs: tuple[tuple[int, int], ...],
    is_looked_up: bool,
) -> None:
    """Those of its events only if they began with it: of one that was open already some may be in front of the log."""
    log = Log(*before)
    for kind, table in events:
        log.event(kind, table)
    found = log.event(ends)
    assert (found.changes, found.closed) == ([ended(5, pairs)], (5,))
    assert log.looked_up == ([5] if is_looked_up else [])


def test_an_open_transaction_is_told_when_it_has_changed() -> None:
    """A source that is started again goes on with what was told last; what is the same again is not said again."""
    log = Log()
    written = {"name": "db.t", "kind": "transactional", "write_id": 10}
    assert log.event("OPEN").opened == (OpenTransaction(5),)
    assert log.event("ALLOC", 1).opened == (OpenTransaction(5, ((1, 10),)),)
    assert log.event("WRITE", 1, **written).opened == (OpenTransaction(5, ((1, 10),), True, (1,)),)
    assert log.event("WRITE", 1, **written).opened == ()
    assert log.event("COMMIT").opened == ()


@pytest.mark.parametrize(("kind", "fields"), [("MERGE", {}), ("RENAME", {"name": "db.t"}), ("CREATE", {})])
def test_what_can_not_be_translated_voids_every_table(kind: str, fields: dict[str, Any]) -> None:
    """It may have changed any of them."""
    [change] = Log().event(kind, 1, **fields).changes
    assert isinstance(change, VoidTable)
    assert change.table == EVERY_TABLE
