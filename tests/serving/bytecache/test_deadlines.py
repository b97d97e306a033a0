"""A store that answers nothing: a read has a deadline of its own."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsspec.asyn import AsyncFileSystem

from serving.bytecache.disk.directory import DirectoryOptions
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.files import ReadOptions
from serving.bytecache.shared.attached import ANSWER_S, Attached
from serving.bytecache.shared.joined import Joined
from serving.bytecache.shared.opening import close_caches
from tests.patience import PATIENCE_S
from tests.serving.bytecache.stores import DirectoryStore
from tests.serving.stack import eventually

MIB = 1 << 20
DATA = random.Random(5).randbytes(MIB)


class SilentFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """A store of one object that answers nothing until it is ``told`` to."""

    protocol = "silent"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.told = threading.Event()
        self.asked = self.given_up = 0

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": MIB, "type": "file", "ETag": "one"}

    async def _cat_file(self, _: str, start: int | None = None, end: int | None = None, **__: Any) -> bytes:
        self.asked += 1
        try:
            await asyncio.to_thread(self.told.wait, PATIENCE_S)
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return DATA[start:end]


def test_a_read_ends_at_its_deadline_and_who_waits_has_another(tmp_path: Path) -> None:
    """Who fetches gives up, and its call is ended. Who waits for it looks again: there is time left for the bytes."""
    store = SilentFileSystem()
    fs = FreshetFileSystem(fs=store, dirs=(f"{tmp_path}/cache:64MiB",), skip_instance_cache=True)
    hasty, patient = fs.open_cached("a", deadline_s=1.0), fs.open_cached("a", deadline_s=PATIENCE_S)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(fs.cache.read, hasty, 0, 10)
        deadline = time.monotonic() + PATIENCE_S
        while not store.asked:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = threads.submit(fs.cache.read, patient, 0, 10)
        with pytest.raises(TimeoutError):
            first.result(PATIENCE_S)
        while not store.given_up:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        store.told.set()
        assert second.result(PATIENCE_S) == DATA[:10]
    hasty.options.deadline_s = 0.0
    assert fs.cache.read(hasty, 0, 10) == DATA[:10], "what is here needs no time of the store"
    with pytest.raises(TimeoutError):
        fs.cache.read(hasty, MIB - 1, MIB)
    assert store.asked == 2
    close_caches()


@pytest.fixture
def claimed(store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Joined]:
    """The owner of a directory. A process that stands still fetches the only file there is, and never ends."""
    monkeypatch.setattr("serving.bytecache.reading.fetching.ELSEWHERE_SHARE", 0.02, raising=False)
    store.put("a", DATA)
    fetch = store.fetch

    def in_time(path: str, ranges: Sequence[tuple[int, int]], timeout_s: float = PATIENCE_S) -> Sequence[bytes]:
        if timeout_s <= 0:
            raise TimeoutError
        return fetch(path, ranges)

    monkeypatch.setattr(store, "fetch", in_time)
    options = DirectoryOptions(quota=64 * MIB)
    owner, stopped = Joined(tmp_path / "cache", options), Joined(tmp_path / "cache", options)
    file = ByteCache([stopped]).open(store, "a").entry
    assert file is not None
    assert list(stopped.claim(file, range(16))) == list(range(16))
    yield owner
    stopped.close()
    owner.close()


def test_readers_of_the_owner_fetch_what_a_stopped_process_fetches(store: DirectoryStore, claimed: Joined) -> None:
    """They wait for a part of their deadline only; then one of them fetches for all."""
    cache = ByteCache([claimed])
    file = cache.open(store, "a", ReadOptions(deadline_s=10.0))
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda _: cache.read(file, 0, MIB), range(4))) == [DATA] * 4
    assert store.bytes_asked == MIB


def test_an_attached_reader_fetches_what_a_stopped_process_fetches(store: DirectoryStore, claimed: Joined) -> None:
    """It waits for a part of its deadline only; what it fetched is everybody's."""
    other = Attached(Path(claimed.name), (), 64 * MIB)
    for cache in (ByteCache([other]), ByteCache([claimed])):
        assert cache.read(cache.open(store, "a", ReadOptions(deadline_s=10.0)), 0, MIB) == DATA
        assert other.writers.flush(PATIENCE_S)
    assert store.bytes_asked == MIB
    other.close()


@pytest.fixture
def standing(store: DirectoryStore, tmp_path: Path) -> Iterator[tuple[Joined, threading.Event]]:
    """Who is attached to an owner that answers nothing while the event is not set, as one that was stopped."""
    store.put("a", DATA)
    options = DirectoryOptions(quota=64 * MIB)
    owner, other, goes_on = Joined(tmp_path / "cache", options), Joined(tmp_path / "cache", options), threading.Event()
    assert owner._server is not None
    answers = owner._server._answer

    def answer(*given: Any) -> Any:
        goes_on.wait(PATIENCE_S)
        return answers(*given)

    owner._server._answer = answer  # type: ignore[assignment]
    goes_on.set()
    yield other, goes_on
    goes_on.set()
    other.close()
    owner.close()


def test_a_read_keeps_its_deadline_beside_an_owner_that_stands_still(
    store: DirectoryStore, standing: tuple[Joined, threading.Event]
) -> None:
    """Each call of the owner has half of what is left; then it is done without. The owner may answer others yet."""
    other, goes_on = standing
    cache, attached = ByteCache([other]), other._inner
    before = cache.open(store, "a", ReadOptions(deadline_s=1.0))
    assert before.entry is not None
    goes_on.clear()
    began = time.monotonic()
    new = cache.open(store, "a", ReadOptions(deadline_s=1.0))
    assert new.entry is None
    for file in (new, before):
        assert cache.read(file, 0, 10) == DATA[:10]
    store.put("a", DATA[::-1])
    with pytest.raises(ByteCacheError, match="replaced"):
        cache.read(before, MIB - 10, MIB)
    assert time.monotonic() - began < ANSWER_S / 2
    assert other._inner is attached
    goes_on.set()
    assert cache.open(store, "a").entry is not None


def test_an_owner_that_answers_no_short_deadline_for_long_is_left(
    store: DirectoryStore, standing: tuple[Joined, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each reader would wait for it again, for as long as it stands still."""
    monkeypatch.setattr("serving.bytecache.shared.attached.ANSWER_S", 0.5)
    other, goes_on = standing
    cache, attached = ByteCache([other]), other._inner
    goes_on.clear()
    eventually(
        lambda: cache.open(store, "a", ReadOptions(deadline_s=0.2)).entry is None and other._inner is not attached,
        what="another owner is looked for",
    )
