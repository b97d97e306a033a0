"""Stores that can't be continued: refused, rebuilt, moved aside."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.process.opening import begin, check_range, open_store
from consumers.store.errors import (
    RebuildNeededError,
    StoreCorruptError,
    StoreError,
    StoreLockedError,
    StoreNewerError,
)
from consumers.store.manifest import MANIFEST_NAME, checksum_of, read_manifest, write_manifest
from consumers.store.rocks.database import Rocks
from consumers.store.store import ROCKS_NAME, StoreView
from stream.wire import checks
from tests.consumers.histories import LAYOUT, key, marker, start
from tests.consumers.storing import change, crash, open_at


def test_a_second_owner_is_refused(tmp_path: Path) -> None:
    """Two processes never write one store."""
    store = open_at(tmp_path)
    with pytest.raises(StoreLockedError, match="another process"):
        open_at(tmp_path)
    store.close()
    open_at(tmp_path).close()


def test_a_file_system_without_locks_is_no_other_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would find one to stop. What is there is left alone."""
    open_at(tmp_path).close()

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with monkeypatch.context() as trouble:
        trouble.setattr("consumers.store.directory.flock", refuse)
        with pytest.raises(StoreError, match="does not lock this store: No locks available") as refused:
            open_store(tmp_path, "shop", 3, "topic-1")
    assert (refused.value.code, isinstance(refused.value, StoreLockedError)) == ("store_denied", False)
    open_at(tmp_path).close()


def test_who_waits_for_a_store_keeps_no_file_of_each_look_open(tmp_path: Path) -> None:
    """Another process may have it for long, and who wants it looks several times a second."""
    store = open_at(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        with pytest.raises(StoreLockedError):
            open_at(tmp_path)
    assert len(os.listdir("/proc/self/fd")) < before + 50
    store.close()


def test_a_store_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path) -> None:
    """An older Freshet does not touch what it can't read."""
    open_at(tmp_path).close()
    directory = tmp_path / "shop" / "3"
    manifest = read_manifest(directory)
    assert manifest is not None
    write_manifest(directory, replace(manifest, format_version=99))
    with pytest.raises(StoreNewerError, match="format 99"):
        open_at(tmp_path)
    with pytest.raises(StoreNewerError):
        open_store(tmp_path, "shop", 3, "topic-1")
    assert directory.exists()


@pytest.mark.parametrize(
    ("field", "code"), [("topic_id", "topic_changed"), ("partition", "topic_changed"), ("layout", "layout_changed")]
)
def test_a_store_of_another_history_is_not_continued(tmp_path: Path, field: str, code: str) -> None:
    """Another topic id, partition or layout raises an error that asks for a rebuild, never a silent reset."""
    open_at(tmp_path, layout="xxh3_64;partitions=4").close()
    directory = tmp_path / "shop" / "3"
    manifest = read_manifest(directory)
    assert manifest is not None
    other: dict[str, Any] = {field: 7 if field == "partition" else "xxh3_64;partitions=9"}
    write_manifest(directory, replace(manifest, **other))
    with pytest.raises(RebuildNeededError) as caught:
        open_at(tmp_path, layout="xxh3_64;partitions=4")
    assert caught.value.code == code


@pytest.mark.parametrize("where", ["manifest", "head"])
def test_a_store_of_another_fold_version_is_rebuilt(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entries of different fold versions are never mixed."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    store.close()
    if where == "manifest":
        directory = tmp_path / "shop" / "3"
        manifest = read_manifest(directory)
        assert manifest is not None
        write_manifest(directory, replace(manifest, fold_version=FOLD_VERSION - 1))
    else:
        monkeypatch.setattr("consumers.store.view.FOLD_VERSION", FOLD_VERSION + 1)
    with pytest.raises(RebuildNeededError) as caught:
        open_at(tmp_path)
    assert caught.value.code == "fold_changed"


def test_a_replaced_store_is_moved_aside_and_kept(tmp_path: Path) -> None:
    """A rebuild keeps the old directory beside the new one."""
    store = open_at(tmp_path)
    store.apply(change(9, {key(1): b"one"}))
    store.close()
    fresh, why = open_store(tmp_path, "shop", 3, "topic-2")
    assert why is not None
    assert why.code == "topic_changed"
    assert fresh.state.head.offset == 0
    assert (tmp_path / "shop" / "3.replaced-1" / MANIFEST_NAME).exists()
    fresh.close()


def test_an_offset_outside_the_topic_asks_for_a_rebuild(tmp_path: Path) -> None:
    """An offset outside the topic is never reset silently."""
    store = open_at(tmp_path)
    check_range(store, "t", 0, 0)
    store.apply(change(7, {}))
    check_range(store, "t", 5, 7)
    for low, high in ((0, 6), (8, 9)):
        with pytest.raises(RebuildNeededError, match="the store is at 7"):
            check_range(store, "t", low, high)
    crash(store)


def test_only_an_empty_store_begins_where_the_topic_does_now(tmp_path: Path) -> None:
    """A topic whose beginning is gone is no error; a store that has folded something continues at its own offset."""
    store = open_at(tmp_path)
    check_range(store, "t", 5, 9)
    begin(store, "t", 5)
    assert store.state.head.offset == 5
    begin(store, "t", 8)
    assert store.state.head.offset == 5
    crash(store)


def test_a_damaged_manifest_is_corruption(tmp_path: Path) -> None:
    """A changed byte in manifest.json is detected."""
    open_at(tmp_path).close()
    path = tmp_path / "shop" / "3" / MANIFEST_NAME
    whole = path.read_bytes()
    fields = json.loads(whole)
    path.write_text(json.dumps(fields | {"topic_id": "topic-2"}))
    with pytest.raises(StoreCorruptError):
        open_at(tmp_path, topic_id="topic-2")
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x04]) + whole[at + 1 :])
        try:
            found = read_manifest(path.parent)
        except StoreCorruptError:
            continue
        assert found is not None
        assert found.topic_id == "topic-1"  # a blank that became another blank changes nothing
    path.unlink()
    with pytest.raises(StoreCorruptError, match="no manifest"):
        open_at(tmp_path)


