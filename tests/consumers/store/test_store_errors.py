"""What went wrong with a store decides what is done: wait, give way, or fold again."""

from __future__ import annotations

import errno
import struct
from pathlib import Path

import pytest
import xxhash

from consumers.store.digest import digest_items
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
from consumers.store.rocks import Rocks, disk_bytes
from consumers.store.store import ROCKS_NAME, PartitionStore, StoreView
from tests.consumers.storing import change, open_at


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
        (OSError(errno.EIO, "x"), DiskIOError, ""),
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
