"""The world of catalog tables: what its ops do, and its checkers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final, NamedTuple

from consumers import answering
from consumers.catalog_reading import MissingWriteIds, why_unservable
from consumers.catalog_state import decode_table, table_key
from consumers.protocol import FillTable, Table
from freshet.simulation.catalog.publishing import LIMITS, SHARD, CatalogPublishing
from freshet.simulation.catalog.source import NAMES, OPEN, Metastore
from freshet.simulation.engine import History, Op, Outcome, Violation
from freshet.simulation.rows.judging import refolded
from freshet.simulation.rows.owning import OwnedPartition
from freshet.simulation.rows.publishing import Ending, Topic
from serving.errors import ReadError
from serving.proof import Proof
from serving.query import ReadDemand, TableWanted
from serving.rows import advanced
from serving.source import SourceTable
from serving.tables import judge_table
from stream.keys import Layout
from stream.sources.workload.catalog import position_of
from stream.sources.workload.log import event_id_of
from tokens import Position, ValidWriteIdList, Vector

OWNERS: Final = 2
READERS: Final = 2
STALE: Final = "no stale answer"
LIST: Final = "the list is covered"
MONOTONIC: Final = "monotonic reads"
UNCOMMITTED: Final = "nothing uncommitted"
NOTHING_LOST: Final = "nothing lost, nothing twice"
RECOVERS: Final = "recovers by itself"
SAME_STATE: Final = "same history, same state"
EXPLAINS: Final = "explanation true"
Image = bytes | None


class Lists(NamedTuple):
    """What a reader fetched at the beginning of its transaction: of one table, at one event."""

    name: str
    table_id: int
    write_ids: str
    own: int


class Reader:
    """A session. ``seen``: table id → the event whose state of it was truly seen."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.vector = Vector()
        self.lists: Lists | None = None
        self.seen: dict[int, int] = {}


