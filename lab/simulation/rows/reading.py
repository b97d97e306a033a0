"""Ops of the world of rows: owners that fold, commit and die, and sessions that read meanwhile."""

from __future__ import annotations

from typing import Any

from consumers.owner import evidence
from consumers.owner import rows as owner_rows
from consumers.owner.evidence import FillVerdict
from lab.simulation.models.owning import OwnedPartition, Racing
from lab.simulation.rows import asking
from lab.simulation.rows.asking import Given, Offer, PendingRead, Reading, SimulatedSession
from lab.simulation.rows.judging import EXPLAINS, MONOTONIC
from lab.simulation.rows.run_state import RowsRunState
from lab.simulation.rows.source import SLOTS, SLOTS_A_SHARD
from serving.client import HistoryLost, ServerError
from tokens import Vector


class RowReadOps(RowsRunState):
    """Owners, fronts, sessions."""

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
        self.met("read within a fold")
        self.say(f"owner {owner} folds {count} messages of partition {owned.number}; before the last of them:")

        def read() -> None:
            self._ask(session, slot, owner, 0, 0)

        owned.fold(count, read)

    def op_race(self, owner: int, session: int, slot: int, count: int) -> None:
        slot = self._slot(slot)
        owned = self._owned(owner, slot, False)
        self.met("read within a fold")
        self.say(f"owner {owner} folds {count + 1} messages while it answers:")
        self._ask(session, slot, owner, 0, 0, store=Racing(owned.store, lambda: self._fold_on(owned, count + 1)))

    @staticmethod
    def _fold_on(owned: OwnedPartition, count: int) -> None:
        owned.fold(count)

    def op_commit(self, owner: int, partition: int, how: int) -> None:
        self.last_owner = owner
        owned = self._partition(owner, partition)
        fault = ("", "", "", "owner crash", "torn write", "owner crash", "", "owner crash")[how % 8]
        if fault:
            self.met(fault)
        owned.commit(how)
        what = (
            "commits",
            "freezes what is to be committed",
            "writes what was frozen",
            "dies between freeze and write",
            "dies in the write, which does not happen",
            "dies right after the write",
            "freezes what is to be committed, folds on, and writes",
            "freezes what is to be committed, folds on, writes, and dies",
        )[how % 8]
        self.say(f"owner {owner} {what} (partition {owned.number}, offset {owned.offset})")

    def op_rebuild(self, owner: int, partition: int) -> None:
        number = partition % self.topic.layout.partitions
        self.met("rebuild")
        self.owners[owner][number] = OwnedPartition(self.topic, number)
        self.say(f"owner {owner} loses the store of partition {number} and begins anew")

    def op_evict(self, owner: int) -> None:
        self.met("eviction")
        for owned in self.owners[owner]:
            owned.overlay.clear()
        self.say(f"owner {owner} evicts its fills")

    # --- reads ---

    def op_read(self, session: int, slot: int, owner: int, front: int, mode: int) -> None:
        """Modes: to the end from the primary (0–4) or the replica (5, 6), look-up only (7–9).

        10: without a token; 11: by another spelling; 12: from a primary whose snapshots name no position.
        """
        slot = self._slot(slot)
        reading = self._ask(session, slot, owner, front, mode)
        if reading is None or mode in (7, 8, 9):
            return
        self._snap(reading, from_replica=mode in (5, 6), named=mode != 12)
        self._give(reading)
        if mode in (0, 1, 5, 12) and self.offers:
            self._deliver(self.offers.pop())

    def _ask(self, session: int, slot: int, owner: int, front: int, mode: int, *, store: Any = None) -> Reading | None:
        reader, alias = self.sessions[session], mode == 11
        owned = self._owned(owner, slot, alias)
        shard = f"s/{slot // SLOTS_A_SHARD}"
        self.asked.add(slot)
        self.last_owner = owner
        self._blur(reader)
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
            )
        except ServerError as error:
            self.say(f"session {session} reads {SLOTS[slot].key!r}: {error}")
            return None
        if isinstance(found, PendingRead):
            self._remembers(found, front)
            self.outcome.answers["look-up: not servable"] += 1
            if self.tracing:
                self.say(
                    f"session {session} asks owner {owner} for {SLOTS[slot].key!r} at {shown(found.demand.vector)}:"
                    f" {found.row.freshness}, {found.row.why}"
                )
            source = self.sources[slot // SLOTS_A_SHARD]
            reading = Reading(found, source.history.positions[source.engine])
            self.readings.append(reading)
            return reading
        self._answered(found, reader, reader.client.vector, shard, f"owner {owner}")
        return None

    def _remembers(self, question: PendingRead, front: int) -> None:
        """A front never goes back to an epoch that an answer has told it is over."""
        told, row = self.told[front], question.row
        told[row.shard] = max(told.get(row.shard, 0), row.epoch)
        shard = question.proof.shard
        if (question.proof.epoch or 0) < told.get(shard, 0):
            what = f"front {front} was told of epoch {told[shard]} of {shard}, and goes by {question.proof.epoch}"
            self.complain(MONOTONIC, what)

    def _blur(self, reader: SimulatedSession) -> None:
        """Where a write was placed in another history than its own, unseen (docs/concepts/guarantees.md)."""
        for shard in reader.unsure:
            seen, component = reader.seen.get(shard), reader.client.vector.get(shard)
            if seen is None:
                continue
            if component is not None:
                history = self.judge.history(int(shard[2:]), component.epoch)
                if history is None or history.number != seen.history:
                    reader.blurred.add(shard)

    def _answered(
        self, found: Given | HistoryLost, reader: SimulatedSession, before: Vector, shard: str, who: str
    ) -> None:
        if isinstance(found, Given):
            self.outcome.answers[f"{found.served_from}: {found.freshness}"] += 1
            if self.tracing:
                image = found.image.decode() if found.image is not None else "no row"
                self.say(
                    f"session {reader.number} gets {image} for {found.question.key.key!r} from {who}, demanding"
                    f" {shown(found.question.demand.vector)}: {found.freshness}, {found.why}"
                )
            self.judge.given(found)
            self._blur(reader)
            return
        self.outcome.answers["409 history_lost"] += 1
        self.say(f"session {reader.number} is told by {who} that history was lost: {found}")
        self.judge.lost(found, before, shard)
        reader.client._adopt_lost(found, str(before))
        self.judge.goes_on(reader.client.vector, before, shard)
        reader.blurred.discard(shard)
        reader.unsure.discard(shard)
        reader.seen.pop(shard, None)
        component = reader.client.vector.get(shard)
        history = self.judge.history(int(shard[2:]), component.epoch) if component is not None else None
        if component is not None and history is not None:
            index = history.index_of.get(str(component.position))
            if index is not None:
                reader.saw(shard, history.number, index)

    def _snap(self, reading: Reading, *, from_replica: bool, named: bool = True) -> None:
        slot = reading.question.slot
        source = self.sources[slot // SLOTS_A_SHARD]
        if from_replica and source.replica < source.engine:
            self.met("lagging replica")
        reading.snapshot = source.read(slot, from_replica=from_replica)
        reading.lo, reading.hi = ("", "") if named or not reading.noted else (reading.noted, "later")
        if self.tracing:
            where = "replica" if from_replica else "primary"
            self.say(f"  the front reads {SLOTS[slot].key!r} at the {where}, at {reading.snapshot.position}")

    def _give(self, reading: Reading) -> None:
        if reading in self.readings:
            self.readings.remove(reading)
        if reading.hi:
            self.met("position noted around a read")
            source = self.sources[reading.question.slot // SLOTS_A_SHARD]
            reading.hi = source.history.positions[source.engine]
        fill = asking.offer(reading)
        if fill is not None:
            self.offers.append(fill)
        session = reading.question.session
        before = reading.question.demand.vector
        found = asking.answer(reading)
        if found is None:
            self.judge.refused(reading)
            self.outcome.answers["503 source_behind"] += 1
            self.say(f"  session {session.number} gets no answer: the source does not prove the demand")
            return
        shard = f"s/{reading.question.slot // SLOTS_A_SHARD}"
        self._answered(found, session, before, shard, "the source")

    def _deliver(self, fill: Offer) -> FillVerdict:
        accepted, why = owner_rows.fill_row(fill.owned.partition, fill.request)
        if accepted:
            self.judge.filled(fill)
        self.outcome.answers[f"fill {'accepted' if accepted else 'refused'}"] += 1
        if self.tracing:
            self.say(f"  a fill of {fill.request.key!r} read at {fill.request.lo} comes to its owner: {why}")
        return FillVerdict(accepted, why)

    def op_snap(self, number: int, how: int) -> None:
        """``how``: of the primary (0), of the replica (1), of a primary whose snapshots name no position (2)."""
        if self.readings:
            self._snap(self.readings[number % len(self.readings)], from_replica=how == 1, named=how != 2)

    def op_give(self, number: int) -> None:
        ready = [reading for reading in self.readings if reading.snapshot is not None]
        if ready:
            self.met("late answer")
            self._give(ready[number % len(ready)])

    def op_fill(self, number: int) -> None:
        if self.offers:
            self.met("late fill")
            self._deliver(self.offers.pop(number % len(self.offers)))

    def op_share(self, number: int, other: int) -> None:
        """Single flight: a read takes the result of one that took off earlier, if that proves its demand."""
        if not self.readings:
            return
        mine = self.readings[number % len(self.readings)]
        theirs = self.readings[other % len(self.readings)]
        same = mine.question.slot == theirs.question.slot and mine.question.proof.epoch == theirs.question.proof.epoch
        if mine is theirs or theirs.snapshot is None or mine.snapshot is not None or not same:
            return
        self.met("shared flight")
        mine.snapshot, mine.lo, mine.hi = theirs.snapshot, theirs.lo, theirs.hi
        self.say(f"  session {mine.question.session.number} shares a read of the source that was under way")
        self._give(mine)

    def op_adopt(self, session: int, other: int) -> None:
        if session == other:
            return
        mine, theirs = self.sessions[session], self.sessions[other]
        self._blur(theirs)
        try:
            token = theirs.client.token
        except ServerError:
            return
        self._blur(theirs)
        self.met("session moves")
        mine.client.adopt(token)
        mine.blurred |= theirs.blurred
        mine.unsure |= theirs.unsure
        for shard, seen in theirs.seen.items():
            mine.saw(shard, *seen)
        self.say(f"session {session} goes on from session {other}'s token")

    def op_wait(self, session: int, owner: int, partition: int) -> None:
        """`reached` says that the partition covers the vector: then every known row is servable for it."""
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
