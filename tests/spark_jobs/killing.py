"""Rebuilds in processes that are killed at random instants, and run again until all have ended well."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
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
INSTANT_S_MAX: Final = 1.5
"""A kill comes at most this long after a task has begun to fold, or after the kill before it."""
RUNS_MAX: Final = 10
"""A run may also end because a task failed too often: so many more than kills are allowed."""

DRIVER: Final = """
import json, sys
from pathlib import Path
from freshet.local.artifacts import jars
from spark_jobs.output import REPORT_NAME
from spark_jobs.rebuild import RebuildRequest, rebuild
from spark_jobs.session import SparkSettings, spark_session
from stream.kafka.connection import KafkaCluster

bootstrap, prefix, master, log, *jobs = sys.argv[1:]
extra = {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1", "spark.executor.memory": "512m"}
settings = SparkSettings(master=master, jars=jars("spark"), log_file=Path(log), driver_memory="512m", extra=extra)
with spark_session("killed", settings) as session:
    for keyspace, target, spill, batch in map(json.loads, jobs):
        kafka = KafkaCluster(bootstrap, prefix=prefix)
        rebuild(session, RebuildRequest(keyspace, kafka, Path(target), spill_rows=spill, offsets_per_batch=batch))
"""
"""A driver of rebuilds, one after the other, in small spills and micro-batches: what is durable grows in many steps."""


class KilledRebuild:
    """A rebuild of ``filled`` into ``target``, whose processes are to be killed so many times while it folds."""

    def __init__(self, filled: TestTopic, target: Path, kills: int) -> None:
        self.filled, self.target, self.left = filled, target, kills

    @property
    def is_done(self) -> bool:
        """Whether it has ended well."""
        return (self.target / REPORT_NAME).exists()

    @property
    def folds(self) -> bool:
        """Whether a task of this run has folded something, and the run has not ended."""
        return any(self.target.glob(f"{PROGRESS_PREFIX}*"))


class Killer:
    """Runs rebuilds and kills their processes. ``killed``: how many of each kind."""

    def __init__(self, rebuilds: Sequence[KilledRebuild], cluster: Standalone, log: Path, rng: Random) -> None:
        self.killed: Counter[str] = Counter()
        self.runs = 0
        self._rebuilds, self._cluster, self._log, self._rng = rebuilds, cluster, log, rng
        self._victims: list[str] = []

    def run(self) -> None:
        """Runs, kills and runs again, until all kills are done and all rebuilds have ended well."""
        runs_max = sum(each.left for each in self._rebuilds) + RUNS_MAX
        while ahead := [each for each in self._rebuilds if not each.is_done]:
            self.runs += 1
            assert self.runs <= runs_max, self._log.read_text()[-4000:]
            self._one_run(ahead)

    def _one_run(self, ahead: list[KilledRebuild]) -> None:
        process = self._start(ahead)
        try:
            for each in ahead:
                while each.left and self._waited(process, each, until_it_folds=True):
                    self._let_run(process, self._rng.uniform(0, INSTANT_S_MAX))
                    each.left -= self._kill(process, each)
                self._waited(process, each, until_it_folds=False)
                if each.left and each.is_done:  # it was done before its kill came: once more, from nothing
                    shutil.rmtree(each.target)
            process.wait(2 * PATIENCE_S)
        finally:
            process.kill()
            process.wait()

    def _start(self, ahead: list[KilledRebuild]) -> subprocess.Popen[bytes]:
        rng, kafka = self._rng, ahead[0].filled.kafka
        jobs = []
        for each in ahead:
            clear_progress(each.target)  # what a killed run left would pass for this one's
            sizes = rng.choice((1, 5, 400)), rng.choice((8, 20))
            jobs.append(json.dumps([each.filled.keyspace, str(each.target), *sizes]))
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, kafka.bootstrap, kafka.prefix, self._cluster.url, str(self._log), *jobs],
                cwd=ROOT,
                env=spark_environment(),
                stdout=log,
                stderr=log,
            )

    def _let_run(self, process: subprocess.Popen[bytes], seconds: float) -> bool:
        """Waits. False if the driver ends meanwhile."""
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def _waited(self, process: subprocess.Popen[bytes], each: KilledRebuild, *, until_it_folds: bool) -> bool:
        """Waits until it folds, or until it is done. False if it is done, or the driver has ended, before."""
        deadline = time.monotonic() + 2 * PATIENCE_S  # a JVM starts, and a cluster gives executors
        while not each.is_done:
            if until_it_folds and each.folds:
                return True
            assert time.monotonic() < deadline, self._log.read_text()[-4000:]
            if not self._let_run(process, 0.02):
                return False
        return not until_it_folds

    def _kill(self, process: subprocess.Popen[bytes], each: KilledRebuild) -> bool:
        """SIGKILL to one process of the next kind, as soon as there is one. False if the rebuild was done before."""
        if not self._victims:
            self._victims = self._rng.sample(VICTIMS, len(VICTIMS))
        while self._let_run(process, 0.01) and not each.is_done:
            found = self._found(self._victims[-1], process)
            if found:
                self._rng.choice(found).kill()
                self.killed[self._victims.pop()] += 1
                return True
        return False

    def _found(self, victim: str, process: subprocess.Popen[bytes]) -> list[psutil.Process]:
        own = psutil.Process(process.pid)
        if victim == "driver":
            return [own]
        try:
            if victim == "its JVM":
                return [each for each in own.children(recursive=True) if each.name() == "java"]
            executors = self._cluster.executors()
            if victim == "executor":
                return executors
            return [child for each in executors for child in each.children(recursive=True)]
        except psutil.Error:
            return []  # one of them has just ended
