"""``freshet bytes``: what an operator sees of the byte cache, and does to it."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from freshet import cli
from serving.bytecache.disk.directory import DirectoryOptions
from serving.bytecache.policy.pools import Value
from serving.bytecache.reading.source import Identity
from serving.bytecache.reading.trace import Trace
from serving.bytecache.shared.attached import Attached
from serving.bytecache.shared.joined import Joined
from serving.bytecache.shared.protocol import MESSAGE_BYTES_MAX, ListFiles, OwnerGoneError, Reply, Request
from serving.bytecache.shared.server import Server
from tests.serving.bytecache.stores import MIB, allocated_bytes, open_directory

FILES = {"s3://lake/a/1": 300_000, "s3://lake/a/2": 70_000, "s3://lake/b/1\nx": 10}
Run = Callable[..., list[Any]]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that holds `FILES`, and that nobody has open; the only one of the settings."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRESHET_BYTES__DIRS", f"{tmp_path}/cache:32MiB")
    fill(tmp_path / "cache")
    return tmp_path / "cache"


def fill(place: Path, **options: Any) -> None:
    """Stores `FILES`."""
    directory = open_directory(place, quota=32 * MIB, shards=1, **options)
    for path, size in FILES.items():
        file = directory.enter(path, "v1", size)
        assert file is not None
        directory.store(file, 0, memoryview(random.Random(path).randbytes(size)), Value.NORMAL, 0)
    directory.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command that prints JSON; what it printed."""

    def run(*words: object, code: int = 0) -> list[Any]:
        capsys.readouterr()
        assert cli.run(["bytes", *map(str, words), "--json"]) == code
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


@pytest.fixture(params=["nobody", "another process"])
def owner(request: pytest.FixtureRequest, place: Path) -> Iterator[str]:
    """Commands own a directory for a moment, or ask its owner."""
    joined = Joined(place, DirectoryOptions(quota=32 * MIB)) if request.param != "nobody" else None
    yield request.param
    if joined is not None:
        joined.close()


