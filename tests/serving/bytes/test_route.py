"""``GET /v1/bytes/{uri}`` on a real socket, over real files."""

from __future__ import annotations

import asyncio
import email
import itertools
import os
import random
import threading
import time
from contextlib import ExitStack
from email.message import Message
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from serving.bytecache.filesystem.remote import Remote
from serving.bytecache.reading.source import Identity
from serving.client import AsyncClient, BadRequest, Conflict, FreshetClient, NotFoundError
from serving.errors import ReadError
from serving.http.bytes.files import Files
from serving.http.bytes.naming import root_of
from serving.http.limits import CallerLimits
from tests.patience import PATIENCE_S
from tests.serving.bytecache.stores import aged
from tests.serving.bytes.conftest import FileFront
from tokens.errors import FreshetError

MIB = 1 << 20


@pytest.fixture
def data(front: FileFront) -> bytes:
    """What the file ``a`` holds: more than a piece."""
    content = random.Random(5).randbytes(9 * MIB + 11)
    (front.root / "a").write_bytes(content)
    aged(front.root / "a")
    return content


def test_a_file_and_its_ranges_are_given(front: FileFront, data: bytes) -> None:
    """The whole, a part, what follows a byte, and the last bytes; each is as a direct read."""
    whole = front.ask("a")
    assert (whole.status_code, whole.content) == (200, data)
    assert whole.headers["accept-ranges"] == "bytes"
    size = len(data)
    for text, start, end in (
        ("bytes=0-0", 0, 1),
        ("bytes=5-99", 5, 100),
        (f"bytes={size - 3}-", size - 3, size),
        ("bytes=-7", size - 7, size),
        (f"bytes=-{size + 5}", 0, size),
        (f"bytes=10-{size + 9}", 10, size),
        (f"bytes={MIB}-{8 * MIB}", MIB, 8 * MIB + 1),
    ):
        part = front.ask("a", range=text)
        assert (part.status_code, part.content == data[start:end]) == (206, True), text
        assert part.headers["content-range"] == f"bytes {start}-{end - 1}/{size}"
        assert part.headers["etag"] == whole.headers["etag"]


def test_several_ranges_make_a_multipart_answer(front: FileFront, data: bytes) -> None:
    """In the order that was asked for, overlaps too, small and large ones; those past the end are left out."""
    asked = [(5, 10), (7 * MIB, 8 * MIB), (0, 1), (6, 5 * MIB), (len(data) - 2, len(data))]
    text = ",".join(f"{start}-{end - 1}" for start, end in asked)
    answer = front.ask("a", range=f"bytes={text}, {len(data)}-")
    assert answer.status_code == 206
    assert int(answer.headers["content-length"]) == len(answer.content)
    head = f"content-type: {answer.headers['content-type']}\r\n\r\n".encode()
    parts = email.message_from_bytes(head + answer.content).get_payload()
    assert isinstance(parts, list)
    found = []
    for part in parts:
        assert isinstance(part, Message)
        found.append(part["content-range"])
    assert found == [f"bytes {start}-{end - 1}/{len(data)}" for start, end in asked]
    rest = answer.content
    for start, end in asked:
        head_end = rest.index(b"\r\n\r\n", 2) + 4
        assert rest[head_end : head_end + end - start] == data[start:end]
        rest = rest[head_end + end - start :]
    assert rest.startswith(b"\r\n--")
    assert rest.endswith(b"--\r\n")


@pytest.mark.parametrize(
    "text", ["bytes=5-4", "bytes=x-", "bytes=", "lines=1-2", "bytes=-", "bytes 1-2", "bytes=1-2,x"]
)
def test_a_range_that_cannot_be_read_is_passed_over(front: FileFront, text: str) -> None:
    """As RFC 9110 says: the whole file is the answer."""
    (front.root / "b").write_bytes(b"abc")
    answer = front.ask("b", range=text)
    assert (answer.status_code, answer.content) == (200, b"abc")


