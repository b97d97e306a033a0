"""A catalog's tag in the version of a table's files."""

from __future__ import annotations

from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from serving.bytecache.disk.directory import Directory
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.reading.files import ReadOptions
from serving.bytecache.shared.opening import close_caches
from tests.serving.bytecache.stores import DirectoryStore, cache_of


def test_a_file_of_another_tag_is_not_read(store: DirectoryStore, directory: Directory) -> None:
    """A table was dropped and created again: the same path, never asked for its version, gives the new bytes."""
    cache = cache_of(directory)

    def read(tag: str) -> bytes:
        found = cache.read(cache.open(store, "t/part-0", ReadOptions(tag=tag, immutable=True)), 0, 100)
        directory.writers.flush()
        return found

    (store.root / "t").mkdir()
    store.put("t/part-0", b"old")
    assert read("7") == b"old"
    store.put("t/part-0", b"new")
    assert read("7") == b"old"  # the caller's promise: under this tag the path keeps its bytes
    asked = store.identities
    assert read("8") == b"new"
    assert store.identities == asked + 1
    assert read("8") == b"new"
    assert store.identities == asked + 1
    assert read("7") == b"new"  # what was kept under the old tag is gone, and not only hidden


def test_a_tag_does_not_hide_a_change_of_the_file(store: DirectoryStore, directory: Directory) -> None:
    """Where the path may get other bytes, the store's version counts as well; tags with and without are apart."""
    cache = cache_of(directory)
    for tag in ("7", "", "7\n8"):
        for data in (b"one", b"two"):
            store.put("a", data)
            file = cache.open(store, "a", ReadOptions(tag=tag))
            assert cache.read(file, 0, 3) == data
            directory.writers.flush()
            store.asked.clear()
            assert cache.read(cache.open(store, "a", ReadOptions(tag=tag)), 0, 3) == data
            assert store.asked == []


def test_a_version_of_another_tag_is_not_the_stores() -> None:
    """Nor is one that was kept without a tag: who knows that a path never changes knows it under its tag alone."""
    tagged, plain = ReadOptions(tag="b"), ReadOptions()
    assert (tagged.bare(tagged.tagged("v")), plain.bare(plain.tagged("v"))) == ("v", "v")
    for version in (plain.tagged("v"), ReadOptions(tag="a").tagged("v")):
        assert tagged.bare(version) is None
    assert plain.bare(tagged.tagged("v")) is None


def test_the_size_of_a_file_of_another_tag_is_not_told(tmp_path: Path) -> None:
    """Who reads as many bytes as the old table's file had reads a part of the new one, or beyond its end."""
    path = tmp_path / "part-0"
    store = LocalFileSystem()

    def tagged(tag: str) -> FreshetFileSystem:
        return FreshetFileSystem(fs=store, dirs=(f"{tmp_path}/cache:64MiB",), tag=tag, immutable=True)

    try:
        path.write_bytes(b"old")
        assert tagged("7").cat_file(str(path)) == b"old"
        path.write_bytes(b"longer")
        assert tagged("7").info(str(path))["size"] == 3  # the caller's promise
        assert tagged("8").info(str(path))["size"] == tagged("8").size(str(path)) == 6
        assert tagged("8").cat_file(str(path)) == b"longer"
        path.unlink()
        assert tagged("8").size(str(path)) == 6
    finally:
        close_caches()
