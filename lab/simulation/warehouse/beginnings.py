"""Judges what a transaction fetches when it begins: its list of transactions, and its tables' write-id lists and ids.

It calls nothing of the product. The metastore is always asked, so all of it is of states from the request on: the list
of transactions of one, each table's list of one not before, and its id of one not before that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from lab.simulation.hive.judging import read_list
from lab.simulation.warehouse.judging import COVERED, MONOTONIC, STALE, UNCOMMITTED, Answer, Asked, CatalogJudge
from lab.simulation.warehouse.metastore import State, TableTruth
from lab.simulation.whole_processes.words import EXPLAINS, NO_EPOCH


class ListedTable(NamedTuple):
    """A table as the answer has it. ``table_id`` 0: there is none; ``write_ids`` None: it is not transactional."""

    name: str
    table_id: int
    write_ids: str | None


class Begun(NamedTuple):
    """What was asked for, by the transaction ``own`` (0: by none) that has the list ``given`` already; and the answer.

    ``adopt``: the session's reads are from here on at least as new.
    """

    own: int
    given: str
    adopt: bool
    txns: str
    tables: Sequence[ListedTable]
    served_from: str
    freshness: str
    why: str


class TransactionJudge(CatalogJudge):
    """A judge of a catalog's answers, and of its transactions."""

    def began(self, session: str, asked: Asked, ended: float, begun: Begun) -> None:
        """A transaction has its lists."""
        what = f"{begun.tables} as of {begun.txns} for transaction {begun.own}"
        answer = Answer(what, lambda _: True, begun.served_from, begun.freshness, begun.why)
        self._check_explanation(session, answer, self._owed(session, asked), None)
        if begun.served_from != "source":
            self._complain(EXPLAINS, f"session {session}: {what} is said to come from the {begun.served_from}")
        states = [state for _, state in self._states(asked.state, ended)]
        if begun.given:
            was_so = begun.given == begun.txns
        else:
            was_so = any(_transactions(state, begun.own) == read_list(begun.txns) for state in states)
        if not was_so:
            self._complain(STALE, f"session {session}: {what}: no list of transactions was so since it was asked for")
        for table in begun.tables:
            self._check_table(session, table, begun.txns, states)
        if begun.adopt and NO_EPOCH not in begun.why:
            self._events[session].append((MONOTONIC, asked.state))

    def _check_table(self, session: str, table: ListedTable, txns: str, states: Sequence[State]) -> None:
        what = f"session {session}: {table} as of {txns}"
        numbers = range(len(states))
        listed = next((at for at in numbers if not list(wrong_ids(table, txns, states[at]))), None)
        if listed is None:
            wrong = next(wrong_ids(table, txns, states[-1]))
            self._complain(UNCOMMITTED if wrong.is_valid else COVERED, f"{what}: {wrong}")
        elif not any(_has_id(table, states[at].tables.get(table.name)) for at in numbers[listed:]):
            self._complain(STALE, f"{what}: no table was so since it was asked for: {states[-1].tables}")

    def has_advanced(self, session: str, name: str, write_id: int, given: int) -> None:
        """The session is told that its transaction has ``write_id`` of a table; the metastore gave it ``given``."""
        if write_id != given:
            self._complain(COVERED, f"session {session}: it is told {write_id} for its write of {name}, not {given}")

    def has_written(self, session: str, table: ListedTable, txns: str, own: int, given: int) -> None:
        """The metastore has given the transaction ``own`` this id of a table (0: none yet): its list must say so.

        It need not count ids that no transaction has. The table may have got them since the list was fetched, and the
        list of transactions does not tell when. `began` has judged it by the states in which it was fetched.
        """
        state = self._warehouse.states[-1]
        now = state.tables.get(table.name)
        if table.write_ids is None or now is None or now.table_id != table.table_id:
            return
        for wrong in wrong_ids(table, txns, state):
            is_seeded = not wrong.txn and not wrong.is_valid
            if not is_seeded and (wrong.txn != own or wrong.write_id == given):
                self._complain(UNCOMMITTED if wrong.is_valid else COVERED, f"session {session}: its {table}: {wrong}")
                return


class WrongId(NamedTuple):
    """A write id that a list counts as valid and should not, or the other way round. ``txn`` 0: nobody has it."""

    write_id: int
    txn: int
    is_valid: bool


def wrong_ids(table: ListedTable, txns: str, state: State) -> Iterator[WrongId]:
    """The ids of which a table's list says something else than its reader's list of transactions."""
    if table.write_ids is None:
        return
    seen_to, unseen, _ = read_list(txns)
    hwm, exceptions, _ = read_list(table.write_ids)
    ids = [(write_id, txn) for name, txn, write_id in state.write_ids if name == table.name]
    for write_id, txn in ids:
        is_valid = write_id <= hwm and write_id not in exceptions
        if is_valid != (txn <= seen_to and txn not in unseen):
            yield WrongId(write_id, txn, is_valid)
    last = state.next_ids.get(table.name, 1) - 1
    if hwm > last:
        yield WrongId(hwm, 0, is_valid=True)
    if not ids and hwm < last:
        yield WrongId(last, 0, is_valid=False)


def _transactions(state: State, own: int) -> tuple[int, set[int], set[int]]:
    """High-water mark, exceptions and the aborted ones of them, as a reader gets them in a state."""
    hwm = own or max(state.txns, default=0)
    unseen = {txn for txn, how in state.txns.items() if how != "committed" and txn <= hwm and txn != own}
    return hwm, unseen, {txn for txn in unseen if state.txns[txn] == "aborted"}


def _has_id(table: ListedTable, truth: TableTruth | None) -> bool:
    if truth is None:
        return not table.table_id
    return table.table_id == truth.table_id and (table.write_ids is None) == (truth.kind == "external")
