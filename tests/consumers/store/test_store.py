"""The store of a partition: commits, crashes, checkpoints, concurrent readers."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.fold.objects import object_key, objects_prefix
from consumers.fold.state import Changes, Head, Lineage, Void, head_entries
from consumers.store.errors import (
    DiskFullError,
    StoreError,
)
from consumers.store.leader_epochs import UNKNOWN, keep_leader_epoch, kept_leader_epoch
from consumers.store.store import StoreView
from tests.consumers.histories import key, marker, start, value
from tests.consumers.storing import change, crash, open_at

objects = st.sampled_from([object_key("partition", table, name) for table in (7, 70) for name in "abcdef"])
keys = st.one_of(st.integers(0, 10).map(key), objects)
prefixes = st.sampled_from([objects_prefix("partition", 7), objects_prefix("partition", 70)])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("apply"), st.dictionaries(keys, st.binary(min_size=1, max_size=40), max_size=5)),
        st.tuples(st.just("remove"), st.lists(st.one_of(objects, prefixes), min_size=1, max_size=3)),
        st.tuples(st.just("commit"), st.none()),
        st.tuples(st.just("freeze"), st.none()),
        st.tuples(st.just("write"), st.none()),
        st.tuples(st.just("crash"), st.none()),
        st.tuples(st.just("close"), st.none()),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps)
def test_after_any_schedule_of_commits_and_crashes_the_store_equals_a_dict(
    plan: list[tuple[str, Any]],
) -> None:
    """Whatever is committed is there after a crash, with exactly its offset, and nothing else is."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        store = open_at(directory)
        model: dict[bytes, bytes] = {}
        seen: set[bytes] = set()
        kept, kept_offset = dict(model), 0
        frozen: tuple[dict[bytes, bytes], int] | None = None
        for step, entries in plan:
            if step == "apply":
                store.apply(change(store.state.head.offset + 1, entries))
                model |= entries
                seen |= entries.keys()
            elif step == "remove":
                changes = Changes(store.state.head.offset + 1, {}, gone=tuple(entries))
                store.apply(changes)
                changes.put_into(model)
            elif step in ("commit", "close"):
                store.commit() if step == "commit" else store.close()
                kept, kept_offset, frozen = dict(model), store.state.head.offset, None
            elif step == "freeze":
                frozen = (dict(model), store.state.head.offset) if store.freeze() else frozen
            elif step == "write":
                store.write()
                kept, kept_offset, frozen = (*frozen, None) if frozen else (kept, kept_offset, None)
            if step in ("crash", "close"):
                crash(store)
                store = open_at(directory)
                model, frozen = dict(kept), None
            assert store.committed_offset == kept_offset
            assert {k: found for k in seen if (found := store.get(k)) is not None} == model
            for prefix in (objects_prefix("partition", 7), key(0)[:-3]):
                under = sorted(pair for pair in model.items() if pair[0].startswith(prefix))
                assert store.between(prefix, prefix + b"\xff", 100) == under
            everything = dict(store.items())
            assert everything == model | head_entries(store.state.head)
            assert list(everything) == sorted(everything)
        crash(store)


