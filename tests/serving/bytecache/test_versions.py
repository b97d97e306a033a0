"""Which bytes a path has now: stores that say little, and files that change in the worst moment."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from fsspec import AbstractFileSystem, filesystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractBufferedFile

from serving.bytecache.errors import ByteCacheError
from serving.bytecache.filesystem.filesystem import FreshetFileSystem
from serving.bytecache.filesystem.remote import Remote, name_of
from serving.bytecache.shared.opening import close_caches
from tests.serving.bytecache.stores import MIB, aged


class TaggedFileSystem(LocalFileSystem):  # type: ignore[misc]
    """Local files whose ETag is their content's, as S3's is. ``before_read`` may change them."""

    cachable = False
    before_read: Callable[[], object] = staticmethod(lambda: None)
    after_read: Callable[[], object] = staticmethod(lambda: None)

    def info(self, path: str, **given: Any) -> dict[str, Any]:
        found: dict[str, Any] = super().info(path, **given)
        return found | {"ETag": hashlib.md5(Path(path).read_bytes()).hexdigest()}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **given: Any) -> bytes:
        self.before_read()
        found: bytes = super().cat_file(path, start=start, end=end, **given)
        self.after_read()
        return found


class FarFile(AbstractBufferedFile):  # type: ignore[misc]
    """As fsspec's file of WebHDFS or SFTP: with a buffer that reads ahead."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        self.fs.fetched += end - start
        return self.fs.content[start:end]  # type: ignore[no-any-return]


class FarFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """A store of one file, whose reads go through fsspec's buffer."""

    protocol = "far"
    cachable = False
    content = bytes(range(256)) * (8 << 12)
    fetched = 0

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": len(self.content), "type": "file", "ETag": "one"}

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **_: Any) -> Any:
        return FarFile(self, path, mode, block_size or "default")


class Lengthless(AbstractFileSystem):  # type: ignore[misc]
    """A store of one file, of which it does not say how long it is, as HTTP servers that send it in chunks."""

    protocol = "lengthless"
    cachable = False
    content = b"hello world"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return {"name": path, "size": None, "type": "file", "ETag": "one"}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:  # noqa: ARG002
        return self.content[start:end]

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **_: Any) -> Any:  # noqa: ARG002
        return io.BytesIO(self.content)


@pytest.fixture
def dirs(tmp_path: Path) -> Iterator[tuple[str]]:
    """An empty cache directory."""
    yield (f"{tmp_path}/cache:64MiB",)
    close_caches()


def test_what_changes_within_a_tick_of_the_clock_is_read(dirs: tuple[str], tmp_path: Path) -> None:
    """A kernel whose clock has ticks gives two changes in place the same time: what is that young is not kept."""
    fs, path = FreshetFileSystem(target_protocol="file", dirs=dirs, skip_instance_cache=True), tmp_path / "a"
    path.write_bytes(b"1" * 100_000)
    changed = path.stat()
    assert fs.cat_file(str(path)) == b"1" * 100_000
    with path.open("r+b") as file:
        file.write(b"2" * 100_000)
    os.utime(path, ns=(changed.st_atime_ns, changed.st_mtime_ns))
    assert fs.cat_file(str(path)) == b"2" * 100_000
    aged(path)
    for _ in range(2):
        assert fs.cat_file(str(path)) == b"2" * 100_000
    assert fs.tally.hit_bytes == 100_000


def test_a_file_that_is_put_back_during_a_fetch_gives_no_bytes_of_the_other(dirs: tuple[str], tmp_path: Path) -> None:
    """Its ETag is the old one again; when it was changed is not, and what was fetched is of neither for sure."""
    store, path = TaggedFileSystem(), tmp_path / "a"
    fs = FreshetFileSystem(fs=store, dirs=dirs)
    path.write_bytes(b"1" * 100_000)
    aged(path)
    store.before_read = lambda: path.write_bytes(b"2" * 100_000)
    store.after_read = lambda: path.write_bytes(b"1" * 100_000)
    with pytest.raises(ByteCacheError) as changed:
        fs.cat_file(str(path))
    assert changed.value.code == "file_changed"
    store.before_read = store.after_read = lambda: None
    assert fs.cat_file(str(path)) == b"1" * 100_000


