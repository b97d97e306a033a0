"""Which demands a catalog entry may serve, and which fills are kept beside it."""

from __future__ import annotations

import pytest

from consumers.fold.catalog_state import decode_table
from consumers.fold.state import Head, Lineage, Void
from consumers.owner.protocol import HISTORY_LOST, FillTable, OwnerTable
from consumers.owner.tables import (
    NO_VOIDS,
    MissingWriteIds,
    Voids,
    answer_from_fill,
    answer_from_state,
    judge_table_fill,
    view_table,
)
from tests.consumers.catalog.events import SHARD, Log
from tokens import Demand, Freshness, Position, ValidWriteIdList, Vector

NONE_OPEN = 2**63 - 1


def _demand(write_ids: str | None = None, table_id: int = 0, seen: int | None = None) -> Demand:
    vector = Vector({SHARD: (1, Position.parse(f"HiveEvent/{seen}"))}) if seen is not None else Vector()
    listed = ValidWriteIdList.parse(write_ids) if write_ids is not None else None
    return Demand(vector, listed, table_id, seen is not None)


def _lineage(watermark: str, epoch: int = 1) -> Lineage:
    at = int(watermark.rpartition("/")[2] or 0)
    return Lineage(epoch, at, at, watermark, 0, "HiveEvent/3")


def _read(log: Log, demand: Demand, at: int, *, epoch: int = 1, voids: Voids = NO_VOIDS) -> OwnerTable:
    """The answer of table 7's folded state with the watermark at event ``at``."""
    state = decode_table(log.value)
    found = view_table(Head(lineages={SHARD: _lineage(f"HiveEvent/{at}", epoch)}), state, 7, b"")
    answer_from_state(found, state, demand, voids)
    return found


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
    fresh = _read(log, _demand(f"d.t:1:{NONE_OPEN}::", 7), 5)
    assert (fresh.served, fresh.image, fresh.freshness) == (True, b"v2", Freshness.FRESH)
    assert fresh.write_ids == f"d.t:1:{NONE_OPEN}::"
    log.alloc(2, 2)
    own = _read(log, _demand(f"d.t:2:{NONE_OPEN}::", 7), 6)
    assert (own.served, own.image, own.freshness) == (False, None, Freshness.STALE)
    assert "write id 2 committed since" in own.why


def test_the_sessions_position_must_be_covered_as_well_as_the_list(log: Log) -> None:
    """A covered list does not serve a session that has seen more of the shard than the entry's partition."""
    wanted = _demand(f"d.t:1:{NONE_OPEN}::", 7, seen=9)
    assert not _read(log, wanted, 8).served
    assert _read(log, wanted, 9).served


def test_another_table_id_is_another_table(log: Log) -> None:
    """A re-created table has the same lists; only the id tells it from the old one."""
    answer = _read(log, _demand(f"d.t:1:{NONE_OPEN}::", 8), 5)
    assert answer.freshness == Freshness.STALE


@pytest.mark.parametrize(("write_ids", "table_id"), [(None, 7), (f"d.t:1:{NONE_OPEN}::", 0), (None, 0)])
def test_a_transactional_table_without_list_or_id_is_an_error(log: Log, write_ids: str | None, table_id: int) -> None:
    """A managed table needs both; table id 0 means not given."""
    with pytest.raises(MissingWriteIds) as error:
        _read(log, _demand(write_ids, table_id), 5)
    assert error.value.code == "missing_write_ids"
    assert error.value.hint


@pytest.mark.parametrize(("write_ids", "table_id"), [(None, 7), (f"d.t:1:{NONE_OPEN}::", 0), (None, 0)])
def test_nothing_is_missing_for_an_entry_that_is_behind(log: Log, write_ids: str | None, table_id: int) -> None:
    """The table may have been converted, or given its name to an external one: whoever reads that has no list."""
    wanted = _demand(write_ids, table_id, seen=9)
    for found in (_read(log, wanted, 8), _filled(_fill(8), wanted, "HiveEvent/8")):
        assert (found.served, found.image, found.freshness) == (False, None, Freshness.STALE)
        assert not found.needs_source, "the owner may catch up"
    with pytest.raises(MissingWriteIds):
        _read(log, wanted, 9)
    with pytest.raises(MissingWriteIds):
        _filled(_fill(9), wanted)
    assert _filled(_fill(9), wanted, epoch=2).code == HISTORY_LOST


def test_an_external_table_is_eventual_beyond_the_sessions_position() -> None:
    """Without a list the vector and the watermark decide; a demand with neither is answered as eventual."""
    log = Log()
    log.bind("d.t", 7)
    log.image("created", b"v1", kind="external")
    assert _read(log, _demand(), 2).freshness == Freshness.EVENTUAL
    assert _read(log, _demand(seen=2), 2).freshness == Freshness.FRESH
    assert not _read(log, _demand(seen=3), 2).served
    log.image("written", None, kind="external")
    assert not _read(log, _demand(), 3).served


@pytest.mark.parametrize(("listed", "served"), [("d.t:0:9223372036854775807::", True), ("d.t:5:5:5:", False)])
def test_an_entry_from_before_a_conversion_is_not_served_to_who_knows_of_it(listed: str, served: bool) -> None:
    """A list with write ids is of a transactional table. Its reader may have written it: the position says nothing."""
    log = Log()
    log.bind("d.t", 7)
    log.image("created", b"v1", kind="external")
    found = _read(log, _demand(listed, 7, seen=2), 2)
    assert (found.served, found.needs_source) == (served, not served)
    assert served or "converted" in found.why


