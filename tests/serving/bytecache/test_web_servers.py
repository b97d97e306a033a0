"""Files of HTTP servers: which version they have, and what servers say that can't give them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.shared.opening import close_caches
from serving.errors import ReadError
from serving.http.bytes.files import Files
from tests.serving.bytecache.web_server import WebServer

LONG_AGO = 1_700_000_000.0
AHEAD_S = 3_600


@pytest.fixture
def server() -> Iterator[WebServer]:
    """One whose file was changed long ago."""
    found = WebServer(b"1" * 100_000, LONG_AGO)
    yield found
    found.end()


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[FreshetFileSystem]:
    """Files of HTTP servers through an empty cache."""
    yield FreshetFileSystem(target_protocol="http", dirs=(f"{tmp_path}/cache:64MiB",), skip_instance_cache=True)
    close_caches()


def test_an_overwrite_under_the_same_tag_is_read(fs: FreshetFileSystem, server: WebServer) -> None:
    """nginx's tag has whole seconds and the length: one of this second may be of other bytes soon, and is not kept."""
    server.changed = int(time.time()) + AHEAD_S  # young for the whole test
    for content in (b"1", b"2"):
        server.data = content * 100_000
        for _ in range(2):
            assert fs.cat_file(server.url, 5, 8) == content * 3
    assert fs.tally.hit_bytes == 0


@pytest.mark.parametrize("tag", [None, ""])
def test_what_was_changed_a_while_ago_is_kept_until_it_changes(
    fs: FreshetFileSystem, server: WebServer, tag: str | None
) -> None:
    """By the tag, or where the server has none by the time of change alone."""
    server.tag = tag
    for number in (1, 2):
        server.changed, server.data = server.changed + number, b"%d" % number * 100_000
        sent = server.sent
        for _ in range(2):
            assert fs.cat_file(server.url) == server.data
        assert server.sent == sent + len(server.data)


def test_a_file_that_is_put_back_amid_a_fetch_gives_no_byte_of_the_other(
    fs: FreshetFileSystem, server: WebServer
) -> None:
    """A tag of the content is the old one again then; the time of change is not."""
    server.tag = '"of the content"'

    def replaced() -> None:
        server.data = b"2" * 100_000
        server.changed += 1

    server.before_body = replaced
    with pytest.raises(ByteCacheError) as changed:
        fs.cat_file(server.url)
    assert changed.value.code == "file_changed"
    server.before_body, server.data = lambda: None, b"1" * 100_000
    assert fs.cat_file(server.url) == b"1" * 100_000


@pytest.fixture
def files(tmp_path: Path, server: WebServer) -> Iterator[Files]:
    """A front's, below the server."""
    root = server.url.rpartition("/")[0]
    yield Files([root], {"dirs": (f"{tmp_path}/front:64MiB",)})
    close_caches()


def refused(files: Files, uri: str) -> str:
    """The code with which a front refuses a file."""

    async def ask() -> str:
        with pytest.raises(ReadError) as error:
            await files.open(uri)
        return error.value.code

    return asyncio.run(ask())


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_server_that_fails_is_no_missing_file(
    fs: FreshetFileSystem, files: Files, server: WebServer, status: int
) -> None:
    """Whoever is told that a file does not exist goes on without it: a table without one of its files."""
    assert fs.cat_file(server.url, 0, 3) == b"111"
    server.status = status
    for ask in (fs.cat_file, fs.info, fs.exists, fs.isfile, fs.ls):
        with pytest.raises(aiohttp.ClientResponseError) as failed:
            ask(server.url)
        assert failed.value.status == status
    assert refused(files, server.url) == "source_failed"


@pytest.mark.parametrize("status", [404, 410])
def test_a_file_that_a_server_does_not_have_is_not_found(
    fs: FreshetFileSystem, files: Files, server: WebServer, status: int
) -> None:
    """As of any store. What is no URL is not there either."""
    for url in (server.url, "no URL"):
        assert fs.exists(url) is fs.isfile(url) is (url == server.url)
    server.status = status
    for ask in (fs.cat_file, fs.info):
        with pytest.raises(FileNotFoundError):
            ask(server.url)
    assert not fs.exists(server.url)
    assert not fs.isfile(server.url)
    assert refused(files, server.url) == "file_not_found"


