"""A topic without a message: every job ends well or says so, and goes on when there is something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from freshet.owners import live_checkpoint
from spark_jobs.export import ExportRequest, export
from spark_jobs.output import find_stores
from spark_jobs.rebuild import RebuildRequest, checkpoint_begins, checkpoint_offsets, rebuild
from spark_jobs.source.cut import AsOf, AsOfError
from spark_jobs.source.reading import plan
from spark_jobs.verify import verify_stores
from tests.spark_jobs.test_export import rows_in
from tests.spark_jobs.test_live_verify import consuming
from tests.spark_jobs.topics import TestTopic, history, items_of

Topics = Callable[[int], TestTopic]


def test_an_empty_topic_is_rebuilt_verified_and_exported(spark: Any, topic: Topics, tmp_path: Path) -> None:
    """The states are equal and empty, a table is unknown, and the same directories are gone on with later."""
    filled = topic(2)
    out = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out")
    with consuming(filled, tmp_path / "data"):
        live = live_checkpoint(filled.kafka, filled.keyspace, [])
        ends, begins = checkpoint_offsets(live), checkpoint_begins(live)
        folded = RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "folded", ends, begins=begins)
        assert rebuild(spark, folded).entries == 0
        verdict = verify_stores(live, find_stores(tmp_path / "folded"), names=("live", "rebuilt"))
    assert (verdict.equal, verdict.items, verdict.differences) == (True, 0, 0)
    assert ends == {0: 0, 1: 0}
    assert rebuild(spark, out).messages == 0
    changes = ExportRequest(filled.keyspace, filled.kafka, tmp_path / "changes")
    nothing = export(spark, changes)
    assert (nothing.rows, nothing.files, nothing.commits) == (0, 0, 0)
    with pytest.raises(AsOfError) as unknown:
        plan(filled.kafka, filled.keyspace, "shop.items", AsOf())
    assert unknown.value.code == "table_unknown"
    for partition in range(2):
        filled.write(partition, history(frames=3, partitions=2))
    assert rebuild(spark, out).ends == filled.ends()
    for partition, directory in find_stores(tmp_path / "out").items():
        assert items_of(directory) == filled.folded(partition, tmp_path / "live")[0]
    assert export(spark, changes).rows == len(rows_in(tmp_path / "changes")) > 0
