"""Which host reads what: the order of hosts, what moves when one goes, and six readers on three hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from serving.bytecache.options import from_environment
from serving.bytecache.policy.locality import LOAD_MAX, choose, ranked, splits_of
from serving.bytecache.shared.opening import close_caches
from tests.serving.bytecache.stores import MIB, DirectoryStore, aged
from tests.serving.bytecache.test_processes import Reader

HOSTS = [f"10.0.0.{i}:8480" for i in range(8)]
SPLITS = [(f"s3://lake/day={i % 97}/part-{i % 7}.parquet", i % 5) for i in range(8_000)]


def test_a_host_that_comes_or_goes_moves_its_own_splits_only() -> None:
    """Of N hosts one less, or one more, moves one in N of the splits, and none between two others."""
    before = {each: ranked(HOSTS, *each)[0] for each in set(SPLITS)}
    for gone in HOSTS:
        left = [host for host in HOSTS if host != gone]
        after = {each: ranked(left, *each)[0] for each in before}
        moved = [each for each, host in before.items() if after[each] != host]
        assert {before[each] for each in moved} == {gone}
        assert len(moved) <= len(before) * (1 / len(HOSTS) + 0.02)
    assert max(Counter(before.values()).values()) <= len(before) * (1 / len(HOSTS) + 0.02)


def test_the_order_is_the_same_in_every_process() -> None:
    """Neither the interpreter's seed for hashes nor the order in which hosts are listed changes it."""
    code = (
        "import json, sys; from serving.bytecache.policy.locality import ranked;"
        "print(json.dumps([ranked(json.loads(sys.argv[1]), p, s) for p, s in json.loads(sys.argv[2])]))"
    )
    here = [ranked(HOSTS, *each) for each in SPLITS[:50]]
    for seed in ("0", "17"):
        arguments = [json.dumps(HOSTS[::-1]), json.dumps(SPLITS[:50])]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, check=True
        )
        assert json.loads(done.stdout) == here


def test_files_that_are_called_alike_are_spread() -> None:
    """The whole path and the split count, not the last name: else all ``part-0`` meet at one host (IMPALA-8630)."""
    assert len({ranked(HOSTS, f"s3://lake/day={i}/part-0", 0)[0] for i in range(200)}) == len(HOSTS)
    assert len({ranked(HOSTS, "s3://lake/one", i)[0] for i in range(200)}) == len(HOSTS)
    assert (len(splits_of(0)), len(splits_of(64 * MIB)), len(splits_of(64 * MIB + 1))) == (1, 1, 2)


def test_no_host_gets_much_more_than_its_share() -> None:
    """However unequal the splits fall, loads stay within the bound; and what has room goes to its first host."""
    loads: Counter[str] = Counter()
    same = [("s3://lake/hot.parquet", i % 3) for i in range(900)]  # three splits that everybody wants
    for path, split in same:
        loads[choose(HOSTS, path, split, loads)] += 1
    assert max(loads.values()) <= LOAD_MAX * len(same) / len(HOSTS) + 1
    idle = [choose(HOSTS, path, split, {}) == ranked(HOSTS, path, split)[0] for path, split in SPLITS[:100]]
    assert all(idle)
    parts = dict.fromkeys(HOSTS[:3], 0.4)  # loads that are no whole numbers fit the bound nowhere
    assert choose(HOSTS[:3], "a", 0, parts) in HOSTS[:3]


def test_a_host_that_is_away_keeps_its_place() -> None:
    """Its splits go to the next host of their order, and back; no other split moves."""
    away = {HOSTS[3]}
    for path, split in SPLITS[:500]:
        first, second = ranked(HOSTS, path, split)[:2]
        assert choose(HOSTS, path, split, {}, away) == (second if first in away else first)
        assert choose(HOSTS, path, split, {}) == first
    with pytest.raises(ValueError, match="no host"):
        choose(HOSTS, "a", 0, {}, HOSTS)


def test_a_read_at_another_host_is_served_and_counted(tmp_path: Path) -> None:
    """The bytes are right wherever they are read; only what the hosts' order gives to others is counted.

    The order depends on the folder's name: so many files that neither host has all of them by chance.
    """
    for i in range(40):
        (tmp_path / f"f{i}").write_bytes(bytes([i]) * 1_000)
    aged(*(tmp_path / f"f{i}" for i in range(40)))
    names = [f"{tmp_path}/f{i}" for i in range(40)]
    options = {"target_protocol": "file", "hosts": ("one", "two"), "host": "one", "dirs": (f"{tmp_path}/c:64MiB",)}
    fs = fsspec.filesystem("freshet", **options)
    others = 0
    try:
        for name in names:
            [order] = fs.hosts_of(name)
            others += order[0] != "one"
            with fs.open(name) as file:
                assert file.read() == Path(name).read_bytes()
                assert file.opened.tally.elsewhere_bytes == (0 if order[0] == "one" else 1_000)
        assert 0 < others < len(names)
        assert fs.tally.elsewhere_bytes == others * 1_000
    finally:
        close_caches()
    environment = {"FRESHET_BYTES__HOSTS": "one,two", "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    command = [str(Path(sys.executable).parent / "freshet"), "bytes", "where", names[0], "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert json.loads(done.stdout) == {"start": 0, "hosts": fs.hosts_of(names[0])[0]}


def test_one_host_may_be_given_as_text() -> None:
    """As one directory may: not as its letters."""
    assert from_environment({"hosts": "one", "dirs": "/a"}).hosts == ("one",)


@pytest.fixture
def hosts(store: DirectoryStore, tmp_path: Path) -> Iterator[dict[str, list[Reader]]]:
    """Three hosts, each with a cache directory of its own and two reader processes."""
    started = {name: [Reader(store, tmp_path / name) for _ in range(2)] for name in ("one", "two", "three")}
    yield started
    for readers in started.values():
        for reader in readers:
            if reader.process.poll() is None:
                reader.end(signal.SIGKILL)


def test_six_readers_on_three_hosts_keep_one_copy_and_one_host_may_die(
    store: DirectoryStore, hosts: dict[str, list[Reader]]
) -> None:
    """Each file is fetched by one host, once; when a host is killed only its files are fetched again, by others."""
    names = [f"part-{i}" for i in range(24)]
    for i, name in enumerate(names):
        store.put(name, bytes([i]) * (MIB // 4 + i))

    def scan(away: set[str], turn: int) -> dict[str, tuple[str, int]]:
        """File → (its host, bytes that this host fetched); another process of the host each ``turn``."""
        found = {}
        for name in names:
            host = choose(list(hosts), name, 0, {}, away)
            reader = hosts[host][turn % 2]
            reader.ask(name, 0, store.root.joinpath(name).stat().st_size)
            found[name] = (host, reader.answer()[0])
        return found

    first = scan(set(), 0)
    assert sum(fetched for _, fetched in first.values()) == sum((store.root / name).stat().st_size for name in names)
    assert len({host for host, _ in first.values()}) == 3
    again = scan(set(), 1)  # the other process of each host: attached to the first one's directory
    assert [(again[name][0], again[name][1]) for name in names] == [(first[name][0], 0) for name in names]
    victim = "two"
    for reader in hosts[victim]:
        reader.end(signal.SIGKILL)
    after = scan({victim}, 0)
    for name in names:
        size = (store.root / name).stat().st_size
        assert after[name][1] == (size if first[name][0] == victim else 0)
        assert after[name][0] != victim
    assert all(fetched == 0 for _, fetched in scan({victim}, 1).values())
