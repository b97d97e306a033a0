"""Ops of the world of catalog tables: readers with write-id lists, fills, and the checks of each answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Final, cast

from consumers.owner import evidence
from consumers.owner import tables as owner_tables
from consumers.owner.evidence import FillVerdict
from consumers.owner.partitions import Partition
from consumers.owner.protocol import FillTable, OwnerTable
from consumers.owner.tables import MissingWriteIds
from lab.simulation.catalog.publishing import SHARD
from lab.simulation.catalog.run_state import CatalogReader, CatalogRunState, Lists
from lab.simulation.catalog.source import NAMES, OPEN, SimulatedMetastore
from lab.simulation.models.owning import OwnedPartition, RacingStore
from lab.workload.catalog import position_of
from lab.workload.log import event_id_of
from serving.errors import ReadError
from serving.reads.demands import ReadDemand, RequestedTable
from serving.reads.proof import Proof, history_lost_error, token_after
from serving.reads.tables import fill_of, judge_table
from serving.sources.source import SourceTable
from tokens import Position, ValidWriteIdList, Vector

STALE: Final = "no stale answer"
LIST: Final = "the list is covered"
MONOTONIC: Final = "monotonic reads"
UNCOMMITTED: Final = "nothing uncommitted"
NOTHING_LOST: Final = "nothing lost, nothing twice"
RECOVERS: Final = "recovers by itself"
SAME_STATE: Final = "same history, same state"
EXPLAINS: Final = "explanation true"
Image = bytes | None


def _racing(owned: OwnedPartition, count: int) -> Partition:
    """The partition; if ``count`` > 0, it folds ``count`` messages before the second or third look at its store."""
    if not count:
        return owned.partition

    def fold() -> None:
        owned.fold(count)

    racing = SimpleNamespace(
        store=RacingStore(owned.store, fold, 2 + count % 2), overlay=owned.overlay, number=owned.number
    )
    return cast("Partition", racing)


class CatalogReadOps(CatalogRunState):
    """Ops of readers, and the checks of their answers."""

    # --- reads ---

    def op_list(self, reader: int, name: int, own: int) -> None:
        """Fetches a table's id and list. ``own`` 2: as a reader in one of the open transactions."""
        table, opened = self.store.tables.get(NAMES[name]), self.store.open_txns()
        if table is None:
            return
        mine = opened[-1] if own == 2 and opened else 0
        text = self.store.list_of(table, mine) if table.kind == "transactional" else ""
        self.readers[reader].lists = Lists(table.name, table.table_id, text, mine)
        self.say(f"reader {reader} (in transaction {mine}) fetches {text or 'no list'} of id {table.table_id}")

    def op_read(self, reader: int, owner: int, mode: int) -> None:
        """Reads a table. ``mode`` 2: the fill is delivered late; 3: with a list fetched now; 4: without the table's id;
        5: from the replica if the owner cannot prove freshness; else: a plain read."""
        session, self.last_owner = self.readers[reader], owner
        if mode == 3 and session.lists is not None:
            self.op_list(reader, NAMES.index(session.lists.name), 0)
        if session.lists is not None:
            if mode == 5 and self.replica.end < self.store.end:
                self.count_fault("lagging replica")
            store = self.replica if mode == 5 else self.store
            self._read(session, session.lists, owner, late=mode == 2, identified=mode != 4, store=store)

    def op_race(self, reader: int, owner: int, count: int) -> None:
        """Reads a table while the owner folds on."""
        session, self.last_owner = self.readers[reader], owner
        if session.lists is not None:
            self.count_fault("read within a fold")
            self.say(f"owner {owner} folds {count + 1} messages while it answers:")
            self._read(session, session.lists, owner, late=False, racing=count + 1)

    def op_fill(self, number: int) -> None:
        if self.fills:
            self.count_fault("late fill")
            self._deliver(*self.fills.pop(number % len(self.fills)))

    def _find(self, owner: int, lists: Lists) -> OwnedPartition | None:
        """The partition that holds the table, found by id or by its name in any partition; None if unknown."""
        owned = self.owners[owner]
        table_id, number = owner_tables.find_table([each.partition for each in owned], lists.name, lists.table_id)
        return owned[number] if table_id else None

    def _read(
        self,
        session: CatalogReader,
        lists: Lists,
        owner: int,
        *,
        late: bool,
        identified: bool = True,
        store: SimulatedMetastore | None = None,
        racing: int = 0,
    ) -> bool:
        """One read. Returns whether the cache answered it. ``store``: the metastore that answers otherwise."""
        demand = ReadDemand(session.vector, True, 0)
        table_id = lists.table_id if identified else 0
        owned = self._find(owner, lists)
        self.epoch_was_told |= any(each.has_marker for each in self.owners[owner])
        found: OwnerTable | None = None
        token = str(session.vector)
        if owned is not None:
            request = evidence.demand_of(token, lists.write_ids, table_id)
            bound = table_id or owner_tables.bound_id(owned.partition, lists.name)
            if self.topic.layout.table_partition(bound) != owned.number:
                return False
            try:
                found = owner_tables.answer_table(_racing(owned, racing), lists.name, bound, request)
            except MissingWriteIds:
                self.outcome.answers["400 missing_write_ids"] += 1
                if identified and lists.write_ids:
                    self.complain(EXPLAINS, f"400 for {lists}, although it has a list and an id")
                return False
            self.epochs.learn(found.shard, found.epoch)
            self.epochs.learn_kin(found.shard, found.epoch, found.kin)
            if found.code == "history_lost":
                self._lost(
                    session, history_lost_error(session.vector, found.shard, found.epoch, found.watermark, found.why)
                )
                return False
        if not identified and found is not None and found.served:
            kind = self.store.by_id[found.table_id].kind
            if kind == "transactional":
                self.complain(EXPLAINS, f"a transactional table was answered without its id: {found.why}")
            lists = Lists(lists.name, found.table_id, "", 0)  # another table may have the name now
        if found is not None and found.served:
            served = "fill" if found.filled else "cache"
            self._judge(session, lists, found.image, served, found.freshness, found.why, found.hi)
            session.vector = Vector.parse(token_after(token, found.shard, found.epoch, found.hi))
            return True
        self._read_through(session, lists, owned, found, demand, store or self.store, late=late)
        return False

    def _lost(self, session: CatalogReader, error: ReadError) -> None:
        """After a 409 the session continues with the new token. It has seen nothing of the new epoch yet."""
        self.outcome.answers["409 history_lost"] += 1
        self.say(f"reader {session.number} gets 409 history_lost: {error}")
        before, session.vector = session.vector.get(SHARD), Vector.parse(error.token or "")
        after = session.vector.get(SHARD)
        if before is None or (after is not None and after.epoch <= before.epoch):
            self.complain(EXPLAINS, f"409 history_lost for {before}, but the new token has {after}")
        session.seen.clear()

    def _read_through(
        self,
        session: CatalogReader,
        lists: Lists,
        owned: OwnedPartition | None,
        found: OwnerTable | None,
        demand: ReadDemand,
        store: SimulatedMetastore,
        *,
        late: bool,
    ) -> None:
        seen = self._read_metastore(store, lists.name, None)
        write_ids = ValidWriteIdList.parse(lists.write_ids) if lists.write_ids else None
        wanted = RequestedTable("hive", "d", lists.name[2:], write_ids, lists.table_id)
        if SHARD not in self.epochs.known:  # as `serving.reads.spaces.epoch_of`
            for each in self.owners[self.last_owner]:
                for name, component in evidence.watermarks(each.partition).items():
                    self.epochs.learn(name, component.epoch)
        proof = Proof(demand, SHARD, self.epochs.known.get(SHARD), self.epochs.kin_of(SHARD, demand.vector))
        why = found.why if found is not None else "no owner knows the name"
        self.say(f"reader {session.number} asks the owner for {lists.name}: not servable, {why}")
        try:
            decision = judge_table(proof, wanted, seen)
            fill = fill_of("d", lists.name, found, seen) if found is not None and owned is not None else None
            if fill is not None and owned is not None:
                self.fills.append((owned, fill))
                if not late:
                    self._deliver(*self.fills.pop())
            if not decision.may_be_served and write_ids is not None:
                # Only the primary knows which writer an open id belongs to (docs/concepts/guarantees.md).
                seen = self._read_metastore(self.store, lists.name, write_ids)
                decision = judge_table(proof, wanted, seen)
        except ReadError as error:
            self.outcome.answers[f"{error.status} {error.code}"] += 1
            return
        if decision.history_lost:
            self._lost(session, proof.refusal(decision, seen.position))
            return
        if not decision.may_be_served:
            self.outcome.answers["not proved"] += 1
            return
        if seen.image is not None:
            at = str(seen.position)
            self._judge(session, lists, seen.image, "source", decision.freshness, decision.why, at)
        session.vector = Vector.parse(proof.token_after(str(seen.position)))

    def _read_metastore(self, store: SimulatedMetastore, name: str, wanted: ValidWriteIdList | None) -> SourceTable:
        """As `WorkloadCatalog.read_table`."""
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

    def _deliver(self, owned: OwnedPartition, fill: FillTable) -> FillVerdict:
        accepted, why = owner_tables.fill_table(owned.partition, fill)
        self.outcome.answers[f"fill {'accepted' if accepted else 'refused'}"] += 1
        self.say(f"  a fill of {fill.name} (id {fill.table_id}) read at {fill.lo} reaches its owner: {why}")
        return FillVerdict(accepted, why)

    def _check_freshness(self, session: CatalogReader, lists: Lists, served: str, freshness: str, what: str) -> None:
        """Checks that what was demanded is proved, and that nothing is called proved without a demand.

        A demand is a list, or a position of the shard. Owner and metastore can prove either. Only a front that has met
        no owner with a marker cannot: it knows no epoch, so the session's next token could not hold the answer.
        """
        demands = bool(lists.write_ids) or SHARD in session.vector
        may_be_eventual = not demands or (served == "source" and not self.epoch_was_told)
        if freshness == "eventual" and not may_be_eventual:
            self.complain(EXPLAINS, f"{what}, although a demand was given and can be proved")
        if freshness == "fresh" and not demands:
            self.complain(EXPLAINS, f"{what}, although nothing was demanded")

    def _judge(
        self, session: CatalogReader, lists: Lists, image: Image, served: str, freshness: str, why: str, hi: str
    ) -> None:
        self.outcome.answers[f"{served}: {freshness}"] += 1
        store, table_id = self.store, lists.table_id
        what = f"reader {session.number} got {image!r} for {lists} from the {served} ({freshness}: {why})"
        self.say(what)
        self._check_freshness(session, lists, served, freshness, what)
        if freshness == "eventual":
            return
        table = store.by_id[table_id]
        if table.staged is not None and image == table.staged[1] and store.undoes:
            if table.staged[0] != lists.own:
                self.complain(UNCOMMITTED, f"{what}: written by transaction {table.staged[0]}, which is open")
            return
        listed = ValidWriteIdList.parse(lists.write_ids) if lists.write_ids else None
        own = [
            w for w, txn in table.write_ids.items() if txn == lists.own and listed is not None and listed.is_valid(w)
        ]
        if table.staged is not None and table.staged[0] == lists.own and own and image != table.staged[1]:
            self.complain(LIST, f"{what}: it lacks the reader's own write {own}")
        writer = store.writer_of.get(image or b"", 0)
        # Without undo, the metastore itself shows uncommitted writes, so a fill may hold one until it is folded.
        known = store.history.written.get(image or b"", 0) > self.publisher.began
        if not store.undoes and served == "cache" and known and store.txns.get(writer) == OPEN:
            self.complain(UNCOMMITTED, f"{what}: its writer, transaction {writer}, is open")
        writes = store.writes.get(table_id, [])
        component = session.vector.get(SHARD)
        demanded = {
            STALE: event_id_of(str(component.position)) if component is not None else 0,
            LIST: max((event for w, event in writes if listed is not None and listed.is_valid(w)), default=0),
            MONOTONIC: session.seen.get(table_id, 0),
        }
        start = store.history.first_at(table_id, image, max(demanded.values()))
        if start is None:
            rule = next(
                name for name, event in demanded.items() if store.history.first_at(table_id, image, event) is None
            )
            versions = ", ".join(f"{at}: {found!r}" for at, found in store.history.versions.get(table_id, []))
            self.complain(rule, f"{what}; its versions are {versions}; wanted {demanded}")
            return
        if start > event_id_of(hi):
            self.complain(EXPLAINS, f"{what}: it is from event {start}, but its hi is {hi}")
        session.seen[table_id] = max(session.seen.get(table_id, 0), start)
