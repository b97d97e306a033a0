"""The state of a run of the world of rows, and the states that faults are counted under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from consumers.owner import evidence
from lab.simulation.engine import Outcome, TracedRun
from lab.simulation.models.owning import OwnedPartition
from lab.simulation.models.topic import SimulatedTopic
from lab.simulation.rows.asking import Offer, SimulatedSession, SourceRead
from lab.simulation.rows.judging import Judge
from lab.simulation.rows.publishing import LIMITS, Publishing
from lab.simulation.rows.shaping import FRONTS, OWNERS, SESSIONS, TABLES
from lab.simulation.rows.source import SLOTS, SLOTS_A_SHARD, SimulatedSource
from serving.reads.spaces import Epochs
from stream.wire.keys import Layout

SHAPE: Final = 5
"""Integers in the first op."""


def _located(owners: list[list[OwnedPartition]]) -> str:
    return str(evidence.watermarks(owners[0][0].partition))


class RowsRunState(TracedRun):
    """All parts of one run of a history."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: 1 for two partitions, two shards, two domains; index of the limits; 1 for `quick`."""
        super().__init__(outcome, trace)
        partitions, shards, domains, limits, quick = shape
        self.quick = bool(quick)
        """Whether only one owner is checked at the end, and only rows to which something happened."""
        self.last_owner = 0
        """The owner of the last op."""
        self.topic = SimulatedTopic(Layout(1 + partitions % 2))
        self.sources = [SimulatedSource(shard, 1 + domains % 2) for shard in range(1 + shards % 2)]
        names = tuple(source.name for source in self.sources) if len(self.sources) > 1 else ()
        self.publishers = [Publishing(self.topic, source, LIMITS[limits % 3], names) for source in self.sources]
        count = self.topic.layout.partitions
        self.owners = [[OwnedPartition(self.topic, number) for number in range(count)] for _ in range(OWNERS)]
        self.fronts = [Epochs() for _ in range(FRONTS)]
        self.located = partial(_located, self.owners)
        self.sessions = [SimulatedSession(number, self.located) for number in range(SESSIONS)]
        self.epochs_told: list[dict[str, int]] = [{} for _ in range(FRONTS)]
        """For each front: shard → the highest epoch in an owner's answer."""
        self.source_reads: list[SourceRead] = []
        self.offers: list[Offer] = []
        self.judge = Judge(self.publishers, outcome.complain)
        self.voidable: set[tuple[int, str]] = set()
        """(shard, table) pairs whose rows the cache may rightly not know."""
        self.foreign_rows: set[int] = set()
        self.asked: set[int] = set()
        """Rows that a session has read."""
        self.topic_is_tampered = False
        """Whether the topic holds messages that no publisher of ours wrote."""

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""
        for owned in chain.from_iterable(self.owners):
            owned.close()

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        met = self.outcome.met
        owned = [*chain.from_iterable(self.owners)]
        for state, holds in STATES.items():
            if holds(self, owned):
                met[fault, state] += 1

    def _void(self, shard: int | None = None, *tables: str) -> None:
        for each in range(len(self.sources)) if shard is None else (shard,):
            self.voidable.update((each, table) for table in tables or TABLES)

    def _slot(self, number: int) -> int:
        return number % (len(self.sources) * SLOTS_A_SHARD)

    def _partition(self, owner: int, number: int) -> OwnedPartition:
        owned = self.owners[owner]
        return owned[number % len(owned)]

    def _owned(self, owner: int, slot: int, alias: bool) -> OwnedPartition:
        key = SLOTS[slot].alias if alias and SLOTS[slot].alias else SLOTS[slot].key
        return self.owners[owner][self.topic.layout.partition_of(key)]


STATES: Final[dict[str, Callable[[RowsRunState, list[OwnedPartition]], bool]]] = {
    "quiet": lambda w, owned: not w.source_reads and not any(o.behind for o in owned),
    "a batch collected": lambda w, _: any(p.collected for p in w.publishers),
    "a transaction partly out": lambda w, _: any(p.split for p in w.publishers),
    "owners behind": lambda _, owned: any(o.behind for o in owned),
    "owners apart": lambda w, _: any(a.offset != b.offset for a, b in zip(*w.owners, strict=True)),
    "folded, not durable": lambda _, owned: any(o.store.is_dirty for o in owned),
    "a commit under way": lambda _, owned: any(o.store._frozen for o in owned),
    "a read under way": lambda w, _: bool(w.source_reads),
    "a fill under way": lambda w, _: bool(w.offers),
    "a fill in an overlay": lambda _, owned: any(len(o.overlay) for o in owned),
    "a void without its marker": lambda _, owned: any(
        not void.floor for o in owned if o.store.visible.voids for void in o.store.visible.voids.values()
    ),
    "a later epoch": lambda w, _: any(len(p.epoch_start) > 1 for p in w.publishers),
    "two shards": lambda w, _: len(w.sources) > 1,
}
