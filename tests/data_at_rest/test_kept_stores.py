"""Old stores, checkpoints and rebuilds read the same forever or are refused; damaged ones are never read."""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from consumers.fold.state import FOLD_VERSION
from consumers.store.digest import digest_items
from consumers.store.errors import RebuildNeededError, StoreError, StoreNewerError
from consumers.store.manifest import MANIFEST_NAME, checksum_of, read_manifest
from consumers.store.store import PartitionStore
from consumers.store.view import StoreView
from spark_jobs.output import RebuildError, find_stores, read_report
from tests.data_at_rest.flips import PARTS
from tests.data_at_rest.history import (
    CURRENT,
    FIXTURES,
    KEYSPACE,
    TOPIC_ID,
    Items,
    expected,
    keys_ever,
    messages,
    unpack,
    write_store,
)
from tests.lengths import length
from tests.patience import PATIENCE_S

KEPT = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("v*.tar.gz"))
READABLE = [name for name in KEPT if expected(name)["fold_version"] == FOLD_VERSION]
EVERY = length(share=13, whole=5)
"""In an SST one byte in this many is flipped; in small files every byte."""
ROOT = Path(__file__).parents[2]


def items_of(name: str) -> Items:
    """What a fixture holds."""
    return [(b64decode(key), b64decode(value)) for key, value in expected(name)["items"]]


def open_live(root: Path) -> PartitionStore:
    """The fixture's live store, as its owner opens it."""
    return PartitionStore.open(root / "live", keyspace=KEYSPACE, partition=0, topic_id=TOPIC_ID)


def rewrite(manifest: Path, **fields: Any) -> None:
    """A manifest with other fields, as a writer would leave it."""
    found = json.loads(manifest.read_text())
    del found["checksum"]
    found |= fields
    manifest.write_text(json.dumps(found | {"checksum": checksum_of(found)}))


def test_the_current_format_is_kept() -> None:
    """A new version of format or fold needs a new fixture: `python -m tests.data_at_rest.history`."""
    assert CURRENT in READABLE


@pytest.mark.parametrize("name", READABLE)
@pytest.mark.parametrize("part", PARTS)
def test_a_kept_store_reads_the_same(tmp_path: Path, name: str, part: str) -> None:
    """A kept store, checkpoint and rebuild has every entry, byte for byte, and the same digest."""
    unpack(name, tmp_path)
    with StoreView(tmp_path / PARTS[part]) as view:
        found = list(view.items())
        assert found == items_of(name)
        assert view.digest() == (expected(name)["digest"], expected(name)["count"]) == digest_items(found)
        assert view.head.offset == len(messages())


@pytest.mark.parametrize("name", READABLE)
def test_an_owner_continues_a_kept_store(tmp_path: Path, name: str) -> None:
    """A kept store that folds the tail and commits equals one written by this version."""
    unpack(name, tmp_path)
    store = open_live(tmp_path)
    tail = [messages()[-2], b"poison"]
    store.fold(list(enumerate(tail, store.state.head.offset)))
    store.close()
    fresh = tmp_path / "fresh"
    assert write_store(fresh) == items_of(name)
    again = PartitionStore.open(fresh, keyspace=KEYSPACE, partition=0, topic_id=TOPIC_ID)
    again.fold(list(enumerate(tail, again.state.head.offset)))
    reopened = open_live(tmp_path)
    assert reopened.digest() == again.digest()
    reopened.close()
    again.close()


@pytest.mark.parametrize("name", sorted(set(KEPT) - set(READABLE)) or ["none"])
def test_a_store_of_an_older_fold_is_rebuilt_and_not_read(tmp_path: Path, name: str) -> None:
    """A store of an older fold version is refused with its code, because the log now folds to other bytes."""
    if name == "none":  # no older fold yet: the same with a store that says that it is one
        name = READABLE[-1]
        unpack(name, tmp_path)
        rewrite(tmp_path / PARTS["live"] / MANIFEST_NAME, fold_version=FOLD_VERSION - 1)
    else:
        unpack(name, tmp_path)
    with pytest.raises(RebuildNeededError) as refused:
        open_live(tmp_path)
    assert refused.value.code == "fold_changed"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("field", ["format_version", "fold_version"])
