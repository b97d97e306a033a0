"""Stores that people have, on real servers: S3, Azure, HDFS. Their versions, and files that change amid reads."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec
import httpx2
import pytest

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.shared.opening import close_caches
from serving.client import FreshetClient, NotFoundError
from tests.servers.azure import AzureAddress
from tests.servers.hdfs import HdfsAddress
from tests.servers.s3 import S3Address
from tests.serving.bytes.conftest import Running

pytestmark = pytest.mark.integration
MIB = 1 << 20


@dataclass(frozen=True)
class Store:
    """A store, and a place in it that only this test uses. ``host``: what a URL has before the path."""

    protocol: str
    root: str
    options: Mapping[str, Any] = field(default_factory=dict)
    host: str = ""

    @property
    def remote(self) -> Any:
        """It without the cache, and without what another client of it remembers."""
        return fsspec.filesystem(self.protocol, skip_instance_cache=True, use_listings_cache=False, **self.options)

    def put(self, name: str, data: bytes) -> str:
        """Writes a file, which is ten seconds old where only its time tells its version; its path."""
        remote, path = self.remote, f"{self.root}/{name}"
        remote.pipe_file(path, data)
        if self.protocol == "webhdfs":
            changed = remote.info(path)["modificationTime"] - 10_000
            remote._call("SETTIMES", method="PUT", path=path, modificationtime=changed, accesstime=-1)
        return path

    def uri(self, name: str) -> str:
        """Of a file."""
        return f"{self.protocol}://{self.host}{self.root}/{name}"


def _at_s3(address: S3Address) -> Store:
    return Store("s3", address.new_bucket())


def _at_azure(address: AzureAddress) -> Store:
    return Store("abfs", address.new_container(), address.options)


def _at_hdfs(address: HdfsAddress) -> Store:
    host = f"{address.user}@{address.host}:{address.port}"
    return Store("webhdfs", f"/freshet-{uuid.uuid4().hex[:12]}", address.options, host)


STORES: dict[str, Callable[[Any], Store]] = {"s3": _at_s3, "azure": _at_azure, "hdfs": _at_hdfs}


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    """An empty place at a server that runs."""
    return STORES[request.param](request.getfixturevalue(request.param))


@pytest.fixture
def cached(store: Store, tmp_path: Path) -> Iterator[FreshetFileSystem]:
    """The store through the cache."""
    dirs, options = (f"{tmp_path}/cache:64MiB",), dict(store.options)
    yield fsspec.filesystem(
        "freshet", target_protocol=store.protocol, target_options=options, dirs=dirs, skip_instance_cache=True
    )
    close_caches()


def test_a_second_read_fetches_nothing(cached: FreshetFileSystem, store: Store) -> None:
    """Ranges, whole files and many ranges are the store's bytes; afterwards only the version is asked for."""
    data = random.Random(3).randbytes(3 * MIB + 5)
    path = store.put("a", data)
    for turn in range(2):
        before = cached.tally
        assert cached.cat_file(path, 100_000, 2_000_000) == data[100_000:2_000_000]
        assert cached.cat_ranges([path] * 3, [0, MIB, -7], [10, MIB + 9, len(data)]) == [
            data[:10],
            data[MIB : MIB + 9],
            data[-7:],
        ]
        assert cached.cat_file(store.uri("a")) == data
        fetched = cached.tally.source_bytes - before.source_bytes
        assert fetched == (len(data) if turn == 0 else 0)
    assert cached.tally.identity_calls > 0


def test_an_overwrite_within_a_second_and_of_the_same_length_is_read(cached: FreshetFileSystem, store: Store) -> None:
    """Times of S3 and Azure have whole seconds: their ETags tell versions apart. HDFS's file has another number."""
    for turn in range(6):
        content = bytes([turn]) * 100_000
        path = store.put("a", content)
        assert cached.cat_file(path) == content
        before = cached.tally.source_bytes
        assert cached.cat_file(path, 5, 9) == content[5:9]
        assert cached.tally.source_bytes == before


