"""The end of a history: all faults end, and within bounded time every row is fresh from the cache."""

from __future__ import annotations

from itertools import count
from signal import SIGTERM
from typing import Any, Final

from lab.simulation.installation.applications.sinking import COPIES
from lab.simulation.installation.finding import Stretch
from lab.simulation.installation.following.copies import TELLS_ALL
from lab.simulation.installation.judging import RULES as JUDGED
from lab.simulation.installation.operating.guarding import NO_STRANGERS
from lab.simulation.installation.operating.locating import NEVER_BACK
from lab.simulation.installation.operating.owners import AskingOwners
from lab.simulation.installation.parts import (
    CONSUMERS,
    FOLLOWER,
    FRONTS,
    OTHER_SOURCE,
    PROCESSES,
    SOURCES,
    Truth,
)
from lab.simulation.installation.processes import KAFKA
from lab.simulation.installation.writing import ACCOUNTS, JOURNAL, PARTS, SESSIONS, STOCK, SimulatedTable, Slot
from lab.simulation.naive.judging import BY_THE_RULES
from lab.simulation.operators.probes import PROBES
from lab.simulation.whole_processes.run import CLIENT, OPERATOR
from lab.simulation.whole_processes.stores import Stores
from lab.simulation.whole_processes.words import DURABLE, EXPLAINS, LOG_IS_ANOTHER
from stream.kafka.topics import events_topic

RECOVERS: Final = "recovers by itself"
RULES: Final = (*JUDGED, TELLS_ALL, COPIES, NEVER_BACK, NO_STRANGERS, RECOVERS, BY_THE_RULES, DURABLE)
READY_IN_S: Final = 60.0
READINESS: Final = [probe.path for probe in PROBES].index("/readyz")
NEVER_WRITTEN: Final = 5_000
"""Ids from here on have never been a row."""
CONSUMERS_VOID: Final = frozenset({"poison", "dead letters' topic gone"})
"""Faults after which consumers call rows void and their sources know nothing of it: tables stay incomplete."""
SETTLES_IN_S: Final = 180.0
"""Longer than two of the group's session timeouts, the longest back-offs, and a request that runs into its timeout."""


