"""The catalog fold keeps an entry unservable exactly as long as its image is not proved."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.fold.catalog import fold_catalog
from consumers.fold.catalog_state import CatalogStateError, decode_binding, decode_table, encode_table, table_key
from consumers.fold.state import Head, Lineage
from tests.consumers.catalog.events import Log


def test_a_write_makes_the_entry_wait_for_its_image_and_its_writer() -> None:
    """The entry is unservable from the write until both the fetched image and the writer's COMMIT are folded."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    assert log.table.waits_for() == ""
    log.image("written", txn=1, write_id=1)
    assert "pending" in log.table.waits_for()
    log.image("image", b"v2", lo="HiveEvent/4", hi="HiveEvent/4")
    assert "pending" in log.table.waits_for()
    log.end(1, 1)
    assert log.table.waits_for() == ""
    assert log.table.image == b"v2"


def test_a_commit_never_revives_an_image_older_than_the_last_write() -> None:
    """The entry is not servable after its writer's COMMIT while the new image is missing."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.image("written", txn=1, write_id=1)
    log.end(1, 1)
    assert "the image that follows has not arrived" in log.table.waits_for()


def test_an_image_that_was_read_before_the_last_write_is_ignored() -> None:
    """An image whose lo lies before the last write event leaves the entry waiting."""
    log = Log()
    log.created()
    log.image("written")
    log.image("image", b"late", lo="HiveEvent/2", hi="HiveEvent/4")
    assert log.table.waits_for()
    assert log.table.image == b"v1"


def test_an_abort_ends_the_writer_too() -> None:
    """A written entry becomes servable after an ABORT too, not only after a COMMIT."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.image("written", txn=1, write_id=1)
    log.image("image", b"v2", lo="HiveEvent/4", hi="HiveEvent/4")
    log.end(1, 1, commit=False)
    assert log.table.waits_for() == ""
    assert log.table.ids.text("d.t") == f"d.t:1:{2**63 - 1}::1"


def test_a_write_without_a_transaction_may_be_by_any_holder_of_an_open_id() -> None:
    """Then every transaction with an open id on the table is pending."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.alloc(2, 2)
    log.end(1, 1)
    log.alloc(3, 3)
    log.image("written", b"v2")
    assert log.table.pending == [(2, 2), (3, 3)]
    log.end(3, 3)
    log.end(2, 2, commit=False)
    assert log.table.waits_for() == ""


def test_a_staged_write_leaves_the_committed_image_servable() -> None:
    """If ABORT undoes writes, demands that don't see the writer are answered meanwhile."""
    log = Log()
    log.created()
    for txn in (1, 2):
        log.alloc(txn, txn)
    log.image("written", b"mine", txn=1, write_id=1, staged=True)
    log.image("written", b"mine again", txn=1, write_id=1, staged=True)
    log.image("written", b"other", txn=2, write_id=2, staged=True)
    assert (log.table.waits_for(), log.table.image) == ("", b"v1")
    log.end(2, 2, commit=False)
    assert log.table.image == b"v1"
    log.end(1, 1)
    assert (log.table.waits_for(), log.table.image, log.table.lo) == ("", b"mine again", f"HiveEvent/{log.ordinal}")
    assert log.table.staged == []


