"""A table that may have been written before the source knew of it waits for who is open then, and never for good."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from freshet.local.hive.server import HiveServer
from stream.sources.hive.rpc.connection import MetastoreError
from stream.sources.hive.rpc.thrift import integer, long, record, text, texts
from stream.sources.hive.structs import BOOL, I64, LIST, ListValue
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.stack import eventually
from tests.sources.hive.test_hive_source import Consumer, Source, following, pending


@pytest.fixture
def catalog(hive: tuple[str, int]) -> Iterator[HiveCatalog]:
    """A client with a database of its own on the session's metastore."""
    with HiveCatalog(hive, f"db{uuid.uuid4().hex[:8]}") as client:
        yield client


def _updates(catalog: HiveCatalog, txn: int) -> int:
    """The transaction gets a write id of t, and updates one of its partitions."""
    write_id = catalog.allocate("t", txn)
    touched = {1: long(txn), 2: long(write_id), 3: text(catalog.db), 4: text("t"), 5: texts(["p=1"]), 6: integer(3)}
    catalog.calls.call("add_dynamic_partitions", {1: record(touched)})
    return write_id


def _is_fetched(source: Source) -> bool:
    """Whether the first tables have been read, and none is published."""
    sweep = source.following._sweep
    return sweep is not None and all(future.done() for _, future in sweep._under_way)


def test_a_writer_that_is_aborted_without_an_event_while_its_table_is_read(catalog: HiveCatalog) -> None:
    """By then nobody knows that it has an id of the table; and the list that was read shows that as open."""
    catalog.create("t")
    first, second = catalog.open(), catalog.open()
    _updates(catalog, first)
    catalog.alter("t", _updates(catalog, second), v="uncommitted")
    catalog.commit(first)
    with following(catalog, Consumer()) as source:
        source.following.step()
        eventually(lambda: _is_fetched(source), what="the list")
        with pytest.raises(MetastoreError):
            catalog.calls.call("commit_txn", {1: record({1: long(second), 6: (BOOL, False)})})
        assert second not in catalog.metastore.transactions().open
        eventually(source.following._reconcile, what="the look at the transactions")
        source.follow("t")


def test_a_writer_whose_transaction_the_server_does_not_tell(
    catalog: HiveCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has ended since its id was listed, and the server has cleaned up. No event names it; the list does."""
    catalog.create("t")
    txn = catalog.open()
    catalog.alter("t", catalog.allocate("t", txn), v="uncommitted")
    with following(catalog, Consumer()) as source:
        with monkeypatch.context() as patched:
            patched.setattr(source.metastore, "holders", lambda *_: {})
            source.follow("t", waits_for=pending("(unknown)", 1))
        catalog.abort(txn)
        source.follow("t")


def test_a_writer_that_gets_another_id_instead(catalog: HiveCatalog) -> None:
    """The event of its end names the new one alone."""
    catalog.create("t")
    txn = catalog.open()
    catalog.alter("t", catalog.allocate("t", txn), v="uncommitted")
    with following(catalog, Consumer()) as source:
        source.follow("t", waits_for=pending(txn, 1))
        again: dict[int, Any] = {1: text(catalog.db), 2: text("t"), 3: (LIST, ListValue(I64, [txn])), 6: (BOOL, True)}
        catalog.calls.call("allocate_table_write_ids", {1: record(again)})
        source.following._read_to_end()
        catalog.commit(txn)
        source.follow("t")


def test_a_writer_that_the_metastore_times_out(new_hive: Callable[..., HiveServer]) -> None:
    """Its client is gone, and nobody else ends it."""
    reaper = {"metastore.housekeeping.threads.on": "true", "metastore.txn.timeout": "20s"}
    reaper |= {"metastore.acid.housekeeper.interval": "1s"}
    server = new_hive(settings=reaper)
    with HiveCatalog((server.host, server.port), "d") as catalog:
        catalog.create("t")
        catalog.write("t", v="committed")  # the first calls of a server are slow
        txn = catalog.open()
        catalog.alter("t", catalog.allocate("t", txn), v="uncommitted")
        with following(catalog, Consumer()) as source:
            source.follow("t", waits_for=pending(txn, 2))
            source.follow("t")
        assert txn in catalog.metastore.transactions().aborted
