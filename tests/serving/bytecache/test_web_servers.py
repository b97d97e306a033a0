"""Files of HTTP servers: which version they have, and what servers say that can't give them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.shared.opening import close_caches
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