def test_a_void_holds_until_a_new_image_and_forgets_what_was_staged() -> None:
    """A staged write from before a void may have been overwritten, so its COMMIT does not make the entry servable."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.image("written", b"maybe old", txn=1, write_id=1, staged=True)
    log.void("d.t")
    assert "voided" in log.table.waits_for()
    log.end(1, 1)
    assert "voided" in log.table.waits_for()
    log.image("image", b"v3", lo=f"HiveEvent/{log.ordinal}", hi=f"HiveEvent/{log.ordinal}")
    assert (log.table.waits_for(), log.table.image) == ("", b"v3")


@pytest.mark.parametrize("scope", ["d.t", "*"])
@pytest.mark.parametrize("txn", [0, 2])
def test_a_write_after_lost_events_waits_for_the_servers_list(scope: str, txn: int) -> None:
    """A lost ALLOC hides its writer, whose writes must not look as if they had no writer."""
    log = Log()
    log.created()
    log.void(scope)  # ALLOC of write id 1 for transaction 2 was here
    log.image("written", b"uncommitted", txn=txn)
    assert "unknown until the server's list arrives" in log.table.waits_for()
    log.alloc(3, 2)
    log.end(3, 2)
    assert log.table.waits_for(), "the end of somebody else says nothing of who was never heard of"
    log.fold("WriteIdsReset", table_id=7, write_ids="d.t:2:1:1:", committed=None)
    log.image("written", b"of whom the list names", txn=txn)
    assert log.table.pending == [(0, 1)], "whose id 1 is, the list does not say"
    log.fold("WriteIdsReset", table_id=7, write_ids=f"d.t:2:{2**63 - 1}::", committed=None)
    assert (log.table.waits_for(), log.table.image) == ("", b"of whom the list names")


def test_a_table_created_after_lost_events_does_not_wait_for_the_list() -> None:
    """A void before the CREATE is not of the table's history, so its writers are known from the log."""
    log = Log()
    log.void("*")
    log.created()
    log.image("written", b"v2")
    assert (log.table.waits_for(), log.table.image) == ("", b"v2")


@pytest.mark.parametrize("first", ["written", "image"])
def test_a_table_whose_create_was_lost_waits_for_the_list_too(first: str) -> None:
    """If the first folded event is not the CREATE, an earlier writer may be unknown."""
    log = Log()
    log.void("*")  # CREATE, and ALLOC of write id 1 for transaction 2, were here
    log.image(first, b"v1")
    log.image("written", b"uncommitted")
    assert "unknown until the server's list arrives" in log.table.waits_for()
    log.image("image", b"v2", write_ids=f"d.t:1:{2**63 - 1}::")
    assert (log.table.waits_for(), log.table.image) == ("", b"v2")


def test_a_rename_does_not_make_up_for_lost_events() -> None:
    """A void is kept by the table's name; after a rename an uncommitted image must still not be servable."""
    log = Log()
    log.created()
    log.void("d.t")  # ALLOC of write id 1 for transaction 2 was here
    log.bind("d.u", 7, "d.t")
    log.image("written", b"uncommitted", name="d.u")
    assert "unknown until the server's list arrives" in log.table.waits_for()
    log.fold("WriteIdsReset", table_id=7, write_ids=f"d.u:1:{2**63 - 1}::", committed=None)
    assert (log.table.waits_for(), log.table.image) == ("", b"uncommitted")


def test_a_commit_of_an_aborted_id_is_a_dead_letter_and_voids_the_list() -> None:
    """A contradiction is a dead letter, and the list proves nothing until the source sends its own."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.end(1, 1, commit=False)
    log.end(1, 1)
    assert [letter.code for letter in log.rejections] == ["commit_of_aborted"]
    assert not log.table.ids.known
    assert log.table.waits_for()
    log.image("image", b"v2", write_ids="d.t:1:1::", lo=f"HiveEvent/{log.ordinal}")
    assert log.table.ids.known
    assert log.table.waits_for() == ""


def test_a_jump_over_too_many_ids_waits_for_the_servers_own_list() -> None:
    """Millions of unknown ids are not listed one by one; a reset with the server's list makes the list known again."""
    log = Log()
    log.created()
    log.alloc(1, 10_000_001)
    assert not log.table.ids.known
    log.fold("WriteIdsReset", table_id=7, write_ids=f"d.t:10000000:{2**63 - 1}::", committed=False)
    log.alloc(1, 10_000_001)
    assert log.table.ids.text("d.t") == "d.t:10000001:10000001:10000001:"


def test_a_commit_above_the_high_water_mark_holds_the_ids_between_as_open() -> None:
    """A missed ALLOC must not make ids valid whose COMMIT was not folded."""
    log = Log()
    log.created()
    log.end(9, 3)
    assert log.table.ids.text("d.t") == "d.t:3:1:1,2:"


