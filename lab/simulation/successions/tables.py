"""The table whose rows are in shards that become others. Their key is a number, or a lot and a number."""

from __future__ import annotations

from typing import Final, NamedTuple

from stream.wire.events import Column, DescribeTable
from stream.wire.keys import Layout, row_key

NAME: Final = "ks.t"
PARTITIONS: Final = 2
LAYOUT: Final = Layout(PARTITIONS)
ROWS: Final = 16
_LOT, _ID, _AT = Column("lot", "int", True), Column("id", "int", True), Column("at", "text", True)


class SplitTable(NamedTuple):
    """``keys``: of its rows, by their numbers. ``ids``: key → its place in the keyspace. ``lot_rows``: 0: no lots."""

    described: DescribeTable
    keys: list[bytes]
    ids: dict[bytes, int]
    lot_rows: int = 0

    def values(self, number: int) -> tuple[int, ...]:
        """Those of a row's key."""
        return (number // self.lot_rows, number) if self.lot_rows else (number,)

    def lot(self, number: int) -> dict[str, int]:
        """The columns that name a lot, by any number."""
        return {"lot": number % (ROWS // self.lot_rows)}

    def in_lot(self, lot: int) -> list[bytes]:
        """The keys of a lot."""
        return self.keys[lot * self.lot_rows : (lot + 1) * self.lot_rows]


def _table(lot_rows: int, prefix: int) -> SplitTable:
    columns = (*[_LOT] * bool(lot_rows), _ID, _AT)
    key = tuple(column.name for column in columns[:-1])
    keys = [row_key(NAME, [number // lot_rows, number] if lot_rows else [number]) for number in range(ROWS)]
    ids = {each: LAYOUT.keyspace_id(each, prefix) for each in keys}
    return SplitTable(DescribeTable(NAME, columns, key, prefix=prefix), keys, ids, lot_rows)


TABLES: Final = (_table(0, 0), _table(4, 0), _table(2, 1))
"""The rows of a lot of the second one are in any shards and partitions, those of the third one are in one."""