def test_what_a_newer_freshet_wrote_is_refused_in_one_line_and_left_alone(
    tmp_path: Path, part: str, field: str
) -> None:
    """It fails with store_newer and a hint, and no byte is changed."""
    unpack(READABLE[-1], tmp_path)
    directory = tmp_path / PARTS[part]
    rewrite(directory / MANIFEST_NAME, **{field: json.loads((directory / MANIFEST_NAME).read_text())[field] + 2})
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}

    def refuse() -> None:
        if part == "live":
            open_live(tmp_path)
        else:
            StoreView(directory).close()

    if part != "live" and field == "fold_version":
        return refuse()  # its manifest is not asked: the head inside says the fold version
    with pytest.raises(StoreNewerError) as refused:
        refuse()
    assert refused.value.code == "store_newer"
    assert refused.value.hint
    assert str(refused.value).isprintable()
    after = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before
    return None


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_a_flipped_byte_is_detected_or_harmless(part: str) -> None:
    """A flip in any file gives an error with code and hint, or exactly the written items."""
    command = [sys.executable, "-m", "tests.data_at_rest.flips", "--fixture", READABLE[-1]]
    done = subprocess.run(
        [*command, "--part", part, "--every", str(EVERY)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    found = json.loads(done.stdout)
    assert not found["wrong"], found["wrong"]
    outcomes = found["outcomes"]
    assert outcomes["detected"] > 500
    assert outcomes.get("earlier", 0) < (40 if part == "live" else 1)


def test_a_checkpoint_that_lost_its_last_commit_is_refused(tmp_path: Path) -> None:
    """RocksDB ignores a lost last record of its manifest, but a checkpoint must be at its manifest's offset."""
    unpack(READABLE[-1], tmp_path)
    directory = tmp_path / PARTS["checkpoint"]
    [log] = (directory / "db").glob("MANIFEST-*")
    log.write_bytes(log.read_bytes()[:-3])
    with pytest.raises(StoreError, match="manifest says") as refused:
        StoreView(directory)
    assert refused.value.code == "store_corrupt"


def _view(directory: Path) -> Items:
    with StoreView(directory) as view:
        return list(view.items())


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("size", [0, 1, 0.5, 0.9])
def test_a_file_cut_short_is_detected_or_harmless(tmp_path: Path, part: str, size: float) -> None:
    """A truncated file gives an error, or exactly the written items."""
    unpack(READABLE[-1], tmp_path / "whole")
    whole = tmp_path / "whole" / PARTS[part]
    wanted = items_of(READABLE[-1])
    for file in sorted(path for path in whole.rglob("*") if path.is_file()):
        content = file.read_bytes()
        file.write_bytes(content[: int(size if size in (0, 1) else len(content) * size)])
        found: Items | None
        try:
            found = _view(whole)
        except StoreError:
            found = None
        if found is None:
            pass  # detected
        elif part == "live" and file.name.startswith("MANIFEST"):
            assert dict(found).keys() <= keys_ever(), file  # without its last commits, which are folded again
        else:
            assert found == wanted, file
        file.write_bytes(content)


def test_a_kept_rebuild_is_found_and_read(tmp_path: Path) -> None:
    """`freshet verify` and `--base` find a kept rebuild.json and its stores."""
    root = unpack(READABLE[-1], tmp_path) / "rebuild"
    report = read_report(root)
    assert (report.keyspace, report.ends) == (KEYSPACE, {0: len(messages())})
    assert report.partitions[0].digest == expected(READABLE[-1])["digest"]
    assert find_stores(root) == {0: root / KEYSPACE / "0"}
    manifest = read_manifest(root / KEYSPACE / "0")
    assert manifest is not None
    assert manifest.offset == len(messages())


def test_a_rebuild_of_a_newer_freshet_is_refused(tmp_path: Path) -> None:
    """A newer rebuild.json is refused with its code."""
    root = unpack(READABLE[-1], tmp_path) / "rebuild"
    file = root / "rebuild.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"report_version": 2}))
    with pytest.raises(RebuildError) as refused:
        read_report(root)
    assert refused.value.code == "rebuild_newer"
    assert refused.value.hint
