"""Random histories, folded by Spark while its processes are killed, equal the live fold byte for byte.

FRESHET_TEST_SPARK_KILLS and FRESHET_TEST_SPARK_HISTORIES make longer runs of it (docs/internals/faults.md).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from spark_jobs.rebuild import RebuildRequest, rebuild
from tests.consumers.fold.test_naive_fold import Scribe
from tests.servers.standalone import standalone
from tests.spark_jobs.killing import KilledRebuild
from tests.spark_jobs.test_streaming import differences
from tests.spark_jobs.topics import TestTopic

Topics = Callable[[int], TestTopic]
KILLS: Final = int(os.environ.get("FRESHET_TEST_SPARK_KILLS", "3"))
HISTORIES: Final = int(os.environ.get("FRESHET_TEST_SPARK_HISTORIES", "2"))
SEED: Final = int(os.environ.get("FRESHET_TEST_SPARK_SEED", "14"))
MESSAGES_PER_KILL: Final = 250

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900 + 120 * KILLS + 60 * HISTORIES)]


def write_random_history(filled: TestTopic, rng: Random, messages: int) -> None:
    """Rows in the even partitions, a catalog in the odd ones, with garbage among them."""
    layout = f"xxh3_64;partitions={filled.partitions}"
    layouts = (layout, f"{layout};x-other=1")
    for partition in range(filled.partitions):
        scribe = Scribe(rng, sharing=rng.random() < 0.5, catalog=partition % 2 == 1, layouts=layouts)
        written = scribe.history(messages)
        for _ in range(rng.randint(0, 3)):
            written.insert(rng.randint(0, len(written)), rng.choice((b"garbage", b"", b"\xc3\x01" + b"\0" * 30)))
        filled.write(partition, written)


def test_a_rebuild_killed_at_random_instants_equals_the_live_fold(topic: Topics, tmp_path: Path) -> None:
    """Driver, its JVM, executors and their workers die at random; the same command goes on, to the same bytes."""
    filled = topic(2)
    rng = Random(SEED)
    write_random_history(filled, rng, 300 + MESSAGES_PER_KILL * KILLS)
    with standalone() as cluster:
        killed = KilledRebuild(filled, cluster, tmp_path / "out", rng)
        killed.run(KILLS)
    print(f"{killed.runs} runs, killed {dict(killed.killed)}")
    assert killed.killed.total() == KILLS
    assert differences(filled, tmp_path / "out", tmp_path / "live") == []


@pytest.mark.parametrize("number", range(HISTORIES))
def test_a_random_history_in_random_micro_batches_equals_the_live_fold(
    spark: Any, topic: Topics, tmp_path: Path, number: int
) -> None:
    """Rows and catalog, in steps to random ends, with spills and micro-batches of any size."""
    filled = topic(2)
    rng = Random(f"{SEED} {number}")
    write_random_history(filled, rng, 60)
    last = filled.ends()
    some = {partition: rng.randint(0, end) for partition, end in last.items()}
    for ends in (some, last):
        request = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", ends)
        spill, batch = rng.choice((1, 7, 1000)), rng.choice((9, 40, 1000))
        rebuild(spark, dataclasses.replace(request, spill_rows=spill, offsets_per_batch=batch))
        assert differences(filled, tmp_path / "out", tmp_path / f"live-{len(list(tmp_path.iterdir()))}") == []
