"""Snapshots on disk: what was written is what is read, and what is damaged is never used."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.snapshots.checking import check_snapshot
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.finding import Found, Wanted, find_snapshots
from consumers.snapshots.manifest import MANIFEST_NAME, Snapshot, decode_manifest, encode_manifest
from consumers.snapshots.places import Place, shown
from consumers.snapshots.pruning import judge, remove_snapshot
from consumers.snapshots.restoring import restore_partition
from consumers.snapshots.writing import write_snapshot
from consumers.store.digest import digest_items
from consumers.store.dropping import NOTE
from consumers.store.errors import DiskFullError
from consumers.store.rocks.database import Rocks
from consumers.store.store import StoreView, partition_directory
from tests.consumers.histories import marker
from tests.consumers.snapshots.made import SMALL_FILES, fold, only, snapshot_of
from tests.consumers.store import test_dropping
from tests.data_at_rest.history import KEYSPACE, TOPIC_ID, Items, messages


def items_of(directory: Path) -> Items:
    """All items of a store."""
    with StoreView(directory) as view:
        return list(view.items())


def test_a_snapshot_gives_back_the_state_byte_for_byte(tmp_path: Path) -> None:
    """What is made from it has all items, the same digest, and goes on with the tail to the same state."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, items = snapshot_of(tmp_path, place, 60)
    [held] = snapshot.partitions
    assert len(held.files) > 2
    assert (held.digest, held.entries) == digest_items(items)
    assert held.offset == 60
    restored = restore_partition(place, only(place), snapshot, 0, tmp_path / "new")
    assert restored == held
    assert items_of(tmp_path / "new" / KEYSPACE / "0") == items
    gone_on, whole = fold(tmp_path / "new"), fold(tmp_path / "whole")
    assert gone_on.digest() == whole.digest()
    gone_on.close()
    whole.close()


def test_the_ranges_of_the_files_are_the_state_in_order(tmp_path: Path) -> None:
    """Each file's digest is that of its range of keys, and the ranges do not overlap."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, items = snapshot_of(tmp_path, place)
    [held] = snapshot.partitions
    edges = [(bytes.fromhex(file.first), bytes.fromhex(file.last)) for file in held.files]
    assert all(one[0] <= one[1] < other[0] for one, other in pairwise(edges))
    for file, (first, last) in zip(held.files, edges, strict=True):
        assert digest_items(pair for pair in items if first <= pair[0] <= last) == (file.digest, file.entries)
    assert sum(file.entries for file in held.files) == len(items)


def test_the_note_of_dropped_tombstones_goes_with_the_state(tmp_path: Path) -> None:
    """An owner answers for an absent row by it, so a store without it could claim less than it knows."""
    with closing(test_dropping.open_at(tmp_path / "live")) as store:
        test_dropping.fold(store, *test_dropping.WHOLE, test_dropping.deleted(1, 2, first=31), marker(32))
        store.checkpoint(tmp_path / "checkpoint")
    with StoreView(tmp_path / "checkpoint") as view:
        stored = list(view.stored())
    assert NOTE in dict(stored)
    place = Place(str(tmp_path / "snapshots"))
    snapshot = write_snapshot(place, {0: tmp_path / "checkpoint"}, made_from="owners", file_bytes=SMALL_FILES)
    restore_partition(place, only(place), snapshot, 0, tmp_path / "new")
    with StoreView(tmp_path / "new" / KEYSPACE / "0") as view:
        assert list(view.stored()) == stored


def test_no_flipped_byte_of_a_snapshot_is_ever_used(tmp_path: Path) -> None:
    """A byte that differs in a file or in the manifest is `snapshot_damaged`, and leaves no store."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    root = tmp_path / "snapshots" / KEYSPACE / snapshot.name
    flips = 0
    for file in sorted(path for path in root.rglob("*") if path.is_file()):
        content = file.read_bytes()
        for at in range(0, len(content), 131):
            damaged = bytearray(content)
            damaged[at] ^= 4
            file.write_bytes(damaged)
            found = only(place)
            if file.name == MANIFEST_NAME:
                if found.snapshot == snapshot:
                    continue  # white space
                assert found.error is not None
                assert found.error.code == "snapshot_damaged", at
            else:
                assert found.snapshot is not None
                with pytest.raises(SnapshotError) as refused:
                    restore_partition(place, found, found.snapshot, 0, tmp_path / "new")
                assert refused.value.code == "snapshot_damaged"
                assert [error.code for _, error in check_snapshot(place, found, snapshot) if error] == [
                    "snapshot_damaged"
                ]
            assert not list((tmp_path / "new").glob("*/*"))
            flips += 1
        file.write_bytes(content)
    assert flips > 40
    assert [error for _, error in check_snapshot(place, only(place), snapshot)] == [None]


