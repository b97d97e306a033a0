"""The examples of Hive's design for a synchronized metastore cache, on two real metastores over one database.

Its text is HIVE-23571's. Where it is silent or wrong, docs/concepts/catalog.md decides.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from freshet.local.hive.server import HiveServer
from freshet.local.hive.site import MetastoreDatabase
from freshet.local.mariadb import MariaDBAddress
from serving.client import AsyncClient, BadRequest, Conflict, FreshetClient, NotFoundError, Session, Table
from serving.client.answers import Objects
from stream.kafka.connection import KafkaCluster
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.stack import ServingStack, eventually
from tokens.errors import FreshetError


class Installation(NamedTuple):
    """A running stack, a client of each metastore, and one of a second front, which asks the second metastore."""

    stack: ServingStack
    first: HiveCatalog
    second: HiveCatalog
    other_front: FreshetClient


@pytest.fixture(scope="module")
def installation(
    kafka: KafkaCluster, mariadb: MariaDBAddress, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Source, consumer and front; the source asks the first metastore, the front's source of truth too."""
    suffix = uuid.uuid4().hex[:10]
    directory = tmp_path_factory.mktemp("hive")
    shared = MetastoreDatabase(mariadb, f"hms_{suffix}")
    with ExitStack() as opened:
        servers = [
            opened.enter_context(HiveServer(directory / each, database=shared, warehouse=directory / "warehouse"))
            for each in ("one", "two")
        ]
        one, two = ((server.host, server.port) for server in servers)
        settings = {"uris": [f"thrift://{one[0]}:{one[1]}"], "catalog": "hive", "poll_interval_ms": 20}
        stack = ServingStack(directory, kafka, None, f"hive{suffix}", "", kind="hive", source=settings)
        opened.enter_context(stack)
        clients = [opened.enter_context(HiveCatalog(address, "d")) for address in (one, two)]
        other = opened.enter_context(stack.add_front(uris=[f"thrift://{two[0]}:{two[1]}"]))
        yield Installation(stack, clients[0], clients[1], other)
    with mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE IF EXISTS {shared.name}")


@pytest.fixture
def session(installation: Installation) -> Iterator[Session]:
    """A client session of the front."""
    with installation.stack.client() as client:
        yield client.session()


@pytest.fixture
def ask(installation: Installation, session: Session) -> Callable[..., Table]:
    """Reads a table of the database ``d``, by the list and id that the first metastore gives unless told otherwise."""
    fronts = session, installation.other_front.session()

    def read(
        table: str, listed: str | None = None, table_id: int = 0, *, external: bool = False, front: int = 0
    ) -> Table:
        catalog = installation.first
        if not external:
            listed = listed or catalog.valid_write_ids(table)
            table_id = table_id or catalog.table_id(table)
        demand: dict[str, Any] = {"catalog": installation.stack.keyspace, "max_wait_ms": 0}
        return fronts[front].get_table("d", table, listed, table_id, **demand)

    return read


def parameter(found: Table, name: str = "v") -> str | None:
    """A parameter of the table in the answer."""
    assert found.value is not None
    parameters: dict[str, Any] = found.value["parameters"]
    return parameters.get(name)


def cached(ask: Callable[..., Table], table: str, **demand: Any) -> Table:
    """The first answer from the cache that both fronts give."""

    def both() -> list[Table]:
        one, other = (ask(table, front=front, **demand) for front in range(2))
        is_cached = one.served_from == other.served_from == "cache"
        return [one] if is_cached and (one.value, one.write_ids) == (other.value, other.write_ids) else []

    [found] = eventually(both, what=f"{table} in the cache")
    return found


def until(read: Callable[[], Table], holds: Callable[[Table], bool], what: str) -> Table:
    """The first answer for which ``holds``."""
    [found] = eventually(lambda: [seen] if holds(seen := read()) else [], what=what)
    return found


def list_of(hwm: int, *opened: int, table: str) -> str:
    """``[hwm:exceptions]`` as Hive writes it for a table of ``d``."""
    first = opened[0] if opened else 2**63 - 1
    return f"d.{table}:{hwm}:{first}:{','.join(map(str, opened))}:"


