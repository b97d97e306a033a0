"""The end of a history: all faults end, and within bounded time every row is fresh from the cache."""

from __future__ import annotations

from typing import Any, Final

from lab.simulation.installation.judging import RULES as JUDGED
from lab.simulation.installation.kafka_faults import KafkaFaults
from lab.simulation.installation.parts import CLIENT, FRONTS, PROCESSES, SOURCES
from lab.simulation.installation.processes import PRIMARY, SHARD
from lab.simulation.installation.writing import JOURNAL, PUT, ROWS, SESSIONS
from lab.simulation.operators.probes import PROBES

RECOVERS: Final = "recovers by itself"
RULES: Final = (*JUDGED, RECOVERS)
READY_IN_S: Final = 60.0
READINESS: Final = [probe.path for probe in PROBES].index("/readyz")
SETTLES_IN_S: Final = 180.0
"""Longer than two of the group's session timeouts, the longest back-offs, and a request that runs into its timeout."""


class InstallationRun(KafkaFaults):
    """One history. See `lab.simulation.engine.HistoryRun`."""

    def finish(self) -> None:
        """Mends everything, and demands that what was written last can be read from the cache."""
        self.say("all faults end")
        self._mend()
        if not self.run_until(lambda: not self.under_way, SETTLES_IN_S):
            self._fail(f"{self.under_way} requests of sessions have not ended")
        if not self.run_until(lambda: not self.record.is_ambiguous, SETTLES_IN_S):
            self._fail("the epoch that was to begin is not in every partition")
        self._read_all()
        self._check_ready()

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
        if missing := wanted - self.said_ready:
            self._fail(f"not ready: {', '.join(sorted(missing))}")

    def _mend(self) -> None:
        self.kafka.down = False
        self.kafka.answers_to_lose.clear()
        if self.primary.down:
            self.primary.start()
        self.primary.breaks.clear()
        self.primary.behaviour.commit_s = lambda: 0.0
        self.replica.behaviour.lag_s = 0.0
        self.disk.full.clear()
        self.disk.failing.clear()
        self.disk.dies_at.clear()
        if SOURCES[1] not in self.wanted:
            self.kernel.kill(SOURCES[1])
        for name in self.wanted:
            self.start(name)

    def _read_all(self) -> None:
        """A session that has just written reads every row, until each came fresh from the cache."""
        name, client = self._new_session("")
        attempt = self._attempts + 1
        missing = set(range(ROWS))
        said: dict[int, str] = {}

        def work() -> None:
            self.judge.attempts(name)
            connection: Any = client.wrap(self.driver.connect(**PRIMARY.pymysql_arguments(), autocommit=True), SHARD)
            with connection.cursor() as cursor:
                cursor.execute(PUT, (JOURNAL + SESSIONS, attempt))
            connection.close()
            self.record_commits()
            self.judge.attempted(name, str(attempt), self.kernel.now)
            end = self.kernel.now + SETTLES_IN_S
            while missing and self.kernel.now < end:
                for slot in sorted(missing):
                    for row in self.read(name, client, [slot]):
                        said[slot] = f"{row.freshness} from the {row.served_from}: {row.why}"
                        if (row.served_from, row.freshness) == ("cache", "fresh"):
                            missing.discard(slot)
                self.kernel.wait(lambda: False, 0.5)

        thread = self.kernel.spawn(CLIENT, work)
        self.run_until(lambda: thread.done, 2 * SETTLES_IN_S)
        if missing and not self.outcome.violations:
            self._fail("; ".join(f"row {slot} is {said.get(slot, 'refused')}" for slot in sorted(missing)))

    def _fail(self, what: str) -> None:
        self.complain(RECOVERS, f"{what}, {SETTLES_IN_S:g} s after the last fault; {'; '.join(self.kernel.waits())}")
