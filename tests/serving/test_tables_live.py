"""Catalog tables from a transaction to a proven answer, over real servers and processes."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import httpx2
import pytest

from freshet.local.mariadb import MariaDBAddress
from lab.workload.catalog import WorkloadCatalog
from serving.bytecache.shared.opening import close_caches
from serving.client import BadRequest, Conflict, Session, Table, Unavailable
from stream.kafka.connection import KafkaCluster
from stream.sources.mariadb.connection import ConnectionSettings
from tests.servers.databases import own_database
from tests.serving.stack import ServingStack, eventually
from tokens import Vector


@pytest.fixture(scope="module")
def stack(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServingStack]:
    """A running stack over an empty catalog."""
    keyspace, directory = f"hive{uuid.uuid4().hex[:10]}", tmp_path_factory.mktemp("tables")
    with (
        own_database(mariadb) as database,
        ServingStack(directory, kafka, mariadb, keyspace, database, kind="workload") as running,
    ):
        yield running


@pytest.fixture
def catalog(stack: ServingStack) -> Iterator[WorkloadCatalog]:
    """A session of the catalog itself."""
    address = stack.mariadb
    settings = ConnectionSettings(address.host, address.port, address.user, address.password)
    with WorkloadCatalog(settings, stack.database) as session:
        yield session


def write(catalog: WorkloadCatalog, name: str, **fields: object) -> int:
    """A committed transaction that writes the table; its version."""
    txn = catalog.open_txn()
    catalog.alloc_write_id(txn, name)
    version = catalog.write_table(name, fields, txn)
    catalog.commit(txn)
    return version


def read(stack: ServingStack, session: Session, catalog: WorkloadCatalog, name: str, max_wait_ms: int = 0) -> Table:
    """The table, demanded with the list that the metastore gives to a new reader."""
    db, _, table = name.partition(".")
    return session.get_table(
        db,
        table,
        catalog.valid_write_ids(name),
        catalog.table_id(name),
        catalog=stack.keyspace,
        max_wait_ms=max_wait_ms,
    )


def test_each_commit_is_seen_through_its_list(stack: ServingStack, catalog: WorkloadCatalog, session: Session) -> None:
    """A read with a list that includes a write gets that write, and the cache catches up by itself."""
    catalog.create_table("d.t")
    for _ in range(10):
        version = write(catalog, "d.t")
        found = read(stack, session, catalog, "d.t")
        assert found.value is not None
        assert (found.value["version"], found.freshness) == (version, "fresh")
    cached = eventually(lambda: read(stack, session, catalog, "d.t", 200).served_from == "cache", what="the cache")
    assert cached


def test_an_open_writer_does_not_disturb_readers(
    stack: ServingStack, catalog: WorkloadCatalog, session: Session
) -> None:
    """A staged write is visible only to its own transaction, and to no reader after an abort."""
    catalog.create_table("d.open")
    version = write(catalog, "d.open")
    txn = catalog.open_txn()
    catalog.alloc_write_id(txn, "d.open")
    staged = catalog.write_table("d.open", {"by": "writer"}, txn)
    own_list, table_id = catalog.valid_write_ids("d.open", txn), catalog.table_id("d.open")
    for _ in range(3):
        others = read(stack, session, catalog, "d.open", 100)
        assert others.value is not None
        assert others.value["version"] == version
        own = session.get_table("d", "open", own_list, table_id, catalog=stack.keyspace)
        assert own.value is not None
        assert (own.value["version"], own.served_from) == (staged, "source")
    catalog.abort(txn)
    after = read(stack, session, catalog, "d.open", 1_000)
    assert after.value is not None
    assert after.value["version"] == version


def test_a_managed_table_needs_list_and_id(stack: ServingStack, catalog: WorkloadCatalog, session: Session) -> None:
    """A read of a managed table without list and id is refused with 400, by owner and source."""
    table_id = catalog.create_table("d.managed")
    for write_ids, given in [(None, 0), (None, table_id), (catalog.valid_write_ids("d.managed"), 0)]:
        with pytest.raises(BadRequest) as caught:
            session.get_table("d", "managed", write_ids, given, catalog=stack.keyspace)
        assert caught.value.code == "missing_write_ids"


def test_an_external_table_has_no_list(stack: ServingStack, catalog: WorkloadCatalog, session: Session) -> None:
    """An external table is read without a list: only the session's vector decides."""
    catalog.create_table("d.ext", "external")
    version = catalog.write_table("d.ext")
    session.observe(stack.shard, catalog.position()[0])
    found = session.get_table("d", "ext", catalog=stack.keyspace, max_wait_ms=5_000)
    assert found.value is not None
    assert (found.value["version"], found.freshness, found.write_ids) == (version, "fresh", None)


