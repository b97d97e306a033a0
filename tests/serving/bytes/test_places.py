"""Of the files that a front may read at a time each answer holds one, however it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from serving.bytecache.filesystem.remote import Remote
from serving.bytecache.reading.source import Identity
from serving.bytecache.shared.opening import close_caches
from serving.errors import ReadError
from serving.http.bytes.files import Files
from serving.http.bytes.routes import BytesParameters, get_bytes
from serving.http.front import Front, make_front
from serving.http.responses import Response
from serving.http.streaming.sending import Streaming
from serving.locations.refreshing import Locations
from stream.access.who import asking
from tests.patience import PATIENCE_S

Story = Callable[[Front, Files], Coroutine[Any, Any, None]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of a folder that is served."""
    (tmp_path / "root").mkdir()
    path = tmp_path / "root" / "a"
    path.write_bytes(b"1" * 100_000)
    return path


@pytest.fixture
def told(file: Path, tmp_path: Path) -> Iterator[Callable[[Story], None]]:
    """Tells a story of a front that serves the file's folder; afterwards no answer may hold a file."""

    def tell(story: Story) -> None:
        async def run() -> None:
            files = Files([f"file://{file.parent}"], {"dirs": [f"{tmp_path}/cache:64MiB"], "shards": 1})
            await story(make_front([], Locations(), files=files), files)
            assert files._open == 0
            await files.close()

        asyncio.run(run())

    yield tell
    close_caches()


async def nobody_leaves() -> Message:
    """A connection whose reader stays."""
    await asyncio.Event().wait()
    raise AssertionError


async def takes(_: Message) -> None:
    """A reader takes a message."""


def test_an_answer_that_has_no_bytes_gives_its_file_back(file: Path, told: Callable[[Story], None]) -> None:
    """Browsers ask again and again whether what they have is still the file."""

    async def story(front: Front, files: Files) -> None:
        answer = await get_bytes(front, BytesParameters(f"file://{file}", if_none_match="*"), None)
        assert isinstance(answer, Response)
        assert (answer.status, files._open) == (304, 0)

    told(story)


@pytest.mark.parametrize(
    ("asked", "code"), [({"if_match": '"another"'}, "precondition_failed"), ({"range": "bytes=100000-"}, "bad_range")]
)
def test_a_refusal_gives_its_file_back(
    file: Path, told: Callable[[Story], None], asked: dict[str, str], code: str
) -> None:
    """Nothing of it is read any more."""

    async def story(front: Front, _: Files) -> None:
        with pytest.raises(ReadError) as refused:
            await get_bytes(front, BytesParameters(f"file://{file}", **asked), None)
        assert refused.value.code == code

    told(story)


@pytest.mark.parametrize("head_only", [True, False])
def test_an_answer_that_is_whole_gives_its_file_back(
    file: Path, told: Callable[[Story], None], head_only: bool
) -> None:
    """Also one of which only the head was asked for."""

    async def story(front: Front, files: Files) -> None:
        answer = await get_bytes(front, BytesParameters(f"file://{file}"), None)
        assert isinstance(answer, Streaming)
        assert files._open == 1
        await answer.send(nobody_leaves, takes, head_only=head_only)

    told(story)


def test_a_file_that_is_gone_before_its_first_byte_gives_its_place_back(
    file: Path, told: Callable[[Story], None]
) -> None:
    """What fails before anything is sent has a status, and holds nothing."""

    async def story(front: Front, files: Files) -> None:
        answer = await get_bytes(front, BytesParameters(f"file://{file}"), None)
        assert isinstance(answer, Streaming)
        await asyncio.to_thread(file.unlink)
        with pytest.raises(ReadError) as failed:
            await answer.send(nobody_leaves, takes)
        assert (failed.value.code, files._open) == ("file_not_found", 0)

    told(story)


def test_a_file_of_unknown_length_is_refused_and_holds_no_place(
    file: Path, told: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer names the length of the file, so that ranges of it can be asked for."""
    monkeypatch.setattr(Remote, "identity", lambda *_: Identity("", -1))

    async def story(front: Front, files: Files) -> None:
        with pytest.raises(ReadError, match="how long") as refused:
            await get_bytes(front, BytesParameters(f"file://{file}"), None)
        assert (refused.value.code, files._open) == ("source_failed", 0)

    told(story)


@pytest.mark.parametrize("name", ["OPEN_MAX", "LEFT_MAX"])
def test_a_reader_who_leaves_holds_a_place_until_the_store_answers(
    file: Path, told: Callable[[Story], None], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Its thread works on: without a place for it a slow store would take all threads, and others wait without end.

    Nor may one caller hold them all by asking again and again.
    """
    uri, hangs = f"file://{file}", threading.Event()
    monkeypatch.setattr(f"serving.http.bytes.files.{name}", 1)

    async def story(_: Front, files: Files) -> None:
        asking.set("one")
        opened = await files.open(uri)
        monkeypatch.setattr(opened._opened, "read_ranges", lambda _: hangs.wait(PATIENCE_S))
        reading = asyncio.create_task(opened.read([(0, 1)]))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.wait([reading])
        await opened.close()
        with pytest.raises(ReadError) as refused:
            await files.open(uri)
        assert refused.value.code == "too_many_requests"
        if name == "LEFT_MAX":
            asking.set("another")
            await (await files.open(uri)).close()
            asking.set("one")
        left = [*files._left]
        hangs.set()
        await asyncio.wait(left)
        await asyncio.sleep(0)
        await (await files.open(uri)).close()

    told(story)
