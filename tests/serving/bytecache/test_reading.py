"""Reads through the cache: what is asked of the store, by whom, and that bytes are always the file's own."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import pytest

from serving.bytecache.disk.directory import Directory
from serving.bytecache.disk.layout import BLOCK
from serving.bytecache.disk.names import CachedFile
from serving.bytecache.errors import ByteCacheError
from serving.bytecache.policy.admission import parse_admission
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.cache import ByteCache
from serving.bytecache.reading.fetching import FetchRules
from serving.bytecache.reading.files import ReadOptions
from serving.bytecache.reading.footers import footer_start
from serving.bytecache.reading.place import FOREVER_S, Owned
from serving.bytecache.reading.plan import ahead_of, pieces, requests, with_gaps
from serving.bytecache.reading.source import Identity
from tests.serving.bytecache.stores import MIB, DirectoryStore, cache_of, open_directory


def test_a_second_read_asks_nothing(store: DirectoryStore, directory: Directory) -> None:
    """A full hit makes no call to the store: no open, no stat, no read; also of any part, and after a restart."""
    data = random.Random(1).randbytes(MIB)
    store.put("a", data)
    cache = cache_of(directory)
    assert cache.read(cache.open(store, "a"), 0, MIB) == data
    identity = store.identity("a")
    directory.writers.flush()
    store.asked.clear()
    store.identities = 0
    file = cache.open(store, "a", identity=identity)
    chance = random.Random(2)
    for _ in range(50):
        start = chance.randrange(MIB)
        end = chance.randrange(start, MIB + 1)
        assert cache.read(file, start, end) == data[start:end]
    assert (store.asked, store.identities) == ([], 0)
    total = cache.tallies.total()
    assert (total.hits, total.misses) == (50, 1)
    assert file.tally.hits == 50


def test_a_version_that_may_still_get_other_bytes_is_not_kept(store: DirectoryStore, directory: Directory) -> None:
    """A time of change that is only just over may be that of two versions."""
    store.put("a", bytes(MIB))
    cache, identity = cache_of(directory), store.identity("a")
    for settled, reads in ((False, 1), (False, 2), (True, 3), (True, 3)):
        file = cache.open(store, "a", identity=identity._replace(settled=settled))
        assert cache.read(file, 0, MIB) == bytes(MIB)
        assert len(store.asked) == reads


def test_an_overlap_is_fetched_once(store: DirectoryStore, directory: Directory) -> None:
    """After [0, 600k) a read of [400k, 1M) asks for the rest only; no byte is stored or fetched twice."""
    data = random.Random(1).randbytes(MIB)
    store.put("a", data)
    cache = cache_of(directory)
    file = cache.open(store, "a")
    assert cache.read(file, 0, 600_000) == data[:600_000]
    assert cache.read(file, 400_000, MIB) == data[400_000:]
    cut = -(-600_000 // BLOCK) * BLOCK
    assert [(start, end) for _, start, end in store.asked] == [(0, cut), (cut, MIB)]
    directory.writers.flush()
    assert sum(shard.counts.written_bytes for shard in directory.shards) == MIB
    assert directory.health.damaged == 0, "what is not here yet is no damage"


def test_many_ranges_become_few_requests(store: DirectoryStore, directory: Directory) -> None:
    """A hundred ranges 10 KB apart are at most ten requests, and give the same bytes as a hundred reads."""
    data = random.Random(1).randbytes(4 * MIB)
    store.put("a", data)
    cache = cache_of(directory, request_bytes=MIB)
    ranges = [(i * 11_000, i * 11_000 + 1_000) for i in range(100)]
    assert cache.read_many(cache.open(store, "a"), ranges) == [data[start:end] for start, end in ranges]
    assert len(store.asked) <= 10


@pytest.mark.parametrize("here", [1, 2])
def test_a_gap_of_which_a_part_is_here_is_not_fetched_along(here: int) -> None:
    """It would be fetched twice."""
    assert with_gaps([0, 3], 2 * BLOCK, lambda block: block != here) == [0, 3]
    assert with_gaps([0, 3], 2 * BLOCK, lambda _: True) == [0, 1, 2, 3]


def test_gaps_are_fetched_along_and_what_is_here_never_again() -> None:
    """Requests join over small gaps; a gap that is cached splits them."""
    assert with_gaps([1, 3, 9], BLOCK, lambda _: True) == [1, 2, 3, 9]
    assert with_gaps([1, 3], BLOCK, lambda block: block != 2) == [1, 3]
    assert requests([1, 2, 3, 9], 2 * BLOCK) == [range(1, 3), range(3, 4), range(9, 10)]
    assert list(pieces(MIB - 1, 2 * MIB + 1)) == [(MIB - 1, MIB), (MIB, 2 * MIB), (2 * MIB, 2 * MIB + 1)]


def test_who_goes_through_a_file_makes_few_requests(store: DirectoryStore, directory: Directory) -> None:
    """Each fetch brings more than the last one, up to a request's length; no byte is fetched twice, or past the end."""
    data = random.Random(1).randbytes(20 * MIB + 5)
    store.put("a", data)
    cache = cache_of(directory, request_bytes=4 * MIB)
    file = cache.open(store, "a")
    assert b"".join(cache.read(file, at, at + MIB // 2) for at in range(0, len(data), MIB // 2)) == data
    assert store.bytes_asked == len(data)
    assert len(store.asked) <= 11
    assert max(end - start for _, start, end in store.asked) <= 4 * MIB


def test_only_who_goes_on_is_fetched_for_ahead(store: DirectoryStore, tmp_path: Path) -> None:
    """A reader that jumps gets what it asks for; nothing is fetched ahead that would not be kept, or that is here."""
    assert ahead_of([4, 5], 4, 0, 100) == range(6, 8)
    assert ahead_of([4], 4, 8, 100) == range(5, 21)
    assert ahead_of([4], 4, 8, 3) == range(5, 8)
    assert ahead_of([4], 3, 8, 100) == range(0)
    assert ahead_of([4, 6], 4, 8, 100) == range(0)
    assert ahead_of([4], 4, 8, -1) == range(0)
    store.put("a", bytes(8 * MIB))
    for rules, jumps in ((FetchRules(), True), (FetchRules(read_only=True), False),
                         (FetchRules(admission=parse_admission("second")), False)):  # fmt: skip
        directory = open_directory(tmp_path / f"{jumps}{rules.read_only}")
        cache = ByteCache([Owned(directory)], rules)
        file = cache.open(store, "a")
        store.asked.clear()
        places = random.Random(1).sample(range(0, 128, 2), 40) if jumps else range(40)
        for block in places:
            cache.read(file, block * BLOCK, (block + 1) * BLOCK)
        assert store.bytes_asked == 40 * BLOCK
        directory.close()


def test_sixty_four_readers_of_a_missing_block_make_one_request(store: DirectoryStore, directory: Directory) -> None:
    """Who misses what another one fetches waits for it."""
    store.put("a", b"x" * BLOCK)
    cache = cache_of(directory)
    file, gate, waiting = cache.open(store, "a"), threading.Event(), threading.Barrier(64)

    def wait() -> None:
        gate.wait(30)

    store.before_fetch = wait

    def read() -> bytes:
        waiting.wait(30)
        return cache.read(file, 10, 20)

    with ThreadPoolExecutor(64) as pool:
        answers = [pool.submit(read) for _ in range(64)]
        gate.set()
        assert {answer.result(30) for answer in answers} == {b"x" * 10}
    assert len(store.asked) == 1


def test_a_failed_fetch_is_told_to_all_who_wait_and_tried_again_by_the_next(
    store: DirectoryStore, directory: Directory
) -> None:
    """An error of the store is nobody's for ever: no reader hangs, and the next read asks again."""
    store.put("a", b"x" * BLOCK)
    cache = cache_of(directory)
    file, gate = cache.open(store, "a"), threading.Event()

    def fail() -> None:
        gate.wait(30)
        raise ConnectionError("the store is away")

    store.before_fetch = fail
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(cache.read, file, 0, 10) for _ in range(8)]
        gate.set()
        assert all(isinstance(answer.exception(30), ConnectionError) for answer in answers)
    store.before_fetch = lambda: None
    assert cache.read(file, 0, 10) == b"x" * 10


def test_a_reader_that_is_cancelled_does_not_cancel_who_waits(store: DirectoryStore, directory: Directory) -> None:
    """Ctrl-C amid a fetch ends that read; the others fetch anew, once."""
    store.put("a", b"x" * BLOCK)
    cache = cache_of(directory)
    file, began, gate = cache.open(store, "a"), threading.Event(), threading.Event()

    def cancel() -> None:
        began.set()
        gate.wait(30)
        store.before_fetch = lambda: None
        raise KeyboardInterrupt

    store.before_fetch = cancel
    with ThreadPoolExecutor(9) as pool:
        cancelled = pool.submit(cache.read, file, 0, 10)
        assert began.wait(30)
        others = [pool.submit(cache.read, file, 0, 10) for _ in range(8)]
        gate.set()
        assert isinstance(cancelled.exception(30), KeyboardInterrupt)
        assert {each.result(30) for each in others} == {b"x" * 10}
    assert len(store.asked) == 2


def test_a_file_replaced_under_the_read_gives_no_mixture(store: DirectoryStore, directory: Directory) -> None:
    """Bytes fetched while the file was replaced are neither given nor stored; a new open reads the new file."""
    store.put("a", b"1" * MIB)
    cache = cache_of(directory)
    file = cache.open(store, "a")
    assert cache.read(file, 0, 10) == b"1" * 10
    store.before_fetch = lambda: store.put("a", b"2" * MIB)
    with pytest.raises(ByteCacheError) as changed:
        cache.read(file, MIB // 2, MIB)
    assert changed.value.code == "file_changed"
    store.before_fetch = lambda: None
    again = cache.open(store, "a")
    assert cache.read(again, 0, MIB) == b"2" * MIB
    directory.writers.flush()
    assert cache.read(again, 0, MIB) == b"2" * MIB


def test_an_overwrite_with_the_same_size_is_noticed(store: DirectoryStore, directory: Directory) -> None:
    """Another version of the same length has another identity: its own bytes are read."""
    store.put("a", b"1" * 1_000)
    cache = cache_of(directory)
    assert cache.read(cache.open(store, "a"), 0, 4) == b"1111"
    store.put("a", b"2" * 1_000)
    assert cache.read(cache.open(store, "a"), 0, 4) == b"2222"


def test_a_store_that_returns_less_is_an_error_and_nothing_is_stored(
    store: DirectoryStore, directory: Directory
) -> None:
    """A short answer is tried once more, then refused."""
    store.put("a", b"x" * MIB)
    store.shorten = 1
    cache = cache_of(directory)
    file = cache.open(store, "a")
    with pytest.raises(ByteCacheError) as short:
        cache.read(file, 0, 100)
    assert short.value.code == "short_read"
    assert len(store.asked) == 2
    assert file.entry is not None
    assert directory.block(file.entry, 0) is None


def test_ranges_past_the_end_and_empty_ones(store: DirectoryStore, directory: Directory) -> None:
    """A read is cut at the file's end, as of a local file."""
    store.put("a", b"0123456789")
    store.put("empty", b"")
    cache = cache_of(directory)
    file = cache.open(store, "a")
    assert [cache.read(file, 5, 99), cache.read(file, 10, 20), cache.read(file, 4, 4)] == [b"56789", b"", b""]
    assert cache.read_many(file, [(3, 3), (8, 12), (50, 60)]) == [b"", b"89", b""]
    assert cache.read(cache.open(store, "empty"), 0, 10) == b""


@pytest.mark.parametrize("options", [ReadOptions(bypass=True), ReadOptions(fill=False)])
def test_a_reader_may_leave_no_trace(store: DirectoryStore, directory: Directory, options: ReadOptions) -> None:
    """With ``bypass`` nothing is read or stored here, with ``fill=False`` nothing is stored."""
    store.put("a", b"x" * MIB)
    cache = cache_of(directory)
    for _ in range(2):
        assert cache.read(cache.open(store, "a", options), 0, 100) == b"x" * 100
    assert len(store.asked) == 2
    directory.writers.flush()
    assert sum(len(shard.table) for shard in directory.shards) == 0


def test_a_file_without_a_version_is_not_cached(store: DirectoryStore, directory: Directory) -> None:
    """What can't be told apart from its next version is read through."""
    store.put("a", b"x" * 1_000)
    cache = cache_of(directory)
    file = cache.open(store, "a", ReadOptions(immutable=True), identity=Identity("", 1_000))
    assert [cache.read(file, 0, 1), cache.read(file, 0, 1)] == [b"x", b"x"]
    assert len(store.asked) == 2
    assert cache.tallies.total().bypassed == 2


def test_an_immutable_path_is_asked_for_once(store: DirectoryStore, directory: Directory) -> None:
    """Where the caller promises that a path never gets other bytes, a later open asks the store nothing at all."""
    store.put("a", b"x" * 1_000)
    cache = cache_of(directory)
    options = ReadOptions(immutable=True)
    cache.read(cache.open(store, "a", options), 0, 1_000)
    assert cache.read(cache.open(store, "a", options), 0, 1_000) == b"x" * 1_000
    assert (store.identities, len(store.asked)) == (1, 1)


def test_hits_and_misses_add_up(store: DirectoryStore, directory: Directory) -> None:
    """The bytes of hits and misses are the bytes that were given, for the file and for the cache."""
    data = random.Random(1).randbytes(3 * MIB)
    store.put("a", data)
    cache, chance, given = cache_of(directory), random.Random(5), 0
    file = cache.open(store, "a")
    for _ in range(100):
        start = chance.randrange(3 * MIB)
        given += len(cache.read(file, start, start + chance.randrange(300_000)))
    for tally in (file.tally, cache.tallies.total()):
        assert tally.hit_bytes + tally.miss_bytes == given
        assert tally.hits > 0
        assert tally.partial_hits > 0
        assert tally.source_bytes == store.bytes_asked


def test_footers_are_recognised_and_outlive_a_scan(store: DirectoryStore, tmp_path: Path) -> None:
    """The end of a Parquet file is kept apart from its pages, without anyone saying so."""
    footer = b"f" * 10_000 + (10_000).to_bytes(4, "little") + b"PAR1"
    directory = open_directory(tmp_path / "cache", quota=16 * MIB, shards=1)
    cache = cache_of(directory)
    for i in range(4):
        store.put(f"{i}.parquet", bytes(MIB) + footer)
        cache.read(cache.open(store, f"{i}.parquet"), MIB, MIB + len(footer))
    store.put("scan", random.Random(1).randbytes(64 * MIB))
    scan = cache.open(store, "scan")
    for start in range(0, 64 * MIB, MIB):
        cache.read(scan, start, start + MIB)
        directory.writers.flush()
    store.asked.clear()
    for i in range(4):
        assert cache.read(cache.open(store, f"{i}.parquet"), MIB, MIB + len(footer)) == footer
    assert store.asked == []
    assert directory.shards[0].costs()["index"] > 0
    directory.close()


def test_the_length_of_a_footer_is_read_from_its_end(tmp_path: Path) -> None:
    """Parquet's and ORC's own writers end their files with lengths that are understood; other bytes are no footer."""
    import pyarrow as pa
    import pyarrow.orc
    import pyarrow.parquet

    table = pa.table({"a": list(range(1_000)), "b": ["x" * (i % 7) for i in range(1_000)]})
    pa.parquet.write_table(table, tmp_path / "t.parquet")
    pa.orc.write_table(table, tmp_path / "t.orc")
    parquet, orc = ((tmp_path / name).read_bytes() for name in ("t.parquet", "t.orc"))
    metadata = pa.parquet.read_metadata(tmp_path / "t.parquet")
    assert footer_start(len(parquet), parquet) == len(parquet) - metadata.serialized_size - 8
    found = pa.orc.ORCFile(tmp_path / "t.orc")
    lengths = found.file_footer_length + found.file_postscript_length + 1
    assert footer_start(len(orc), orc[-100:]) in (
        len(orc) - lengths,
        len(orc) - lengths - found.stripe_statistics_length,
    )
    for other in (b"", b"PAR1", b"\xff\xff\xff\xffPAR1", os.urandom(500), b"\x00ORC\x03", b"ORC\xff"):
        assert footer_start(1_000, other) in (None, *range(1_000))


def test_an_admission_decides_what_is_kept(store: DirectoryStore, directory: Directory) -> None:
    """With ``second`` the first read of a block leaves nothing here."""
    store.put("a", b"x" * BLOCK)
    cache = ByteCache([Owned(directory)], FetchRules(admission=parse_admission("second")))
    file = cache.open(store, "a")
    for _ in range(3):
        cache.read(file, 0, 10)
        directory.writers.flush()
    assert len(store.asked) == 2


def test_each_path_has_one_directory_and_keeps_it(store: DirectoryStore, tmp_path: Path) -> None:
    """Files spread over the directories; without one of them the files of the others stay where they are."""
    directories = [open_directory(tmp_path / f"c{i}") for i in range(3)]
    whole, less = cache_of(*directories), cache_of(*directories[:2])
    paths = [f"t/{i}" for i in range(300)]

    def name(cache: ByteCache, path: str) -> str:
        place = cache.place_of(path)
        assert place is not None
        return place.name

    before = {path: name(whole, path) for path in paths}
    assert all(50 < list(before.values()).count(str(each.place)) < 150 for each in directories)
    assert all(name(less, path) == before[path] for path in paths if before[path] != str(directories[2].place))
    store.put("a", b"x")
    assert whole.read(whole.open(store, "a"), 0, 1) == b"x"
    assert whole.forget("a") == 1
    for each in directories:
        each.close()


def test_a_pinned_file_stays(store: DirectoryStore, tmp_path: Path) -> None:
    """What the caller pins is here after much else passed by."""
    directory = open_directory(tmp_path / "cache", quota=16 * MIB, shards=1)
    cache = cache_of(directory)
    store.put("pinned", b"p" * MIB)
    store.put("scan", bytes(40 * MIB))
    cache.read(cache.open(store, "pinned", ReadOptions(value=Value.PINNED)), 0, MIB)
    cache.read(cache.open(store, "scan"), 0, 40 * MIB)
    directory.writers.flush()
    store.asked.clear()
    assert cache.read(cache.open(store, "pinned"), 0, MIB) == b"p" * MIB
    assert store.asked == []
    directory.close()


class Claiming(Owned):
    """Keeps which blocks are claimed among processes."""

    claimed: set[int]

    def claim(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> Sequence[int]:  # noqa: ARG002
        self.claimed = {*blocks}
        return blocks

    def keep(
        self,
        file: CachedFile,
        first: int,
        data: memoryview,
        value: Value,
        expires: int,
        timeout_s: float = FOREVER_S,
    ) -> None:
        super().keep(file, first, data, value, expires, timeout_s)
        self.claimed -= {*range(first, first - (-len(data) // BLOCK))}

    def release(self, file: CachedFile, blocks: Sequence[int], timeout_s: float = FOREVER_S) -> None:  # noqa: ARG002
        self.claimed -= {*blocks}


@pytest.mark.parametrize("rules", [FetchRules(), FetchRules(read_only=True)])
@pytest.mark.parametrize("fails", [False, True])
def test_no_claim_outlives_its_fetch(
    rules: FetchRules, fails: bool, store: DirectoryStore, directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept, not kept, or never here: other processes would else wait for what nobody fetches any more."""

    def broken(*_: object) -> list[bytes]:
        raise OSError("away")

    store.put("a", bytes(MIB))
    place = Claiming(directory)
    cache = ByteCache([place], rules)
    file = cache.open(store, "a")
    if fails:
        monkeypatch.setattr(store, "fetch", broken)
    with pytest.raises(OSError, match="away") if fails else nullcontext():
        cache.read(file, 0, MIB)
    assert place.claimed == set()
