"""The end of a history of rows: everything is published and folded, then the final state is checked."""

from __future__ import annotations

from consumers.owner.rows import judge_fill, view_row
from lab.simulation.memo import decoded
from lab.simulation.naive.judging import SAME_STATE, check_fold
from lab.simulation.rows import asking
from lab.simulation.rows.asking import PendingRead, SimulatedSession, SourceRead
from lab.simulation.rows.changing import RowChangeOps
from lab.simulation.rows.judging import NOTHING_LOST, RECOVERS
from lab.simulation.rows.publishing import Ending
from lab.simulation.rows.reading import RowReadOps, shown
from lab.simulation.rows.shaping import OWNERS
from lab.simulation.rows.source import SLOTS, SLOTS_A_SHARD, TEXT
from serving.client import HistoryLost
from serving.reads.spaces import Epochs
from stream.wire.codec import ROW_FRAME_HEADER
from tokens import Position, Vector


class RowsRun(RowChangeOps, RowReadOps):
    """One run of a history with its final checks."""

    def finish(self) -> None:
        """Publishes and folds everything, then checks the final state."""
        self.topic.mixing = -1  # the last markers are appended after everything else
        self.topic.is_newer = False
        for publisher in self.publishers:
            publisher.source.engine = publisher.source.replica = publisher.source.history.end
            if publisher.split and publisher.framer is None:
                self._void(publisher.source.shard)
            publisher.run(len(publisher.source.binlog), Ending.WELL, 0)
            if self.topic_is_tampered:
                publisher.run(0, Ending.WELL, 0)  # the marker that ends voids
        if any(owned.begin for owner in self.owners for owned in owner):
            self.topic.say_again()
            self.topic_is_tampered = True
            for publisher in self.publishers:
                publisher.run(0, Ending.WELL, 0)
        self.topic.upgrade()
        self.say("the history ends: everything is published and folded")
        self.tracing = False
        owners = (self.last_owner,) if self.quick else range(OWNERS)
        for owned in (each for owner in owners for each in self.owners[owner]):
            if owned.offset > len(self.topic.partitions[owned.number]):
                owned.forget()  # as a process does whose offset the topic does not have
            owned.fold(owned.behind)
        agreed = self.quick or self._same_state()
        if not self.topic_is_tampered:
            self._published_once()
        reader = self._up_to_date_session()
        for slot in range(len(self.sources) * SLOTS_A_SHARD):
            filled = any(SLOTS[slot].key in self._owned(owner, slot, False).overlay._fills for owner in owners)
            if self.quick and not filled and not self._is_touched(slot):
                continue
            for owner in owners:
                if owner == owners[0] or filled or not agreed:  # equal states give equal answers
                    self._check_settled(reader, owner, slot)
        for owned in self.owners[owners[0]]:
            check_fold(owned, self.complain)

    def _is_touched(self, slot: int) -> bool:
        """Whether the row was changed or read, or its shard has lost history."""
        source = self.sources[slot // SLOTS_A_SHARD]
        return slot in self.asked or len(source.histories) > 1 or source.history.changed_since(slot, 0)

    def _same_state(self) -> bool:
        """Checks that each owner's state equals a fold from the start, byte for byte. Returns whether all do."""
        agreed = True
        for number in range(self.topic.layout.partitions):
            states = [owner[number].state() for owner in self.owners]
            for owner, found in enumerate(states):
                expected = self.owners[owner][number].refolded()
                if found == expected or self.owners[owner][number].has_seen_what_was_lost:
                    continue
                agreed = False
                key = min(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
                what = f"owner {owner} holds {found.get(key)!r}, a fold from the start {expected.get(key)!r}"
                self.complain(SAME_STATE, f"partition {number}, {key!r}: {what}")
        return agreed

    def _published_once(self) -> None:
        """Checks that no change of a row is in the topic twice."""
        seen: set[tuple[str, int, bytes, str]] = set()
        for value in (value for partition in self.topic.partitions for value in partition):
            if value is None or not value.startswith(ROW_FRAME_HEADER):
                continue
            _, record = decoded(value)
            gtids = [
                gtid for gtid, size in zip(record["gtids"], record["transactions"], strict=True) for _ in range(size)
            ]
            for key, gtid in zip(record["keys"], gtids, strict=True):
                change = (record["shard"], record["epoch"], key, gtid)
                if change in seen:
                    self.complain(NOTHING_LOST, f"{gtid}'s change of {key!r} is in the topic twice")
                seen.add(change)

    def _check_settled(self, reader: SimulatedSession, owner: int, slot: int) -> None:
        owned, shard = self._owned(owner, slot, False), slot // SLOTS_A_SHARD
        voidable = (shard, SLOTS[slot].table) in self.voidable or owned.begin > 0
        value = owned.store.get(SLOTS[slot].key)
        if (self.quick or owner == 0) and not owned.has_seen_what_was_lost:  # the other owner's state is equal
            self.judge.check_folded(f"owner {owner}", owned.number, slot, owned.store.visible, value, voidable=voidable)
        source_read = self._ask_as(reader, slot, owner)
        if source_read is None or owned.has_seen_what_was_lost:
            return  # nothing is kept until the log has passed the numbers that it gave out before
        source, row = self.sources[shard], source_read.pending.row
        source_read.snapshot = source.read(slot, from_replica=False)
        fill = asking.offer(source_read)
        if fill is None:
            absent_text = source_read.snapshot.image is None and SLOTS[slot].table == TEXT
            if row.shard and not absent_text and slot not in self.foreign_rows:
                self.complain(RECOVERS, f"{SLOTS[slot].key!r} is not servable at owner {owner}, and no fill is offered")
            return
        accepted, why = self._deliver(fill)
        if self.publishers[shard].excludes(SLOTS[slot].table):
            return  # nothing is kept of it
        if not accepted:
            known = row.shard == source.name
            head, key = owned.store.visible, SLOTS[slot].key
            view = view_row(head, key, owned.store.get(key))
            again = judge_fill(head, key, view, fill.request.lo).why if known else ""
            self.complain(RECOVERS, f"a fill of {SLOTS[slot].key!r} is refused at the end: {why} {again}")
        elif self._ask_as(reader, slot, owner) is not None:
            self.complain(RECOVERS, f"{SLOTS[slot].key!r} is still not servable at owner {owner} after a fill")

    def _up_to_date_session(self) -> SimulatedSession:
        vector = Vector(
            {
                each.source.name: (max(each.epoch_start), Position.parse(each.source.history.positions[-1]))
                for each in self.publishers
            }
        )
        reader = SimulatedSession(9, self.located, vector)
        for each in self.publishers:
            reader.saw(each.source.name, each.source.history.number, each.source.history.end)
        return reader

    def _ask_as(self, reader: SimulatedSession, slot: int, owner: int) -> SourceRead | None:
        owned, shard = self._owned(owner, slot, False), f"s/{slot // SLOTS_A_SHARD}"
        before = reader.client.vector
        found = asking.ask(reader, slot, alias=False, owned=owned, epochs=Epochs(), shard=shard, given=True)
        if isinstance(found, PendingRead):
            return SourceRead(found)
        if isinstance(found, HistoryLost):
            self.complain(NOTHING_LOST, f"409 for {shown(before)} at the end: {found}")
            return None
        self._note_answer(found, reader, before, shard, f"owner {owner}")
        return None
