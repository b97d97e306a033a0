"""What was dropped leaves the state, as a function of the log, and nothing that comes late brings it back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from consumers.fold.objects import decode_drops, decode_object, drops_key, object_key, objects_prefix, set_key
from consumers.fold.state import head_entries
from consumers.store.store import PartitionStore, partition_directory
from freshet.commands.inspect import describe
from spark_jobs.partition import FoldTask
from stream.wire.codec import encode
from stream.wire.events import DROPS_KEPT
from tests.consumers.histories import Folded
from tests.spark_jobs.topics import in_arrow, items_of

SHARD = "hive/0"
TABLE = 7
LO = "HiveEvent/0"


class Catalog:
    """The messages of a catalog's log; event n has ordinal n and position ``HiveEvent/n``."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.ordinal, self.epoch = 0, 1
        self.event("EpochStart", position=LO, reason="first_start")

    def event(self, kind_of_event: str, ordinal: int | None = None, **fields: Any) -> None:
        """The next event, or a repeat of ``ordinal``."""
        self.ordinal += ordinal is None
        at = ordinal or self.ordinal
        place = {"shard": SHARD, "epoch": self.epoch, "ordinal": at, "gtid": f"HiveEvent/{at}", "timestamp": 1}
        self.messages.append(encode(kind_of_event, place | fields))

    def table(self, change: str, table_id: int = TABLE) -> None:
        """An external table that is created, or dropped."""
        names: dict[str, Any] = {"table_id": table_id, "name": f"d.t{table_id}", "kind": "external", "change": change}
        image = b"{}" if change == "created" else None
        writer: dict[str, Any] = {"txn": 0, "write_id": 0, "staged": False, "write_ids": None}
        self.event("TableImage", **names, **writer, image=image, struct=None, lo="", hi="")

    def partition(self, change: str, name: str, *, lo: str = "", table_id: int = TABLE, **more: Any) -> None:
        """A partition that is there, or dropped."""
        image = b"{}" if change == "image" else None
        of: dict[str, Any] = {"kind": "partition", "table_id": table_id, "name": f'["{name}"]', "change": change}
        self.event("CatalogObject", **of, image=image, struct=None, lo=lo, hi="", **more)

    def group(self, change: str, table_id: int = TABLE) -> None:
        """All partitions of the table."""
        self.event("CatalogSet", kind="partition", table_id=table_id, change=change, lo="", reason="")

    def drop_many(self, count: int) -> None:
        """As many partitions that are added and dropped."""
        for number in range(count):
            self.partition("image", f"p{number}")
            self.partition("dropped", f"p{number}")

    def whole(self) -> None:
        """The table exists, and its partitions are known."""
        self.table("created")
        self.group("begun")
        self.group("complete")

    def folded(self) -> Folded:
        """The state."""
        return Folded(*self.messages)


@pytest.fixture
def log() -> Catalog:
    """A catalog with one table without partitions."""
    made = Catalog()
    made.whole()
    return made


def key(name: str, table_id: int = TABLE) -> bytes:
    """The store key of a partition."""
    return object_key("partition", table_id, f'["{name}"]')


def test_the_state_does_not_grow_with_partitions_that_were_added_and_dropped(log: Catalog) -> None:
    """Retention drops a partition each day for years: only the last ones may leave a trace."""
    log.drop_many(50)
    few = log.folded().entries
    for day in range(50, 500):
        log.partition("image", f"p{day}")
        log.partition("dropped", f"p{day}")
    many = log.folded().entries
    assert len(many) == len(few)
    assert sum(each.startswith(objects_prefix("partition", TABLE)) for each in many) == DROPS_KEPT
    assert len(many[drops_key("partition", TABLE)]) < 200


def test_a_dropped_table_takes_along_what_belongs_to_it(log: Catalog) -> None:
    """100,000 partitions of a dropped table would stay for good: nobody drops them one by one."""
    log.table("created", 70)
    log.partition("image", "other", table_id=70)
    before = log.folded().entries.keys()
    log.drop_many(DROPS_KEPT + 3)
    for number in range(100):
        log.partition("image", f"q{number}")
    log.table("dropped")
    after = log.folded().entries
    assert after.keys() - before == set(), "a tombstone of the table is left, and nothing else"
    assert set_key("partition", TABLE) not in after
    assert key("other", 70) in after
    log.partition("image", "late")
    log.group("complete")
    assert log.folded().entries.keys() == after.keys(), "what comes after the drop is not taken"


def test_an_image_from_before_a_forgotten_drop_brings_nothing_back(log: Catalog) -> None:
    """A slow source publishes what it read before the drop: it must not be served, and waits for a newer image."""
    log.partition("image", "p")
    read_at = f"HiveEvent/{log.ordinal}"
    log.partition("dropped", "p")
    log.drop_many(DROPS_KEPT)
    assert key("p") not in log.folded().entries
    log.partition("image", "p", lo=read_at)
    state = decode_object(log.folded().entries[key("p")])
    assert (state.exists, state.is_awaited) == (False, True)
    log.partition("image", "p")
    state = decode_object(log.folded().entries[key("p")])
    assert (state.exists, state.is_awaited) == (True, False)