def test_no_more_is_read_than_was_asked_for(dirs: tuple[str]) -> None:
    """fsspec's own buffer would read megabytes ahead for each range: the cache reads past it."""
    store = FarFileSystem()
    fs = FreshetFileSystem(fs=store, dirs=dirs)
    assert fs.cat_file("/a", 100_000, 100_010) == store.content[100_000:100_010]
    assert store.fetched == 64 << 10
    assert fs.cat_ranges(["/a", "/a"], [0, 5 * MIB], [3, 5 * MIB + 3]) == [
        store.content[:3],
        store.content[5 * MIB : 5 * MIB + 3],
    ]
    assert store.fetched == 3 * (64 << 10)


@pytest.mark.parametrize(
    ("changed", "age_s", "settled"),
    [
        (lambda at: at.timestamp(), 1, False),
        (lambda at: at.timestamp(), 5, True),
        (lambda at: int(at.timestamp() * 1_000), 1, False),  # milliseconds, as HDFS
        (lambda at: int(at.timestamp() * 1_000), 5, True),
        (lambda at: at, 1, False),
        (lambda at: at, 5, True),
        (lambda at: at.replace(tzinfo=None), 1, False),  # without a zone it is UTC
        (lambda at: at.replace(tzinfo=None), 5, True),
        (lambda at: format_datetime(at, usegmt=True), 1, False),  # as HTTP
        (lambda at: format_datetime(at, usegmt=True), 5, True),
        (lambda at: at.isoformat(), 5, False),  # another text: nobody can tell
        (lambda at: f"{format_datetime(at)[:-5]}+{'9' * 30}", 5, False),
    ],
)
def test_a_time_settles_when_it_is_old_enough(changed: Callable[[datetime], Any], age_s: int, settled: bool) -> None:
    """Times come as seconds, milliseconds, dates and texts; where there is an ETag they don't matter, but HTTP's do."""
    remote, at = Remote(FarFileSystem()), datetime.now(UTC) - timedelta(seconds=age_s)
    info = {"type": "file", "size": 5, "mtime": changed(at)}
    assert remote.identity_of("a", info).settled == settled
    assert remote.identity_of("a", info | {"etag": '"x"'}).settled
    assert remote.identity_of("a", info | {"ETag": '"x"', "Last-Modified": changed(at)}).settled == settled
    assert not remote.identity_of("a", info | {"etag": 'W/"x"'}).version.startswith("W/")


