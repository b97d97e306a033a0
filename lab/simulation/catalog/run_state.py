"""The state of a run of the world of catalog tables, and the states that faults are counted under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from consumers.owner.protocol import FillTable
from lab.simulation.catalog.asking import CATALOG, CatalogReader, SimulatedCatalogFront
from lab.simulation.catalog.publishing import LIMITS, CatalogPublishing
from lab.simulation.catalog.shaping import OWNERS, READERS
from lab.simulation.catalog.source import OPEN, SimulatedMetastore
from lab.simulation.engine import Outcome, TracedRun
from lab.simulation.models.loop import VirtualLoop
from lab.simulation.models.network import FillUnderWay, Network
from lab.simulation.models.owning import OwnedPartition
from lab.simulation.models.topic import SimulatedTopic
from lab.workload.catalog import position_of
from serving.sources.source import SourceTable
from stream.wire.keys import Layout
from tokens import Position, ValidWriteIdList

SHAPE: Final = 4
"""Integers in the first op."""


class CatalogRunState(TracedRun):
    """All parts of one run of a history."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: 1 for three partitions, 1 if ABORT does not undo writes, index of the limits, 1 for `quick`."""
        super().__init__(outcome, trace)
        partitions, undoes, limits, quick = shape
        self.quick = bool(quick)
        """Whether only one owner is checked at the end."""
        self.store = SimulatedMetastore(undoes=not undoes)
        self.last_owner = 0
        """The owner of the last op."""
        self.topic = SimulatedTopic(Layout(1 + 2 * (partitions % 2)), CATALOG)
        self.topic.damageable = frozenset(
            {"AllocWriteId", "TableImage", "CommitTxn", "AbortTxn", "WriteIdsReset", "NameBinding"}
        )
        self.publisher = CatalogPublishing(self.topic, self.store, LIMITS[limits % 3])
        count = self.topic.layout.partitions
        self.owners = [[OwnedPartition(self.topic, number) for number in range(count)] for _ in range(OWNERS)]
        self.loop = VirtualLoop()
        self.network = Network(self.loop, self.owners, self._note_fill)
        self.front = SimulatedCatalogFront(self.network, self.topic.layout, self)
        self.readers = [CatalogReader(number, self.front) for number in range(READERS)]
        self.epoch_was_told = False
        """Whether the front has asked an owner that had folded a marker."""
        self.damaged = False
        self.incomplete = False
        """Whether a message of the log is lost. Its names and lists come again only with a new epoch."""
        self.replica = self.store.copy()
        self.answering = self.store
        """The metastore that answers: this one, or the replica."""

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""
        self.loop.close()
        for owned in chain.from_iterable(self.owners):
            owned.close()

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        for state, holds in STATES.items():
            if holds(self):
                self.outcome.met[fault, state] += 1

    def read_metastore(self, name: str, own_list: str | None) -> SourceTable:
        """As `WorkloadCatalog.read_table`. A reader with a list of its own is answered by the primary.

        Only it knows which writer an open id belongs to (docs/concepts/guarantees.md).
        """
        store = self.answering if own_list is None else self.store
        position = Position.parse(position_of(store.end))
        table = store.tables.get(name)
        if table is None:
            return SourceTable(0, "", None, "", position)
        own = 0
        if own_list is not None:
            wanted = ValidWriteIdList.parse(own_list)
            writers = sorted((w, txn) for w, txn in table.write_ids.items() if store.txns[txn] == OPEN)
            own = next((txn for w, txn in writers if wanted.is_valid(w)), 0)
        mine = table.staged is not None and table.staged[0] == own
        image = table.staged[1] if mine and table.staged is not None else table.image
        text = store.list_of(table, own) if table.kind == "transactional" else ""
        return SourceTable(table.table_id, table.kind, image, text, position)

    def _note_fill(self, fill: FillUnderWay) -> None:
        request, (accepted, why) = fill.request, fill.verdict
        assert isinstance(request, FillTable)
        self.outcome.answers[f"fill {'accepted' if accepted else 'refused'}"] += 1
        self.say(f"  a fill of {request.name} (id {request.table_id}) read at {request.lo} reaches its owner: {why}")

    def _done(self, what: str) -> None:
        self.say(f"event {self.store.end}: {what}")


STATES: Final[dict[str, Callable[[CatalogRunState], bool]]] = {
    "a transaction open": lambda w: bool(w.store.open_txns()),
    "a write uncommitted": lambda w: any(
        row.event_type == "WRITE" and w.store.txns.get(row.txn) == OPEN for row in w.store.log
    ),
    "writes are undone by ABORT": lambda w: w.store.undoes,
    "writes are not undone": lambda w: not w.store.undoes,
    "a transaction partly out": lambda w: w.publisher.split,
    "events not published": lambda w: w.publisher._next < w.store.end,
    "owners behind": lambda w: any(each.behind for owner in w.owners for each in owner),
    "owners apart": lambda w: any(a.offset != b.offset for a, b in zip(*w.owners, strict=True)),
    "a later epoch": lambda w: w.publisher.epoch > 1,
    "a list fetched": lambda w: any(reader.lists is not None for reader in w.readers),
    "a list of an own transaction": lambda w: any(r.lists is not None and r.lists.own for r in w.readers),
    "a fill under way": lambda w: bool(w.network.fills),
}
