"""The live source on a real metastore, framed and folded as a consumer would: what is folded is what the server has."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from consumers.fold.objects import decode_object, decode_set, object_key, objects_prefix, set_key
from freshet.local.hive.server import HiveServer
from stream.sources.hive.live.fetching import Fetcher
from stream.sources.hive.live.following import Following, FollowOptions
from stream.sources.hive.live.metastore import Metastore, MetastoreSettings
from stream.sources.hive.live.notification_log import HiveHistoryLost
from stream.sources.hive.live.source import end_of_log
from stream.sources.hive.messages import parse_notification
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.rpc.connection import MetastoreError
from stream.sources.hive.rpc.thrift import integer, long, record, text, texts
from stream.sources.hive.structs import BOOL, Struct, encode_struct
from stream.sources.status import SourceStatus
from stream.wire.events import ObjectImage, ResumePoint, SourceTransaction
from tests.lab.workload.folded import Folded
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.stack import eventually
from tokens import ValidWriteIdList


class Consumer:
    """Frames and folds what a source publishes; keeps where it would resume. A `PublisherLike`."""

    def __init__(self) -> None:
        self.folded = Folded()
        self.transactions: list[SourceTransaction] = []

    def publish(self, txn: SourceTransaction) -> None:
        """Into the fold."""
        self.transactions.append(txn)
        self.folded.publish([txn])

    def stamp(self, as_of_ms: int) -> None:
        """Nobody reads the time."""

    def flush(self) -> None:
        """Everything is folded already."""

    def resume(self, names: dict[str, int]) -> ResumePoint:
        """Where a restarted source goes on. ``names``: as its topic would tell them."""
        return replace(self.folded.framer.resume.copy(), names=names)


class Source:
    """A running source of one catalog, stepped by the test."""

    def __init__(self, catalog: HiveCatalog, consumer: Consumer, resume: ResumePoint | None = None) -> None:
        self.catalog, self.consumer = catalog, consumer
        self.status = SourceStatus()
        options = FollowOptions(
            MetastoreSettings((catalog.address,), timeout_s=60), "hive/0", threads=2, reconcile_s=0.1, poll_s=0.01
        )
        begun = None
        if resume is None:
            consumer.folded.start(*end_of_log(catalog.metastore))
            resume, begun = consumer.folded.framer.resume, catalog.metastore.transactions()
        self.metastore = Metastore(options.settings)
        self.following = Following(options, consumer, self.metastore, resume, self.status, begun)

    def close(self) -> None:
        """End its threads and connections."""
        self.following.close()
        self.metastore.close()

    def names(self) -> dict[str, int]:
        """The names that are bound, as the topic would tell them."""
        return dict(self.following._translator.tables)

    def why_not(self, table: str, waits_for: str = "") -> str:
        """Why the folded table is not what the server has; empty if it is. ``waits_for``: what its image waits for."""
        name = f"{self.catalog.db}.{table}"
        found = self.catalog.metastore.table(name)
        assert found is not None
        state = self.consumer.folded.table(found.table_id)
        if state is None or self.consumer.folded.bound(name) != {found.table_id}:
            return "it is not there"
        if state.waits_for() != waits_for:
            return state.waits_for() or f"it does not wait: {waits_for}"
        if state.image != found.image:
            return "it has another image"
        if not found.transactional:
            return ""
        own = ValidWriteIdList(name, state.ids.hwm, [each for each, _ in state.ids.open], state.ids.aborted)
        server = ValidWriteIdList.parse(self.catalog.valid_write_ids(table))
        return "" if own.covers(server) else f"its list is {own}, the server's {server}"

    def follow(self, *tables: str, waits_for: str = "") -> None:
        """Step until each of the tables is as the server has it. ``waits_for``: a writer that is open since before."""

        def same() -> bool:
            self.following.step()
            return not any(self.why_not(table, waits_for) for table in tables)

        try:
            eventually(same, what="the catalog")
        except AssertionError:
            raise AssertionError({table: self.why_not(table, waits_for) for table in tables}) from None


@contextmanager
def following(catalog: HiveCatalog, consumer: Consumer, resume: ResumePoint | None = None) -> Iterator[Source]:
    """A `Source` that is closed."""
    source = Source(catalog, consumer, resume)
    try:
        yield source
    finally:
        source.close()


def pending(txn: int | str, write_id: int) -> str:
    """What a table waits for that a transaction may have written."""
    return f"write id {write_id} of transaction {txn} wrote it and is still pending"


@pytest.fixture
def catalog(hive: tuple[str, int]) -> Iterator[HiveCatalog]:
    """A client with a database of its own on the session's metastore."""
    with HiveCatalog(hive, f"db{uuid.uuid4().hex[:8]}") as client:
        yield client


