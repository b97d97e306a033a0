"""Comparing store directories, offline: equal, unequal, or not comparable."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from consumers.store.errors import StoreCorruptError
from consumers.store.rocks.database import Rocks
from consumers.store.store import ROCKS_NAME, partition_directory
from freshet.cli import app
from spark_jobs.output import RebuildError, find_stores
from spark_jobs.partition import FoldTask
from spark_jobs.verify import VerifyError, verify_stores
from tests.consumers.histories import key
from tests.spark_jobs.topics import history, in_arrow, items_of


def rebuilt(root: Path, *, end: int | None = None, partitions: int = 2, topic_id: str = "t1") -> Path:
    """What a rebuild of partitions with the same history leaves at ``root``."""
    starts = dict.fromkeys(range(partitions), 0)
    messages = history()[:end]
    for partition in range(partitions):
        with FoldTask("shop", topic_id, str(root), starts, starts).open(partition) as fold:
            fold.fold(*in_arrow(range(len(messages)), messages))
            fold.finish()
    return root


def flip_one_byte(directory: Path, wanted: bytes) -> None:
    """Change the last byte of one entry, through RocksDB, so that no checksum tells."""
    value = dict(items_of(directory))[wanted]
    rocks = Rocks(directory / ROCKS_NAME)
    rocks.ingest({wanted: value[:-1] + bytes([value[-1] ^ 1])}, directory / "flip.sst")
    rocks.close()


def test_one_flipped_byte_is_found_and_its_key_named(tmp_path: Path) -> None:
    """Verify names partition, key and both entries of the only difference, and exits with 1."""
    left, right = rebuilt(tmp_path / "a"), rebuilt(tmp_path / "b")
    flip_one_byte(partition_directory(right, "shop", 1), key(7))
    done = CliRunner().invoke(app, ["verify", str(left), str(right), "--json"])
    assert done.exit_code == 1
    said = json.loads(done.stdout)
    assert [partition["equal"] for partition in said["partitions"]] == [True, False]
    unequal = said["partitions"][1]
    assert (unequal["changed"], unequal["only_left"], unequal["only_right"]) == (1, 0, 0)
    assert unequal["first"][0]["key"] == "shop.items [7]"
    assert unequal["digest"] != unequal["right_digest"]
    text = CliRunner().invoke(app, ["verify", str(left), str(right)])
    assert "partition 1: UNEQUAL" in text.stdout
    assert "shop.items [7]" in text.stdout


def test_stores_with_equal_items_are_equal_for_any_files(tmp_path: Path) -> None:
    """Keys and values are compared, not files; the exit code is 0."""
    left, right = rebuilt(tmp_path / "a"), rebuilt(tmp_path / "b")
    done = CliRunner().invoke(app, ["verify", str(left), str(right)])
    assert done.exit_code == 0
    assert "equal, byte for byte" in done.stdout


def test_different_offsets_are_an_error_not_a_difference(tmp_path: Path) -> None:
    """States at different offsets are not compared, because a difference would prove nothing."""
    left, right = rebuilt(tmp_path / "a"), rebuilt(tmp_path / "b", end=30)
    with pytest.raises(VerifyError) as refused:
        verify_stores(find_stores(left), find_stores(right))
    assert refused.value.code == "offsets_differ"


def test_different_topics_and_partitions_are_errors(tmp_path: Path) -> None:
    """Stores of different topics, or with different partitions, are not compared."""
    left = find_stores(rebuilt(tmp_path / "a"))
    with pytest.raises(VerifyError) as refused:
        verify_stores(left, find_stores(rebuilt(tmp_path / "b", topic_id="t2")))
    assert refused.value.code == "topics_differ"
    with pytest.raises(VerifyError) as refused:
        verify_stores(left, find_stores(rebuilt(tmp_path / "c", partitions=1)))
    assert refused.value.code == "partitions_differ"


def test_a_damaged_file_is_reported_as_such(tmp_path: Path) -> None:
    """A byte flipped on disk fails RocksDB's checksum: corrupt, not merely different."""
    left, right = rebuilt(tmp_path / "a", partitions=1), rebuilt(tmp_path / "b", partitions=1)
    [file] = (partition_directory(right, "shop", 0) / ROCKS_NAME).glob("*.sst")
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreCorruptError):
        verify_stores(find_stores(left), find_stores(right))


def test_stores_are_found_at_any_level(tmp_path: Path) -> None:
    """A store, a keyspace's or a data directory can be given; no store, or ambiguous ones, are an error."""
    root = rebuilt(tmp_path / "a")
    assert find_stores(root) == find_stores(root / "shop")
    assert find_stores(root / "shop" / "1") == {1: root / "shop" / "1"}
    with pytest.raises(RebuildError) as refused:
        find_stores(root, "hive")
    assert refused.value.code == "no_store"
    rebuilt(tmp_path / "b")
    with pytest.raises(RebuildError) as refused:
        find_stores(tmp_path)
    assert refused.value.code == "ambiguous_stores"
    rebuilt(root / "shop", partitions=1)
    with pytest.raises(RebuildError) as refused:
        find_stores(root / "shop")
    assert refused.value.code == "ambiguous_stores"


def test_of_the_owners_checkpoints_the_newest_is_taken(tmp_path: Path) -> None:
    """Of several checkpoints of a partition the one with the greatest offset is used."""
    for end in (20, 40):
        store = partition_directory(rebuilt(tmp_path / f"at{end}", end=end, partitions=1), "shop", 0)
        place = tmp_path / "checkpoints" / "shop" / "0" / f"{end:020d}"
        place.parent.mkdir(parents=True, exist_ok=True)
        store.rename(place)
    for level in ("checkpoints", "checkpoints/shop", "checkpoints/shop/0"):
        found = find_stores(tmp_path / level, "shop")
        assert found == {0: tmp_path / "checkpoints" / "shop" / "0" / f"{40:020d}"}
