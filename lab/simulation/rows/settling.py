"""The end of a history of rows: everything is published and folded, then the final state is checked."""

from __future__ import annotations

from typing import Final

from consumers.owner.leasing import LEASE_S
from consumers.owner.rows import judge_fill, view_row
from lab.simulation.memo import decoded
from lab.simulation.models.loop import finished
from lab.simulation.naive.judging import SAME_STATE, check_fold
from lab.simulation.rows.asking import Read, SimulatedFront, SimulatedSession, answer_of, keyspace_of
from lab.simulation.rows.changing import RowChangeOps
from lab.simulation.rows.judging import NOTHING_LOST, RECOVERS
from lab.simulation.rows.publishing import Ending
from lab.simulation.rows.reading import Misread
from lab.simulation.rows.shaping import OWNERS
from lab.simulation.rows.source import SLOT_OF, SLOTS, SLOTS_A_SHARD, TEXT
from serving.client import ClientError
from serving.reads.descriptions import RENEWED_EVERY_S
from stream.wire.codec import ROW_FRAME_HEADER
from tokens import Position, Vector

AWAY_S: Final = 1.0
"""An owner that has broken off an answer is tried again within this time."""


class RowsRun(RowChangeOps):
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
            owned.overlay.bytes_max = 1 << 20  # all rows are filled together
        agreed = self.quick or self._same_state()
        if not self.topic_is_tampered and not any(publisher.backfills for publisher in self.publishers):
            self._published_once()  # a chunk has the number of the transaction before it
        while self.network.held:
            self.network.release(0)
        self._answer_all()
        for _ in self.reads[:]:
            self.loop.advance(LEASE_S)  # one that waits for another front's fill
            self._answer_all()
        for read in self.reads:
            self.complain(RECOVERS, f"a read of {read.keys} has no answer, and nothing is on its way")
        self.loop.advance(AWAY_S)
        for front in self._fronts.values():
            finished(self.loop, front.find_owners_again())
        self.answers_at_once, self.network.is_slow = (False, True), False
        for owner in owners:
            self._check_settled(owner, [slot for slot in self._slots_to_check(owner) if agreed or owner == owners[0]])
        for owned in self.owners[owners[0]]:
            check_fold(owned, self.complain)
        failure = self.loop.failure()
        if failure is not None:
            raise failure

    def _answer_all(self) -> None:
        while self.source_reads:
            if self.source_reads[0].snapshots is None:
                self.take_snapshot(self.source_reads[0], from_replica=False)
            self._give(self.source_reads[0])
        while self.network.fills:
            self.network.deliver(0)
        self._conclude()

    def _slots_to_check(self, owner: int) -> list[int]:
        """All rows; of a small history those that were changed, read or filled."""
        return [
            slot
            for slot in range(len(self.sources) * SLOTS_A_SHARD)
            if not self.quick or self._is_touched(slot) or self._is_filled(owner, slot)
        ]

    def _is_filled(self, owner: int, slot: int) -> bool:
        return SLOTS[slot].key in self._owned(owner, slot, False).overlay

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

    def _check_settled(self, owner: int, slots: list[int]) -> None:
        """Checks the folded rows, and that each is servable after at most one read."""
        for slot in slots:
            owned, shard = self._owned(owner, slot, False), slot // SLOTS_A_SHARD
            voidable = (shard, SLOTS[slot].table) in self.voidable or owned.begin > 0
            if not owned.has_seen_what_was_lost:
                head, value = owned.store.visible, owned.store.get(SLOTS[slot].key)
                self.judge.check_folded(f"owner {owner}", owned.number, slot, head, value, voidable=voidable)
        front = self.front(0)
        front.route.owner = owner
        reader = self._up_to_date_session(front)
        for shard in range(len(self.sources)):
            left = [SLOTS[slot].key for slot in slots if slot // SLOTS_A_SHARD == shard]
            if left and isinstance(front.spaces[keyspace_of(shard)].layout, Misread):
                self.loop.advance(2 * RENEWED_EVERY_S)  # only then it describes the tables again
                self._read_at_end(reader, left[:1])
                if isinstance(front.spaces[keyspace_of(shard)].layout, Misread):
                    self.complain(RECOVERS, "a front that asked at the wrong partition has not learnt the layout")
            self.verdicts = {}
            missed = self._read_at_end(reader, left)
            left = [key for key in missed if self._must_be_kept(owner, key)]
            for key in self._read_at_end(reader, left):
                self.complain(RECOVERS, f"{key!r} is still not servable at owner {owner} after a fill")

    def _must_be_kept(self, owner: int, key: bytes) -> bool:
        """Whether the row must be servable after the fills."""
        slot, verdicts = SLOT_OF[key], self.verdicts
        shard = slot // SLOTS_A_SHARD
        owned, source = self._owned(owner, slot, False), self.sources[shard]
        if owned.has_seen_what_was_lost:
            return False  # nothing is kept until the log has passed the numbers that it gave out before
        head = owned.store.visible
        view = view_row(head, key, owned.store.get(key))
        if key not in verdicts:
            is_absent_text = source.history.state(slot, source.engine) is None and SLOTS[slot].table == TEXT
            if view.shard and not is_absent_text and slot not in self.foreign_rows and not self._is_excluded(slot):
                self.complain(RECOVERS, f"{key!r} is not servable at owner {owner}, and no fill is offered")
            return False
        if self._is_excluded(slot):
            return False  # nothing is kept of it
        if verdicts[key]:
            again = judge_fill(head, key, view, source.history.positions[source.engine]).why
            self.complain(RECOVERS, f"a fill of {key!r} is refused at the end: {verdicts[key]} {again}")
        return not verdicts[key]

    def _is_excluded(self, slot: int) -> bool:
        return self.publishers[slot // SLOTS_A_SHARD].excludes(SLOTS[slot].table)

    def _up_to_date_session(self, front: SimulatedFront) -> SimulatedSession:
        vector = Vector(
            {
                each.source.name: (max(each.epoch_start), Position.parse(each.source.history.positions[-1]))
                for each in self.publishers
            }
        )
        reader = SimulatedSession(9, front, vector)
        for each in self.publishers:
            reader.saw(each.source.name, each.source.history.number, each.source.history.end)
        return reader

    def _read_at_end(self, reader: SimulatedSession, keys: list[bytes]) -> list[bytes]:
        """Reads rows as a session that has seen everything. Returns those that the cache did not answer."""
        if not keys:
            return []
        read = Read(reader, keys, given=True)
        read.task = self.loop.create_task(read.run(0))
        self.loop.run()
        self._complete(read)
        try:
            rows = read.task.result()
        except ClientError as error:
            if not any(each.has_seen_what_was_lost for each in self.owners[reader.front.route.owner]):
                self.complain(NOTHING_LOST, f"at the end a session gets no answer for {keys}: {error}")
            return []
        for key, row in zip(keys, rows, strict=True):
            self._note_answer(answer_of(read, key, row))
        return [key for key, row in zip(keys, rows, strict=True) if row.served_from == "source"]