def test_files_that_fit_the_manifest_but_not_its_digest_are_found(tmp_path: Path) -> None:
    """`freshet snapshots verify` compares the state itself, not the files alone."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    [held] = snapshot.partitions
    other = msgspec.structs.replace(snapshot, partitions=(msgspec.structs.replace(held, digest="0" * 32),))
    [(_, error)] = check_snapshot(place, only(place), other)
    assert error is not None
    assert error.code == "snapshot_damaged"


@pytest.mark.parametrize(
    "name",
    ["../../secret", "0/../../1.sst", "/etc/passwd", "0/1.sst\n", "s3://other/0/1.sst", "0\\..\\1.sst", "", "1.sst"],
)
def test_a_manifest_names_no_file_outside_its_snapshot(tmp_path: Path, name: str) -> None:
    """Whoever may write a manifest may not make a consumer read, and ingest, what lies elsewhere."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    [held] = snapshot.partitions
    files = (msgspec.structs.replace(held.files[0], name=name), *held.files[1:])
    other = msgspec.structs.replace(snapshot, partitions=(msgspec.structs.replace(held, files=files),))
    assert decode_manifest(encode_manifest(snapshot), "here") == snapshot
    with pytest.raises(SnapshotError) as refused:
        decode_manifest(encode_manifest(other), "here")
    assert refused.value.code == "snapshot_damaged"


@pytest.mark.parametrize("lost", ["file", "manifest", "half of the manifest"])
def test_a_snapshot_that_lacks_something_is_not_one(tmp_path: Path, lost: str) -> None:
    """A missing file is noticed, a missing manifest means that it was not finished, half of one is damage."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    root = tmp_path / "snapshots" / KEYSPACE / snapshot.name
    manifest = root / MANIFEST_NAME
    if lost == "file":
        (root / "0" / "000001.sst").unlink()
        with pytest.raises(SnapshotError) as refused:
            restore_partition(place, only(place), snapshot, 0, tmp_path / "new")
        assert refused.value.code == "snapshot_missing"
        assert not list((tmp_path / "new").glob("*/*"))
    elif lost == "manifest":
        manifest.unlink()
        found = only(place)
        assert found.error is not None
        assert found.error.code == "snapshot_incomplete"
    else:
        manifest.write_bytes(manifest.read_bytes()[:300])
        found = only(place)
        assert found.error is not None
        assert found.error.code == "snapshot_damaged"


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    """An older Freshet does not guess what a newer one wrote; fields that were added are ignored."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    path = tmp_path / "snapshots" / KEYSPACE / snapshot.name / MANIFEST_NAME
    path.write_bytes(encode_manifest(msgspec.structs.replace(snapshot, format=2)))
    found = only(place)
    assert found.error is not None
    assert found.error.code == "snapshot_newer"
    assert "format 2" in str(found.error)


HELD = Wanted(0, TOPIC_ID, 1, 0, 1_000)


@pytest.mark.parametrize(
    ("wanted", "change", "code"),
    [
        (HELD, {}, None),
        (Wanted(0, "another", 1, 0, 1_000), {}, "snapshot_differs"),
        (Wanted(1, TOPIC_ID, 1, 0, 1_000), {}, "snapshot_differs"),
        (Wanted(0, TOPIC_ID, 2, 0, 1_000), {}, "snapshot_differs"),
        (HELD, {"fold_version": FOLD_VERSION - 1}, "snapshot_differs"),
        (Wanted(0, TOPIC_ID, 1, 61, 1_000), {}, "snapshot_expired"),
        (Wanted(0, TOPIC_ID, 1, 60, 1_000), {}, None),
        (Wanted(0, TOPIC_ID, 1, 0, 59), {}, "snapshot_expired"),
        (Wanted(0, TOPIC_ID, 1, 0, 60), {}, None),
    ],
)
def test_only_a_snapshot_of_the_right_history_is_used(
    tmp_path: Path, wanted: Wanted, change: dict[str, int], code: str | None
) -> None:
    """Topic id, partition count, fold version and offsets must fit; the refusal says which does not."""
    snapshot, _ = snapshot_of(tmp_path, Place(str(tmp_path / "snapshots")), 60)
    refusal = wanted.refusal(msgspec.structs.replace(snapshot, **change))
    assert (refusal.code if refusal else None) == code
    assert refusal is None or (snapshot.name in str(refusal) and refusal.hint)


