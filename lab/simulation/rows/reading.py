"""Ops of the world of rows: owners that fold, commit and crash, and sessions that read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from consumers.owner import evidence
from consumers.owner import rows as owner_rows
from lab.simulation.models.loop import finished
from lab.simulation.models.owning import OwnedPartition, RacingStore
from lab.simulation.rows.asking import Read, ServedAnswer, SimulatedSession, SourceRead, answer_of, keyspace_of
from lab.simulation.rows.judging import EXPLAINS, NEVER_RAISES, RENAMED
from lab.simulation.rows.run_state import RowsRunState
from lab.simulation.rows.source import INDEXES, SLOT_OF, SLOTS, SLOTS_A_SHARD
from serving.client import HistoryLost, ServerError, Unavailable
from serving.client.answers import Row
from serving.errors import ReadError
from stream.wire.keys import Layout
from tokens import Vector

PACE_S: Final = 0.25
"""Time between two reads."""


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
            self._start_read(session, [SLOTS[slot].key], owner, 0)

        owned.fold(count, read)

    def op_race(self, owner: int, session: int, slot: int, count: int, at: int = 0) -> None:
        """The owner folds on before it looks at its head again (0), at the entry (1), at what follows (2, 3)."""
        slot = self._slot(slot)
        owned = self._owned(owner, slot, False)
        self.count_fault("read within a fold")
        self.say(f"owner {owner} folds {count + 1} messages while it answers:")
        store = owned.store
        owned.store = RacingStore(store, lambda: self._fold_on(owned, count + 1), 2 + at)
        try:
            self._start_read(session, [SLOTS[slot].key], owner, 0)
        finally:
            owned.store = store

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
        self.owners[owner][number] = OwnedPartition(self.topic, number, by_column=bool(owner), indexes=INDEXES)
        self.say(f"owner {owner} loses the store of partition {number} and starts with an empty one")

    def op_begin(self, owner: int, partition: int, back: int) -> None:
        """Retention has cut the topic: a new store begins near its end."""
        number = partition % self.topic.layout.partitions
        begin = len(self.topic.partitions[number]) - back
        if begin < 1 or begin < self.topic.repeated_to[number]:
            return  # inside such a block nothing is promised (docs/internals/store.md)
        if self.foreign_rows:
            return  # it would not have the place of the first shard's change
        if self.topic.cuts_off_schema(number, begin):
            return  # the record is void and a dead letter, for good: an upgraded reader folds something else
        self.count_fault("beginning gone")
        self.owners[owner][number] = OwnedPartition(
            self.topic, number, begin=begin, by_column=bool(owner), indexes=INDEXES
        )
        self.say(f"owner {owner} loses the store of partition {number}; a new one begins at offset {begin}")

    def op_evict(self, owner: int) -> None:
        self.count_fault("eviction")
        for owned in self.owners[owner]:
            owned.overlay.clear()
        self.say(f"owner {owner} evicts its fills")

    # --- reads ---

    def op_read(self, session: int, slot: int, owner: int, front: int, mode: int) -> None:
        """Modes: a whole read from the primary (0–4) or the replica (5, 6), a look-up only (7–9).

        10: without a token; 11: by another spelling of the key; 12: from a primary whose snapshots have no position;
        13: without a token, and an image of before a void will do.
        """
        found = SLOTS[self._slot(slot)]
        key = found.alias if mode == 11 and found.alias else found.key
        self._whole_read(session, [key], owner, front, mode)

    def op_batch(self, session: int, shard: int, owner: int, front: int, mode: int) -> None:
        """Reads all rows of a shard at once. Modes as of `op_read`, up to 9."""
        first = shard % len(self.sources) * SLOTS_A_SHARD
        self._whole_read(session, [slot.key for slot in SLOTS[first : first + SLOTS_A_SHARD]], owner, front, mode)

    def _whole_read(self, session: int, keys: Sequence[bytes], owner: int, front: int, mode: int) -> None:
        if mode not in (7, 8, 9):
            self.answers_at_once = mode in (5, 6), mode != 12
            self.network.is_slow = mode not in (0, 1, 5, 12)
        read = self._start_read(session, keys, owner, front, given=mode not in (10, 13), last_known=mode == 13)
        if self.answers_at_once is not None:
            self._complete(read)
        self.answers_at_once, self.network.is_slow = None, True

    def _complete(self, read: Read) -> None:
        """Lets the source answer the reads that ``read`` has joined."""
        while not read.task.done():
            here = [each for each in self.source_reads if each.front is read.front]
            joined = [each for each in here if not {*each.keys}.isdisjoint(read.keys)]
            if not joined:
                return
            if joined[0].snapshots is None:
                self.take_snapshot(joined[0], from_replica=False)
            self._give(joined[0])

    def op_misdirect(self, session: int, slot: int, owner: int, front: int) -> None:
        """A front that believes in another layout asks, and fills, at another partition than the key's."""
        if len(self.owners[owner]) < 2:
            return
        self.count_fault("wrong partition")
        slot = self._slot(slot)
        self.front(front).spaces[keyspace_of(slot // SLOTS_A_SHARD)].layout = Misread(self.topic.layout.partitions)
        self._whole_read(session, [SLOTS[slot].key], owner, front, 0)

    def _start_read(
        self,
        session: int,
        keys: Sequence[bytes],
        owner: int,
        front: int,
        *,
        given: bool = True,
        last_known: bool = False,
        max_wait_ms: int = 0,
    ) -> Read:
        """Starts a read, and lets it go as far as it can without the source."""
        reader = self.sessions[session]
        self.asked.update(SLOT_OF[key] for key in keys)
        self.last_owner = owner
        self._mark_uncertain(reader)
        reader.front = self.front(front)
        reader.front.route.owner = owner
        self.loop.advance(PACE_S)
        if self.tracing:
            self.say(f"session {session} asks owner {owner} for {_named(keys)} at {shown(reader.client.vector)}")
        read = Read(reader, keys, given=given, last_known=last_known)
        self._run(read, max_wait_ms)
        return read

    def _run(self, read: Read, max_wait_ms: int = 0) -> None:
        begun = len(self.source_reads)
        read.task = self.loop.create_task(read.run(max_wait_ms))
        self.reads.append(read)
        self.loop.run()
        self._mark_uncertain(read.session)  # the answers of earlier reads may move the session to another history
        self._conclude()
        if not read.task.done():
            self.outcome.answers["look-up: not servable"] += 1
            if begun == len(self.source_reads) and not self.network.held:
                self.count_fault("shared flight")
                self.say("  it waits for a read of the source that is under way")

    def _conclude(self) -> None:
        """Judges the answers that sessions have got since the last time."""
        for read in [each for each in self.reads if each.task.done()]:
            self.reads.remove(read)
            self._note(read)

    def _note(self, read: Read) -> None:
        reader = read.session
        shard = f"s/{SLOT_OF[read.keys[0]] // SLOTS_A_SHARD}"
        if read.task.cancelled():
            self.complain(NEVER_RAISES, f"session {reader.number} waited, and its request was cancelled")
            return
        try:
            rows = read.task.result()
        except HistoryLost as lost:
            self._note_lost(lost, read, shard)
        except (ServerError, Unavailable) as error:
            self.outcome.answers[f"{error.status} {error.code}"] += 1
            self.say(f"  session {reader.number} gets no answer: {error}")
            self._mark_uncertain(reader)
            if error.code == "source_behind":
                self.judge.check_refusal(read)
        else:
            self._note_rows(read, rows)
            self._mark_uncertain(reader)

    def _note_rows(self, read: Read, rows: list[Row]) -> None:
        for key, row in zip(read.keys, rows, strict=True):
            self._note_answer(answer_of(read, key, row))

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

    def _note_answer(self, found: ServedAnswer) -> None:
        self.outcome.answers[f"{found.served_from}: {found.freshness}"] += 1
        if self.tracing:
            image = found.image.decode() if found.image is not None else "no row"
            self.say(
                f"  session {found.read.session.number} gets {image} for {found.key!r} from the {found.served_from},"
                f" demanding {shown(found.read.demand)}: {found.freshness}, {found.why}"
            )
        self.judge.check_answer(found)

    def _note_lost(self, lost: HistoryLost, read: Read, shard: str) -> None:
        reader, before = read.session, read.demand
        assert read.left is not None
        self.outcome.answers["409 history_lost"] += 1
        self.say(f"  session {reader.number} gets 409 history_lost: {lost}")
        told = Vector.parse(lost.token)
        unknown = [name for name in before if name.endswith(RENAMED) and name not in told]
        for name in unknown:
            self._forget_seen(reader, name.removesuffix(RENAMED))
        if unknown:
            self.judge.check_kept(read.left, before, unknown)
            return
        self.judge.check_history_lost(lost, before, shard)
        self.judge.check_session_after_409(read.left, before, shard)
        component = reader.client.vector.get(shard)
        history = self.judge.history(int(shard[2:]), component.epoch) if component is not None else None
        seen = reader.seen.get(shard)
        is_known = seen is not None and history is not None and seen.history >= history.number
        if (
            not is_known or shard in reader.uncertain | reader.misplaced
        ):  # else another read has told the session before
            self._forget_seen(reader, shard)
        if component is not None and history is not None:
            index = history.index_of.get(str(component.position))
            if index is not None:
                reader.saw(shard, history.number, index)

    @staticmethod
    def _forget_seen(reader: SimulatedSession, shard: str) -> None:
        reader.uncertain.discard(shard)
        reader.shards_written.discard(shard)
        reader.misplaced.discard(shard)
        reader.seen.pop(shard, None)

    # --- the source of truth ---

    def _give(self, read: SourceRead) -> None:
        """Gives the source's answer to the front."""
        self.source_reads.remove(read)
        read.answered.set_result(self.given(read))
        self.loop.run()
        self._conclude()

    def break_source_reads(self, shard: int) -> None:
        """Ends the reads of a source whose history has ended, as their connections break.

        Answers that have been given with their position are under way already.
        """
        for read in [each for each in self.source_reads if each.shard == shard]:
            if read.snapshots is None or read.named:
                read.noted = ""  # the position belongs to the lost history
                continue
            self.source_reads.remove(read)
            read.answered.set_exception(ReadError("source_unreachable", "the server was restarted"))
        self.loop.run()
        self._conclude()

    def op_snap(self, number: int, how: int) -> None:
        """Takes a snapshot: of the primary (0), the replica (1), or a primary whose snapshots have no position (2)."""
        if self.source_reads:
            read = self.source_reads[number % len(self.source_reads)]
            self.take_snapshot(read, from_replica=how == 1, named=how != 2)

    def op_give(self, number: int) -> None:
        ready = [each for each in self.source_reads if each.snapshots is not None]
        if ready:
            self.count_fault("late answer")
            self._give(ready[number % len(ready)])

    def op_fill(self, number: int) -> None:
        if self.network.fills:
            self.count_fault("late fill")
            self.network.deliver(number % len(self.network.fills))

    def op_share(self, session: int, number: int) -> None:
        """A session reads, at the same front, what another read waits for: single flight."""
        if self.reads:
            theirs = self.reads[number % len(self.reads)]
            self._start_read(session, theirs.keys, theirs.front.route.owner, theirs.front.number)

    def op_adopt(self, session: int, other: int) -> None:
        if session == other:
            return
        mine, theirs = self.sessions[session], self.sessions[other]
        self._mark_uncertain(theirs)
        try:
            token = finished(self.loop, theirs.client.token())
        except (ServerError, Unavailable):
            return
        self._mark_uncertain(theirs)
        self.count_fault("session moves")
        mine.client.adopt(token)
        mine.uncertain |= theirs.uncertain
        mine.shards_written |= theirs.shards_written
        mine.misplaced |= theirs.misplaced
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
        vector = reader.client.vector.without(name).with_component(f"{name}{RENAMED}", *component)
        seen = reader.seen
        reader = self.sessions[session] = SimulatedSession(session, reader.front, vector)
        reader.seen = seen
        reader.misplaced.update(seen)
        self.say(f"session {session} has got its token from a source that calls {name} {name}{RENAMED}")

    def op_wait(self, session: int, owner: int, partition: int) -> None:
        """Checks that when a wait for the session's vector ends, every known row of the partition is servable.

        The watermarks prove nothing of a row whose shard has not said yet which other ones there are: a store that
        begins in the middle waits until it is said again (docs/internals/store.md).
        """
        owned = self._partition(owner, partition)
        vector = self.sessions[session].client.vector
        if not vector or not evidence.has_reached(owned.partition, vector):
            return
        self.say(f"session {session} has waited for partition {owned.number} of owner {owner}")
        for slot in range(len(self.sources) * SLOTS_A_SHARD):
            own = f"s/{slot // SLOTS_A_SHARD}"
            if self._owned(owner, slot, False) is owned and (owned.has_heard(own) or {*vector} == {own}):
                row = owner_rows.answer_row(owned.partition, SLOTS[slot].key, evidence.demand_of(str(vector)))
                if not row.served and row.kind in (1, 2):
                    self.complain(EXPLAINS, f"the wait for {shown(vector)} is over, {SLOTS[slot].key!r}: {row.why}")


class Misread(Layout):
    """A layout by which every key of two partitions is in the other one."""

    def partition_of(self, key: bytes, prefix: int = 0) -> int:
        """The wrong partition."""
        return 1 - super().partition_of(key, prefix)


def _named(keys: Sequence[bytes]) -> str:
    return ", ".join(map(repr, keys))


def shown(vector: Vector) -> str:
    return ", ".join(f"{shard} epoch {epoch} {position}" for shard, (epoch, position) in vector.items()) or "nothing"
