"""Ops of the world of rows: owners that fold, commit and crash, and sessions that read."""

from __future__ import annotations

from typing import Any

from consumers.owner import evidence
from consumers.owner import rows as owner_rows
from consumers.owner.evidence import FillVerdict
from consumers.owner.protocol import OwnerError
from lab.simulation.models.owning import OwnedPartition, RacingStore
from lab.simulation.rows import asking
from lab.simulation.rows.asking import Offer, PendingRead, ServedAnswer, SimulatedSession, SourceRead
from lab.simulation.rows.judging import EXPLAINS, MONOTONIC
from lab.simulation.rows.run_state import RowsRunState
from lab.simulation.rows.source import SLOTS, SLOTS_A_SHARD
from serving.client import HistoryLost, ServerError
from serving.client.session import Demanded
from tokens import Vector


class RowReadOps(RowsRunState):
    """Ops of owners, fronts and sessions."""

    # --- owners ---

    def op_fold(self, owner: int, partition: int, count: int) -> None:
        self.last_owner = owner
        owned = self._partition(owner, partition)
        folded = owned.fold(count + 1)
        self.say(f"owner {owner} folds {folded} messages of partition {owned.number}")

    def op_sync(self, owner: int) -> None:
        for owned in self.owners[owner]:
            owned.fold(owned.behind)
        self.say(f"owner {owner} folds everything")

    def op_fold_and_read(self, owner: int, partition: int, count: int, session: int, slot: int) -> None:
        owned, slot = self._partition(owner, partition), self._slot(slot)
        if self._owned(owner, slot, False) is not owned:
            return
        count = owned.behind - count
        if count < 2:
            return
        self.count_fault("read within a fold")
        self.say(f"owner {owner} folds {count} messages of partition {owned.number}; before the last one:")

        def read() -> None:
            self._ask(session, slot, owner, 0, 0)

        owned.fold(count, read)

    def op_race(self, owner: int, session: int, slot: int, count: int) -> None:
        slot = self._slot(slot)
        owned = self._owned(owner, slot, False)
        self.count_fault("read within a fold")
        self.say(f"owner {owner} folds {count + 1} messages while it answers:")
        self._ask(session, slot, owner, 0, 0, store=RacingStore(owned.store, lambda: self._fold_on(owned, count + 1)))

    @staticmethod
    def _fold_on(owned: OwnedPartition, count: int) -> None:
        owned.fold(count)

    def op_commit(self, owner: int, partition: int, how: int) -> None:
        self.last_owner = owner
        owned = self._partition(owner, partition)
        fault = ("", "", "", "owner crash", "torn write", "owner crash", "", "owner crash")[how % 8]
        if fault:
            self.count_fault(fault)
        owned.commit(how)
        what = (
            "commits",
            "freezes its entries",
            "writes its frozen entries",
            "dies between freeze and write",
            "dies before the write takes effect",
            "dies right after the write",
            "freezes its entries, folds on, and writes",
            "freezes its entries, folds on, writes, and dies",
        )[how % 8]
        self.say(f"owner {owner} {what} (partition {owned.number}, offset {owned.offset})")

    def op_rebuild(self, owner: int, partition: int) -> None:
        number = partition % self.topic.layout.partitions
        self.count_fault("rebuild")
        self.owners[owner][number] = OwnedPartition(self.topic, number)
        self.say(f"owner {owner} loses the store of partition {number} and starts with an empty one")

    def op_begin(self, owner: int, partition: int, back: int) -> None:
        """Retention has cut the topic: a new store begins near its end."""
        number = partition % self.topic.layout.partitions
        begin = len(self.topic.partitions[number]) - back
        if begin < 1 or begin < self.topic.repeated_to[number]:
            return  # inside such a block nothing is promised (docs/internals/store.md)
        self.count_fault("beginning gone")
        self.owners[owner][number] = OwnedPartition(self.topic, number, begin=begin)
        self.say(f"owner {owner} loses the store of partition {number}; a new one begins at offset {begin}")

    def op_evict(self, owner: int) -> None:
        self.count_fault("eviction")
        for owned in self.owners[owner]:
            owned.overlay.clear()
        self.say(f"owner {owner} evicts its fills")

    # --- reads ---

    def op_read(self, session: int, slot: int, owner: int, front: int, mode: int) -> None:
        """Modes: a whole read from the primary (0–4) or the replica (5, 6), a look-up only (7–9).

        10: without a token; 11: by another spelling of the key; 12: from a primary whose snapshots have no position.
        """
        slot = self._slot(slot)
        source_read = self._ask(session, slot, owner, front, mode)
        if source_read is None or mode in (7, 8, 9):
            return
        self._take_snapshot(source_read, from_replica=mode in (5, 6), named=mode != 12)
        self._finish_read(source_read)
        if mode in (0, 1, 5, 12) and self.offers:
            self._deliver(self.offers.pop())

    def op_misdirect(self, session: int, slot: int, owner: int, front: int) -> None:
        """A front that believes in another layout asks, and fills, at another partition than the key's."""
        partitions = self.owners[owner]
        if len(partitions) < 2:
            return
        slot = self._slot(slot)
        owned = partitions[1 - self._owned(owner, slot, False).number]
        self.count_fault("wrong partition")
        source_read = self._ask(session, slot, owner, front, 0, misdirected_to=owned)
        if source_read is None:
            return
        self._take_snapshot(source_read, from_replica=False)
        self._finish_read(source_read)
        if self.offers:
            self._deliver(self.offers.pop())

    def _ask(
        self,
        session: int,
        slot: int,
        owner: int,
        front: int,
        mode: int,
        *,
        store: Any = None,
        misdirected_to: OwnedPartition | None = None,
    ) -> SourceRead | None:
        reader, alias = self.sessions[session], mode == 11
        owned = misdirected_to or self._owned(owner, slot, alias)
        shard = f"s/{slot // SLOTS_A_SHARD}"
        self.asked.add(slot)
        self.last_owner = owner
        self._mark_uncertain(reader)
        try:
            found = asking.ask(
                reader,
                slot,
                alias=alias,
                owned=owned,
                epochs=self.fronts[front],
                shard=shard,
                given=mode != 10,
                store=store,
                is_misdirected=misdirected_to is not None,
            )
        except (ServerError, OwnerError) as error:
            self.say(f"session {session} reads {SLOTS[slot].key!r}: {error}")
            return None
        if isinstance(found, PendingRead):
            self._check_front_epoch(found, front)
            self.outcome.answers["look-up: not servable"] += 1
            if self.tracing:
                self.say(
                    f"session {session} asks owner {owner} for {SLOTS[slot].key!r} at {shown(found.demand.vector)}:"
                    f" {found.row.freshness}, {found.row.why}"
                )
            source = self.sources[slot // SLOTS_A_SHARD]
            source_read = SourceRead(found, source.history.positions[source.engine])
            self.source_reads.append(source_read)
            return source_read
        self._note_answer(found, reader, reader.client.vector, shard, f"owner {owner}")
        return None

    def _check_front_epoch(self, pending: PendingRead, front: int) -> None:
        """Checks that a front does not go back to an epoch that has ended, as an owner's answer told it."""
        told, row = self.epochs_told[front], pending.row
        told[row.shard] = max(told.get(row.shard, 0), row.epoch)
        shard = pending.proof.shard
        if (pending.proof.epoch or 0) < told.get(shard, 0):
            what = f"front {front} knows epoch {told[shard]} of {shard}, but uses {pending.proof.epoch}"
            self.complain(MONOTONIC, what)

    def _mark_uncertain(self, reader: SimulatedSession) -> None:
        """Marks shards where a write was unnoticeably placed in a wrong history (docs/concepts/guarantees.md)."""
        for shard in reader.shards_written:
            seen, component = reader.seen.get(shard), reader.client.vector.get(shard)
            if seen is None:
                continue
            if component is not None:
                history = self.judge.history(int(shard[2:]), component.epoch)
                if history is None or history.number != seen.history:
                    reader.uncertain.add(shard)

    def _note_answer(
        self, found: ServedAnswer | HistoryLost, reader: SimulatedSession, before: Vector, shard: str, who: str
    ) -> None:
        if isinstance(found, ServedAnswer):
            self.outcome.answers[f"{found.served_from}: {found.freshness}"] += 1
            if self.tracing:
                image = found.image.decode() if found.image is not None else "no row"
                self.say(
                    f"session {reader.number} gets {image} for {found.pending.key.key!r} from {who}, demanding"
                    f" {shown(found.pending.demand.vector)}: {found.freshness}, {found.why}"
                )
            self.judge.check_answer(found)
            self._mark_uncertain(reader)
            return
        self.outcome.answers["409 history_lost"] += 1
        self.say(f"session {reader.number} gets 409 history_lost from {who}: {found}")
        self.judge.check_history_lost(found, before, shard)
        reader.client._adopt_lost(found, Demanded(str(before), before, ()))
        self.judge.check_session_after_409(reader.client.vector, before, shard)
        reader.uncertain.discard(shard)
        reader.shards_written.discard(shard)
        reader.seen.pop(shard, None)
        component = reader.client.vector.get(shard)
        history = self.judge.history(int(shard[2:]), component.epoch) if component is not None else None
        if component is not None and history is not None:
            index = history.index_of.get(str(component.position))
            if index is not None:
                reader.saw(shard, history.number, index)

    def _take_snapshot(self, source_read: SourceRead, *, from_replica: bool, named: bool = True) -> None:
        slot = source_read.pending.slot
        source = self.sources[slot // SLOTS_A_SHARD]
        if from_replica and source.replica < source.engine:
            self.count_fault("lagging replica")
        source_read.snapshot = source.read(slot, from_replica=from_replica)
        source_read.lo, source_read.hi = ("", "") if named or not source_read.noted else (source_read.noted, "later")
        if self.tracing:
            where = "replica" if from_replica else "primary"
            self.say(f"  the front reads {SLOTS[slot].key!r} at the {where}, at {source_read.snapshot.position}")

    def _finish_read(self, source_read: SourceRead) -> None:
        if source_read in self.source_reads:
            self.source_reads.remove(source_read)
        if source_read.hi:
            self.count_fault("position noted around a read")
            source = self.sources[source_read.pending.slot // SLOTS_A_SHARD]
            source_read.hi = source.history.positions[source.engine]
        fill = asking.offer(source_read)
        if fill is not None:
            self.offers.append(fill)
        session = source_read.pending.session
        before = source_read.pending.demand.vector
        found = asking.answer(source_read)
        if found is None:
            self._mark_uncertain(session)
            self.judge.check_refusal(source_read)
            self.outcome.answers["503 source_behind"] += 1
            self.say(f"  session {session.number} gets no answer: the source does not prove the demand")
            return
        shard = f"s/{source_read.pending.slot // SLOTS_A_SHARD}"
        self._note_answer(found, session, before, shard, "the source")

    def _deliver(self, fill: Offer) -> FillVerdict:
        try:
            accepted, why = owner_rows.fill_row(fill.owned.partition, fill.request)
        except OwnerError as error:
            accepted, why = False, str(error)
        if accepted:
            self.judge.note_fill(fill)
        self.outcome.answers[f"fill {'accepted' if accepted else 'refused'}"] += 1
        if self.tracing:
            self.say(f"  a fill of {fill.request.key!r} read at {fill.request.lo} reaches its owner: {why}")
        return FillVerdict(accepted, why)

    def op_snap(self, number: int, how: int) -> None:
        """Takes a snapshot: of the primary (0), the replica (1), or a primary whose snapshots have no position (2)."""
        if self.source_reads:
            self._take_snapshot(
                self.source_reads[number % len(self.source_reads)], from_replica=how == 1, named=how != 2
            )

    def op_give(self, number: int) -> None:
        ready = [source_read for source_read in self.source_reads if source_read.snapshot is not None]
        if ready:
            self.count_fault("late answer")
            self._finish_read(ready[number % len(ready)])

    def op_fill(self, number: int) -> None:
        if self.offers:
            self.count_fault("late fill")
            self._deliver(self.offers.pop(number % len(self.offers)))

    def op_share(self, number: int, other: int) -> None:
        """Single flight: a read takes the result of one that started earlier, if that proves its demand."""
        if not self.source_reads:
            return
        mine = self.source_reads[number % len(self.source_reads)]
        theirs = self.source_reads[other % len(self.source_reads)]
        same = mine.pending.slot == theirs.pending.slot and mine.pending.proof.epoch == theirs.pending.proof.epoch
        if mine is theirs or theirs.snapshot is None or mine.snapshot is not None or not same:
            return
        self.count_fault("shared flight")
        mine.snapshot, mine.lo, mine.hi = theirs.snapshot, theirs.lo, theirs.hi
        self.say(f"  session {mine.pending.session.number} shares a read of the source that was under way")
        self._finish_read(mine)

    def op_adopt(self, session: int, other: int) -> None:
        if session == other:
            return
        mine, theirs = self.sessions[session], self.sessions[other]
        self._mark_uncertain(theirs)
        try:
            token = theirs.client.token
        except ServerError:
            return
        self._mark_uncertain(theirs)
        self.count_fault("session moves")
        mine.client.adopt(token)
        mine.uncertain |= theirs.uncertain
        mine.shards_written |= theirs.shards_written
        for shard, seen in theirs.seen.items():
            mine.saw(shard, *seen)
        self.say(f"session {session} continues from session {other}'s token")

    def op_rename(self, session: int, shard: int) -> None:
        """The session's token names a shard by a name that nobody here knows, as after a rename in the settings."""
        reader, name = self.sessions[session], self.sources[shard % len(self.sources)].name
        component = reader.client.vector.get(name)
        if component is None:
            return
        self.count_fault("unknown shard")
        vector = reader.client.vector.without(name).with_component(f"{name}-renamed", *component)
        seen = reader.seen
        reader = self.sessions[session] = SimulatedSession(session, self.located, vector)
        reader.seen = seen
        self.say(f"session {session} has got its token from a source that calls {name} {name}-renamed")

    def op_wait(self, session: int, owner: int, partition: int) -> None:
        """Checks that when a wait for the session's vector ends, every known row of the partition is servable."""
        owned = self._partition(owner, partition)
        vector = self.sessions[session].client.vector
        if not vector or not evidence.has_reached(owned.partition, vector):
            return
        self.say(f"session {session} has waited for partition {owned.number} of owner {owner}")
        for slot in range(len(self.sources) * SLOTS_A_SHARD):
            if self._owned(owner, slot, False) is owned:
                row = owner_rows.answer_row(owned.partition, SLOTS[slot].key, evidence.demand_of(str(vector)))
                if not row.served and row.kind in (1, 2):
                    self.complain(EXPLAINS, f"the wait for {shown(vector)} is over, {SLOTS[slot].key!r}: {row.why}")


def shown(vector: Vector) -> str:
    return ", ".join(f"{shard} epoch {epoch} {position}" for shard, (epoch, position) in vector.items()) or "nothing"
