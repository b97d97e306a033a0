"""S3 behind a bad network and a bad gateway: right bytes or one clear error, nothing wrong kept, no endless wait."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import aiohttp
import fsspec
import pytest
from botocore.exceptions import BotoCoreError  # type: ignore[import-untyped]

from lab.faults.network import Link, LinkConditions, Network
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.shared.opening import close_caches
from tests.patience import PATIENCE_S
from tests.servers.s3 import S3Address
from tests.serving.bytecache.bad_gateway import BadGateway, Fault

pytestmark = pytest.mark.integration
MIB = 1 << 20
DATA = random.Random(5).randbytes(4 * MIB + 77)
FAULTS: tuple[Fault, ...] = ("500", "503", "404", "cut off", "short", "long", "whole", "garbage")
ERRORS = (OSError, aiohttp.ClientError, BotoCoreError)
"""The store's client raises its own as they are."""
ONE_TRY: dict[str, Any] = {"connect_timeout": 5, "retries": {"total_max_attempts": 1}}


@dataclass
class FarS3:
    """A file of S3, read through the cache, a link and a gateway."""

    fs: FreshetFileSystem
    path: str
    link: Link
    gateway: BadGateway

    def is_whole(self) -> bool:
        """Whether the file is read as it is, twice, the second time without a fetch of anything."""
        self.gateway.spoil(None)
        first = self.fs.cat_file(self.path)
        self.fs.cache.places[0].directory.writers.flush(PATIENCE_S)  # type: ignore[attr-defined]
        fetched = self.fs.tally.source_bytes
        return first == self.fs.cat_file(self.path) == DATA and self.fs.tally.source_bytes == fetched


@pytest.fixture
def far(s3: S3Address, tmp_path: Path) -> Iterator[FarS3]:
    """An object of four MiB; nothing of it is cached."""
    path = f"{s3.new_bucket()}/a"
    fsspec.filesystem("s3", skip_instance_cache=True).pipe_file(path, DATA)
    url = urlparse(s3.endpoint)
    gateway = BadGateway((str(url.hostname), url.port or 80))
    threading.Thread(target=gateway.serve_forever, daemon=True).start()
    with Network() as network:
        link = network.link("s3", ("127.0.0.1", gateway.server_port))
        options = {"endpoint_url": f"http://{link.address}", "config_kwargs": ONE_TRY, "skip_instance_cache": True}
        fs = FreshetFileSystem(
            target_protocol="s3", target_options=options, dirs=(f"{tmp_path}/cache:64MiB",), skip_instance_cache=True
        )
        yield FarS3(fs, path, link, gateway)
        close_caches()
    gateway.shutdown()
    gateway.server_close()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_gateway_that_spoils_every_body_is_one_error_and_leaves_nothing(far: FarS3, fault: Fault) -> None:
    """Before anything is cached, and beside what is: cached parts are read on, and afterwards all is the object's."""
    file = far.fs.open_cached(far.path)
    assert far.fs.cache.read(file, MIB, 2 * MIB) == DATA[MIB : 2 * MIB]
    far.gateway.spoil(fault)
    for start, end in ((3 * MIB, 3 * MIB + 10), (MIB + 5, 4 * MIB)):
        with pytest.raises(ERRORS, match=r"."):
            far.fs.cache.read(file, start, end)
    assert far.gateway.spoiled >= 2
    spoiled = far.gateway.spoiled
    assert far.fs.cache.read(file, MIB + 5, 2 * MIB) == DATA[MIB + 5 : 2 * MIB]
    assert far.gateway.spoiled == spoiled
    far.gateway.spoil(None)
    assert far.is_whole()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_body_that_is_spoiled_once_is_no_wrong_byte(far: FarS3, fault: Fault) -> None:
    """Whoever tries again, the store's client, the cache or the caller: the bytes are the object's."""
    far.gateway.spoil(fault, times=1)
    try:
        assert far.fs.cat_file(far.path, 10, 3 * MIB) == DATA[10 : 3 * MIB]
    except ERRORS as error:
        assert str(error)  # noqa: PT017 - one of the two is right
    assert far.gateway.spoiled == 1
    assert far.is_whole()


def test_a_connection_that_is_reset_amid_a_body_gives_no_half(far: FarS3) -> None:
    """The reset falls into the body: bytes of it have arrived. The next connection works."""
    file = far.fs.open_cached(far.path)
    far.link.set_conditions(LinkConditions(bytes_per_s=4 * MIB), ("down",))
    began = far.link.carried["down"]
    found: list[bytes | Exception] = []

    def read() -> None:
        try:
            found.append(far.fs.cache.read(file, 0, 4 * MIB))
        except ERRORS as error:
            found.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + PATIENCE_S
    while far.link.carried["down"] - began < MIB:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    far.link.reset()
    far.link.clear()
    reader.join(PATIENCE_S)
    assert isinstance(found[0], Exception) or found[0] == DATA[: 4 * MIB]
    assert far.is_whole()


def test_a_network_that_is_cut_is_one_error_and_what_is_cached_is_read_on(far: FarS3) -> None:
    """No connection works. An open file needs none for what is here; a new one can't be proved, and is refused."""
    file = far.fs.open_cached(far.path)
    assert far.fs.cache.read(file, 0, MIB) == DATA[:MIB]
    far.link.cut()
    assert far.fs.cache.read(file, 5, MIB) == DATA[5:MIB]
    reads: list[Callable[[], object]] = [
        lambda: far.fs.cache.read(file, 0, 3 * MIB),
        lambda: far.fs.cat_file(far.path, 0, 10),
    ]
    for read in reads:
        with pytest.raises(ERRORS, match=r"."):
            read()
    far.link.clear()
    assert far.is_whole()


def test_latency_makes_reads_slower_and_not_wrong(far: FarS3) -> None:
    """A quarter of a second each way, and 8 MiB/s."""
    far.link.set_conditions(LinkConditions(latency_s=0.25, bytes_per_s=8 * MIB))
    assert far.fs.cat_ranges([far.path] * 2, [0, 3 * MIB], [10, 4 * MIB]) == [DATA[:10], DATA[3 * MIB : 4 * MIB]]
    assert far.is_whole()


def test_an_answer_that_never_ends_is_given_up_at_the_deadline(far: FarS3) -> None:
    """The store's client would wait for minutes and try again; the read's own deadline ends that, for open and read."""
    far.fs.open_cached(far.path)  # the client is made with the first request
    file = far.fs.open_cached(far.path, deadline_s=5.0)
    far.link.set_conditions(LinkConditions(blocked=True), ("down",))
    reads: list[Callable[[], object]] = [
        lambda: far.fs.cache.read(file, 0, 10),
        lambda: far.fs.open_cached(far.path, deadline_s=5.0),
    ]
    for read in reads:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="deadline"):
            read()
        assert time.monotonic() - began < 30
    far.link.clear()
    assert far.is_whole()


def test_an_object_that_is_gone_after_a_hit_is_not_found(far: FarS3) -> None:
    """Deleted under an open file: what is cached is the opened version's; what is not, and a new open, are refused."""
    file = far.fs.open_cached(far.path)
    assert far.fs.cache.read(file, 0, 10) == DATA[:10]
    fsspec.filesystem("s3", skip_instance_cache=True).rm_file(far.path)
    assert far.fs.cache.read(file, 5, 10) == DATA[5:10]
    reads: list[Callable[[], object]] = [
        lambda: far.fs.cache.read(file, 3 * MIB, 4 * MIB),
        lambda: far.fs.cat_file(far.path, 0, 10),
    ]
    for read in reads:
        with pytest.raises(FileNotFoundError):
            read()
