"""A real file system at its worst moments: a process that dies as it makes a directory, one that turns read-only."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import serving.bytecache
from serving.bytecache.disk import directory as directories
from serving.bytecache.disk import reads
from serving.bytecache.disk.directory import DirectoryOptions
from serving.bytecache.disk.health import ERRORS_MAX, RETRY_S, Health
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.pools import Value
from serving.bytecache.shared.joined import Joined
from tests.lengths import length
from tests.serving.bytecache.stores import MIB, DirectoryStore, cache_of, open_directory

CODE = str(Path(serving.bytecache.__file__).parent)
KEY = "0a" * 32


def dies_at_line(number: int) -> None:
    """Lets this process die by SIGKILL before it runs its so-many-th line of the byte cache."""
    left = number

    def called(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(CODE):
            return None
        if event == "line":
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return called

    sys.settrace(called)


def is_killed_at_line(number: int, place: Path, options: DirectoryOptions) -> bool:
    """Opens a directory in a process that is killed at a line; False: that came to the end before."""
    child = os.fork()
    if child == 0:
        try:
            dies_at_line(number)
            Joined(place, options)
            sys.settrace(None)
        finally:
            os._exit(1 if sys.exc_info()[0] else 0)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


@pytest.mark.long
@pytest.mark.parametrize("key", ["", KEY])
def test_a_start_works_after_one_that_was_killed_anywhere(tmp_path: Path, key: str) -> None:
    """Kill -9 before any line of the first start, and of the second: the next one opens the directory, and stores."""
    (tmp_path / "key").write_text(key)
    options = DirectoryOptions(quota=16 * MIB, shards=1, key_file=str(tmp_path / "key") if key else "")
    place, data = tmp_path / "cache", random.Random(1).randbytes(100_000)
    step = length(share=41, whole=1)
    lines = 1
    while is_killed_at_line(lines, place, options):
        is_killed_at_line(lines, place, options)
        again = Joined(place, options)
        assert again.directory is not None
        file = again.enter("a", "1", len(data), "")
        assert file is not None
        again.directory.store(file, 0, memoryview(data), Value.NORMAL, 0)
        assert again.read(file, 0, len(data)) == data
        assert again.directory.health.errors == 0
        assert not [*place.glob("*.new")]
        again.close()
        shutil.rmtree(place)
        lines += step
    assert lines > 100


@contextmanager
def immutable(place: Path) -> Iterator[None]:
    """While it lasts, nothing below ``place`` can be written, also by root and by who has it open."""
    subprocess.run(["chattr", "-R", "+i", place], check=True, capture_output=True)
    try:
        yield
    finally:
        subprocess.run(["chattr", "-R", "-i", place], check=True, capture_output=True)


def can_be_immutable(place: Path) -> bool:
    """Whether this user may set the flag, on this file system."""
    probe = place / "probe"
    probe.mkdir()
    try:
        with immutable(probe):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        probe.rmdir()


def test_a_directory_that_turns_read_only_under_a_running_cache(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cached is read on, all else is read of the store, and nothing raises; when it can be written, it is."""
    if not can_be_immutable(tmp_path):
        pytest.skip("chattr +i is for root, on a file system that has it")
    now = [1_000.0]
    for module in (directories, reads):
        monkeypatch.setattr(module, "monotonic", lambda: now[0])
    files = {name: random.Random(name).randbytes(200_000) for name in "abcdef"}
    for name, data in files.items():
        store.put(name, data)
    directory = open_directory(tmp_path / "cache", quota=16 * MIB, shards=1)
    cache = cache_of(directory)

    def read(name: str) -> bool:
        """Whether a file, which must be right, is read without the store."""
        before = len(store.asked)
        assert cache.read(cache.open(store, name), 0, MIB) == files[name]
        directory.writers.flush()
        return len(store.asked) == before

    assert not read("a")
    assert not read("b")
    with immutable(tmp_path / "cache"):
        assert read("a")
        files["b"] = b"another" * 10_000
        store.put("b", files["b"])
        assert not read("b")
        assert not any(read(name) for name in "cdef")
        assert directory.health.errors >= ERRORS_MAX
        assert not read("a")  # the disk is left alone
        now[0] += RETRY_S
        assert read("a")
        assert not read("c")
        directory.close()
        with pytest.raises(ByteCacheError) as refused:
            open_directory(tmp_path / "cache")
        assert refused.value.code == "bytes_dir_denied"
    directory = open_directory(tmp_path / "cache", quota=16 * MIB, shards=1)
    cache = cache_of(directory)
    assert read("a")
    for name in "bcdef":
        assert not read(name)
        assert read(name)
    directory.close()


def test_a_disk_that_fails_again_after_its_rest_is_left_alone_at_once() -> None:
    """Else a broken one would hold up three readers more after each rest; one that has answered has its errors free."""
    health = Health()
    for _ in range(ERRORS_MAX):
        assert health.usable(0.0)
        health.failed(0.0)
    assert not health.usable(RETRY_S - 1)
    assert health.usable(RETRY_S)
    health.failed(RETRY_S)
    assert not health.usable(2 * RETRY_S - 1)
    health.succeeded()
    for _ in range(ERRORS_MAX - 1):
        health.failed(2 * RETRY_S)
        assert health.usable(2 * RETRY_S)