def test_get_table_steps_1_to_6(installation: Installation, ask: Callable[..., Table]) -> None:
    """Steps 1 to 6: [12:7,8,12] is answered from the entry [11:7,8]; [12:7,12] is not, because 8 committed since.

    The design has the two lists of step 5 the other way round: an entry [12:7,12] is newer, and would be fresh.
    """
    catalog, stack = installation.first, installation.stack
    catalog.create("steps")
    txns = [catalog.open() for _ in range(11)]
    for expected, txn in enumerate(txns, 1):
        assert catalog.allocate("steps", txn) == expected
    for txn in txns[:6] + txns[8:]:
        catalog.commit(txn)
    assert catalog.valid_write_ids("steps") == list_of(11, 7, 8, table="steps")
    assert cached(ask, "steps").write_ids == list_of(11, 7, 8, table="steps")

    stack.kill("source")  # the cache stays behind
    last = catalog.open()
    assert catalog.allocate("steps", last) == 12
    fresh = ask("steps", list_of(12, 7, 8, 12, table="steps"))
    assert (fresh.served_from, fresh.freshness) == ("cache", "fresh")
    catalog.alter("steps", 8, v="by-8")
    catalog.commit(txns[7])
    stale = ask("steps", list_of(12, 7, 12, table="steps"))
    assert (stale.served_from, parameter(stale)) == ("source", "by-8")
    assert "write id 8" in stale.why

    stack.start("source")
    found = cached(ask, "steps", listed=list_of(12, 7, 12, table="steps"))
    assert parameter(found) == "by-8"


def test_the_seven_steps_of_a_cache_update(installation: Installation, ask: Callable[..., Table]) -> None:
    """An alter_table makes the entry unusable; reads go to the source; the COMMIT makes the new one readable."""
    one = installation.first
    one.create("update")
    assert one.write("update", v="old") == 1
    assert parameter(cached(ask, "update")) == "old"
    before = one.valid_write_ids("update")
    txn = one.open()
    write_id = one.allocate("update", txn)
    one.alter("update", write_id, v="new")
    seen = until(lambda: ask("update", before), lambda found: "pending" in found.why, "the alter in the cache")
    assert (seen.served_from, parameter(seen)) == ("source", "new"), "a metastore shows an alter at once"
    one.commit(txn)
    found = cached(ask, "update")
    assert parameter(found) == "new"
    assert found.write_ids == list_of(2, table="update")


def test_two_alter_tables_of_one_transaction_through_two_metastores(
    installation: Installation, ask: Callable[..., Table]
) -> None:
    """What is cached after the COMMIT has both changes, whichever metastore made them."""
    one, two = installation.first, installation.second
    one.create("both")
    cached(ask, "both")
    txn = one.open()
    write_id = two.allocate("both", txn)
    one.alter("both", write_id, first="1")
    two.alter("both", write_id, second="2")
    own = ask("both", one.valid_for("both", write_id))
    assert (parameter(own, "first"), parameter(own, "second")) == ("1", "2"), "it reads its own writes"
    assert own.served_from == "source"
    two.commit(txn)
    found = cached(ask, "both")
    assert (parameter(found, "first"), parameter(found, "second")) == ("1", "2")


def test_rename(installation: Installation, ask: Callable[..., Table]) -> None:
    """A renamed table keeps id and list; another one that takes its old name is not taken for it."""
    catalog = installation.first
    table_id = catalog.create("before")
    catalog.write("before", v="renamed")
    cached(ask, "before")
    catalog.alter("before", rename_to="after")
    found = ask("after")
    assert (found.table_id, parameter(found)) == (table_id, "renamed")
    other = catalog.create("before")
    assert other != table_id
    assert ask("before").table_id == other
    assert parameter(cached(ask, "after")) == "renamed"
    assert cached(ask, "before").table_id == other


