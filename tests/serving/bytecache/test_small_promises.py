"""Promises that only show later: nonces that never come again, a bound that stays, and blocks that nobody claims."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from serving.bytecache.disk import directory as directories
from serving.bytecache.disk.directory import Directory, DirectoryOptions
from serving.bytecache.disk.layout import BLOCK, NONCE_ROOM
from serving.bytecache.disk.seals import make_key, seal_block
from serving.bytecache.disk.shard import GROW_S
from serving.bytecache.filesystem.file import WrittenFile
from serving.bytecache.options import ENVIRONMENT, from_environment
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.files import ReadOptions
from serving.bytecache.reading.footers import footer_start
from serving.bytecache.reading.place import Owned
from serving.bytecache.reading.tally import Tallies
from serving.bytecache.reading.trace import Trace
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.joined import Joined
from tests.serving.bytecache.stores import MIB, DirectoryStore, open_directory


def test_no_nonce_is_used_twice() -> None:
    """Also where one block is stored again with other bytes: two texts under one nonce would tell the key's stream."""
    key = make_key(b"k" * 32)
    found: list[bytes] = []
    for turn in range(2):
        for block in range(16):
            nonces, _ = seal_block(key, memoryview(bytes([turn]) * BLOCK), 1, 2, block)
            found += [nonces[at : at + NONCE_ROOM] for at in range(0, len(nonces), NONCE_ROOM)]
    assert len(set(found)) == len(found) == 128


def test_a_directory_that_was_made_smaller_stays_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It grows again after a full disk only, up to what it was given last."""
    directory = open_directory(tmp_path / "cache", quota=64 * MIB)
    directory.resize(16 * MIB)
    now = [time.monotonic()]
    monkeypatch.setattr(directories, "monotonic", lambda: now[0])
    for _ in range(20):
        now[0] += GROW_S + 1
        directory._grow()
    assert directory.quota == 16 * MIB
    monkeypatch.undo()
    directory.close()


@pytest.mark.parametrize("fails", [False, True])
def test_what_an_attached_reader_does_not_keep_it_does_not_hold(tmp_path: Path, fails: bool) -> None:
    """It claims of the owner what it fetches. With ``fill=False``, or an error, nobody waits for those blocks later."""
    (tmp_path / "remote").mkdir()
    store = DirectoryStore(tmp_path / "remote")
    store.put("a", b"a" * MIB)
    owner = Joined(tmp_path / "cache", DirectoryOptions(quota=32 * MIB, shards=1))
    attached = Attached(tmp_path / "cache", (), 64 << 20)
    cache = ByteCache([attached])
    file = cache.open(store, "a", ReadOptions(fill=fails))
    assert file.entry is not None
    if fails:

        def fail() -> None:
            raise ConnectionError("reset")

        store.before_fetch = fail
        with pytest.raises(ConnectionError):
            cache.read(file, 0, 10)
    else:
        assert cache.read(file, 0, 10) == b"a" * 10
    assert owner.flights.under_way(file.entry.number, 0) is None
    attached.close()
    owner.close()


def test_what_threads_have_counted_is_kept_when_they_end() -> None:
    """A pool's threads come and go: their sum is kept, and nothing else of them."""
    tallies = Tallies()

    def count() -> None:
        tallies.mine().hits += 1

    for _ in range(4):
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
    assert tallies.total().hits == 4
    assert len(tallies._all) == 1


def test_a_file_is_forgotten_also_if_its_store_refuses_what_was_written() -> None:
    """Nobody knows what the store has of it by then."""
    told: list[str] = []

    class Refusing:
        def close(self) -> None:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"), WrittenFile(Refusing(), lambda: told.append("forgotten")):
        pass
    assert told == ["forgotten"]


def test_a_child_does_not_wait_for_who_wrote_a_trace_at_the_fork(tmp_path: Path) -> None:
    """That thread is not in the child: its first read would wait for ever."""
    trace = Trace(tmp_path / "trace")
    cache = ByteCache([], trace=trace)
    trace._lock.acquire()
    cache.after_fork()
    assert not trace._lock.locked()
    trace.close()


def test_what_is_given_counts_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that names its directory must not write into the one that the machine's settings name."""
    monkeypatch.setenv(f"{ENVIRONMENT}DIRS", "/of/the/environment,/another")
    monkeypatch.setenv(f"{ENVIRONMENT}GAP", "1")
    assert from_environment({}).dirs == ("/of/the/environment", "/another")
    found = from_environment({"dirs": "/given"})
    assert (found.dirs, found.gap) == (("/given",), 1)


def test_the_metadata_of_an_orc_file_are_a_part_of_its_footer() -> None:
    """Every reader needs them first, too. They are before the footer, and their length is in the postscript."""
    for metadata, length in ((b"", 10), (b"\x28\x05", 15)):
        postscript = b"\x08\x0a" + metadata + b"\x82\xf4\x03\x03ORC"
        tail = bytes(100) + postscript + bytes([len(postscript)])
        assert footer_start(1_000, tail) == 1_000 - length - len(postscript) - 1


def test_what_is_fetched_ahead_ends_with_the_file(store: DirectoryStore, directory: Directory) -> None:
    """However much was asked for: a store has no more, and that is no error."""
    store.put("a", b"a" * (BLOCK + 5))
    cache = ByteCache([Owned(directory)])
    file = cache.open(store, "a")
    assert cache.prefetch(file, 0, 64 * MIB) == BLOCK + 5
