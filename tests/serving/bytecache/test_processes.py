"""One cache for all processes of a machine: who owns it, who is attached, and what happens when one ends."""

from __future__ import annotations

import errno
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO

import pytest

from serving.bytecache.disk.directory import DirectoryOptions
from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.fetching import FetchRules
from serving.bytecache.reading.files import ReadOptions
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.joined import Joined
from serving.bytecache.shared.protocol import OwnerGoneError
from tests.serving.bytecache.stores import MIB, DirectoryStore
from tests.serving.stack import eventually

READER = """
import json, sys
from pathlib import Path
from serving.bytecache.disk.directory import DirectoryOptions
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.shared.joined import Joined
from tests.serving.bytecache.stores import DirectoryStore
store = DirectoryStore(Path(sys.argv[1]))
place = Joined(Path(sys.argv[2]), DirectoryOptions(quota=64 << 20, key_file=sys.argv[3]))
cache = ByteCache([place])
print("owner" if place.directory else "attached", flush=True)
for line in sys.stdin:
    path, start, end = line.split()
    store.asked.clear()
    file = cache.open(store, path)
    data = cache.read(file, int(start), int(end))
    same = data == (store.root / path).read_bytes()[int(start):int(end)]
    print(json.dumps({"same": same, "asked": store.asked, "owner": bool(place.directory)}), flush=True)
place.close()
"""


class Reader:
    """Another process that reads through the same directory."""

    def __init__(self, store: DirectoryStore, place: Path, key_file: str = "") -> None:
        command = [sys.executable, "-c", READER, str(store.root), str(place), key_file]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.role = self._output.readline().strip()

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout

    def ask(self, path: str, start: int, end: int) -> None:
        """Begins a read."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{path} {start} {end}\n")
        self.process.stdin.flush()

    def answer(self) -> tuple[int, bool]:
        """(bytes asked of the store, whether it owns the directory now) of the read; its bytes were the file's."""
        found = json.loads(self._output.readline())
        assert found["same"]
        return sum(end - start for _, start, end in found["asked"]), found["owner"]

    def end(self, number: int = 0) -> None:
        """Ends it: by a signal, or by the end of its input."""
        if number:
            self.process.send_signal(number)
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
        self._output.close()


@pytest.fixture
def readers() -> Iterator[list[Reader]]:
    """Processes that are ended with the test."""
    started: list[Reader] = []
    yield started
    for each in started:
        if each.process.poll() is None:
            each.end(signal.SIGKILL)


@pytest.mark.parametrize("key", ["", "0b" * 32])
def test_processes_fetch_each_block_once_and_take_over_from_each_other(
    store: DirectoryStore, tmp_path: Path, readers: list[Reader], key: str
) -> None:
    """Four processes read the same file at once: each block is fetched by one of them.

    Their owner is killed: another one takes its place, nothing is fetched again, and what is new is still shared.
    """
    (tmp_path / "key").write_text(key)
    store.put("a", random.Random(1).randbytes(6 * MIB))
    store.put("b", random.Random(2).randbytes(2 * MIB))
    key_file = str(tmp_path / "key") if key else ""
    readers += [Reader(store, tmp_path / "cache", key_file) for _ in range(4)]
    assert [each.role for each in readers] == ["owner", "attached", "attached", "attached"]
    for each in readers:
        each.ask("a", 0, 6 * MIB)
    assert sum(each.answer()[0] for each in readers) == 6 * MIB
    for each in readers:
        each.ask("a", 12_345, 5 * MIB)
        assert each.answer()[0] == 0
    readers[0].end(signal.SIGKILL)
    rest = readers[1:]
    for each in rest:
        each.ask("b", 0, 2 * MIB)
    answers = [each.answer() for each in rest]
    assert sum(asked for asked, _ in answers) == 2 * MIB
    assert [owner for _, owner in answers].count(True) == 1
    for each in rest:
        each.ask("a", 0, 6 * MIB)
        assert each.answer()[0] == 0