def test_drop_and_create_again(installation: Installation, ask: Callable[..., Table]) -> None:
    """The new table can have the old one's list: the id tells them apart."""
    catalog = installation.first
    old_id = catalog.create("again", v="old")
    listed = catalog.valid_write_ids("again")
    assert parameter(cached(ask, "again")) == "old"
    catalog.drop("again")
    new_id = catalog.create("again", v="new")
    assert catalog.valid_write_ids("again") == listed
    assert parameter(ask("again", listed, new_id)) == "new"
    assert parameter(cached(ask, "again")) == "new"
    with pytest.raises(Conflict) as caught:
        ask("again", listed, old_id)
    assert caught.value.code == "table_id_changed"


def test_an_external_table(installation: Installation, ask: Callable[..., Table]) -> None:
    """It has no list: it is answered from the cache as `eventual`, and follows what is altered."""
    catalog = installation.first
    catalog.create("outside", transactional=False, v="1")
    assert parameter(cached(ask, "outside", external=True)) == "1"
    catalog.alter("outside", v="2")
    eventually(lambda: parameter(ask("outside", external=True)) == "2", what="the alter")


def test_a_time_is_proved_of_a_table_without_a_list(installation: Installation, session: Session) -> None:
    """An alter is seen at once by whoever demands all up to now; and an idle catalog's cache proves a few seconds."""
    catalog = installation.first

    def read(max_staleness_ms: int) -> Table:
        bounds: dict[str, Any] = {"max_wait_ms": 0, "max_staleness_ms": max_staleness_ms}
        return session.get_table("d", "timed", catalog=installation.stack.keyspace, **bounds)

    catalog.create("timed", transactional=False, v="1")
    for version in ("2", "3"):
        catalog.alter("timed", v=version)
        assert parameter(read(0)) == version
    found = until(lambda: read(10_000), lambda each: each.served_from == "cache", "a time proved by the cache")
    assert (found.freshness, parameter(found)) == ("fresh", "3")


def test_an_old_client_without_a_list(installation: Installation, ask: Callable[..., Table], session: Session) -> None:
    """``table_id=0`` and no list: refused for a managed table, by the cache and by the source; fine for an external."""
    installation.first.create("managed")
    cached(ask, "managed")
    for _ in range(2):
        with pytest.raises(BadRequest) as caught:
            session.get_table("d", "managed", None, 0, catalog=installation.stack.keyspace)
        assert caught.value.code == "missing_write_ids"


def test_get_partitions_by_expr(installation: Installation, session: Session) -> None:
    """A list is decided by the table's list: unservable from the first write message, valid again after the COMMIT.

    The partition is added through the other metastore, in a transaction. Meanwhile the list comes from the source. Two
    fronts, each of which asks another metastore, answer alike.
    """
    fronts = (session, installation.other_front.session())
    one, two = installation.first, installation.second
    table_id = one.create("parts", partitioned=True)
    txn = one.open()
    one.allocate("parts", txn)
    one.add_partitions("parts", "2024-01-01", "2024-01-02")
    one.commit(txn)

    def read(listed: str, **more: Any) -> Any:
        wanted: dict[str, Any] = {
            "filter": "p >= '2024-01-02'",
            "catalog": installation.stack.keyspace,
            "max_wait_ms": 0,
        }
        wanted |= more
        seen, other = (each.get_partitions("d", "parts", listed, table_id, **wanted) for each in fronts)
        assert (seen.count, seen.names) == (other.count, other.names) or seen.served_from != other.served_from
        return seen if seen.served_from == "source" else other

    before = one.valid_write_ids("parts")
    [found] = eventually(lambda: [seen] if (seen := read(before)).served_from == "cache" else [], what="the list")
    assert (found.names, found.freshness) == ([["2024-01-02"]], "fresh")
    txn = two.open()
    write_id = two.allocate("parts", txn)
    two.alter("parts", write_id, v="a write message")
    two.add_partitions("parts", "2024-01-03")
    [seen] = eventually(lambda: [seen] if (seen := read(before)).served_from == "source" else [], what="the write")
    assert seen.names == [["2024-01-02"], ["2024-01-03"]], "a metastore shows a partition at once"
    own = read(two.valid_for("parts", write_id))
    assert (own.served_from, own.freshness, own.count) == ("source", "fresh", 2), "it reads its own writes"
    two.commit(txn)
    after = one.valid_write_ids("parts")
    [found] = eventually(lambda: [seen] if (seen := read(after)).served_from == "cache" else [], what="the COMMIT")
    assert found.names == [["2024-01-02"], ["2024-01-03"]]
    assert read(after, filter="", count=True).count == 3
    assert read(after, filter="", names=[("2024-01-03",), ("nope",)]).count == 1


