"""Two catalogs of one metastore are two keyspaces over one log."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from serving.sources.hive_objects import read_objects
from serving.sources.source import WantedObjects
from stream.sources.hive.live.following import Following, FollowOptions
from stream.sources.hive.live.metastore import CAPABILITIES, Metastore, MetastoreSettings
from stream.sources.hive.live.source import UnknownCatalog, check_catalog, end_of_log
from stream.sources.hive.rpc.thrift import integer, record, text, texts
from stream.sources.hive.structs import Struct
from stream.sources.status import SourceStatus
from stream.wire.events import ObjectImage, ObjectSet
from tests.servers.hive_catalog import HiveCatalog, mapping
from tests.serving.stack import eventually
from tests.sources.hive.test_hive_source import Consumer


@contextmanager
def followed(address: tuple[str, int], catalog: str) -> Iterator[tuple[Following, Consumer]]:
    """A source of one catalog, with what it has published."""
    settings, consumer = MetastoreSettings((address,), catalog, timeout_s=60), Consumer()
    with Metastore(settings) as metastore:
        consumer.folded.start(*end_of_log(metastore))
        options = FollowOptions(settings, "hive/0", threads=2, poll_s=0.01)
        begun = metastore.transactions()
        following = Following(options, consumer, metastore, consumer.folded.framer.resume, SourceStatus(), begun)
        try:
            yield following, consumer
        finally:
            following.close()


def make_table(client: HiveCatalog, catalog: str, name: str) -> None:
    """An external table in the client's database of a catalog."""
    of = {1: text(name), 2: text(client.db), 7: client.struct("t")[7], 9: mapping({"EXTERNAL": "TRUE"})}
    of |= {12: text("EXTERNAL_TABLE"), 17: text(catalog)}
    client.calls.call("create_table_req", {1: record({1: record(of), 9: texts([*CAPABILITIES])})})


def test_each_source_tells_of_its_own_catalog(hive: tuple[str, int], tmp_path: Path) -> None:
    """A database and a table have the same names in both: what is made or dropped in one is not told of the other."""
    name = f"c{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        client = stack.enter_context(HiveCatalog(hive, f"db{name}"))
        client.create("t", transactional=False)
        made = {1: text(name), 3: text(f"file:{tmp_path}")}
        client.calls.call("create_catalog", {1: record({1: record(made)})})
        database = {1: text(client.db), 3: text(f"file:{tmp_path}/db"), 8: text(name)}
        client.calls.call("create_database", {1: record(database)})
        make_table(client, name, "t")
        sources = {each: stack.enter_context(followed(hive, each)) for each in ("hive", name)}

        def bound(table: str) -> list[int]:
            return [len(consumer.folded.bound(f"{client.db}.{table}") - {0}) for _, consumer in sources.values()]

        def reach(expected: list[int], table: str) -> None:
            def reached() -> bool:
                for following, _ in sources.values():
                    following.step()
                return bound(table) == expected

            eventually(reached, what=f"{table} in {expected}")

        reach([1, 1], "t")
        ids = [consumer.folded.bound(f"{client.db}.t") for _, consumer in sources.values()]
        assert ids[0] != ids[1], "each has its own table of the name"
        make_table(client, name, "only_there")
        client.create("only_here", transactional=False)
        reach([0, 1], "only_there")
        reach([1, 0], "only_here")
        client.drop("t")
        reach([0, 1], "t")
        assert not any(consumer.folded.dead for _, consumer in sources.values())


def test_functions_of_another_catalog_are_listed(hive: tuple[str, int], tmp_path: Path) -> None:
    """The call that tells of all functions tells of those of the catalog ``hive`` alone."""
    name = f"c{uuid.uuid4().hex[:8]}"
    with HiveCatalog(hive, f"db{name}") as client:
        client.create_function("here")
        client.calls.call("create_catalog", {1: record({1: record({1: text(name), 3: text(f"file:{tmp_path}")})})})
        for db in (client.db, f"{client.db}x"):
            made = {1: text(db), 3: text(f"file:{tmp_path}/{db}"), 8: text(name)}
            client.calls.call("create_database", {1: record(made)})
        function: Struct = {1: text("There"), 2: text(client.db), 3: text("org.example.F"), 4: text("tester")}
        numbers = {5: integer(1), 6: integer(1), 7: integer(1)}
        client.calls.call("create_function", {1: record(function | numbers | {9: text(name)})})
        with Metastore(MetastoreSettings((hive,), name, timeout_s=60)) as metastore:
            assert [each for each, _ in metastore.functions()] == [(client.db, "there")]
            found = read_objects(metastore, WantedObjects("function", "", prefix=(client.db,)), None)
            assert found.names == [(client.db, "there")]
        with followed(hive, name) as (following, consumer):

            def whole() -> bool:
                following.step()
                return any(is_functions(each) and each.change == "complete" for each in published())

            def published() -> list[ObjectImage | ObjectSet]:
                changes = [change for each in consumer.transactions for change in each.changes]
                return [each for each in changes if isinstance(each, (ObjectImage, ObjectSet))]

            def is_functions(change: ObjectImage | ObjectSet) -> bool:
                return change.kind == "function"

            eventually(whole, what="all functions are published")
            shown = [each.name for each in published() if is_functions(each) and isinstance(each, ObjectImage)]
            assert shown == [(client.db, "there")]


def test_a_real_metastore_shows_a_catalog_that_it_does_not_have_as_an_empty_one(hive: tuple[str, int]) -> None:
    """So a source has to ask for the catalog itself."""
    with Metastore(MetastoreSettings((hive,), "nowhere")) as metastore:
        assert metastore.databases() == []
        with pytest.raises(UnknownCatalog):
            check_catalog(metastore)
    with Metastore(MetastoreSettings((hive,))) as metastore:
        check_catalog(metastore)
