"""A metastore's log, captured with gaps and damage, and replayed event by event. See `freshet replay`."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final

from consumers.process.replay import Replay, replay
from lab.simulation.engine import History, Op, Outcome, TracedRun, ops_of, play, shape
from lab.simulation.hive.judging import RECOVERS, RULES, SERVERS_OWN, Shown, Truth, check
from lab.simulation.hive.metastore import Metastore

SHAPE: Final = 2
"""Integers in the first op."""
NAMES: Final = tuple(f"{db}.{table}" for db in ("s", "w") for table in ("a", "b"))
OTHERS_TABLE: Final = json.dumps({"1": {"str": "a"}, "2": {"str": "s"}, "25": {"i64": 1_000_000}})
"""A table without write ids that has the first of the names in another catalog."""
KINDS_OF_TABLE: Final = ("full", "full", "insert_only", "external")
PART_WRITES: Final = ("ALTER_PARTITION", "INSERT", "UPDATE_TBL_COL_STAT_EVENT", "ADD_PARTITION")
REPEATED_MAX: Final = 4
Row = dict[str, Any]


def _as_json(message: Any) -> str:
    return json.dumps(message)


def _as_gzip(message: Any) -> str:
    return base64.b64encode(gzip.compress(json.dumps(message).encode(), 1, mtime=0)).decode()


FORMS: Final[tuple[Callable[[Any], Any], ...]] = (lambda message: message, _as_json, _as_gzip)
"""How a metastore, or whoever captured its log, writes a message."""
DAMAGES: Final[tuple[Callable[[Any], Any], ...]] = (
    lambda message: _as_json(message)[:-1],
    lambda message: _as_gzip(message)[:-8],
    lambda _: "H4sI-not base64",
    lambda _: None,
    lambda message: {name: {"1": {"str": 7}} for name in message},
    lambda message: dict.fromkeys(message, "{"),
)
"""What a message may have become: none of these can be read."""


class LogRun(TracedRun):
    """One metastore, and one replay of its log."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        """``shape``: the form of the messages, and how many of the log's first events were not captured."""
        super().__init__(outcome, trace)
        form, self._missing = shape
        self._form = FORMS[form % len(FORMS)]
        self._damage: Callable[[Any], Any] | None = None
        self.server = Metastore()
        self.truth = Truth(self.server)
        self.captured: list[Row] = []
        self._seen = 0
        self._replay = Replay()

    def close(self) -> None:
        """See `engine.HistoryRun.close`."""

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        for state, holds in STATES.items():
            if holds(self):
                self.outcome.met[fault, state] += 1

    @property
    def opened(self) -> list[int]:
        """The open transactions."""
        return [txn for txn, state in self.server.txns.items() if state == "open"]

    def tables(self) -> dict[str, Shown]:
        """What the replay shows now."""
        return {name: Shown(*table[:5]) for name, table in self._replay.tables().items()}

    def follow(self) -> None:
        """Replays what the log has got, and judges each state that a reader may meet."""
        rows, self._seen = self.server.log[self._seen :], len(self.server.log)
        for row in rows:
            if self._missing:
                self._missing -= 1
                self._lose("event missing", f"event {row['eventId']} {row['eventType']} is not captured")
                continue
            damage, self._damage = self._damage, None
            if damage is not None:
                self._lose("message damaged", f"the message of event {row['eventId']} is damaged")
            self.captured.append(row | {"message": (damage or self._form)(row["message"])})
            self._replay.feed(self.captured[-1])
            self.say(f"  event {row['eventId']}: {row['eventType']} {row['db'] or ''} {row['message']}")
        self._check()

    def _check(self) -> None:
        """Judges what is shown, unless the log's last event is missing, which nobody can know yet."""
        if self.captured[-1:] and self.captured[-1]["eventId"] == len(self.server.log):
            tables = self.tables()
            for table in tables.values():
                self.outcome.answers["servable" if table.servable else "not servable"] += 1
            check(self.truth, tables, self.complain)

    def _lose(self, fault: str, what: str) -> None:
        self.truth.is_whole = False
        self.count_fault(fault)
        self.say(what)

    def _txn(self, which: int) -> int:
        """An open transaction, or none (0)."""
        opened = [0, *self.opened]
        return opened[which % len(opened)]

    def op_open(self, count: int) -> None:
        self.server.open_txns(1 + count % 3)
        self.follow()

    def op_read_only(self) -> None:
        self.server.open_read_only()

    def op_allocate(self, name: int, txn: int, count: int, again: int) -> None:
        opened = self.opened
        if opened:
            first = txn % len(opened)
            self.server.allocate(NAMES[name], opened[first : first + 1 + count % 2], reallocate=not again % 5)
            self.follow()

    def op_end(self, txn: int, how: int) -> None:
        opened = self.opened
        if opened:
            self.server.end(opened[txn % len(opened)], commit=bool(how % 3))
            self.follow()

    def op_create(self, name: int, kind: int) -> None:
        if NAMES[name] not in self.server.tables:
            self.server.create(NAMES[name], KINDS_OF_TABLE[kind])
            self._written(NAMES[name], 0)

    def op_alter(self, name: int, txn: int) -> None:
        if NAMES[name] in self.server.tables:
            by = self._txn(txn)
            self.server.alter(NAMES[name], by)
            self._written(NAMES[name], by)

    def op_write(self, name: int, what: int, txn: int, shown: int) -> None:
        if NAMES[name] in self.server.tables:
            by = self._txn(txn)
            self.server.write(NAMES[name], PART_WRITES[what], by, shown=bool(shown))
            self._written(NAMES[name], by, shown=bool(shown))

    def _written(self, name: str, txn: int, *, shown: bool = True) -> None:
        self.truth.writes(name, txn, shown=shown)
        self.follow()

    def op_drop(self, name: int, keep: int) -> None:
        if NAMES[name] in self.server.tables:
            kept = not keep % 3
            if kept:
                self.count_fault("ids kept by a drop")
                self.truth.may_have_kept = True
            self.server.drop(NAMES[name], keep=kept)
            self.follow()

    def op_rename(self, name: int, to: int) -> None:
        if NAMES[name] in self.server.tables and NAMES[to] not in self.server.tables:
            before = len(self.server.log)
            self.server.rename(NAMES[name], NAMES[to])
            if len(self.server.log) > before:
                self.count_fault("rename")
                self._written(NAMES[to], 0)

    def op_convert(self, name: int) -> None:
        if self.server.tables.get(NAMES[name], (0, ""))[1] == "external":
            before = len(self.server.log)
            self.server.convert(NAMES[name])
            if len(self.server.log) > before:
                self._written(NAMES[name], 0)

    def op_drop_database(self, database: int) -> None:
        self.count_fault("database dropped")
        self.server.drop_database("sw"[database])
        self.follow()

    def op_note(self, what: int) -> None:
        """Something else is logged: another object, another catalog, or a type of a later version."""
        match what:
            case 0:
                self.server.note("CREATE_FUNCTION")
            case 1:
                self.server.note("DROP_TABLE", NAMES[0], catalog="spark", tableObjJson=OTHERS_TABLE)
            case 2:
                self.server.take_ids(NAMES[0], "spark")
                self._lose("ids taken by another catalog", f"{NAMES[0]} waits for the metastore's list")
            case _:
                self.server.note("SOMETHING_NEW", NAMES[what % len(NAMES)])
                self._lose("unknown event", f"an event of an unknown type names {NAMES[what % len(NAMES)]}")
        self.follow()

    def op_miss(self, count: int) -> None:
        """The next events are not captured."""
        self._missing += 1 + count

    def op_damage(self, how: int) -> None:
        """The next event's message is damaged."""
        self._damage = DAMAGES[how]

    def op_repeat(self, count: int) -> None:
        """Events are captured twice."""
        for row in self.captured[-1 - count % REPEATED_MAX :]:
            self.count_fault("event repeated")
            if self._replay.feed(row) is not None:
                self.complain(SERVERS_OWN, f"event {row['eventId']} is folded twice")
        self._check()

    def finish(self) -> None:
        """All transactions end, and every table is written once more: each is servable, and as the metastore has it."""
        self._damage, self._missing = None, 0
        for txn in self.opened:
            self.server.end(txn, commit=True)
        self.follow()
        for name in self.server.tables:
            self.server.alter(name)
            self._written(name, 0)
        shown = self.tables()
        for name, (table_id, _) in self.server.tables.items():
            if name not in shown or shown[name].table_id != table_id:
                self.complain(RECOVERS, f"{name} was written after the last fault, and is shown as {shown.get(name)}")
        if self.captured:
            *_, (_, last) = replay(self.captured)
            if (again := {name: Shown(*table[:5]) for name, table in last.items()}) != shown:
                self.complain(SERVERS_OWN, f"the captured log, replayed again, shows {again}, not {shown}")


