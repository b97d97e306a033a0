"""What mistakes that were planted in the cache broke: the order of what leaves, bounds, and what processes share."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from serving.bytecache.disk import extents
from serving.bytecache.disk.directory import Directory, DirectoryOptions
from serving.bytecache.disk.layout import BLOCK, EXTENT, UNIT_BITS
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.policy import admission
from serving.bytecache.policy.admission import SecondTouch, WriteBudget
from serving.bytecache.policy.pools import BOUNDS, POLICIES, Pools, Value
from serving.bytecache.policy.s3fifo import S3Fifo
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.footers import footer_start
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.joined import Joined
from serving.bytecache.shared.protocol import (
    MESSAGE_BYTES_MAX,
    VERSION,
    Hello,
    OwnerGoneError,
    at_socket,
    receive,
    send,
)
from tests.serving.bytecache.stores import MIB, DirectoryStore, allocated_bytes, cache_of, open_directory

ONE_SHARD = DirectoryOptions(quota=32 * MIB, shards=1)


def stored(directory: Directory, path: str, data: bytes, first: int = 0, size: int = 4 * MIB) -> CachedFile:
    """A file with ``data`` from its block ``first`` on."""
    file = directory.enter(path, "1", size)
    assert file is not None
    directory.store(file, first, memoryview(data), Value.NORMAL, 0)
    return file


# Order and bounds.


def test_what_comes_after_a_restart_is_younger_than_what_was_there(tmp_path: Path) -> None:
    """Also at the start after that: the oldest leaves first."""
    options: dict[str, Any] = {"shards": 1, "policy": "fifo"}
    directory = open_directory(tmp_path / "cache", **options)
    for i in range(10):
        stored(directory, f"gone{i}", b"x")
    old = stored(directory, "old", b"x")
    directory.forget(directory.matching("gone", prefix=True))
    for name in ("new", "newer"):
        directory.close()
        directory = open_directory(tmp_path / "cache", **options)
        stored(directory, name, b"x")
    directory.close()
    directory = open_directory(tmp_path / "cache", **options)
    victim = directory.shards[0]._pools.evict()
    assert victim is not None
    assert victim[0] >> UNIT_BITS == old.number
    directory.close()


@pytest.mark.parametrize("value", [Value.SCAN, Value.INDEX, Value.PINNED])
def test_each_value_keeps_within_its_bound(value: Value) -> None:
    """What is worth more than the rest can't take the cache, nor can what is worth less."""
    pools = Pools("lru", 1_000)
    for key in range(1_000):
        while pools.evict_surplus(value, ""):
            pass
        pools.insert(key, 1, value)
    assert pools.cost <= 1_000 * BOUNDS[value] + 1 <= 501
    assert BOUNDS[Value.INDEX] < BOUNDS[Value.PINNED]


