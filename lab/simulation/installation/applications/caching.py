"""An application keeps rows of its own in a store that all its processes share (`serving.client.cache`).

Its invalidators follow the change stream, are killed anywhere, and go on at the checkpoint that they have kept. The
store forgets what it likes. What a session gets is judged as any answer: it holds all that the session has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from lab.simulation.engine import Outcome
from lab.simulation.installation.following.log_topics import TopicLogging
from lab.simulation.installation.judging import Answer
from lab.simulation.installation.writing import ACCOUNTS, KEYSPACE, ORDERS, Slot, image_of
from lab.simulation.kernel.fronts import blocking_client
from lab.simulation.whole_processes.run import CLIENT
from serving.client.answers import Row
from serving.client.cache import DictStore, Invalidator, RowCache
from serving.client.cache.entries import floor_name, row_name
from serving.client.client import FreshetClient, Session
from serving.client.errors import ClientError

INVALIDATORS: Final = ("invalidator-0", "invalidator-1")
ENTRIES_MAX: Final = 6
"""Of the store: fewer than there are rows and floors, so that some go before their time."""
TABLES: Final = {table.name: table.columns for table in (ACCOUNTS, ORDERS)}
WHY: Final = "the application has kept it"


class _Heard:
    """A session or a client, which also notes what its answers say of themselves."""

    def __init__(self, of: Session | FreshetClient, heard: list[Row]) -> None:
        self._of = of
        self._heard = heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)

    def session(self, token: str) -> _Heard:
        """As `FreshetClient.session`."""
        return _Heard(self._of.session(token), self._heard)  # type: ignore[union-attr]

    def get_row(self, *what: Any, **options: Any) -> Row:
        """As `Session.get_row`."""
        self._heard.append(self._of.get_row(*what, **options))
        return self._heard[-1]


class Caching(TopicLogging):
    """The ops of an application with a cache of its own."""

    def __init__(self, shape: Sequence[int], outcome: Outcome, trace: bool) -> None:
        super().__init__(shape, outcome, trace)
        self._store: DictStore | None = None
        self._kept: dict[str, str] = {}
        """Invalidator → the checkpoint that it has kept last."""

    @property
    def store(self) -> DictStore:
        """Made while the product's modules are the simulation's, so that readers meet in the middle of it."""
        if self._store is None:
            self._store = DictStore(ENTRIES_MAX, lambda: self.kernel.now)
        return self._store

    def op_invalidate(self, number: int, pause: int) -> None:
        """An invalidator begins, at its last checkpoint if it has one; or is killed."""
        name = INVALIDATORS[number % len(INVALIDATORS)]
        if self.kernel.is_running(name):
            self.say(f"{name} is killed")
            self.kernel.kill(name)
        else:
            self.say(f"{name} follows from {self._kept.get(name) or 'now'}")
            self._start_invalidator(name)
        self.pause(pause)

    def _start_invalidator(self, name: str) -> None:
        store = self.store

        def work() -> None:
            client = blocking_client(self.kernel, self._ports(), **self.credentials.shown)
            while True:
                invalidator = Invalidator(store, KEYSPACE, TABLES, sleep=self._sleep)
                try:
                    for checkpoint in invalidator.follow(client, self._kept.get(name, "")):
                        if checkpoint:
                            self._kept[name] = checkpoint
                except ClientError as error:
                    self._count(f"invalidator: {error.code}")
                self._sleep(0.5)

        self.kernel.spawn(name, work)

    def _sleep(self, seconds: float) -> None:
        self.kernel.wait(lambda: False, seconds)

    def op_cached(self, session: int, row: int, patience: int) -> None:
        """A session reads a row through the application's cache."""
        name, client = self._session(session % 2)
        slot = self.slot(row)
        if slot.table.name in TABLES:
            self._do(lambda: self._read_cached(name, client, slot), patience)

    def _read_cached(self, name: str, client: Session, slot: Slot) -> bool:
        """Reads, and has the answer judged. Whether it came from the store."""
        judge = self._judge_of([slot])
        asked = judge.asked(name, self.kernel.now)
        heard: list[Row] = []
        through: Any = _Heard(blocking_client(self.kernel, self._ports(), **self.credentials.shown), heard)
        reader: Any = _Heard(client, heard)
        cache = RowCache(through, self.store, KEYSPACE, TABLES)
        try:
            found = cache.get_row(reader, slot.table.name, *slot.table.key(slot.row))
        except ClientError as error:
            self._refused(name, [slot], error)
            return False
        self.record_commits()
        kind = f"kept by {'the application' if found.from_store else 'nobody'}"
        value = None if found.value is None else dict(found.value)
        self._count(kind)
        self.say(f"session {name}: {slot.text} is {value}, {kind}")
        source, freshness, why = "cache", "fresh", WHY
        if not found.from_store:
            source, freshness, why = heard[-1].served_from, heard[-1].freshness, heard[-1].why
        if not judge.owes(name, asked):  # what more was demanded to fill the store is not the session's
            freshness = "eventual"
        judge.answered(name, asked, self.kernel.now, [Answer(slot.name, image_of(value), source, freshness, why)])
        return found.from_store

    def op_forget(self, row: int, floor: int) -> None:
        """The store drops a row's entry, or the floor."""
        slot = self.slot(row)
        name = row_name(KEYSPACE, slot.table.name, slot.table.key(slot.row))
        self.say("the store drops the floor" if floor % 2 else f"the store drops {slot.text}")
        self.store.drop(floor_name(KEYSPACE) if floor % 2 else name)

    def check_kept(self, within_s: float) -> str:
        """What can't be kept by the application, once an invalidator runs and all is quiet; "" if all can."""
        if self._store is None:
            return ""
        for each in INVALIDATORS:
            if not self.kernel.is_running(each):
                self._start_invalidator(each)
        name, client = self._new_session("")
        left = {slot for slot in self.slots if slot.table.name in TABLES and self._is_there(slot)}

        def work() -> None:
            end = self.kernel.now + within_s
            while left and self.kernel.now < end:
                for slot in sorted(left):
                    if self._read_cached(name, client, slot):
                        left.discard(slot)
                self._sleep(0.5)

        thread = self.kernel.spawn(CLIENT, work)
        self.run_until(lambda: thread.done, 2 * within_s)
        return ", ".join(slot.text for slot in sorted(left))

    def _is_there(self, slot: Slot) -> bool:
        history = self.record.histories[-1]
        return history.image_at(slot.name, history.end) is not None
