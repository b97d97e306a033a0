"""Stores that people have, on real servers: their versions, and files that change amid reads."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import httpx2
import pytest

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.shared.opening import close_caches
from serving.client import FreshetClient, NotFoundError
from tests.servers.s3 import S3Address
from tests.serving.bytes.conftest import Running

pytestmark = pytest.mark.integration
MIB = 1 << 20


@pytest.fixture
def bucket(s3: S3Address) -> str:
    """An empty bucket at a server that speaks S3."""
    return s3.new_bucket()


@pytest.fixture
def remote(bucket: str) -> Any:  # noqa: ARG001 - the server is there
    """The store without the cache."""
    return fsspec.filesystem("s3", skip_instance_cache=True, use_listings_cache=False)


@pytest.fixture
def cached(bucket: str, tmp_path: Path) -> Iterator[FreshetFileSystem]:  # noqa: ARG001 - the server is there
    """The store through the cache."""
    yield fsspec.filesystem(
        "freshet", target_protocol="s3", dirs=(f"{tmp_path}/cache:64MiB",), skip_instance_cache=True
    )
    close_caches()


def test_a_second_read_of_s3_fetches_nothing(cached: FreshetFileSystem, remote: Any, bucket: str) -> None:
    """Ranges, whole files and many ranges are S3's bytes; afterwards only the version is asked for."""
    data = random.Random(3).randbytes(3 * MIB + 5)
    remote.pipe_file(f"{bucket}/a", data)
    for turn in range(2):
        before = cached.tally
        assert cached.cat_file(f"{bucket}/a", 100_000, 2_000_000) == data[100_000:2_000_000]
        assert cached.cat_ranges([f"{bucket}/a"] * 3, [0, MIB, -7], [10, MIB + 9, len(data)]) == [
            data[:10],
            data[MIB : MIB + 9],
            data[-7:],
        ]
        assert cached.cat_file(f"s3://{bucket}/a") == data
        fetched = cached.tally.source_bytes - before.source_bytes
        assert fetched == (len(data) if turn == 0 else 0)
    assert cached.tally.identity_calls > 0


def test_an_overwrite_within_a_second_and_of_the_same_length_is_read(
    cached: FreshetFileSystem, remote: Any, bucket: str
) -> None:
    """S3's times have whole seconds: its ETag tells versions apart."""
    for turn in range(6):
        content = bytes([turn]) * 100_000
        remote.pipe_file(f"{bucket}/a", content)
        assert cached.cat_file(f"{bucket}/a") == content
        before = cached.tally.source_bytes
        assert cached.cat_file(f"{bucket}/a", 5, 9) == content[5:9]
        assert cached.tally.source_bytes == before


def test_an_object_replaced_under_the_reader_gives_no_mixture(
    cached: FreshetFileSystem, remote: Any, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is open stays one version: what is cached is read on, what must be fetched is refused."""
    old, new = b"1" * (2 * MIB), b"2" * (2 * MIB)
    remote.pipe_file(f"{bucket}/a", old)
    with cached.open(f"{bucket}/a") as file:
        assert file.read(10) == old[:10]
        remote.pipe_file(f"{bucket}/a", new)
        assert file.read(10) == old[10:20]
        file.seek(MIB)
        with pytest.raises(ByteCacheError) as changed:
            file.read(10)
        assert changed.value.code == "file_changed"
    assert cached.cat_file(f"{bucket}/a") == new
    # The replacement falls between the fetch and the question for the version.
    remote.pipe_file(f"{bucket}/b", old)
    fetch = cached._remote.fetch

    def replaced_after(path: str, ranges: Any) -> Any:
        found = fetch(path, ranges)
        remote.pipe_file(path, new)
        return found

    monkeypatch.setattr(cached._remote, "fetch", replaced_after)
    with pytest.raises(ByteCacheError) as changed:
        cached.cat_file(f"{bucket}/b")
    assert changed.value.code == "file_changed"
    monkeypatch.undo()
    assert cached.cat_file(f"{bucket}/b") == new


def test_what_s3_lost_after_a_hit_is_not_found(cached: FreshetFileSystem, remote: Any, bucket: str) -> None:
    """A deleted object is gone for a new open, although its bytes are cached; a missing bucket too."""
    remote.pipe_file(f"{bucket}/a", b"x" * 1_000)
    assert cached.cat_file(f"{bucket}/a") == b"x" * 1_000
    remote.rm_file(f"{bucket}/a")
    for path in (f"{bucket}/a", "no-such-bucket-here/a"):
        with pytest.raises(FileNotFoundError):
            cached.cat_file(path)


def test_files_at_s3_are_given_over_http(bucket: str, remote: Any, tmp_path: Path) -> None:
    """A front with a root at S3 gives its ranges, versions and absences; other buckets are not served."""
    data = random.Random(4).randbytes(MIB)
    remote.pipe_file(f"{bucket}/in/a b", data)
    remote.pipe_file(f"{bucket}/out", b"out")
    with Running([f"s3://{bucket}/in"], dirs=(f"{tmp_path}/front:64MiB",)) as url, FreshetClient(url) as client:
        first = client.get_bytes(f"s3://{bucket}/in/a b", 10, 500_000)
        assert first.data == data[10:500_000]
        remote.pipe_file(f"{bucket}/in/a b", data[::-1])
        second = client.get_bytes(f"s3://{bucket}/in/a b", 10, 500_000)
        assert second.data == data[::-1][10:500_000]
        assert second.etag != first.etag
        for uri, code in ((f"s3://{bucket}/in/none", "file_not_found"), (f"s3://{bucket}/out", "not_served")):
            with pytest.raises(NotFoundError) as refused:
                client.get_bytes(uri)
            assert refused.value.code == code
        spelled = httpx2.get(f"{url}/v1/bytes/s3://{bucket}/in/a%20b", headers={"range": "bytes=-3"})
        assert spelled.content == data[::-1][-3:]
        assert os.listdir(tmp_path / "front")