def test_who_reads_privileges_reads_the_table_from_the_cache(
    installation: Installation, ask: Callable[..., Table]
) -> None:
    """A grant is seen through both metastores at once, and moves a session to the table's last event at most."""
    one, keyspace = installation.first, installation.stack.keyspace
    one.create("owned", transactional=False)
    cached(ask, "owned", external=True)
    one.give("SELECT", "ada", 1, one.metastore.object_ref(3, "d", "owned"))
    with installation.stack.client() as client:
        session = client.session()
        assert session.get_table("d", "owned", catalog=keyspace).served_from == "cache"
        before = session.vector
        for front in (session, installation.other_front.session(session.token)):
            found = front.get_privileges("ada", db="d", table="owned", catalog=keyspace)
            assert [each.privilege for each in found.privileges] == ["SELECT"]
            assert (found.served_from, found.freshness) == ("source", "eventual")
        one.create("owned_not", transactional=False)
        allowed = session.get_privilege_set("ada", db="d", table="owned", catalog=keyspace).privileges
        assert [each.privilege for each in allowed] == ["SELECT"]
        assert session.vector == before
        assert session.get_table("d", "owned", catalog=keyspace, max_wait_ms=0).served_from == "cache"


def test_a_transaction_of_the_client(installation: Installation, session: Session) -> None:
    """What Hive's own client would do: one fetch past the cache, lists and ids with each read, own writes at once.

    Its second write goes through the other metastore, with the same write id.
    """
    one, two, catalog = installation.first, installation.second, installation.stack.keyspace
    table_id = one.create("mine", v="0")
    one.create("outside_too", transactional=False)
    txn = one.open()
    begun = session.begin(["d.mine", "d.outside_too"], txn, catalog=catalog)
    found = until(
        lambda: begun.get_table("d", "mine", max_wait_ms=0), lambda each: each.served_from == "cache", "the table"
    )
    assert (found.table_id, parameter(found), found.freshness) == (table_id, "0", "fresh")
    allocated: list[int] = []

    def allocate(_: int, __: str, table: str) -> int:
        allocated.append(one.allocate(table, txn))
        return allocated[-1]

    for metastore, version in ((one, "1"), (two, "2")):
        metastore.alter("mine", begun.advance("d", "mine", allocate), v=version)
        own = begun.get_table("d", "mine", max_wait_ms=0)
        assert (own.served_from, parameter(own)) == ("source", version), "it reads its own writes"
    assert allocated == [1]
    for version in ("1", "2"):
        assert begun.advance("d", "outside_too", allocate) == 0
        one.alter("outside_too", v=version)
        found = begun.get_table("d", "outside_too", max_wait_ms=0)
        assert (parameter(found), found.freshness) == (version, "fresh"), "without a list too"
    assert allocated == [1]
    assert session.begin([], txn, catalog=catalog).listed("d", "mine").write_ids == begun.listed("d", "mine").write_ids
    one.commit(txn)
    after = session.begin(["d.mine"], catalog=catalog)
    assert parameter(after.get_table("d", "mine", max_wait_ms=0)) == "2"
    until(lambda: after.get_table("d", "mine", max_wait_ms=0), lambda each: each.served_from == "cache", "the COMMIT")
    assert begun.listed("d", "mine").table_id == table_id
    with pytest.raises(NotFoundError):
        begun.get_table("d", "nowhere")


def test_a_transaction_reads_as_of_its_beginning(installation: Installation, session: Session) -> None:
    """What others commit after it began is not demanded of any of its reads, also of tables that it names later."""
    one, catalog = installation.first, installation.stack.keyspace
    for table in ("named", "unnamed"):
        one.create(table)
    begun = session.begin(["d.named"], one.open(), catalog=catalog)
    for table in ("named", "unnamed"):
        one.write(table, v="later")
        listed = begun.listed("d", table).write_ids
        assert listed is not None
        assert not listed.is_valid(1)
        found = session.begin([f"d.{table}"], catalog=catalog).listed("d", table).write_ids
        assert found is not None
        assert found.is_valid(1)


