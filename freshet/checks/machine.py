"""Checks of what this machine has and needs, each with the fix for what is missing."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import psutil

from freshet import DISTRIBUTION
from freshet.checks.finding import Check
from freshet.local import artifacts
from freshet.local.cache import cache_dir
from freshet.local.errors import JavaError
from freshet.local.java import find_java, has_module
from freshet.local.mariadb import HINT_MACHINE, runs_here
from freshet.local.process import port_is_free

GIB = 1 << 30
MEMORY_BYTES_MIN, MEMORY_BYTES_GOOD = 2 * GIB, 4 * GIB
DISK_BYTES_MIN, DISK_BYTES_GOOD = 2 * GIB, 10 * GIB
PORTS = {9092: "Kafka", 3306: "MariaDB", 9083: "Hive Metastore", 8480: "freshet serve"}
SERVERS_SIZE_MB = {"kafka": 43, "mariadb": 149, "hive": 145, "spark": 10}


def examine(data_dir: Path) -> list[Check]:
    """Runs every check; never raises. ``data_dir``: where the stores are to be."""
    checks: list[Callable[[], list[Check]]] = [
        _python,
        _processor,
        _java,
        _memory,
        lambda: [_disk("disk for data", data_dir), _disk("disk for the cache", cache_dir())],
        _cache,
        _packages,
        _pyspark,
        _ports,
    ]
    return [found for check in checks for found in check()]


def _python() -> list[Check]:
    version = ".".join(map(str, sys.version_info[:3]))
    return [Check("python", "ok", f"{version} at {sys.executable}")]


def _processor() -> list[Check]:
    name = platform.machine()
    if runs_here():
        return [Check("processor", "ok", name)]
    return [Check("processor", "warning", f"{name}: the MariaDB of `up --local` is built for x86-64", HINT_MACHINE)]


def _java() -> list[Check]:
    try:
        java = find_java()
    except JavaError as error:
        return [Check("java", "missing", str(error), error.hint)]
    checks = [Check("java", "ok", f"{java.version} at {java.path}")]
    home = os.environ.get("JAVA_HOME")
    if home and not java.path.startswith(home):
        checks.append(
            Check(
                "JAVA_HOME",
                "warning",
                f"{home} has no Java 17 or 21; servers use {java.path}, but Spark would use JAVA_HOME",
                "unset JAVA_HOME or point it at a JDK 17 or 21",
            )
        )
    if has_module(java, "jdk.incubator.vector"):
        checks.append(Check("jdk.incubator.vector", "ok", "present (Spark's vector code)"))
    else:
        checks.append(
            Check(
                "jdk.incubator.vector",
                "warning",
                "this runtime does not have it, so Spark does not start",
                "install a full JRE or JDK (Debian, Ubuntu: apt-get install openjdk-17-jre-headless)",
            )
        )
    return checks


def _memory() -> list[Check]:
    available = min(psutil.virtual_memory().available, _cgroup_headroom())
    found = f"{available / GIB:.1f} GiB available"
    if available < MEMORY_BYTES_MIN:
        return [
            Check(
                "memory",
                "missing",
                found,
                "free some memory: Kafka, MariaDB and a consumer need 2 GiB, Spark 2 GiB more",
            )
        ]
    if available < MEMORY_BYTES_GOOD:
        return [Check("memory", "warning", found, "enough to serve; `freshet rebuild` and `freshet verify` need 4 GiB")]
    return [Check("memory", "ok", found)]


def _cgroup_headroom() -> int:
    """Bytes left under a container's memory limit (cgroup v2); `sys.maxsize` without one."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return sys.maxsize
    return sys.maxsize if limit == "max" else max(int(limit) - used, 0)


def _disk(name: str, wanted: Path) -> Check:
    place = _existing(wanted)
    free = shutil.disk_usage(place).free
    found = f"{free / GIB:.1f} GiB free at {place}"
    if free < DISK_BYTES_MIN:
        return Check(name, "missing", found, f"free some space there, or use another disk: {_how_to_move(name)}")
    if free < DISK_BYTES_GOOD:
        return Check(name, "warning", found, f"enough to try Freshet; to use another disk: {_how_to_move(name)}")
    return Check(name, "ok", found)


def _how_to_move(name: str) -> str:
    return "set FRESHET_CACHE" if "cache" in name else "set data_dir (FRESHET_DATA_DIR)"


def _existing(path: Path) -> Path:
    path = path.resolve()
    while not path.exists():
        path = path.parent
    return path


def _cache() -> list[Check]:
    place = cache_dir()
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        fix = "make it writable, or set FRESHET_CACHE to a writable directory"
        return [Check("cache", "missing", f"{place}: {error.strerror}", fix)]
    absent = [name for name in SERVERS_SIZE_MB if not artifacts.is_cached(name)]
    if absent:
        size = sum(SERVERS_SIZE_MB[name] for name in absent)
        found = f"{place} is writable; {', '.join(absent)} ({size} MB) will be fetched on first use"
        return [Check("cache", "ok", found)]
    return [
        Check("cache", "ok", f"{place} is writable and holds Kafka, MariaDB, a Hive Metastore and Spark's connector")
    ]


def _packages() -> list[Check]:
    broken: list[str] = []
    names = _required()
    modules = importlib.metadata.packages_distributions()
    for name in names:
        own = sorted(module for module, owners in modules.items() if name in owners and not module.startswith("_"))
        plain = name.replace("-", "_")
        try:
            importlib.import_module(plain if plain in own or not own else own[0])  # markdown-it-py has markdown_it
        except Exception as error:  # noqa: BLE001 - a package can fail to import in any way
            broken.append(f"{name} ({type(error).__name__}: {error})")
    if broken:
        return [
            Check(
                "packages",
                "missing",
                "; ".join(broken),
                f"install {DISTRIBUTION} again (in its repository: make setup)",
            )
        ]
    return [Check("packages", "ok", f"all {len(names)} can be imported")]


def _pyspark() -> list[Check]:
    from spark_jobs.session import SparkUnavailable, check_pyspark

    try:
        check_pyspark()
    except SparkUnavailable as error:
        return [Check("spark", "warning", f"{error}; only `rebuild`, `verify` and `export` need them", error.hint)]
    return [Check("spark", "ok", "PySpark and pandas are installed")]


def _required() -> list[str]:
    requirements = importlib.metadata.requires(DISTRIBUTION) or []
    return [re.split(r"[^A-Za-z0-9_.-]", each, maxsplit=1)[0] for each in requirements if "extra ==" not in each]


def _ports() -> list[Check]:
    taken = [f"{port} ({user})" for port, user in PORTS.items() if not port_is_free(port)]
    if taken:
        fix = "nothing to do if Freshet uses them; `freshet local up` picks free ports, `freshet serve` takes --port"
        return [Check("ports", "warning", f"in use: {', '.join(taken)}", fix)]
    return [Check("ports", "ok", f"free: {', '.join(map(str, PORTS))}")]
