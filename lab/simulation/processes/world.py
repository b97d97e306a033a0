"""Several folds of one partition with different speeds and faults. At equal offsets their states must be equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from consumers.fold.messages import fold_message
from consumers.fold.state import Head, PartitionState, head_entries
from lab.simulation.engine import History, Op, Outcome, TracedRun, Violation, ops_of, play, shape
from lab.simulation.models.owning import MemoryRocks, OwnedPartition
from lab.simulation.models.topic import SimulatedTopic, damaged
from lab.simulation.naive.judging import BY_THE_RULES, SAME_STATE, check_fold
from lab.simulation.rows.publishing import LIMITS, Ending, Publishing
from lab.simulation.rows.source import SimulatedSource
from lab.simulation.whole_processes.words import DURABLE
from stream.wire.keys import Layout

PROCESSES: Final = 3
SHAPE: Final = 2
"""Integers in the first op."""

SMALL: Final = 0.75
"""Share of histories that are short."""


class Reference:
    """The partition folded message by message into a dict, with its state at every offset."""

    def __init__(self, topic: SimulatedTopic) -> None:
        self._log = topic.partitions[0]
        self._entries: dict[bytes, bytes] = {}
        self._state = PartitionState(Head(), self._entries.get)
        self._before: list[tuple[dict[bytes, bytes], Head]] = [({}, Head())]
        """(entries, head) by offset; encoded only when requested."""
        self._at: dict[int, dict[bytes, bytes]] = {}

    def at(self, offset: int) -> dict[bytes, bytes]:
        """Every byte of the state before ``offset``."""
        before, state = self._before, self._state
        while len(before) <= offset:
            changes = fold_message(state, len(before) - 1, self._log[len(before) - 1])
            changes.put_into(self._entries)
            state.apply(changes)
            head = state.head
            copied = head.copy()
            before.append((dict(self._entries), copied))
        found = self._at.get(offset)
        if found is None:
            entries, head = before[offset]
            found = self._at[offset] = entries | head_entries(head)
        return found


class ProcessesRun(TracedRun):
    """One run of a history of processes."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: 1 for two shards, index of the limits."""
        super().__init__(outcome, trace)
        shards, limits = shape
        self.topic = SimulatedTopic(Layout(1))
        self.sources = [SimulatedSource(shard, 1) for shard in range(1 + shards % 2)]
        self.publishers = [Publishing(self.topic, source, LIMITS[limits % 3]) for source in self.sources]
        self.processes = [OwnedPartition(self.topic, 0, by_column=bool(number)) for number in range(PROCESSES)]
        self.checkpoint: MemoryRocks | None = None
        self.reference = Reference(self.topic)

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""
        for owned in self.processes:
            owned.close()

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        for state, holds in STATES.items():
            if holds(self):
                self.outcome.met[fault, state] += 1

    def check(self, number: int) -> None:
        """Checks that a process's state and its durable state equal the reference at their offsets."""
        owned = self.processes[number]
        self.outcome.answers["states compared"] += 1
        self._compare(f"process {number}", owned.state(), owned.offset, SAME_STATE)
        committed = owned.store.committed_offset
        if owned.rocks.data:
            self._compare(f"the durable store of process {number}", owned.rocks.data, committed, DURABLE)

    def _compare(self, who: str, found: dict[bytes, bytes], offset: int, rule: str) -> None:
        expected = self.reference.at(offset)
        if found != expected:
            key = min(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key))
            what = f"{who} at offset {offset} holds {found.get(key)!r} for {key!r}, expected {expected.get(key)!r}"
            self.outcome.violations.append(Violation(rule, what))

    def op_txn(self, shard: int, seed: int) -> None:
        source = self.sources[shard % len(self.sources)]
        index, said = source.commit(seed, visible=True)
        self.say(f"{source.gtids[index]} on {source.name}: {', '.join(said) or 'nothing'}")

    def op_publish(self, shard: int, count: int, ending: int, at: int) -> None:
        publisher, how = self.publishers[shard % len(self.publishers)], Ending(ending)
        if how in (Ending.LOST_ACK, Ending.NOT_DONE):
            self.count_fault("publisher crash")
        read, lived = publisher.run(count, how, at)
        self.say(f"the publisher of {publisher.source.name} reads {read} transactions, {'lives' if lived else 'dies'}")

    def op_restore(self, shard: int, back: int) -> None:
        source, publisher = self.sources[shard % len(self.sources)], self.publishers[shard % len(self.publishers)]
        index = source.history.index_of[publisher.position] - 1 - back
        if index < 0 or len(source.histories) > 3:
            return
        self.count_fault("lost history")
        source.restore(index, another=False)
        publisher.cut()
        publisher.ensure()
        self.say(f"{source.name} loses history; a new epoch begins")

    def op_repeat(self, shard: int, number: int) -> None:
        if self.topic.repeat(f"s/{shard % len(self.sources)}", number):
            self.count_fault("duplicates")
            self.say(f"an earlier batch (number {number}) is appended again")

    def op_garbage(self, kind: int) -> None:
        self.count_fault("garbage")
        self.topic.partitions[0].append(damaged(b"\xc3\x01garbage", kind % 4))
        self.say("a foreign program writes garbage into the topic")

    def op_damage(self, kind: int) -> None:
        self.count_fault("garbage")
        self.topic.damage = kind
        self.say(f"the next row frame will be damaged (kind {kind})")

    def op_fold(self, process: int, count: int) -> None:
        folded = self.processes[process].fold(count + 1)
        self.say(f"process {process} folds {folded} messages")
        self.check(process)

    def op_all(self, process: int) -> None:
        self.processes[process].fold(self.processes[process].behind)
        self.say(f"process {process} folds everything")
        self.check(process)

    def op_commit(self, process: int, how: int) -> None:
        if how in (3, 4, 5, 7):
            self.count_fault("torn write" if how == 4 else "crash")
        self.processes[process].commit(how)
        self.say(f"process {process} commits in way {how} and is at offset {self.processes[process].offset}")
        self.check(process)

    def op_crash(self, process: int) -> None:
        self.count_fault("crash")
        self.processes[process].start()
        self.say(f"process {process} is killed and restarts at offset {self.processes[process].offset}")
        self.check(process)

    def op_rebuild(self, process: int) -> None:
        self.count_fault("rebuild")
        self.processes[process] = OwnedPartition(self.topic, 0, by_column=bool(process))
        self.say(f"process {process} loses its store and starts at offset 0")

    def op_checkpoint(self, process: int) -> None:
        owned = self.processes[process]
        owned.commit(0)
        owned.commit(0)
        self.checkpoint = owned.rocks.copy()
        self.say(f"a checkpoint of process {process} is taken at offset {owned.store.committed_offset}")

    def op_from_checkpoint(self, process: int) -> None:
        if self.checkpoint is None:
            return
        self.count_fault("begins at a checkpoint")
        self.processes[process] = OwnedPartition(self.topic, 0, self.checkpoint.copy(), by_column=bool(process))
        self.say(f"process {process} starts from the checkpoint, offset {self.processes[process].offset}")
        self.check(process)

    def finish(self) -> None:
        """Folds every process to the end, the first message by message, the others at once, and checks them."""
        for number, owned in enumerate(self.processes):
            while number == 0 and owned.behind:
                owned.fold(1)
            owned.fold(owned.behind)
            self.check(number)
        check_fold(self.processes[0], self.complain)


