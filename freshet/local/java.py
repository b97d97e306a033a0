"""Finds a Java runtime that Kafka, the Metastore and Spark all accept: 17 or 21. Keeps the classes servers load."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from freshet.local.cache import cache_dir, exclusive
from freshet.local.errors import JavaError

SUPPORTED = (17, 21)
HINT = "install a JRE 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or point JAVA_HOME at one"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Flags for a JVM that does not live long: the second compiler and a parallel collector cost a server as much processor
time as its start does. At full rate it is slower than without them."""
UNUSED_S = 30 * 86_400
WELL_KNOWN = ("/usr/lib/jvm", "/opt/java", "/Library/Java/JavaVirtualMachines")


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: the path of its ``java``, its feature version (17) and its full version text."""

    path: str
    feature: int
    version: str

    @property
    def supported(self) -> bool:
        """Whether the servers accept it."""
        return self.feature in SUPPORTED


def find_java() -> Java:
    """The first supported runtime in JAVA_HOME, PATH and the usual directories. Raises `JavaError`."""
    seen = [java for path in _candidates() if (java := inspect_java(path)) is not None]
    for java in seen:
        if java.supported:
            return java
    if seen:
        raise JavaError(f"Java {seen[0].version} at {seen[0].path} is neither 17 nor 21", hint=HINT)
    raise JavaError("no Java runtime found (looked at JAVA_HOME, PATH and the usual directories)", hint=HINT)


@cache
def inspect_java(path: str) -> Java | None:
    """What ``path -version`` says, or None if it does not run."""
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', done.stderr)
    return Java(path, int(found[2]), found[1]) if found else None


def has_module(java: Java, module: str) -> bool:
    """Whether the runtime has a Java module; Spark needs ``jdk.incubator.vector``."""
    done = subprocess.run([java.path, "--list-modules"], capture_output=True, text=True, timeout=30, check=False)
    return any(line.split("@")[0] == module for line in done.stdout.splitlines())


def class_archive(name: str, classpath: str, train: Callable[[str], None]) -> tuple[str, ...]:
    """Flags for a quick start with an archive of the classes that the server loads (JEP 350), made on first use.

    It halves the processor time of a start. ``train`` starts the server with a flag, and stops it. There are no flags
    if the runtime has made no archive. Archives that have not been used for a month are removed.
    """
    java = find_java()
    digest = hashlib.sha256("\0".join((java.version, *QUICK_START, classpath)).encode()).hexdigest()[:12]
    archive = cache_dir() / "servers" / f"{name}-{digest}.jsa"
    if not archive.exists():
        with exclusive(archive.with_suffix(".lock")):
            if not archive.exists():
                _make_archive(archive, train)
    archive.touch()
    return (f"-XX:SharedArchiveFile={archive}",) if archive.stat().st_size else ()


def _make_archive(archive: Path, train: Callable[[str], None]) -> None:
    staging = archive.with_suffix(".partial")
    staging.unlink(missing_ok=True)
    train(f"-XX:ArchiveClassesAtExit={staging}")
    if not staging.exists():
        staging.touch()
    for other in archive.parent.glob("*.jsa"):
        if other.stat().st_mtime < time.time() - UNUSED_S:
            other.unlink(missing_ok=True)
    staging.rename(archive)


def _candidates() -> list[str]:
    paths: list[str] = []
    if home := os.environ.get("JAVA_HOME"):
        paths.append(str(Path(home) / "bin" / "java"))
    if on_path := shutil.which("java"):
        paths.append(on_path)
    for directory in WELL_KNOWN:
        for pattern in ("*/bin/java", "*/Contents/Home/bin/java"):
            paths.extend(str(path) for path in sorted(Path(directory).glob(pattern)))
    return paths