def test_an_abort_that_the_server_does_not_log_is_reconciled(catalog: HiveCatalog) -> None:
    """Two transactions update the same table; the second one's COMMIT fails, and no event says so."""
    catalog.create("t")
    with following(catalog, Consumer()) as source:
        source.follow("t")
        first, second = catalog.open(), catalog.open()
        for txn in (first, second):
            write_id = catalog.allocate("t", txn)
            touched = {1: long(txn), 2: long(write_id), 3: text(catalog.db), 4: text("t")}
            catalog.calls.call("add_dynamic_partitions", {1: record({**touched, 5: texts(["p=1"]), 6: integer(3)})})
        catalog.alter("t", 2, v="of the second")
        catalog.commit(first)
        with pytest.raises(MetastoreError):
            catalog.calls.call("commit_txn", {1: record({1: long(second), 6: (BOOL, False)})})
        aborts = [row for row in catalog.metastore.events(0, 100_000) if row["eventType"] == "ABORT_TXN"]
        assert second not in [parse_notification(row).message["txnid"] for row in aborts]
        source.follow("t")
        state = source.consumer.folded.table(catalog.table_id("t"))
        assert state is not None
        assert state.ids.aborted == [2]


def test_a_transaction_that_was_open_before_the_source_began(catalog: HiveCatalog) -> None:
    """Its ALLOC was never read. The server tells who holds the open id, so its COMMIT counts.

    Nor was what it wrote: until its end, the image may be of an uncommitted write.
    """
    for table in ("t", "other"):
        catalog.create(table)
        catalog.write(table, v="1")
    early = catalog.open()
    write_id = catalog.allocate("t", early)
    catalog.alter("t", write_id, v="uncommitted")
    with following(catalog, Consumer()) as source:
        source.follow("t", waits_for=pending(early, write_id))
        source.follow("other")
        catalog.alter("t", write_id, v="2")
        catalog.commit(early)
        source.follow("t")


def test_a_commit_whose_transaction_the_topic_does_not_know_is_looked_up(catalog: HiveCatalog) -> None:
    """The event names no table. So the lists of all tables with open ids are fetched; and it is counted."""
    consumer = Consumer()
    catalog.create("t")
    with following(catalog, consumer) as source:
        source.follow("t")
        txn = catalog.open()
        catalog.alter("t", catalog.allocate("t", txn), v="1")
        source.following._read_to_end()
        names = source.names()
    resume = replace(consumer.resume(names), open_transactions={})
    with following(catalog, consumer, resume) as source:
        source.following._read_to_end()
        assert source.status.commits_looked_up == 0
        catalog.commit(txn)
        source.follow("t")
        assert source.status.commits_looked_up == 1