def test_that_a_forgotten_partition_was_not_there_is_no_news(log: Catalog) -> None:
    """A source that read before the drop says it late. An entry would wait for an image that nobody is to read."""
    log.partition("image", "p")
    read_at = f"HiveEvent/{log.ordinal}"
    log.partition("dropped", "p")
    log.drop_many(DROPS_KEPT)
    log.partition("dropped", "p", lo=read_at)
    assert key("p") not in log.folded().entries
    log.partition("image", "p", lo=read_at)
    assert decode_object(log.folded().entries[key("p")]).is_awaited, "an image from before the drop is still refused"


def test_partitions_that_are_dropped_while_a_source_reads_them_await_nothing(log: Catalog) -> None:
    """What it then says of them, in one step, must not make one forget, and another wait."""
    names = [f"p{number}" for number in range(2 * DROPS_KEPT)]
    for name in names:
        log.partition("image", name)
    log.partition("dropped", names[0])
    read_at = f"HiveEvent/{log.ordinal}"
    for name in names[1 : DROPS_KEPT + 1]:
        log.partition("dropped", name)
    for name in names[: DROPS_KEPT + 1]:
        log.partition("dropped", name, lo=read_at)
    entries = log.folded().entries
    states = [decode_object(entries[key(name)]) for name in names if key(name) in entries]
    assert [each for each in states if each.is_awaited] == []


def test_a_repeat_from_before_a_forgotten_drop_is_passed_over(log: Catalog) -> None:
    """Without its entry, the partition's first image would be taken for news."""
    log.partition("image", "p")
    first = log.ordinal
    log.partition("dropped", "p")
    log.drop_many(DROPS_KEPT)
    before = log.folded().entries
    log.partition("image", "p", ordinal=first)
    assert log.folded().entries == before


def test_a_repeat_of_what_came_late_is_passed_over_too(log: Catalog) -> None:
    """An image from before the drop tells nothing, but its number was seen: another drop's, which is forgotten later,
    may be lower.
    """
    log.partition("image", "p")
    read_at = f"HiveEvent/{log.ordinal}"
    for name in ("p", "q"):
        log.partition("dropped", name)
    log.partition("image", "p", lo=read_at)
    late = log.ordinal
    log.drop_many(DROPS_KEPT)
    before = log.folded().entries
    log.partition("image", "p", ordinal=late, lo=read_at)
    assert log.folded().entries == before


def test_a_partition_that_was_made_again_stays(log: Catalog) -> None:
    """Its drop is forgotten, it is not."""
    log.partition("dropped", "p")
    log.partition("image", "p")
    log.drop_many(2 * DROPS_KEPT)
    assert decode_object(log.folded().entries[key("p")]).exists


def test_in_a_new_epoch_what_the_set_was_before_is_gone(log: Catalog) -> None:
    """What vanished with a lost history is never named again, so no event would remove it."""
    log.drop_many(DROPS_KEPT + 1)
    log.partition("image", "lost")
    log.epoch, log.ordinal = 2, 0
    log.event("EpochStart", position="HiveEvent/0", reason="history_lost")
    log.table("created")
    log.partition("image", "kept")
    entries = log.folded().entries
    assert [each for each in entries if each.startswith(objects_prefix("partition", TABLE))] == [key("kept")]
    assert drops_key("partition", TABLE) not in entries


@pytest.mark.parametrize("spill_rows", [1, 7, 1_000_000])
def test_live_store_and_rebuild_forget_alike(log: Catalog, tmp_path: Path, spill_rows: int) -> None:
    """Whether entries go from a memtable or from disk, after whichever commit, the state is that of the log alone."""
    log.drop_many(DROPS_KEPT + 2)
    log.table("created", 70)
    for number in range(20):
        log.partition("image", f"q{number}", table_id=70)
    log.table("dropped", 70)
    log.partition("image", "p0")
    folded = log.folded()
    expected = sorted((folded.entries | head_entries(folded.state.head)).items())
    store = PartitionStore.open(tmp_path / "live", keyspace="hive", partition=0, topic_id="t1")
    for offset, message in enumerate(log.messages):
        store.fold([(offset, message)])
        if offset % spill_rows == 0:
            store.commit()
    assert list(store.items()) == expected
    store.close()
    assert items_of(store.directory) == expected
    with FoldTask("hive", "t1", str(tmp_path / "new"), {0: 0}, {0: 0}, spill_rows).open(0) as fold:
        for offset, message in enumerate(log.messages):
            fold.fold(*in_arrow([offset], [message]))
        fold.finish()
    assert items_of(partition_directory(tmp_path / "new", "hive", 0)) == expected


def test_damaged_drops_are_refused() -> None:
    """Bytes that are no drops say so."""
    with pytest.raises(ValueError, match="invalid state"):
        decode_drops(b"\x90")


def test_what_is_kept_of_a_catalog_is_shown(log: Catalog) -> None:
    """`freshet inspect` names what an entry is: a table, an object, a set, or what was dropped of it."""
    log.partition("dropped", "p")
    entries = log.folded().entries
    shown = [describe(each, entries[each]) for each in entries if each.startswith(b"\x01")]
    assert sorted(kind for each in shown for kind in each) == ["drops", "object", "set", "table"]
    assert describe(drops_key("partition", TABLE), entries[drops_key("partition", TABLE)])["drops"][-1] == ['["p"]']
    assert "unreadable" in describe(b"\x01?", b"")
