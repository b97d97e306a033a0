"""Sessions that begin transactions, and read and write within them. What they are told is judged."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from lab.simulation.engine import Outcome
from lab.simulation.warehouse.beginnings import Begun, ListedTable
from lab.simulation.warehouse.changing import NAMES
from lab.simulation.warehouse.details import Details, analyzed, wanted
from lab.simulation.warehouse.judging import Listed
from lab.simulation.warehouse.reading import SESSIONS
from lab.simulation.warehouse.statistics import OF_TABLE
from serving.client.answers import ListsAnswer
from serving.client.client import Session
from serving.client.transactions import CatalogTransaction

WITHIN: Final = 5
"""What a transaction may do."""


@dataclass(frozen=True, slots=True)
class Begins:
    """A transaction of a session. ``own``: its number at the metastore; 0: it only reads.

    ``given``: table → the write id that the metastore gave it, once the client has it. ``outside``: external table →
    its id, and the state of its last write, which no list can name.
    """

    reader: str
    client: CatalogTransaction
    own: int
    given: dict[str, int] = field(default_factory=dict)
    outside: dict[str, tuple[int, int]] = field(default_factory=dict)


class Transacting(Details):
    """The ops of transactions."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._begun: dict[int, Begins] = {}

    def new_session(self, token: str = "") -> tuple[str, Session]:
        """See `Reading.new_session`. All lists that the session gets are judged."""
        name, client = super().new_session(token)
        vars(client)["plan_lists"] = self._judged(name, client.plan_lists)
        return name, client

    def _judged(self, reader: str, plan: Callable[..., Any]) -> Callable[..., Any]:
        def plan_lists(
            tables: list[str], txn: int = 0, txns: str = "", *, adopt: bool = False, **options: Any
        ) -> Generator[Any, Any, ListsAnswer]:
            asked = self.judge.asked(reader, self.kernel.now)
            found: ListsAnswer = yield from plan(tables, txn, txns, adopt=adopt, **options)
            listed = [ListedTable(each.name, each.table_id, each.write_ids) for each in found.tables]
            self.outcome.answers["lists"] += 1
            self.say(f"session {reader}: transaction {txn}: {listed} as of {found.txns}: {found.why}")
            begun = Begun(txn, txns, adopt, found.txns, listed, found.served_from, found.freshness, found.why)
            self.judge.began(reader, asked, self.kernel.now, begun)
            return found

        return plan_lists

    def op_begin(self, session: int, name: int, other: int, txn: int, how: int, patience: int) -> None:
        """A session begins a transaction: over two tables, one or none, which may be one that writes."""
        number, own = session % SESSIONS, self.txn(txn)
        reader, client = self.session(number)
        tables = list(dict.fromkeys((NAMES[name % len(NAMES)], NAMES[other % len(NAMES)])))[: how % 3]

        def work() -> None:
            begun = self.ask(reader, "lists", lambda: client.begin(tables, own, adopt=how % 2 > 0))
            if begun is not None:
                self._begun[number] = Begins(reader, begun[1], own)

        self.do(work, patience)

    def op_within(self, session: int, name: int, what: int, way: int, more: int, patience: int) -> None:
        """A transaction reads a table, or what belongs to it; or writes it, and then reads."""
        begun = self._begun.get(session % SESSIONS)
        if begun is None or (begun.own and begun.own not in self.opened()):
            return
        table = NAMES[name % len(NAMES)]
        if what % WITHIN == 0 and begun.own:
            self._write(begun, table)

        def work() -> None:
            found, listed = self._listed(begun, table)
            if not found:
                return
            db, _, of = table.partition(".")
            match what % WITHIN:
                case 2:
                    get = partial(begun.client.get_partitions, db, of)
                    self.judge_partitions(begun.reader, table, listed, get, (way, more))
                case 3:
                    keys = partial(begun.client.get_constraints, db, of)
                    self.judge_constraints(begun.reader, table, listed, keys)
                case 4:
                    which = analyzed(way) if self.analyzed is not None else OF_TABLE
                    statistics = partial(begun.client.get_statistics, db, of, **wanted(which))
                    self.judge_statistics(begun.reader, table, listed, statistics, which)
                case _:
                    get_table = partial(begun.client.get_table, db, of)
                    self.judge_table(begun.reader, table, listed, get_table)

        self.do(work, patience)

    def _write(self, begun: Begins, table: str) -> None:
        """The transaction gets a write id, if the table has any and it has none yet, and alters the table."""
        if table not in self.warehouse.tables or (self.is_external(table) and begun.given.get(table)):
            return

        given = begun.given.get(table, 0)

        def allocate(txn: int, *_: str) -> int:
            nonlocal given
            if self.is_external(table):  # another one than the transaction knows: the metastore refuses
                return 0
            self.warehouse.allocate(table, [txn])
            self.changed(f"{txn} gets a write id on {table}")
            given = self.warehouse.held_by(table, txn)
            return given

        db, _, of = table.partition(".")
        found = self.ask(begun.reader, f"a write of {table}", lambda: begun.client.advance(db, of, allocate))
        if found is None:
            return
        begun.given[table] = given
        self.judge.has_advanced(begun.reader, table, found[1], given)
        if self.is_external(table):
            self.warehouse.alter(table)
            begun.outside[table] = self.warehouse.tables[table][0], len(self.warehouse.states)
            self.changed(f"{table} is altered by {begun.own}, outside of it", (table, 0))
        elif given == self.warehouse.held_by(table, begun.own):
            self.warehouse.alter(table, begun.own)
            self.changed(f"{table} is altered by {begun.own}", (table, begun.own))

    def _listed(self, begun: Begins, table: str) -> tuple[bool, Listed | None]:
        """Whether the transaction has the table, and its list."""
        db, _, of = table.partition(".")
        given = begun.given.get(table, 0)
        written, state = begun.outside.get(table, (0, 0))
        found = self.ask(begun.reader, f"the list of {table}", lambda: begun.client.listed(db, of))
        if found is None:
            return False, None
        table_id, ids = found[1]
        if ids is None:
            return True, Listed(table, table_id, "", state) if table_id == written else None
        text = str(ids)
        self.judge.has_written(begun.reader, ListedTable(table, table_id, text), begun.client.txns, begun.own, given)
        own = begun.own if begun.own and self.warehouse.held_by(table, begun.own) else 0
        return True, Listed(table, table_id, text, len(self.warehouse.states) - 1, own)
