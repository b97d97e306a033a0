"""The fsspec file system: fsspec's own test suite, and the libraries that people read with."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.policy.pools import Value
from serving.bytecache.shared.opening import close_caches
from tests.serving.bytecache.stores import aged

MIB = 1 << 20


class CountingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Local files as a remote store, with what is asked of it counted. Its clock is ten seconds behind."""

    protocol = "counted"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.reads: list[tuple[str, int | None, int | None]] = []
        self.infos = 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        self.reads.append((path, start, end))
        return super().cat_file(path, start=start, end=end, **kwargs)  # type: ignore[no-any-return]

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        self.infos += 1
        found: dict[str, Any] = super().info(path, **kwargs)
        return found | {name: found[name] - 10 for name in ("mtime", "created")}


@pytest.fixture
def cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The directory that the environment names."""
    place = tmp_path_factory.mktemp("bytes") / "cache"
    monkeypatch.setenv("FRESHET_BYTES__DIRS", f"{place}:64MiB")
    monkeypatch.setenv("FRESHET_BYTES__SHARDS", "2")
    yield place
    close_caches()


@pytest.fixture
def counted(cache_dir: Path) -> CountingFileSystem:  # noqa: ARG001 - the cache is set up
    """A store that the file systems of a test share."""
    return CountingFileSystem(auto_mkdir=True)


class Fixtures(AbstractFixtures):  # type: ignore[misc]
    """fsspec's suite over a local store."""

    @pytest.fixture
    def fs(self, cache_dir: Path) -> FreshetFileSystem:  # noqa: ARG002
        return FreshetFileSystem(target_protocol="file", target_options={"auto_mkdir": True}, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path)


class TestCopy(AbstractCopyTests, Fixtures):  # type: ignore[misc]
    """fsspec's tests of copying within a file system."""


class TestGet(AbstractGetTests, Fixtures):  # type: ignore[misc]
    """fsspec's tests of copying to local files."""


class TestPut(AbstractPutTests, Fixtures):  # type: ignore[misc]
    """fsspec's tests of copying local files."""


class TestOpen(AbstractOpenTests, Fixtures):  # type: ignore[misc]
    """fsspec's tests of opening."""


class TestPipe(AbstractPipeTests, Fixtures):  # type: ignore[misc]
    """fsspec's tests of writing."""


def test_a_chained_url_is_read_through_the_cache(cache_dir: Path, tmp_path: Path) -> None:
    """``freshet::`` before any URL is enough; text mode and lines work too."""
    (tmp_path / "a.txt").write_text("eins\nzwei\n")
    with fsspec.open(f"freshet::file://{tmp_path}/a.txt", "rt") as file:
        assert file.readlines() == ["eins\n", "zwei\n"]
    assert (cache_dir / "freshet-bytes.json").exists()


