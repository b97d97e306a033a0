"""What went wrong with a store decides what is done: wait, give way, or fold again."""

from __future__ import annotations

import errno
import shutil
import struct
from bisect import bisect_left
from pathlib import Path

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from consumers.fold.state import Void
from consumers.store.digest import digest_items
from consumers.store.directory import SCRATCH_NAME
from consumers.store.errors import (
    DiskFullError,
    DiskIOError,
    ResourcesError,
    RetryableStoreError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    store_error,
)
from consumers.store.index import INDEX
from consumers.store.rocks.database import IN_DOUBT_NAME, Rocks, _scan, disk_bytes
from consumers.store.rocks.small_files import BLOCK_BYTES, check_log, masked_crc32c
from consumers.store.rocks.tables import write_sorted
from consumers.store.store import ROCKS_NAME, PartitionStore, StoreView
from tests.consumers.storing import change, crash, open_at


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (OSError(errno.ENOSPC, "x"), DiskFullError, ""),
        (OSError(errno.EDQUOT, "x"), DiskFullError, ""),
        (OSError(errno.EFBIG, "x"), DiskFullError, ""),
        (RuntimeError("IO error: No space left on device"), DiskFullError, ""),
        (RuntimeError("Space limit reached: No Space"), DiskFullError, ""),
        (RuntimeError("lock hold by current process"), StoreLockedError, ""),
        (RuntimeError("While lock file: db/LOCK"), StoreLockedError, ""),
        (PermissionError(errno.EACCES, "x"), StoreError, "store_denied"),
        (RuntimeError("IO error: Permission denied"), StoreError, "store_denied"),
        (RuntimeError("IO error: Too many open files"), ResourcesError, ""),
        (RuntimeError("IO error: Cannot allocate memory"), ResourcesError, ""),
        (RuntimeError("DB instance already closed"), StoreError, "store_closed"),
        (RuntimeError("Already mutably borrowed"), StoreError, "store_closed"),
        (MemoryError(), ResourcesError, ""),
        (OSError(errno.EIO, "x"), DiskIOError, ""),
        (OSError(errno.ESTALE, "x"), DiskIOError, ""),
        (RuntimeError("IO error: Stale file handle: While pread offset 0 len 4096"), DiskIOError, ""),
        (RuntimeError("IO error: Connection timed out: While fsync"), DiskIOError, ""),
        (OSError(errno.EROFS, "x"), DiskIOError, ""),
        (RuntimeError("IO error: Input/output error"), DiskIOError, ""),
        (RuntimeError("Corruption: block checksum mismatch"), StoreCorruptError, ""),
        (OSError(errno.ENOENT, "x"), StoreCorruptError, ""),
    ],
)
def test_an_error_is_told_by_its_number_or_text(error: Exception, kind: type[StoreError], code: str) -> None:
    """Only damage has the store folded again: every other error passes, or is for a person."""
    found = store_error(error, "here")
    assert type(found) is kind
    assert found.code == (code or kind.code)
    assert str(found).startswith("here: ")
    assert found.hint
    assert store_error(found, "there") is found
    assert isinstance(found, RetryableStoreError) is (kind in (DiskFullError, DiskIOError, ResourcesError))


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2500])
def test_the_digest_is_that_of_all_pairs_in_one(count: int) -> None:
    """However many there are, each counts once with its lengths."""
    pairs = [(b"k%d" % n, b"v" * (n % 7)) for n in range(count)]
    whole = b"".join(struct.pack(">II", len(key), len(value)) + key + value for key, value in pairs)
    assert digest_items(iter(pairs)) == (xxhash.xxh3_128_hexdigest(whole), count)


def test_a_closed_store_says_so_and_closes_again(tmp_path: Path) -> None:
    """A read that comes too late is no damage."""
    rocks = Rocks(tmp_path / "db")
    rocks.ingest({b"a": b"1"}, tmp_path / "scratch.sst")
    assert rocks.get(b"a") == b"1"
    rocks.close()
    rocks.close()
    for read in (lambda: rocks.get(b"a"), lambda: list(rocks.scan())):
        with pytest.raises(StoreError) as caught:
            read()
        assert caught.value.code == "store_closed"


