"""A catalog transaction: what an engine does around its reads and writes of a metastore, as Hive's own client should.

It fetches once, past the cache, the list of transactions, and the write-id lists and ids of its tables. They go with
every read. A table that it had not named is listed as of the same list of transactions. Each write has a write id of
its table, at most one for each table and transaction; what was written counts as committed for its own reads. A table
without a list has no write ids: once it may have been written, its reads demand all that the metastore has logged.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ._tokens import ValidWriteIdList
from .answers import ListsAnswer, Objects, Table
from .errors import BadRequest, NotFoundError
from .sending.running import awaiting, blocking
from .session import Plan, SessionState


class Listed(NamedTuple):
    """A table as the transaction finds it. ``write_ids`` None: it is not transactional."""

    table_id: int
    write_ids: ValidWriteIdList | None


class TransactionState:
    """What a transaction has fetched and written, and the plans of its reads. Threads and tasks may share it."""

    def __init__(
        self, session: SessionState, run: Callable[[Plan[Any]], Any], txn: int, catalog: str, lists: ListsAnswer
    ) -> None:
        """``run``: runs a plan as the session does, or gives what is awaited for that."""
        self.session = session
        self._run = run
        self.txn = txn
        """Its number at the metastore; 0: it only reads."""
        self.catalog = catalog
        self.txns = lists.txns
        """The list of transactions, as Hive writes a ``ValidTxnList``."""
        self._lock = threading.Lock()
        self._listed: dict[str, Listed] = {}
        self._own: dict[str, int] = {}
        self._outside: set[str] = set()
        """Tables without a list that it writes."""
        self._turns: dict[str, Any] = {}
        self._add(lists)

    def _add(self, lists: ListsAnswer) -> None:
        with self._lock:
            for each in lists.tables:
                ids = ValidWriteIdList.parse(each.write_ids) if each.write_ids is not None else None
                self._listed.setdefault(each.name, Listed(each.table_id, ids))

    def write_id(self, db: str, table: str) -> int:
        """The write id that the transaction has of a table; 0: none yet."""
        with self._lock:
            return self._own.get(name_of(db, table), 0)

    def wrote(self, db: str, table: str, write_id: int) -> int:
        """Counts ``write_id`` as committed for the transaction's reads; returns the one that it has of the table.

        The first one stays: a transaction has one for each table.
        """
        if write_id < 1:
            raise BadRequest(
                f"{write_id} is no write id", hint="pass what the metastore allocated", code="bad_write_ids"
            )
        with self._lock:
            return self._own.setdefault(name_of(db, table), write_id)

    def _turn(self, db: str, table: str, new: Callable[[], Any]) -> Any:
        """The table's lock, of those who advance it."""
        with self._lock:
            return self._turns.setdefault(name_of(db, table), new())

    def _plan_has_ids(self, db: str, table: str) -> Plan[bool]:
        """Whether a write of the table needs a write id; if not, its own reads see it from here on."""
        found = yield from self._plan_found(name_of(db, table))
        has_ids = found.write_ids is not None or not found.table_id  # it may make one that is not there
        if not has_ids:
            with self._lock:
                self._outside.add(name_of(db, table))
        return has_ids

    def _plan_found(self, name: str) -> Plan[Listed]:
        with self._lock:
            found = self._listed.get(name)
        if found is None:
            self._add((yield from self.session.plan_lists([name], self.txn, self.txns, catalog=self.catalog)))
            with self._lock:
                found = self._listed[name]
        return found

    def plan_listed(self, db: str, table: str) -> Plan[Listed]:
        """The list and the id of a table, its own write included. Raises `NotFoundError` ``unknown_table``."""
        name = name_of(db, table)
        found = yield from self._plan_found(name)
        own = self.write_id(db, table)
        if not found.table_id:
            why = f"catalog {self.catalog} has no table {name} as of the transaction's beginning"
            raise NotFoundError(why, hint="begin another transaction", code="unknown_table")
        return found._replace(write_ids=with_own(found.write_ids, own)) if found.write_ids and own else found

    def _plan_demand(self, db: str, table: str) -> Plan[Mapping[str, Any]]:
        found = yield from self.plan_listed(db, table)
        if name_of(db, table) in self._outside:
            yield from self.session.plan_lists([], self.txn, self.txns, catalog=self.catalog, adopt=True)
        listed = str(found.write_ids) if found.write_ids is not None else None
        return {"valid_write_ids": listed, "table_id": found.table_id, "catalog": self.catalog}

    def plan_table(
        self, db: str, table: str, *, max_wait_ms: int | None = None, max_staleness_ms: int | None = None
    ) -> Plan[Table]:
        """A table, as `Session.get_table`."""
        demand = yield from self._plan_demand(db, table)
        bounds: dict[str, Any] = {"max_wait_ms": max_wait_ms, "max_staleness_ms": max_staleness_ms}
        return (yield from self.session.plan_table(db, table, **demand, **bounds))

    def plan_partitions(
        self,
        db: str,
        table: str,
        *,
        filter: str = "",
        names: Sequence[Sequence[str]] = (),
        values: Sequence[str] = (),
        names_only: bool = False,
        count: bool = False,
        limit: int = 0,
        page: str = "",
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Objects]:
        """A table's partitions, as `Session.get_partitions`."""
        wanted: dict[str, Any] = {"filter": filter, "names": names, "values": values, "names_only": names_only}
        wanted |= {"count": count, "limit": limit, "page": page, "max_wait_ms": max_wait_ms}
        wanted["max_staleness_ms"] = max_staleness_ms
        demand = yield from self._plan_demand(db, table)
        return (yield from self.session.plan_partitions(db, table, **demand, **wanted))

    def plan_statistics(
        self,
        db: str,
        table: str,
        *,
        partition: Sequence[str] = (),
        aggregate: bool = False,
        max_wait_ms: int | None = None,
        max_staleness_ms: int | None = None,
    ) -> Plan[Objects]:
        """Column statistics, as `Session.get_statistics`."""
        demand = yield from self._plan_demand(db, table)
        wanted: dict[str, Any] = {"partition": partition, "aggregate": aggregate, "max_wait_ms": max_wait_ms}
        wanted["max_staleness_ms"] = max_staleness_ms
        return (yield from self.session.plan_statistics(db, table, **demand, **wanted))

    def plan_constraints(
        self, db: str, table: str, *, max_wait_ms: int | None = None, max_staleness_ms: int | None = None
    ) -> Plan[Objects]:
        """A table's constraints, as `Session.get_constraints`."""
        demand = yield from self._plan_demand(db, table)
        bounds: dict[str, Any] = {"max_wait_ms": max_wait_ms, "max_staleness_ms": max_staleness_ms}
        return (yield from self.session.plan_constraints(db, table, **demand, **bounds))