@pytest.mark.parametrize("value", Value)
def test_a_read_counts_whatever_the_data_is_worth(value: Value) -> None:
    """Of two entries of any value the one that was read stays."""
    pools = Pools("lru", 1_000)
    for key in (1, 2):
        pools.insert(key, 1, value)
    pools.hit(1)
    assert pools.evict() == (2, 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_what_a_policy_remembers_of_what_left_is_bounded(policy: str) -> None:
    """A cache that runs for months and reads each thing once takes no more memory than on its first day."""
    tested = POLICIES[policy]()
    for key in range(5_000):
        tested.insert(key, 1)
        if key >= 100:
            tested.evict()
    assert sum(len(part) for part in vars(tested).values() if hasattr(part, "__len__")) <= 600


def test_an_entry_that_grows_keeps_its_reads() -> None:
    """Blocks come one after the other: an extent that was read stays, though another block of it was stored since."""
    policy = S3Fifo()
    policy.insert(1, 1)
    policy.hit(1)
    policy.hit(1)
    policy.resize(1, 2)
    policy.insert(2, 1)
    assert policy.evict() == (2, 1)


def test_the_second_touch_forgets_the_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else, once its memory is full, nothing is admitted any more."""
    monkeypatch.setattr(admission, "SEEN_MAX", 2)
    second = SecondTouch()
    assert not any(second.admits(key, 1, 0) for key in (1, 2, 3))
    assert second.admits(3, 1, 0)
    assert not second.admits(1, 1, 0)


def test_a_write_budget_saves_up_an_hour_at_most() -> None:
    """After a quiet night the disk is not written at full speed until the night's budget is used up."""
    budget = WriteBudget(24 * 3_600 * 1_000)
    budget.admits(0, 1, 0)
    assert sum(budget.admits(i, 100_000, 12 * 3_600) for i in range(1_000)) == 36


def test_many_small_files_keep_within_the_quota(tmp_path: Path) -> None:
    """A file of a byte takes a page, a place in the index and a name: all of that counts."""
    directory = open_directory(tmp_path / "cache", quota=8 * MIB, shards=1)
    for i in range(2_500):
        stored(directory, f"{i}" + "x" * 200, b"1", size=1)
    assert directory.shards[0].counts.evicted > 0
    assert allocated_bytes(tmp_path / "cache") <= 8 * MIB
    directory.close()


def test_nobody_reserves_less_than_nothing(directory: Directory) -> None:
    """It would make the cache larger than its directory's share."""
    assert not directory.reserve(-MIB)
    assert directory.reserved == 0


def test_a_long_footer_is_one_only_if_it_was_seen() -> None:
    """Four bytes before ``PAR1`` may say anything: more than half of a file is believed only where it was read."""
    tail = bytes(92) + (600).to_bytes(4, "little") + b"PAR1"
    assert footer_start(1_000, tail) is None
    assert footer_start(1_000, bytes(900) + tail) == 392


# What is kept, and what is not.


def test_a_name_of_nothing_is_gone_after_a_restart(tmp_path: Path) -> None:
    """Files that were opened and never stored leave no names behind."""
    directory = open_directory(tmp_path / "cache")
    assert directory.enter("a", "1", 10) is not None
    directory.close()
    directory = open_directory(tmp_path / "cache")
    assert directory.names.by_number == {}
    directory.close()


def test_a_file_of_another_size_is_another_version(directory: Directory) -> None:
    """A file that was appended to within the tick of a store's clock has the same time of change."""
    old = stored(directory, "a", b"x" * 10, size=10)
    new = directory.enter("a", "1", 20)
    assert new is not None
    assert new.number != old.number
    assert directory.read(old, 0, 10) is directory.read(new, 0, 10) is None


def test_a_block_is_kept_that_comes_to_an_expired_extent(directory: Directory) -> None:
    """The earlier blocks have had their time; the new one has not."""
    file = directory.enter("a", "1", MIB)
    assert file is not None
    directory.store(file, 0, memoryview(bytes(BLOCK)), Value.NORMAL, int(time.time()) - 10)
    directory.store(file, 1, memoryview(b"n" * BLOCK), Value.NORMAL, 0)
    assert directory.read(file, 0, 10) is None
    assert directory.read(file, BLOCK, BLOCK + 10) == b"n" * 10


def test_an_extent_whose_last_block_was_damaged_gives_its_room_back(tmp_path: Path) -> None:
    """It holds nothing any more, so it costs nothing."""
    directory = open_directory(tmp_path / "cache", shards=1)
    file = stored(directory, "a", b"x" * BLOCK)
    with (tmp_path / "cache/0/data").open("r+b") as raw:
        raw.write(b"y")
    assert directory.read(file, 0, 10) is None
    assert directory.shards[0].table == {}
    assert directory.shards[0].costs()["normal"] == 0
    directory.close()


def test_a_new_key_seals_all_that_is_stored_from_then_on(tmp_path: Path) -> None:
    """Also further blocks of an extent that has the old one, which somebody may know by now."""
    for i, keys in enumerate(("07" * 32, f"{'08' * 32}\n{'07' * 32}")):
        (tmp_path / "key").write_text(keys)
        directory = open_directory(tmp_path / "cache", shards=1, key_file=str(tmp_path / "key"))
        file = stored(directory, "a", bytes([i]) * BLOCK, first=i)
        shard = directory.shards[0]
        assert [shard._head(slot).key for slot in shard.table.values()] == [i + 1]
        assert directory.read(file, i * BLOCK, i * BLOCK + 10) == bytes([i]) * 10
        directory.close()


def test_what_leaves_amid_a_read_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place was given to another file between the look and the read: a miss, and the disk is not blamed."""
    directory = open_directory(tmp_path / "cache", shards=1)
    file = stored(directory, "a", b"a" * BLOCK)
    pread = extents._pread

    def late(*given: int) -> bytes:
        if directory.forget([file] if file.alive else []):
            stored(directory, "b", b"b" * BLOCK)
        return pread(*given)

    monkeypatch.setattr(extents, "_pread", late)
    assert directory.read(file, 0, BLOCK) is None
    assert directory.health.damaged == 0
    directory.close()


# Several readers and processes.


def test_what_was_stored_between_the_look_and_the_claim_is_not_fetched_again(
    store: DirectoryStore, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another reader's flight landed just then: who claims a block looks once more."""
    store.put("a", b"a" * BLOCK)
    cache = cache_of(directory)
    file = cache.open(store, "a")
    assert file.place is not None
    assert file.entry is not None
    entry, claim = file.entry, file.place.flights.claim

    def late(*given: Any) -> Any:
        directory.store(entry, 0, memoryview(b"a" * BLOCK), Value.NORMAL, 0)
        return claim(*given)

    monkeypatch.setattr(file.place.flights, "claim", late)
    assert cache.read(file, 0, 10) == b"a" * 10
    assert store.asked == []


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Directory, Attached]]:
    """An owner's directory, and a process's view of it that is attached (here: in the same process)."""
    owner = Joined(tmp_path / "cache", ONE_SHARD)
    assert owner.directory is not None
    attached = Attached(tmp_path / "cache", (), 64 << 20)
    yield owner.directory, attached
    attached.close()
    owner.close()


