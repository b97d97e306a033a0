"""mysqlclient for tests, the C driver that Django asks for: one that is installed, else built in the cache.

There are no wheels of it. It is compiled against Debian's connector, so it needs a compiler and apt-get.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Final

from freshet.local import debian
from freshet.local.cache import cache_dir, exclusive
from freshet.local.errors import ArtifactError
from tests.servers.choice import used

VERSION: Final = "2.2.7"
SHA256: Final = "24ae22b59416d5fcce7e99c9d37548350b4565baac82f95e149cac6ce4163845"
"""Of mysqlclient-2.2.7.tar.gz on the index."""
PACKAGE, SUITE = "libmariadb-dev", "bookworm"
BUILD_TIMEOUT_S: Final = 600


def can_be_had() -> bool:
    """Whether this machine can build it, or has."""
    has_connector = debian.is_cached(PACKAGE, SUITE) or debian.is_available()
    return _home().is_dir() or (has_connector and shutil.which("cc") is not None)


def mysqlclient() -> ModuleType | None:
    """Its module ``MySQLdb``; None if it can't be had, which the summary says. Raises `ArtifactError`."""
    if "MySQLdb" not in sys.modules:
        if not can_be_had():
            used["mysqlclient"] = "NOT RUN: no compiler, or no apt-get to fetch MariaDB's connector with"
            return None
        used["mysqlclient"] = f"{VERSION}, built against {PACKAGE} of Debian {SUITE}"
        sys.path.append(str(built()))
    return import_module("MySQLdb")


def built() -> Path:
    """The folder in the cache that has it, filled on first use. Raises `ArtifactError`."""
    home = _home()
    if not home.is_dir():
        root = debian.unpacked(PACKAGE, SUITE)
        with exclusive(home.with_suffix(".lock")):
            if not home.is_dir():
                staging = home.with_suffix(".partial")
                shutil.rmtree(staging, ignore_errors=True)
                _build(root, staging)
                staging.rename(home)
    return home


def _home() -> Path:
    return cache_dir() / "servers" / f"mysqlclient-{VERSION.replace('.', '_')}-{sys.implementation.cache_tag}"


def _build(root: Path, to: Path) -> None:
    [library] = root.glob("usr/lib/*/libmariadb.so")
    to.mkdir(parents=True)
    wanted = to / "wanted.txt"
    wanted.write_text(f"mysqlclient=={VERSION} --hash=sha256:{SHA256}\n")
    # An RPATH and no RUNPATH: the connector finds the libraries beside it, too.
    linked = f"-L{library.parent} -lmariadb -Wl,--disable-new-dtags -Wl,-rpath,{library.parent}"
    environment = {"MYSQLCLIENT_CFLAGS": f"-I{root}/usr/include/mariadb", "MYSQLCLIENT_LDFLAGS": linked}
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-cache", "--no-build-isolation", "--no-deps"]
    command = [*uv, "--python", sys.executable, "--target", str(to), "--require-hashes", "-r", str(wanted)]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        raise ArtifactError(
            f"mysqlclient {VERSION} can't be built: {done.stderr[-500:]}", hint="see what the compiler says"
        )