def test_a_store_that_knew_no_layout_takes_the_topics(tmp_path: Path) -> None:
    """A store that has folded no marker yet is continued with whichever layout the topic has."""
    open_at(tmp_path).close(commit=False)
    store = open_at(tmp_path, layout="xxh3_64;partitions=4")
    assert store.visible.layout == ""
    store.close(commit=False)


@pytest.mark.parametrize("change_of", [{"colour": "red"}, {"keyspace": None}])
def test_a_manifest_with_other_fields_is_damaged(tmp_path: Path, change_of: dict[str, str | None]) -> None:
    """Fields that this version's format doesn't have, or that are missing, are not guessed, whatever the checksum."""
    open_at(tmp_path).close()
    path = tmp_path / "shop" / "3" / MANIFEST_NAME
    fields = {name: value for name, value in (json.loads(path.read_text()) | change_of).items() if value is not None}
    del fields["checksum"]
    path.write_text(json.dumps(fields | {"checksum": checksum_of(fields)}))
    with pytest.raises(StoreCorruptError, match="is damaged"):
        read_manifest(path.parent)


def test_the_layout_that_was_folded_counts_if_the_manifest_has_none(tmp_path: Path) -> None:
    """A kill after the first commit leaves the layout in the head only; another topic's is refused all the same."""
    store = open_at(tmp_path)
    store.fold([(0, start()), (1, marker(1))])
    store.close()
    manifest = read_manifest(store.directory)
    assert manifest is not None
    write_manifest(store.directory, replace(manifest, layout=""))
    with pytest.raises(RebuildNeededError) as caught:
        open_at(tmp_path, layout="xxh3_64;partitions=9")
    assert caught.value.code == "layout_changed"
    open_at(tmp_path, layout=LAYOUT).close()


@pytest.mark.parametrize("item", [(b"\0fold", b"one"), (b"\0offset", b"x"), (b"\0lineage/shop/0", b"[1]")])
def test_a_damaged_head_is_corruption(tmp_path: Path, item: tuple[bytes, bytes]) -> None:
    """The store is folded again; it is not opened with a part of its head."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    store.close()
    rocks = Rocks(store.directory / ROCKS_NAME)
    rocks.ingest(dict([item]), tmp_path / "scratch.sst")
    rocks.close()
    with pytest.raises(StoreCorruptError, match="the head is damaged"):
        open_at(tmp_path)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_copy_that_lacks_its_last_message_is_not_opened(tmp_path: Path, missing: int) -> None:
    """RocksDB may have passed over a damaged end of its own: the manifest says up to where the copy reaches."""
    store = open_at(tmp_path)
    store.apply(change(5, {key(1): b"one"}))
    copy = tmp_path / "copy"
    manifest = store.checkpoint(copy)
    store.close()
    write_manifest(copy, replace(manifest, offset=manifest.offset + missing))
    if not missing:
        StoreView(copy).close()
        return
    with pytest.raises(StoreCorruptError, match="manifest says 6"):
        StoreView(copy)


def test_a_store_that_got_past_a_newer_record_waits_for_no_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What stopped one fold says nothing of the next one, whose caller would hold the partition for it."""
    store = open_at(tmp_path)
    records = [(0, start()), (1, marker(1, reader_version=99))]
    store.fold(records)
    assert store.newer is not None
    monkeypatch.setattr(checks, "READER_VERSION", 99)
    store.fold(records)
    assert store.newer is None
    assert store.visible.offset == 2
    store.close()
