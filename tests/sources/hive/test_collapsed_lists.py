"""Lists of which the server tells the lowest exception alone, because none of the ids that it has left is committed."""

from __future__ import annotations

from collections.abc import Sequence

from stream.sources.hive.live.metastore import Metastore, ServerList, Transactions
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