def test_overlapping_ranges_are_the_file_once(front: FileFront, data: bytes) -> None:
    """A hundred times all of it is not sent; ranges that overlap a little are."""
    answer = front.ask("a", range="bytes=" + ",".join(["0-"] * 100))
    assert (answer.status_code, answer.content) == (200, data)
    assert front.ask("a", range="bytes=0-10,5-15").status_code == 206


def test_ranges_past_the_end_are_refused_with_the_length(front: FileFront) -> None:
    """416 says how long the file is; an empty file has no range, and too many ranges are refused."""
    (front.root / "b").write_bytes(b"abc")
    (front.root / "empty").write_bytes(b"")
    many = "bytes=" + ",".join(["0-0"] * 101)
    for name, text, size in (("b", "bytes=3-", 3), ("b", "bytes=-0", 3), ("empty", "bytes=0-", 0), ("b", many, 3)):
        answer = front.ask(name, range=text)
        assert (answer.status_code, answer.json()["code"]) == (416, "bad_range"), text
        assert answer.headers["content-range"] == f"bytes */{size}"
    assert front.ask("empty").content == b""


@pytest.mark.parametrize("ranges", ["bytes=0-9", "bytes=0-1,5-6", "bytes=999999999-"])
def test_a_head_is_of_the_whole_file(front: FileFront, data: bytes, ranges: str) -> None:
    """RFC 9110 has ranges for GET alone: who asks how long a file is would take a part's length for it."""
    answer = front.ask("a", "HEAD", range=ranges)
    assert (answer.status_code, answer.headers["content-length"]) == (200, str(len(data)))
    assert "content-range" not in answer.headers


def test_a_replaced_file_has_another_tag_and_its_own_bytes(front: FileFront) -> None:
    """Same length, another version: If-Range gives all of the new one, If-Match refuses, If-None-Match sends it."""
    path = front.root / "b"
    path.write_bytes(b"1" * 100_000)
    aged(path)
    before = front.ask("b").headers["etag"]
    assert front.ask("b", if_none_match=f'"x", {before}').status_code == 304
    part = front.ask("b", range="bytes=0-1", if_range=before)
    assert (part.status_code, part.content) == (206, b"11")
    fresh = front.root / "new"
    fresh.write_bytes(b"2" * 100_000)
    os.replace(fresh, path)
    aged(path)
    part = front.ask("b", range="bytes=0-1", if_range=before)
    assert (part.status_code, part.content) == (200, b"2" * 100_000)
    assert front.ask("b", if_none_match=before).status_code == 200
    refused = front.ask("b", if_match=before)
    assert (refused.status_code, refused.json()["code"]) == (412, "precondition_failed")
    after = front.ask("b", if_match="*").headers["etag"]
    assert after != before
    assert front.ask("b", range="bytes=0-1", if_range=f"W/{after}").status_code == 200
    assert front.ask("b", if_match=f"W/{after}").status_code == 412, "a weak tag proves no bytes"
    assert front.ask("b", if_none_match=f"W/{after}").status_code == 304


def test_a_file_that_may_still_change_under_its_version_has_no_tag(front: FileFront) -> None:
    """A client that began with it would be given the rest of another one."""
    (front.root / "young").write_bytes(b"1" * 100)
    os.utime(front.root / "young", (time.time() + 3_600,) * 2)
    assert "etag" not in front.ask("young").headers
    assert front.ask("young", range="bytes=0-1", if_range='""').status_code == 200


def test_a_version_that_is_no_text_has_a_tag(front: FileFront, monkeypatch: pytest.MonkeyPatch) -> None:
    """An origin's ETag may have any bytes."""
    (front.root / "odd").write_bytes(b"odd")
    monkeypatch.setattr(Remote, "identity", lambda *_: Identity('"\udce9"', 3))
    answer = front.ask("odd")
    assert (answer.status_code, answer.content) == (200, b"odd")
    assert front.ask("odd", if_none_match=answer.headers["etag"]).status_code == 304