class InstallationRun(AskingOwners):
    """One history. See `lab.simulation.engine.HistoryRun`."""

    def finish(self) -> None:
        """Mends everything, and demands that what was written last can be read from the cache."""
        self.say("all faults end")
        self._mend()
        if self.is_operated:
            self._begin_all()
        if not self.run_until(lambda: not self.under_way, SETTLES_IN_S):
            self._fail(f"{self.under_way} requests of sessions have not ended")
        if not self.run_until(lambda: not self.record.is_ambiguous, SETTLES_IN_S):
            self._fail("the epoch that was to begin is not in every partition")
        self._read_all()
        if self.wide and not self.struck & CONSUMERS_VOID:
            self._check_whole()
        self._check_ready()
        if not self.outcome.violations and (behind := self.check_followers(SETTLES_IN_S)):
            self._fail(f"not told all: {behind}")
        if not self.outcome.violations and (lacks := self.check_logged(SETTLES_IN_S)):
            self._fail(lacks)
        if not self.outcome.violations and (left := self.check_kept(SETTLES_IN_S)):
            self._fail(f"the application's cache keeps no {left}")
        if not self.outcome.violations and (lacks := self.check_copied(SETTLES_IN_S)):
            self.complain(COPIES, f"{lacks}, {SETTLES_IN_S:g} s after the last fault")
        if not self.outcome.violations and (wrong := self.check_locations(SETTLES_IN_S)):
            self._fail(f"not located: {wrong}")
        if not self.outcome.violations and (wrong := self.check_routes(SETTLES_IN_S)):
            self._fail(f"not routed: {wrong}")
        if not self.outcome.violations and (refused := self.refused_at_rest(SETTLES_IN_S)):
            self._fail(f"refused: {refused}")
        if self.traces is not None and (open_ones := self.traces.unended()):
            self.complain(EXPLAINS, f"spans do not end: {', '.join(open_ones)}")
        if not self.outcome.violations and not self.struck & LOG_IS_ANOTHER:
            self._check_stores()

    def _begin_all(self) -> None:
        """An operator has every table read: some may have been cancelled, and the last request counts."""

        def work() -> None:
            self.kernel.wait(lambda: not self.asking)
            while not self.ask_for("", start=True):
                self.kernel.wait(lambda: False, 1.0)

        thread = self.kernel.spawn(OPERATOR, work)
        if not self.run_until(lambda: thread.done, SETTLES_IN_S):
            self._fail("nobody takes an operator's request")

    def _check_stores(self) -> None:
        """All but consumers are killed, and these end in order."""
        consumers = [name for name in (*CONSUMERS, FOLLOWER) if self.kernel.is_running(name)]
        for name in (*SOURCES, OTHER_SOURCE, *FRONTS):
            self.kernel.kill(name)
        logs = {keyspace: self.kafka.topics[events_topic(KAFKA, keyspace)].logs for keyspace in self.truths}
        Stores(self, logs, [name for name in consumers if name != FOLLOWER]).check_committed()
        for name in consumers:
            if self.kernel.loop_of(name).handles(SIGTERM):
                self.stop(name)
        Stores(self, logs, consumers).check_content()

    def _check_whole(self) -> None:
        """Tables are published from the beginning, so they become whole.

        That a row is absent is known before anybody has asked for it, and all rows come from the cache.
        """
        name, client = self._new_session("")
        left = {STOCK} if self.lean else {ACCOUNTS, STOCK, *[PARTS] * self.rekeyed}  # what is left out is the source's

        def work() -> None:
            for row in count(NEVER_WRITTEN):
                for table in tuple(left):
                    absent = [found.served_from for found in self.read(name, client, [Slot(table, row)])]
                    if absent == ["cache"] and self.find(name, client, Stretch(table), limit=100) == "cache":
                        left.discard(table)
                if not left:
                    return
                self.kernel.wait(lambda: False, 1.0)

        thread = self.kernel.spawn(CLIENT, work)
        self.run_until(lambda: thread.done, SETTLES_IN_S)
        if left and not self.outcome.violations:
            self._fail(f"not whole: {', '.join(sorted(table.name for table in left))}")

    def _check_ready(self) -> None:
        """Operators are told that all is well where it is: a source publishes, and each front has heard of it."""
        self.said_ready.clear()
        wanted = {SOURCES[0], *FRONTS} & set(self.wanted)
        end = self.kernel.now + READY_IN_S
        while not self.outcome.violations and self.kernel.now < end and (waiting := wanted - self.said_ready):
            for name in sorted(waiting):
                if name in FRONTS:
                    self.op_probe([*FRONTS].index(name), READINESS)
                else:
                    self.op_scrape(PROCESSES.index(name))
            self.let(1.0)
        if (missing := wanted - self.said_ready) and not self.outcome.violations:
            self._fail(f"not ready: {', '.join(sorted(missing))}")

    def _mend(self) -> None:
        self.kafka.down = False
        self.kafka.answers_to_lose.clear()
        if self.primary.down:
            self.primary.start()
        self.primary.breaks.clear()
        self.primary.behaviour.commit_s = lambda: 0.0
        if self.replica.down:
            self.replica.start()
        self.replica.behaviour.lag_s = 0.0
        self.disk.full.clear()
        self.disk.failing.clear()
        self.disk.dies_at.clear()
        if SOURCES[1] not in self.wanted:
            self.kernel.kill(SOURCES[1])
        for name in self.wanted:
            self.start(name)

    def _read_all(self) -> None:
        """A session that has just written reads every row, until each came fresh from the cache.

        That a row is absent only its source can say, if other spellings of the key may name it.
        """
        name, client = self._new_session("")
        attempt = self._attempts + 1
        missing = list(self.slots)
        said: dict[Slot, str] = {}

        def write(truth: Truth, journal: SimulatedTable) -> None:
            truth.judge.attempts(name)
            connected = self.driver.connect(**truth.settings.pymysql_arguments(), autocommit=True)
            connection: Any = client.wrap(connected, truth.shard)
            with connection.cursor() as cursor:
                cursor.execute(journal.put, (JOURNAL + SESSIONS, attempt))
            connection.close()
            self.record_commits()
            truth.judge.attempted(name, str(attempt), self.kernel.now)

        def work() -> None:
            for truth, journal in zip(self.truths.values(), (ACCOUNTS, STOCK), strict=False):
                write(truth, journal)
            end = self.kernel.now + SETTLES_IN_S
            while missing and self.kernel.now < end:
                for slot in list(missing):
                    for row in self.read(name, client, [slot]):
                        said[slot] = f"{row.freshness} from the {row.served_from}: {row.why}"
                        cached = row.served_from == "cache" or (row.value is None and slot.table.first)
                        if cached and row.freshness == "fresh":
                            missing.remove(slot)
                self.kernel.wait(lambda: False, 0.5)

        thread = self.kernel.spawn(CLIENT, work)
        self.run_until(lambda: thread.done, 2 * SETTLES_IN_S)
        if missing and not self.outcome.violations:
            self._fail("; ".join(f"{slot.text} is {said.get(slot, 'refused')}" for slot in missing))

    def _fail(self, what: str) -> None:
        self.complain(RECOVERS, f"{what}, {SETTLES_IN_S:g} s after the last fault; {'; '.join(self.kernel.waits())}")
