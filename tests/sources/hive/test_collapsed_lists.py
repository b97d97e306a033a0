"""Lists of which the server tells the lowest exception alone, because none of the ids that it has left is committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from stream.sources.hive.live.metastore import Metastore, ServerList, Transactions, _by_bits
from stream.sources.hive.rpc.connection import MetastoreConnection
from stream.sources.hive.rpc.thrift import text
from stream.sources.hive.structs import LIST, STRUCT, ListValue
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


def test_the_bits_of_a_list_say_which_ids_are_aborted() -> None:
    """The first id has the lowest bit of the first byte, as Java writes a ``BitSet``. Bits that are not there are 0."""
    ids = [*range(1, 18)]
    assert _by_bits(ids, "\x02\x01")[1] == [2, 9]
    assert _by_bits(ids, b"\x80".decode("utf-8", "surrogateescape"))[1] == [8]
    assert _by_bits(ids, "") == (ids, [])


@pytest.mark.parametrize(("catalog", "is_listed"), [("", True), ("hive", True), ("other", False)])
def test_functions_are_those_of_the_catalog(catalog: str, is_listed: bool) -> None:
    """Older metastores do not name it: all that they have are of the one that there is."""
    function = {1: text("F"), 2: text("D")} | ({9: text(catalog)} if catalog else {})
    metastore = Metastore(SETTINGS)
    answer = {1: (LIST, ListValue(STRUCT, [function]))}
    metastore._connection = cast("MetastoreConnection", Answering(answer))
    assert [name for name, _ in metastore.functions()] == [("d", "f")] * is_listed


@pytest.mark.parametrize(("db", "names"), [("d", ["d.t"]), ("d.e", [])])
def test_a_database_with_a_dot_has_no_tables_to_tell_of(db: str, names: list[str]) -> None:
    """Their names would be those of others."""
    metastore = Metastore(SETTINGS)
    metastore._connection = cast("MetastoreConnection", Answering(["t"]))
    assert metastore.table_names(db) == names