class CatalogWorld:
    """One run of a history."""

    def __init__(self, config: Op, outcome: Outcome, trace: bool) -> None:
        partitions, undoes, limits = (int(value) for value in config[1:4])
        self.outcome = outcome
        self.tracing = trace
        self.store = Metastore(undoes=not undoes)
        self.topic = Topic(Layout(1 + 2 * (partitions % 2)))
        self.publisher = CatalogPublishing(self.topic, self.store, LIMITS[limits % 2])
        count = self.topic.layout.partitions
        self.owners = [[OwnedPartition(self.topic, number) for number in range(count)] for _ in range(OWNERS)]
        self.readers = [Reader(number) for number in range(READERS)]
        self.fills: list[tuple[OwnedPartition, FillTable]] = []
        self.damaged = False

    def complain(self, rule: str, what: str) -> None:
        """Takes note of a violation."""
        self.outcome.violations.append(Violation(rule, what))

    def say(self, text: str) -> None:
        """A line of the trace."""
        if self.tracing:
            self.outcome.trace.append(text)

    def met(self, fault: str) -> None:
        """A fault strikes: in which states?"""
        for state, holds in STATES.items():
            if holds(self):
                self.outcome.met[fault, state] += 1

    def _done(self, what: str) -> None:
        self.say(f"event {self.store.end}: {what}")

    # --- the metastore ---

    def op_open(self) -> None:
        if len(self.store.open_txns()) < 3:
            self._done(f"transaction {self.store.open()} opens")

    def op_create(self, name: int, external: int) -> None:
        kind = "external" if external == 3 else "transactional"
        if len(self.store.by_id) < 6 and self.store.create(NAMES[name], kind):
            self._done(f"CREATE {kind} {NAMES[name]}")

    def op_allocate(self, txn: int, name: int) -> None:
        opened, table = self.store.open_txns(), self.store.tables.get(NAMES[name])
        if opened and table is not None and table.kind == "transactional":
            number = opened[txn % len(opened)]
            write_id = self.store.allocate(number, table)
            self._done(f"transaction {number} has write id {write_id} on {table.name}")

    def op_write(self, txn: int, name: int) -> None:
        opened, table = self.store.open_txns(), self.store.tables.get(NAMES[name])
        if table is None or (table.kind == "transactional" and not opened):
            return
        number = opened[txn % len(opened)] if table.kind == "transactional" else 0
        if self.store.write(number, table):
            self._done(f"transaction {number} writes {table.name} (id {table.table_id})")

    def op_finish(self, txn: int, abort: int) -> None:
        opened = self.store.open_txns()
        if not opened:
            return
        number = opened[txn % len(opened)]
        if abort == 0:
            self.met("abort")
        self.store.finish(number, commit=abort != 0)
        self._done(f"transaction {number} {'commits' if abort else 'aborts'}")

    def op_rename(self, name: int) -> None:
        table = self.store.tables.get(NAMES[name])
        if table is not None:
            self.met("rename")
            if self.store.rename(table, NAMES[1 - name]):
                self._done(f"{NAMES[name]} is renamed to {table.name}")

    def op_drop(self, name: int, again: int) -> None:
        table = self.store.tables.get(NAMES[name])
        if table is None:
            return
        self.met("drop")
        self.store.drop(table)
        self._done(f"DROP {table.name} (id {table.table_id})")
        if again and len(self.store.by_id) < 6:
            self.store.create(NAMES[name], table.kind)
            self._done(f"CREATE {table.kind} {table.name} once more")

    def op_clean(self) -> None:
        if self.store.clean():
            self.met("aborted ids forgotten")
            self.say("the cleaner forgets aborted ids")

    # --- publisher and owners ---

    def op_publish(self, count: int, ending: int, at: int) -> None:
        how = Ending(ending)
        if how in (Ending.LOST_ACK, Ending.NOT_DONE):
            self.met("lost ack" if how is Ending.LOST_ACK else "publisher crash")
        read = self.publisher.run(count, how, at)
        what = "dies" if read < 0 else f"reads {read} events"
        self.say(f"the publisher {what} ({how.name.lower().replace('_', ' ')})")

    def op_die(self) -> None:
        self.met("publisher crash")
        self.publisher.die()
        self.say("the publisher is killed, another one takes over")

    def op_repeat(self, number: int) -> None:
        if self.topic.repeat(SHARD, number):
            self.met("duplicates")
            self.say(f"an earlier batch (number {number}) comes once more")

    def op_garbage(self, partition: int) -> None:
        self.met("garbage in the topic")
        self.damaged = True
        self.topic.partitions[partition % self.topic.layout.partitions].append(b"\xc3\x01garbage")
        self.say("somebody writes garbage into the topic")

    def op_fold(self, owner: int, partition: int, count: int) -> None:
        owned = self.owners[owner][partition % self.topic.layout.partitions]
        folded = owned.fold(count + 1)
        self.say(f"owner {owner} folds {folded} messages of partition {owned.number}")

    def op_sync(self, owner: int) -> None:
        for owned in self.owners[owner]:
            owned.fold(owned.behind)
        self.say(f"owner {owner} folds everything")

    def op_commit(self, owner: int, partition: int, how: int) -> None:
        owned = self.owners[owner][partition % self.topic.layout.partitions]
        if not owned.commit(how):
            self.met("owner crash")
        self.say(f"owner {owner} commits partition {owned.number}, way {how}: it is at offset {owned.offset}")

    # --- reads ---

    def op_list(self, reader: int, name: int, own: int) -> None:
        """Fetches id and list; with ``own`` 2 as a reader in one of the open transactions."""
        table, opened = self.store.tables.get(NAMES[name]), self.store.open_txns()
        if table is None:
            return
        mine = opened[-1] if own == 2 and opened else 0
        text = self.store.list_of(table, mine) if table.kind == "transactional" else ""
        self.readers[reader].lists = Lists(table.name, table.table_id, text, mine)
        self.say(f"reader {reader} (in transaction {mine}) fetches {text or 'no list'} of id {table.table_id}")

    def op_read(self, reader: int, owner: int, mode: int) -> None:
        """``mode`` 0, 1: at once; 2: the fill comes late; 3: with a list fetched now; 4: without the table's id."""
        session = self.readers[reader]
        if mode == 3 and session.lists is not None:
            self.op_list(reader, NAMES.index(session.lists.name), 0)
        if session.lists is not None:
            self._read(session, session.lists, owner, late=mode == 2, identified=mode != 4)

    def op_fill(self, number: int) -> None:
        if self.fills:
            self.met("late fill")
            self._deliver(*self.fills.pop(number % len(self.fills)))

    def _find(self, owner: int, lists: Lists) -> OwnedPartition | None:
        """The partition that holds the table, by what any partition says of its name."""
        owned = self.owners[owner]
        table_id, number = answering.find_table([each.partition for each in owned], lists.name, lists.table_id)
        return owned[number] if table_id else None

    def _read(self, session: Reader, lists: Lists, owner: int, *, late: bool, identified: bool = True) -> bool:
        """One read; whether the cache could answer it."""
        demand = ReadDemand(session.vector, True, 0)
        table_id = lists.table_id if identified else 0
        owned = self._find(owner, lists)
        found: Table | None = None
        token = str(session.vector)
        if owned is not None:
            request = answering.demand_of(token, lists.write_ids, table_id)
            bound = table_id or answering.bound_id(owned.partition, lists.name)
            if self.topic.layout.table_partition(bound) != owned.number:
                return False
            try:
                found = answering.answer_table(owned.partition, lists.name, bound, request)
            except MissingWriteIds:
                self.outcome.answers["400 missing_write_ids"] += 1
                if identified and lists.write_ids:
                    self.complain(EXPLAINS, f"400 for {lists}, which has list and id")
                return False
        if not identified and lists.write_ids and found is not None and found.served:
            self.complain(EXPLAINS, f"a transactional table was answered without its id: {found.why}")
        if found is not None and found.served:
            session.vector = Vector.parse(advanced(token, found.shard, found.epoch, found.hi))
            self._judge(
                session, lists, found.image, "fill" if found.filled else "cache", found.freshness, found.why, found.hi
            )
            return True
        self._through(session, lists, owned, found, demand, late=late)
        return False

    def _through(
        self,
        session: Reader,
        lists: Lists,
        owned: OwnedPartition | None,
        found: Table | None,
        demand: ReadDemand,
        *,
        late: bool,
    ) -> None:
        landed = self._landed(lists.name, None)
        write_ids = ValidWriteIdList.parse(lists.write_ids) if lists.write_ids else None
        wanted = TableWanted("hive", "d", lists.name[2:], write_ids, lists.table_id)
        proof = Proof(demand, SHARD, 1 if self.topic.states else None)
        why = found.why if found is not None else "no owner knows the name"
        self.say(f"reader {session.number} asks owner for {lists.name}: not servable, {why}")
        try:
            verdict = judge_table(proof, wanted, landed)
            if (
                landed.image is not None
                and found is not None
                and found.table_id == landed.table_id
                and owned is not None
            ):
                at = str(landed.position)
                self.fills.append(
                    (
                        owned,
                        FillTable(
                            0, "d", owned.number, landed.table_id, lists.name, landed.kind, landed.image,
                            landed.write_ids, at, at, found.stamp,
                        ),
                    )
                )  # fmt: skip
                if not late:
                    self._deliver(*self.fills.pop())
            if not verdict.proved and write_ids is not None:
                landed = self._landed(lists.name, write_ids)
                verdict = judge_table(proof, wanted, landed)
        except ReadError as error:
            self.outcome.answers[f"{error.status} {error.code}"] += 1
            return
        if not verdict.proved:
            self.outcome.answers["not proved"] += 1
            return
        if proof.epoch is not None:
            session.vector = Vector.parse(advanced(str(demand.vector), SHARD, proof.epoch, str(landed.position)))
        if landed.image is not None:
            self._judge(session, lists, landed.image, "source", verdict.freshness, verdict.why, str(landed.position))

    def _landed(self, name: str, wanted: ValidWriteIdList | None) -> SourceTable:
        """As `WorkloadCatalog.read_table`."""
        store = self.store
        position = Position.parse(position_of(store.end))
        table = store.tables.get(name)
        if table is None:
            return SourceTable(0, "", None, "", position)
        own = 0
        if wanted is not None:
            writers = sorted((w, txn) for w, txn in table.write_ids.items() if store.txns[txn] == OPEN)
            own = next((txn for w, txn in writers if wanted.is_valid(w)), 0)
        mine = table.staged is not None and table.staged[0] == own
        image = table.staged[1] if mine and table.staged is not None else table.image
        text = store.list_of(table, own) if table.kind == "transactional" else ""
        return SourceTable(table.table_id, table.kind, image, text, position)

    def _deliver(self, owned: OwnedPartition, fill: FillTable) -> tuple[bool, str]:
        accepted, why = answering.fill_table(owned.partition, fill)
        self.outcome.answers[f"fill {'accepted' if accepted else 'refused'}"] += 1
        self.say(f"  a fill of {fill.name} (id {fill.table_id}) read at {fill.lo} comes to its owner: {why}")
        return accepted, why

    def _judge(
        self, session: Reader, lists: Lists, image: Image, served: str, freshness: str, why: str, hi: str
    ) -> None:
        self.outcome.answers[f"{served}: {freshness}"] += 1
        store, table_id = self.store, lists.table_id
        what = f"reader {session.number} got {image!r} for {lists} from the {served} ({freshness}: {why})"
        self.say(what)
        if freshness == "eventual":
            return
        table = store.by_id[table_id]
        if table.staged is not None and image == table.staged[1] and store.undoes:
            if table.staged[0] != lists.own:
                self.complain(UNCOMMITTED, f"{what}: written by transaction {table.staged[0]}, which is open")
            return
        writer = store.writer_of.get(image or b"", 0)
        # A fill is what the metastore itself answers, until the write that it may hold is folded; ABORT undoes nothing.
        known = store.history.written.get(image or b"", 0) > self.publisher.began
        if not store.undoes and served == "cache" and known and store.txns.get(writer) == OPEN:
            self.complain(UNCOMMITTED, f"{what}: its writer, transaction {writer}, is open")
        listed = ValidWriteIdList.parse(lists.write_ids) if lists.write_ids else None
        writes = store.writes.get(table_id, [])
        demanded = {
            LIST: max((event for w, event in writes if listed is not None and listed.is_valid(w)), default=0),
            MONOTONIC: session.seen.get(table_id, 0),
        }
        start = store.history.first_at(table_id, image, max(demanded.values()))
        if start is None:
            rule = next(
                (name for name, event in demanded.items() if store.history.first_at(table_id, image, event) is None),
                STALE,
            )
            versions = ", ".join(f"{at}: {found!r}" for at, found in store.history.versions.get(table_id, []))
            self.complain(rule, f"{what}; its versions are {versions}; wanted {demanded}")
            return
        if start > event_id_of(hi):
            self.complain(EXPLAINS, f"{what}: it is of event {start}, and is said to hold nothing after {hi}")
        session.seen[table_id] = max(session.seen.get(table_id, 0), start)

    # --- the end ---

    def finish(self) -> None:
        """Quiet: transactions end, all is published and folded; then the rules of the whole are checked."""
        for txn in self.store.open_txns():
            self.store.finish(txn, commit=False)
        self.publisher.run(len(self.store.log), Ending.WELL, 0)
        self.publisher.run(0, Ending.WELL, 0)
        for owned in (each for owner in self.owners for each in owner):
            owned.fold(owned.behind)
        self.say("it is quiet: open transactions are aborted, everything is published and folded")
        for number in range(self.topic.layout.partitions):
            expected = refolded(self.topic, number)
            for owner in range(OWNERS):
                if self.owners[owner][number].state() != expected:
                    self.complain(SAME_STATE, f"owner {owner}, partition {number} differs from a fold from the start")
        for table in self.store.tables.values():
            for owner in range(OWNERS):
                self._settled(owner, table.name)

    def _settled(self, owner: int, name: str) -> None:
        table = self.store.tables[name]
        text = self.store.list_of(table) if table.kind == "transactional" else ""
        lists = Lists(name, table.table_id, text, 0)
        owned = self._find(owner, lists)
        value = owned.store.get(table_key(table.table_id)) if owned is not None else None
        if value is None or owned is None:
            if not self.damaged:
                self.complain(NOTHING_LOST, f"{name} (id {table.table_id}) is not known to owner {owner}")
            return
        state = decode_table(value)
        if not self.damaged and (state.image != table.image or state.name != name or why_unservable(state)):
            held = f"{state.name} {state.image!r} ({why_unservable(state)})"
            self.complain(NOTHING_LOST, f"{name} is folded to {held}, it is {table.image!r}")
        if table.kind == "transactional" and not self.store.cleaned and state.ids.known:
            folded = state.ids.text(name)
            if folded != text:
                self.complain(NOTHING_LOST, f"the folded list is {folded}, the server's {text}")
        session = Reader(9)
        session.vector = Vector({SHARD: (1, Position.parse(position_of(self.store.end)))})
        for _ in range(2):
            if self._read(session, lists, owner, late=False):
                return
        self.complain(RECOVERS, f"{name} is not servable at owner {owner} after two reads when it is quiet")


