"""The world of rows: what its ops do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from consumers import answering
from consumers.reading import may_fill
from freshet.simulation.engine import History, Op, Outcome, Violation
from freshet.simulation.rows import asking
from freshet.simulation.rows.asking import Given, Offer, Question, Reading, Session
from freshet.simulation.rows.judging import EXPLAINS, NOTHING_LOST, RECOVERS, RULES, SAME_STATE, Judge, refolded
from freshet.simulation.rows.owning import OwnedPartition, Racing
from freshet.simulation.rows.publishing import LIMITS, Ending, Publishing, Topic, damaged
from freshet.simulation.rows.shaping import FRONTS, OWNERS, SESSIONS, TABLES, random_history
from freshet.simulation.rows.source import CHILD, SLOTS, SLOTS_A_SHARD, TEXT, Source
from serving.spaces import Epochs
from serving.wire import HistoryLost, ServerError
from stream.codec import decode
from stream.keys import Layout
from tokens import Position, Vector


class RowWorld:
    """One run of a history."""

    def __init__(self, config: Op, outcome: Outcome, trace: bool) -> None:
        partitions, shards, domains, limits = (int(value) for value in config[1:5])
        self.outcome = outcome
        self.tracing = trace
        self.topic = Topic(Layout(1 + partitions % 2))
        self.sources = [Source(shard, 1 + domains % 2) for shard in range(1 + shards % 2)]
        self.publishers = [Publishing(self.topic, source, LIMITS[limits % 3]) for source in self.sources]
        count = self.topic.layout.partitions
        self.owners = [[OwnedPartition(self.topic, number) for number in range(count)] for _ in range(OWNERS)]
        self.fronts = [Epochs() for _ in range(FRONTS)]
        self.sessions = [Session(number, self._located) for number in range(SESSIONS)]
        self.readings: list[Reading] = []
        self.offers: list[Offer] = []
        self.judge = Judge(self.publishers, self.complain)
        self.voidable: set[tuple[int, str]] = set()
        """(shard, table) whose rows may rightly be unknown to the cache."""
        self.strays: set[int] = set()
        self.blemished = False
        """The topic holds what no publisher of ours wrote."""

    # --- bookkeeping ---

    def complain(self, rule: str, what: str) -> None:
        """Takes note of a violation."""
        self.outcome.violations.append(Violation(rule, what))

    def say(self, text: str) -> None:
        """A line of the trace."""
        if self.tracing:
            self.outcome.trace.append(text)

    def met(self, fault: str) -> None:
        """A fault strikes: in which states?"""
        met = self.outcome.met
        for state, holds in STATES.items():
            if holds(self):
                met[fault, state] += 1

    def _located(self) -> str:
        return str(answering.watermarks(self.owners[0][0].partition))

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

    # --- the source ---

    def op_txn(self, shard: int, seed: int, hidden: int) -> None:
        source = self.sources[shard % len(self.sources)]
        self._commit(source, seed, visible=hidden != 1)

    def _commit(self, source: Source, seed: int, *, visible: bool, who: str = "somebody") -> int:
        index, said = source.commit(seed, visible=visible)
        if any("foreign key" in what for what in said) or any("deletes" in what or "moves" in what for what in said):
            self._void(source.shard, CHILD)
        if not visible:
            self.met("binlog ahead of the engine")
        if self.tracing:
            shown = "" if visible else ", and the engine does not show it yet"
            self.say(f"{who} commits {source.gtids[index]} on {source.name}: {', '.join(said) or 'nothing'}{shown}")
        return index

    def op_write(self, session: int, shard: int, seed: int) -> None:
        source, reader = self.sources[shard % len(self.sources)], self.sessions[session]
        index = self._commit(source, seed, visible=True, who=f"session {session}")
        reader.client.observe(source.name, source.gtids[index])
        reader.saw(source.name, source.history.number, index)
        self.judge.own[session, source.name] = (source.history.number, index)

    def op_alter(self, shard: int, table: int) -> None:
        source, name = self.sources[shard % len(self.sources)], TABLES[table]
        self.met("DDL")
        index = source.alter(name, visible=True)
        self._void(source.shard, name)
        self.say(f"{source.gtids[index]} on {source.name}: ALTER TABLE {name} changes all of its rows")

    def op_stray(self, slot: int) -> None:
        """Only of a row whose own shard's change is in the topic before: then nobody can order the two."""
        slot = self._slot(slot)
        shard = slot // SLOTS_A_SHARD
        if len(self.sources) < 2 or (shard, SLOTS[slot].table) in self.voidable:
            return
        publisher, other = self.publishers[shard], self.sources[1 - shard]
        versions = publisher.source.history.versions.get(slot, [])
        if not publisher.epoch_start or not any(
            max(publisher.epoch_start.values()) < at <= publisher.published for at, _ in versions
        ):
            return
        self.met("a row in two shards")
        self.strays.add(slot)
        self._void(shard, SLOTS[slot].table)
        index = other.stray(slot)
        self.say(f"{other.gtids[index]} on {other.name} writes {SLOTS[slot].key!r}, which is of s/{shard}")

    def op_clock(self, shard: int, back: int) -> None:
        source = self.sources[shard % len(self.sources)]
        self.met("clock step")
        source.clock -= 10 * back
        self.say(f"the clock of {source.name} steps back {10 * back} s")

    def op_engine(self, shard: int) -> None:
        source = self.sources[shard % len(self.sources)]
        source.engine = source.history.end
        self.say(f"the engine of {source.name} shows everything")

    def op_replica(self, shard: int, count: int) -> None:
        source = self.sources[shard % len(self.sources)]
        source.replica = min(source.replica + count + 1, source.engine)
        self.say(f"the replica of {source.name} is at {source.history.positions[source.replica]}")

    def op_restore(self, shard: int, back: int, another: int) -> None:
        """The publisher sees it before the new history has gone past what it had published (docs/consistency.md)."""
        source = self.sources[shard % len(self.sources)]
        publisher = self.publishers[source.shard]
        index = source.history.index_of[publisher.position] - 1 - back
        if index < 0 or len(source.histories) > 3:
            return
        self.met("lost history")
        source.restore(index, another=bool(another))
        publisher.cut()
        publisher.ensure()
        self.readings = [each for each in self.readings if each.snapshot is None or each.question.slot // 4 != shard]
        server = "another server takes over" if another else "the server is restored"
        self.say(f"{source.name} loses history: {server} at {source.history.positions[index]}; a new epoch begins")

    # --- the publisher and the topic ---

    def op_publish(self, shard: int, count: int, ending: int, at: int) -> None:
        publisher = self.publishers[shard % len(self.publishers)]
        how = Ending(ending)
        if how is Ending.LOST_ACK:
            self.met("lost ack")
        elif how is Ending.NOT_DONE:
            self.met("publisher crash")
        if publisher.split and publisher.framer is None:
            self._void(publisher.source.shard, *{table for shard, table in self.voidable if shard == shard})
            if self.voidable:
                self._void(publisher.source.shard)
        read, lived = publisher.run(count, how, at)
        if not lived and publisher.split:
            self._void(publisher.source.shard)
        if self.tracing:
            end = {
                Ending.WELL: "and commits",
                Ending.LOST_ACK: "and dies after a commit, before it knows of it",
                Ending.NOT_DONE: "and dies in a commit, which does not happen",
                Ending.LATER: "and keeps the batch open",
            }[how]
            self.say(f"the publisher of s/{publisher.source.shard} reads {read} transactions {end}")

    def op_die(self, shard: int) -> None:
        publisher = self.publishers[shard % len(self.publishers)]
        self.met("publisher crash")
        if publisher.split:
            self._void(publisher.source.shard)
        publisher.die()
        self.say(f"the publisher of s/{publisher.source.shard} is killed, another one takes over")

    def op_cut(self, shard: int) -> None:
        publisher = self.publishers[shard % len(self.publishers)]
        if publisher.framer is None:
            return
        self.met("connection to the source cut")
        publisher.cut()
        self.say(f"the connection of s/{publisher.source.shard}'s publisher to its server breaks")

    def op_repeat(self, shard: int, number: int) -> None:
        if self.topic.repeat(f"s/{shard % len(self.sources)}", number):
            self.met("duplicates")
            self.blemished = True
            self.say(f"an earlier batch (number {number}) of s/{shard % len(self.sources)} comes once more")

    def op_garbage(self, partition: int, kind: int) -> None:
        number = partition % self.topic.layout.partitions
        self.met("garbage in the topic")
        value = damaged(b"\xc3\x01garbage" if kind > 3 else b"\xc3\x01notours", kind % 4)
        self.topic.partitions[number].append(value)
        self._void()
        self.blemished = True
        self.say(f"somebody writes {value!r} into partition {number}")

    def op_damage(self, kind: int) -> None:
        self.met("damaged frame")
        self.topic.damage = kind
        self._void()
        self.blemished = True
        self.say(f"the next row frame will be damaged (kind {kind})")

    # --- owners ---

    def op_fold(self, owner: int, partition: int, count: int) -> None:
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
        """Modes: to the end from the primary (0–4) or the replica (5, 6), look-up only (7–9), no token (10), alias."""
        slot = self._slot(slot)
        reading = self._ask(session, slot, owner, front, mode)
        if reading is None or mode in (7, 8, 9):
            return
        self._snap(reading, from_replica=mode in (5, 6))
        self._give(reading)
        if mode in (0, 1, 5) and self.offers:
            self._deliver(self.offers.pop())

    def _ask(self, session: int, slot: int, owner: int, front: int, mode: int, *, store: Any = None) -> Reading | None:
        reader, alias = self.sessions[session], mode == 11
        owned = self._owned(owner, slot, alias)
        shard = f"s/{slot // SLOTS_A_SHARD}"
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
        if isinstance(found, Question):
            self.outcome.answers["look-up: not servable"] += 1
            self.say(
                f"session {session} asks owner {owner} for {SLOTS[slot].key!r} at {_shown(found.demand.vector)}:"
                f" {found.row.freshness}, {found.row.why}"
            )
            reading = Reading(found)
            self.readings.append(reading)
            return reading
        self._answered(found, reader, reader.client.vector, shard, f"owner {owner}")
        return None

    def _blur(self, reader: Session) -> None:
        """Where a session's token names another history than it saw: nobody could know (docs/consistency.md)."""
        for shard, seen in reader.seen.items():
            component = reader.client.vector.get(shard)
            if component is not None:
                history = self.judge.history(int(shard[2:]), component.epoch)
                if history is None or history.number != seen.history:
                    reader.blurred.add(shard)

    def _answered(self, found: Given | HistoryLost, reader: Session, before: Vector, shard: str, who: str) -> None:
        if isinstance(found, Given):
            self.outcome.answers[f"{found.served_from}: {found.freshness}"] += 1
            if self.tracing:
                image = found.image.decode() if found.image is not None else "no row"
                self.say(
                    f"session {reader.number} gets {image} for {found.question.key.key!r} from {who}, demanding"
                    f" {_shown(found.question.demand.vector)}: {found.freshness}, {found.why}"
                )
            self.judge.given(found)
            self._blur(reader)
            return
        self.outcome.answers["409 history_lost"] += 1
        self.say(f"session {reader.number} is told by {who} that history was lost: {found}")
        self.judge.lost(found, before, shard)
        reader.client._adopt_lost(found)
        reader.blurred.discard(shard)
        reader.seen.pop(shard, None)
        component = reader.client.vector.get(shard)
        history = self.judge.history(int(shard[2:]), component.epoch) if component is not None else None
        if component is not None and history is not None:
            index = history.index_of.get(str(component.position))
            if index is not None:
                reader.saw(shard, history.number, index)

    def _snap(self, reading: Reading, *, from_replica: bool) -> None:
        slot = reading.question.slot
        source = self.sources[slot // SLOTS_A_SHARD]
        if from_replica and source.replica < source.engine:
            self.met("lagging replica")
        reading.snapshot = source.read(slot, from_replica=from_replica)
        where = "replica" if from_replica else "primary"
        self.say(f"  the front reads {SLOTS[slot].key!r} at the {where}, at {reading.snapshot.position}")

    def _give(self, reading: Reading) -> None:
        if reading in self.readings:
            self.readings.remove(reading)
        fill = asking.offer(reading)
        if fill is not None:
            self.offers.append(fill)
        session = reading.question.session
        before = reading.question.demand.vector
        found = asking.answer(reading)
        if found is None:
            self.outcome.answers["503 source_behind"] += 1
            self.say(f"  session {session.number} gets no answer: the source does not prove the demand")
            return
        shard = f"s/{reading.question.slot // SLOTS_A_SHARD}"
        self._answered(found, session, before, shard, "the source")

    def _deliver(self, fill: Offer) -> tuple[bool, str]:
        accepted, why = answering.fill_row(fill.owned.partition, fill.request)
        if accepted:
            self.judge.filled(fill)
        self.outcome.answers[f"fill {'accepted' if accepted else 'refused'}"] += 1
        self.say(f"  a fill of {fill.request.key!r} read at {fill.request.lo} comes to its owner: {why}")
        return accepted, why

    def op_snap(self, number: int, replica: int) -> None:
        if self.readings:
            self._snap(self.readings[number % len(self.readings)], from_replica=bool(replica))

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
        mine.snapshot = theirs.snapshot
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
        for shard, seen in theirs.seen.items():
            mine.saw(shard, *seen)
        self.say(f"session {session} goes on from session {other}'s token")

    def op_wait(self, session: int, owner: int, partition: int) -> None:
        """`reached` says that the partition covers the vector: then every known row is servable for it."""
        owned = self._partition(owner, partition)
        vector = self.sessions[session].client.vector
        if not vector or not answering.reached(owned.partition, vector):
            return
        self.say(f"session {session} has waited for partition {owned.number} of owner {owner}")
        for slot in range(len(self.sources) * SLOTS_A_SHARD):
            if self._owned(owner, slot, False) is owned:
                row = answering.answer_row(owned.partition, SLOTS[slot].key, answering.demand_of(str(vector)))
                if not row.served and row.kind in (1, 2):
                    self.complain(EXPLAINS, f"the wait for {_shown(vector)} is over, {SLOTS[slot].key!r}: {row.why}")

    # --- the end ---

    def finish(self) -> None:
        """Quiet: everything is published and folded; then the rules of the whole are checked."""
        for publisher in self.publishers:
            publisher.source.engine = publisher.source.replica = publisher.source.history.end
            if publisher.split and publisher.framer is None:
                self._void(publisher.source.shard)
            publisher.run(len(publisher.source.binlog), Ending.WELL, 0)
            if self.blemished:
                publisher.run(0, Ending.WELL, 0)  # the marker that voids wait for
        self.say("it is quiet: everything is published and folded")
        self.tracing = False
        for owned in (each for owner in self.owners for each in owner):
            owned.fold(owned.behind)
        self._same_state()
        if not self.blemished:
            self._published_once()
        reader = self._reader_of_everything()
        for slot in range(len(self.sources) * SLOTS_A_SHARD):
            for owner in range(OWNERS):
                self._settled(reader, owner, slot)

    def _same_state(self) -> None:
        for number in range(self.topic.layout.partitions):
            expected = refolded(self.topic, number)
            for owner in range(OWNERS):
                found = self.owners[owner][number].state()
                if found != expected:
                    keys = sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
                    what = (
                        f"owner {owner} holds {found.get(keys[0])!r}, a fold from the start {expected.get(keys[0])!r}"
                    )
                    self.complain(SAME_STATE, f"partition {number}, {keys[0]!r}: {what}")

    def _published_once(self) -> None:
        """No change of a row is in the topic twice."""
        seen: set[tuple[str, int, bytes, str]] = set()
        for value in (value for partition in self.topic.partitions for value in partition):
            name, record = decode(value) if value is not None else ("", {})
            if name != "RowFrame":
                continue
            gtids = [
                gtid for gtid, size in zip(record["gtids"], record["transactions"], strict=True) for _ in range(size)
            ]
            for key, gtid in zip(record["keys"], gtids, strict=True):
                change = (record["shard"], record["epoch"], key, gtid)
                if change in seen:
                    self.complain(NOTHING_LOST, f"{gtid}'s change of {key!r} is in the topic twice")
                seen.add(change)

    def _settled(self, reader: Session, owner: int, slot: int) -> None:
        owned, shard = self._owned(owner, slot, False), slot // SLOTS_A_SHARD
        voidable = (shard, SLOTS[slot].table) in self.voidable
        value = owned.store.get(SLOTS[slot].key)
        if owner == 0:  # the other's is the same, byte for byte
            self.judge.folded(f"owner {owner}", owned.number, slot, owned.store.visible, value, voidable=voidable)
        reading = self._ask_as(reader, slot, owner)
        if reading is None:
            return
        source, row = self.sources[shard], reading.question.row
        reading.snapshot = source.read(slot, from_replica=False)
        fill = asking.offer(reading)
        if fill is None:
            absent_text = reading.snapshot.image is None and SLOTS[slot].table == TEXT
            if row.shard and not absent_text and slot not in self.strays:
                self.complain(RECOVERS, f"{SLOTS[slot].key!r} is not servable at owner {owner}, and is not filled")
            return
        accepted, why = self._deliver(fill)
        if not accepted:
            known = row.shard == source.name
            lo, value = fill.request.lo, owned.store.get(SLOTS[slot].key)
            again = may_fill(owned.store.visible, SLOTS[slot].key, value, lo)[1] if known else ""
            self.complain(RECOVERS, f"a fill of {SLOTS[slot].key!r} is refused when it is quiet: {why} {again}")
        elif self._ask_as(reader, slot, owner) is not None:
            self.complain(RECOVERS, f"{SLOTS[slot].key!r} is still not servable at owner {owner} after a fill")

    def _reader_of_everything(self) -> Session:
        reader = Session(9, self._located)
        vector = Vector(
            {
                each.source.name: (max(each.epoch_start), Position.parse(each.source.history.positions[-1]))
                for each in self.publishers
            }
        )
        reader.client.adopt(str(vector))
        for each in self.publishers:
            reader.saw(each.source.name, each.source.history.number, each.source.history.end)
        return reader

    def _ask_as(self, reader: Session, slot: int, owner: int) -> Reading | None:
        owned, shard = self._owned(owner, slot, False), f"s/{slot // SLOTS_A_SHARD}"
        before = reader.client.vector
        found = asking.ask(reader, slot, alias=False, owned=owned, epochs=Epochs(), shard=shard, given=True)
        if isinstance(found, Question):
            return Reading(found)
        if isinstance(found, HistoryLost):
            self.complain(NOTHING_LOST, f"409 for {_shown(before)} when it is quiet: {found}")
            return None
        self._answered(found, reader, before, shard, f"owner {owner}")
        return None


def _shown(vector: Vector) -> str:
    return ", ".join(f"{shard} epoch {epoch} {position}" for shard, (epoch, position) in vector.items()) or "nothing"


STATES: Final[dict[str, Callable[[RowWorld], bool]]] = {
    "quiet": lambda w: not any(o.behind for owner in w.owners for o in owner) and not w.readings,
    "a batch collected": lambda w: any(p.collected for p in w.publishers),
    "a transaction partly out": lambda w: any(p.split for p in w.publishers),
    "owners behind": lambda w: any(o.behind for owner in w.owners for o in owner),
    "owners apart": lambda w: any(a.offset != b.offset for a, b in zip(*w.owners, strict=True)),
    "folded, not durable": lambda w: any(o.store.is_dirty for owner in w.owners for o in owner),
    "a commit under way": lambda w: any(o.store._frozen for owner in w.owners for o in owner),
    "a read under way": lambda w: bool(w.readings),
    "a fill under way": lambda w: bool(w.offers),
    "a fill in an overlay": lambda w: any(len(o.overlay) for owner in w.owners for o in owner),
    "a void without its marker": lambda w: any(
        not void.floor for owner in w.owners for o in owner for void in o.store.visible.voids.values()
    ),
    "a later epoch": lambda w: any(len(p.epoch_start) > 1 for p in w.publishers),
    "two shards": lambda w: len(w.sources) > 1,
}
FAULTS: Final = (
    "binlog ahead of the engine",
    "DDL",
    "clock step",
    "lost history",
    "lost ack",
    "publisher crash",
    "connection to the source cut",
    "duplicates",
    "garbage in the topic",
    "damaged frame",
    "read within a fold",
    "owner crash",
    "torn write",
    "rebuild",
    "eviction",
    "lagging replica",
    "late answer",
    "late fill",
    "shared flight",
    "session moves",
    "a row in two shards",
)
OPS: Final = {name[3:].replace("_", " "): getattr(RowWorld, name) for name in vars(RowWorld) if name.startswith("op_")}


class Rows:
    """Rows, from a MariaDB-like source to sessions."""

    name = "rows"
    rules: tuple[str, ...] = RULES
    faults: tuple[str, ...] = FAULTS
    states: tuple[str, ...] = tuple(STATES)

    def history(self, rng: Random) -> History:
        """About 10 to 30 ops."""
        return random_history(rng)

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, and then until it is quiet. Stops at the first violation."""
        outcome = Outcome()
        config: Op = ops[0] if ops and ops[0][0] == "world" else ("world", 0, 0, 0, 0)
        world = RowWorld(config, outcome, trace)
        for op in ops:
            if op[0] == "world":
                continue
            OPS[str(op[0])](world, *op[1:])
            if outcome.violations:
                return outcome
        world.finish()
        return outcome
