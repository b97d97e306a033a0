"""How partitions, databases, functions, constraints and statistics are folded."""

from __future__ import annotations

from typing import Any

import pytest

from consumers.fold.catalog_state import CatalogChanges, CatalogStateError
from consumers.fold.objects import (
    ObjectState,
    SetState,
    decode_object,
    decode_set,
    fold_object,
    fold_set,
    object_key,
    objects_prefix,
    set_key,
)
from consumers.fold.state import Changes, Head

NAME = '["2024"]'


class Log:
    """Events numbered from 1, of partitions of table 7; event n has position ``HiveEvent/n``."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.ordinal = 0

    def _head(self, epoch: int, ordinal: int | None) -> dict[str, Any]:
        if ordinal is None:
            self.ordinal += 1
        at = self.ordinal if ordinal is None else ordinal
        return {"shard": "hive/0", "epoch": epoch, "ordinal": at, "gtid": f"HiveEvent/{at}", "table_id": 7}

    def object(self, change: str, image: bytes | None = None, **more: Any) -> None:
        """CatalogObject of the partition 2024."""
        event = self._head(more.pop("epoch", 1), more.pop("ordinal", None)) | {"kind": "partition", "name": NAME}
        event |= {"change": change, "image": image, "struct": image, "lo": "", "hi": ""} | more
        self._take(fold_object(event, self.entries.get, Head()))

    def set(self, change: str, **more: Any) -> None:
        """CatalogSet of the partitions."""
        event = self._head(more.pop("epoch", 1), more.pop("ordinal", None)) | {"kind": "partition", "change": change}
        self._take(fold_set(event | {"lo": "", "reason": ""} | more, self.entries.get, Head()))

    def _take(self, changes: CatalogChanges) -> None:
        Changes(0, changes, gone=changes.gone).put_into(self.entries)

    @property
    def partition(self) -> ObjectState:
        """The state of the partition 2024."""
        return decode_object(self.entries[object_key("partition", 7, NAME)])

    @property
    def partitions(self) -> SetState:
        """The state of all partitions."""
        return decode_set(self.entries[set_key("partition", 7)])


def test_one_changed_partition_is_one_small_record() -> None:
    """Only the partition and its set change: nothing is rewritten that grows with the number of partitions."""
    log = Log()
    log.object("image", b"v1")
    before = dict(log.entries)
    log.object("written")
    changed = {key for key, value in log.entries.items() if before.get(key) != value}
    assert changed == {object_key("partition", 7, NAME), set_key("partition", 7)}
    assert len(log.entries[set_key("partition", 7)]) < 100


def test_an_image_that_was_read_before_the_last_write_is_ignored() -> None:
    """A source that fetched too early must not bring back what a write replaced."""
    log = Log()
    log.object("image", b"v1")
    log.object("written")
    log.object("image", b"late", lo="HiveEvent/1", hi="HiveEvent/1")
    state = log.partition
    assert (state.image, state.image_ordinal, state.write_ordinal) == (b"v1", 1, 2)
    log.object("image", b"v2", lo="HiveEvent/2", hi="HiveEvent/4")
    state = log.partition
    assert (state.image, state.struct, state.lo, state.hi, state.image_ordinal) == (
        b"v2",
        b"v2",
        "HiveEvent/2",
        "HiveEvent/4",
        4,
    )


def test_a_dropped_partition_stays_dropped_for_images_from_before() -> None:
    """A drop is a write: an image that was read before it is not taken; one from after brings the partition back."""
    log = Log()
    log.object("image", b"v1")
    log.object("dropped")
    log.object("image", b"late", lo="HiveEvent/1")
    assert (log.partition.exists, log.partition.image) == (False, None)
    log.object("image", b"v2")
    assert (log.partition.exists, log.partition.image) == (True, b"v2")


def test_a_set_is_whole_from_a_completed_pass_until_a_void() -> None:
    """A pass that a void interrupts, or whose beginning was not folded, makes nothing whole."""
    log = Log()
    log.set("complete")
    assert not log.partitions.complete
    log.set("begun")
    log.object("image", b"v1")
    log.set("void", reason="altered")
    log.set("complete")
    assert (log.partitions.complete, log.partitions.void, log.partitions.reason) == (0, 4, "altered")
    log.set("begun")
    log.set("complete")
    assert (log.partitions.base, log.partitions.complete) == (6, 7)
    log.set("begun")
    assert (log.partitions.base, log.partitions.complete, log.partitions.begun) == (6, 7, 8)


def test_a_set_moves_with_each_member() -> None:
    """Paging sees by the set that a member changed, and a list is as late as the latest of them."""
    log = Log()
    log.set("begun")
    log.object("image", b"v1", lo="HiveEvent/1", hi="HiveEvent/9")
    assert (log.partitions.ordinal, log.partitions.hi) == (2, "HiveEvent/9")
    log.object("dropped")
    assert (log.partitions.ordinal, log.partitions.hi) == (3, "HiveEvent/9")


def test_duplicates_change_nothing_and_an_epoch_starts_anew() -> None:
    """A repeated event is passed over; a later epoch knows nothing of the one before."""
    log = Log()
    log.set("begun")
    log.object("image", b"v1")
    log.set("complete")
    before = dict(log.entries)
    log.object("dropped", ordinal=2)
    log.set("void", ordinal=3)
    assert log.entries == before
    log.object("written", epoch=2, ordinal=2)
    assert (log.partition.exists, log.partition.image, log.partition.epoch) == (False, None, 2)
    assert (log.partitions.complete, log.partitions.epoch) == (0, 2)


def test_another_shards_object_is_refused() -> None:
    """Two shards with the same object contradict each other: neither may overwrite the other unseen."""
    log = Log()
    log.object("image", b"v1")
    with pytest.raises(ValueError, match="of shard hive/0"):
        log.object("image", b"v2", shard="other/0")


def test_members_of_a_set_are_adjacent() -> None:
    """A list reads one range of keys, and no key of another table, kind or name is in it."""
    prefix = objects_prefix("partition", 7)
    assert object_key("partition", 7, NAME).startswith(prefix)
    others = [("partition", 70), ("partition", 1), ("partition_statistics", 7), ("function", 0)]
    assert not any(object_key(kind, table, NAME).startswith(prefix) for kind, table in others)
    assert not set_key("partition", 7).startswith(prefix)


def test_damaged_states_are_refused() -> None:
    """Bytes that are no state say so, and how to recover."""
    for decoded in (decode_object, decode_set):
        with pytest.raises(CatalogStateError, match="invalid state"):
            decoded(b"\x90")