def test_what_cannot_be_opened_takes_no_place(front: FileFront, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often a missing file is asked for, others' files are read."""
    monkeypatch.setattr("serving.http.bytes.files.OPEN_MAX", 2)
    for _ in range(3):
        assert front.ask("missing").status_code == 404
    assert front.ask("a", range="bytes=0-1").content == data[:2]


def test_head_says_what_get_would(front: FileFront, data: bytes) -> None:
    """Length and tag without a byte, and without a read of the store."""
    before = front.metric("freshet_bytes_reads_total{", "source_bytes")
    answer = front.ask("a", "HEAD")
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", str(len(data)))
    assert front.ask("missing", "HEAD").status_code == 404
    assert front.metric("freshet_bytes_reads_total{", "source_bytes") == before
    assert front.ask("a", range="bytes=0-3").headers["etag"] == answer.headers["etag"]


def test_a_second_read_comes_from_the_cache_and_is_counted(front: FileFront) -> None:
    """The answer's headers and /metrics say what was here and what was fetched; the sums fit."""
    (front.root / "b").write_bytes(b"b" * 300_000)
    aged(front.root / "b")
    first, second = (front.ask("b", range="bytes=10-200009").headers for _ in range(2))
    assert (first["freshet-served-from"], first["freshet-misses"], first["freshet-miss-bytes"]) == (
        "source",
        "1",
        "200000",
    )
    assert (second["freshet-served-from"], second["freshet-hits"], second["freshet-hit-bytes"]) == (
        "cache",
        "1",
        "200000",
    )
    for name in ("hit_bytes", "miss_bytes"):
        assert front.reaches("freshet_bytes_reads_total{", name, 200_000)
        assert front.metric("freshet_bytes_reads_total{", name) == 200_000
    of_directory = f'freshet_bytes_reads_total{{count="hit_bytes",directory="{front.root.parent}/cache"}}'
    assert front.metric(of_directory) == 200_000
    assert front.reaches("freshet_bytes_directory_used_bytes{", "", 200_000)
    assert front.reaches("freshet_bytes_directory_total{", "written_bytes", 200_000)
    assert front.metric("freshet_bytes_directory_total{", "damaged_blocks") == 0


def test_requests_and_calls_of_the_disk_have_histograms(front: FileFront, data: bytes) -> None:
    """What each request found and fetched, how long it took, and how long the disk's calls took; HEAD is none."""
    for _ in range(2):
        assert front.ask("a", range="bytes=0-199999").content == data[:200_000]
        assert front.reaches('freshet_bytes_directory_seconds_count{call="write"', "", 1)
    front.ask("a", "HEAD")
    for of, count, total in (("cache", 2, 200_000), ("source", 2, 200_000)):
        assert front.metric(f'freshet_bytes_request_bytes_count{{from="{of}"}}') == count
        assert front.metric(f'freshet_bytes_request_bytes_sum{{from="{of}"}}') == total
        assert front.metric(f'freshet_bytes_request_seconds_count{{from="{of}"}}') == 1
        assert front.metric(f'freshet_bytes_request_seconds_sum{{from="{of}"}}') > 0
    assert front.metric('freshet_bytes_directory_seconds_count{call="read"') >= 1
    assert front.metric('freshet_bytes_directory_seconds_count{call="evict"') == 0


def test_nothing_outside_of_the_roots_is_given(front: FileFront, tmp_path: Path) -> None:
    """However the way out is spelled: dots, encoded dots, links, other schemes, chains, a root's mere beginning."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (tmp_path / "served-not").mkdir()
    (tmp_path / "served-not" / "x").write_bytes(b"secret")
    (front.root / "in").mkdir()
    (front.root / "in" / "link").symlink_to(secret)
    (front.root / "out").symlink_to(tmp_path)
    root = f"file://{front.root}"
    for uri in (
        f"file://{secret}",
        f"{root}/../secret",
        f"{root}/in/../../secret",
        f"{root}/%2e%2e/secret",
        f"{root}/%252e%252e/secret",
        f"{root}/..\\secret",
        f"{root}/./in/link",
        f"{root}/in/link",
        f"{root}/out/secret",
        f"{root}-not/x",
        f"{root}/",
        root,
        f"freshet::{root}/in/link",
        f"local://{front.root}/in/link",
        str(secret),
        f"memory://{secret}",
        "s3://bucket/key",
        "",
        "file://~/x",
    ):
        for spelled in (quote(uri, safe=""), quote(uri, safe=":/%")):
            answer = httpx2.get(f"{front.url}/v1/bytes/{spelled}", timeout=60)
            assert answer.status_code in (400, 404), uri
            assert b"secret" not in answer.content.replace(uri.encode(), b""), uri


@pytest.mark.parametrize("way", ["..;x/s", "%2e%2e;x=1/s", "a/..;/..;/s", "..%3Bx/s", "~;x/s"])
def test_a_parameter_hides_no_way_out(way: str) -> None:
    """HTTP servers in Java take ``..;x`` for ``..``."""
    with pytest.raises(ReadError) as refused:
        root_of(f"https://lake/in/{way}", ["https://lake/in"])
    assert refused.value.code == "not_served"
    assert root_of("https://lake/in/a;x/..s", ["https://lake/in"]) == "https://lake/in"


def test_what_is_no_file_is_refused(front: FileFront) -> None:
    """A folder, a missing name and a pipe: a pipe would hold a thread for ever."""
    (front.root / "folder").mkdir()
    os.mkfifo(front.root / "pipe")
    for name in ("folder", "missing", "pipe", "b/c"):
        answer = front.ask(name)
        assert (answer.status_code, answer.json()["code"]) == (404, "file_not_found"), name
    wrong = httpx2.post(f"{front.url}/v1/bytes/file://{front.root}/missing", timeout=60)
    assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")


def test_names_are_taken_as_they_are(front: FileFront) -> None:
    """Blanks, percent signs, question marks and letters of all alphabets, encoded once."""
    for name in ("a b", "50%", "what?", "über", "a#b", "a+b", "a,b=c", "a%20b"):
        (front.root / name).write_bytes(name.encode())
        assert front.ask(quote(name)).content == name.encode()


def test_a_file_replaced_amid_a_long_answer_ends_the_connection(front: FileFront, data: bytes) -> None:
    """No reader takes a mixture of two versions for one file: the answer stays shorter than it said."""
    url = f"{front.url}/v1/bytes/file://{front.root}/a"
    fresh = front.root / "new"
    data *= 8  # more than what is fetched ahead, and than what a connection holds
    (front.root / "a").write_bytes(data)
    aged(front.root / "a")
    with httpx2.stream("GET", url, timeout=60) as answer:
        pieces = answer.iter_bytes(64 * 1024)
        got = bytearray(next(pieces))
        fresh.write_bytes(bytes(len(data)))
        os.replace(fresh, front.root / "a")
        with pytest.raises(httpx2.RemoteProtocolError):
            got.extend(itertools.chain.from_iterable(pieces))
    assert data.startswith(bytes(got))
    assert front.ask("a").content == bytes(len(data))


def begin(url: str, reading: ExitStack) -> None:
    """A reader that has begun; who has left just now may still hold its place."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := reading.enter_context(httpx2.stream("GET", url, timeout=60))).status_code == 429:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert answer.status_code == 200


def test_readers_that_leave_make_room(front: FileFront, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many may read at a time, then 429; who leaves amid an answer makes room for the next one."""
    monkeypatch.setattr("serving.http.bytes.files.OPEN_MAX", 2)
    url = f"{front.url}/v1/bytes/file://{front.root}/a"
    for _ in range(3):
        with ExitStack() as reading:
            for _ in range(2):
                begin(url, reading)
            full = front.ask("a", range="bytes=0-1")
            assert (full.status_code, full.json()["code"]) == (429, "too_many_requests")
        deadline = time.monotonic() + PATIENCE_S
        while (part := front.ask("a", range="bytes=0-1")).status_code == 429:
            assert time.monotonic() < deadline
        assert part.content == data[:2]


def test_who_leaves_while_a_file_is_opened_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may be slow to say which version it has: some readers who don't wait would use up all places."""
    (tmp_path / "root").mkdir()
    hangs = threading.Event()

    async def story() -> None:
        files = Files([f"file://{tmp_path / 'root'}"], {"dirs": [str(tmp_path / "cache")]})
        loop, is_opening = asyncio.get_running_loop(), asyncio.Event()

        def slow(*_: str) -> None:
            loop.call_soon_threadsafe(is_opening.set)
            hangs.wait(PATIENCE_S)
            raise FileNotFoundError

        monkeypatch.setattr(files, "_open_now", slow)
        opening = asyncio.create_task(files.open(f"file://{tmp_path / 'root' / 'a'}"))
        async with asyncio.timeout(PATIENCE_S):
            await is_opening.wait()
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        hangs.set()
        assert files._open == 0
        await files.close()

    asyncio.run(story())


def test_a_store_that_does_not_answer_holds_up_only_who_reads_from_it(tmp_path: Path) -> None:
    """One caller may read half of the files at a time, all from a store that hangs: others' files are read."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a").write_bytes(b"data")
    uri, hangs = f"file://{tmp_path / 'root' / 'a'}", threading.Event()

    async def story() -> None:
        files = Files([f"file://{tmp_path / 'root'}"], {"dirs": [str(tmp_path / "cache")]})
        stuck = [asyncio.create_task(files._run(uri, hangs.wait)) for _ in range(CallerLimits().files)]
        try:
            await asyncio.sleep(0)
            async with asyncio.timeout(PATIENCE_S):
                assert (await files.open(uri)).size == 4
            assert not any(each.done() for each in stuck)
        finally:
            hangs.set()
            await asyncio.gather(*stuck)
            await files.close()

    asyncio.run(story())


def test_the_clients_read_files(front: FileFront, data: bytes) -> None:
    """Both give bytes, place, length and tag, and raise what the front refuses."""
    uri = f"file://{front.root}/a"
    with FreshetClient(front.url) as client:
        whole = client.get_bytes(uri)
        assert (whole.data, whole.start, whole.size) == (data, 0, len(data))
        part = client.get_bytes(uri, 3, 10, etag=whole.etag)
        assert part == (data[3:10], 3, len(data), whole.etag)
        assert client.get_bytes(uri, len(data) - 4).data == data[-4:]
        with pytest.raises(Conflict) as conflict:
            client.get_bytes(uri, etag='"other"')
        assert conflict.value.code == "precondition_failed"
        with pytest.raises(BadRequest):
            client.get_bytes(uri, len(data))
        for start, end in ((0, 0), (5, 5), (5, 4), (-3, None)):  # for these a server would give the whole file
            with pytest.raises(BadRequest) as nothing:
                client.get_bytes(uri, start, end)
            assert nothing.value.code == "bad_range"
        with pytest.raises(NotFoundError):
            client.get_bytes(f"file://{front.root}/missing")

    async def read() -> bytes:
        async with AsyncClient(front.url) as client:
            return (await client.get_bytes(uri, 5, 9)).data

    assert asyncio.run(read()) == data[5:9]


def test_a_directory_that_cannot_be_used_is_told_at_the_start(tmp_path: Path) -> None:
    """A front does not begin to serve with a cache that refuses its directory."""
    (tmp_path / "other").write_text("not the cache's")
    with pytest.raises(FreshetError) as refused:
        Files([f"file://{tmp_path}"], {"dirs": (str(tmp_path),)})
    assert refused.value.code == "bytes_dir_foreign"