def test_what_goes_together_is_looked_for_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new epoch takes along every set of a catalog, and an iterator costs more than a step of it."""
    store, tables, taken = open_at(tmp_path), range(1, 50), 0
    names = {each: [object_key("partition", each, f'["{name}"]') for name in "ab"] for each in tables}
    store.apply(change(1, {key: b"x" for keys in names.values() for key in keys}))
    store.commit()
    gone = [objects_prefix("partition", each) for each in tables if each != 7]
    store.apply(Changes(2, {names[3][1]: b"y"}, gone=(*gone, names[7][0])))
    iterator = store._rocks._iterator

    def counted(start: bytes) -> Any:
        nonlocal taken
        taken += 1
        return iterator(start)

    monkeypatch.setattr(store._rocks, "_iterator", counted)
    store.commit()
    assert taken == 1
    left = {key for key, _ in store.items()} - head_entries(store.state.head).keys()
    assert left == {names[3][1], names[7][1]}
    store.close()


def test_objects_that_go_while_they_are_being_committed_are_not_listed(tmp_path: Path) -> None:
    """Nor is what was committed before. What comes again meanwhile is."""
    store, prefix = open_at(tmp_path), objects_prefix("partition", 7)
    first, second, third = (object_key("partition", 7, f'["{name}"]') for name in "abc")
    store.apply(change(1, {first: b"1"}))
    store.commit()
    store.apply(change(2, {second: b"2", third: b"2"}))
    store.freeze()
    store.apply(Changes(3, {third: b"3"}, gone=(prefix,)))
    assert store.between(prefix, prefix + b"\xff", 9) == [(third, b"3")]
    assert [store.get(each) for each in (first, second, third)] == [None, None, b"3"]
    store.close()


def test_many_keys_are_looked_up_as_one_by_one(tmp_path: Path) -> None:
    """Wherever a key is: folded since, being committed, committed, nowhere; also while the database is reopened."""
    store = open_at(tmp_path)
    for offset in range(1, 4):
        store.apply(change(offset, {key(number): b"%d" % offset for number in range(offset, 6)}))
        if offset < 3:
            store.commit() if offset == 1 else store.freeze()
    keys = [key(number) for number in (5, 1, 9, 2, 3, 1)]
    assert store.begins(keys) == [b"3", b"1", None, b"2", b"3", b"1"] == list(map(store.get, keys))
    store._rocks._db.close()
    with pytest.raises(StoreError):
        store.begins(keys)
    store._rocks.reopen()
    assert store.begins(keys)[1] == b"1"
    store.close()


def test_equal_states_have_equal_digests_for_any_commits(tmp_path: Path) -> None:
    """A digest depends on the folded state alone, not on when it was committed or compacted."""
    digests = set()
    for name, every in (("a", 1), ("b", 7), ("c", 1000)):
        store = open_at(tmp_path / name)
        for offset in range(1, 101):
            store.apply(change(offset, {key(offset % 13): b"%d" % offset}))
            if offset % every == 0:
                store.commit()
        digests.add(store.digest())
        store.close()
        with StoreView(tmp_path / name / "shop" / "3") as view:
            digests.add(view.digest())
    assert len(digests) == 1


def test_folding_while_a_commit_is_written_loses_nothing(tmp_path: Path) -> None:
    """Readers see every entry at any moment of a commit that runs during the fold."""
    store = open_at(tmp_path)
    store.fold([(0, start()), (1, marker(1))])
    stop = threading.Event()
    wrong: list[str] = []

    def read() -> None:
        while not stop.is_set():
            head = store.visible
            for number in range(2, head.lineages["shop/0"].ordinal + 1, 97):
                found = store.get(key(number))
                if found is None or b"image-%d" % number not in found:
                    wrong.append(f"{number}: {found!r}")

    reader = threading.Thread(target=read)
    reader.start()
    for base in range(2, 20_000, 500):
        store.fold([(n, value(n, b"image-%d" % n, n)) for n in range(base, base + 500)])
        store.freeze()
        writing = threading.Thread(target=store.write)
        writing.start()
        writing.join(0.002)
    stop.set()
    reader.join()
    store.close()
    assert wrong == []


def test_the_watermark_is_published_after_the_entries_it_covers(tmp_path: Path) -> None:
    """A reader that takes the head first never finds an entry older than the watermark it judges by."""
    store = open_at(tmp_path)
    store.fold([(0, start()), (1, marker(1))])
    stop = threading.Event()
    wrong: list[tuple[int, int]] = []

    def read() -> None:
        while not stop.is_set():
            mark = store.visible.lineages["shop/0"].watermark_ordinal
            found = store.get(key(1))
            ordinal = int.from_bytes(found[1:9], "big") if found else 1
            if ordinal < mark:
                wrong.append((ordinal, mark))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(2, 4000):
        store.fold([(2 * number, value(1, b"%d" % number, number)), (2 * number + 1, marker(number))])
    stop.set()
    reader.join()
    crash(store)
    assert wrong == []


def test_a_message_below_the_offset_is_skipped(tmp_path: Path) -> None:
    """Redelivery after a rebalance folds nothing twice."""
    store = open_at(tmp_path)
    messages = [(0, start()), (1, marker(1)), (2, value(1, b"a", 2))]
    store.fold(messages)
    before = store.digest()
    store.fold(messages)
    assert store.digest() == before
    crash(store)


def test_a_checkpoint_is_the_state_at_its_offset(tmp_path: Path) -> None:
    """A checkpoint opens on its own and keeps its digest while the live store changes."""
    store = open_at(tmp_path / "live")
    store.apply(change(1, {key(1): b"one"}))
    digest = store.digest()
    manifest = store.checkpoint(tmp_path / "copies" / "at1")
    store.apply(change(2, {key(1): b"two"}))
    store.commit()
    assert manifest.offset == 1
    with StoreView(tmp_path / "copies" / "at1") as view:
        assert view.digest() == digest
        assert view.manifest == manifest
        assert view.head.offset == 1
    store.close()


def test_a_checkpoint_can_replace_a_store(tmp_path: Path) -> None:
    """A checkpoint copied to a new data directory continues from its offset."""
    store = open_at(tmp_path / "live")
    store.apply(change(5, {key(1): b"one"}))
    store.checkpoint(tmp_path / "copy")
    store.close()
    shutil.copytree(tmp_path / "copy", tmp_path / "other" / "shop" / "3")
    moved = open_at(tmp_path / "other")
    assert moved.state.head.offset == 5
    assert moved.get(key(1)) == b"one"
    moved.close()


def test_a_live_store_can_be_viewed_while_its_owner_writes(tmp_path: Path) -> None:
    """`freshet inspect` reads what is committed while the owner continues."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    store.commit()
    store.apply(change(2, {key(2): b"two"}))
    with StoreView(tmp_path / "shop" / "3") as view:
        assert (view.get(key(1)), view.get(key(2)), view.head.offset) == (b"one", None, 1)
    store.close()