def test_an_asynchronous_transaction(installation: Installation) -> None:
    """The same calls, awaited."""
    one, catalog = installation.first, installation.stack.keyspace
    one.create("awaited", v="0")
    txn = one.open()

    async def allocate(_: int, __: str, table: str) -> int:
        return one.allocate(table, txn)

    async def work() -> None:
        async with AsyncClient(installation.stack.url) as client:
            begun = await client.session().begin(["d.awaited"], txn, catalog=catalog)
            one.alter("awaited", await begun.advance("d", "awaited", allocate), v="1")
            assert parameter(await begun.get_table("d", "awaited", max_wait_ms=0)) == "1"

    asyncio.run(work())
    one.commit(txn)


def test_lists_of_many_tables(installation: Installation, session: Session) -> None:
    """They are asked for with a body, and the answer is the same."""
    installation.first.create("of_many")
    names = ["d.of_many", *(f"d.{'t' * 60}{each}" for each in range(999))]
    many = session.begin(names, catalog=installation.stack.keyspace)
    one = session.begin(names[:1], catalog=installation.stack.keyspace)
    assert many.listed("d", "of_many") == one.listed("d", "of_many")
    with pytest.raises(NotFoundError):
        many.listed("d", "t" * 60 + "0")


def test_lists_that_cannot_be_given(installation: Installation) -> None:
    """What is no table's name, no list or no catalog is refused, and said."""
    stack = installation.stack
    refused: list[tuple[dict[str, str], int, str]] = [
        ({"tables": '["nodot"]'}, 400, "bad_parameter"),
        ({"tables": "d.t"}, 400, "bad_parameter"),
        ({"tables": "[]", "txns": "x:y"}, 400, "bad_parameter"),
        ({"tables": "[]", "txn": "-1"}, 400, "bad_parameter"),
        ({"tables": "[]", "catalog": "nope"}, 404, "unknown_keyspace"),
    ]
    for params, status, code in refused:
        response = stack.get("/v1/lists", **({"catalog": stack.keyspace} | params))
        assert (response.status_code, response.json()["code"]) == (status, code), params


def test_constraints_and_statistics_are_cached(installation: Installation, session: Session) -> None:
    """They come from the source until they are published; then from the cache, and say whether they hold."""
    catalog = installation.first
    table_id = catalog.create("analyzed")
    txn = catalog.open()
    write_id = catalog.allocate("analyzed", txn)
    catalog.set_statistics("analyzed", 3, write_id=write_id)
    catalog.add_primary_key("analyzed", "pk_analyzed")
    catalog.commit(txn)
    listed = catalog.valid_write_ids("analyzed")

    def read(call: Callable[..., Any], **wanted: Any) -> Any:
        return call("d", "analyzed", listed, table_id, catalog=installation.stack.keyspace, max_wait_ms=0, **wanted)

    at_once = [read(session.get_statistics), read(session.get_constraints)]

    def from_cache() -> list[Any]:
        found = [read(session.get_statistics), read(session.get_constraints)]
        return found if all(each.served_from == "cache" for each in found) else []

    cached_ones = eventually(from_cache, what="statistics and constraints in the cache")
    assert [each.objects for each in cached_ones] == [each.objects for each in at_once]
    assert cached_ones[0].stats_compliant == at_once[0].stats_compliant
    assert cached_ones[0].objects[0]["statsObj"][0]["statsData"]["longStats"]["numNulls"] == 3
    assert cached_ones[1].objects[0]["primaryKeys"][0]["pk_name"] == "pk_analyzed"


