"""Positions, tokens and lists of every kind, as servers write them and readers send them back."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from lab.simulation.engine import History, Op, Outcome, ops_of, play, shape
from lab.simulation.replicas.lists import Listed, Table, covers
from lab.simulation.replicas.servers import FLAVORS, SERVERS, TAGS
from lab.simulation.replicas.sessions import NAMES, ORDER, RECOVERS, SESSIONS, STALE, TEXT, TOLD_MAX, SessionsRun
from tokens import Order, ValidWriteIdList, hive_compare
from tokens.comparison import compare_texts
from tokens.writeid_kinds import CleanerWriteIdList, CompactorWriteIdList, TxnWriteIds
from tokens.writeids import RangeAnswer

SHAPE: Final = 2
LIST: Final = "the list is covered"
TABLES: Final = ("db.t", "db.u")
LISTS_MAX: Final = 6


class ReplicasRun(SessionsRun):
    """Servers and sessions, and beside them the write ids of two tables."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self.tables = [Table(name) for name in TABLES]
        self.lists: list[Listed] = []
        self.followed = [ValidWriteIdList(name, 0) for name in TABLES]
        """Each table's list as events change it."""

    def op_allocate(self, table: int, count: int) -> None:
        """Transactions get write ids; only the last ALLOC is heard of."""
        at = self.tables[table]
        first = len(at.states) + 1
        at.states |= dict.fromkeys(range(first, first + 1 + count), "open")
        self.followed[table] = self.followed[table].allocate(len(at.states))
        self._check_followed(table)

    def op_end(self, table: int, which: int, committed: int) -> None:
        """A transaction ends."""
        at = self.tables[table]
        opened = at.ids("open")
        if opened:
            write_id = opened[which % len(opened)]
            at.states[write_id] = "committed" if committed else "aborted"
            followed = self.followed[table]
            self.followed[table] = followed.commit(write_id) if committed else followed.abort(write_id)
            self._check_followed(table)

    def _check_followed(self, table: int) -> None:
        at, followed = self.tables[table], self.followed[table]
        if str(followed) != at.listed().text:
            self.complain(LIST, f"the list that followed the events is {followed}, the metastore's {at.listed().text}")

    def op_list(self, table: int, own: int, style: int) -> None:
        """A reader takes its list, perhaps with its own open id; somebody may have shortened it."""
        at = self.tables[table]
        opened = [0, *at.ids("open")]
        listed = at.listed(opened[own % len(opened)], forgets=style == 1, short=style == 2)
        self.lists = [*self.lists, listed][-LISTS_MAX:]
        found = ValidWriteIdList.parse(listed.text)
        for write_id in range(1, listed.hwm + 3):
            if found.is_valid(write_id) is not (write_id in listed.valid):
                self.complain(LIST, f"write id {write_id} in {listed.text}: valid {found.is_valid(write_id)}")
            if found.is_aborted(write_id) is not (write_id in listed.aborted):
                self.complain(LIST, f"write id {write_id} in {listed.text}: aborted {found.is_aborted(write_id)}")
        self.say(f"a reader of {at.name} has {listed.text}")

    def op_cover(self, one: int, other: int) -> None:
        """Whether a cached list serves a reader's, and how they compare."""
        if not self.lists:
            return
        a, b = self.lists[one % len(self.lists)], self.lists[other % len(self.lists)]
        forth, back = covers(a, b), covers(b, a)
        expected = {(1, 1): Order.SAME, (1, 0): Order.NEWER, (0, 1): Order.OLDER}.get((forth, back), Order.UNKNOWN)
        found = compare_texts(a.text, b.text)
        self.outcome.answers[f"list {found.order.name.lower()}"] += 1
        if (found.details["a_covers_b"], found.details["b_covers_a"]) != (forth, back):
            self.complain(LIST, f"{a.text} against {b.text}: {found.details}, expected {forth} and {back}")
        elif found.order is not expected:
            self.complain(ORDER, f"{a.text} against {b.text} is {found.order.name} ({found.why})")
        if a.table == b.table:
            self._check_hive(a, b)

    def _check_hive(self, a: Listed, b: Listed) -> None:
        """Hive's own comparison: who has the smallest id that only one of them sees is the newer one."""
        only = min(a.valid ^ b.valid, default=0)
        expected = 0 if not only else 1 if only in a.valid else -1
        found = hive_compare(ValidWriteIdList.parse(a.text), ValidWriteIdList.parse(b.text))
        if found != expected:
            self.complain(ORDER, f"as Hive compares, {a.text} is {found} against {b.text}, expected {expected}")

    def op_range(self, which: int, low: int, size: int) -> None:
        """A file of several writes is looked at, by a reader, a compactor and a cleaner."""
        if not self.lists:
            return
        listed = self.lists[which % len(self.lists)]
        ids = frozenset(range(1 + low, 2 + low + size))
        low, high = min(ids), max(ids)
        kinds = [kind.parse(listed.text) for kind in (ValidWriteIdList, CompactorWriteIdList, CleanerWriteIdList)]
        valid = _share(ids, listed.valid)
        expected = [valid, RangeAnswer.ALL if high <= listed.hwm else RangeAnswer.NONE]
        expected.append(valid if high <= listed.hwm else RangeAnswer.NONE)
        found = [kind.range_valid(low, high) for kind in kinds]
        if found != expected:
            self.complain(LIST, f"write ids {low} to {high} in {listed.text} are {found}, expected {expected}")
        known = frozenset(range(1, listed.hwm + 1))
        aborted = listed.aborted if low <= listed.hwm else frozenset()
        if kinds[0].range_aborted(low, high) is not _share(ids, aborted):
            self.complain(LIST, f"write ids {low} to {high} in {listed.text}: {kinds[0].range_aborted(low, high)}")
        unseen = known - listed.valid
        if {each for each in known if kinds[1].is_aborted(each)} != unseen:
            self.complain(LIST, f"a compactor takes other ids of {listed.text} for aborted than {sorted(unseen)}")
        opened = unseen - listed.aborted
        base = {each for each in known if kinds[0].is_valid_base(each)}
        if base != {each for each in known if each < min(opened, default=listed.hwm + 1)}:
            self.complain(LIST, f"bases up to {sorted(base)} can be read with {listed.text}")

    def op_transaction(self, txn: int) -> None:
        """A transaction carries its lists of all tables in one text."""
        lists = {each.table: each for each in self.lists if each.table}
        text = "$".join([str(1 + txn), *(each.text for each in lists.values())])
        found = TxnWriteIds.parse(text)
        named = {table: found.get(table) for table in TABLES}
        if str(found) != text or len(found) != len(lists) or found != TxnWriteIds.parse(str(found)):
            self.complain(TEXT, f"{text} is read as {found}")
        for table, listed in named.items():
            if str(listed or "") != (lists[table].text if table in lists else ""):
                self.complain(TEXT, f"{table} in {text} is {listed}")