def test_the_head_survives_with_voids_and_layout(tmp_path: Path) -> None:
    """Watermarks, voids, layout and offset are committed with the entries."""
    store = open_at(tmp_path)
    lineage = Lineage(2, 10, 9, "MariaDB/0-1-9", 1_700_000_000, "MariaDB/0-1-1")
    voids = {("*", "shop/0"): Void(2, 3, ""), ("shop.items", "shop/0"): Void(2, 5, "MariaDB/0-1-5")}
    store.apply(Changes(4, {}, {"shop/0": lineage}, voids, "xxh3_64;partitions=4"))
    store.close()
    again = open_at(tmp_path)
    assert again.state.head == Head(4, "xxh3_64;partitions=4", {"shop/0": lineage}, voids)
    assert again.manifest.layout == "xxh3_64;partitions=4"
    again.close()


@pytest.fixture
def file_size_limit() -> Iterator[object]:
    """Limits the size of files, as a full disk would, and removes the limit afterwards."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit(size: int | None) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before[0] if size is None else size, before[1]))

    yield limit
    limit(None)


def test_a_full_disk_loses_nothing_and_the_next_commit_goes_on(tmp_path: Path, file_size_limit) -> None:  # type: ignore[no-untyped-def]
    """After a commit without space reads and folding go on, and the same rows are committed later."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    store.commit()
    rows = {key(number): b"%d" % number * 500 for number in range(200)}
    store.apply(change(2, rows))
    file_size_limit(4096)
    try:
        with pytest.raises(DiskFullError) as caught:
            store.commit()
        assert caught.value.code == "disk_full"
        assert store.get(key(7)) == rows[key(7)]
        store.apply(change(3, {key(7): b"newer"}))
        with pytest.raises(DiskFullError):
            store.commit()
    finally:
        file_size_limit(None)
    assert store.committed_offset == 1
    store.commit()
    assert store.committed_offset == 3
    crash(store)
    again = open_at(tmp_path)
    assert again.get(key(7)) == b"newer"
    assert again.get(key(8)) == rows[key(8)]
    again.close()


