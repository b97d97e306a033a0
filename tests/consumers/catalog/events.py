"""Catalog events as short calls, folded into a dict in the order in which they are written."""

from __future__ import annotations

from typing import Any

from consumers.fold.catalog import fold_catalog, void_catalog
from consumers.fold.catalog_state import TableState, decode_binding, decode_table, name_key, table_key
from consumers.fold.state import Changes, Head, Rejection, Void

SHARD = "hive/0"


class Log:
    """Events numbered from 1; event n has ordinal n and position ``HiveEvent/n``."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.rejections: list[Rejection] = []
        self.voids: dict[tuple[str, str], Void] = {}
        self.ordinal = 0
        self.epoch = 1

    def fold(self, event: str, /, ordinal: int | None = None, **fields: Any) -> None:
        """The next event, or one with an ordinal of its own (a duplicate, or out of order)."""
        if ordinal is None:
            self.ordinal += 1
        at = self.ordinal if ordinal is None else ordinal
        head = {"shard": SHARD, "epoch": self.epoch, "ordinal": at, "gtid": f"HiveEvent/{at}", "timestamp": 0}
        changes = fold_catalog(event, head | fields, self.entries.get, Head(voids=self.voids))
        Changes(at, changes, gone=changes.gone).put_into(self.entries)
        self.rejections.extend(changes.rejections)

    def image(self, change: str, image: bytes | None = None, txn: int = 0, write_id: int = 0, **more: Any) -> None:
        """TableImage of table 7, ``d.t``."""
        fields: dict[str, Any] = {"table_id": 7, "name": "d.t", "kind": "transactional", "change": change, "txn": txn}
        fields |= {"write_id": write_id, "staged": False, "image": image, "write_ids": None, "lo": "", "hi": ""}
        fields["struct"] = None
        self.fold("TableImage", **(fields | more))

    def created(self, **more: Any) -> None:
        """CREATE with its image ``v1``, and the name bound."""
        self.bind("d.t", 7)
        self.image("created", b"v1", **more)

    def alloc(self, txn: int, write_id: int, *, reallocated: bool = False) -> None:
        """AllocWriteId on table 7."""
        self.fold("AllocWriteId", table_id=7, txn=txn, write_id=write_id, reallocated=reallocated)

    def end(self, txn: int, *write_ids: int, commit: bool = True) -> None:
        """CommitTxn or AbortTxn with its ids on table 7."""
        pairs = [{"table_id": 7, "write_id": write_id} for write_id in write_ids]
        more = {} if commit else {"reconciled": False}
        self.fold("CommitTxn" if commit else "AbortTxn", txn=txn, write_ids=pairs, **more)

    def bind(self, name: str, table_id: int, previous: str = "") -> None:
        """NameBinding."""
        self.fold("NameBinding", name=name, table_id=table_id, previous_name=previous)

    def void(self, table: str) -> None:
        """TableVoid."""
        self.ordinal += 1
        self.voids[table, SHARD] = Void(self.epoch, self.ordinal, "")
        self.entries.update(void_catalog(table, self.entries.get, at=(SHARD, self.epoch, self.ordinal)))

    @property
    def value(self) -> bytes:
        """Table 7 as stored."""
        return self.entries[table_key(7)]

    @property
    def table(self) -> TableState:
        """Table 7."""
        return decode_table(self.value)

    def bound(self, name: str) -> int:
        """What a name stands for, 0 for nothing."""
        value = self.entries.get(name_key(name))
        return decode_binding(value).table_id if value is not None else 0
