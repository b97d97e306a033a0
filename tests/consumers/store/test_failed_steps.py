"""A step of a store that fails leaves nothing open, and what does not depend on it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rocksdict import DbClosedError

from consumers.store.errors import DiskIOError, StoreCorruptError, StoreError
from consumers.store.index import INDEX
from consumers.store.leader_epochs import FILE_NAME, UNKNOWN, keep_leader_epoch, kept_leader_epoch
from consumers.store.manifest import read_manifest, write_manifest
from consumers.store.rocks.database import Rocks
from consumers.store.store import ROCKS_NAME, PartitionStore, StoreView
from tests.consumers.histories import LAYOUT, key, marker, start
from tests.consumers.store.test_indexes import BY_NAME, having
from tests.consumers.store.test_indexes import open_at as open_indexed
from tests.consumers.storing import change, crash, open_at


@pytest.mark.parametrize(("fails", "kept"), [("ingest", None), ("close", b"one")])
def test_a_store_that_closes_with_an_error_is_closed_all_the_same(
    tmp_path: Path, fails: str, kept: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partition goes to another process, or comes back to this one, which could not open it otherwise."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    close = store._rocks.close

    def fail(*_: object) -> None:
        if fails == "close":
            close()
        raise DiskIOError("the disk is away", hint="look at it")

    monkeypatch.setattr(store._rocks, fails, fail)
    with pytest.raises(DiskIOError):
        store.close()
    again = open_at(tmp_path)
    assert again.get(key(1)) == kept
    again.close()


def test_a_view_that_is_refused_leaves_nothing_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are looked at in a loop: each look would keep a database with its files and its cache."""
    store, copy = open_at(tmp_path), tmp_path / "copy"
    store.apply(change(1, {key(1): b"one"}))
    write_manifest(copy, replace(store.checkpoint(copy), offset=9))
    store.close()
    closed: list[Path] = []
    close = Rocks.close

    def noted(rocks: Rocks) -> None:
        closed.append(rocks.path)
        close(rocks)

    monkeypatch.setattr(Rocks, "close", noted)
    with pytest.raises(StoreCorruptError):
        StoreView(copy)
    assert closed == [copy / ROCKS_NAME]


def test_many_keys_are_looked_up_while_the_database_is_opened_again(tmp_path: Path) -> None:
    """As one by one: the fold would take it for damage, and the partition would be folded from its beginning."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    store.commit()
    rocks: Any = store._rocks
    database = rocks._db

    class Closed:
        """The one that was closed; by then there is another one."""

        def get(self, _: object) -> None:
            """As of a database that is closed."""
            rocks._db = database
            raise DbClosedError("closed")

    rocks._db = Closed()
    assert store.begins([key(1), key(2)]) == [b"one", None]
    assert store.broken is None
    store.close()


def test_a_commit_tells_of_what_was_frozen_before_it(tmp_path: Path) -> None:
    """Nothing was folded since, and all the same something has become durable, which operators see."""
    store = open_at(tmp_path)
    store.apply(change(1, {key(1): b"one"}))
    assert store.freeze()
    done = store.commit()
    assert done is not None
    assert (done.offset, store.commit()) == (1, None)
    store.close()


def test_a_layout_that_can_not_be_noted_fails_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are durable, and the head has the layout, too; the next commit notes it."""

    def away(*_: object) -> None:
        raise OSError("away")

    store = open_at(tmp_path)
    store.fold([(0, start()), (1, marker(1))])
    with monkeypatch.context() as trouble:
        trouble.setattr("consumers.store.store.write_manifest", away)
        assert store.commit() is not None
    layouts = []
    for offset in (2, 3):
        manifest = read_manifest(store.directory)
        layouts.append(manifest.layout if manifest is not None else None)
        store.fold([(offset, marker(offset))])
        store.commit()
    assert (layouts, store.committed_offset) == (["", LAYOUT], 4)
    crash(store)


def test_a_leader_epoch_that_can_not_be_kept_is_unknown(tmp_path: Path) -> None:
    """Kafka is asked nothing then: neither a disk that fails nor a file that a crash has cut stops a fold."""
    keep_leader_epoch(tmp_path / "nowhere", 7, 3)
    assert kept_leader_epoch(tmp_path / "nowhere", 7) == UNKNOWN
    for content in ("", "{", "7", "null", "[7]", '[7,"x"]', "[" * 100_000, "\ud800"):
        (tmp_path / FILE_NAME).write_bytes(content.encode("utf-8", "surrogatepass"))
        assert kept_leader_epoch(tmp_path, 7) == UNKNOWN, content[:9]


class Broken:
    """An iterator at a block that can't be read."""

    def seek(self, _: bytes) -> None:
        """Goes anywhere."""

    def valid(self) -> bool:
        """As of a damaged block."""
        raise RuntimeError("Corruption: block checksum mismatch")


def test_a_look_at_an_index_that_failed_is_not_gone_on_with(tmp_path: Path) -> None:
    """The place that is kept for the next look is given up; it would also keep the database open."""
    rocks = Rocks(tmp_path / "db")
    rocks.ingest({b"a": b"1"}, tmp_path / "scratch.sst", {INDEX + b"x": b""})
    rocks._place = rocks._files, Broken()
    with pytest.raises(StoreError):
        rocks.scan_index(INDEX + b"x", 9)
    assert rocks.scan_index(INDEX + b"x", 9) == [INDEX + b"x"]
    rocks.close()


STEPS: dict[str, tuple[str, Callable[[PartitionStore], object]]] = {
    "look": ("get", lambda store: store.get(key(1))),
    "looks": ("get_many", lambda store: store.begins([key(1)])),
    "range": ("scan", lambda store: store.between(key(1), key(2), 9)),
    "index": ("scan_index", lambda store: having(store, "a")),
    "commit": ("ingest", lambda store: store.commit()),
}


@pytest.mark.parametrize("is_damage", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_whoever_finds_damage_says_so_for_all(
    tmp_path: Path, step: str, is_damage: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the store may be served from then on, by whichever look. A disk that is away for a moment is none."""
    asked, take = STEPS[step]
    error = StoreCorruptError("a block is damaged") if is_damage else DiskIOError("the disk is away")

    def fail(*_: object) -> None:
        raise error

    store = open_indexed(tmp_path, BY_NAME)
    store.apply(change(1, {key(7, "shop.others"): b"one"}))
    with monkeypatch.context() as trouble:
        trouble.setattr(store._rocks, asked, fail)
        with pytest.raises(type(error)):
            take(store)
    assert store.broken is (error if is_damage else None)
    crash(store)