def test_pandas_reads_a_url_whose_store_is_an_option(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The documented form: pandas does not know chained URLs, so the store is named in ``storage_options``."""
    import pandas as pd

    place = tmp_path_factory.mktemp("bytes") / "cache"
    frame = pd.DataFrame({"a": [1, 2, 3]})
    frame.to_parquet(tmp_path / "a.parquet")
    aged(tmp_path / "a.parquet")
    options = {"target_protocol": "file", "dirs": f"{place}:64MiB"}
    try:
        for _ in range(2):
            assert pd.read_parquet(f"freshet://{tmp_path}/a.parquet", storage_options=options)["a"].tolist() == [
                1,
                2,
                3,
            ]
        with fsspec.open(f"freshet::file://{tmp_path}/a.parquet", freshet={"dirs": f"{place}:64MiB"}) as file:
            assert file.read() == (tmp_path / "a.parquet").read_bytes()
            assert file.opened.tally.miss_bytes == 0
    finally:
        close_caches()


def test_a_second_read_asks_for_the_version_only(counted: CountingFileSystem, tmp_path: Path) -> None:
    """A full hit reads nothing of the store; for a file that never changes it asks nothing at all."""
    data = random.Random(1).randbytes(3 * MIB)
    (tmp_path / "a").write_bytes(data)
    fs = FreshetFileSystem(fs=counted)
    assert fs.cat_file(f"{tmp_path}/a") == data
    reads = len(counted.reads)
    with fs.open(f"{tmp_path}/a") as file:
        assert file.read() == data
        file.seek(-10, os.SEEK_END)
        assert file.read(100) == data[-10:]
    assert fs.cat_file(f"{tmp_path}/a", start=-5, end=-2) == data[-5:-2]
    assert fs.cat_file(f"{tmp_path}/a", start=0, end=0) == b""
    assert len(counted.reads) == reads
    frozen = FreshetFileSystem(fs=counted, immutable=True)
    before = counted.infos
    assert frozen.cat_file(f"{tmp_path}/a") == data
    assert frozen.info(f"{tmp_path}/a")["size"] == 3 * MIB
    assert counted.infos == before
    assert fs.tally.hit_bytes >= 6 * MIB


def test_a_change_within_the_second_that_a_store_tells_is_read(counted: CountingFileSystem, tmp_path: Path) -> None:
    """Where times have whole seconds and there is no ETag, a file that just changed is not cached; later it is."""
    fs, path = FreshetFileSystem(fs=counted), tmp_path / "a"
    second = int(time.time())
    for content in (b"1" * 10, b"2" * 10):
        path.write_bytes(content)
        os.utime(path, (second + 11, second + 11))
        assert fs.cat_file(str(path)) == content
    os.utime(path, (second - 10, second - 10))
    assert fs.cat_file(str(path)) == b"2" * 10
    reads = len(counted.reads)
    assert fs.cat_file(str(path)) == b"2" * 10
    assert len(counted.reads) == reads


def test_folders_that_look_like_roots_are_told_apart(cache_dir: Path, tmp_path: Path) -> None:  # noqa: ARG001
    """The same path below another folder is another file, also where the store is not asked for its version."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a").write_text(folder)
    for folder in ("one", "two"):
        inner = DirFileSystem(path=str(tmp_path / folder), fs=fsspec.filesystem("file"))
        assert FreshetFileSystem(fs=inner, immutable=True).cat_file("a") == folder.encode()