def test_open_ids_that_the_server_does_not_list(catalog: HiveCatalog) -> None:
    """Where nothing is committed yet it lists one id; each later writer's COMMIT counts as well."""
    catalog.create("t")
    writers = [catalog.open() for _ in range(4)]
    for txn in writers:
        catalog.allocate("t", txn)
    catalog.abort(writers[1])
    assert ValidWriteIdList.parse(catalog.valid_write_ids("t")).hwm == 1
    with following(catalog, Consumer()) as source:
        source.follow("t", waits_for=pending(writers[0], 1))
        state = source.consumer.folded.table(catalog.table_id("t"))
        assert state is not None
        assert state.ids.open == [(1, writers[0]), (3, writers[2]), (4, writers[3])]
        assert state.ids.aborted == [2]
        for txn in (writers[0], writers[3]):
            catalog.commit(txn)
            source.follow("t", waits_for=pending(writers[2], 3))
        catalog.abort(writers[2])
        source.follow("t")


def test_ids_that_the_server_has_set_without_an_event(catalog: HiveCatalog) -> None:
    """The next ALLOC does not follow the ids before it, so the list is fetched: those between count as valid there."""
    catalog.create("t")
    with following(catalog, Consumer()) as source:
        source.follow("t")
        seed: Struct = {1: text(catalog.db), 2: text("t"), 3: long(100)}
        catalog.calls.call("seed_write_id", {1: record(seed)})
        txn = catalog.open()
        assert catalog.allocate("t", txn) == 101
        source.follow("t")
        catalog.commit(txn)
        assert ValidWriteIdList.parse(catalog.valid_write_ids("t")).open_ids == ()
        source.follow("t")