def _share(ids: frozenset[int], among: frozenset[int]) -> RangeAnswer:
    if ids <= among:
        return RangeAnswer.ALL
    return RangeAnswer.SOME if ids & among else RangeAnswer.NONE


OPS: Final = ops_of(ReplicasRun)
_STYLES: Final = 4
KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "commit": (5, (2, SERVERS, len(TAGS), 4)),
    "apply": (6, (2, SERVERS, SERVERS, 8, 3)),
    "read": (6, (SESSIONS, 2, SERVERS, _STYLES)),
    "token": (3, (SESSIONS, 2)),
    "position": (3, (2, SERVERS, _STYLES)),
    "event": (4, (2, SERVERS, 4, 2)),
    "compare": (6, (TOLD_MAX, TOLD_MAX)),
    "sets": (3, (2, SERVERS, SERVERS, _STYLES)),
    "restore": (1, (2, SERVERS)),
    "damage": (1, (SESSIONS, 64, 9)),
}
LIST_KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "allocate": (5, (len(TABLES), 3)),
    "end": (6, (len(TABLES), 8, 2)),
    "list": (6, (len(TABLES), 4, 3)),
    "cover": (6, (LISTS_MAX, LISTS_MAX)),
    "range": (3, (LISTS_MAX, 10, 4)),
    "transaction": (1, (5,)),
}


class ReplicasWorld:
    """Servers of every flavor, sessions that read at any of them, and lists of write ids."""

    name = "replicas"
    rules: tuple[str, ...] = (STALE, RECOVERS, ORDER, TEXT, LIST, "never raises")
    faults: tuple[str, ...] = ("history lost",)
    states: tuple[str, ...] = ("all",)
    cost = 1

    def history(self, rng: Random) -> History:
        """A random history of 10 to 60 ops, of positions or of lists."""
        kinds = KINDS if rng.random() < 0.7 else LIST_KINDS
        ops: History = [("world", *(rng.choice((0, rng.randrange(len(FLAVORS)))) for _ in NAMES))]
        for name in rng.choices([*kinds], [kind[0] for kind in kinds.values()], k=10 + rng.randrange(50)):
            ops.append((name, *(rng.randrange(bound) for bound in kinds[name][1])))
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then lets every server catch up. Stops at the first violation."""
        return play(ReplicasRun(shape(ops, SHAPE), Outcome(), trace), ops, OPS)