def test_ids_that_arrive_out_of_order_are_open_until_their_own_end() -> None:
    """The second of two concurrent ALLOCs may be logged first. The other id is open from then on, and stays."""
    log = Log()
    log.created()
    log.alloc(11, 2)
    assert log.table.ids.full_text("d.t") == "d.t:2:1:1,2:"
    log.alloc(10, 1)
    assert [tuple(pair) for pair in log.table.ids.open] == [(1, 10), (2, 11)]
    log.end(11, 2)
    log.end(10, 1)
    assert log.table.ids.full_text("d.t") == "d.t:2:9223372036854775807::"


def test_a_rename_keeps_the_entry_and_unbinds_the_old_name() -> None:
    """The entry keeps its key and prints its list under the new name; another table may take the old name."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.bind("e.u", 7, previous="d.t")
    assert (log.bound("d.t"), log.bound("e.u"), log.table.name) == (0, 7, "e.u")
    log.bind("d.t", 8)
    assert log.bound("d.t") == 8
    assert log.table.name == "e.u"


def test_a_dropped_table_never_comes_back_under_its_id() -> None:
    """Later events of a dropped table's id change nothing."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.image("dropped")
    gone = log.value
    log.alloc(2, 2)
    log.end(1, 1)
    log.image("written", b"ghost")
    assert log.value == gone
    assert log.table.waits_for() == "the table does not exist"


def test_an_end_in_another_partition_makes_no_entry_here() -> None:
    """Transaction events go to several partitions, which ignore tables that they don't hold."""
    log = Log()
    log.end(1, 1)
    log.bind("d.t", 7)
    assert log.entries.keys() == {b"\x00name/d.t"}