def test_a_sweep_goes_on_where_it_was_cut_off(catalog: HiveCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that ends amid its bootstrap fetches only the rest, and loses nothing that changed meanwhile."""
    monkeypatch.setattr("stream.sources.hive.live.following.CHUNK_TABLES", 2)
    tables = [f"t{number}" for number in range(7)]
    for table in tables:
        catalog.create(table)
    consumer = Consumer()
    with following(catalog, consumer) as source:
        half = f"{catalog.db}.t3"
        eventually(lambda: source.following.step() and source.following._progress.swept >= half, what="half of it")
        names = source.names()
    assert 0 < len([name for name in names if name.startswith(catalog.db)]) < len(tables)
    catalog.write("t0", v="meanwhile")
    catalog.write("t6", v="meanwhile")
    catalog.drop("t5")
    catalog.create("t7")
    published = len(consumer.transactions)
    with following(catalog, consumer, consumer.resume(names)) as source:
        source.follow(*(table for table in [*tables, "t7"] if table != "t5"))
        eventually(lambda: source.following.step() or not source.following._progress.sweeping, what="the rest")
    again = [change for txn in consumer.transactions[published:] for change in txn.changes]
    assert not any(getattr(change, "name", "") == f"{catalog.db}.t2" for change in again), "t2 was published before"


def test_changes_while_tables_are_fetched_are_not_lost(catalog: HiveCatalog) -> None:
    """Writes, renames and drops between any two steps of the source end in the server's state."""
    for table in ("a", "b", "c"):
        catalog.create(table)
    with following(catalog, Consumer()) as source:
        for number in range(4):
            source.following.step()
            catalog.write("a", v=str(number))
            source.following.step()
            txn = catalog.open()
            write_id = catalog.allocate("b", txn)
            catalog.alter("b", write_id, v=str(number))
            source.following.step()
            (catalog.commit if number % 2 else catalog.abort)(txn)
            catalog.alter("c", rename_to="d")
            source.following.step()
            catalog.create("c")
            catalog.drop("d")
        source.follow("a", "b", "c")
        assert source.consumer.folded.bound(f"{catalog.db}.d") == {0}
        assert not source.consumer.folded.dead


def test_a_prewarm_with_an_outdated_list(catalog: HiveCatalog) -> None:
    """One list of transactions serves many tables: one that is old hides a commit, which is a miss and no error."""
    catalog.create("t")
    catalog.write("t", v="1")
    name = f"{catalog.db}.t"
    fetcher = Fetcher(MetastoreSettings((catalog.address,), timeout_s=60), 1, 3600.0)
    try:
        before = fetcher.submit((name,)).result()
        catalog.write("t", v="2")
        after = fetcher.submit((name,)).result()
    finally:
        fetcher.close()
    table = after.tables[name]
    assert '"v":"2"' in str(getattr(table, "image", b""))
    assert after.listed_at == before.listed_at < after.lo
    ids = after.lists[name].write_ids()
    tag = ValidWriteIdList(name, ids.hwm, [each for each, _ in ids.open], ids.aborted)
    assert tag.covers(ValidWriteIdList(name, 1, [], [])), "who has not seen the commit is answered"
    assert not tag.covers(ValidWriteIdList.parse(catalog.valid_write_ids("t"))), "who has seen it is not"
    assert not RecentWriteIds(after.lo).brought_forward(name, ids, after.listed_at, {}), "a source fetches it again"


def test_a_cleaned_log_is_a_lost_history(new_hive: Callable[..., HiveServer]) -> None:
    """Where the log was cleaned beyond the source's position, it does not go on as if nothing had been there."""
    interval = {"metastore.event.db.listener.timetolive": "1s", "metastore.event.db.listener.clean.interval": "1s"}
    server = new_hive(settings={**interval, "metastore.event.db.listener.clean.startup.wait.interval": "0s"})
    with HiveCatalog((server.host, server.port), "d") as catalog:
        catalog.create("t")
        consumer = Consumer()
        with following(catalog, consumer) as source:
            source.follow("t")
            names = source.names()
            at = consumer.folded.framer.resume.position
        catalog.write("t", v="1")
        eventually(lambda: not catalog.metastore.events(0, 10), what="the cleaner")
        with (
            following(catalog, consumer, consumer.resume(names)) as source,
            pytest.raises(HiveHistoryLost, match="deleted"),
        ):
            eventually(lambda: source.following.step() and False)
        assert consumer.folded.framer.resume.position == at


def test_a_restored_server_is_a_lost_history(new_hive: Callable[..., HiveServer], tmp_path: Path) -> None:
    """A metastore whose database was restored ends before the source's position: its ids stand for other events."""
    server = new_hive()
    with HiveCatalog((server.host, server.port), "d") as catalog:
        catalog.create("t")
        server.stop()
        shutil.copytree(server.data_dir / "derby", tmp_path / "backup")
        server.start()
        consumer = Consumer()
        with following(catalog, consumer) as source:
            catalog.write("t", v="lost")
            source.follow("t")
            names = source.names()
        server.stop()
        shutil.rmtree(server.data_dir / "derby")
        shutil.copytree(tmp_path / "backup", server.data_dir / "derby")
        server.start()
        with (
            following(catalog, consumer, consumer.resume(names)) as source,
            pytest.raises(HiveHistoryLost, match="the log ends at event"),
        ):
            source.following.step()


def whole(source: Source, kind: str, table_id: int) -> dict[str, bytes | None] | None:
    """Name → Thrift struct of the members of a set as folded; None while it is not whole or a member is awaited."""
    folded = source.consumer.folded
    for entries in folded.entries:
        value = entries.get(set_key(kind, table_id))
        if value is None:
            continue
        found = decode_set(value)
        if not found.complete:
            return None
        prefix = objects_prefix(kind, table_id)
        members = {
            key[len(prefix) :].decode(): decode_object(entries[key]) for key in entries if key.startswith(prefix)
        }
        current = {name: each for name, each in members.items() if each.known_at > found.base}
        if any(each.image_ordinal < each.write_ordinal for each in current.values()):
            return None
        return {name: each.struct for name, each in current.items() if each.exists}
    return None


def test_partitions_are_those_of_the_server(catalog: HiveCatalog) -> None:
    """Those that were there before, that are added, dropped, and that an ALTER_TABLE voided: whole Thrift objects."""
    table_id = catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", "a", "b/c", "ü")
    with following(catalog, Consumer()) as source:

        def same() -> bool:
            source.following.step()
            found = whole(source, "partition", table_id)
            server = {
                json.dumps(values, ensure_ascii=False, separators=(",", ":")): encode_struct(struct)
                for chunk in catalog.metastore.partitions(f"{catalog.db}.t", 2)
                for values, struct in chunk
            }
            return found == server

        eventually(same, what="the partitions of before")
        catalog.add_partitions("t", "d")
        catalog.drop_partition("t", "a")
        eventually(same, what="one more and one less")
        catalog.alter("t", v="voids them all")
        source.following.step()
        eventually(same, what="those of an altered table")
        assert not source.consumer.folded.dead


def folded_object(source: Source, kind: str, table_id: int) -> bytes | str | None:
    """The Thrift struct of what a table has one of; a text if it is unknown or awaited."""
    for entries in source.consumer.folded.entries:
        value = entries.get(object_key(kind, table_id, "[]"))
        if value is not None:
            found = decode_object(value)
            return "awaited" if found.is_awaited or not found.image_ordinal else found.struct
    return "unknown"


def follow_details(source: Source, *tables: str) -> None:
    """Step until constraints and statistics of each table are those of the server."""
    catalog = source.catalog

    def same() -> bool:
        source.following.step()
        for table in tables:
            name, table_id = f"{catalog.db}.{table}", catalog.table_id(table)
            statistics = catalog.metastore.statistics(name, ["a"])
            expected = encode_struct(statistics) if statistics is not None else None
            if folded_object(source, "statistics", table_id) != expected:
                return False
            if folded_object(source, "constraints", table_id) != encode_struct(catalog.metastore.constraints(name)):
                return False
        return True

    eventually(same, what="constraints and statistics")


def test_constraints_and_statistics_are_those_of_the_server(catalog: HiveCatalog) -> None:
    """Those of before, those that an event wrote, and none: whole Thrift objects."""
    catalog.create("before", transactional=False)
    catalog.set_statistics("before", 3)
    catalog.add_primary_key("before", f"pk_{catalog.db}")
    with following(catalog, Consumer()) as source:
        follow_details(source, "before")
        catalog.create("later")
        follow_details(source, "later")
        txn = catalog.open()
        write_id = catalog.allocate("later", txn)
        catalog.set_statistics("later", 4, write_id=write_id)
        catalog.commit(txn)
        catalog.drop_constraint("before", f"pk_{catalog.db}")
        follow_details(source, "before", "later")
        catalog.alter("before", rename_to="after")
        catalog.alter("after", v="1")
        follow_details(source, "after", "later")
        eventually(lambda: source.following.step() or source.following._progress.detailed is None, what="their sweep")
        assert not source.consumer.folded.dead


def test_insert_only_tables_are_those_of_the_server(catalog: HiveCatalog) -> None:
    """A metastore refuses them to a client that does not claim to know them, and the whole call for several tables."""
    catalog.create("full")
    catalog.create("inserted", transactional_properties="insert_only")
    with following(catalog, Consumer()) as source:
        source.follow("full", "inserted")
        catalog.write("inserted", v="1")
        catalog.create("later", transactional_properties="insert_only", v="1")
        source.follow("full", "inserted", "later")
        found = catalog.metastore.tables([f"{catalog.db}.{each}" for each in ("full", "inserted", "later")])
        acid = {name: (table.transactional, table.full_acid) for name, table in found.items()}  # type: ignore[union-attr]
        assert [*acid.values()] == [(True, True), (True, False), (True, False)]
        assert not source.consumer.folded.dead


def test_constraints_with_a_foreign_key_are_those_of_the_server(catalog: HiveCatalog) -> None:
    """Whatever happens to the table that it points to, of which no event names the table that has it.

    Once such an event is folded, those from before are served no more. A restarted source knows of it too.
    """
    table_id, consumer = catalog.create("child", transactional=False), Consumer()
    parent, key = "parent", f"pk_{catalog.db}"
    catalog.create(parent, transactional=False)
    catalog.add_primary_key(parent, key)
    catalog.add_foreign_key("child", parent, f"fk_{catalog.db}", key)
    names: dict[str, int] = {}
    for change in ("nothing", "a column", "rename", "drop key", "add key", "drop"):
        with following(catalog, consumer, consumer.resume(names) if names else None) as source:
            follow_details(source, "child", parent)
            before = encode_struct(catalog.metastore.constraints(f"{catalog.db}.child"))
            match change:
                case "a column":
                    catalog.alter(parent, add_column="b")
                case "rename":
                    catalog.alter(parent, rename_to="renamed")
                    parent = "renamed"
                case "drop key":
                    catalog.drop_constraint(parent, key)
                case "add key":
                    catalog.add_primary_key(parent, key)
                case "drop":
                    catalog.drop(parent)
                    parent = "child"
            source.following._read_to_end()
            server = encode_struct(catalog.metastore.constraints(f"{catalog.db}.child"))
            assert (server != before) == (change not in ("nothing", "a column")), change
            expected = server if change == "nothing" else "awaited"
            assert folded_object(source, "constraints", table_id) == expected, change
            names = source.names()
    with following(catalog, consumer, consumer.resume(names)) as source:
        follow_details(source, "child")
    assert not consumer.folded.dead


def test_statistics_of_partitions_are_those_of_the_server(catalog: HiveCatalog) -> None:
    """Those of before, those that an event wrote; a partition without some has none."""
    table_id = catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", "a", "b", "c")
    catalog.set_statistics("t", 3, "a")
    with following(catalog, Consumer()) as source:

        def same() -> bool:
            source.following.step()
            found = catalog.metastore.partition_statistics(f"{catalog.db}.t", ["a"], ["p=a", "p=b", "p=c"])
            server = {json.dumps(values): encode_struct(struct) for values, struct in found}
            return whole(source, "partition_statistics", table_id) == server

        eventually(same, what="the statistics of before")
        catalog.set_statistics("t", 4, "b")
        eventually(same, what="more of them")
        catalog.drop_partition("t", "a")
        eventually(same, what="those of a dropped partition")
        assert not source.consumer.folded.dead


def test_statistics_of_all_partitions_together_are_those_of_the_server(catalog: HiveCatalog) -> None:
    """Those of before and of partitions without any; then of written, added and dropped ones, and after an ALTER."""
    tables = {table: catalog.create(table, transactional=False, partitioned=True) for table in ("t", "none")}
    for table in tables:
        catalog.add_partitions(table, "a", "b")
    catalog.set_statistics("t", 3, "a")
    metastore = catalog.metastore
    with following(catalog, Consumer()) as source:

        def same() -> bool:
            source.following.step()
            for table, table_id in tables.items():
                name = f"{catalog.db}.{table}"
                server = metastore.aggregate_statistics(name, ["a"], metastore.partition_names(name))
                if folded_object(source, "aggregate_statistics", table_id) != encode_struct(server):
                    return False
            return True

        eventually(same, what="those of before")
        changes: list[Callable[[], None]] = [
            lambda: catalog.set_statistics("t", 4, "b"),
            lambda: catalog.add_partitions("t", "c"),
            lambda: catalog.drop_partition("t", "a"),
            lambda: catalog.alter("t", v="2"),
            lambda: catalog.drop_partition("none", "a"),
        ]
        for change in changes:
            change()
            eventually(same, what="those after a change")
        assert not source.consumer.folded.dead


def test_details_go_on_where_they_were_cut_off(catalog: HiveCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that ends amid its sweep of constraints and statistics publishes the rest, and not the first again."""
    monkeypatch.setattr("stream.sources.hive.live.details.CHUNK_DETAILS", 2)
    tables = [f"t{number}" for number in range(5)]
    for table in tables:
        catalog.create(table, transactional=False)
    consumer = Consumer()
    with following(catalog, consumer) as source:
        progress = source.following._progress
        half = f"{catalog.db}.t2"
        eventually(lambda: source.following.step() and (progress.detailed or "") >= half, what="half of it")
        names = source.names()
    published = len(consumer.transactions)
    with following(catalog, consumer, consumer.resume(names)) as source:
        follow_details(source, *tables)
    first = catalog.table_id("t0")
    again = [change for txn in consumer.transactions[published:] for change in txn.changes]
    assert not any(getattr(change, "table_id", 0) == first for change in again), "t0 was published before"


@pytest.mark.parametrize("is_known", [True, False])
def test_a_partition_of_an_empty_value_is_the_default_one(catalog: HiveCatalog, is_known: bool) -> None:
    """The metastore calls it so in some calls and events, and not in others. ``is_known``: it was there before."""
    table_id = catalog.create("t", transactional=False, partitioned=True)
    catalog.add_partitions("t", "a", *([""] if is_known else []))
    with following(catalog, Consumer()) as source:

        def follow(names: list[str], with_statistics: list[str]) -> None:
            def same() -> bool:
                source.following.step()
                found = (whole(source, kind, table_id) for kind in ("partition", "partition_statistics"))
                return [sorted(each) if each is not None else None for each in found] == [names, with_statistics]

            eventually(same, what="the partitions")

        default = '["__HIVE_DEFAULT_PARTITION__"]'
        if not is_known:
            follow(['["a"]'], [])
            catalog.add_partitions("t", "")
        follow([default, '["a"]'], [])
        catalog.set_statistics("t", 3, "__HIVE_DEFAULT_PARTITION__")
        follow([default, '["a"]'], [default])
        catalog.drop_partition("t", "")
        follow(['["a"]'], [])


def stored_partitions(catalog: HiveCatalog, table: str) -> dict[str, bytes | None]:
    """Name → Thrift struct, as the server has them."""
    return {
        json.dumps(values, ensure_ascii=False, separators=(",", ":")): encode_struct(struct)
        for chunk in catalog.metastore.partitions(f"{catalog.db}.{table}", 99)
        for values, struct in chunk
    }


def test_changes_amid_a_pass_over_partitions_are_not_lost(
    catalog: HiveCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added, dropped and voided between any two chunks; the table renamed, and another one made of its name."""
    monkeypatch.setattr("stream.sources.hive.live.partitions.CHUNK", 1)
    monkeypatch.setattr("stream.sources.hive.live.partitions.CHUNKS_AHEAD", 1)
    monkeypatch.setattr("stream.sources.hive.live.members.FEW_MAX", 1)
    ids = {catalog.create(table, transactional=False, partitioned=True): table for table in ("t", "u")}
    for table in ids.values():
        catalog.add_partitions(table, *"abcdef")
    with following(catalog, Consumer()) as source:
        passes = source.following._partitions._passes
        eventually(lambda: source.following.step() and passes, what="a pass")
        catalog.add_partitions("t", "g")
        source.following.step()
        catalog.drop_partition("t", "f")
        source.following.step()
        catalog.alter("u", rename_to="v")
        other = catalog.create("u", transactional=False, partitioned=True)
        catalog.add_partitions("u", "x")
        source.following.step()
        catalog.alter("t", v="voids them all")
        names = {**dict.fromkeys(ids, "t"), other: "u"} | {each: "v" for each, table in ids.items() if table == "u"}

        def same() -> bool:
            source.following.step()
            return all(
                whole(source, "partition", table_id) == stored_partitions(catalog, table)
                for table_id, table in names.items()
            )

        eventually(same, what="the partitions")
        assert not source.consumer.folded.dead


def test_a_source_wakes_up_when_a_fetch_has_arrived() -> None:
    """It does not sleep through what it waits for."""
    fetcher = Fetcher(MetastoreSettings((("127.0.0.1", 1),)), 1, 60.0)
    try:
        assert fetcher.run(lambda metastore: metastore.catalog).result() == "hive"
        assert fetcher.arrived.wait(60)
    finally:
        fetcher.close()


def test_databases_are_those_of_the_server(catalog: HiveCatalog) -> None:
    """The set of databases is whole after a sweep, and follows what is made and dropped."""
    with following(catalog, Consumer()) as source:

        def same() -> bool:
            source.following.step()
            found = whole(source, "database", 0)
            names = [f'["{db}"]' for db in catalog.metastore.databases()]
            return found is not None and sorted(found) == names

        eventually(same, what="the databases of before")
        other = f"{catalog.db}_b"
        catalog.calls.call("create_database", {1: record({1: text(other)})})
        eventually(same, what="one more")
        catalog.calls.call("drop_database", {1: text(other), 2: (BOOL, True), 3: (BOOL, True)})
        eventually(same, what="one less")


def test_what_changes_without_an_event_is_found(catalog: HiveCatalog) -> None:
    """A database's location and comment, a catalog, a function: no event tells, so the source looks now and then."""
    db, name = catalog.db, f"f{catalog.db}"
    catalog.create_function(name)
    with following(catalog, Consumer()) as source:
        metastore, objects = catalog.metastore, source.following._objects

        def differ() -> list[str]:
            source.following.step()
            function, database = metastore.function(db, name), metastore.database(db)
            stored = [("catalog", ["hive"], metastore.catalog_object()), ("database", [db], database)]
            return [
                kind
                for kind, values, struct in [*stored, ("function", [db, name], function)]
                if struct is None
                or (whole(source, kind, 0) or {}).get(json.dumps(values, separators=(",", ":")))
                != encode_struct(struct)
            ]

        eventually(lambda: not differ(), what="what was there")
        at = metastore.last_event()
        function, database, described = metastore.function(db, name), metastore.database(db), metastore.catalog_object()
        assert function is not None
        assert database is not None
        assert described is not None
        catalog.calls.call("alter_function", {1: text(db), 2: text(name), 3: record({**function, 3: text("org.G")})})
        catalog.calls.call("alter_database", {1: text(db), 2: record({**database, 2: text("another comment")})})
        described = {**described, 2: text(f"as of {db}")}
        catalog.calls.call("alter_catalog", {1: record({1: text("hive"), 2: record(described)})})
        assert metastore.last_event() == at, "else there is an event, and this cache knows less than it could"
        assert differ() == ["catalog", "database", "function"]
        objects._look_at_s = 0.0
        eventually(lambda: not differ(), what="what changed")
        published = len(source.consumer.transactions)
        objects._look_at_s = 0.0
        eventually(lambda: not source.following.step() and not objects._to_compare, what="another look")
        images = [each for txn in source.consumer.transactions[published:] for each in txn.changes]
        assert not any(isinstance(each, ObjectImage) and each.name == (db,) for each in images), "nothing has changed"


def test_the_server_lists_ids_with_their_kinds(catalog: HiveCatalog) -> None:
    """Open and aborted ids are told apart, and a table without ids has an empty list."""
    catalog.create("t")
    txns = [catalog.open() for _ in range(3)]
    for txn in txns:
        catalog.allocate("t", txn)
    catalog.commit(txns[0])
    catalog.abort(txns[1])
    listed = catalog.metastore.write_ids([f"{catalog.db}.t"])[f"{catalog.db}.t"]
    assert (listed.hwm, listed.open, listed.aborted) == (3, (3,), (2,))
    held = catalog.metastore.holders({f"{catalog.db}.t": [3]}, txns, max(txns))
    assert held == {f"{catalog.db}.t": {3: txns[2]}}
    assert txns[2] in catalog.metastore.transactions().open
    catalog.abort(txns[2])
