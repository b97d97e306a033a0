"""Ops of the world of catalog tables: readers with write-id lists, fills, and the checks of each answer."""

from __future__ import annotations

from typing import Final

from consumers.owner import tables as owner_tables
from lab.simulation.catalog.asking import CatalogReader, Lists, TableRead
from lab.simulation.catalog.publishing import SHARD
from lab.simulation.catalog.run_state import CatalogRunState
from lab.simulation.catalog.source import NAMES, OPEN, SimulatedMetastore, image_of
from lab.simulation.models.loop import finished
from lab.simulation.models.owning import OwnedPartition, RacingStore
from lab.workload.log import event_id_of
from serving.client import ClientError, HistoryLost, Table
from tokens import ValidWriteIdList, Vector

STALE: Final = "no stale answer"
LIST: Final = "the list is covered"
MONOTONIC: Final = "monotonic reads"
UNCOMMITTED: Final = "nothing uncommitted"
NOTHING_LOST: Final = "nothing lost, nothing twice"
RECOVERS: Final = "recovers by itself"
SAME_STATE: Final = "same history, same state"
EXPLAINS: Final = "explanation true"
PACE_S: Final = 0.25
"""Time between two reads."""
Image = bytes | None


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
        if self.network.fills:
            self.count_fault("late fill")
            self.network.deliver(number % len(self.network.fills))

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
        self.front.route.owner, self.network.is_slow = owner, late
        self.answering = store or self.store
        is_told = any(each.has_marker for each in self.owners[owner])
        self.loop.advance(PACE_S)
        self.say(f"reader {session.number} asks owner {owner} for {lists.name}")
        read = TableRead(session, lists, lists.table_id if identified else 0)
        raced = self._find(owner, lists) if racing else None
        if raced is not None:
            known, owned = raced.store, raced
            raced.store = RacingStore(known, lambda: self._fold_on(owned, racing), 3 + racing % 2)
        try:
            found = finished(self.loop, read.run())
        except HistoryLost as lost:
            self.epoch_was_told |= is_told
            self._lost(read, lost)
            return False
        except ClientError as error:  # an owner's refusal names no epoch
            self._refused(read, error)
            return False
        finally:
            if raced is not None:
                raced.store = known
        self.epoch_was_told |= is_told
        return self._answered(read, found)

    @staticmethod
    def _fold_on(owned: OwnedPartition, count: int) -> None:
        owned.fold(count)

    def _answered(self, read: TableRead, found: Table) -> bool:
        lists = read.lists
        if not read.table_id and found.found:
            kind = self.store.by_id[found.table_id].kind
            if kind == "transactional":
                self.complain(EXPLAINS, f"a transactional table was answered without its id: {found.why}")
            lists = Lists(lists.name, found.table_id, "", 0)  # another table may have the name now
        from_cache = found.served_from == "cache"
        if found.value is not None:
            image = image_of(found.value["version"])
            if from_cache:
                assert read.owner is not None
                served, hi = "fill" if read.owner.filled else "cache", read.owner.hi
            else:
                assert read.source is not None
                served, hi = "source", str(read.source.position)
            self._judge(read, lists, image, served, found.freshness, found.why, hi)
        return from_cache

    def _refused(self, read: TableRead, error: ClientError) -> None:
        self.outcome.answers[f"{error.status} {error.code}"] += 1
        self.say(f"reader {read.reader.number} gets no answer: {error}")
        if error.code == "missing_write_ids" and read.table_id and read.lists.write_ids:
            self.complain(EXPLAINS, f"400 for {read.lists}, although it has a list and an id")
        if error.code not in ("missing_write_ids", "source_behind", "table_id_changed", "no_owner"):
            raise error

    def _lost(self, read: TableRead, lost: HistoryLost) -> None:
        """After a 409 the session continues with the new token. It has seen nothing of the new epoch yet."""
        session = read.reader
        self.outcome.answers["409 history_lost"] += 1
        self.say(f"reader {session.number} gets 409 history_lost: {lost}")
        before, after = read.demand.get(SHARD), Vector.parse(lost.token).get(SHARD)
        if before is None or (after is not None and after.epoch <= before.epoch):
            self.complain(EXPLAINS, f"409 history_lost for {before}, but the new token has {after}")
        session.seen.clear()

    def _check_freshness(self, read: TableRead, lists: Lists, served: str, freshness: str, what: str) -> None:
        """Checks that what was demanded is proved, and that nothing is called proved without a demand.

        A demand is a list, or a position of the shard. Owner and metastore can prove either. Only a front that has met
        no owner with a marker cannot: it knows no epoch, so the session's next token could not hold the answer.
        """
        demands = bool(lists.write_ids) or SHARD in read.demand
        may_be_eventual = not demands or (served == "source" and not self.epoch_was_told)
        if freshness == "eventual" and not may_be_eventual:
            self.complain(EXPLAINS, f"{what}, although a demand was given and can be proved")
        if freshness == "fresh" and not demands:
            self.complain(EXPLAINS, f"{what}, although nothing was demanded")

    def _judge(
        self, read: TableRead, lists: Lists, image: Image, served: str, freshness: str, why: str, hi: str
    ) -> None:
        session = read.reader
        self.outcome.answers[f"{served}: {freshness}"] += 1
        store, table_id = self.store, lists.table_id
        what = f"reader {session.number} got {image!r} for {lists} from the {served} ({freshness}: {why})"
        self.say(what)
        self._check_freshness(read, lists, served, freshness, what)
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
        component = read.demand.get(SHARD)
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