def test_a_later_epoch_starts_a_table_anew() -> None:
    """After lost history nothing of the table's earlier epoch counts, and its events are ignored."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.epoch, log.ordinal = 2, 0
    log.bind("d.t", 7)
    log.image("image", b"again", lo="HiveEvent/1")
    assert (log.table.epoch, log.table.ids.hwm, log.table.waits_for()) == (2, 0, "")
    log.epoch, log.ordinal = 1, 100
    before = dict(log.entries)
    log.alloc(5, 5)
    log.bind("d.t", 9)
    assert log.entries == before


def test_invalid_state_bytes_are_refused() -> None:
    """A damaged entry raises an error and is never read as a table."""
    with pytest.raises(CatalogStateError):
        decode_table(b"\xc1")
    with pytest.raises(CatalogStateError):
        decode_binding(b"\x90")


def _random_event(rng: random.Random, log: Log) -> tuple[str, dict[str, Any]]:
    txn, write_id = rng.randint(1, 4), rng.randint(1, 6)
    pairs = [{"table_id": 7, "write_id": write_id}]
    image = {"table_id": 7, "name": "d.t", "kind": "transactional", "txn": rng.choice([0, txn]), "write_id": write_id}
    image |= {"staged": rng.random() < 0.5, "image": rng.choice([None, b"x%d" % log.ordinal]), "write_ids": None}
    image |= {"change": rng.choice(["created", "written", "written", "image"]), "lo": "", "hi": "", "struct": None}
    events: list[tuple[str, dict[str, Any]]] = [
        ("AllocWriteId", {"table_id": 7, "txn": txn, "write_id": write_id, "reallocated": rng.random() < 0.2}),
        ("TableImage", image),
        ("CommitTxn", {"txn": txn, "write_ids": pairs}),
        ("AbortTxn", {"txn": txn, "write_ids": pairs, "reconciled": False}),
        ("WriteIdsReset", {"table_id": 7, "write_ids": f"d.t:{write_id}:{write_id}:{write_id}:", "committed": None}),
        ("NameBinding", {"name": rng.choice(["d.t", "d.u"]), "table_id": 7, "previous_name": rng.choice(["", "d.t"])}),
    ]
    return rng.choice(events)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_duplicates_change_nothing_and_every_state_is_canonical(seed: int) -> None:
    """A repeated event is ignored, lists stay sorted and disjoint, and decode∘encode is the identity."""
    rng = random.Random(seed)
    log = Log()
    done: list[tuple[int, str, dict[str, Any]]] = []
    for _ in range(40):
        name, fields = _random_event(rng, log)
        log.fold(name, **fields)
        done.append((log.ordinal, name, fields))
        before = dict(log.entries)
        again = rng.choice(done)
        log.fold(again[1], again[0], **again[2])
        assert log.entries == before
        if b"\x017" in log.entries:
            state = log.table
            opened = [write_id for write_id, _ in state.ids.open]
            assert opened == sorted(set(opened))
            assert state.ids.aborted == sorted(set(state.ids.aborted) - set(opened))
            assert max([*opened, *state.ids.aborted], default=0) <= state.ids.hwm
            assert encode_table(state) == log.value


def test_a_name_that_is_bound_again_leaves_a_dropped_table_as_it_is() -> None:
    """A binding that a publisher repeats must not move the place of the DROP, nor give the table its name back."""
    log = Log()
    log.created()
    log.image("dropped")
    dropped = encode_table(log.table)
    log.bind("d.u", 7, previous="d.t")
    assert encode_table(log.table) == dropped


def test_before_its_first_marker_a_store_from_the_middle_calls_no_table_known() -> None:
    """Until a marker says how far what was before can reach, an image may be older than a lost write."""
    event = {"shard": "hive/0", "epoch": 1, "ordinal": 9, "gtid": "HiveEvent/9", "timestamp": 0, "table_id": 7}
    event |= {"name": "d.t", "kind": "transactional", "change": "image", "txn": 0, "write_id": 0, "staged": False}
    event |= {"image": b"v1", "struct": None, "write_ids": "d.t:3:9::", "lo": "HiveEvent/9", "hi": "HiveEvent/9"}
    told = {"hive/0": Lineage(1, 9, 9, "HiveEvent/8", 0, "HiveEvent/8")}
    for lineages, is_partial in (({}, True), (told, False)):
        changes = fold_catalog("TableImage", event, lambda _: None, Head(begin=5, lineages=lineages))
        assert decode_table(changes[table_key(7)]).partial == is_partial


def test_a_writer_far_above_all_known_ids_is_waited_for() -> None:
    """An id that is refused as a gap is no id that has ended: the image behind it is uncommitted."""
    log = Log()
    log.created()
    log.image("written", txn=2, write_id=50_001)
    log.image("image", b"v2", lo="HiveEvent/4", hi="HiveEvent/4", write_ids="d.t:50001:50001:50001:")
    assert "pending" in log.table.waits_for()
    log.end(2, 50_001)
    assert log.table.waits_for() == ""


def test_an_external_tables_image_ends_the_wait_for_writers() -> None:
    """An event that does not show the table takes it for a transactional one."""
    log = Log()
    log.created()
    log.alloc(1, 1)
    log.image("written")
    assert "pending" in log.table.waits_for()
    log.image("image", b"v2", kind="external", lo="HiveEvent/4", hi="HiveEvent/4")
    assert log.table.waits_for() == ""


def test_a_servers_list_does_not_end_writers_above_its_mark() -> None:
    """It was fetched before their ids were allocated, or is collapsed to its lowest exception: they may still abort."""
    log, listed = Log(), f"d.t:5:{2**63 - 1}::"
    log.created(write_ids=listed)
    log.alloc(71, 6)
    log.image("written", b"v2", txn=71, write_id=6)
    log.fold("WriteIdsReset", table_id=7, write_ids=listed, committed=True)
    assert "write id 6 of transaction 71" in log.table.waits_for()
    log.end(71, 6)
    assert log.table.waits_for() == ""


def test_a_commit_does_not_make_a_staged_image_newer_than_a_write_since() -> None:
    """It keeps the place of its write: what another transaction wrote after it is not in it."""
    log = Log()
    log.created()
    log.alloc(71, 1)
    log.alloc(72, 2)
    log.image("written", b"staged", txn=71, write_id=1, staged=True)
    log.image("written", txn=72, write_id=2)
    log.end(72, 2)
    log.end(71, 1)
    assert log.table.image == b"staged"
    assert "the image that follows has not arrived" in log.table.waits_for()
    log.image("image", b"v3")
    assert log.table.waits_for() == ""
