"""Programs from Debian packages, unpacked in the cache with every library that they need. Nothing is installed.

For servers that no Maven repository has. It needs ``apt-get`` and ``dpkg-deb``, and a mirror that this machine uses.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Final

import structlog

from freshet.local.cache import cache_dir, exclusive
from freshet.local.errors import ArtifactError
from freshet.local.process import run_tool

log = structlog.get_logger(__name__)

KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SOURCES: Final = Path("/etc/apt")
_ARCHIVE: Final = re.compile(r"https?://\S+/debian/?(?=\s|$)")
_TOOLS: Final = ("apt-get", "dpkg-deb")


def is_available() -> bool:
    """Whether this machine has Debian's tools and names an archive: a derivative may have the keyring alone."""
    return all(shutil.which(tool) for tool in _TOOLS) and KEYRING.exists() and bool(_mirrors())


def is_cached(package: str, suite: str) -> bool:
    """Whether `unpacked` needs no network."""
    return _home(package, suite).is_dir()


def unpacked(package: str, suite: str) -> Path:
    """A directory with the files of ``package`` of Debian's ``suite``, and of all that it depends on.

    Made on first use; what it has then stays. Safe to call from several processes at once. Raises `ArtifactError`.
    """
    home = _home(package, suite)
    if not home.is_dir():
        with exclusive(home.with_suffix(".lock")):
            if not home.is_dir():
                _fetch(package, suite, home)
    return home


def command(root: Path, program: str) -> list[str]:
    """How to run a program of an unpacked tree with the tree's own libraries, and not with those of this machine."""
    libraries = [path.parent for path in root.glob("usr/lib/*/libc.so.6")]
    loaders = sorted(root.glob("usr/lib/*/ld-linux-*.so.*"))
    if not libraries or not loaders:
        raise ArtifactError(f"{root} has no libraries to run {program} with", hint="delete it; it is made anew")
    return [str(loaders[0]), "--library-path", str(libraries[0]), str(root / program)]


def _home(package: str, suite: str) -> Path:
    return cache_dir() / "servers" / f"{package}-{suite}"


def _fetch(package: str, suite: str, home: Path) -> None:
    if not is_available():
        raise ArtifactError(
            f"{package} can't be had here: this machine has no {' or '.join(_TOOLS)}, no Debian keyring, or no archive",
            hint="give a running server instead",
        )
    staging = home.with_suffix(".new")
    shutil.rmtree(staging, ignore_errors=True)
    apt = staging / "apt"
    for directory in ("state/lists/partial", "cache/archives/partial"):
        (apt / directory).mkdir(parents=True)
    (apt / "status").touch()  # no package counts as installed, so all that are needed are fetched
    (apt / "sources.list").write_text(f"deb [signed-by={KEYRING}] {_mirror()} {suite} main\n")
    options = {
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::SourceList": apt / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        # What this machine prefers to install, if anything, is not of the suite.
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "APT::Default-Release": "",
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    get = ["apt-get", "-y", *(f"-o{name}={value}" for name, value in options.items())]
    log.info("fetching server files", server=package, into=str(home.parent))
    try:
        run_tool("apt-get update", [*get, "update"])
        run_tool("apt-get", [*get, "install", "--download-only", "--no-install-recommends", package])
        for archive in sorted((apt / "cache" / "archives").glob("*.deb")):
            run_tool("dpkg-deb", ["dpkg-deb", "-x", str(archive), str(staging / "root")])
    except OSError as error:
        raise ArtifactError(f"cannot fetch {package}: {error}") from error
    (staging / "root").rename(home)
    shutil.rmtree(staging, ignore_errors=True)


def _mirror() -> str:
    """The first of Debian's archives in this machine's list of sources. (apt-get tells them only after an update.)"""
    found = _mirrors()
    if not found:
        raise ArtifactError(
            f"no file in {SOURCES} names a Debian archive",
            hint="on another distribution give a running server instead",
        )
    return found[0]


def _mirrors() -> list[str]:
    files = [SOURCES / "sources.list", *sorted((SOURCES / "sources.list.d").glob("*"))]
    lines = [
        line
        for file in files
        if file.suffix in (".list", ".sources") and file.is_file()
        for line in file.read_text(errors="replace").splitlines()
    ]
    return [found[0] for line in lines if not line.lstrip().startswith("#") and (found := _ARCHIVE.search(line))]
