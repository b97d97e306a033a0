"""What an attached process fetched reaches the owner behind the reader: bounded, counted, and not for ever."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from serving.bytecache.disk.directory import Directory, DirectoryOptions
from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.files import OpenFile, ReadOptions
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.joined import Joined
from serving.bytecache.shared.protocol import OwnerGoneError, Store
from tests.patience import PATIENCE_S
from tests.serving.bytecache.stores import MIB, DirectoryStore
from tests.serving.stack import eventually


@dataclass
class Pair:
    """An owner, and who is attached to it, both in this process. ``gate``: closed, the owner stores nothing."""

    directory: Directory
    owner: Joined
    other: Joined
    gate: threading.Event
    store: DirectoryStore

    @property
    def attached(self) -> Attached:
        """What the other one has now."""
        assert isinstance(self.other._inner, Attached)
        return self.other._inner

    def opened(self) -> tuple[ByteCache, OpenFile]:
        """A file of a MiB, and the attached one's way to read it."""
        cache = ByteCache([self.other])
        return cache, cache.open(self.store, "a")


@pytest.fixture
def pair(store: DirectoryStore, tmp_path: Path) -> Iterator[Pair]:
    """What may wait for the owner is little: eight blocks."""
    store.put("a", b"a" * MIB)
    owner = Joined(tmp_path / "cache", DirectoryOptions(quota=32 * MIB, shards=1))
    other = Joined(tmp_path / "cache", DirectoryOptions(quota=32 * MIB, shards=1, write_buffer=8 * BLOCK))
    assert owner.directory is not None
    gate, stores = threading.Event(), owner.directory.store

    def store_later(*arguments: Any) -> None:
        gate.wait(PATIENCE_S)
        stores(*arguments)

    owner.directory.store = store_later  # type: ignore[assignment]
    gate.set()
    yield Pair(owner.directory, owner, other, gate, store)
    gate.set()
    other.close()
    owner.close()


def test_a_reader_does_not_wait_for_the_owner_to_store(pair: Pair) -> None:
    """It has its bytes, and has them again without the remote store, while the owner stores nothing yet."""
    cache, file = pair.opened()
    pair.gate.clear()
    assert cache.read(file, 0, 10) == b"a" * 10
    pair.store.asked.clear()
    assert cache.read(file, 5, 15) == b"a" * 10
    assert pair.store.asked == []
    assert file.entry is not None
    assert pair.directory.block(file.entry, 0) is None
    pair.gate.set()
    assert pair.attached.writers.flush(PATIENCE_S)
    assert pair.directory.block(file.entry, 0) == b"a" * BLOCK
    assert cache.read(file, 0, 10) == b"a" * 10
    assert pair.store.asked == []


def test_what_is_too_much_to_wait_is_dropped_counted_and_free_for_others(pair: Pair) -> None:
    """Nobody waits for a block that will never be stored."""
    cache, file = pair.opened()
    pair.gate.clear()
    assert cache.read(file, 0, 8 * BLOCK) == b"a" * 8 * BLOCK
    assert cache.read(file, 8 * BLOCK, 16 * BLOCK) == b"a" * 8 * BLOCK
    entry = file.entry
    assert entry is not None
    flights = pair.attached.flights, cache.places[0].flights
    assert flights[0] is flights[1]
    claimed = pair.directory.writers.counts.dropped, pair.attached.writers.counts.dropped_bytes
    assert claimed == (0, 8 * BLOCK)
    assert list(pair.attached.claim(entry, range(8, 16))) == list(range(8, 16))
    assert list(pair.attached.claim(entry, range(8))) == []
    pair.gate.set()
    found = pair.other.describe(files=False)
    assert found is not None
    assert found.counts["dropped_bytes"] == 8 * BLOCK


def test_what_waits_is_handed_over_when_the_reader_ends(pair: Pair) -> None:
    """Also what was fetched just before."""
    cache, file = pair.opened()
    assert cache.read(file, 0, 8 * BLOCK) == b"a" * 8 * BLOCK
    pair.other.close()
    assert file.entry is not None
    assert pair.directory.block(file.entry, 0) == b"a" * BLOCK