def test_statistics_of_all_partitions_together_are_cached(installation: Installation, session: Session) -> None:
    """They follow each change of a partition, and say as the source does whether they hold for the list."""
    catalog, keyspace = installation.first, installation.stack.keyspace
    table_id = catalog.create("together", partitioned=True)

    def read() -> Objects:
        listed = catalog.valid_write_ids("together")
        return session.get_statistics(
            "d", "together", listed, table_id, aggregate=True, catalog=keyspace, max_wait_ms=0
        )

    def nulls(found: Objects) -> int:
        [shown] = found.objects
        assert shown is not None
        counts: list[int] = [each["statsData"]["longStats"]["numNulls"] for each in shown["colStats"]]
        return sum(counts)

    expected = 0
    for number, value in enumerate(("x", "y"), 1):
        txn = catalog.open()
        write_id = catalog.allocate("together", txn)
        catalog.add_partitions("together", value)
        catalog.set_statistics("together", number, value, write_id=write_id)
        catalog.commit(txn)
        expected += number
        at_once = read()
        [found] = eventually(lambda: [seen] if (seen := read()).served_from == "cache" else [], what="statistics")
        assert (nulls(at_once), nulls(found)) == (expected, expected)
        assert found.stats_compliant is not None
        assert len(found.stats_compliant) == 1
        assert found.stats_compliant == at_once.stats_compliant


STRANGE = ["a.b", "a:b", "a b", "q'x", 'q"x', "x%y", "a$b#c", "a?b&c", "a+b", "UPPER"]
VALUES = ["a'b", 'c"d', "\u00e9", "x=y/z", "a b", "%41", ".", "1,2"]
"""Hive takes no letters beyond ASCII in the name of a table; in values it takes what its database's Latin-1 has."""


def test_strange_names(installation: Installation, session: Session, ask: Callable[..., Table]) -> None:
    """Names with dots, quotes and blanks, and values with Unicode, name the same thing in a path, a key and a call."""
    one, keyspace = installation.first, installation.stack.keyspace
    for name in STRANGE:
        one.create(name, transactional=False, v=name)
    for name in STRANGE:
        found = cached(ask, name, external=True)
        assert (parameter(found), found.table_id) == (name, one.table_id(name))
        one.alter(name, v="2")
        until(lambda name=name: ask(name, external=True), lambda each: parameter(each) == "2", name)  # type: ignore[misc]
    table_id = one.create("q'x\" y", partitioned=True)
    one.add_partitions("q'x\" y", *VALUES)
    assert one.write("q'x\" y", v="1") == 1
    assert parameter(cached(ask, "q'x\" y")) == "1"
    listed = one.valid_write_ids("q'x\" y")

    def read(**more: Any) -> Any:
        return session.get_partitions("d", "q'x\" y", listed, table_id, catalog=keyspace, max_wait_ms=0, **more)

    eventually(lambda: read().served_from == "cache", what="the partitions")
    assert sorted(read().names) == sorted([each] for each in VALUES)
    for value in VALUES:
        found = read(names=[(value,)])
        assert (found.names, found.served_from) == ([[value]], "cache")
    assert read(filter='p = "a\'b"').names == [["a'b"]]


def test_names_that_hive_itself_mistakes(installation: Installation, session: Session) -> None:
    """Hive gives another table's list for a name with a dot, so such a transactional table is refused, never stale.

    And ``a.b.t`` is ``t`` of the database ``a.b`` as well as ``b.t`` of ``a``: the former is not served.
    """
    one, keyspace = installation.first, installation.stack.keyspace
    for name in ("mis.taken", "mis:taken"):
        table_id = one.create(name)
        one.write(name, v="1")
        for _ in range(2):
            with pytest.raises(FreshetError) as refused:
                session.get_table("d", name, "[1:]", table_id, catalog=keyspace)
            assert refused.value.code == "source_failed"
            assert "a dot or a colon" in str(refused.value)
    with HiveCatalog(one.address, "a") as plain, HiveCatalog(one.address, "a.b") as dotted:
        shown = plain.create("b.t", transactional=False, v="of a")

        def read() -> Table:
            return session.get_table("a", "b.t", catalog=keyspace, max_wait_ms=0)

        assert until(read, lambda each: each.served_from == "cache", "a.b.t").table_id == shown
        dotted.create("t", transactional=False, v="of a.b")
        dotted.alter("t", v="2")
        dotted.drop("t")
        last = one.create("after_dots", transactional=False)
        assert cached_of(session, installation, "after_dots").table_id == last
        found = until(read, lambda each: each.served_from == "cache", "a.b.t")
        assert (found.table_id, parameter(found)) == (shown, "of a")
        with pytest.raises(BadRequest, match="has a dot"):
            session.get_table("a.b", "t", catalog=keyspace)