def test_a_folder_that_is_a_file_is_an_error_of_the_store(tmp_path: Path) -> None:
    """What the file system says comes out as an error of the store, not as it is."""
    (tmp_path / "db").write_text("no directory")
    with pytest.raises(StoreError):
        Rocks(tmp_path / "db")


@pytest.mark.parametrize(
    ("items", "said"),
    [
        ({b"shop.t\0[1]": b"x"}, "has entries but no head"),
        ({b"\0layout": b"xxh3_64;partitions=1"}, "has no offset"),
    ],
)
def test_entries_without_a_whole_head_are_damage(tmp_path: Path, items: dict[bytes, bytes], said: str) -> None:
    """Nobody knows which offset they belong to."""
    store = open_at(tmp_path)
    directory = store.directory
    store.close(commit=False)
    rocks = Rocks(directory / ROCKS_NAME)
    rocks.ingest(items, tmp_path / "scratch.sst")
    rocks.close()
    with pytest.raises(StoreCorruptError, match=said):
        open_at(tmp_path)


def test_only_an_empty_store_begins_elsewhere(tmp_path: Path) -> None:
    """What it holds belongs to the offsets before."""
    store = open_at(tmp_path)
    store.begin_at(5)
    store.begin_at(6)
    assert (store.visible.offset, store.visible.begin, store.committed_offset) == (6, 6, 6)
    store.apply(change(7, {b"shop.t\0[1]": b"x"}))
    with pytest.raises(StoreError, match="cannot begin at 9"):
        store.begin_at(9)
    assert store.visible.offset == 7
    store.close()


def test_a_copy_of_an_empty_store_knows_where_it_begins(tmp_path: Path) -> None:
    """Nothing was folded yet, so only its head says so: a copy without one would be damaged."""
    store = open_at(tmp_path)
    store.begin_at(7)
    assert store.checkpoint(tmp_path / "copy").offset == 7
    store.close()
    with StoreView(tmp_path / "copy") as view:
        assert (view.head.begin, view.head.offset) == (7, 7)


def test_a_rejection_has_the_offset_of_its_message(tmp_path: Path) -> None:
    """By it the dead letter is found in the topic, and put back."""
    store = open_at(tmp_path)
    store.begin_at(7)
    assert [offset for offset, _ in store.fold([(7, b"garbage"), (8, b"garbage")])] == [7, 8]
    crash(store)


def test_a_stores_size_is_that_of_its_files(tmp_path: Path) -> None:
    """Files that vanish meanwhile are passed over."""
    store: PartitionStore = open_at(tmp_path)
    store.apply(change(1, {b"shop.t\0[1]": b"x" * 5_000}))
    store.commit()
    files = [each for each in store.directory.rglob("*") if each.is_file()]
    assert store.disk_bytes() == disk_bytes(store.directory) == sum(each.stat().st_size for each in files) > 5_000
    (store.directory / "gone").symlink_to(tmp_path / "nowhere")
    assert store.disk_bytes() == disk_bytes(store.directory) > 5_000
    store.close()
    with StoreView(store.directory) as view:
        assert view.get(b"shop.t\0[1]") == b"x" * 5_000


def _record(content: bytes, kind: int = 1) -> bytes:
    body = bytes([kind]) + content
    return masked_crc32c(body).to_bytes(4, "little") + len(content).to_bytes(2, "little") + body


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 8, BLOCK_BYTES - 7])
def test_a_record_may_fill_its_block_to_the_end(size: int) -> None:
    """The next one begins in the next block; a block's last few bytes hold no record."""
    log = _record(b"x" * size)
    rest = BLOCK_BYTES - len(log) % BLOCK_BYTES
    padding = b"\0" * rest if rest < 7 else b""
    check_log(Path("log"), log + padding + _record(b"y", 4))
    with pytest.raises(StoreCorruptError, match="checksum"):
        check_log(Path("log"), log + padding + _record(b"y")[:-1] + b"z")
    with pytest.raises(StoreCorruptError, match=f"at byte {len(log + padding)}"):
        check_log(Path("log"), log + padding + _record(b"y", 5))
    check_log(Path("log"), log + padding + _record(b"y")[:-1])
    check_log(Path("log"), log + padding + b"\1" * 6)


