"""Kept directories of the byte cache read the same forever; a damaged one gives the right bytes or none."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.layout import BLOCK, FORMAT_VERSION
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.pools import Value
from tests.data_at_rest.history import FIXTURES, unpack
from tests.data_at_rest.keep_bytes import FILES, KEPT, KEY, PAGE, files_of, open_kept, stored_blocks

NAMES = sorted(path.name.removesuffix(".tar.gz") for path in FIXTURES.glob("bytes*.tar.gz"))
READABLE = [name for name in NAMES if name.startswith(f"bytes{FORMAT_VERSION}-")]
NEWER = "bytes_dir_newer", "freshet-bytes.json"
"""How, and for which damaged file, a directory may be refused: the format's number became a higher one."""
FLIPS = int(os.environ.get("FRESHET_TEST_BYTES_FLIPS", "30"))
"""Of each file so many bytes are flipped, one at a time; 0: every one that means something."""


def key_of(name: str) -> str:
    """The key of a fixture."""
    return KEY if name.endswith("sealed") else ""


def wrong_or_missing(directory: Directory) -> tuple[list[str], list[tuple[str, int]]]:
    """(blocks with other bytes than were stored, blocks that are not here), of all files that should be here."""
    wrong, missing = [], []
    for path, data in files_of(key_of(directory.place.name)).items():
        file = directory.names.by_path.get(path)
        for block in stored_blocks(path):
            start, end = block * BLOCK, min((block + 1) * BLOCK, len(data))
            parts = [(start, end), (start, start + 100), (end - 1, end)]
            for low, high in parts:
                found = directory.read(file, low, high) if file is not None and file.size == len(data) else None
                if found is None:
                    missing.append((path, block))
                elif found != data[low:high]:
                    wrong.append(f"{path} from {low} to {high}")
    foreign = [path for path in directory.names.by_path if path not in FILES]
    return wrong + foreign, missing


def test_the_current_format_is_kept() -> None:
    """A new format needs new fixtures: `python -m tests.data_at_rest.keep_bytes`."""
    assert sorted(KEPT) == READABLE


@pytest.mark.parametrize("name", READABLE)
def test_a_kept_directory_reads_the_same(tmp_path: Path, name: str) -> None:
    """Every block that was stored is here, with its value, version, scope, expiry and heat; what was forgotten is not.

    What is stored next gets a number that no file had.
    """
    directory = open_kept(unpack(name, tmp_path / name), key_of(name))
    assert wrong_or_missing(directory) == ([], [])
    kept = files_of(key_of(name))
    assert set(directory.names.by_path) == set(kept)
    assert {file.version for file in directory.names.by_path.values()} == {"v1"}
    assert directory.names.by_path["bucket/footer"].scope == "scope"
    assert directory.shards[0].costs()["index"] >= PAGE
    blocks = sum(len(stored_blocks(path)) for path in kept)
    assert directory.verify() == (blocks, 0)
    assert sum(directory.shards[0]._kept_heat) > 0
    numbers = {file.number for file in directory.names.by_path.values()}
    new = directory.enter("bucket/new", "v1", 10)
    assert new is not None
    assert new.number not in numbers
    directory.close()


def test_a_kept_directory_of_another_key_is_empty(tmp_path: Path) -> None:
    """Without its key nothing is read of it, and it can be used."""
    directory = open_kept(unpack(f"bytes{FORMAT_VERSION}-sealed", tmp_path / "cache"), "0d" * 32)
    assert directory.names.by_path == {}
    file = directory.enter("bucket/footer", "v1", 10)
    assert file is not None
    assert directory.read(file, 0, 10) is None
    directory.close()


@dataclass(frozen=True)
class KeptFile:
    """A file with holes. ``pages``: place → bytes, where it is no hole."""

    length: int
    pages: dict[int, bytes]


def read_file(path: Path) -> KeptFile:
    """A file of a fixture: tar wrote its holes as zeros."""
    content = path.read_bytes()
    pages = {at: content[at : at + PAGE] for at in range(0, len(content), PAGE)}
    return KeptFile(len(content), {at: page for at, page in pages.items() if page.strip(b"\0")})


def flips(files: dict[str, KeptFile]) -> Iterator[tuple[str, int, int]]:
    """(file, place, the byte that stands there instead): of a small file every byte, of ``data`` what is no hole."""
    chance = random.Random(9)
    for name, file in files.items():
        places = [start + at for start, page in file.pages.items() for at in range(len(page))]
        if FLIPS:
            places = sorted(chance.sample(places, min(FLIPS, len(places))))
        for at in places:
            page = file.pages[at // PAGE * PAGE]
            yield name, at, page[at % PAGE] ^ 1 << chance.randrange(8)


@pytest.mark.parametrize("name", READABLE)
def test_whichever_byte_is_flipped_a_read_is_right_or_a_miss(tmp_path: Path, name: str) -> None:
    """One byte of any file is damaged while nobody has the directory open: no wrong byte, no error, service after it.

    ``FRESHET_TEST_BYTES_FLIPS=0`` flips every byte.
    """
    whole = unpack(name, tmp_path / "whole")
    files = {str(path.relative_to(whole)): read_file(path) for path in sorted(whole.rglob("*")) if path.is_file()}
    place = tmp_path / name
    outcomes = {"right": 0, "miss": 0, "refused": 0}
    for damaged, at, byte in flips(files):
        write(place, files, damaged, at, byte)
        where = f"{damaged} at {at}"
        try:
            directory = open_kept(place, key_of(name))
        except ByteCacheError as error:
            outcomes["refused" if (error.code, damaged) == NEWER else where] = 1
            continue
        wrong, missing = wrong_or_missing(directory)
        assert not wrong, where
        file = directory.enter("bucket/again", "v1", BLOCK)
        assert file is not None, where
        directory.store(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
        assert directory.read(file, 0, BLOCK) == bytes(BLOCK), where
        directory.close()
        outcomes["miss" if missing else "right"] += 1
    assert outcomes["miss"] > FLIPS
    assert outcomes.keys() <= {"right", "miss", "refused"}


def write(place: Path, files: dict[str, KeptFile], damaged: str, at: int, byte: int) -> None:
    """The directory with one byte changed; holes stay holes."""
    for name, kept in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        with (place / name).open("wb") as file:
            for start, page in kept.pages.items():
                os.pwrite(file.fileno(), page, start)
            os.ftruncate(file.fileno(), kept.length)
            if name == damaged:
                os.pwrite(file.fileno(), bytes([byte]), at)
