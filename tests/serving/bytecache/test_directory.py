"""A cache directory: what it keeps, across restarts, damage, a full disk, and other processes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from serving.bytecache.disk.directory import Directory, lock_directory
from serving.bytecache.disk.health import ERRORS_MAX
from serving.bytecache.disk.layout import BLOCK, EXTENT, UNIT_BITS
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.disk.shard import Shard
from serving.bytecache.disk.space import write_all, write_together
from serving.bytecache.disk.writing import Write, Writers
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.pools import Value
from tests.lengths import length
from tests.patience import PATIENCE_S
from tests.serving.bytecache.stores import MIB, allocated_bytes, open_directory
from tests.serving.stack import eventually

KEY = "07" * 32


def stored(
    directory: Directory, path: str, data: bytes, version: str = "v1", value: Value = Value.NORMAL
) -> CachedFile:
    """A file that is wholly cached."""
    file = directory.enter(path, version, len(data))
    assert file is not None
    directory.store(file, 0, memoryview(data), value, 0)
    return file


def readable(directory: Directory, file: CachedFile) -> int:
    """How many blocks of a file are here."""
    blocks = range(-(-file.size // BLOCK))
    return sum(directory.read(file, b * BLOCK, min((b + 1) * BLOCK, file.size)) is not None for b in blocks)


@pytest.mark.parametrize("key", ["", KEY])
def test_any_part_of_what_was_stored_is_read_back(tmp_path: Path, key: str) -> None:
    """Every offset and length within an extent gives the file's own bytes, plain and encrypted."""
    (tmp_path / "key").write_text(key)
    directory = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key") if key else "")
    chance = random.Random(1)
    data = chance.randbytes(2 * EXTENT + 70_001)
    file = stored(directory, "a", data)
    for _ in range(400):
        start = chance.randrange(len(data))
        end = min(
            start + chance.choice((1, 5, 4_096, 9_000, BLOCK, 200_000)), len(data), (start // EXTENT + 1) * EXTENT
        )
        assert directory.read(file, start, end) == data[start:end]
    directory.close()


def test_no_plain_byte_is_on_an_encrypted_disk(tmp_path: Path) -> None:
    """Neither content nor names of encrypted files can be found in any file of the directory."""
    (tmp_path / "key").write_text(KEY)
    directory = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    stored(directory, "bucket/secret-name", b"secret content of 32 bytes here!" * 5_000)
    directory.close()
    everything = b"".join(path.read_bytes() for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert b"secret" not in everything
    assert b"content of 32" not in everything


def test_a_key_can_be_replaced_and_old_entries_stay_readable(tmp_path: Path) -> None:
    """With the new key before the old one in the file, nothing is lost; without the old one its entries are gone."""
    (tmp_path / "key").write_text(KEY)
    options: dict[str, Any] = {"key_file": str(tmp_path / "key")}
    directory = open_directory(tmp_path / "cache", **options)
    stored(directory, "a", b"old" * 50_000)
    directory.close()
    (tmp_path / "key").write_text(f"{'08' * 32}\n{KEY}\n")
    directory = open_directory(tmp_path / "cache", **options)
    a = directory.names.by_path["a"]
    assert directory.read(a, 0, 3) == b"old"
    stored(directory, "b", b"new" * 50_000)
    directory.close()
    (tmp_path / "key").write_text("08" * 32)
    directory = open_directory(tmp_path / "cache", **options)
    assert directory.read(directory.names.by_path["b"], 0, 3) == b"new"
    assert "a" not in directory.names.by_path
    directory.close()
    directory = open_directory(tmp_path / "cache", key_file="ephemeral")
    assert directory.names.by_path == {}
    directory.close()


def test_a_key_of_each_process_does_not_use_up_the_names_of_keys(tmp_path: Path) -> None:
    """A head has 16 bits for the key: with a name more at each start nothing was stored after the 65,535th one."""
    for key_file in ("", "ephemeral", "ephemeral"):
        directory = open_directory(tmp_path / "cache", key_file=key_file)
        assert directory.names.by_path == {}
        assert len(directory.marker.keys) == bool(key_file)
        file = stored(directory, "a", b"a" * 5_000)
        assert directory.read(file, 0, 3) == b"aaa"
        directory.close()


def test_a_directory_that_has_had_too_many_keys_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that can't name the key can't be written, and nobody heard of it. A key of the process begins anew.

    One that has had even more, as of an earlier version, is used on with a key that a head can name, or with none.
    """
    monkeypatch.setattr("serving.bytecache.disk.marker.KEYS_MAX", 2)
    for number in range(3):
        (tmp_path / "key").write_text(f"{number:064x}")
        if number < 2:
            open_directory(tmp_path / "cache", key_file=str(tmp_path / "key")).close()
    with pytest.raises(ByteCacheError, match="has had 2 keys") as refused:
        open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    assert refused.value.code == "bytes_dir_denied"
    monkeypatch.setattr("serving.bytecache.disk.marker.KEYS_MAX", 1)
    open_directory(tmp_path / "cache").close()
    (tmp_path / "key").write_text(f"{0:064x}")
    open_directory(tmp_path / "cache", key_file=str(tmp_path / "key")).close()
    (tmp_path / "key").write_text(f"{1:064x}")
    with pytest.raises(ByteCacheError, match="has had 2 keys"):
        open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    directory = open_directory(tmp_path / "cache", key_file="ephemeral")
    stored(directory, "a", b"a" * 5_000)
    directory.close()


def test_a_wrong_key_file_is_refused_without_quoting_it(tmp_path: Path) -> None:
    """The message never shows what may be a key."""
    (tmp_path / "key").write_text("not-hexadecimal-secret")
    with pytest.raises(ByteCacheError) as refused:
        open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    assert refused.value.code == "bad_key_file"
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("key", ["", KEY])
def test_a_flipped_byte_is_a_miss_and_only_of_its_block(tmp_path: Path, key: str) -> None:
    """Whichever byte of the stored block is changed, a small read notices it; the block can be stored again."""
    (tmp_path / "key").write_text(key)
    directory = open_directory(tmp_path / "cache", shards=1, key_file=str(tmp_path / "key") if key else "")
    chance = random.Random(2)
    data = chance.randbytes(3 * BLOCK)
    file = stored(directory, "a", data)
    for at in (0, 4_095, 4_096, BLOCK - 1, *(chance.randrange(BLOCK) for _ in range(30))):
        with (tmp_path / "cache/0/data").open("r+b") as raw:
            raw.seek(at)
            byte = raw.read(1)
            raw.seek(at)
            raw.write(bytes([byte[0] ^ 0x40]))
        low = at // 4_096 * 4_096
        assert directory.read(file, low, low + 4_096) is None
        assert directory.read(file, BLOCK, 3 * BLOCK) == data[BLOCK:]
        directory.store(file, 0, memoryview(data)[:BLOCK], Value.NORMAL, 0)
        assert directory.read(file, 0, BLOCK) == data[:BLOCK]
    assert directory.health.damaged == 34
    directory.close()


@pytest.mark.parametrize("key", ["", KEY])
def test_blocks_that_changed_places_do_not_verify(tmp_path: Path, key: str) -> None:
    """A block of the same file in another's place, with its checksums, is damage and no answer."""
    (tmp_path / "key").write_text(key)
    directory = open_directory(tmp_path / "cache", shards=1, key_file=str(tmp_path / "key") if key else "")
    stride = BLOCK + 64 if key else BLOCK
    sums = 64 if key else 8
    file = stored(directory, "a", random.Random(3).randbytes(2 * BLOCK))
    for name, size in (("data", stride), ("sums", sums)):
        with (tmp_path / "cache/0" / name).open("r+b") as raw:
            first, second = raw.read(size), raw.read(size)
            raw.seek(0)
            raw.write(second + first)
    assert directory.read(file, 0, BLOCK) is None
    directory.close()


@pytest.mark.parametrize("key", ["", KEY])
@pytest.mark.parametrize(("name", "length"), [("sums", 0), ("sums", 7), ("data", 0), ("data", 100)])
def test_what_was_cut_off_under_the_owner_is_a_miss(tmp_path: Path, key: str, name: str, length: int) -> None:
    """Whatever is left of a shard's files; no read raises, small, whole, or into memory."""
    (tmp_path / "key").write_text(key)
    directory = open_directory(tmp_path / "cache", shards=1, key_file=str(tmp_path / "key") if key else "")
    file = stored(directory, "a", random.Random(2).randbytes(2 * BLOCK))
    os.truncate(tmp_path / "cache/0" / name, length)
    assert directory.read(file, 0, 10) is None
    assert directory.read(file, BLOCK, 2 * BLOCK) is None
    file = stored(directory, "b", bytes(2 * BLOCK))
    os.truncate(tmp_path / "cache/0" / name, length)
    assert not directory.read_into(file, 0, memoryview(bytearray(2 * BLOCK)))
    directory.close()


def test_after_many_damaged_blocks_nothing_is_written_any_more(directory: Directory) -> None:
    """A disk that damages what it keeps gets no more data."""
    for _ in range(100):
        directory.health.block_damaged()
    file = directory.enter("a", "v", 100)
    assert file is not None
    assert not directory.submit(file, 0, memoryview(bytes(100)), Value.NORMAL, 0)


def test_a_restart_keeps_entries_values_and_heat(tmp_path: Path) -> None:
    """After a clean restart all is readable, and what was read often still leaves last."""
    directory = open_directory(tmp_path / "cache", quota=24 * MIB, shards=1)
    data = random.Random(4).randbytes(EXTENT)
    hot = stored(directory, "hot", data)
    stored(directory, "footer", data[:BLOCK], value=Value.INDEX)
    for _ in range(3):
        assert directory.read(hot, 0, 10) == data[:10]
    directory.close()
    directory = open_directory(tmp_path / "cache", quota=24 * MIB, shards=1)
    assert directory.shards[0].counts.restored == 2
    for i in range(60):
        stored(directory, f"scan{i}", data)
    assert readable(directory, directory.names.by_path["hot"]) == 16
    assert readable(directory, directory.names.by_path["footer"]) == 1
    directory.close()


WRITER = """
import sys, random
from pathlib import Path
from serving.bytecache.policy.pools import Value
from tests.serving.bytecache.stores import open_directory
directory = open_directory(Path(sys.argv[1]), quota=32 << 20, key_file=sys.argv[2])
for i in range(1_000_000):
    data = random.Random(i).randbytes(200_000)
    file = directory.enter(f"file{i}", "v", len(data))
    directory.store(file, 0, memoryview(data), Value.NORMAL, 0)
    print(i, flush=True)
"""


@pytest.mark.long
@pytest.mark.parametrize("key", ["", KEY])
def test_a_killed_process_loses_nothing_that_was_stored(tmp_path: Path, key: str) -> None:
    """After kill -9 at any moment every entry that had been stored is read back whole, and none is wrong."""
    (tmp_path / "key").write_text(key)
    key_file = str(tmp_path / "key") if key else ""
    chance = random.Random(key)
    last = -1
    for round_ in range(length(share=2, whole=100)):
        command = [sys.executable, "-c", WRITER, str(tmp_path / "cache"), key_file]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        for _ in range(chance.randrange(5, 30)):
            last = int(writer.stdout.readline())
        time.sleep(chance.random() / 100)  # the instant of the kill, not a wait for anything
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        rest = writer.stdout.read().split()
        last = max([last, *map(int, rest[:-1])])
        directory = open_directory(tmp_path / "cache", quota=32 << 20, key_file=key_file)
        for i in range(max(0, last - 20), last + 1):
            file = directory.enter(f"file{i}", "v", 200_000)
            assert file is not None
            assert directory.read(file, 0, 200_000) == random.Random(i).randbytes(200_000), (round_, i)
        assert directory.verify()[1] == 0
        directory.close()


def test_a_torn_log_of_names_loses_only_its_end(tmp_path: Path) -> None:
    """What a power cut left of the log is read up to the tear; the other entries are dropped, none is mixed up."""
    directory = open_directory(tmp_path / "cache")
    stored(directory, "a", b"a" * 1_000)
    length = directory.names.length
    b = stored(directory, "b", b"b" * 1_000)
    directory.close()
    with (tmp_path / "cache/names.log").open("r+b") as log:
        log.truncate(length + 7)
    directory = open_directory(tmp_path / "cache")
    assert directory.read(directory.names.by_path["a"], 0, 3) == b"aaa"
    c = stored(directory, "c", b"c" * 1_000)
    assert c.number != b.number
    assert directory.read(c, 0, 3) == b"ccc"
    directory.close()


def test_bytes_of_a_file_that_a_power_cut_forgot_are_never_another_files(tmp_path: Path) -> None:
    """Log and head of one file are lost; later those of another one are on disk, and its bytes are not: a miss."""
    place = tmp_path / "cache"
    directory = open_directory(place, shards=1)
    stored(directory, "a", b"a" * 1_000)
    directory.close()
    lost = {name: (place / "0" / name).read_bytes() for name in ("data", "sums")}
    os.truncate(place / "names.log", 0)
    os.truncate(place / "0/heads", 0)
    directory = open_directory(place, shards=1)
    stored(directory, "b", b"b" * 1_000)
    directory.close()
    for name, content in lost.items():
        (place / "0" / name).write_bytes(content)
    directory = open_directory(place, shards=1)
    assert directory.read(directory.names.by_path["b"], 0, 10) is None
    directory.close()


def test_what_a_killed_process_left_without_a_head_takes_no_room(tmp_path: Path) -> None:
    """A kill between a head and its bytes leaves bytes that nothing counts: the next start gives them back."""
    place = tmp_path / "cache"
    directory = open_directory(place, quota=16 * MIB, shards=1)
    for i in range(12):
        stored(directory, f"f{i}", random.Random(i).randbytes(EXTENT))
    directory.close()
    with (place / "0/heads").open("r+b") as heads:
        heads.write(bytes(3 * 64))  # of entries that were leaving
        heads.truncate(11 * 64)  # of one that was coming
    directory = open_directory(place, quota=16 * MIB, shards=1)
    assert allocated_bytes(place) <= directory.used <= 9 * MIB
    for i in range(4, 11):
        assert readable(directory, directory.names.by_path[f"f{i}"]) == 16
    directory.close()


@pytest.mark.parametrize("key", ["", KEY])
def test_blocks_that_a_killed_process_left_in_an_extent_take_no_room(tmp_path: Path, key: str) -> None:
    """A kill before the head of an extent that grows: the next start gives the new bytes back, and only those."""
    (tmp_path / "key").write_text(key)
    options = {"quota": 16 * MIB, "shards": 1, "key_file": str(tmp_path / "key") if key else ""}
    place = tmp_path / "cache"
    directory = open_directory(place, **options)  # type: ignore[arg-type]
    data = random.Random(key).randbytes(4 * EXTENT)
    stored(directory, "f", data)
    shard = directory.shards[0]
    heads = [shard._head(slot)._replace(bits=0b1001_0000_1000_0001).pack() for slot in range(4)]
    directory.close()
    (place / "0/heads").write_bytes(b"".join(heads))
    directory = open_directory(place, **options)  # type: ignore[arg-type]
    assert allocated_bytes(place) <= directory.used <= 2 * MIB
    file = directory.names.by_path["f"]
    for block in (0, 7, 12, 15, 16, 63):
        at = block * BLOCK
        assert directory.read(file, at, at + BLOCK) == data[at : at + BLOCK]
    assert directory.read(file, BLOCK, 2 * BLOCK) is None
    directory.close()


def test_a_head_of_no_file_is_dropped(tmp_path: Path) -> None:
    """A damaged head whose number became 0 is no entry, and nothing that could expire: what is due goes on."""
    place = tmp_path / "cache"
    directory = open_directory(place, shards=1)
    for name in ("a", "b"):
        stored(directory, name, b"a" * 1_000)
    directory.close()
    with (place / "0/heads").open("r+b") as heads:
        heads.write(bytes(8))
        heads.seek(20)
        heads.write((1).to_bytes(4, "little"))  # expired long ago
    directory = open_directory(place, shards=1)
    assert directory.shards[0].counts.dropped_at_start == 1
    directory.shards[0].tend()
    assert readable(directory, directory.names.by_path["b"]) == 1
    directory.close()


def test_a_smaller_quota_holds_before_anything_is_served(tmp_path: Path) -> None:
    """A restart with less room drops what is too much at once."""
    directory = open_directory(tmp_path / "cache", quota=32 * MIB)
    for i in range(24):
        stored(directory, f"f{i}", random.Random(i).randbytes(EXTENT))
    directory.close()
    directory = open_directory(tmp_path / "cache", quota=12 * MIB)
    assert allocated_bytes(tmp_path / "cache") <= 12 * MIB
    directory.close()


@pytest.mark.parametrize("key", ["", KEY])
def test_the_quota_holds_at_every_moment(tmp_path: Path, key: str) -> None:
    """While entries of all sizes come and go, the blocks that the file system counts never exceed the quota."""
    (tmp_path / "key").write_text(key)
    place, chance, most = tmp_path / "cache", random.Random(5), 0
    directory = open_directory(place, quota=16 * MIB, key_file=str(tmp_path / "key") if key else "")
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.wait(0.01):
            most = max(most, allocated_bytes(place))

    watcher = threading.Thread(target=watch)
    watcher.start()
    for i in range(150):
        stored(directory, f"f{i}", chance.randbytes(chance.choice((10, 5_000, 70_000, 300_000, 1_500_000))))
    directory.resize(9 * MIB)
    assert allocated_bytes(place) <= 9 * MIB
    done.set()
    watcher.join()
    directory.close()
    assert 8 * MIB < most <= 16 * MIB


def test_a_full_disk_shrinks_the_cache_and_fails_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No space on the device: older entries go, the reader does not notice."""
    directory = open_directory(tmp_path / "cache", shards=1)
    for i in range(20):
        stored(directory, f"f{i}", random.Random(i).randbytes(EXTENT))
    before = directory.used
    left = [2]

    def full(file: int, data: Any, at: int) -> None:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.ENOSPC, "no space left on device")
        (write_together if isinstance(data, list) else write_all)(file, data, at)

    monkeypatch.setattr("serving.bytecache.disk.blocks.write_together", full)
    monkeypatch.setattr("serving.bytecache.disk.shard.write_all", full)
    file = stored(directory, "more", b"m" * EXTENT)
    assert directory.read(file, 0, 1) is None
    assert directory.used < before
    assert directory.shards[0].counts.disk_full == 1
    directory.store(file, 0, memoryview(b"m" * EXTENT), Value.NORMAL, 0)
    assert directory.read(file, 0, 1) == b"m"
    assert directory.health.usable(time.monotonic())
    directory.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_too_full_for_a_name_is_no_failing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """New files are read past the cache and some entries leave; else three of them turned all that is here off."""
    directory = open_directory(tmp_path / "cache", shards=1)
    files = [stored(directory, f"f{i}", random.Random(i).randbytes(EXTENT)) for i in range(20)]
    before = directory.used
    with monkeypatch.context() as disk:
        disk.setattr("serving.bytecache.disk.names.write_all", Mock(side_effect=OSError(number, "full")))
        assert [directory.enter(f"new{i}", "v1", 10) for i in range(ERRORS_MAX)] == [None] * ERRORS_MAX
        disk.setattr("serving.bytecache.disk.shard.write_all", Mock(side_effect=OSError(number, "full")))
        directory.shards[0].tend()
    assert directory.used < before
    assert directory.shards[0].counts.disk_full == ERRORS_MAX
    assert directory.health.errors == 0
    assert directory.enter("f19", "v1", EXTENT) is files[19]
    assert any(readable(directory, file) for file in files)
    assert directory.enter("new0", "v1", 10) is not None
    directory.close()


def test_who_only_looks_leaves_what_it_has_no_key_for(tmp_path: Path) -> None:
    """What another key sealed, and what was stored before there was a key, is still there for its owner."""
    keys: dict[str, str] = {"none": ""}
    for name, text in (("old", KEY), ("new", f"{'08' * 32}\n{KEY}\n")):
        (tmp_path / name).write_text(text)
        keys[name] = str(tmp_path / name)
    for place, writers, looker in (("sealed", ("old", "new"), "old"), ("plain", ("none",), "old")):
        for writer in writers:
            directory = open_directory(tmp_path / place, key_file=keys[writer])
            stored(directory, writer, b"some" * 50_000)
            directory.close()
        looking = open_directory(tmp_path / place, key_file=keys[looker], keep_all=True)
        assert set(looking.names.by_path) == {writers[0]}
        looking.close()
        directory = open_directory(tmp_path / place, key_file=keys[writers[-1]])
        assert {file.path for file, _, blocks in directory.entries() if blocks} == set(writers)
        directory.close()


def test_who_only_looks_stores_nothing(tmp_path: Path) -> None:
    """Its settings' key may not be one of the directory's yet: bytes or names would be in the clear."""
    (tmp_path / "key").write_text(KEY)
    looking = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"), keep_all=True)
    assert looking.enter("secret-name", "v1", 10) is None
    looking.close()
    directory = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"))
    file = stored(directory, "a", b"old" * 50_000)
    directory.close()
    looking = open_directory(tmp_path / "cache", key_file=str(tmp_path / "key"), keep_all=True)
    assert looking.enter("a", "v1", file.size) is not None
    assert not looking.submit(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, 0)
    assert looking.enter("a", "v2", file.size) is None
    assert looking.known("a") is None, "another version is what it is now"
    looking.close()


def test_a_full_disk_that_gives_nothing_back_is_used_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File systems need room to punch a hole, too. The thread that writes outlives it."""
    monkeypatch.setattr("serving.bytecache.disk.writing.TEND_S", 0.01)
    monkeypatch.setattr("serving.bytecache.disk.shard.GROW_S", 0.0)
    directory = open_directory(tmp_path / "cache", shards=1, quota=200 * MIB, medium="disk")
    for i in range(20):
        stored(directory, f"f{i}", random.Random(i).randbytes(EXTENT))
    shard = directory.shards[0]
    shard.quota = directory.used // 2  # as after a full disk: growing is still too little for what is here

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("serving.bytecache.disk.shard.punch_hole", full)
        eventually(lambda: directory.health.errors > 1, what="errors of the disk")
    directory.health.succeeded()
    file = directory.enter("more", "v1", EXTENT)
    assert file is not None
    assert directory.submit(file, 0, memoryview(b"m" * EXTENT), Value.NORMAL, 0)
    eventually(lambda: not directory.writers.counts.waiting_bytes, what="a thread that writes")
    assert directory.read(file, 0, 1) == b"m"
    directory.close()


@pytest.mark.parametrize("taken", [1, 5_000, 65_536, 70_000])
def test_what_the_kernel_writes_in_part_is_written_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    """A call that takes some of the bytes only is followed by another one for the rest."""
    parts, place = [memoryview(bytes([i]) * BLOCK) for i in range(3)], tmp_path / "file"
    with place.open("wb") as file:
        given = os.pwrite
        monkeypatch.setattr(os, "pwritev", lambda to, all_of, at: given(to, b"".join(all_of)[:taken], at))
        write_together(file.fileno(), parts, 10)
    assert place.read_bytes() == bytes(10) + b"".join(parts)


def test_a_failing_disk_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After three errors in a row the directory is not used for a while; no error reaches the reader."""
    directory = open_directory(tmp_path / "cache")
    file = stored(directory, "a", b"a" * 1_000)

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr("serving.bytecache.disk.blocks.write_together", failing)
    monkeypatch.setattr("serving.bytecache.disk.shard.write_all", failing)
    for i in range(3):
        directory.store(file, i + 1, memoryview(b"b"), Value.NORMAL, 0)
    now = time.monotonic()
    assert not directory.health.usable(now)
    assert directory.health.usable(now + 31)
    assert directory.block(file, 0) is None
    monkeypatch.undo()
    directory.close()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_bytes_whose_head_can_t_be_written_leave_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    """A disk that fails between the bytes and their head, also while they are taken back: no room is lost by it."""
    place = tmp_path / "cache"
    directory = open_directory(place, shards=1)
    before = allocated_bytes(place)

    def failing(*_: object) -> None:
        raise OSError(error, "the disk")

    with monkeypatch.context() as patch:
        patch.setattr("serving.bytecache.disk.shard.write_all", failing)
        for i in range(2):
            stored(directory, f"f{i}", bytes([i]) * EXTENT)
    assert allocated_bytes(place) < before + EXTENT // 2
    file = stored(directory, "more", b"m" * EXTENT)
    directory.resize(64 * MIB)
    directory.store(file, 0, memoryview(b"m" * EXTENT), Value.NORMAL, 0)
    assert directory.read(file, 0, 1) == b"m"
    assert directory.shards[0].table == {file.number << UNIT_BITS: 0}, "and no place is"
    directory.close()


def test_what_expired_is_not_read_and_gives_its_room_back(tmp_path: Path) -> None:
    """A time to live ends an entry, across a restart too."""
    directory = open_directory(tmp_path / "cache")
    now = int(time.time())
    for path, expires in (("past", now - 1), ("soon", now + 3_600)):
        file = directory.enter(path, "v", 1_000)
        assert file is not None
        directory.store(file, 0, memoryview(bytes(1_000)), Value.NORMAL, expires)
    assert readable(directory, directory.names.by_path["past"]) == 0
    assert readable(directory, directory.names.by_path["soon"]) == 1
    for shard in directory.shards:
        shard.tend()
    assert sum(len(shard.table) for shard in directory.shards) == 1
    directory.close()
    directory = open_directory(tmp_path / "cache")
    assert [file.path for file, extents, _ in directory.entries() if extents] == ["soon"]
    directory.close()


def test_another_version_of_a_path_forgets_the_earlier_one(directory: Directory) -> None:
    """Old bytes can't be read any more, and their room is free at once."""
    old = stored(directory, "a", b"o" * EXTENT)
    used = directory.used
    new = directory.enter("a", "v2", EXTENT)
    assert new is not None
    assert readable(directory, old) == readable(directory, new) == 0
    assert directory.used < used - EXTENT // 2
    directory.store(old, 0, memoryview(b"o" * EXTENT), Value.NORMAL, 0)
    assert readable(directory, old) == 0


def test_a_file_that_the_disk_would_not_let_go_of_is_cached_again(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version came while the disk was full; then the first one is back. It is not fetched for ever after."""
    stored(directory, "a", b"x" * 10)
    with monkeypatch.context() as full:
        full.setattr(Shard, "forget_file", Mock(side_effect=OSError(errno.ENOSPC, "full")))
        assert directory.enter("a", "v2", 10) is None
    again = stored(directory, "a", b"x" * 10)
    assert again.alive
    assert directory.read(again, 0, 10) == b"x" * 10


def test_a_prefix_is_forgotten_at_once_and_for_good(tmp_path: Path) -> None:
    """After it returned no read sees the files below, nor does a restart bring them back."""
    directory = open_directory(tmp_path / "cache")
    files = [stored(directory, path, b"x" * 1_000) for path in ("t/a", "t/b", "u/c")]
    assert directory.forget(directory.matching("t/", prefix=True)) == 2
    assert [readable(directory, file) for file in files] == [0, 0, 1]
    directory.close()
    directory = open_directory(tmp_path / "cache")
    assert list(directory.names.by_path) == ["u/c"]
    directory.close()


def test_what_is_forgotten_on_a_failing_disk_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it, in any shard, nor is its version known; once the disk takes it down no start brings it back."""
    place = tmp_path / "cache"
    directory = open_directory(place, shards=2)
    file = stored(directory, "a", random.Random(1).randbytes(3 * EXTENT))
    assert readable(directory, file) == 48

    def failing(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        for module in ("shard", "names"):
            patch.setattr(f"serving.bytecache.disk.{module}.write_all", failing)
        assert directory.forget([file]) == 1
        assert readable(directory, file) == 0
        assert directory.known("a") is None
    directory._tend()
    shutil.copytree(place, tmp_path / "killed")
    again = open_directory(tmp_path / "killed", shards=2)
    assert again.known("a") is None
    again.close()
    directory.close()


def test_what_is_stored_while_the_log_of_names_is_written_anew_is_not_left_without_one(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could forget it any more: it leaves with its name."""
    kept = stored(directory, "kept", b"k" * 1_000)
    monkeypatch.setattr(directory, "_numbers_in_use", set)  # as it was before that was stored
    for i in range(8_000):
        directory.enter(f"gone{i}" + "x" * 300, "v", 10)
    assert directory.known("kept") is None
    assert readable(directory, kept) == 0


def test_one_directory_has_one_owner(directory: Directory) -> None:
    """A second one is refused as long as the first is open."""
    assert lock_directory(directory.place) is None


@pytest.mark.parametrize("key", ["", KEY])
def test_two_owners_give_each_other_no_bytes(tmp_path: Path, key: str) -> None:
    """If someone deletes the lock of a running owner, there are two: they lose entries, and mix up none."""
    (tmp_path / "key").write_text(key)
    options: dict[str, Any] = {"shards": 1, "key_file": str(tmp_path / "key") if key else ""}
    first = open_directory(tmp_path / "cache", **options)
    (tmp_path / "cache/lock").unlink()
    second = open_directory(tmp_path / "cache", **options)
    a, b = stored(first, "a", b"a" * BLOCK), stored(second, "b", b"b" * BLOCK)
    assert first.read(a, 0, 10) is None
    assert second.read(b, 0, 10) in (b"b" * 10, None)
    second.close()
    first.close()


def test_directories_that_must_not_be_used_are_refused(tmp_path: Path) -> None:
    """Other people's files, links, what can't be written and what a newer version wrote stay untouched."""
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/thesis.txt").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "newer").mkdir()
    (tmp_path / "newer/freshet-bytes.json").write_text('{"format_version": 99}')
    codes = {"foreign": "bytes_dir_foreign", "link": "bytes_dir_denied", "file": "bytes_dir_denied"}
    for name, code in (codes | {"newer": "bytes_dir_newer"}).items():
        with pytest.raises(ByteCacheError) as refused:
            open_directory(tmp_path / name)
        assert refused.value.code == code, name
    assert (tmp_path / "foreign/thesis.txt").read_text() == "mine"


@pytest.mark.parametrize("linked", ["0", "0/data", "names.log", "lock"])
def test_a_link_in_the_directory_is_not_followed(tmp_path: Path, linked: str) -> None:
    """Nothing outside of the directory is written, emptied or punched, whatever a link in it names."""
    directory = open_directory(tmp_path / "cache", shards=1)
    stored(directory, "a", b"a" * 1_000)
    directory.close()
    place, outside = tmp_path / "cache" / linked, tmp_path / "outside"
    place.rename(outside)
    victim = outside / "data" if outside.is_dir() else outside
    victim.write_bytes(b"mine" * 100_000)
    place.symlink_to(outside)
    with pytest.raises(ByteCacheError) as refused:
        open_directory(tmp_path / "cache", shards=1)
    assert refused.value.code == "bytes_dir_denied"
    assert victim.read_bytes() == b"mine" * 100_000


def test_a_damaged_marker_begins_anew(tmp_path: Path) -> None:
    """Without its marker a directory's files mean nothing: they are deleted, and nothing else is."""
    directory = open_directory(tmp_path / "cache")
    stored(directory, "a", b"x" * 1_000)
    directory.close()
    marker = tmp_path / "cache/freshet-bytes.json"
    marker.write_bytes(marker.read_bytes().replace(b'"shards"', b'"sharts"'))
    directory = open_directory(tmp_path / "cache")
    assert directory.names.by_path == {}
    stored(directory, "a", b"x" * 1_000)
    directory.close()


def test_a_fork_while_the_directory_is_busy_leaves_the_child_able_to_read(tmp_path: Path) -> None:
    """Locks that another thread held at the fork are nobody's in the child: hits are told, faults are counted."""
    directory = open_directory(tmp_path / "cache", shards=1)
    file = stored(directory, "a", b"a" * 1_000)
    shard = directory.shards[0]
    with shard._lock, directory.health._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            fine = False
            try:
                directory.after_fork()
                for _ in range(5_000):
                    directory.read(file, 0, 10)
                directory.health.failed(time.monotonic())
                fine = len(shard.extents.hits) < 2_000
            finally:
                os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    directory.close()


def test_too_much_to_write_is_dropped_and_counted(tmp_path: Path) -> None:
    """A disk slower than the readers costs entries, not memory; what waits can be read."""
    directory = open_directory(tmp_path / "cache", write_buffer=2 * BLOCK)
    file = directory.enter("a", "v", 8 * BLOCK)
    assert file is not None
    store, gate = directory._store, threading.Event()
    directory.writers._store = lambda write: (gate.wait(), store(write))[1]
    for block in range(4):
        directory.submit(file, block, memoryview(bytes([block]) * BLOCK), Value.NORMAL, 0)
    assert directory.writers.counts.dropped == 2
    assert bytes(directory.block(file, 1) or b"")[:1] == b"\x01"
    assert directory.block(file, 2) is None
    gate.set()
    assert directory.writers.flush(10)
    assert directory.read(file, 0, 2 * BLOCK) == bytes(BLOCK) + b"\x01" * BLOCK
    directory.close()


def test_what_is_due_is_done_while_writes_never_cease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hits are told and what has expired leaves, also where the queue of writes is never empty."""
    monkeypatch.setattr("serving.bytecache.disk.writing.TEND_S", 0.05)
    tended, file = threading.Event(), CachedFile(1, "a", "v", BLOCK, "", 0)

    def store(write: Write) -> None:
        if not tended.is_set():
            writers.submit(write)

    writers = Writers(store, tended.set, 1, 4 * BLOCK)
    writers.submit(Write(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, 0))
    assert tended.wait(PATIENCE_S)
    writers.close()


def test_the_log_of_names_stays_small(directory: Directory) -> None:
    """Files that came and went leave no names behind."""
    kept = stored(directory, "kept", b"k" * 1_000)
    for i in range(8_000):
        directory.enter(f"gone{i}" + "x" * 300, "v", 10)
    assert directory.names.length < 2 * MIB
    assert len(directory.names.by_path) < 6_000
    assert readable(directory, kept) == 1
