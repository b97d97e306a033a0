"""The state of a run of the world of rows, and the states that faults are counted under."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from consumers.owner.protocol import Fill
from lab.simulation.engine import Outcome, TracedRun
from lab.simulation.models.loop import VirtualLoop
from lab.simulation.models.network import FillUnderWay, Network
from lab.simulation.models.owning import OwnedPartition
from lab.simulation.models.topic import SimulatedTopic
from lab.simulation.rows.asking import Read, SimulatedFront, SimulatedSession, SourceAnswer, SourceRead
from lab.simulation.rows.judging import EXPLAINS, MONOTONIC, Judge
from lab.simulation.rows.publishing import LIMITS, Publishing
from lab.simulation.rows.shaping import OWNERS, SESSIONS, TABLES
from lab.simulation.rows.source import INDEXES, SLOT_OF, SLOTS, SLOTS_A_SHARD, SimulatedSource
from stream.wire.keys import Layout

SHAPE: Final = 5
"""Integers in the first op."""


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
        self.owners = [
            [OwnedPartition(self.topic, number, by_column=bool(owner), indexes=INDEXES) for number in range(count)]
            for owner in range(OWNERS)
        ]
        self.loop = VirtualLoop()
        self.network = Network(self.loop, self.owners, self._note_fill)
        self.source_reads: list[SourceRead] = []
        """Reads of the source that it has not answered."""
        self.answers_at_once: tuple[bool, bool] | None = None
        """Whether the source answers at once: from the replica? with its position? None: when it is told to."""
        self._fronts: dict[int, SimulatedFront] = {}
        self.sessions = [SimulatedSession(number, self.front(0)) for number in range(SESSIONS)]
        self.reads: list[Read] = []
        """Reads of sessions that have not ended."""
        self.judge = Judge(self.publishers, outcome.complain)
        self.verdicts: dict[bytes, str] = {}
        """Key → why the last fill of it was refused; "" if it was not."""
        self.voidable: set[tuple[int, str]] = set()
        """(shard, table) pairs whose rows the cache may rightly not know."""
        self.foreign_rows: set[int] = set()
        self.asked: set[int] = set()
        """Rows that a session has read."""
        self.topic_is_tampered = False
        """Whether the topic holds messages that no publisher of ours wrote."""

    def front(self, number: int) -> SimulatedFront:
        """A front; it starts when it is needed. In small histories it has described the tables before."""
        found = self._fronts.get(number)
        if found is None:
            found = self._fronts[number] = SimulatedFront(
                number, self.network, self.sources, self.topic.layout, self, knows_tables=self.quick
            )
        return found

    def begin_source_read(self, read: SourceRead) -> SourceAnswer | None:
        """The answer to a read of the source, if it is given at once."""
        if self.answers_at_once is None:
            self.source_reads.append(read)
            return None
        from_replica, named = self.answers_at_once
        self.take_snapshot(read, from_replica=from_replica, named=named)
        return self.given(read)

    def take_snapshot(self, read: SourceRead, *, from_replica: bool, named: bool = True) -> None:
        """The source is read, at the primary or the replica. ``named``: the snapshot has a position."""
        source = self.sources[read.shard]
        if from_replica and source.replica < source.engine:
            self.count_fault("lagging replica")
        read.snapshots = [source.read(SLOT_OF[key], from_replica=from_replica) for key in read.keys]
        read.named = named
        if self.tracing:
            where, keys = "replica" if from_replica else "primary", ", ".join(map(repr, read.keys))
            self.say(f"  the front reads {keys} at the {where}, at {read.snapshots[0].position}")

    def given(self, read: SourceRead) -> SourceAnswer:
        """What the front gets of the snapshots."""
        assert read.snapshots is not None
        source = self.sources[read.shard]
        if not read.named and read.noted:
            self.count_fault("position noted around a read")
        self.network.giving = read.snapshots[0].history
        return read.rows(source.history.positions[source.engine])

    def went_back(self, what: str) -> None:
        """A front uses an epoch of which it knows that it is over."""
        self.complain(MONOTONIC, what)

    def called_fresh(self, what: str) -> None:
        """A front says more of an answer than is true."""
        self.complain(EXPLAINS, what)

    def _note_fill(self, fill: FillUnderWay) -> None:
        request, (accepted, why) = fill.request, fill.verdict
        assert isinstance(request, Fill)
        if accepted:
            self.judge.note_fill(request, fill.history)
        self.outcome.answers[f"fill {'accepted' if accepted else 'refused'}"] += 1
        self.verdicts[request.key] = "" if accepted else why
        if self.tracing:
            self.say(f"  a fill of {request.key!r} read at {request.lo} reaches its owner: {why}")

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""
        self.loop.close()
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
    "quiet": lambda w, owned: not w.reads and not any(o.behind for o in owned),
    "a batch collected": lambda w, _: any(p.collected for p in w.publishers),
    "a transaction partly out": lambda w, _: any(p.split for p in w.publishers),
    "owners behind": lambda _, owned: any(o.behind for o in owned),
    "owners apart": lambda w, _: any(a.offset != b.offset for a, b in zip(*w.owners, strict=True)),
    "folded, not durable": lambda _, owned: any(o.store.is_dirty for o in owned),
    "a commit under way": lambda _, owned: any(o.store._frozen for o in owned),
    "a read under way": lambda w, _: bool(w.reads),
    "a fill under way": lambda w, _: bool(w.network.fills),
    "a fill in an overlay": lambda _, owned: any(len(o.overlay) for o in owned),
    "a void without its marker": lambda _, owned: any(
        not void.floor for o in owned if o.store.visible.voids for void in o.store.visible.voids.values()
    ),
    "a later epoch": lambda w, _: any(len(p.epoch_start) > 1 for p in w.publishers),
    "two shards": lambda w, _: len(w.sources) > 1,
}