def test_ls_and_du_tell_what_is_here(run: Run, place: Path, owner: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each file with its version and how much of it is here; the directory with its room and what was restored."""
    del owner
    listed = {line["path"]: (line["version"], line["size"], line["cached_bytes"]) for line in run("ls")}
    assert listed == {path: ("v1", size, size) for path, size in FILES.items()}
    [told] = run("du")
    assert told["place"] == str(place)
    assert (told["entries"], told["counts"]["restored"]) == (3, 3)
    assert sum(FILES.values()) <= told["used"] <= 32 * MIB
    assert told["pools"]["normal"] >= sum(FILES.values())
    assert cli.run(["bytes", "ls"]) == 0
    shown = capsys.readouterr().out
    assert "300,000 of        300,000  s3://lake/a/1  v1" in shown
    assert len(shown.splitlines()) == 3, "a line break in a name starts no line"
    assert cli.run(["bytes", "du"]) == 0
    assert f"{place}  owner" in capsys.readouterr().out


def test_ls_tells_all_files_beside_an_owner_of_many(run: Run, tmp_path: Path) -> None:
    """However long their names are together: no message between processes is as long."""
    owner = Joined(tmp_path / "many", DirectoryOptions(quota=2_048 * MIB, shards=1))
    assert owner.directory is not None
    paths = {f"{i}{'/long' * 12_000}" for i in range(301)}
    assert sum(map(len, paths)) > MESSAGE_BYTES_MAX
    for path in paths:
        file = owner.directory.enter(path, "v1", 10)
        assert file is not None
        owner.directory.store(file, 0, memoryview(bytes(10)), Value.NORMAL, 0)
    assert {line["path"] for line in run("ls", "--bytes-dirs", f"{tmp_path}/many:2GiB")} == paths
    owner.close()


def test_ls_tells_all_files_beside_an_owner_of_an_earlier_version(
    run: Run, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that tells them at once, and ends the connection of who asks for parts."""
    answer = Server._answer

    def earlier(server: Server, request: Request, link: socket.socket) -> Reply:
        if isinstance(request, ListFiles):
            raise OwnerGoneError("Invalid value 'ListFiles'")
        return answer(server, request, link)

    monkeypatch.setattr(Server, "_answer", earlier)
    owner = Joined(place, DirectoryOptions(quota=32 * MIB))
    assert {line["path"]: line["size"] for line in run("ls")} == FILES
    owner.close()


@pytest.mark.parametrize("command", [["ls"], ["du"]])
def test_who_looks_is_told_that_the_owner_does_not_answer(
    command: list[str], place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is an error, and not an empty directory."""
    owner = Joined(place, DirectoryOptions(quota=32 * MIB))
    monkeypatch.setattr(Attached, "describe", Mock(side_effect=OwnerGoneError("stopped")))
    assert cli.run(["bytes", *command]) == 1
    assert "bytes_dir_in_use" in capsys.readouterr().err
    owner.close()


def test_drop_forgets_a_file_or_all_that_begin_so(run: Run, place: Path, owner: str) -> None:
    """What was dropped is not listed any more, nor after another start; other files stay."""
    del owner
    assert cli.run(["bytes", "drop", "s3://lake/a/"]) == 0
    assert [line["path"] for line in run("ls")] == ["s3://lake/b/1\nx"]
    assert cli.run(["bytes", "drop", "s3://lake/b/", "--exact"]) == 0
    assert len(run("ls")) == 1
    assert cli.run(["bytes", "drop", "s3://lake/b/1\nx", "--exact"]) == 0
    assert run("ls") == []
    assert allocated_bytes(place) < 100_000


def test_verify_drops_what_is_damaged_and_says_so(run: Run, place: Path) -> None:
    """Exit code 1 where a block was damaged; afterwards all verify, and the rest is still here."""
    assert run("verify") == [{"place": str(place), "whole": 8, "damaged": 0}]
    with (place / "0/data").open("r+b") as raw:
        raw.seek(70_000)
        raw.write(b"damage")
    assert run("verify", code=1) == [{"place": str(place), "whole": 7, "damaged": 1}]
    assert run("verify") == [{"place": str(place), "whole": 7, "damaged": 0}]


def test_resize_gives_room_back_while_the_owner_runs(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command returns when the room is free; the owner keeps the new bound."""
    owner = Joined(place, DirectoryOptions(quota=32 * MIB))
    assert owner.directory is not None
    for i in range(20):
        file = owner.directory.enter(f"f{i}", "v", MIB)
        assert file is not None
        owner.directory.store(file, 0, memoryview(bytes(MIB)), Value.NORMAL, 0)
    assert cli.run(["bytes", "resize", str(12 * MIB)]) == 0
    assert "of 12,582,912 bytes" in capsys.readouterr().out
    assert owner.directory.used <= 12 * MIB
    owner.close()


@pytest.mark.parametrize("words", [["ls"], ["du"], ["verify"], ["drop", "none"]])
def test_who_looks_drops_nothing(
    words: list[str], run: Run, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command with other settings than the readers' does not evict for its own quota, nor for want of their key."""
    key = place.parent / "key"
    key.write_text("0c" * 32)
    fill(place.parent / "sealed", key_file=str(key))
    monkeypatch.setenv("FRESHET_BYTES__DIRS", f"{place.parent}/sealed:32MiB")
    assert cli.run(["bytes", *words]) == 1
    assert "bad_key_file" in capsys.readouterr().err
    monkeypatch.setenv("FRESHET_BYTES__KEY_FILE", str(key))
    assert len(run("ls")) == 3
    monkeypatch.delenv("FRESHET_BYTES__KEY_FILE")
    big = place.parent / "big"
    directory = open_directory(big, quota=64 * MIB)
    for i in range(30):
        file = directory.enter(f"f{i}", "v", MIB)
        assert file is not None
        directory.store(file, 0, memoryview(random.Random(i).randbytes(MIB)), Value.NORMAL, 0)
    directory.close()
    assert cli.run(["bytes", *words, "--bytes-dirs", f"{big}:16MiB"]) == 0
    [told] = run("du", "--bytes-dirs", f"{big}:64MiB")
    assert told["entries"] == 30


def test_a_trace_is_summed_up_and_replayed(run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reads, bytes and hits of a trace; what another size and policy would make of it; a policy that does not exist."""
    trace = Trace(tmp_path / "trace")
    for hit in (0, MIB, MIB):
        trace.record("a", Identity("v", MIB), 0, MIB, hit)
    trace.close()
    [told] = run("trace", tmp_path / "trace")
    assert told == {"reads": 3, "files": 1, "read_bytes": 3 * MIB, "hit_bytes": 2 * MIB}
    [again] = run("replay", tmp_path / "trace", "--capacity", 2 * MIB, "--policy", "lru")
    assert (again["policy"], again["hits"], again["misses"]) == ("lru", 2, 1)
    [small] = run("replay", tmp_path / "trace", "--capacity", 1)
    assert (small["policy"], small["hits"]) == ("s3fifo", 0)
    assert cli.run(["bytes", "trace", str(tmp_path / "trace")]) == 0
    assert "3 reads of 1 files, 3,145,728 bytes, 66.67% here" in capsys.readouterr().out
    assert cli.run(["bytes", "replay", str(tmp_path / "trace"), "--capacity", "9", "--policy", "best"]) == 2
    assert cli.run(["bytes", "trace", str(tmp_path / "none")]) == 1
    assert "bad_trace" in capsys.readouterr().err


def test_policies_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each policy with its hit ratio, the same each time."""
    told = []
    for _ in range(2):
        assert cli.run(["bytes", "simulate", "--keys", "500", "--reads", "4000", "--capacity", "50"]) == 0
        told.append(capsys.readouterr().out)
    assert told[0] == told[1]
    lines = [line.split() for line in told[0].splitlines()]
    ratios = {name: float(ratio.rstrip("%")) for name, ratio in lines}
    assert set(ratios) == {"s3fifo", "lirs", "lru", "fifo"}
    assert ratios["s3fifo"] > ratios["fifo"]


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Who looks at a misspelled directory is told, and finds nothing new afterwards."""
    for words in (["ls"], ["du"], ["verify"], ["drop", "x"], ["resize", "9"]):
        assert cli.run(["bytes", *words, "--bytes-dirs", f"{tmp_path}/none"]) == 1
        assert "no_bytes_dir" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("uri", "protocol"), [("s3://lake/a", "s3"), ("/lake/a", "file"), ("lake/a", "file"), ("gs://bucket/a", "gs")]
)
def test_each_part_of_a_file_is_told_with_its_hosts(
    uri: str, protocol: str, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where a part begins is an offset in the file, as whoever divides the work has it."""
    asked: list[tuple[Any, ...]] = []

    def filesystem(name: str, *, target_protocol: str, hosts: list[str]) -> Any:
        asked.append((name, target_protocol, hosts))
        return SimpleNamespace(hosts_of=lambda of: [["b", "a"], ["a"]] if of == uri else [])

    monkeypatch.setattr("fsspec.filesystem", filesystem)
    assert cli.run(["bytes", "where", uri]) == 1
    assert "bytes.hosts names no host" in capsys.readouterr().err
    monkeypatch.setenv("FRESHET_BYTES__HOSTS", "a,b")
    assert run("where", uri) == [{"start": 0, "hosts": ["b", "a"]}, {"start": 64 * MIB, "hosts": ["a"]}]
    assert asked == [("freshet", protocol, ["a", "b"])]