def name_of(db: str, table: str) -> str:
    """``db.table`` in lower case, as Hive keeps names."""
    return f"{db}.{table}".lower()


def with_own(listed: ValidWriteIdList, own: int) -> ValidWriteIdList:
    """The list for the reader that holds ``own``: that counts as committed, and what is between is open."""
    opened = [*listed.open_ids, *range(listed.hwm + 1, own)]
    kept = [each for each in opened if each != own]
    aborted = [each for each in listed.aborted_ids if each != own]
    return ValidWriteIdList(listed.table, max(listed.hwm, own), kept, aborted)


class CatalogTransaction(TransactionState):
    """A transaction of a `Session`: `Session.begin`. Its reads raise `ClientError`."""

    listed = blocking(TransactionState.plan_listed)
    get_table = blocking(TransactionState.plan_table)
    get_partitions = blocking(TransactionState.plan_partitions)
    get_statistics = blocking(TransactionState.plan_statistics)
    get_constraints = blocking(TransactionState.plan_constraints)

    def advance(self, db: str, table: str, allocate: Callable[[int, str, str], int]) -> int:
        """The write id for a write of a table. ``allocate``: asks the metastore for one; called once a table.

        It is given the transaction's number, the database and the table. 0: the table is external, and has none.
        """
        with self._turn(db, table, threading.Lock):
            own = self.write_id(db, table)
            if own or not self._run(self._plan_has_ids(db, table)):
                return own
            return self.wrote(db, table, allocate(self.txn, db, table))


class AsyncCatalogTransaction(TransactionState):
    """`CatalogTransaction` for asyncio."""

    listed = awaiting(TransactionState.plan_listed)
    get_table = awaiting(TransactionState.plan_table)
    get_partitions = awaiting(TransactionState.plan_partitions)
    get_statistics = awaiting(TransactionState.plan_statistics)
    get_constraints = awaiting(TransactionState.plan_constraints)

    async def advance(self, db: str, table: str, allocate: Callable[[int, str, str], Awaitable[int]]) -> int:
        """As `CatalogTransaction.advance`."""
        async with self._turn(db, table, asyncio.Lock):
            own = self.write_id(db, table)
            if own or not await self._run(self._plan_has_ids(db, table)):
                return own
            return self.wrote(db, table, await allocate(self.txn, db, table))
