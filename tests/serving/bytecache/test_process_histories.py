"""Any history of processes that share a directory: kill -9 of whoever, damage, replaced files, forks amid reads."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.options import CacheOptions
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.files import OpenFile
from serving.bytecache.shared.opening import cache_for
from tests.lengths import LONG, length
from tests.serving.bytecache.stores import MIB, DirectoryStore

FILES: Final = 6
PROCESSES: Final = 3
SIZES: Final = (1, 100, 4_096, 65_536, 100_001, MIB, 3 * MIB + 7)
KEPT: Final = 400
"""A reader looks for its bytes among so many versions, from the one on that was current before it opened."""
READER: Final = """
import sys
from tests.serving.bytecache.test_process_histories import read_on
read_on(*sys.argv[1:])
"""


def size_of(name: str, version: int) -> int:
    """In bytes."""
    return SIZES[(int(name[1:]) + version) % len(SIZES)]


def part_of(name: str, version: int, start: int, end: int) -> bytes:
    """The bytes of a version: every 16 of them tell which file and version they are of."""
    mark = hashlib.md5(f"{name}:{version}".encode()).digest()
    return (mark * ((end - start) // 16 + 2))[start % 16 : start % 16 + end - start]


def put(store: DirectoryStore, name: str, version: int) -> None:
    """Replaces a file; then tells that this version is there."""
    store.put(name, part_of(name, version, 0, size_of(name, version)))
    store.put(f"{name}.version", str(version).encode())


def read_on(root: str, place: str, key_file: str) -> None:
    """Another process: reads at random, from two threads, and says so; ends at the first wrong byte."""
    store = DirectoryStore(Path(root))
    cache = cache_for(CacheOptions(dirs=(f"{place}:12MiB",), shards=2, key_file=key_file))

    def run() -> None:
        chance = random.Random(os.urandom(8))
        try:
            while True:
                _read_some(cache, store, chance)
                os.write(1, b"read\n")  # print writes the end of the line by itself
        except BaseException as error:  # noqa: BLE001 - the parent asserts what is said
            os.write(1, f"wrong: {type(error).__name__} {error}\n".encode())
            os._exit(1)

    threading.Thread(target=run, daemon=True).start()
    run()


def _read_some(cache: ByteCache, store: DirectoryStore, chance: random.Random) -> None:
    """One open file, and some ranges of it. What is asked of a file that was replaced is refused, and no harm."""
    name = f"f{chance.randrange(FILES)}"
    known = int((store.root / f"{name}.version").read_text())
    file = cache.open(store, name)
    possible = [v for v in range(known, known + KEPT) if size_of(name, v) == file.size]
    for _ in range(chance.choice((1, 2, 6))):
        start = chance.randrange(file.size)
        end = min(file.size, start + chance.choice((1, 300, 4_096, 65_536, 250_000, 2 * MIB)))
        if chance.random() < 0.01:
            _read_in_a_child(cache, file, start, end, name, possible)
        try:
            data = cache.read(file, start, end)
        except ByteCacheError as error:
            if error.code not in ("file_changed", "short_read"):
                raise
            return
        possible = _fits(data, name, possible, start)
        assert possible, f"{name} from {start} to {end}: {data[:16].hex()} is of no version from {known} on"


def _read_in_a_child(cache: ByteCache, file: OpenFile, start: int, end: int, name: str, versions: list[int]) -> None:
    """A fork amid the reads of this thread and of the other one."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, "a forked child read wrong bytes"
        return
    code = 2
    try:
        assert isinstance(file.source, DirectoryStore)
        file.source.lock = threading.Lock()  # the other thread may have had it
        code = 0 if _fits(cache.read(file, start, end), name, versions, start) else 1
    except ByteCacheError:
        code = 0
    finally:
        os._exit(code)


def _fits(data: bytes, name: str, versions: list[int], start: int) -> list[int]:
    """Of which versions these bytes can be."""
    return [version for version in versions if part_of(name, version, start, start + len(data)) == data]


@pytest.mark.long
@pytest.mark.timeout(0 if LONG else 900)
@pytest.mark.parametrize("key", ["", "0b" * 32])
def test_any_history_of_processes_gives_the_stores_bytes(store: DirectoryStore, tmp_path: Path, key: str) -> None:
    """Owners and others are killed as they read, bytes on disk are damaged, files replaced: no read is wrong or old."""
    (tmp_path / "key").write_text(key)
    command = [sys.executable, "-c", READER, str(store.root), str(tmp_path / "cache")]
    command.append(str(tmp_path / "key") if key else "")
    chance, versions, readers = random.Random(key), [1] * FILES, list[subprocess.Popen[str]]()
    for i in range(FILES):
        put(store, f"f{i}", 1)
    try:
        for step in range(length(share=25, whole=10_000)):
            while len(readers) < PROCESSES:
                readers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            reader = chance.choice(readers)
            assert reader.stdout is not None
            assert (said := reader.stdout.readline()) == "read\n", (step, said)
            op = chance.random()
            if op < 0.4:
                changed = chance.randrange(FILES)
                versions[changed] += 1
                put(store, f"f{changed}", versions[changed])
            elif op < 0.5:
                _damage(tmp_path / "cache", chance)
            elif op < 0.55:
                reader.send_signal(signal.SIGKILL)
                reader.wait()
                assert set(reader.stdout) <= {"read\n"}
                readers.remove(reader)
    finally:
        for reader in readers:
            reader.kill()
            reader.wait()


def _damage(place: Path, chance: random.Random) -> None:
    """Eight bytes of what is stored, or of its checksums."""
    chosen = chance.choice([*place.glob("*/data"), *place.glob("*/sums")])
    if size := chosen.stat().st_size:
        with chosen.open("r+b") as raw:
            raw.seek(chance.randrange(size))
            raw.write(chance.randbytes(8))