@contextmanager
def stopped(owner: Reader, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It has the lock and answers nothing meanwhile; who asks it gives up soon."""
    with monkeypatch.context() as limits:
        for limit in ("attached.ANSWER_S", "attached.WELCOME_S", "joined.JOIN_S"):
            limits.setattr(f"serving.bytecache.shared.{limit}", 0.2)
        owner.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, owner.process.pid, os.WSTOPPED)  # until then it may still answer
        try:
            yield
        finally:
            owner.process.send_signal(signal.SIGCONT)


def test_a_process_that_ends_gives_up_what_it_was_fetching(store: DirectoryStore, tmp_path: Path) -> None:
    """What a dead process had claimed is fetched by the next one, and nobody hangs."""
    store.put("a", b"x" * MIB)
    options = DirectoryOptions(quota=32 * MIB)
    owner = Joined(tmp_path / "cache", options)
    child = os.fork()
    if child == 0:
        attached = Joined(tmp_path / "cache", options)
        file = attached.enter("a", store.identity("a").version, MIB, "")
        claimed = file is not None and len(attached.claim(file, range(16))) == 16
        os._exit(0 if claimed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cache = ByteCache([owner], FetchRules())
    assert cache.read(cache.open(store, "a"), 0, MIB) == b"x" * MIB
    owner.close()


def test_what_one_process_forgets_no_other_reads(store: DirectoryStore, tmp_path: Path, readers: list[Reader]) -> None:
    """After ``forget`` returned, also a process that had read it before must ask the store again."""
    store.put("a", b"x" * MIB)
    owner = Joined(tmp_path / "cache", DirectoryOptions(quota=32 * MIB))
    cache = ByteCache([owner])
    assert cache.read(cache.open(store, "a"), 0, MIB) == b"x" * MIB
    readers.append(Reader(store, tmp_path / "cache"))
    for forgotten, asked in ((False, 0), (True, MIB), (False, 0)):
        if forgotten:
            assert cache.forget("a") == 1
        readers[0].ask("a", 0, MIB)
        assert readers[0].answer() == (asked, False)
    readers[0].end()
    owner.close()


def test_a_socket_of_a_dead_owner_is_replaced(store: DirectoryStore, tmp_path: Path, readers: list[Reader]) -> None:
    """The file that a killed owner left does not keep anyone from owning the directory."""
    store.put("a", b"x" * 1_000)
    readers.append(Reader(store, tmp_path / "cache"))
    readers[0].end(signal.SIGKILL)
    assert (tmp_path / "cache/owner.sock").exists()
    readers.append(Reader(store, tmp_path / "cache"))
    assert readers[1].role == "owner"
    readers[1].ask("a", 0, 10)
    assert readers[1].answer()[1]


def test_an_owner_that_is_stopped_holds_no_reader_for_long(
    store: DirectoryStore, tmp_path: Path, readers: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the lock and answers nothing: what it told before is read, the rest comes from the store for a while."""
    content = random.Random(8).randbytes(2 * MIB)
    store.put("a", content)
    owner = Reader(store, tmp_path / "cache")
    readers.append(owner)
    place = Joined(tmp_path / "cache", DirectoryOptions(quota=64 << 20))
    cache = ByteCache([place])
    file = cache.open(store, "a")
    assert cache.read(file, 0, MIB) == content[:MIB]
    with stopped(owner, monkeypatch):
        fetched = store.bytes_asked
        assert cache.read(file, 5, MIB) == content[5:MIB]
        assert store.bytes_asked == fetched
        began = time.monotonic()
        for _ in range(20):
            assert cache.read(file, MIB, 2 * MIB) == content[MIB:]
        assert time.monotonic() - began < 20  # it was tried once, not for each read
    monkeypatch.setattr(place, "_not_before", 0.0)  # the while is over
    file = cache.open(store, "a")
    assert cache.read(file, MIB, 2 * MIB) == content[MIB:]
    fetched = store.bytes_asked
    assert cache.read(file, MIB, 2 * MIB) == content[MIB:]
    assert store.bytes_asked == fetched
    place.close()


def test_who_starts_beside_a_stopped_owner_reads_past_the_directory(
    store: DirectoryStore,
    tmp_path: Path,
    readers: list[Reader],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One process that stands still must not make every later one fail. Commands are refused.

    A warning says why, each time that it begins.
    """
    store.put("a", b"x" * MIB)
    readers.append(owner := Reader(store, tmp_path / "cache"))
    options = DirectoryOptions(quota=64 << 20)
    with stopped(owner, monkeypatch):
        place = Joined(tmp_path / "cache", options, at_once=False)
        cache = ByteCache([place])
        for _ in range(3):
            assert cache.read(cache.open(store, "a"), 5, 10) == b"x" * 5
        eventually(lambda: "owner that does not answer" in caplog.text, what="a warning")
        for ask in (lambda: cache.forget("a"), lambda: Joined(tmp_path / "cache", options)):
            with pytest.raises(ByteCacheError) as refused:
                ask()
            assert refused.value.code == "bytes_dir_in_use"
    monkeypatch.setattr(place, "_not_before", 0.0)  # the while is over
    assert place.describe(files=False) is not None
    assert cache.read(cache.open(store, "a"), 0, MIB) == b"x" * MIB
    fetched = store.bytes_asked
    assert cache.read(cache.open(store, "a"), 0, MIB) == b"x" * MIB
    assert store.bytes_asked == fetched
    caplog.clear()
    with stopped(owner, monkeypatch):
        assert place.describe(files=False) is None
        eventually(lambda: "owner that does not answer" in caplog.text, what="a warning")
    place.close()


def test_nothing_is_forgotten_in_vain_beside_a_stopped_owner(
    store: DirectoryStore, tmp_path: Path, readers: list[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who lets the cache forget is told that it can't, and a file is not changed; a reader still learns of a change."""
    store.put("a", b"1" * 2 * MIB)
    readers.append(owner := Reader(store, tmp_path / "cache"))
    place = Joined(tmp_path / "cache", DirectoryOptions(quota=64 << 20))
    other = Joined(tmp_path / "other", DirectoryOptions(quota=64 << 20))
    cache, frozen = ByteCache([place]), ReadOptions(immutable=True)
    assert cache.read(cache.open(store, "a", frozen), 0, MIB) == b"1" * MIB
    assert other.enter("a", "v", 10, "") is not None
    fs = FreshetFileSystem(target_protocol="file", skip_instance_cache=True)
    monkeypatch.setattr(FreshetFileSystem, "cache", ByteCache([place, other]))
    file = cache.open(store, "a")
    with stopped(owner, monkeypatch):
        for ask in (
            lambda: fs.forget("a"),
            lambda: ByteCache([place, other]).forget("a"),
            lambda: fs.pipe_file(f"{store.root}/a", b"2" * 2 * MIB),
            place.verify,
            lambda: place.resize(32 << 20),
        ):
            with pytest.raises(ByteCacheError) as refused:
                ask()
            assert refused.value.code == "bytes_dir_in_use"
        assert other.known("a") is None  # another directory has forgotten it all the same
        assert (store.root / "a").read_bytes() == b"1" * 2 * MIB
        store.put("a", b"2" * 2 * MIB)
        with pytest.raises(ByteCacheError) as changed:
            cache.read(file, MIB, 2 * MIB)
        assert changed.value.code == "file_changed"
    monkeypatch.setattr(place, "_not_before", 0.0)  # the while is over
    assert cache.forget("a") <= 1  # what the owner was asked while it stood still, it may have done by now
    assert cache.read(cache.open(store, "a", frozen), 0, 2 * MIB) == b"2" * 2 * MIB
    place.close()
    other.close()


def test_few_hits_of_a_process_that_ends_count(tmp_path: Path) -> None:
    """What short programs read over and over stays, though none of them reads often."""
    options = DirectoryOptions(quota=32 * MIB, shards=1)
    owner = Joined(tmp_path / "cache", options)
    assert owner.directory is not None
    file = owner.enter("a", "v", 1_000, "")
    assert file is not None
    owner.directory.store(file, 0, memoryview(bytes(1_000)), Value.NORMAL, 0)
    attached = Joined(tmp_path / "cache", options)
    again = attached.enter("a", "v", 1_000, "")
    assert again is not None
    assert attached.read(again, 0, 10) == bytes(10)
    attached.settle()
    [shard] = owner.directory.shards
    shard.tend()
    assert shard._kept_heat[0] == 1
    attached.close()
    owner.close()


def test_a_process_attaches_to_a_directory_of_the_most_shards(store: DirectoryStore, tmp_path: Path) -> None:
    """All its descriptors are handed over, more than fit into one message of the kernel."""
    options = DirectoryOptions(quota=512 * MIB, shards=64)
    owner = Joined(tmp_path / "cache", options)
    assert owner.directory is not None
    assert len(owner.directory.shards) == 64
    attached = Attached(tmp_path / "cache", (), 64 << 20)
    store.put("a", b"x" * 1_000)
    identity = store.identity("a")
    file = attached.enter("a", identity.version, identity.size, "")
    assert file is not None
    attached.keep(file, 0, memoryview(b"x" * 1_000), Value.NORMAL, 0)
    assert attached.writers.flush(60)
    assert attached.read(file, 0, 10) == b"x" * 10
    attached.close()
    owner.close()


def test_owners_that_come_and_go_leave_no_descriptors(tmp_path: Path) -> None:
    """A process that was attached to one owner after the other keeps none of their files, nor who lacks a key."""
    options = DirectoryOptions(quota=32 * MIB)
    open_files = []
    for _ in range(3):
        owner = Joined(tmp_path / "cache", options)
        attached = Attached(tmp_path / "cache", (), 64 << 20)
        owner.close()
        attached.retire()
        attached.writers.close()
        del attached
        (tmp_path / "key").write_text("0e" * 32)
        sealed = Joined(tmp_path / "sealed", replace(options, key_file=str(tmp_path / "key")))
        with pytest.raises(OwnerGoneError, match="other keys"):
            Attached(tmp_path / "sealed", (), 64 << 20)
        sealed.close()
        gc.collect()
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[0] == open_files[2]


def test_a_take_over_that_fails_is_no_error_of_a_read(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a free descriptor for the socket the lock is given back; the reader reads, and a later one takes over."""
    store.put("a", b"x" * MIB)
    options = DirectoryOptions(quota=32 * MIB)
    owner = Joined(tmp_path / "cache", options)
    other = Joined(tmp_path / "cache", options)
    cache = ByteCache([other])
    assert cache.read(cache.open(store, "a"), 0, 10) == b"x" * 10
    owner.close()

    def full(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("serving.bytecache.shared.server.at_socket", full)
        patched.setattr("serving.bytecache.shared.joined.RETRY_S", 0.0)
        assert cache.read(cache.open(store, "a"), 0, 10) == b"x" * 10
        assert other.directory is None
    assert cache.read(cache.open(store, "a"), 0, 10) == b"x" * 10
    assert other.directory is not None
    other.close()


def test_who_is_attached_waits_for_its_own_blocks_only(tmp_path: Path) -> None:
    """While the owner writes without end, a claim of what is stored already is answered."""
    owner = Joined(tmp_path / "cache", DirectoryOptions(quota=32 * MIB, medium="ssd"))  # several writers
    directory = owner.directory
    assert directory is not None
    a, b = (directory.enter(path, "v", BLOCK) for path in "ab")
    assert a is not None
    assert b is not None
    gate, write = threading.Event(), directory.writers._store
    directory.writers._store = lambda each: (each.file is b and gate.wait(60), write(each))[1]
    for file in (b, a):
        directory.submit(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
    attached = Attached(tmp_path / "cache", (), 64 << 20)
    attached.wait(a, [0], 30)
    assert attached.claim(a, [0]) == []
    assert owner.flights.under_way(a.number, 0) is None, "nobody waits for a fetch that is none"
    assert attached.read(a, 0, 10) == bytes(10)
    assert directory.writers.waiting(b.number, 0) is not None
    gate.set()
    attached.close()
    owner.close()