def test_a_server_that_is_away_or_silent_is_no_missing_file(tmp_path: Path, files: Files, server: WebServer) -> None:
    """A connection that is refused, and one on which nothing comes for as long as the client waits."""
    client: dict[str, Any] = {"client_kwargs": {"timeout": aiohttp.ClientTimeout(total=0.1)}}
    dirs = (f"{tmp_path}/cache:64MiB",)
    hasty = FreshetFileSystem(target_protocol="http", target_options=client, dirs=dirs, skip_instance_cache=True)
    server.silent = True
    asks = (hasty.cat_file, hasty.info, hasty.exists, hasty.isfile)
    for ask in asks:
        with pytest.raises(TimeoutError):
            ask(server.url)
    server.end()
    for ask in asks:
        with pytest.raises(ConnectionError):
            ask(server.url)
    assert refused(files, server.url) == "source_unreachable"


def test_a_small_read_of_a_server_without_ranges_loads_no_whole_file(
    fs: FreshetFileSystem, files: Files, server: WebServer
) -> None:
    """It is refused before the body comes, once, and the message says what the server does."""
    server.data, server.has_ranges = b"1" * (64 << 20), False
    for path in (server.url, "file"):
        given = fs if path == server.url else rooted(fs, server)
        calls = given.tally.source_calls
        with pytest.raises(ByteCacheError, match="ignores ranges") as refused:
            given.cat_file(path, 1_000_000, 1_000_010)
        assert refused.value.code == "no_ranges"
        assert given.tally.source_calls == calls + 1
        assert given.cat_file(path, 5, 9) == b"1111"
    assert server.sent < len(server.data) // 2
    assert asyncio.run(read(files, server.url, 1_000_000, 1_000_010)) == "source_failed"


def rooted(fs: FreshetFileSystem, server: WebServer) -> FreshetFileSystem:
    """The same files, below a folder that looks like a root."""
    below = DirFileSystem(server.url.rpartition("/")[0], fs.fs)
    return FreshetFileSystem(fs=below, dirs=fs._options.dirs, skip_instance_cache=True)


async def read(files: Files, uri: str, start: int, end: int) -> str:
    """The code with which a front refuses a range."""
    file = await files.open(uri)
    with pytest.raises(ReadError, match="ignores ranges") as error:
        await file.read([(start, end)])
    await file.close()
    return error.value.code


def test_a_server_without_ranges_gives_whole_files(fs: FreshetFileSystem, server: WebServer) -> None:
    """Also such as are longer than one request asks for, though they can't be cached."""
    server.data, server.has_ranges = random.Random(1).randbytes(20_000_000), False
    assert fs.cat_file(server.url) == server.data
    with fs.open(server.url) as file:
        assert file.read() == server.data


@pytest.mark.parametrize("has_ranges", [True, False])
def test_a_part_of_a_file_of_unknown_length_is_never_the_whole(
    fs: FreshetFileSystem, server: WebServer, has_ranges: bool
) -> None:
    """A server that sends it in chunks, with ranges or without: fsspec's client takes whatever comes for the range."""
    server.data, server.says_length, server.has_ranges = random.Random(1).randbytes(300_000), False, has_ranges
    assert fs.cat_file(server.url) == server.data
    assert fs.cat_file(server.url, 0, 10) == server.data[:10]
    assert fs.cat_file(server.url, 0) == server.data
    for start, end in ((1_000, 1_010), (1_000, None), (-10, None)):
        if has_ranges:
            assert fs.cat_file(server.url, start, end) == server.data[start:end]
        else:
            with pytest.raises(ByteCacheError, match="ignores ranges"):
                fs.cat_file(server.url, start, end)
    for first, last in ((None, 0), (5, 5), (0, 0), (-5, 0), (-5, -5), (10, 5)):
        assert fs.cat_file(server.url, first, last) == b""
    [found] = fs.cat_ranges([server.url], [1_000], [1_010])
    assert found == server.data[1_000:1_010] if has_ranges else isinstance(found, ByteCacheError)