def test_another_keyspace_is_refused(tmp_path: Path) -> None:
    """A place that is itself a snapshot is taken as one, but of its keyspace only."""
    snapshot, _ = snapshot_of(tmp_path, Place(str(tmp_path / "snapshots")))
    place = Place(str(tmp_path / "snapshots" / KEYSPACE / snapshot.name))
    assert only(place).snapshot == snapshot
    assert restore_partition(place, only(place), snapshot, 0, tmp_path / "new").offset == len(messages())
    [found] = find_snapshots(place, "other")
    assert found.error is not None
    assert found.error.code == "snapshot_differs"


def test_what_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    """Half a store beside its place is removed; a store never appears before it is whole."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, items = snapshot_of(tmp_path, place)
    half = tmp_path / "new" / KEYSPACE / "0.restoring" / "db"
    half.mkdir(parents=True)
    (half / "000001.sst").write_bytes(b"half")
    restore_partition(place, only(place), snapshot, 0, tmp_path / "new")
    assert items_of(partition_directory(tmp_path / "new", KEYSPACE, 0)) == items
    assert not half.exists()


def test_no_space_at_the_place_is_told_and_leaves_no_snapshot(tmp_path: Path) -> None:
    """A file that can't be written whole ends with `snapshot_full`; without its manifest nothing counts as there."""
    store = fold(tmp_path / "live")
    store.checkpoint(tmp_path / "checkpoint")
    store.close()
    code = f"""
import resource
from pathlib import Path
from consumers.snapshots.errors import SnapshotError
from consumers.snapshots.places import Place
place = Place({str(tmp_path / "snapshots")!r})
big = Path({str(tmp_path / "big")!r})
big.write_bytes(b"x" * 5000)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
for write in (lambda: place.put(big, "shop/name/0/1.sst"), lambda: place.write("shop/name/manifest.json", b"x" * 5000)):
    try:
        write()
    except SnapshotError as error:
        print(error.code)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["snapshot_full", "snapshot_full"], done.stderr
    [found] = find_snapshots(Place(str(tmp_path / "snapshots")), "shop")
    assert found.error is not None
    assert found.error.code == "snapshot_incomplete"


def test_a_file_that_can_not_be_copied_ends_a_snapshot_before_its_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the last one, which is copied while nothing is left to do but to wait: else it would count as whole."""
    store = fold(tmp_path / "live")
    store.checkpoint(tmp_path / "checkpoint")
    store.close()
    place = Place(str(tmp_path / "snapshots"))

    def lose(*_: object) -> None:
        raise SnapshotError("the place does not answer")

    monkeypatch.setattr(Place, "put", lose)
    with pytest.raises(SnapshotError, match="does not answer"):
        write_snapshot(place, {0: tmp_path / "checkpoint"}, made_from="owners")
    assert find_snapshots(place, KEYSPACE) == []


def test_no_space_here_is_no_damage_of_the_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is told of damage removes a good snapshot. With space again the store is made from it."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, items = snapshot_of(tmp_path, place)

    def full(*_: object) -> None:
        raise DiskFullError("no space left", hint="make some")

    with monkeypatch.context() as trouble:
        trouble.setattr(Rocks, "ingest_files", full)
        with pytest.raises(DiskFullError):
            restore_partition(place, only(place), snapshot, 0, tmp_path / "new")
    assert not list((tmp_path / "new").glob("*/*"))
    restore_partition(place, only(place), snapshot, 0, tmp_path / "new")
    assert items_of(tmp_path / "new" / KEYSPACE / "0") == items


def test_no_secret_of_an_address_is_shown() -> None:
    """User, password, query and fragment of an address appear in no message."""
    assert shown("ftp://me:secret@host/a/b?token=x#y") == "ftp://host/a/b"
    assert shown("s3://bucket/a") == "s3://bucket/a"
    assert shown("s3://AKIA:wJalr/XUtn@bucket/x") == "s3://bucket/x"
    assert shown("ftp://me:s@cret@host/d") == "ftp://host/d"
    assert shown("https://host/a?sig=secret%2F failed: 403") == "https://host/a failed: 403"
    with pytest.raises(SnapshotError) as refused:
        Place("ftp://me:s3cr3t@127.0.0.1:1/a")
    assert "s3cr3t" not in str(refused.value) + refused.value.hint
    assert refused.value.code == "snapshot_unreachable"
    with pytest.raises(SnapshotError, match="nosuch") as unknown:
        Place("nosuch://bucket/a")
    assert unknown.value.hint


# -- retention --------------------------------------------------------------------------------------------------------


NOW = datetime(2026, 1, 2, tzinfo=UTC)


def made(
    name: str,
    offset: int,
    *,
    topic: str = TOPIC_ID,
    fold: int = FOLD_VERSION,
    verified: bool = False,
    replayed: bool = False,
) -> Found:
    """A snapshot of one partition at an offset."""
    fields = {
        "name": name, "keyspace": KEYSPACE, "topic_id": topic, "layout": "", "fold_version": fold, "created": "",
        "made_from": "owners", "verified": verified, "replayed": replayed, "format": 1,
        "partitions": [{"partition": 0, "begin": 0, "offset": offset, "entries": 0, "digest": "", "positions": {},
                        "files": []}],
    }  # fmt: skip
    return Found(f"{KEYSPACE}/{name}", msgspec.convert(fields, Snapshot))


