"""Ops of the world of rows: changes at the source, in its publisher, and in the topic."""

from __future__ import annotations

from itertools import chain

from lab.simulation.models.topic import announced, damaged
from lab.simulation.rows.interrupting import InterruptedReadOps
from lab.simulation.rows.publishing import Ending
from lab.simulation.rows.shaping import TABLES
from lab.simulation.rows.source import CHILD, SLOTS, SLOTS_A_SHARD, SimulatedSource


class RowChangeOps(InterruptedReadOps):
    """Ops that change sources, publishers and the topic."""

    # --- the source ---

    def op_txn(self, shard: int, seed: int, hidden: int) -> None:
        source = self.sources[shard % len(self.sources)]
        self._commit(source, seed, visible=hidden != 1)

    def _commit(self, source: SimulatedSource, seed: int, *, visible: bool, who: str = "a writer") -> int:
        index, said = source.commit(seed, visible=visible)
        for what in said:
            if what.startswith(("deletes", "moves")) or "foreign key" in what:
                self._void(source.shard, CHILD)
        if not visible:
            self.count_fault("binlog ahead of the engine")
        if self.tracing:
            shown = "" if visible else ", but the engine does not show it yet"
            self.say(f"{who} commits {source.gtids[index]} on {source.name}: {', '.join(said) or 'nothing'}{shown}")
        return index

    def op_write(self, session: int, shard: int, seed: int) -> None:
        source, reader = self.sources[shard % len(self.sources)], self.sessions[session]
        index = self._commit(source, seed, visible=True, who=f"session {session}")
        reader.client.observe(source.name, source.gtids[index])
        reader.saw(source.name, source.history.number, index)
        self.judge.own[session, source.name] = (source.history.number, index)
        reader.shards_written.add(source.name)
        component = reader.client.vector.get(source.name)
        if component is None or self.judge.history(source.shard, component.epoch) is not source.history:
            reader.misplaced.add(source.name)

    def op_alter(self, shard: int, table: int) -> None:
        source, name = self.sources[shard % len(self.sources)], TABLES[table]
        self.count_fault("DDL")
        index = source.alter(name, visible=True)
        self._void(source.shard, name)
        self.say(f"{source.gtids[index]} on {source.name}: ALTER TABLE {name} changes all of its rows")

    def op_foreign_row(self, slot: int) -> None:
        """Writes a row of another shard, if every store has the place of that shard's own change of it.

        The order of the two changes is then unknown. A store that begins after the first one takes the second
        (docs/concepts/guarantees.md).
        """
        slot = self._slot(slot)
        shard = slot // SLOTS_A_SHARD
        if len(self.sources) < 2 or (shard, SLOTS[slot].table) in self.voidable:
            return
        if any(owned.begin for owner in self.owners for owned in owner):
            return
        publisher, other = self.publishers[shard], self.sources[1 - shard]
        versions = publisher.source.history.versions.get(slot, [])
        if not publisher.epoch_start or not any(
            max(publisher.epoch_start.values()) < at <= publisher.published for at, _ in versions
        ):
            return
        self.count_fault("a row in two shards")
        self.foreign_rows.add(slot)
        self._void(shard, SLOTS[slot].table)
        index = other.write_foreign_row(slot)
        self.say(f"{other.gtids[index]} on {other.name} writes {SLOTS[slot].key!r}, which belongs to s/{shard}")

    def op_clock(self, shard: int, back: int) -> None:
        source = self.sources[shard % len(self.sources)]
        self.count_fault("clock step")
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
        """The server loses commits, and the publisher notices it at once (docs/concepts/guarantees.md)."""
        source = self.sources[shard % len(self.sources)]
        publisher = self.publishers[source.shard]
        index = source.history.index_of[publisher.position] - 1 - back
        if index < 0 or len(source.histories) > 3:
            return
        self.count_fault("lost history")
        source.restore(index, another=bool(another))
        for _ in range(back + 2 if another == 2 else 0):
            self._commit(
                source, 0, visible=True
            )  # past the published position: only the server id shows that it is another history
        publisher.cut()
        publisher.ensure()
        self.break_source_reads(source.shard)
        server = "another server takes over" if another else "the server is restored"
        self.say(f"{source.name} loses history: {server} at {source.history.positions[index]}; a new epoch begins")

    def op_go_back(self, shard: int, seed: int) -> None:
        """A server writes with a sequence below the last one of its domain, and the publisher meets it at once."""
        source = self.sources[shard % len(self.sources)]
        publisher = self.publishers[source.shard]
        if len(source.histories) > 3 or source.engine < source.history.end:
            return
        publisher.run(len(source.binlog), Ending.WELL, 0)
        self.count_fault("sequence goes back")
        index, said = source.go_back(seed)
        self._void(source.shard)
        publisher.meet_lower_sequence()
        self.break_source_reads(source.shard)
        what = ", ".join(said) or "nothing"
        self.say(f"another server commits {source.gtids[index]} on {source.name}: {what}; a new epoch begins")

    # --- the publisher and the topic ---

    def op_publish(self, shard: int, count: int, ending: int, at: int) -> None:
        publisher = self.publishers[shard % len(self.publishers)]
        how = Ending(ending)
        if how is Ending.LOST_ACK:
            self.count_fault("lost ack")
        elif how is Ending.NOT_DONE:
            self.count_fault("publisher crash")
        if publisher.split and publisher.framer is None:
            self._void(publisher.source.shard)
        mixing = self.topic.mixing
        read, lived = publisher.run(count, how, at)
        if self.topic.mixing != mixing:
            self.count_fault("reordering across shards")
        if not lived and publisher.split:
            self._void(publisher.source.shard)
        if self.tracing:
            end = {
                Ending.WELL: "and commits",
                Ending.LOST_ACK: "and dies after a commit, before it gets the ack",
                Ending.NOT_DONE: "and dies before a commit takes effect",
                Ending.LATER: "and keeps the batch open",
            }[how]
            self.say(f"the publisher of s/{publisher.source.shard} reads {read} transactions {end}")

    def op_backfill(self, shard: int, chunks: int, behind: int) -> None:
        publisher = self.publishers[shard % len(self.publishers)]
        if publisher.split and publisher.framer is None:
            self._void(publisher.source.shard)
        read = publisher.backfill(chunks + 1, behind=behind)
        self.say(f"the source s/{publisher.source.shard} goes on with its backfill, and reads {read} chunks")

    def op_die(self, shard: int) -> None:
        publisher = self.publishers[shard % len(self.publishers)]
        self.count_fault("publisher crash")
        if publisher.split:
            self._void(publisher.source.shard)
        publisher.die()
        self.say(f"the publisher of s/{publisher.source.shard} is killed; another one takes over")

    def op_choose(self, choice: int) -> None:
        """The sources start again with another choice of tables. What they leave out must not be kept any more."""
        if self.publishers[0].choice == choice:
            return
        self.count_fault("another choice of tables")
        self._void()
        for publisher in self.publishers:
            publisher.die()
            publisher.choice = choice
        for owned in chain.from_iterable(self.owners):
            if owned.has_seen_what_was_lost:
                owned.forget()  # it may miss the scope; only the leader epochs show that, by which the process rebuilds
        chosen = f"all tables but {TABLES[choice - 1]}" if choice else "all tables"
        self.say(f"the sources are started again, to publish {chosen}")

    def op_cut(self, shard: int) -> None:
        publisher = self.publishers[shard % len(self.publishers)]
        if publisher.framer is None:
            return
        self.count_fault("connection to the source cut")
        publisher.cut()
        self.say(f"the connection of s/{publisher.source.shard}'s publisher to its server breaks")

    def op_repeat(self, shard: int, number: int) -> None:
        begins: dict[int, int] = {}
        for owned in chain.from_iterable(self.owners):
            begins[owned.number] = max(owned.begin, begins.get(owned.number, 0))
        if self.topic.repeat(f"s/{shard % len(self.sources)}", number, begins):
            self.count_fault("duplicates")
            self.topic_is_tampered = True
            self.say(f"an earlier batch (number {number}) of s/{shard % len(self.sources)} is appended again")

    def op_lose_end(self, commits: int) -> None:
        """Kafka loses the end of its log; the publishers notice nothing, and fill it again from where it ends."""
        ends = [len(records) for records in self.topic.partitions]
        stands = {owned: owned.last_read for owned in chain.from_iterable(self.owners)}
        if not self.topic.lose_end(commits + 1):
            return
        self.count_fault("lost end of the log")
        self._void()
        self.topic_is_tampered = True
        for publisher in self.publishers:
            publisher.die()
            publisher.recount()
        for owned in chain.from_iterable(self.owners):
            end = len(self.topic.partitions[owned.number])
            self.topic.read_to[owned.number] = min(self.topic.read_to[owned.number], end)
            owned.lose_letters(end)
            if owned.offset > end:
                owned.has_seen_what_was_lost = True
                # Markers link batches. Inside a batch, or if a scope or a shard's beginning is missed, only the leader
                # epochs show it, by which the process rebuilds.
                is_between = stands[owned] in ("SourceState", "Marker")
                is_all_begun = len(self.topic.batches) == len(self.publishers)
                if not is_between or not is_all_begun or any(publisher.choice for publisher in self.publishers):
                    owned.forget()
        lost = [end - len(records) for end, records in zip(ends, self.topic.partitions, strict=True)]
        self.say(f"Kafka loses the last {lost} messages of its partitions")

    def op_say_again(self) -> None:
        self.count_fault("repeated declarations")
        self.topic.say_again()
        self.topic_is_tampered = True
        self.say("the publishers say again what is said only once")

    def op_newer(self, skippable: int) -> None:
        """A newer publisher writes a record that readers do not have: rows, or something that they may pass over."""
        self.count_fault("newer record")
        self.topic.is_newer = not skippable
        if skippable:
            for records in self.topic.partitions:
                records.extend(announced("Remark", "hello", skippable=True))
            self.topic.settle()
        self.say(f"a newer publisher writes {'a remark' if skippable else 'the next rows'} in a record of its own")

    def op_upgrade(self) -> None:
        if self.topic.upgrade():
            self.say("the owners are upgraded: they have the newer record")

    def op_mix(self, bits: int) -> None:
        """Interleaves the next batch with the other shard's, as when two publishers' transactions overlap."""
        if len(self.sources) > 1:
            self.topic.mixing = bits
            self.say("the next batch will be interleaved with the other shard's, unless that has been read")

    def op_garbage(self, partition: int, kind: int) -> None:
        number = partition % self.topic.layout.partitions
        self.count_fault("garbage in the topic")
        value = damaged(b"\xc3\x01garbage" if kind > 3 else b"\xc3\x01notours", kind % 4)
        self.topic.partitions[number].append(value)
        self._void()
        self.topic_is_tampered = True
        self.say(f"a foreign program writes {value!r} into partition {number}")

    def op_damage(self, kind: int) -> None:
        self.count_fault("damaged frame")
        self.topic.damage = kind
        self._void()
        self.topic_is_tampered = True
        self.say(f"the next row frame will be damaged (kind {kind})")