def test_the_place_of_a_store_is_a_part_of_a_files_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stores with the same path are never taken for one: what an option says of the place, or the environment."""
    far = FarFileSystem()
    assert name_of(far, "/b/a") == "far://b/a"
    far.storage_options = {"host": "one", "port": 2, "password": "secret"}
    assert name_of(far, "/b/a") == "far+one,2://b/a"
    s3 = type("S3", (FarFileSystem,), {"protocol": ("s3", "s3a")})()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://here")
    assert name_of(s3, "b/a") == "s3+http://here://b/a"
    s3.storage_options = {"client_kwargs": {"endpoint_url": "http://there"}}
    assert name_of(s3, "b/a") == "s3+http://there://b/a"


def test_a_file_made_anew_with_the_same_time_is_read(dirs: tuple[str], tmp_path: Path) -> None:
    """``tar x`` and ``cp -p`` keep the size and the time of change, and the file system may give the same number."""
    fs, path = FreshetFileSystem(target_protocol="file", dirs=dirs, skip_instance_cache=True), tmp_path / "a"
    path.write_bytes(b"1" * 100_000)
    aged(path)
    assert fs.cat_file(str(path)) == b"1" * 100_000
    before = path.stat()
    with path.open("r+b") as file:  # the same number for sure
        file.write(b"2" * 100_000)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert fs.cat_file(str(path)) == b"2" * 100_000
    kept = Remote(fs.fs).identity(str(path))
    assert not kept.settled  # whatever its time of change says
    aged(path)
    for _ in range(2):
        assert fs.cat_file(str(path)) == b"2" * 100_000
    assert fs.tally.hit_bytes == 100_000


@pytest.mark.parametrize("kind", ["tar", "zip"])
@pytest.mark.parametrize("rooted", [False, True])
def test_members_of_an_archive_are_not_cached(dirs: tuple[str], tmp_path: Path, kind: str, rooted: bool) -> None:
    """Another archive at the same place has a member of equal size and time: its bytes are given."""
    path = tmp_path / f"x.{kind}"
    for content in (b"1" * 1_000, b"2" * 1_000):
        if kind == "tar":
            with tarfile.open(path, "w") as tar:
                member = tarfile.TarInfo("in/a")
                member.size, member.mtime = len(content), 1_000_000_000
                tar.addfile(member, io.BytesIO(content))
        else:
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr(zipfile.ZipInfo("in/a", (2001, 9, 9, 1, 46, 40)), content)
        store = filesystem(kind, fo=str(path), skip_instance_cache=True)
        fs = FreshetFileSystem(fs=DirFileSystem("in", store) if rooted else store, dirs=dirs, skip_instance_cache=True)
        for _ in range(2):
            assert fs.cat_file("a" if rooted else "in/a") == content
        assert fs.tally.hit_bytes == 0


class Listed(AbstractFileSystem):  # type: ignore[misc]
    """A store of one file, which says of it what it said last, as many do until their listings are given up."""

    def __init__(self, size: int) -> None:
        super().__init__(skip_instance_cache=True)
        self.size = size

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        """The listing of a folder."""
        assert detail
        if path not in self.dircache:
            self.dircache[path] = [{"name": f"{path}/a", "size": self.size, "type": "file", "mtime": 1.0}]
        found: list[dict[str, Any]] = self.dircache[path]
        return found

    def invalidate_cache(self, path: str | None = None) -> None:
        """Gives a listing up."""
        self.dircache.pop(path, None)


def test_a_listing_that_a_store_has_kept_is_not_believed() -> None:
    """The file may have been replaced since, by another process: its old bytes would be taken for the new ones."""
    store = Listed(1)
    remote = Remote(store)
    assert remote.identity("folder/a").size == 1
    store.size = 2
    assert store.info("folder/a")["size"] == 1
    assert remote.identity("folder/a").size == 2


def test_what_was_read_during_a_change_that_failed_is_forgotten(dirs: tuple[str], tmp_path: Path) -> None:
    """A path that never gets other bytes is not asked for its version: half a file would be given for ever."""
    path = str(tmp_path / "a")

    class Failing(LocalFileSystem):  # type: ignore[misc]
        cachable = False

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
            assert mode == "overwrite"
            Path(path).write_bytes(value[:1])
            assert fs.cat_file(path) == value[:1]
            Path(path).write_bytes(value)
            raise OSError("the answer was lost")

    fs = FreshetFileSystem(fs=Failing(), dirs=dirs, immutable=True)
    with pytest.raises(OSError, match="lost"):
        fs.pipe_file(path, b"whole")
    assert fs.cat_file(path) == b"whole"


def test_a_file_of_unknown_length_is_read_from_its_store(dirs: tuple[str], tmp_path: Path) -> None:
    """It can't be cached, and is not empty: whoever asks the cache itself is told."""
    fs = FreshetFileSystem(fs=Lengthless(), dirs=dirs)
    assert fs.cat_file("/a") == b"hello world"
    assert fs.cat_file("/a", 2, -3) == b"llo wo"
    assert fs.cat_ranges(["/a", "/a"], [0, 6], [5, 11]) == [b"hello", b"world"]
    with fs.open("/a") as file:
        assert file.read() == b"hello world"
    with fs.open("/a", "rt") as text:
        assert text.read() == "hello world"
    fs.get_file("/a", str(tmp_path / "a"))
    assert (tmp_path / "a").read_bytes() == b"hello world"
    assert fs.prefetch("/a") == 0
    with pytest.raises(ByteCacheError, match="how long") as unknown:
        fs.open_cached("/a")
    assert unknown.value.code == "no_length"