def test_many_ranges_of_many_files_are_read_in_order(counted: CountingFileSystem, tmp_path: Path) -> None:
    """``cat_ranges`` gives each range in its place, and an error where a file is missing."""
    for name in "ab":
        (tmp_path / name).write_bytes(name.encode() * MIB)
    fs = FreshetFileSystem(fs=counted)
    paths = [f"{tmp_path}/{name}" for name in ("a", "b", "missing", "a")]
    answers = fs.cat_ranges(paths, [0, 5, 0, MIB - 2], [3, 9, 1, MIB])
    assert answers[:2] + answers[3:] == [b"aaa", b"bbbb", b"aa"]
    assert isinstance(answers[2], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(paths, 0, 1, on_error="raise")


def test_what_is_written_through_it_is_read_at_once(counted: CountingFileSystem, tmp_path: Path) -> None:
    """After a write, a copy or a deletion no read sees what was there before, also not of immutable files."""
    fs, path = FreshetFileSystem(fs=counted, immutable=True), f"{tmp_path}/a"
    for content in (b"1" * 10, b"2" * 10):
        fs.pipe_file(path, content)
        assert fs.cat_file(path) == content
    with fs.open(path, "wb") as file:
        file.write(b"3" * 10)
    assert fs.cat_file(path) == b"3" * 10
    fs.cp_file(path, path + "2")
    assert fs.cat_file(path + "2") == b"3" * 10
    fs.pipe_file(path, b"4" * 10)
    fs.cp_file(path, path + "2")
    assert fs.cat_file(path + "2") == b"4" * 10
    fs.rm(path)
    assert not fs.exists(path)


def test_a_folder_that_was_deleted_and_made_anew_has_its_own_files(counted: CountingFileSystem, tmp_path: Path) -> None:
    """All that was below is forgotten with the folder, also of files whose version is not asked for."""
    fs, path = FreshetFileSystem(fs=counted, immutable=True), f"{tmp_path}/table/part"
    fs.pipe_file(path, b"1" * 10)
    assert fs.cat_file(path) == b"1" * 10
    fs.rm(f"{tmp_path}/table", recursive=True)
    (tmp_path / "table").mkdir()
    Path(path).write_bytes(b"2" * 10)
    assert fs.cat_file(path) == b"2" * 10


def test_what_is_read_amid_a_write_is_not_kept(counted: CountingFileSystem, tmp_path: Path) -> None:
    """Who reads an immutable file while it is written anew leaves nothing in the cache that a later read would get."""
    fs, path = FreshetFileSystem(fs=counted, immutable=True), f"{tmp_path}/a"
    fs.pipe_file(path, b"1" * 10)
    assert fs.cat_file(path) == b"1" * 10
    with fs.open(path, "wb") as file:
        file.write(b"2" * 10)
        file.flush()
        assert fs.cat_file(path) == b"2" * 10
    with fs.open(path, "wb") as file:
        file.write(b"2" * 10)
        file.flush()
        Path(path).write_bytes(b"1" * 10)
        assert fs.cat_file(path) == b"1" * 10
        Path(path).write_bytes(b"2" * 10)
    assert fs.cat_file(path) == b"2" * 10

    class ReadBeforeTheWrite(CountingFileSystem):
        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
            fs.cat_file(path)
            super().pipe_file(path, value, mode=mode, **kwargs)

    fs = FreshetFileSystem(fs=ReadBeforeTheWrite(), immutable=True)
    fs.pipe_file(path, b"3" * 10)
    assert fs.cat_file(path) == b"3" * 10


def test_rules_say_what_files_are_worth_and_how_long_they_stay(counted: CountingFileSystem, tmp_path: Path) -> None:
    """The first pattern that fits a name counts, the caller's own word above it; what expired is fetched again."""
    for name in ("dim", "tmp", "other"):
        (tmp_path / name).write_bytes(b"x" * 1_000)
    rules = {"*/dim": "pinned", "*/tmp": "scan", "*/d*": "index"}
    fs = FreshetFileSystem(fs=counted, values=rules, ttl_s=3_600)

    def value(name: str, **given: Any) -> Value | None:
        return fs.open_cached(f"{tmp_path}/{name}", **given).options.value

    assert [value("dim"), value("tmp"), value("other")] == [Value.PINNED, Value.SCAN, None]
    assert value("dim", value=Value.NORMAL) is Value.NORMAL
    assert value("other", value="pinned") is Value.PINNED, "as of the file system: by its name"
    with pytest.raises(ByteCacheError, match="gold"):
        value("other", value="gold")
    fs.cat_file(f"{tmp_path}/dim")
    directory = fs.cache.places[0].directory  # type: ignore[attr-defined]
    directory.writers.flush()
    assert sum(shard.costs()["pinned"] for shard in directory.shards) > 0
    reads = len(counted.reads)
    fs.cat_file(f"{tmp_path}/dim")
    assert len(counted.reads) == reads
    later = time.time() + 3_601
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("serving.bytecache.disk.extents.time", lambda: later)
        fs.cat_file(f"{tmp_path}/dim")
    assert len(counted.reads) == reads + 1
    with pytest.raises(ByteCacheError, match="values"):
        FreshetFileSystem(fs=counted, values={"*": "gold"})


def test_a_scope_of_a_file_keeps_within_its_quota(counted: CountingFileSystem, tmp_path: Path) -> None:
    """A tenant's files take no more than its own, however much it reads; what others have stays."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 20 * MIB)
    options: dict[str, Any] = {"scopes": {"tenant": 8 * MIB}, "dirs": (f"{tmp_path}/cache:64MiB",), "shards": 2}
    fs = FreshetFileSystem(fs=counted, **options)
    for name, scope in (("a", ""), ("b", "tenant")):
        file = fs.open_cached(f"{tmp_path}/{name}", scope=scope)
        assert len(fs.cache.read(file, 0, 20 * MIB)) == 20 * MIB
    directory = fs.cache.places[0].directory  # type: ignore[attr-defined]
    directory.writers.flush()
    costs = [shard.costs() for shard in directory.shards]
    assert 5 * MIB < sum(each["scope:tenant"] for each in costs) <= 10 * MIB
    assert sum(each["normal"] for each in costs) >= 20 * MIB


def test_options_that_do_not_exist_are_refused(counted: CountingFileSystem) -> None:
    """A misspelled option is an error with the name of the option."""
    for options, named in (({"quotta": 1}, "quotta"), ({"value": "gold"}, "gold"), ({"policy": "random"}, "random")):
        with pytest.raises(ByteCacheError, match=named) as refused:
            FreshetFileSystem(fs=counted, **options).cache  # noqa: B018 - opens it
        assert refused.value.code == "bad_bytes_option"
    with pytest.raises(ByteCacheError, match="target_protocol"):
        FreshetFileSystem()


def test_a_fork_amid_reading_does_no_harm(counted: CountingFileSystem, tmp_path: Path) -> None:
    """A forked child reads on, writes nothing, and does not keep its parent's directory locked."""
    (tmp_path / "a").write_bytes(b"a" * MIB)
    (tmp_path / "b").write_bytes(b"b" * MIB)
    fs = FreshetFileSystem(fs=counted)
    file = fs.open(f"{tmp_path}/a")
    assert file.read(10) == b"a" * 10
    child = os.fork()
    if child == 0:
        try:
            fine = file.read(10) == b"a" * 10 and fs.cat_file(f"{tmp_path}/b", 5, 9) == b"bbbb"
            fine = fine and file.read() == b"a" * (MIB - 20)
        finally:
            os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert file.read(10) == b"a" * 10
    assert fs.cat_file(f"{tmp_path}/b", 5, 9) == b"bbbb"


def test_a_fork_while_other_threads_count_leaves_the_child_able_to_read(
    counted: CountingFileSystem, tmp_path: Path
) -> None:
    """What a thread of the parent held at the fork, of the trace or the counts, does not stop the child's reads."""
    (tmp_path / "a").write_bytes(b"a" * MIB)
    fs = FreshetFileSystem(fs=counted, trace=str(tmp_path / "trace"))
    file = fs.open(f"{tmp_path}/a")
    assert fs.cache.trace is not None
    with fs.cache.trace._lock, file.opened.tallies._lock:
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            fine = False
            try:
                fine = file.read(10) == b"a" * 10
            finally:
                os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_pandas_pyarrow_and_duckdb_read_twice_and_fetch_once(counted: CountingFileSystem, tmp_path: Path) -> None:
    """Each reads one data set through the cache; the second reading fetches no byte of the store."""
    import duckdb
    import pandas as pd
    import pyarrow.dataset as ds

    frame = pd.DataFrame({"a": range(50_000), "b": [f"text {i % 97}" for i in range(50_000)]})
    for i in range(3):
        frame.iloc[i::3].to_parquet(tmp_path / f"part{i}.parquet")
    fsspec.register_implementation("counted", CountingFileSystem, clobber=True)
    fs = FreshetFileSystem(fs=counted)

    def with_pandas() -> int:
        return int(sum(pd.read_parquet(fs.open(f"{tmp_path}/part{i}.parquet"))["a"].sum() for i in range(3)))

    def with_pyarrow() -> int:
        return int(ds.dataset(str(tmp_path), filesystem=fs, format="parquet").to_table()["a"].to_numpy().sum())

    def with_duckdb() -> int:
        connection = duckdb.connect()
        connection.register_filesystem(fs)
        found = connection.execute(f"select sum(a) from read_parquet('freshet://{tmp_path}/part*.parquet')").fetchone()
        assert found is not None
        return int(found[0])

    for read in (with_pandas, with_pyarrow, with_duckdb):
        fs.forget(str(tmp_path), prefix=True)
        before = len(counted.reads)
        assert read() == frame["a"].sum()
        first = len(counted.reads)
        assert first > before
        assert read() == frame["a"].sum()
        assert len(counted.reads) == first, read.__name__
