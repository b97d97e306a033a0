"""Ctrl-C amid a Spark job: the JVM, Python's workers and the command all end, whenever it comes."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from stream.kafka.connection import KafkaCluster
from tests.cli.interrupting import PYTHON_STARTS
from tests.lengths import length
from tests.marked import MARK, mark_of, marked, runs
from tests.patience import PATIENCE_S
from tests.serving.stack import eventually
from tests.spark_jobs.topics import TestTopic, rows

MOMENTS = length(1, 24)
SEED = int(os.environ.get("FRESHET_TEST_SEED", time.time_ns() % 100_000))
FRAMES = 1_500
STOPPED_BY_SIGINT = 128 + signal.SIGINT


class Filled(NamedTuple):
    """A keyspace with rows, and two equal folds of it."""

    topic: TestTopic
    left: Path
    right: Path


@pytest.fixture(scope="module")
def filled(kafka: KafkaCluster, tmp_path_factory: pytest.TempPathFactory) -> Filled:
    """150,000 rows in each of two partitions: a job has something to do."""
    directory = tmp_path_factory.mktemp("interrupted")
    topic = TestTopic(kafka, f"k{uuid.uuid4().hex[:12]}", 2)
    for partition in range(2):
        topic.write(partition, topic.history(frames=0)[:1])
        topic.write(partition, [rows(2 + 100 * number, 100, keys=5000) for number in range(FRAMES)])
        topic.folded(partition, directory / "left")
    shutil.copytree(directory / "left", directory / "right")
    return Filled(topic, directory / "left", directory / "right")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("job", ["rebuild", "verify"])
@pytest.mark.parametrize("number", range(MOMENTS))
def test_ctrl_c_amid_a_job_leaves_no_process(filled: Filled, tmp_path: Path, job: str, number: int) -> None:
    """At its start, or once the JVM runs; some of them twice. A terminal tells all of its group, a supervisor one.

    FRESHET_TEST_SEED repeats the moments.
    """
    rng = random.Random(f"{SEED}/{number}/{job}")
    is_of_job, to_group = number % 4 != 3, rng.random() < 0.5
    after_s, again_s = rng.uniform(0, 15 if is_of_job else 4), rng.choice((None, rng.uniform(0, 3)))
    command = [sys.executable, "-m", "freshet", job, "--keyspace", filled.topic.keyspace]
    command += ["--spark-log", str(tmp_path / "spark.log"), "--master", "local[2]"]
    if job == "rebuild":
        command += ["--to", str(tmp_path / "out"), "--bootstrap", filled.topic.kafka.bootstrap]
    else:
        command += [str(filled.left), str(filled.right)]
    log = tmp_path / "said.log"
    about = f"seed {SEED}, {after_s:.2f} s after {'the JVM' if is_of_job else 'the start'}, group {to_group}, {again_s}"
    with mark_of(SEED, job, number) as mark, log.open("wb") as out:
        environment = os.environ | {MARK: mark, "FRESHET_KAFKA__PREFIX": filled.topic.kafka.prefix}
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=out, stderr=out, start_new_session=True
        )

        def interrupt() -> None:
            if process.poll() is None:
                (os.killpg if to_group else os.kill)(process.pid, signal.SIGINT)

        def has_jvm() -> bool:
            return process.poll() is not None or runs(mark, "java")

        if is_of_job:
            eventually(has_jvm, what="the JVM")
        wait(process, after_s)
        interrupt()
        if again_s is not None:
            wait(process, again_s)
            interrupt()
        code = process.wait(PATIENCE_S)
        eventually(lambda: not marked(mark), what=f"nothing is left: {about}: {marked(mark)}")
        said = log.read_text(errors="replace")
    if any(start in said for start in PYTHON_STARTS):
        return
    assert "Traceback" not in said or code == -signal.SIGINT, (about, said)
    assert code in (0, STOPPED_BY_SIGINT, -signal.SIGINT), (about, code, said)


def wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Until then, or until the process has ended."""
    began = time.monotonic()
    eventually(lambda: process.poll() is not None or time.monotonic() - began > seconds, what="the moment")