def test_an_owner_that_takes_nothing_over_is_looked_for_anew(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its claims of what it did not store would keep others waiting, and nothing would be stored from here on."""
    cache, file = pair.opened()
    before, asks = pair.attached, Attached._ask

    def ask(self: Attached, link: Any, request: Any, *arguments: Any, **more: Any) -> Any:
        if isinstance(request, Store):
            link.close()
            raise OwnerGoneError("no answer")
        return asks(self, link, request, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(Attached, "_ask", ask)
        assert cache.read(file, 0, 10) == b"a" * 10
        assert before.writers.flush(PATIENCE_S)
    assert cache.read(file, 10 * BLOCK, 10 * BLOCK + 10) == b"a" * 10
    assert pair.attached is not before
    assert pair.attached.writers.flush(PATIENCE_S)
    assert file.entry is not None
    assert pair.directory.block(file.entry, 10) == b"a" * BLOCK


def test_what_was_claimed_on_another_connection_is_free_when_the_owner_is_left(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader claims while something is handed over: both connections end, and nobody waits for those blocks."""
    monkeypatch.setattr("serving.bytecache.shared.attached.ANSWER_S", 2.0)
    cache, file = pair.opened()
    entry, attached = file.entry, pair.attached
    assert entry is not None
    pair.gate.clear()
    assert cache.read(file, 0, 10) == b"a" * 10
    assert list(attached.claim(entry, [4])) == [4]
    assert attached.writers.flush(PATIENCE_S)
    assert attached.writers.counts.dropped_bytes == BLOCK
    pair.gate.set()
    eventually(lambda: pair.owner.flights.under_way(entry.number, 4) is None, what="the claim has ended")
    assert cache.read(file, 4 * BLOCK, 4 * BLOCK + 10) == b"a" * 10
    assert pair.attached is not attached


def test_without_a_free_descriptor_the_owner_is_left_and_found_again(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that hands over lives on until then, and no read fails."""
    cache, file = pair.opened()
    attached = pair.attached

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    assert file.entry is not None
    with monkeypatch.context() as patched:
        patched.setattr("serving.bytecache.shared.attached.socket.socket", full)
        links, attached._idle = attached._idle, []
        attached.keep(file.entry, 0, memoryview(b"a" * BLOCK), Value.NORMAL, 0)
        assert attached.writers.flush(PATIENCE_S)
        attached._idle = links
    assert cache.read(file, BLOCK, BLOCK + 10) == b"a" * 10
    assert pair.attached is not attached
    assert pair.attached.writers.flush(PATIENCE_S)
    assert pair.directory.block(file.entry, 1) == b"a" * BLOCK


def test_a_process_that_had_many_owners_keeps_the_thread_and_files_of_one(
    store: DirectoryStore, tmp_path: Path
) -> None:
    """Each new owner is another connection, and another thread that hands over."""
    store.put("a", b"a" * MIB)
    options = DirectoryOptions(quota=32 * MIB, shards=1)
    owner = Joined(tmp_path / "cache", options)
    other = Joined(tmp_path / "cache", options)
    cache = ByteCache([other])
    counts = []
    for _ in range(3):
        assert cache.read(cache.open(store, "a"), 0, 10) == b"a" * 10
        assert isinstance(other._inner, Attached)
        eventually(lambda: len(_handing_over()) == 1, what="one thread")
        gc.collect()
        counts.append(len(os.listdir("/proc/self/fd")))
        other._inner._leave()  # as after an answer that never came
    assert counts[0] == counts[2]
    other.close()
    owner.close()


def test_a_forked_child_has_no_connection_of_its_parents_and_nothing_that_waits(pair: Pair) -> None:
    """Else what the parent claimed would outlive it, and what was forgotten meanwhile would be read for ever."""
    cache, file = pair.opened()
    pair.gate.clear()
    assert cache.read(file, 0, 10) == b"a" * 10
    entry, attached = file.entry, pair.attached
    assert entry is not None
    assert attached.block(entry, 0) is not None
    eventually(lambda: len(attached._links) > len(attached._idle), what="one is in use")
    links = [*attached._links]
    child = os.fork()
    if not child:  # what runs after a fork runs in those of `open_caches` only
        pair.other.after_fork()
        is_free = all(link.fileno() == -1 for link in links) and attached.block(entry, 0) is None
        os._exit(0 if is_free else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.parametrize("by_owner", [False, True])
def test_what_is_forgotten_is_not_read_while_it_waits(pair: Pair, by_owner: bool) -> None:
    """Not by the process that forgot it."""
    _, file = pair.opened()
    entry, place = file.entry, pair.owner if by_owner else pair.other
    assert entry is not None
    gate = threading.Event()
    writers = pair.directory.writers if by_owner else pair.attached.writers
    stores = writers._store
    writers._store = lambda write: (gate.wait(PATIENCE_S), stores(write))[1]
    known = pair.directory.known("a") if by_owner else entry
    assert known is not None
    place.keep(known, 0, memoryview(b"a" * BLOCK), Value.NORMAL, 0)
    assert place.block(known, 0) is not None
    assert place.forget("a", prefix=False) == 1
    assert place.block(known, 0) is None
    gate.set()
    assert writers.flush(PATIENCE_S)
    assert place.block(known, 0) is None


def _handing_over() -> list[threading.Thread]:
    """Threads of those that are attached: an owner has several."""
    attached = [each for each in gc.get_objects() if isinstance(each, Attached)]
    return [thread for each in attached for thread in each.writers._threads if thread.is_alive()]


def test_a_reservation_that_is_refused_leaves_no_connection(pair: Pair) -> None:
    """Each has a connection of its own: who asks again and again would use up descriptors, also those of the owner."""
    known = len(pair.attached._links)
    for _ in range(3):
        assert pair.other.reserve(64 * MIB) is None
    assert len(pair.attached._links) == known
    given = pair.other.reserve(MIB)
    assert given is not None
    assert len(pair.attached._links) == known + 1
    given()
    assert len(pair.attached._links) == known


def test_what_comes_of_a_file_that_was_forgotten_meanwhile_is_claimed_no_more(pair: Pair) -> None:
    """It is not stored; who waits for its blocks must hear of it, though the process that claimed them lives on."""
    _, file = pair.opened()
    assert file.entry is not None
    assert pair.attached.claim(file.entry, [0, 1]) == [0, 1]
    assert pair.owner.flights.under_way(file.entry.number, 1) is not None
    assert pair.directory.forget(pair.directory.matching("a", prefix=False)) == 1
    pair.attached.keep(file.entry, 0, memoryview(bytes(2 * BLOCK)), Value.NORMAL, 0)
    assert pair.attached.writers.flush(PATIENCE_S)
    assert [pair.owner.flights.under_way(file.entry.number, block) for block in (0, 1)] == [None, None]


def test_what_lives_for_centuries_is_handed_over(pair: Pair) -> None:
    """Longer than a message or a head can say: it is stored, and the thread that hands over lives on."""
    cache = ByteCache([pair.other])
    file = cache.open(pair.store, "a", ReadOptions(ttl_s=10**30))
    assert file.entry is not None
    for i in range(2):
        assert cache.read(file, i * BLOCK, i * BLOCK + 10) == b"a" * 10
        assert pair.attached.writers.flush(PATIENCE_S)
        assert pair.directory.block(file.entry, i) == b"a" * BLOCK


def test_what_has_left_the_directory_is_not_remembered_for_ever(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that lives for months would have a place for each extent that it ever fetched."""
    monkeypatch.setattr("serving.bytecache.shared.attached.LEARNED_MIN", 8)
    pair.attached._learned_max = 8
    (shard,) = pair.attached._extents
    kept = pair.attached.enter("kept", "1", BLOCK, "")
    assert kept is not None
    pair.attached.keep(kept, 0, memoryview(b"k" * BLOCK), Value.NORMAL, 0)
    for version in range(60):  # each forgets the one before
        entry = pair.attached.enter("a", str(version), BLOCK, "")
        assert entry is not None
        pair.attached.keep(entry, 0, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
        assert pair.attached.writers.flush(PATIENCE_S)
        assert pair.attached.read(entry, 0, 10) == bytes(10)
    assert len(shard.table) < 30
    assert pair.attached.read(kept, 0, 10) == b"k" * 10
