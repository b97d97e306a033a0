"""Voids of dropped tables stay in the head for ever: no marker and no read looks at all of them."""

from __future__ import annotations

from typing import Any

from consumers.fold.state import Void
from consumers.owner.evidence import demand_of
from consumers.owner.rows import view_row
from consumers.owner.tables import answer_table
from tests.consumers.histories import SHARD, Folded, event, gtid, key, marker, start, value
from tests.consumers.owner.test_owner_objects import Catalog
from tests.consumers.owner.test_owner_tables import NAME, at
from tests.consumers.owner.test_owner_tables import SHARD as CATALOG_SHARD


class Voids(dict[tuple[str, str], Void]):
    """Counts how often somebody looks at all of them."""

    looks = 0

    def items(self) -> Any:
        self.looks += 1
        return super().items()


def test_neither_a_marker_nor_a_read_looks_at_all_voids() -> None:
    """A marker ends those that wait, whenever they came. The first one looks for them: a store was opened."""
    folded = Folded(start(), value(1, b"a", 2))
    head = folded.state.head
    head.voids = voids = Voids({(f"shop.gone{number}", SHARD): Void(1, 1, gtid(1)) for number in range(9)})
    head.voids["shop.open", SHARD] = Void(1, 2, "")
    folded.fold(marker(3))
    assert voids["shop.open", SHARD] == Void(1, 2, gtid(3))
    looks = voids.looks
    folded.fold(event("TableVoid", 4, table="shop.items", reason="test", position=""))
    before = view_row(head, key(7), None).stamp
    folded.fold(marker(5))
    assert voids["shop.items", SHARD] == Void(1, 4, gtid(5))
    assert view_row(head, key(7), None).stamp != before
    assert voids.looks == looks


def test_reads_of_catalog_tables_look_at_all_voids_once_for_all(held: Catalog) -> None:
    """A fill is stamped with them. With each that comes they are looked at again, not with each marker or read."""
    held.table("created", b"{}", kind="external")
    store = held.partition.store
    voids = Voids({(f"shop.gone{number}", CATALOG_SHARD): Void(1, 1, at(1)) for number in range(9)})

    def stamp() -> bytes:
        store.visible = store.visible.copy()
        store.visible.voids = made = Voids(voids)
        found = {answer_table(held.partition, NAME, 7, demand_of("")).stamp for _ in range(3)}
        looks.append(made.looks)
        [only] = found
        return only

    looks: list[int] = []
    before = [stamp(), stamp()]
    voids["shop.later", CATALOG_SHARD] = Void(1, 2, "")
    after = [stamp(), stamp()]
    voids["shop.later", CATALOG_SHARD] = Void(1, 2, at(3))
    assert len({*before, *after, stamp()}) == 3
    assert looks == [1, 0, 1, 0, 1]
