"""Server files: pinned by SHA-256 and fetched from a Maven repository, all or nothing.

A pin file (``kafka.pins`` and its neighbours) has one line per file: a Maven coordinate
``group:artifact:version``, with ``:packaging:classifier`` if it is no plain jar, and the file's SHA-256.
Resolving dependencies anew on each machine would read a hundred project descriptions one after another (11 s) and could
give other versions each time; ``freshet/local/pin.py`` writes the pins, this module fetches what they say, in parallel.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import time
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from freshet.local.cache import cache_dir, exclusive
from freshet.local.errors import ArtifactError

log = structlog.get_logger(__name__)

PARALLEL_DOWNLOADS = 8
ATTEMPTS_MAX = 4
BACKOFF_S = 0.5
TIMEOUT_S = 60
CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS})


@dataclass(frozen=True, slots=True)
class Pin:
    """One file of a Maven repository: its coordinate and its SHA-256 (hex)."""

    group: str
    artifact: str
    version: str
    sha256: str
    packaging: str = "jar"
    classifier: str = ""

    @property
    def filename(self) -> str:
        """The file name as Maven gives it."""
        classifier = f"-{self.classifier}" if self.classifier else ""
        return f"{self.artifact}-{self.version}{classifier}.{self.packaging}"


def read_pins(name: str) -> list[Pin]:
    """The pins of ``<name>.pins`` beside this module. Raises `ArtifactError` if a line cannot be read."""
    pins: list[Pin] = []
    for number, line in enumerate(_pin_file(name).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        coordinate, _, sha256 = line.partition(" ")
        parts = coordinate.split(":")
        if len(parts) not in (3, 5) or len(sha256.strip()) != 64:
            raise ArtifactError(f"{name}.pins line {number} is not 'group:artifact:version sha256': {line!r}")
        pins.append(Pin(parts[0], parts[1], parts[2], sha256.strip(), *parts[3:]))
    return pins


def jars(name: str) -> list[Path]:
    """The jars of a pin file, downloaded on first use into the cache.

    Safe to call from several processes at once: one downloads, the others wait. A directory in the cache
    is complete, because it gets its final name last. Raises `ArtifactError` if a file cannot be fetched.
    """
    pins = read_pins(name)
    home = _home(name)
    if not home.is_dir():
        with exclusive(home.with_suffix(".lock")):
            if not home.is_dir():
                _fetch_all(name, pins, home)
    return [home / pin.filename for pin in pins]


def unpacked(name: str) -> Path:
    """The directory with the unzipped jars of a pin file, made on first use. Raises as `jars`."""

    def unzip(files: dict[str, Path], staging: Path) -> None:
        for archive in files.values():
            with zipfile.ZipFile(archive) as opened:
                opened.extractall(staging)

    return prepared(name, unzip)


def prepared(name: str, prepare: Callable[[dict[str, Path], Path], None]) -> Path:
    """The directory that ``prepare`` has filled from the files of a pin file, made on first use. Raises as `jars`.

    ``prepare`` gets the files by their artifact, and an empty directory that gets its final name last.
    """
    target = _home(name).with_suffix(".unpacked")
    if target.is_dir():
        return target
    files = dict(zip((pin.artifact for pin in read_pins(name)), jars(name), strict=True))
    with exclusive(target.with_suffix(".unpacking.lock")):
        if not target.is_dir():
            staging = target.with_suffix(".unpacking")
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            prepare(files, staging)
            staging.rename(target)
    return target


def is_cached(name: str) -> bool:
    """Whether all files of a pin file are in the cache."""
    return _home(name).is_dir()


def _pin_file(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.pins")


def _home(name: str) -> Path:
    digest = hashlib.sha256(_pin_file(name).read_bytes()).hexdigest()[:12]
    return cache_dir() / "servers" / f"{name}-{digest}"


def _fetch_all(name: str, pins: list[Pin], home: Path) -> None:
    """Fills a staging directory and renames it. Files that an interrupted run left there are kept if they verify."""
    started = time.monotonic()
    staging = home.with_suffix(".partial")
    staging.mkdir(parents=True, exist_ok=True)
    log.info("fetching server files", server=name, files=len(pins), into=str(home.parent))
    with ThreadPoolExecutor(PARALLEL_DOWNLOADS) as pool:
        for _ in pool.map(lambda pin: _fetch_one(pin, staging), pins):
            pass
    staging.rename(home)
    size_mb = round(sum(file.stat().st_size for file in home.iterdir()) / 1e6)
    log.info("server files ready", server=name, megabytes=size_mb, seconds=round(time.monotonic() - started, 1))


def _fetch_one(pin: Pin, staging: Path) -> None:
    target = staging / pin.filename
    if target.exists() and sha256_of(target) == pin.sha256:
        return
    failure: Exception | None = None
    for attempt in range(ATTEMPTS_MAX):
        if attempt:
            time.sleep(BACKOFF_S * 2**attempt)
        scratch = staging / f".download-{pin.filename}-{attempt}"
        shutil.rmtree(scratch, ignore_errors=True)
        try:
            coordinate = (pin.group, pin.artifact, pin.version, pin.packaging, pin.classifier)
            downloaded = download(coordinate, scratch)
            found = sha256_of(downloaded)
            if found != pin.sha256:
                raise ArtifactError(f"{pin.filename} has SHA-256 {found}, not the pinned {pin.sha256}")
            os.replace(downloaded, target)
            return
        except (OSError, RuntimeError, ArtifactError) as error:  # requests' errors are OSErrors
            if isinstance(error, OSError) and error.errno in CANNOT_WRITE:
                raise ArtifactError(
                    f"cannot write {pin.filename} into {staging}: {error.strerror}",
                    hint="free space or fix permissions there, or set FRESHET_CACHE to another directory",
                ) from error
            failure = error
            log.warning("download failed", file=pin.filename, attempt=attempt + 1, error=str(error))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    raise ArtifactError(
        f"cannot fetch {pin.group}:{pin.artifact}:{pin.version}: {failure}",
        hint="check the network; to use a Maven mirror name it under [repositories] in ~/.config/jgo.conf",
    ) from failure


def download(coordinate: Sequence[str], repository: Path) -> Path:
    """Fetches one file into the local Maven repository ``repository``; returns its path.

    ``coordinate``: group, artifact, version, and for what is no plain jar its packaging and classifier.
    """
    from jgo.config import GlobalSettings
    from jgo.constants import MAVEN_CENTRAL_URL
    from jgo.maven import MavenContext

    remotes: dict[str, str] = dict(GlobalSettings.load().repositories)
    remotes.setdefault("central", MAVEN_CENTRAL_URL)
    group, artifact, version, *kind = coordinate
    packaging, classifier = kind or ("jar", "")
    context = MavenContext(repo_cache=repository, remote_repos=remotes, timeout=TIMEOUT_S)
    project = context.project(group, artifact).at_version(version)
    resolved: Path = project.artifact(classifier, packaging).resolve()
    return resolved


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, hex."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