def test_readers_are_answered_while_the_database_is_reopened(tmp_path: Path) -> None:
    """Reads wait while the writer reopens the database after a disk error, and don't take that for damage."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    store.commit()
    over = threading.Event()
    found: Counter[object] = Counter()

    def read() -> None:
        while not over.is_set():
            try:
                found[store.get(key(1))] += 1
            except StoreError as error:
                found[error.code] += 1

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(20):
        store._rocks.reopen()
    over.set()
    for reader in readers:
        reader.join()
    assert set(found) == {b"one"}
    assert store.broken is None
    store.close()


def test_a_commit_needs_no_files_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On systems other than Linux the file is built in place, with the same contents."""
    monkeypatch.setattr("consumers.store.rocks.tables.sys", SimpleNamespace(platform="darwin"))
    for name in ("memfd_create", "sendfile", "fdatasync"):
        monkeypatch.delattr(os, name)
    entries = {key(number): b"v" for number in range(500)}
    store = open_at(tmp_path)
    store.apply(change(1, entries))
    assert store.commit() is not None
    crash(store)
    again = open_at(tmp_path)
    assert {name: again.get(name) for name in entries} == entries
    again.close()


def test_a_checkpoint_holds_what_is_frozen_and_what_was_folded_since(tmp_path: Path) -> None:
    """It is the state as of the call, whichever part of it a commit has just taken."""
    store = open_at(tmp_path / "live")
    store.apply(change(1, {key(1): b"frozen"}))
    assert store.freeze()
    store.apply(change(2, {key(2): b"active"}))
    copied = store.checkpoint(tmp_path / "copy")
    digest = store.digest()
    store.close()
    with StoreView(tmp_path / "copy") as view:
        assert (copied.offset, view.head.offset, view.digest()) == (2, 2, digest)


@pytest.mark.parametrize("step", ["copy", "manifest", "rename", "folder"])
def test_a_failed_checkpoint_is_an_error_and_leaves_nothing(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever step fails, nobody takes a part for the whole, and the next one can be made at the same place."""
    store = open_at(tmp_path / "live")
    store.apply(change(1, {key(1): b"one"}))
    path = tmp_path / "copy"

    def fail(*_: object) -> None:
        raise DiskFullError("full", hint="free some") if step == "copy" else OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patched:
        if step == "copy":
            patched.setattr(store._rocks, "checkpoint", fail)
        elif step == "folder":
            (tmp_path / "file").write_text("no directory")
            path = tmp_path / "file" / "copy"
        else:
            name = "consumers.store.store.write_manifest" if step == "manifest" else "consumers.store.store.os.replace"
            patched.setattr(name, fail)
        with pytest.raises(StoreError):
            store.checkpoint(path)
    assert sorted(each.name for each in tmp_path.iterdir() if each.name != "file") == ["live"]
    assert store.checkpoint(tmp_path / "copy").offset == 1
    store.close()


def test_a_store_says_that_it_folds_while_entries_are_ahead_of_the_head(tmp_path: Path) -> None:
    """Readers must not take the entries of that time for those of the head that they hold."""
    store = open_at(tmp_path)
    seen: list[bool] = []

    class Watched(list[tuple[int, bytes | None]]):
        def __iter__(self) -> Iterator[tuple[int, bytes | None]]:
            seen.append(store.is_folding)
            return super().__iter__()

        def __getitem__(self, at: Any) -> Any:
            seen.append(store.is_folding)
            return super().__getitem__(at)

    store.fold(Watched(enumerate([start(), value(1, b"{}", 1), marker(1)])))
    assert any(seen)
    assert not store.is_folding
    store.close(commit=False)


def test_a_leader_epoch_is_of_one_offset_only(tmp_path: Path) -> None:
    """Of another one Kafka would compare it with another history: a crash may leave the file behind the store."""
    keep_leader_epoch(tmp_path, 7, 3)
    assert [kept_leader_epoch(tmp_path, offset) for offset in (6, 7, 8)] == [UNKNOWN, 3, UNKNOWN]