STATES: Final[dict[str, Callable[[CatalogWorld], bool]]] = {
    "a transaction open": lambda w: bool(w.store.open_txns()),
    "a write uncommitted": lambda w: any(
        row.event_type == "WRITE" and w.store.txns.get(row.txn) == OPEN for row in w.store.log
    ),
    "writes are undone by ABORT": lambda w: w.store.undoes,
    "writes are not undone": lambda w: not w.store.undoes,
    "a transaction partly out": lambda w: w.publisher.split,
    "events not published": lambda w: w.publisher._next < w.store.end,
    "owners behind": lambda w: any(each.behind for owner in w.owners for each in owner),
    "owners apart": lambda w: any(a.offset != b.offset for a, b in zip(*w.owners, strict=True)),
    "a list fetched": lambda w: any(reader.lists is not None for reader in w.readers),
    "a list of an own transaction": lambda w: any(r.lists is not None and r.lists.own for r in w.readers),
    "a fill under way": lambda w: bool(w.fills),
}
FAULTS: Final = (
    "abort",
    "rename",
    "drop",
    "aborted ids forgotten",
    "lost ack",
    "publisher crash",
    "duplicates",
    "garbage in the topic",
    "owner crash",
    "late fill",
)
OPS: Final = {name[3:]: getattr(CatalogWorld, name) for name in vars(CatalogWorld) if name.startswith("op_")}
KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "open": (4, ()),
    "create": (2, (2, 4)),
    "allocate": (3, (3, 2)),
    "write": (6, (3, 2)),
    "finish": (4, (3, 3)),
    "publish": (7, (5, 1, 1)),
    "sync": (5, (OWNERS,)),
    "list": (4, (READERS, 2, 3)),
    "read": (8, (READERS, OWNERS, 5)),
}
SPICE: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "rename": (2, (2,)),
    "drop": (1, (2, 2)),
    "clean": (2, ()),
    "publish ending badly": (3, (4, 4, 3)),
    "die": (2, ()),
    "repeat": (2, (12,)),
    "garbage": (1, (2,)),
    "fold": (3, (OWNERS, 2, 5)),
    "commit": (2, (OWNERS, 2, 8)),
    "fill": (4, (3,)),
}


