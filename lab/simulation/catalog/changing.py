"""Ops of the world of catalog tables: changes in the metastore, its publisher, the topic and the owners."""

from __future__ import annotations

from lab.simulation.catalog.publishing import SHARD
from lab.simulation.catalog.run_state import CatalogRunState
from lab.simulation.catalog.source import NAMES
from lab.simulation.rows.publishing import Ending


class CatalogChangeOps(CatalogRunState):
    """Ops that change the metastore, its publisher, the topic and the owners."""

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
            self.count_fault("abort")
        self.store.finish(number, commit=abort != 0)
        self._done(f"transaction {number} {'commits' if abort else 'aborts'}")

    def op_rename(self, name: int) -> None:
        table = self.store.tables.get(NAMES[name])
        if table is not None:
            self.count_fault("rename")
            if self.store.rename(table, NAMES[1 - name]):
                self._done(f"{NAMES[name]} is renamed to {table.name}")

    def op_drop(self, name: int, again: int) -> None:
        table = self.store.tables.get(NAMES[name])
        if table is None:
            return
        self.count_fault("drop")
        self.store.drop(table)
        self._done(f"DROP {table.name} (id {table.table_id})")
        if again and len(self.store.by_id) < 6:
            self.store.create(NAMES[name], table.kind)
            self._done(f"CREATE {table.kind} {table.name} again")

    def op_clean(self) -> None:
        if self.store.clean():
            self.count_fault("aborted ids forgotten")
            self.say("the cleaner removes aborted ids")

    # --- publisher and owners ---

    def op_publish(self, count: int, ending: int, at: int) -> None:
        how = Ending(ending)
        if how in (Ending.LOST_ACK, Ending.NOT_DONE):
            self.count_fault("lost ack" if how is Ending.LOST_ACK else "publisher crash")
        read = self.publisher.run(count, how, at)
        what = "dies" if read < 0 else f"reads {read} events"
        self.say(f"the publisher {what} ({how.name.lower().replace('_', ' ')})")

    def op_die(self) -> None:
        self.count_fault("publisher crash")
        self.publisher.die()
        self.say("the publisher is killed; another one takes over")

    def op_new_epoch(self) -> None:
        """Starts a new epoch, although no history was lost."""
        if self.publisher.epoch not in (0, 4):
            self.count_fault("a new epoch")
            self.publisher.start_new_epoch()
            self.say("the publisher starts a new epoch and publishes the whole catalog")

    def op_damage(self, kind: int) -> None:
        self.count_fault("damaged message")
        self.damaged = self.incomplete = True
        self.topic.damage = kind
        self.say(f"a message of the next batch will be damaged (number {kind // 8}, kind {kind % 8})")

    def op_replica(self) -> None:
        self.replica = self.store.copy()
        self.say(f"the replica of the metastore is at event {self.replica.end}")

    def op_repeat(self, number: int) -> None:
        if self.topic.repeat(SHARD, number):
            self.count_fault("duplicates")
            self.say(f"an earlier batch (number {number}) is appended again")

    def op_garbage(self, partition: int) -> None:
        self.count_fault("garbage in the topic")
        self.damaged = True
        self.topic.partitions[partition % self.topic.layout.partitions].append(b"\xc3\x01garbage")
        self.say("a foreign program writes garbage into the topic")

    def op_fold(self, owner: int, partition: int, count: int) -> None:
        self.last_owner = owner
        owned = self.owners[owner][partition % self.topic.layout.partitions]
        folded = owned.fold(count + 1)
        self.say(f"owner {owner} folds {folded} messages of partition {owned.number}")

    def op_sync(self, owner: int) -> None:
        for owned in self.owners[owner]:
            owned.fold(owned.behind)
        self.say(f"owner {owner} folds everything")

    def op_commit(self, owner: int, partition: int, how: int) -> None:
        self.last_owner = owner
        owned = self.owners[owner][partition % self.topic.layout.partitions]
        if not owned.commit(how):
            self.count_fault("owner crash")
        self.say(f"owner {owner} commits partition {owned.number} in way {how} and is at offset {owned.offset}")