def test_a_table_whose_kind_is_in_doubt_is_read_from_the_source() -> None:
    """After a void its kind may have changed, and whoever reads an external table has no list to send: no 400."""
    log = Log()
    log.bind("d.t", 7)
    log.image("created", b"v1", kind="external")
    log.image("written", None, kind="transactional")
    found = _read(log, _demand(seen=3), 3)
    assert (found.served, found.image) == (False, None)
    log.image("written", b"v2", kind="transactional")
    with pytest.raises(MissingWriteIds):
        _read(log, _demand(seen=3), 4)


def test_a_void_of_everything_hides_older_images(log: Log) -> None:
    """Readers apply a void of `*`; an image with a greater ordinal is servable again."""
    voids = {("*", SHARD): Void(1, log.ordinal, "HiveEvent/9")}
    wanted = _demand(f"d.t:1:{NONE_OPEN}::", 7)
    assert not _read(log, wanted, 9, voids=voids).served
    log.image("image", b"v3", lo="HiveEvent/9")
    assert _read(log, wanted, 9, voids=voids).served


def test_an_entry_of_an_earlier_epoch_is_never_served(log: Log) -> None:
    """After lost history an entry that was not published again is unknown."""
    assert not _read(log, _demand(f"d.t:1:{NONE_OPEN}::", 7), 5, epoch=2).served


def _fill(lo: int, *, name: str = "d.t", write_ids: str = f"d.t:1:{NONE_OPEN}::") -> FillTable:
    at = f"HiveEvent/{lo}"
    return FillTable(0, "hive", 0, 7, name, "transactional", b"filled", write_ids, at, at, b"")


def _filled(fill: FillTable, demand: Demand, watermark: str = "", epoch: int = 1) -> OwnerTable:
    """The answer of a fill of table 7."""
    found = view_table(Head(lineages={SHARD: _lineage(watermark, epoch)}), None, 7, b"")
    answer_from_fill(found, fill, demand)
    return found


def _may(log: Log, fill: FillTable, watermark: str = "", voids: Voids = NO_VOIDS) -> bool:
    return judge_table_fill(decode_table(log.value), fill, SHARD, _lineage(watermark), voids).accepted


def test_a_fill_is_kept_only_without_a_folded_image_and_without_pending_writers(log: Log) -> None:
    """Not over an image, not while a writer is pending, not below low-water, last write, void floor or watermark."""

    def may(lo: int, watermark: str = "", floor: str | None = None, **more: str) -> bool:
        voids = {} if floor is None else {("d.t", SHARD): Void(1, 1, floor)}
        return _may(log, _fill(lo, **more), watermark, voids)

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


def test_a_fill_is_kept_over_an_image_whose_list_lacks_ids_that_the_server_has(log: Log) -> None:
    """A metastore sets ids without an event (``seed_write_id``, ``repl_tbl_writeid_state``), and goes on behind them.

    No event would then make the folded list cover the server's: each read would go to the metastore, for ever.
    """
    for hwm in (100, 101):
        more, at = f"d.t:{hwm}:{NONE_OPEN}::", log.ordinal
        assert not _read(log, _demand(more, 7), 9).served
        assert _may(log, _fill(at, write_ids=more), f"HiveEvent/{at}")
        assert not _may(log, _fill(at - 1, write_ids=more), f"HiveEvent/{at}")
        assert not _may(log, _fill(at, write_ids=f"d.t:1:{NONE_OPEN}::"), f"HiveEvent/{at}")
        assert not _may(log, _fill(at, write_ids=""), f"HiveEvent/{at}")
        if hwm == 100:
            log.alloc(9, 101)
            log.end(9, 101)
    log.image("image", b"v3", lo=f"HiveEvent/{log.ordinal}")
    more, at = f"d.t:102:{NONE_OPEN}::", log.ordinal - 1
    assert [_may(log, _fill(lo, write_ids=more)) for lo in (at - 1, at)] == [False, True], (
        "read before the image or not"
    )


def test_after_lost_events_a_fill_is_kept_once_no_transaction_is_open(log: Log) -> None:
    """An unknown writer may be any open transaction on the server's list; the entry recovers once there is none."""

    def may(write_ids: str) -> bool:
        return _may(log, _fill(10, write_ids=write_ids))

    log.void("*")
    log.image("written", b"whose?")
    assert not may("d.t:3:3:3:")
    assert not may("d.t:2:3::2"), "the server's short form of a list in which 3 is open"
    assert may(f"d.t:3:{NONE_OPEN}::3")


def test_a_fill_proves_a_demand_by_its_own_list_and_position() -> None:
    """The source's answer must prove the demand too; one that lags or lacks the session's own write does not."""
    wanted = _demand(f"d.t:1:{NONE_OPEN}::", 7, seen=9)

    def served(fill: FillTable, watermark: str = "") -> bool:
        return _filled(fill, wanted, watermark).served

    assert served(_fill(9))
    assert not served(_fill(8))
    assert served(_fill(8), "HiveEvent/9")
    assert not served(_fill(9, write_ids="d.t:1:1:1:"))
