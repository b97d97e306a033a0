"""Flipped bytes in a store's files are detected; wrong data is never read."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from consumers.process.opening import open_store
from consumers.store.errors import StoreCorruptError, StoreError
from consumers.store.rocks import tables
from consumers.store.store import PartitionStore, StoreView
from tests.consumers.histories import key, marker, start, value


def build(directory: Path) -> set[tuple[str, int]]:
    """A store of a few commits; the digests of its state at each commit."""
    store = PartitionStore.open(directory, keyspace="shop", partition=0, topic_id="t")
    digests = {store.digest()}
    store.fold([(0, start()), (1, marker(1))])
    for round_ in range(4):
        base = 2 + round_ * 150
        store.fold([(n, value(n * 7 % 200, b'{"n":%d}' % n * 5, n)) for n in range(base, base + 150)])
        store.fold([(base + 150, marker(base + 149))])
        store.commit()
        digests.add(store.digest())
    store.close()
    return digests


def read_all(directory: Path) -> tuple[str, int]:
    """Opens the store as its owner would, reads each key by look-up and all by scan."""
    store = PartitionStore.open(directory, keyspace="shop", partition=0, topic_id="t")
    try:
        found = dict(store.items())
        for each, content in found.items():
            if each > b"\2":
                assert store.get(each) == content
        return store.digest()
    finally:
        store.close(commit=False)


def damageable(directory: Path) -> list[Path]:
    """The files that hold state."""
    files = (directory / "shop" / "0" / "db").iterdir()
    return sorted(file for file in files if file.suffix == ".sst" or file.name.startswith(("MANIFEST", "CURRENT")))


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_byte_is_detected_or_leaves_a_state_that_was_committed(tmp_path: Path, seed: int) -> None:
    """A flip in any table or manifest file raises store_corrupt, or the store is exactly as some commit left it.

    The latter: padding, and the last record of RocksDB's manifest, without which the tail is folded again.
    """
    whole = tmp_path / "whole"
    digests = build(whole)
    rng = random.Random(seed)
    detected = 0
    for file in damageable(whole):
        content = file.read_bytes()
        for at in sorted(rng.sample(range(len(content)), min(25, len(content)))):
            copy = tmp_path / "copy"
            shutil.copytree(whole, copy)
            damaged = bytearray(content)
            damaged[at] ^= 1 << rng.randrange(8)
            (copy / file.relative_to(whole)).write_bytes(damaged)
            try:
                assert read_all(copy) in digests, f"{file.name} at {at}"
            except StoreError as error:
                assert error.code in ("store_corrupt", "fold_changed"), f"{file.name} at {at}: {error!r}"  # noqa: PT017
                detected += 1
            shutil.rmtree(copy)
    assert detected > 50


def test_a_damaged_block_stops_a_scan_with_an_error(tmp_path: Path) -> None:
    """rocksdict's items() ends silently at a damaged block; ours does not."""
    build(tmp_path)
    tables = [file for file in damageable(tmp_path) if file.suffix == ".sst"]
    largest = max(tables, key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[200] ^= 0xFF
    largest.write_bytes(content)
    with pytest.raises(StoreCorruptError), StoreView(tmp_path / "shop" / "0") as view:
        list(view.items(b"\2"))


def test_a_read_that_finds_damage_marks_the_store_as_broken(tmp_path: Path) -> None:
    """After one damaged read nothing of the store is served."""
    build(tmp_path)
    for file in damageable(tmp_path):
        if file.suffix == ".sst":
            content = bytearray(file.read_bytes())
            content[20 : len(content) // 2] = bytes(len(content) // 2 - 20)
            file.write_bytes(content)
    tables._shared_cache.clear()  # what this process has read of it is there, undamaged
    store, why = open_store(tmp_path, "shop", 0, "t")
    if why is None:
        with pytest.raises(StoreCorruptError):
            [store.get(key(number)) for number in range(200)]
        assert store.broken is not None
    else:
        assert why.code == "store_corrupt"
        assert (tmp_path / "shop" / "0.corrupt-1").is_dir()
        assert store.state.head.offset == 0
    store.close(commit=False)


def test_a_manifest_that_makes_rocksdb_loop_forever_is_refused_first(tmp_path: Path) -> None:
    """A record type of 5 ("recyclable") hangs RocksDB 9.8 at open; no record with a wrong type reaches it."""
    build(tmp_path)
    [manifest] = [file for file in damageable(tmp_path) if file.name.startswith("MANIFEST")]
    whole = manifest.read_bytes()
    at = 0
    while at < len(whole):
        damaged = bytearray(whole)
        damaged[at + 6] = 5
        manifest.write_bytes(damaged)
        with pytest.raises(StoreCorruptError, match="damaged at byte"):
            read_all(tmp_path)
        at += 7 + int.from_bytes(whole[at + 4 : at + 6], "little")


def test_a_manifest_cut_off_in_its_last_record_is_what_a_crash_leaves(tmp_path: Path) -> None:
    """The store opens as of the previous commit, and the tail is folded again."""
    digests = build(tmp_path)
    [manifest] = [file for file in damageable(tmp_path) if file.name.startswith("MANIFEST")]
    manifest.write_bytes(manifest.read_bytes()[:-3])
    assert read_all(tmp_path) in digests