OPS: Final = ops_of(LogRun)
STATES: Final[dict[str, Callable[[LogRun], bool]]] = {
    "no table": lambda run: not run.server.tables,
    "open writer": lambda run: any(map(run.truth.is_pending, (each for each, _ in run.server.tables.values()))),
    "image awaited": lambda run: bool(run.truth.awaited),
    "log damaged": lambda run: not run.truth.is_whole,
}
_NAMES: Final = len(NAMES)
KINDS: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "open": (4, (3,)),
    "allocate": (6, (_NAMES, 4, 2, 10)),
    "end": (5, (4, 6)),
    "create": (5, (_NAMES, len(KINDS_OF_TABLE))),
    "alter": (4, (_NAMES, 4)),
}
RARE: Final[dict[str, tuple[int, tuple[int, ...]]]] = {
    "read only": (1, ()),
    "write": (4, (_NAMES, len(PART_WRITES), 4, 2)),
    "drop": (2, (_NAMES, 6)),
    "rename": (3, (_NAMES, _NAMES)),
    "convert": (2, (_NAMES,)),
    "drop database": (1, (2,)),
    "note": (1, (6,)),
    "miss": (1, (3,)),
    "damage": (1, (len(DAMAGES),)),
    "repeat": (1, (REPEATED_MAX,)),
}


class HiveWorld:
    """Captured notification logs of a metastore."""

    name = "hive"
    rules: tuple[str, ...] = (*RULES, "never raises")
    faults: tuple[str, ...] = (
        "event missing", "message damaged", "unknown event", "event repeated", "ids kept by a drop", "rename",
        "database dropped", "ids taken by another catalog",
    )  # fmt: skip
    states: tuple[str, ...] = tuple(STATES)
    cost = 4

    def history(self, rng: Random) -> History:
        """A random history of 8 to 30 ops."""
        share = 0.2 + 0.5 * rng.random()
        kinds = KINDS | {name: kind for name, kind in RARE.items() if rng.random() < share}
        ops: History = [("world", rng.randrange(len(FORMS)), rng.randrange(4) * (rng.random() < 0.2))]
        for name in rng.choices([*kinds], [kind[0] for kind in kinds.values()], k=8 + rng.randrange(22)):
            ops.append((name, *(rng.randrange(bound) for bound in kinds[name][1])))
        return ops

    def run(self, ops: Sequence[Op], *, trace: bool = False) -> Outcome:
        """Runs the ops, then ends all transactions. Stops at the first violation."""
        return play(LogRun(shape(ops, SHAPE), Outcome(), trace), ops, OPS)