def entered(attached: Attached, path: str, size: int = 4 * MIB) -> CachedFile:
    """As `stored`, seen by who is attached."""
    file = attached.enter(path, "1", size, "")
    assert file is not None
    return file


def refused(*_: object, **__: object) -> Any:
    raise AssertionError("the owner was asked")


def test_who_never_gets_a_block_from_others_fetches_it_alone(
    store: DirectoryStore, pair: tuple[Directory, Attached], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Processes that don't store what they fetch could pass a block on for ever: after some turns a reader fetches."""
    store.put("a", b"a" * BLOCK)
    cache, turns = ByteCache([pair[1]]), iter(range(10))

    def taken(*_: object) -> Sequence[int]:
        next(turns)  # no more than ten
        return []

    monkeypatch.setattr(pair[1], "claim", taken)
    assert cache.read(cache.open(store, "a"), 0, 10) == b"a" * 10
    assert len(store.asked) == 1


@pytest.mark.parametrize("value", [Value.NORMAL, Value.INDEX])
def test_a_hit_of_who_is_attached_asks_nobody(
    pair: tuple[Directory, Attached], monkeypatch: pytest.MonkeyPatch, value: Value
) -> None:
    """What is there of a file is told when it is entered, of footers and indexes too."""
    directory, attached = pair
    file = directory.enter("a", "1", 4 * MIB)
    assert file is not None
    directory.store(file, 17, memoryview(b"f" * BLOCK), value, 0)
    seen = entered(attached, "a")
    monkeypatch.setattr(attached, "_call", refused)
    assert attached.read(seen, 17 * BLOCK, 17 * BLOCK + 10) == b"f" * 10
    monkeypatch.undo()


def test_a_block_that_the_owner_still_writes_is_there_when_its_claim_is_answered(
    pair: tuple[Directory, Attached], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is attached can't read the owner's memory: told that a block is here, it must find it on disk."""
    directory, attached = pair
    file = directory.enter("a", "1", 4 * MIB)
    assert file is not None
    gate, write, wait = threading.Event(), directory.writers._store, directory.writers.stored
    monkeypatch.setattr(directory.writers, "_store", lambda each: (gate.wait(60), write(each))[1])

    def waits(*given: Any) -> bool:
        gate.set()
        return wait(*given)

    monkeypatch.setattr(directory.writers, "stored", waits)
    directory.submit(file, 0, memoryview(b"w" * BLOCK), Value.NORMAL, 0)
    seen = entered(attached, "a")
    assert attached.claim(seen, [0]) == []
    found = attached.read(seen, 0, 10)
    gate.set()
    assert found == b"w" * 10


def test_a_place_that_went_to_another_extent_of_the_file_is_a_miss_of_who_knew_it(
    pair: tuple[Directory, Attached], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head says which extent a place holds now: nothing is read there, and nobody is told of damage."""
    directory, attached = pair
    file = stored(directory, "a", b"1" * BLOCK)
    seen = entered(attached, "a")
    assert attached.read(seen, 0, 10) == b"1" * 10
    directory.shards[0].forget_block(file.number, 0, 0)
    stored(directory, "a", b"2" * EXTENT, first=16)
    assert directory.shards[0].table == {file.number << UNIT_BITS | 2: 0}
    monkeypatch.setattr(attached, "_call", refused)
    assert attached.read(seen, 0, 10) is None
    monkeypatch.undo()


@pytest.mark.usefixtures("pair")
def test_a_process_of_another_version_is_not_welcome(tmp_path: Path) -> None:
    """It could take what the owner says for something else."""
    for version, meets in ((VERSION, receive), (VERSION + 1, _the_end)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(60)
            at_socket(tmp_path / "cache", "connect", link)
            send(link, Hello(version))
            meets(link)


def _the_end(link: socket.socket) -> None:
    with pytest.raises(OwnerGoneError, match="ended"):
        receive(link)


def test_a_message_that_is_too_long_is_not_waited_for() -> None:
    """Its announced length takes no memory."""
    here, there = socket.socketpair()
    there.sendall((MESSAGE_BYTES_MAX + 1).to_bytes(4, "little"))
    there.close()
    with pytest.raises(OwnerGoneError, match="a message of"):
        receive(here)
    here.close()