def test_what_retention_needs_is_never_pruned() -> None:
    """The newest ones of each fold version stay, the newest verified one too, even if the topic can't continue it.

    So does the newest one that was folded from the topic's beginning: an audit may be able to begin with no other.
    """
    found = [
        made("a", 10, verified=True),
        made("b", 20, verified=True),
        made("c", 30),
        made("d", 40),
        made("e", 50),
        made("f", 5, fold=FOLD_VERSION - 1),
        made("g", 900, topic="gone"),
    ]
    verdicts = {each.found.name: each for each in judge(found, TOPIC_ID, {0: 25}, 2, NOW)}
    assert {name for name, each in verdicts.items() if each.stays} == {"b", "d", "e", "f"}
    assert "verified" in verdicts["b"].why
    assert "can't continue" in verdicts["a"].why
    assert "topic id gone" in verdicts["g"].why
    words = [made(name, 10, verified=True) for name in "ab"] + [made(name, 20, replayed=True) for name in "cd"]
    witnesses = judge([*words, made("e", 30), made("f", 40)], TOPIC_ID, {0: 15}, 1, NOW)
    assert [each.found.name for each in witnesses if each.stays] == ["b", "d", "f"]
    alone = judge([made("a", 1)], TOPIC_ID, {0: 25}, 1, NOW)
    assert [each.stays for each in alone] == [True], "the last one is never removed"
    elsewhere = judge([made("a", 1, topic="gone"), made("b", 2, topic="gone")], TOPIC_ID, {0: 0}, 1, NOW)
    assert [each.stays for each in elsewhere] == [True, True], "the command may have asked another Kafka"


@pytest.mark.parametrize(("end", "stays"), [(500, {"a", "b"}), (900, {"lost", "b"})])
def test_a_snapshot_of_an_end_that_kafka_has_lost_takes_nobodys_place(end: int, stays: set[str]) -> None:
    """Its offsets are the greatest for long, and each new one would be removed for it. Alone it stays."""
    found = [made("lost", 900, verified=True), made("a", 300), made("b", 400, verified=True)]
    verdicts = judge(found, TOPIC_ID, {0: 0}, 2, NOW, {0: end})
    assert {each.found.name for each in verdicts if each.stays} == stays
    assert [each.stays for each in judge(found[:1], TOPIC_ID, {0: 0}, 1, NOW, {0: end})] == [True]


def test_what_can_not_be_read_stays_and_what_was_never_finished_goes_after_a_day() -> None:
    """A newer Freshet may have written it; a writer that still works must not lose its files."""

    def failed(name: str, code: str) -> Found:
        return Found(f"{KEYSPACE}/{name}", None, SnapshotError("why", code=code))

    old, young = (f"{NOW - timedelta(hours=hours):%Y%m%dT%H%M%SZ}-aa" for hours in (25, 23))
    found = [failed("x", "snapshot_newer"), failed("y", "snapshot_damaged"), failed(old, "snapshot_incomplete"),
             failed(young, "snapshot_incomplete"), failed("strange", "snapshot_incomplete")]  # fmt: skip
    assert [each.stays for each in judge(found, TOPIC_ID, {}, 1, NOW)] == [True, True, False, True, True]


def test_a_removed_snapshot_is_gone_and_a_half_removed_one_is_none(tmp_path: Path) -> None:
    """The manifest goes first."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot, _ = snapshot_of(tmp_path, place)
    place.remove(only(place).path_of(MANIFEST_NAME))
    assert only(place).snapshot is None
    place.write(only(place).path_of(MANIFEST_NAME), encode_manifest(snapshot))
    remove_snapshot(place, only(place))
    assert find_snapshots(place, KEYSPACE) == []
    assert json.loads(encode_manifest(snapshot))["name"] == snapshot.name


def test_the_manifest_of_a_snapshot_is_removed_before_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is killed meanwhile leaves no snapshot: one with a manifest and half of its files would be chosen."""
    place = Place(str(tmp_path / "snapshots"))
    snapshot_of(tmp_path, place)
    seen: list[Snapshot | None] = []
    remove_tree = Place.remove_tree

    def removing(self: Place, name: str) -> None:
        seen.append(only(place).snapshot)
        remove_tree(self, name)

    monkeypatch.setattr(Place, "remove_tree", removing)
    remove_snapshot(place, only(place))
    assert seen == [None]