def test_a_record_longer_than_its_block_is_damage() -> None:
    """RocksDB cuts records at the ends of blocks."""
    header = b"\0" * 4 + (BLOCK_BYTES - 6).to_bytes(2, "little") + b"\1"
    with pytest.raises(StoreCorruptError, match="at byte 0"):
        check_log(Path("log"), header)
    check_log(Path("log"), b"\0" * 4 + (BLOCK_BYTES - 7).to_bytes(2, "little") + b"\1")


def test_a_read_only_view_mends_nothing(tmp_path: Path) -> None:
    """Only the owner may put the file of a commit in doubt back where it is missing."""
    store = open_at(tmp_path)
    store.apply(change(1, {b"shop.t\0[1]": b"x"}))
    store.commit()
    directory = store.directory
    store.close()
    [table] = (directory / ROCKS_NAME).glob("*.sst")
    doubt = directory / IN_DOUBT_NAME
    table.rename(doubt)
    with pytest.raises(StoreCorruptError):
        StoreView(directory)
    assert doubt.exists()
    assert not table.exists()
    store = open_at(tmp_path)
    assert store.get(b"shop.t\0[1]") == b"x"
    store.close()


def compacted_store(tmp_path: Path) -> tuple[Path, Path, tuple[str, int]]:
    """Of a closed store with three commits in one file: its directory, its RocksDB before that, its digest."""
    store = open_at(tmp_path)
    for offset in range(1, 4):
        store.apply(change(offset, {b"shop.t\0[%d]" % offset: b"x" * offset}))
        store.commit()
    digest, directory, before = store.digest(), store.directory, tmp_path / "before"
    store.close()
    shutil.copytree(directory / ROCKS_NAME, before)
    database = Rocks(directory / ROCKS_NAME)
    database._db.compact_range(None, None)
    database.close()
    return directory, before, digest


def test_a_store_whose_compacted_file_was_lost_opens_as_of_the_manifest_before(tmp_path: Path) -> None:
    """RocksDB deletes what a compaction made if the directory can't be synced once ``CURRENT`` names the new manifest.

    The file in doubt, of a commit that failed for the same reason, must not take its place.
    """
    directory, before, digest = compacted_store(tmp_path)
    rocks = directory / ROCKS_NAME
    [compacted] = rocks.glob("*.sst")
    compacted.rename(directory / "lost")
    write_sorted([(b"shop.t\0[9]", b"x")], directory / IN_DOUBT_NAME)
    with pytest.raises(StoreCorruptError, match=compacted.name):
        Rocks(rocks)
    assert not compacted.exists(), "another file took its place"
    for file in (*before.glob("*.sst"), *before.glob("MANIFEST-*")):
        shutil.copy(file, rocks)
    store = open_at(tmp_path)
    assert store.digest() == digest
    assert (store.state.head.offset, store.get(b"shop.t\0[3]")) == (3, b"xxx")
    store.close()


def test_a_store_goes_back_to_no_manifest_that_lacks_a_file_too(tmp_path: Path) -> None:
    """It is damaged then, says of which file, and names the manifest that it named."""
    store = open_at(tmp_path)
    store.apply(change(1, {b"shop.t\0[1]": b"x"}))
    store.commit()
    directory = store.directory
    store.close()
    rocks = directory / ROCKS_NAME
    [table] = rocks.glob("*.sst")
    table.unlink()
    current = (rocks / "CURRENT").read_text()
    shutil.copy(rocks / current.strip(), rocks / "MANIFEST-000001")
    with pytest.raises(StoreCorruptError, match=table.name):
        Rocks(rocks)
    assert (rocks / "CURRENT").read_text() == current


