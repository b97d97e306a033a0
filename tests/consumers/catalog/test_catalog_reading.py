"""What a catalog entry may be given for, and what may stand beside it."""

from __future__ import annotations

import pytest

from consumers.fold.state import Void
from consumers.owner.tables import MissingWriteIds, TableFill, may_fill_table, read_fill, read_table
from tests.consumers.catalog.events import SHARD, Log
from tokens import Demand, Freshness, Position, ValidWriteIdList, Vector

NONE_OPEN = 2**63 - 1


def _demand(write_ids: str | None = None, table_id: int = 0, seen: int | None = None) -> Demand:
    vector = Vector({SHARD: (1, Position.parse(f"HiveEvent/{seen}"))}) if seen is not None else Vector()
    listed = ValidWriteIdList.parse(write_ids) if write_ids is not None else None
    return Demand(vector, listed, table_id, seen is not None)


def _at(event_id: int) -> Position:
    return Position.parse(f"HiveEvent/{event_id}")


@pytest.fixture
def log() -> Log:
    """Table 7, ``d.t``, written and committed once: write id 1."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.image("written", b"v2", txn=1, write_id=1)
    log.end(1, 1)
    return log


def test_a_covered_list_is_fresh_and_an_own_write_is_not(log: Log) -> None:
    """A reader whose list holds no write beyond the entry's is answered; its own write goes to the source."""
    fresh = read_table(log.value, _demand(f"d.t:1:{NONE_OPEN}::", 7), _at(5), SHARD, 1)
    assert (fresh.servable, fresh.image, fresh.freshness) == (True, b"v2", Freshness.FRESH)
    assert fresh.write_ids == f"d.t:1:{NONE_OPEN}::"
    log.alloc(2, 2)
    own = read_table(log.value, _demand(f"d.t:2:{NONE_OPEN}::", 7), _at(6), SHARD, 1)
    assert (own.servable, own.image, own.freshness) == (False, None, Freshness.STALE)
    assert "write id 2 committed since" in own.why


def test_the_sessions_position_binds_beside_the_list(log: Log) -> None:
    """A covered list does not serve a session that has seen more of the shard than the entry's partition."""
    wanted = _demand(f"d.t:1:{NONE_OPEN}::", 7, seen=9)
    assert not read_table(log.value, wanted, _at(8), SHARD, 1).servable
    assert read_table(log.value, wanted, _at(9), SHARD, 1).servable


def test_another_table_id_is_another_table(log: Log) -> None:
    """Dropped and re-created gives the same lists: the id tells."""
    answer = read_table(log.value, _demand(f"d.t:1:{NONE_OPEN}::", 8), _at(5), SHARD, 1)
    assert answer.freshness is Freshness.STALE


@pytest.mark.parametrize(("write_ids", "table_id"), [(None, 7), (f"d.t:1:{NONE_OPEN}::", 0), (None, 0)])
def test_a_transactional_table_without_list_or_id_is_an_error(log: Log, write_ids: str | None, table_id: int) -> None:
    """Both are required for a managed table; table id 0 is "not given"."""
    with pytest.raises(MissingWriteIds) as error:
        read_table(log.value, _demand(write_ids, table_id), _at(5), SHARD, 1)
    assert error.value.code == "missing_write_ids"
    assert error.value.hint


def test_an_external_table_is_eventual_beyond_the_sessions_position() -> None:
    """Without a list the vector and the watermark decide; a demand with neither is answered as eventual."""
    log = Log()
    log.bind("d.t", 7)
    log.image("created", b"v1", kind="external")
    assert read_table(log.value, _demand(), _at(2), SHARD, 1).freshness is Freshness.EVENTUAL
    assert read_table(log.value, _demand(seen=2), _at(2), SHARD, 1).freshness is Freshness.FRESH
    assert not read_table(log.value, _demand(seen=3), _at(2), SHARD, 1).servable
    log.image("written", None, kind="external")
    assert not read_table(log.value, _demand(), _at(3), SHARD, 1).servable