STATES: Final[dict[str, Callable[[ProcessesRun], bool]]] = {
    "folded, not durable": lambda w: any(each.store.is_dirty for each in w.processes),
    "a commit under way": lambda w: any(each.store._frozen for each in w.processes),
    "behind": lambda w: any(each.behind for each in w.processes),
    "apart": lambda w: len({each.offset for each in w.processes}) > 1,
    "a void without its marker": lambda w: any(
        not void.floor for each in w.processes for void in each.store.visible.voids.values()
    ),
    "a later epoch": lambda w: any(len(each.epoch_start) > 1 for each in w.publishers),
    "two shards": lambda w: len(w.sources) > 1,
    "a transaction partly out": lambda w: any(each.split for each in w.publishers),
}
OPS: Final = ops_of(ProcessesRun)
KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "txn": (5, (2, 1 << 16)),
    "publish": (5, (2, 4, 4, 2)),
    "fold": (6, (PROCESSES, 6)),
    "all": (2, (PROCESSES,)),
    "commit": (5, (PROCESSES, 8)),
}
RARE_OPERATIONS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "crash": (3, (PROCESSES,)),
    "rebuild": (1, (PROCESSES,)),
    "checkpoint": (2, (PROCESSES,)),
    "from checkpoint": (2, (PROCESSES,)),
    "repeat": (1, (2, 8)),
    "garbage": (1, (6,)),
    "damage": (1, (8,)),
    "restore": (1, (2, 3)),
}


class ProcessesWorld:
    """Processes that crash, pause, restart, are rebuilt, or start from a checkpoint."""

    name = "processes"
    rules: tuple[str, ...] = (SAME_STATE, DURABLE, BY_THE_RULES, "never raises")
    faults: tuple[str, ...] = (
        "publisher crash", "lost history", "duplicates", "garbage", "crash", "torn write", "rebuild",
        "begins at a checkpoint",
    )  # fmt: skip
    states: tuple[str, ...] = tuple(STATES)
    cost = 1

    def history(self, rng: Random) -> History:
        """A random history of 4 to 18 ops."""
        pick = rng.random
        count = 4 + int(pick() * 6) if pick() < SMALL else 6 + int(pick() * 12)
        share = 0.2 + 0.5 * pick()
        kinds = KINDS | {name: kind for name, kind in RARE_OPERATIONS.items() if pick() < share}
        names = list(kinds)
        ops: History = [("world", int(pick() < 0.2), int(pick() * 3)), ("publish", 0, 0, 0, 0)]
        for name in rng.choices(names, [kinds[name][0] for name in names], k=count):
            ops.append((name, *(int(pick() * bound) for bound in kinds[name][1])))
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then folds to the end of the log. Stops at the first violation."""
        return play(ProcessesRun(shape(ops, SHAPE), Outcome(), trace), ops, OPS)