MOTIFS: Final[tuple[tuple[Op, ...], ...]] = (
    (
        ("write", 0, "name"),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (
        ("open",),
        ("open",),
        ("allocate", 0, "name"),
        ("write", 1, "name"),
        ("publish", 4, 0, 0),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("finish", 1, 1),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (
        ("garbage", 0),
        ("sync", "owner"),
        ("publish", 4, 0, 0),
        ("sync", "owner"),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
        ("write", 0, "name"),
        ("finish", 0, 1),
        ("list", "reader", "name", 0),
        ("read", "reader", "owner", 0),
    ),
    (("drop", "name", 1), ("publish", 4, 0, 0), ("list", "reader", "name", 0), ("read", "reader", "owner", 0)),
    (("finish", 0, 0), ("clean",), ("list", "reader", "name", 0), ("read", "reader", "owner", 0)),
)
"""Ops that lead to places that chance finds too seldom (see `freshet.simulation.rows.shaping`)."""


class Catalog:
    """Catalog tables, from a metastore's log to readers with lists."""

    name = "catalog"
    rules: tuple[str, ...] = (
        STALE, LIST, MONOTONIC, UNCOMMITTED, NOTHING_LOST, RECOVERS, SAME_STATE, EXPLAINS, "never raises",
    )  # fmt: skip
    faults: tuple[str, ...] = FAULTS
    states: tuple[str, ...] = tuple(STATES)

    def history(self, rng: Random) -> History:
        """A created table, and 8 to 28 ops of a random choice of kinds."""
        pick = rng.random
        kinds = dict(KINDS)
        share = 0.15 + 0.5 * pick()
        kinds.update({name: kind for name, kind in SPICE.items() if pick() < share})
        names = list(kinds)
        ops: History = [("world", int(pick() < 0.3), int(pick() < 0.4), int(pick() < 0.3))]
        favourite = int(pick() * 2)
        ops += [("create", favourite, 0), ("open",)] if pick() < 0.9 else []
        ops += [("publish", 0, 0, 0), ("sync", 0), ("sync", 1)] if pick() < 0.6 else []
        motif = rng.choice(MOTIFS) if pick() < 0.5 else ()
        owner, reader = int(pick() * OWNERS), int(pick() * READERS)
        aimed = {"name": favourite, "owner": owner, "reader": reader}
        at = len(ops) + int(pick() * 6)
        for name in rng.choices(names, [kinds[name][0] for name in names], k=8 + int(pick() * 20)):
            fields = [favourite % bound if pick() < 0.3 else int(pick() * bound) for bound in kinds[name][1]]
            ops.append(("publish" if name == "publish ending badly" else name, *fields))
        ops[at:at] = [tuple(aimed.get(str(field), field) for field in op) for op in motif]
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, and then until it is quiet. Stops at the first violation."""
        outcome = Outcome()
        config: Op = ops[0] if ops and ops[0][0] == "world" else ("world", 0, 0, 0)
        world = CatalogWorld(config, outcome, trace)
        for op in ops:
            if op[0] == "world":
                continue
            OPS[str(op[0])](world, *op[1:])
            if outcome.violations:
                return outcome
        world.finish()
        return outcome
