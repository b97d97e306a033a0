"""Source transactions through records and fold into dicts, as a consumer of all partitions would hold them."""

from __future__ import annotations

from collections.abc import Iterable

from consumers.fold.catalog_state import TableState, decode_binding, decode_table, name_key, table_key
from consumers.fold.messages import fold_message
from consumers.fold.state import Head, PartitionState, Rejection
from stream.wire.batch import Framer
from stream.wire.events import SourceTransaction
from stream.wire.keys import Layout


class Folded:
    """The states of all partitions of a catalog keyspace."""

    def __init__(self, partitions: int = 3, shard: str = "hive/0") -> None:
        self.layout = Layout(partitions)
        self.entries: list[dict[bytes, bytes]] = [{} for _ in range(partitions)]
        self.states = [PartitionState(Head(), entries.get) for entries in self.entries]
        self.dead: list[Rejection] = []
        self.framer = Framer(shard, self.layout)

    def start(self, position: str, timestamp: int = 1_700_000_000) -> None:
        """The shard's first epoch."""
        self.framer.start_epoch(position, timestamp, "first_start")
        self._fold()

    def publish(self, transactions: Iterable[SourceTransaction]) -> None:
        """Frames and folds each transaction in a batch of its own."""
        for transaction in transactions:
            start = 0
            while True:
                end = self.framer.room(transaction, start)
                if end >= 0:
                    self.framer.add(transaction, start, end)
                    start = end
                if end < 0 or start == len(transaction.changes):
                    self._fold()
                if end >= 0 and start == len(transaction.changes):
                    break

    def _fold(self) -> None:
        for partition, value in self.framer.take().records:
            self.message(partition, value)

    def message(self, partition: int, value: bytes) -> None:
        """Folds one record."""
        state = self.states[partition]
        changes = fold_message(state, state.head.offset, value)
        changes.put_into(self.entries[partition])
        state.apply(changes)
        self.dead.extend(changes.rejections)

    def table(self, table_id: int) -> TableState | None:
        """The state of a table, from the partition that owns it."""
        value = self.entries[self.layout.table_partition(table_id)].get(table_key(table_id))
        return decode_table(value) if value is not None else None

    def bytes_of(self, table_id: int) -> bytes | None:
        """The state of a table as stored."""
        return self.entries[self.layout.table_partition(table_id)].get(table_key(table_id))

    def bound(self, name: str) -> set[int]:
        """What the name stands for, in all partitions."""
        found = [entries.get(name_key(name)) for entries in self.entries]
        return {decode_binding(value).table_id if value is not None else 0 for value in found}