@pytest.mark.parametrize("offset", [1, 9])
def test_a_running_store_never_goes_back_behind_a_commit(tmp_path: Path, offset: int) -> None:
    """Opened anew after a failed commit, a database that lacks a durable one is damaged: its rows would look fresh."""
    store = open_at(tmp_path)
    store.apply(change(offset, {b"shop.t\0[1]": b"old"}))
    store.commit()
    rocks = store.directory / ROCKS_NAME
    shutil.copytree(rocks, tmp_path / "before")
    store.apply(change(offset + 1, {b"shop.t\0[1]": b"new"}))
    store.commit()
    store._rocks.reopen()
    assert store.get(b"shop.t\0[1]") == b"new"
    store._rocks.close()
    shutil.rmtree(rocks)
    shutil.copytree(tmp_path / "before", rocks)
    for _ in range(2):
        with pytest.raises(StoreCorruptError, match="lacks a commit"):
            store._rocks.reopen()
    with pytest.raises(StoreCorruptError, match="lacks a commit"):
        store.get(b"shop.t\0[1]")
    store.close()
    store = open_at(tmp_path)
    assert store.state.head.offset == offset, "a new process folds again from there"
    store.close()


def test_a_file_in_doubt_that_a_kill_left_in_anothers_place_is_taken_away(tmp_path: Path) -> None:
    """Else the store would be damaged for good, though the manifest before has all that it needs."""
    directory, before, digest = compacted_store(tmp_path)
    rocks = directory / ROCKS_NAME
    [compacted] = rocks.glob("*.sst")
    compacted.unlink()
    write_sorted([(b"shop.t\0[9]", b"x")], directory / IN_DOUBT_NAME)
    compacted.hardlink_to(directory / IN_DOUBT_NAME)
    for file in (*before.glob("*.sst"), *before.glob("MANIFEST-*")):
        shutil.copy(file, rocks)
    (rocks / "MANIFEST-000001.bak").write_bytes(b"not one of RocksDB's")
    store = open_at(tmp_path)
    assert store.digest() == digest
    store.close()


def test_the_file_of_a_commit_in_doubt_gives_no_place_to_a_later_one(tmp_path: Path) -> None:
    """The database may name the one; the other was being built when the process was killed, and is named by nobody."""
    store = open_at(tmp_path)
    store.close()
    in_doubt, scratch = store.directory / IN_DOUBT_NAME, store.directory / SCRATCH_NAME
    in_doubt.write_bytes(b"handed over")
    scratch.write_bytes(b"half built")
    crash(open_at(tmp_path))
    assert (in_doubt.read_bytes(), scratch.exists()) == (b"handed over", False)


def test_a_commit_says_how_long_it_took(tmp_path: Path) -> None:
    """Operators see it; it is a duration, not a time."""
    store = open_at(tmp_path)
    store.apply(change(1, {b"shop.t\0[1]": b"x"}))
    done = store.commit()
    assert done is not None
    assert 0 < done.seconds < 60
    assert (done.offset, done.rows > 0, done.bytes > 0) == (1, True, True)
    store.close()


def test_an_empty_store_has_no_entries(tmp_path: Path) -> None:
    """The head's own items are none; an entry is one, before its commit and after it."""
    store = open_at(tmp_path)
    assert store.estimated_entries() == 0
    store.apply(change(1, {b"shop.t\0[1]": b"x"}))
    assert store.estimated_entries() == 1
    store.commit()
    assert store.estimated_entries() == 1
    store.apply(
        change(2, {b"shop.t\0[2]": b"x"}, voids={(f"shop.gone{n}", "shop/0"): Void(1, n, "") for n in range(9)})
    )
    store.commit()
    store.apply(change(3, {b"shop.t\0[3]": b"x"}))
    store.commit()
    assert store.estimated_entries() == 3
    store.close()