def test_a_listing_that_was_kept_hides_no_overwrite(cached: FreshetFileSystem, store: Store) -> None:
    """A store's client remembers what it listed, a file by itself too: the version is asked for past that."""
    path = store.put("a", b"1" * 100_000)
    cached.ls(path)
    cached.ls(store.root)
    assert cached.cat_file(path) == b"1" * 100_000
    store.put("a", b"2" * 100_000)
    assert cached.cat_file(path) == b"2" * 100_000


def test_an_object_replaced_under_the_reader_gives_no_mixture(
    cached: FreshetFileSystem, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is open stays one version: what is cached is read on, what must be fetched is refused."""
    old, new = b"1" * (2 * MIB), b"2" * (2 * MIB)
    path = store.put("a", old)
    with cached.open(path) as file:
        assert file.read(10) == old[:10]
        store.put("a", new)
        assert file.read(10) == old[10:20]
        file.seek(MIB)
        with pytest.raises(ByteCacheError) as changed:
            file.read(10)
        assert changed.value.code == "file_changed"
    assert cached.cat_file(path) == new
    # The replacement falls between the fetch and the question for the version.
    path = store.put("b", old)
    fetch = cached._remote.fetch

    def replaced_after(path: str, ranges: Any, timeout_s: float | None) -> Any:
        found = fetch(path, ranges, timeout_s)
        store.put("b", new)
        return found

    monkeypatch.setattr(cached._remote, "fetch", replaced_after)
    with pytest.raises(ByteCacheError) as changed:
        cached.cat_file(path)
    assert changed.value.code == "file_changed"
    monkeypatch.undo()
    assert cached.cat_file(path) == new


def test_what_the_store_lost_after_a_hit_is_not_found(cached: FreshetFileSystem, store: Store) -> None:
    """A deleted object is gone for a new open, although its bytes are cached; a missing bucket too."""
    path = store.put("a", b"x" * 1_000)
    assert cached.cat_file(path) == b"x" * 1_000
    store.remote.rm_file(path)
    for missing in (path, f"{store.root}-none/a"):
        with pytest.raises(FileNotFoundError):
            cached.cat_file(missing)


def test_files_are_given_over_http(store: Store, tmp_path: Path) -> None:
    """A front with a root at the store gives its ranges, versions and absences; other folders are not served."""
    data = random.Random(4).randbytes(MIB)
    store.put("in/a b", data)
    store.put("out", b"out")
    root, uri = store.uri("in"), store.uri("in/a b")
    with Running([root], dirs=(f"{tmp_path}/front:64MiB",)) as url, FreshetClient(url) as client:
        first = client.get_bytes(uri, 10, 500_000)
        assert first.data == data[10:500_000]
        store.put("in/a b", data[::-1])
        second = client.get_bytes(uri, 10, 500_000)
        assert second.data == data[::-1][10:500_000]
        assert second.etag != first.etag
        for other, code in ((f"{root}/none", "file_not_found"), (store.uri("out"), "not_served")):
            with pytest.raises(NotFoundError) as refused:
                client.get_bytes(other)
            assert refused.value.code == code
        spelled = httpx2.get(f"{url}/v1/bytes/{root}/a%20b", headers={"range": "bytes=-3"}, timeout=60)
        assert spelled.content == data[::-1][-3:]
        assert os.listdir(tmp_path / "front")


def test_files_of_two_accounts_are_two(azure: AzureAddress, tmp_path: Path) -> None:
    """What a connection string says is a part of a file's name, and its secret is not."""
    fs = fsspec.filesystem(
        "freshet", target_protocol="abfs", target_options=azure.options, dirs=(f"{tmp_path}/c:64MiB",)
    )
    name = fs.open_cached(_file_at(azure)).path
    close_caches()
    account = dict(part.split("=", 1) for part in azure.connection.split(";"))
    assert account["AccountName"] in name
    assert account["AccountKey"] not in name


def _file_at(azure: AzureAddress) -> str:
    return _at_azure(azure).put("a", b"a")
