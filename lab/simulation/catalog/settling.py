"""The end of a history of catalog tables: everything is published and folded, then the final state is checked."""

from __future__ import annotations

from consumers.fold.catalog_state import decode_table, table_key
from consumers.owner.tables import why_unservable
from lab.simulation.catalog.asking import CatalogReader, Lists
from lab.simulation.catalog.changing import CatalogChangeOps
from lab.simulation.catalog.publishing import SHARD
from lab.simulation.catalog.reading import NOTHING_LOST, RECOVERS, SAME_STATE, CatalogReadOps
from lab.simulation.catalog.shaping import OWNERS
from lab.simulation.naive.judging import check_fold
from lab.simulation.rows.publishing import Ending
from lab.workload.catalog import position_of
from tokens import Position, ValidWriteIdList, Vector


class CatalogRun(CatalogChangeOps, CatalogReadOps):
    """One run of a history with its final checks."""

    def finish(self) -> None:
        """Ends all transactions, publishes and folds everything, then checks the final state."""
        for txn in self.store.open_txns():
            self.store.finish(txn, commit=False)
        self.publisher.run(len(self.store.log), Ending.WELL, 0)
        if self.damaged:
            self.publisher.run(0, Ending.WELL, 0)  # the marker that ends voids
        owners = (self.last_owner,) if self.quick else range(OWNERS)
        for owned in (each for owner in owners for each in self.owners[owner]):
            owned.fold(owned.behind)
        self.say("the history ends: open transactions are aborted, everything is published and folded")
        agreed = self.quick or self._same_state()
        for table in self.store.tables.values():
            filled = any(table_key(table.table_id) in each.overlay for owner in owners for each in self.owners[owner])
            for owner in owners:
                if owner == owners[0] or filled or not agreed:  # equal states give equal answers
                    self._check_settled(owner, table.name)
        for owned in self.owners[owners[0]]:
            check_fold(owned, self.complain)

    def _same_state(self) -> bool:
        """Checks that each owner's state equals a fold from the start, byte for byte. Returns whether all do."""
        agreed = True
        for number in range(self.topic.layout.partitions):
            states = [owner[number].state() for owner in self.owners]
            expected = self.owners[0][number].refolded()
            for owner, found in enumerate(states):
                if found != expected:
                    agreed = False
                    self.complain(SAME_STATE, f"owner {owner}, partition {number} differs from a fold from the start")
        return agreed

    def _check_settled(self, owner: int, name: str) -> None:
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
        awaited = len(table.image) > self.publisher.limits.table_image_bytes_max
        if (
            not self.damaged
            and not awaited
            and (state.image != table.image or state.name != name or why_unservable(state))
        ):
            held = f"{state.name} {state.image!r} ({why_unservable(state)})"
            self.complain(NOTHING_LOST, f"{name} is folded to {held}, expected {table.image!r}")
        if table.kind == "transactional" and not self.store.cleaned and state.ids.known:
            folded = state.ids.text(name)
            claims = ValidWriteIdList.parse(text).covers(ValidWriteIdList.parse(folded)) if self.incomplete else False
            if folded != text and not claims:
                self.complain(NOTHING_LOST, f"the folded list is {folded}, the server's list is {text}")
        at = Position.parse(position_of(self.store.end))
        session = CatalogReader(9, self.front, Vector({SHARD: (self.publisher.epoch, at)}))
        for _ in range(2):
            if self._read(session, lists, owner, late=False) or self.incomplete:
                return
        self.complain(RECOVERS, f"{name} is not servable at owner {owner} after two reads at the end")