def test_a_recreated_table_is_recognized_by_its_id(
    stack: ServingStack, catalog: WorkloadCatalog, session: Session
) -> None:
    """The old id of a recreated table is refused with 409; the new id gets the new table."""
    catalog.create_table("d.again")
    write(catalog, "d.again", generation=1)
    old_list, old_id = catalog.valid_write_ids("d.again"), catalog.table_id("d.again")
    assert session.get_table("d", "again", old_list, old_id, catalog=stack.keyspace).found
    catalog.drop_table("d.again")
    catalog.create_table("d.again")
    write(catalog, "d.again", generation=2)
    session.observe(stack.shard, catalog.position()[0])
    found = read(stack, session, catalog, "d.again", 1_000)
    assert found.value is not None
    assert found.value["generation"] == 2
    with pytest.raises(Conflict) as caught:
        session.get_table("d", "again", old_list, old_id, catalog=stack.keyspace)
    assert caught.value.code == "table_id_changed"


def test_a_renamed_table_follows_its_name(stack: ServingStack, catalog: WorkloadCatalog, session: Session) -> None:
    """After a rename the new name is found, and the old one is known not to exist."""
    catalog.create_table("d.before")
    version = write(catalog, "d.before")
    catalog.rename_table("d.before", "d.after")
    session.observe(stack.shard, catalog.position()[0])
    found = read(stack, session, catalog, "d.after", 1_000)
    assert found.value is not None
    assert found.value["version"] == version
    gone = session.get_table("d", "before", f"d.before:1:{2**63 - 1}::", 1, catalog=stack.keyspace)
    assert (gone.found, gone.freshness) == (False, "fresh")


def test_a_list_ahead_of_the_source_is_refused(stack: ServingStack, catalog: WorkloadCatalog, session: Session) -> None:
    """A list with a write id beyond the source's is refused with 503."""
    table_id = catalog.create_table("d.ahead")
    write(catalog, "d.ahead")
    with pytest.raises(Unavailable) as caught:
        session.get_table("d", "ahead", f"d.ahead:99:{2**63 - 1}::", table_id, catalog=stack.keyspace, max_wait_ms=200)
    assert caught.value.code == "source_behind"


def test_tables_are_read_in_batches(stack: ServingStack, catalog: WorkloadCatalog) -> None:
    """The tables of a batch share one demand and fail on their own."""
    table_id = catalog.create_table("d.batch")
    write(catalog, "d.batch")
    wanted = {"catalog": stack.keyspace, "db": "d", "table": "batch"}
    listed = {**wanted, "valid_write_ids": catalog.valid_write_ids("d.batch"), "table_id": table_id}
    body = httpx2.post(f"{stack.url}/v1/tables:batch", json={"tables": [listed, wanted]}, timeout=40).json()
    assert body["tables"][0]["table"]["version"] == 2
    assert body["tables"][1]["code"] == "missing_write_ids"
    assert Vector.parse(body["token"]).get(stack.shard) is not None


def test_files_of_a_table_are_read_under_the_id_that_the_catalog_proves(
    stack: ServingStack, catalog: WorkloadCatalog, session: Session, tmp_path: Path
) -> None:
    """The byte cache gives a file of the table that was asked for: renamed, dropped, or created again at its place.

    The store is never asked which version a file has: what the catalog answers is all that tells them apart.
    """
    part, options = tmp_path / "warehouse" / "000000_0", {"dirs": f"{tmp_path}/cache:32MiB", "immutable": True}
    part.parent.mkdir()

    def files(name: str) -> bytes:
        table = read(stack, session, catalog, name)
        assert table.found
        assert table.freshness == "fresh"
        cached = fsspec.filesystem("freshet", target_protocol="file", tag=str(table.table_id), **options)
        found: bytes = cached.cat_file(str(part))
        return found

    catalog.create_table("d.files")
    write(catalog, "d.files")
    part.write_bytes(b"of the first")
    assert files("d.files") == b"of the first"
    catalog.rename_table("d.files", "d.renamed")
    part.write_bytes(b"not read yet")  # it is the same table: its files are known
    assert files("d.renamed") == b"of the first"
    catalog.create_table("d.files")
    write(catalog, "d.files")
    assert files("d.files") == b"not read yet"
    old_list, old_id = catalog.valid_write_ids("d.files"), catalog.table_id("d.files")
    catalog.drop_table("d.files")
    catalog.create_table("d.files")
    write(catalog, "d.files")
    part.write_bytes(b"of the third")
    assert files("d.files") == b"of the third"
    # The session knows the new table now: asked as the dropped one, no answer could name files that are gone.
    with pytest.raises(Conflict):
        session.get_table("d", "files", old_list, old_id, catalog=stack.keyspace)
    close_caches()
