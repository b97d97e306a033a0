"""Spark's Python workers read remote files through the byte cache, which they share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.patience import PATIENCE_S
from tests.servers.s3 import S3Address

pytestmark = pytest.mark.integration
FILES = 3
ROWS = 20_000


def test_a_spark_job_reads_a_data_set_at_s3_twice_and_fetches_it_once(
    spark: Any, s3: S3Address, tmp_path: Path
) -> None:
    """Whichever workers run the second job: no byte of the store, only the versions are asked for."""
    bucket, options = s3.new_bucket(), {"key": s3.key, "secret": s3.secret, "endpoint_url": s3.endpoint}
    import s3fs

    remote, size = s3fs.S3FileSystem(**options), 0
    for i in range(FILES):
        table = pa.table({"a": list(range(i, FILES * ROWS, FILES)), "b": [f"text {j % 97}" for j in range(ROWS)]})
        with remote.open(f"{bucket}/part-{i}.parquet", "wb") as file:
            pq.write_table(table, file)
        size += remote.size(f"{bucket}/part-{i}.parquet")
    dirs = (f"{tmp_path}/cache:64MiB",)

    def read(paths: Iterable[str]) -> Iterator[tuple[int, int, int]]:
        """(sum of a column, bytes fetched, versions asked for) of each file."""
        import fsspec

        fs = fsspec.filesystem("freshet", target_protocol="s3", target_options=options, dirs=dirs, shards=2)
        for path in paths:
            with fs.open(path) as file:
                total = pq.read_table(file, columns=["a"])["a"].to_numpy().sum()
                asked = fs.tally.identity_calls
                inner = fs.cache.places[0]._inner  # of this process, or how it reaches the one that has the directory
                getattr(inner, "directory", inner).writers.flush(PATIENCE_S)  # what waits, other workers don't find
                yield int(total), file.opened.tally.source_bytes, asked

    paths = [f"{bucket}/part-{i}.parquet" for i in range(FILES)]
    results = [spark.sparkContext.parallelize(paths, FILES).mapPartitions(read).collect() for _ in range(2)]
    for found in results:
        assert sum(total for total, _, _ in found) == sum(range(FILES * ROWS))
        assert all(asked > 0 for _, _, asked in found)
    first, second = (sum(fetched for _, fetched, _ in found) for found in results)
    assert 0 < first <= size
    assert second == 0