def test_a_record_may_begin_where_only_its_header_fits() -> None:
    """It is the empty first part of one that goes on in the next block."""
    log = _record(b"x" * (BLOCK_BYTES - 14))
    check_log(Path("log"), log + _record(b"", 2) + _record(b"y", 4))
    with pytest.raises(StoreCorruptError, match=f"at byte {len(log)}"):
        check_log(Path("log"), log + b"z" + _record(b"", 2)[1:] + _record(b"y", 4))


def test_a_closed_store_has_no_properties(tmp_path: Path) -> None:
    """Metrics are asked for at any time; a property that is not there counts nothing."""
    rocks = Rocks(tmp_path / "db")
    rocks.ingest({b"a": b"1", b"b": b"2"}, tmp_path / "scratch.sst")
    assert rocks.property("rocksdb.estimate-num-keys") == 2
    assert rocks.property("rocksdb.no-such-property") == 0
    rocks.close()
    assert rocks.property("rocksdb.estimate-num-keys") == 0


def test_a_view_needs_a_store_that_is_there(tmp_path: Path) -> None:
    """A wrong path is told as such, and nothing is made there."""
    with pytest.raises(StoreCorruptError, match="is not a RocksDB directory"):
        Rocks(tmp_path / "db", read_only=True)
    assert list(tmp_path.iterdir()) == []


class Truncated:
    """An iterator over ``keys``, as rocksdict's, that ends before the one at ``upto``, as at a damaged block."""

    def __init__(self, keys: list[bytes], upto: int) -> None:
        self.keys, self.upto, self.at = keys, upto, 0

    def seek(self, key: bytes) -> None:
        self.at = bisect_left(self.keys, key)

    def next(self) -> None:
        self.at += 1

    def valid(self) -> bool:
        return self.at < min(self.upto, len(self.keys))

    def key(self) -> bytes:
        return self.keys[self.at]

    def value(self) -> bytes:
        return b"value"

    def status(self) -> None:
        if self.upto <= self.at < len(self.keys):
            raise RuntimeError("Corruption: block checksum mismatch")


@given(
    st.sets(st.binary(min_size=1, max_size=2), max_size=6),
    st.integers(0, 6),
    st.binary(max_size=2),
    st.one_of(st.none(), st.binary(min_size=1, max_size=2)),
)
def test_a_scan_gives_everything_or_an_error(found: set[bytes], upto: int, start: bytes, end: bytes | None) -> None:
    """A scan that ends early looks like a smaller store: rows would be absent, and the digest another one."""
    keys = sorted(found)
    whole = [each for each in keys if each >= start and (end is None or each < end) and not each.startswith(INDEX)]
    iterator = Truncated(keys, upto)
    iterator.seek(start)
    given: list[bytes] = []
    try:
        given.extend(key for key, _ in _scan(iterator, end, "here"))
    except StoreCorruptError:
        assert upto < len(keys)
        assert given == whole[: len(given)]
    else:
        assert given == whole


def test_a_scan_is_as_of_the_call_whatever_is_committed_meanwhile(tmp_path: Path) -> None:
    """Neither a commit before its first pair nor one before its end is in it, and neither is an error."""
    rocks = Rocks(tmp_path / "db")
    scratch = tmp_path / "scratch.sst"
    before = {b" b": b"1", INDEX + b"x": b"", b" c": b"1", b"d": b"1"}
    rocks.ingest(before, scratch)
    found = rocks.scan()
    rocks.ingest({b" a": b"2", b" b": b"2"}, scratch)
    assert next(found) == (b" b", b"1")
    rocks.ingest({b"e": b"2"}, scratch, gone={b" c"})
    assert list(found) == [(b" c", b"1"), (b"d", b"1")]
    assert [key for key, _ in rocks.scan()] == [b" a", b" b", b"d", b"e"]
    rocks.close()
