"""Lists of which the server tells the lowest exception alone, because none of the ids that it has left is committed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from stream.sources.hive.live.metastore import ABORTED_MAX, Metastore, ServerList, Transactions, _by_bits
from stream.sources.hive.rpc.connection import MetastoreConnection, MetastoreRefused
from stream.sources.hive.rpc.thrift import text
from stream.sources.hive.structs import LIST, STRUCT, ListValue, Struct
from tests.sources.hive.test_wrong_answers import SETTINGS, Answering
from tokens import ValidWriteIdList

TABLE = "d.t"


class Server(Metastore):
    """Lists the ids of one table as TxnHandler.getValidWriteIdsForTable does, from ``rows``: write id → transaction."""

    def __init__(self, rows: dict[int, int]) -> None:
        self._rows = rows

    def write_ids(self, names: Sequence[str], txns: str = "", timeout_s: float = 0.0) -> dict[str, ServerList]:
        """As for a reader whose list of transactions is ``txns``."""
        assert (list(names), timeout_s) == ([TABLE], 0.0)
        reader = ValidWriteIdList.parse(f"txns:{txns}")
        exceptions = {write_id: txn for write_id, txn in self._rows.items() if not reader.is_valid(txn)}
        hwm = max(self._rows)
        if len(exceptions) == len(self._rows):
            hwm = min(exceptions)
            exceptions = {hwm: exceptions[hwm]}
        aborted = tuple(each for each, txn in exceptions.items() if txn in reader.aborted_ids)
        return {TABLE: ServerList(hwm, tuple(each for each in exceptions if each not in aborted), aborted)}


def as_it_is(server: Server, of: Transactions) -> ServerList:
    """The list that the source takes."""
    listed = server.write_ids([TABLE], of.listed)
    return (listed | server.without_collapse(listed, of))[TABLE]


def test_ids_that_the_cleaner_has_forgotten_are_not_open() -> None:
    """No event would ever end them, and no reader's list be covered."""
    server = Server({2: 1, 4: 3, 7: 5})
    found = as_it_is(server, Transactions(9, frozenset({1, 3, 5, 8}), frozenset()))
    assert found == ServerList(7, (2, 4, 7), ())


def test_ids_of_aborted_transactions_are_told_from_open_ones() -> None:
    """Those that the server still knows."""
    server = Server({2: 1, 4: 3, 7: 5})
    found = as_it_is(server, Transactions(9, frozenset({1, 5}), frozenset({3})))
    assert found == ServerList(7, (2, 7), (4,))


@pytest.mark.parametrize("first", [1, 2])
def test_ids_that_are_aborted_behind_the_first_one_are_listed(first: int) -> None:
    """Else a table that one of them has written would wait for its writer's end for good, if no event tells who it is.

    ``first``: the transaction of the first one, which is open or aborted, too.
    """
    server = Server({2: first, 4: 3, 7: 5})
    found = as_it_is(server, Transactions(9, frozenset({1, 8}), frozenset({2, 3, 5, 6})))
    assert found == (ServerList(7, (2,), (4, 7)) if first == 1 else ServerList(7, (), (2, 4, 7)))


def test_where_many_transactions_are_aborted_not_each_is_asked_for_its_ids() -> None:
    """There is a call for each of them, and the log waits for it."""
    server, aborted = Server({2: 2, 4: 3}), range(2, 3 + ABORTED_MAX)
    assert as_it_is(server, Transactions(99, frozenset(), frozenset(aborted))) == ServerList(2, (), (2,))
    assert as_it_is(server, Transactions(99, frozenset(), frozenset(aborted[:-1]))) == ServerList(4, (), (2, 4))


def test_the_bits_of_a_list_say_which_ids_are_aborted() -> None:
    """The first id has the lowest bit of the first byte, as Java writes a ``BitSet``. Bits that are not there are 0."""
    ids = [*range(1, 18)]
    assert _by_bits(ids, "\x02\x01")[1] == [2, 9]
    assert _by_bits(ids, b"\x80".decode("utf-8", "surrogateescape"))[1] == [8]
    assert _by_bits(ids, "") == (ids, [])


class Functions:
    """A connection to a metastore with functions of two catalogs, of which ``h`` goes when it is looked at."""

    def __init__(self, catalog: str, *names: str) -> None:
        self.of = {name: {1: text(name), 2: text("D"), 9: text(catalog)} for name in names}
        self.place = f"@{catalog}#"

    def call(self, name: str, arguments: Struct) -> Any:
        """As HMSHandler answers."""
        if name == "get_all_functions":
            return {1: (LIST, ListValue(STRUCT, [{1: text("F"), 2: text("D"), 9: text("hive")}]))}
        if name == "get_databases":
            return ["d", "empty"] if arguments[1] == text(self.place) else []
        if name == "get_functions":
            assert arguments[2] == text("*")
            return [*self.of] if arguments[1] == text(f"{self.place}d") else []
        assert (name, arguments[1]) == ("get_function", text(f"{self.place}d"))
        function = arguments[2][1].decode()
        if function == "h":
            raise MetastoreRefused(name, 2, "NoSuchObjectException")
        return self.of[function]


def functions_of(catalog: str, connection: object) -> list[tuple[str, ...]]:
    """The names of the functions that a metastore tells of."""
    metastore = Metastore(replace(SETTINGS, catalog=catalog))
    metastore._connection = cast("MetastoreConnection", connection)
    return [name for name, _ in metastore.functions()]


@pytest.mark.parametrize(("catalog", "is_listed"), [("", True), ("hive", True), ("other", False)])
def test_functions_are_those_of_the_catalog(catalog: str, is_listed: bool) -> None:
    """Older metastores do not name it: all that they have are of the one that there is."""
    function = {1: text("F"), 2: text("D")} | ({9: text(catalog)} if catalog else {})
    answer = {1: (LIST, ListValue(STRUCT, [function]))}
    assert functions_of("hive", Answering(answer)) == [("d", "f")] * is_listed


def test_functions_of_another_catalog_are_listed_by_database() -> None:
    """The call that tells of all functions tells of those of the catalog ``hive`` alone."""
    assert functions_of("other", Functions("other", "G", "h", "i")) == [("d", "g"), ("d", "i")]


@pytest.mark.parametrize(("db", "names"), [("d", ["d.t"]), ("d.e", [])])
def test_a_database_with_a_dot_has_no_tables_to_tell_of(db: str, names: list[str]) -> None:
    """Their names would be those of others."""
    metastore = Metastore(SETTINGS)
    metastore._connection = cast("MetastoreConnection", Answering(["t"]))
    assert metastore.table_names(db) == names