def cached_of(session: Session, installation: Installation, table: str) -> Table:
    """An external table of ``d``, as soon as the source has read the log up to its making."""

    def read() -> Table:
        return session.get_table("d", table, catalog=installation.stack.keyspace, max_wait_ms=0)

    return until(read, lambda found: found.served_from == "cache", table)


def test_abort(installation: Installation, ask: Callable[..., Table]) -> None:
    """The design forgets ABORT: without it, the first write message would make the entry unusable for good.

    The metastore does not undo the alter, so it stays visible.
    """
    catalog = installation.first
    catalog.create("aborted")
    cached(ask, "aborted")
    txn = catalog.open()
    write_id = catalog.allocate("aborted", txn)
    catalog.alter("aborted", write_id, v="of an aborted transaction")
    catalog.abort(txn)
    found = until(
        lambda: cached(ask, "aborted"),
        lambda found: parameter(found) == "of an aborted transaction",
        "the alter, which the reader's list does not demand",
    )
    assert found.freshness == "fresh"


def test_a_killed_source_goes_on_where_it_was(installation: Installation, ask: Callable[..., Table]) -> None:
    """After kill -9 amid an open transaction the source continues its epoch, and the COMMIT finds its table."""
    catalog, stack = installation.first, installation.stack
    catalog.create("crash")
    cached(ask, "crash")
    txn = catalog.open()
    write_id = catalog.allocate("crash", txn)
    catalog.alter("crash", write_id, v="before the kill")
    stack.kill("source")
    epochs = stack.log_of("source").count("history lost")
    catalog.alter("crash", write_id, v="after the kill")
    catalog.commit(txn)
    catalog.create("meanwhile")
    stack.start("source")
    assert parameter(cached(ask, "crash")) == "after the kill"
    cached(ask, "meanwhile")
    assert stack.log_of("source").count("history lost") == epochs


def test_the_cache_answers_while_the_metastore_is_down(
    kafka: KafkaCluster, new_hive: Callable[..., HiveServer], tmp_path: Path
) -> None:
    """What is fresh is served, the rest is 503 at once; once the metastore is back, everything is served again."""
    server = new_hive()
    address = (server.host, server.port)
    settings = {"uris": [f"thrift://{server.host}:{server.port}"], "catalog": "hive", "reconcile_every_s": 1}
    name = f"hive{uuid.uuid4().hex[:10]}"
    with (
        HiveCatalog(address, "d") as catalog,
        ServingStack(tmp_path, kafka, None, name, "", kind="hive", source=settings) as stack,
        stack.client() as client,
    ):
        table_id = catalog.create("t")
        catalog.write("t", v="1")
        listed = catalog.valid_write_ids("t")

        def read(hwm_list: str) -> Table:
            return client.session().get_table("d", "t", hwm_list, table_id, catalog=name, max_wait_ms=0)

        eventually(lambda: read(listed).served_from == "cache", what="the cache")
        server.kill()
        assert read(listed).served_from == "cache"
        response = stack.get(
            "/v1/tables/d/t",
            catalog=name,
            valid_write_ids=list_of(2, table="t"),
            table_id=str(table_id),
            max_wait_ms="0",
        )
        assert (response.status_code, response.json()["code"]) == (503, "source_unreachable")
        stack.stop("serve")
        stack.config.write_text(stack.config.read_text().replace("[serve]", "[serve]\nserve_stale_if_down = true"))
        stack.start("serve")
        stack.wait_ready()
        stale = read(list_of(2, table="t"))
        assert (stale.served_from, stale.freshness, parameter(stale)) == ("cache", "stale", "1")
        server.restart()
        catalog.write("t", v="2")
        found = until(
            lambda: read(catalog.valid_write_ids("t")),
            lambda seen: (seen.served_from, seen.freshness) == ("cache", "fresh"),
            "the cache after the outage",
        )
        assert parameter(found) == "2"
