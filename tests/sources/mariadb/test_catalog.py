"""Which schema counts at which position, in random histories of DDL and of questions to the server."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import example, given
from hypothesis import strategies as st

from stream.sources.mariadb.binlog.catalog import Catalog
from stream.sources.mariadb.gtid import GtidPosition
from stream.sources.mariadb.schema import ColumnInfo, TableInfo
from stream.wire.events import Column, DescribeTable

TABLES = ("d.a", "d.b")


def version(name: str, number: int) -> TableInfo | None:
    """A table's schema after so many DDLs; every fourth drops the table."""
    if number % 4 == 3:
        return None
    columns = (ColumnInfo("id", "int", True), ColumnInfo(f"v{number % 3}", "int", True))
    return TableInfo("d", name.partition(".")[2], columns, ("id",))


def at(index: int) -> GtidPosition:
    """The position after the transaction with this index."""
    return GtidPosition({0: (1, index)})


@dataclass
class Server:
    """A log of DDL, each of one table, and what the source has read of it."""

    log: list[str] = field(default_factory=list)
    locked: set[str] = field(default_factory=set)
    """Tables that it can't describe now."""

    def schema(self, name: str, index: int) -> TableInfo | None:
        """A table's schema after the transaction with this index."""
        return version(name, self.log[:index].count(name))

    def live(self) -> dict[str, TableInfo]:
        """The tables as the server has them now, but those that are locked."""
        now = {name: self.schema(name, len(self.log)) for name in TABLES}
        return {name: info for name, info in now.items() if info is not None and name not in self.locked}

    @property
    def end(self) -> GtidPosition:
        """The position behind its log."""
        return at(len(self.log))

    def tell(self, catalog: Catalog) -> None:
        """Have the tables read that were locked, and are free."""
        for name in set(catalog.locked) - self.locked:
            catalog.learn(name, self.live().get(name), self.end)


STEPS = st.lists(
    st.sampled_from(["", *TABLES, "read", "read", "read", "restart", "reconnect", "lock", "free", "tell"]), max_size=40
)


@given(STEPS)
@example(["d.a", "d.a", "d.a", "read", "read", "read", "restart"])
@example(["d.a", "lock", "restart", "d.a", "read", "d.a", "free", "tell", "read"])
def test_a_schema_that_counts_is_that_of_the_position(steps: list[str]) -> None:
    """At any lag, and over restarts: what is known is true at the position, and all is known at the log's end."""
    server, catalog, read = Server(), Catalog(), 0
    catalog.resume(server.live(), at(0))
    catalog.settle(at(0), frozenset)
    for step in [*steps, *["read"] * len(steps), "read"]:
        if step in ("", *TABLES):
            server.log.append(step)
        elif step == "read" and read < len(server.log):
            name = server.log[read]
            read += 1
            if name:
                catalog.doubt(name, server.live().get(name), None if name in server.locked else server.end)
            catalog.settle(at(read), frozenset)
        elif step in ("lock", "free"):
            server.locked = {"d.a"} if step == "lock" else set()
        elif step == "tell":
            server.tell(catalog)
        elif step == "reconnect":
            catalog.resume(server.live(), server.end, server.locked)
        elif step == "restart":
            said = {name: catalog.description(name) for name in catalog.names}
            catalog = Catalog()
            catalog.describe_as(said)
            catalog.resume(server.live(), server.end, server.locked)
        for name in TABLES:
            known = catalog.get(name)
            true = server.schema(name, read)
            assert known is None or not known.cacheable or (true is not None and known.columns == true.columns)
    server.locked = set()
    server.tell(catalog)
    catalog.settle(at(read), frozenset)  # a heartbeat: nothing was logged after the last restart
    assert catalog.is_settled
    assert {name for name in TABLES if catalog.get(name) is not None} == server.live().keys()


def test_types_that_were_not_told_are_told_and_void_nothing() -> None:
    """A version that did not tell SQL types has described the table: its rows stay, and their types are told once."""
    columns = (ColumnInfo("id", "int", True, sql_type="bigint(20) unsigned"),)
    live = {"d.a": TableInfo("d", "a", columns, ("id",))}
    catalog = Catalog()
    catalog.describe_as({"d.a": DescribeTable("d.a", (Column("id", "int", True),), ("id",))})
    catalog.resume(live, at(3))
    assert catalog.get("d.a") is live["d.a"]
    assert catalog.settle(at(2), frozenset) == {}, "the backlog may have a DDL of it"
    assert catalog.settle(at(3), frozenset) == {"d.a": False}
    assert catalog.description("d.a").sql_types == ("bigint(20) unsigned",)
    catalog.resume(live, at(4))
    assert catalog.is_settled


def test_a_table_is_read_through_until_all_its_xa_transactions_are_visible() -> None:
    """Each of them may still change the row that a read sees. Neither DDL nor a new session ends the wait."""
    one, two = (1, b"one", b""), (1, b"two", b"")
    server, catalog = Server(), Catalog()
    catalog.resume(server.live(), at(0))
    catalog.settle(at(0), frozenset)
    catalog.hold(["d.a"], one)
    catalog.hold(["d.a"], two)
    assert (catalog.get("d.a"), catalog.get("d.b") is None, catalog.description("d.a").cacheable) == (
        None,
        False,
        False,
    )
    assert catalog.settle(at(1), lambda: frozenset({one})) == {}
    catalog.doubt("d.a", server.live()["d.a"], at(1))
    assert catalog.settle(at(1), lambda: frozenset({one})) == {}
    catalog.resume(server.live(), at(1))
    assert catalog.settle(at(1), lambda: frozenset({two})) == {}
    assert catalog.get("d.a") is None
    assert catalog.settle(at(1), frozenset) == {"d.a": True}
    assert catalog.get("d.a") is not None
    assert catalog.description("d.a").cacheable
