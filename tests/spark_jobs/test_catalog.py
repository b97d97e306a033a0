"""A catalog through Spark: what a real Hive Metastore's source has published is rebuilt byte for byte."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from consumers.fold.state import META
from freshet.owners import live_checkpoint
from spark_jobs.auditing.describe import describe_key
from spark_jobs.export import ExportRequest, export
from spark_jobs.output import find_stores
from spark_jobs.rebuild import RebuildRequest, checkpoint_offsets, rebuild
from spark_jobs.verify import verify_stores
from stream.kafka.reader import read_range
from tests.patience import PATIENCE_S
from tests.servers.hive_catalog import HiveCatalog
from tests.serving.stack import eventually
from tests.spark_jobs.test_live_verify import FRESHET, consuming
from tests.spark_jobs.topics import TestTopic, items_of

Topics = Callable[[int], TestTopic]


@contextmanager
def publishing(filled: TestTopic, address: tuple[str, int]) -> Iterator[subprocess.Popen[bytes]]:
    """``freshet source hive`` in a process of its own."""
    given = [
        "--keyspace",
        filled.keyspace,
        "--bootstrap",
        filled.kafka.bootstrap,
        "--catalog",
        "hive",
        "--partitions",
        "2",
    ]
    command = [*FRESHET, "source", "hive", *given, "--uri", f"thrift://{address[0]}:{address[1]}"]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def has(filled: TestTopic, source: subprocess.Popen[bytes], word: bytes) -> bool:
    """Whether a message of the topic has this word in it; the source must be running."""
    assert source.poll() is None
    ends = filled.ends().items()
    return any(
        word in (message.value() or b"")
        for partition, end in ends
        for message in read_range(filled.kafka, filled.name, partition, 0, end)
    )


def checkpointed(filled: TestTopic, ends: dict[int, int]) -> list[Mapping[int, Path]]:
    """The owner's checkpoint; nothing if it is not as far as ``ends``."""
    live = live_checkpoint(filled.kafka, filled.keyspace, [])
    reached = checkpoint_offsets(live)
    return [live] if all(reached[partition] >= end for partition, end in ends.items()) else []


def change(catalog: HiveCatalog) -> None:
    """Tables of each kind with partitions, statistics and constraints; some are written, renamed and dropped."""
    for name in ("kept", "renamed", "dropped"):
        catalog.create(name, partitioned=True)
        catalog.add_partitions(name, "one", "two", "three")
    catalog.create("outside", transactional=False)
    catalog.write("kept", said="written")
    catalog.set_statistics("kept", 3, "one", catalog.write("kept"))
    catalog.add_primary_key("kept", "key_of_kept")
    catalog.drop_partition("kept", "two")
    catalog.alter("renamed", rename_to="another")
    catalog.drop("dropped")


def test_a_catalog_is_rebuilt_as_it_is_live(
    spark: Any, topic: Topics, hive: tuple[str, int], keyspace_name: str, tmp_path: Path
) -> None:
    """What was there before the source, what it followed, drops and names included; an export claims none of it."""
    filled = topic(2)
    with HiveCatalog(hive, f"before_{keyspace_name}") as catalog, publishing(filled, hive) as source:
        change(catalog)
        eventually(partial(has, filled, source, catalog.db.encode()), what="the catalog in the topic")
        with HiveCatalog(hive, f"after_{keyspace_name}") as later, consuming(filled, tmp_path / "data"):
            change(later)
            later.create("the_last_one")
            eventually(partial(has, filled, source, b"the_last_one"), what="the last table in the topic")
            [live] = eventually(partial(checkpointed, filled, filled.ends()), what="the consumer at the topic's end")
            rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "out", checkpoint_offsets(live)))
    verdict = verify_stores(live, find_stores(tmp_path / "out"), names=("live", "rebuilt"))
    assert verdict.equal, verdict.as_json()
    keys = [key for store in live.values() for key, _ in items_of(store) if not key.startswith(META)]
    kinds = Counter(describe_key(key).split()[1] for key in keys)
    assert kinds["partition"] >= 2 * (2 + 3), kinds
    exported = export(spark, ExportRequest(filled.keyspace, filled.kafka, tmp_path / "exported"))
    rows = ds.dataset(tmp_path / "exported", partitioning="hive").to_table().to_pylist()
    assert exported.rows == len(rows)
    assert {row["_kind"] for row in rows} == {"epoch_start"}
