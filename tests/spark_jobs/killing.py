"""A rebuild in processes that are killed at random instants, and run again until it has ended well."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import psutil

from spark_jobs.output import REPORT_NAME
from spark_jobs.partition import PROGRESS_PREFIX, clear_progress
from tests.docs.naming import ROOT
from tests.patience import PATIENCE_S
from tests.servers.standalone import Standalone, spark_environment
from tests.spark_jobs.topics import TestTopic

VICTIMS: Final = ("driver", "its JVM", "executor", "Python worker")
INSTANT_S_MAX: Final = 2.5
"""A kill comes at most this long after a task has begun to fold, or after the kill before it."""
RUNS_MAX: Final = 10
"""A run may also end because a task failed too often: so many more than kills are allowed."""

DRIVER: Final = """
import sys
from pathlib import Path
from freshet.local.artifacts import jars
from spark_jobs.rebuild import RebuildRequest, rebuild
from spark_jobs.session import SparkSettings, spark_session
from stream.kafka.connection import KafkaCluster

bootstrap, keyspace, target, master, log, spill, batch = sys.argv[1:]
extra = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
settings = SparkSettings(master=master, jars=jars("spark"), log_file=Path(log), driver_memory="512m", extra=extra)
request = RebuildRequest(
    keyspace, KafkaCluster(bootstrap), Path(target), spill_rows=int(spill), offsets_per_batch=int(batch)
)
with spark_session("killed", settings) as session:
    rebuild(session, request)
"""
"""The rebuild's driver, with small spills and micro-batches: what is durable grows in many steps."""


class KilledRebuild:
    """Rebuilds a topic into ``target`` while its processes are killed. ``killed``: how many of each kind."""

    def __init__(self, filled: TestTopic, cluster: Standalone, target: Path, rng: Random) -> None:
        self.killed: Counter[str] = Counter()
        self.runs = 0
        self._filled, self._cluster, self._target, self._rng = filled, cluster, target, rng
        self._log = target.with_suffix(".log")

    def run(self, kills: int) -> None:
        """Runs, kills and runs again, until all kills are done and a run has ended well."""
        victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
        self._rng.shuffle(victims)
        while victims or not (self._target / REPORT_NAME).exists():
            self.runs += 1
            assert self.runs <= kills + RUNS_MAX, self._log.read_text()[-4000:]
            self._one_run(victims)

    def _one_run(self, victims: list[str]) -> None:
        process = self._start()
        try:
            while victims and self._folds(process):
                try:
                    process.wait(self._rng.uniform(0, INSTANT_S_MAX))
                except subprocess.TimeoutExpired:
                    self._kill(victims[-1], process)
                    self.killed[victims.pop()] += 1
            process.wait(2 * PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        if victims and process.returncode == 0:
            raise AssertionError(f"the rebuild ended before it was killed {len(victims)} more times: {victims}")

    def _start(self) -> subprocess.Popen[bytes]:
        rng = self._rng
        clear_progress(self._target)  # what a killed run left would pass for this one's
        place = [self._filled.kafka.bootstrap, self._filled.keyspace, str(self._target)]
        sizes = [str(rng.choice((1, 50, 400))), str(rng.choice((20, 60)))]
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, *place, self._cluster.url, str(self._log), *sizes],
                cwd=ROOT,
                env=spark_environment(),
                stdout=log,
                stderr=log,
            )

    def _folds(self, process: subprocess.Popen[bytes]) -> bool:
        """Waits until a task of this run has folded something. False if the run ended before."""
        deadline = time.monotonic() + 2 * PATIENCE_S  # a JVM starts, and a cluster gives executors
        while not list(self._target.glob(f"{PROGRESS_PREFIX}*")):
            assert time.monotonic() < deadline, self._log.read_text()[-4000:]
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            return False
        return process.poll() is None

    def _kill(self, victim: str, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to one process of a kind; to none if there is none at this instant."""
        if victim == "driver":
            process.kill()
            return
        own = psutil.Process(process.pid)
        found = [each for each in own.children(recursive=True) if each.name() == "java"]
        if victim != "its JVM":
            found = self._cluster.executors()
        if victim == "Python worker":
            found = [child for each in found for child in each.children(recursive=True)]
        if found:
            self._rng.choice(found).kill()