def test_a_void_of_everything_silences_older_images(log: Log) -> None:
    """A void of `*` is met when reading: images with a greater ordinal answer again."""
    voids = [(("*", SHARD), Void(1, log.ordinal, "HiveEvent/9"))]
    wanted = _demand(f"d.t:1:{NONE_OPEN}::", 7)
    assert not read_table(log.value, wanted, _at(9), SHARD, 1, voids).servable
    log.image("image", b"v3", lo="HiveEvent/9")
    assert read_table(log.value, wanted, _at(9), SHARD, 1, voids).servable


def test_an_entry_of_an_earlier_epoch_answers_nobody(log: Log) -> None:
    """After lost history an entry that was not published again is unknown."""
    assert not read_table(log.value, _demand(f"d.t:1:{NONE_OPEN}::", 7), _at(5), SHARD, 2).servable


def _fill(lo: int, *, name: str = "d.t", write_ids: str = f"d.t:1:{NONE_OPEN}::") -> TableFill:
    return TableFill(7, name, "transactional", b"filled", write_ids, f"HiveEvent/{lo}", f"HiveEvent/{lo}")


def test_a_fill_stands_only_where_the_stream_has_nothing_and_nobody_is_writing(log: Log) -> None:
    """Not over an image, not while a writer is pending, not below low-water, last write, void floor or watermark."""

    def may(lo: int, watermark: str = "", floor: str | None = None, **more: str) -> bool:
        voids = [] if floor is None else [(("d.t", SHARD), Void(1, 1, floor))]
        return may_fill_table(log.value, _fill(lo, **more), "HiveEvent/3", watermark, SHARD, 1, voids)[0]

    assert not may(10)
    log.alloc(2, 2)
    log.image("written", txn=2, write_id=2)
    assert not may(10)
    assert not may(10, write_ids="d.t:2:2:2:")
    assert not may(10, write_ids="")
    assert may(10, write_ids=f"d.t:2:{NONE_OPEN}::"), "its COMMIT is known to the fill, if not yet to the stream"
    assert may(10, write_ids=f"d.t:2:{NONE_OPEN}::2")
    log.end(2, 2)
    assert may(10)
    assert not may(2)
    assert not may(log.ordinal - 2)
    assert not may(10, watermark="HiveEvent/11")
    assert not may(10, floor="")
    assert not may(10, floor="HiveEvent/11")
    assert may(10, floor="HiveEvent/10")
    assert not may(10, name="d.renamed")
    log.image("dropped")
    assert not may(10)


def test_after_lost_events_a_fill_stands_once_nobody_at_all_is_open(log: Log) -> None:
    """Who was never heard of may be any of the open ones that the server names; a read when all is quiet heals it."""

    def may(write_ids: str) -> bool:
        return may_fill_table(log.value, _fill(10, write_ids=write_ids), "HiveEvent/3", "", SHARD, 1)[0]

    log.void("*")
    log.image("written", b"whose?")
    assert not may("d.t:3:3:3:")
    assert not may("d.t:2:3::2"), "the server's short form of a list in which 3 is open"
    assert may(f"d.t:3:{NONE_OPEN}::3")


def test_a_fill_proves_a_demand_by_its_own_list_and_position() -> None:
    """A source's answer must prove the demand too: a lagging one, or one without the own write, does not."""
    wanted = _demand(f"d.t:1:{NONE_OPEN}::", 7, seen=9)
    assert read_fill(_fill(9), wanted, None, SHARD, 1).servable
    assert not read_fill(_fill(8), wanted, None, SHARD, 1).servable
    assert read_fill(_fill(8), wanted, _at(9), SHARD, 1).servable
    assert not read_fill(_fill(9, write_ids="d.t:1:1:1:"), wanted, None, SHARD, 1).servable
