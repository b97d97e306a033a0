"""A metastore keeps write ids by ``db.table``: tables of one name in two catalogs share them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.fold.catalog_state import TableState
from consumers.owner.tables import list_of
from stream.sources.hive.live.metastore import CAPABILITIES
from stream.sources.hive.rpc.thrift import field, long, record, text, texts
from stream.sources.hive.structs import BOOL, Struct
from tests.servers.hive_catalog import HiveCatalog, mapping
from tests.serving.stack import eventually
from tests.sources.hive.test_hive_source import Consumer, Source, following
from tests.sources.hive.test_two_catalogs import followed
from tokens import ValidWriteIdList


@pytest.fixture
def catalog(hive: tuple[str, int]) -> Iterator[HiveCatalog]:
    """A client with a database of its own on the session's metastore."""
    with HiveCatalog(hive, f"db{uuid.uuid4().hex[:8]}") as client:
        yield client


def _make_twin(catalog: HiveCatalog, other: str, directory: Path) -> None:
    """A catalog with a database and a transactional table of the same names."""
    made = {1: text(other), 3: text(f"file:{directory}")}
    catalog.calls.call("create_catalog", {1: record({1: record(made)})})
    database = {1: text(catalog.db), 3: text(f"file:{directory}/db"), 8: text(other)}
    catalog.calls.call("create_database", {1: record(database)})
    twin: Struct = {1: text("t"), 2: text(catalog.db), 7: catalog.struct("t")[7], 9: mapping({"transactional": "true"})}
    twin |= {12: text("MANAGED_TABLE"), 17: text(other)}
    catalog.calls.call("create_table_req", {1: record({1: record(twin), 9: texts([*CAPABILITIES])})})


def _rename_twin(catalog: HiveCatalog, other: str, to: str) -> None:
    asked: Struct = {1: text(catalog.db), 2: text("t"), 4: text(other), 8: texts([*CAPABILITIES])}
    struct = field(catalog.calls.call("get_table_req", {1: record(asked)}), 1)
    struct |= {1: text(to), 19: long(-1)}
    place = {1: text(other), 2: text(catalog.db), 3: text("t"), 4: record(struct), 8: texts([*CAPABILITIES])}
    catalog.calls.call("alter_table_req", {1: record(place)})


def _state(source: Source) -> TableState:
    state = source.consumer.folded.table(source.catalog.table_id("t"))
    assert state is not None
    return state


def test_a_rename_in_another_catalog_takes_the_write_ids_along(catalog: HiveCatalog, tmp_path: Path) -> None:
    """They begin again from 1, under the same table id. An entry with the old ones must not cover the new ones."""
    other = f"c{uuid.uuid4().hex[:8]}"
    catalog.create("t")
    for _ in range(5):
        catalog.write("t", v="old")
    _make_twin(catalog, other, tmp_path)
    with following(catalog, Consumer()) as source:
        source.follow("t")
        _rename_twin(catalog, other, "u")
        assert ValidWriteIdList.parse(catalog.valid_write_ids("t")).hwm == 0, "the metastore has moved them"
        source.following._read_to_end()
        assert catalog.write("t", v="new") == 1
        wanted, state = ValidWriteIdList.parse(catalog.valid_write_ids("t")), _state(source)
        listed = list_of(state)
        assert state.waits_for() or listed is None or not listed.covers(wanted), "a stale image would be served"
        source.follow("t")
        assert _state(source).ids.hwm == 1


def test_a_writer_whose_id_is_taken_along_is_not_waited_for_for_good(catalog: HiveCatalog, tmp_path: Path) -> None:
    """No event tells that it has ended, as far as this table goes: the list that the server has then does."""
    other = f"c{uuid.uuid4().hex[:8]}"
    catalog.create("t")
    catalog.write("t", v="old")
    _make_twin(catalog, other, tmp_path)
    txn = catalog.open()
    with following(catalog, Consumer()) as source:
        source.follow("t")
        catalog.alter("t", catalog.allocate("t", txn), v="new")
        source.following._read_to_end()
        _rename_twin(catalog, other, "u")
        catalog.commit(txn)
        source.follow("t")


@pytest.mark.parametrize("what", ["table", "database"])
def test_a_drop_in_the_default_catalog_ends_the_write_ids(catalog: HiveCatalog, tmp_path: Path, what: str) -> None:
    """For a source of another catalog too: the ids of its table of the same name begin again from 1."""
    other = f"c{uuid.uuid4().hex[:8]}"
    catalog.create("t")
    for _ in range(5):
        catalog.write("t", v="old")
    _make_twin(catalog, other, tmp_path)
    name = f"{catalog.db}.t"
    with followed(catalog.address, other) as (source, consumer):

        def state() -> TableState | None:
            source.step()
            found = [consumer.folded.table(table_id) for table_id in consumer.folded.bound(name) - {0}]
            return found[0] if found else None

        eventually(lambda: (found := state()) is not None and not found.waits_for(), what="the table")
        found = state()
        assert found is not None
        assert found.ids.hwm == 5
        if what == "table":
            catalog.drop("t")
        else:
            catalog.calls.call("drop_database", {1: text(catalog.db), 2: (BOOL, True), 3: (BOOL, True)})
        assert ValidWriteIdList.parse(catalog.valid_write_ids("t")).hwm == 0, "the metastore has deleted them"
        source._read_to_end()
        txn = catalog.open()
        assert catalog.allocate("t", txn) == 1
        catalog.commit(txn)
        [found] = [consumer.folded.table(table_id) for table_id in consumer.folded.bound(name) - {0}]
        assert found is not None
        listed = list_of(found)
        wanted = ValidWriteIdList.parse(catalog.valid_write_ids("t"))
        assert found.waits_for() or listed is None or not listed.covers(wanted), "a stale image would be served"
        eventually(lambda: (found := state()) is not None and not found.waits_for(), what="the table again")
        found = state()
        assert found is not None
        assert found.ids.hwm == 1
