"""A PostgreSQL for tests: FRESHET_TEST_POSTGRES, else Debian's as a local process, unpacked in the cache."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from freshet.local import debian
from freshet.local.process import ServerProcess, run_tool
from freshet.local.server import LocalServer
from stream.access.certificates import Certificates
from tests.servers.choice import used

VERSION: Final = "17"
PACKAGE, SUITE = f"postgresql-{VERSION}", "trixie"
START_TIMEOUT_S = 60.0
_FAST: Final = ("fsync=off", "full_page_writes=off", "synchronous_commit=off")
_LOGICAL: Final = (
    "wal_level=logical",
    "max_replication_slots=30",
    "max_wal_senders=30",
    "max_prepared_transactions=30",
)


class PostgresServer(LocalServer):
    """One PostgreSQL on 127.0.0.1, user ``postgres`` without a password. ``files``: of TLS."""

    NAME = "postgres"
    PORT_TAKEN = ("could not create any TCP/IP sockets",)

    def __init__(self, data_dir: Path, files: Certificates | None = None) -> None:
        super().__init__(data_dir, None, detached=False)
        self._files = files

    @property
    def url(self) -> str:
        """SQLAlchemy's."""
        return f"postgresql+psycopg://postgres@{self.host}:{self.port}/postgres"

    def _launch(self) -> None:
        root = debian.unpacked(PACKAGE, SUITE)
        programs = _programs(root, self.data_dir / "bin")
        cluster = self.data_dir / "cluster"
        if not cluster.exists():
            share = root / "usr" / "share" / "postgresql" / VERSION
            made = ["-D", str(cluster), "-L", str(share), "-U", "postgres", "--auth=trust", "--no-sync"]
            run_tool("initdb", [*_not_root(), str(programs / "initdb"), *made, "--locale=C", "--encoding=UTF8"])
        settings = [f"listen_addresses={self.host}", f"port={self.port}", f"unix_socket_directories={cluster}", *_FAST]
        settings += _LOGICAL
        if self._files is not None:
            own = self._files.certificate
            settings += ["ssl=on", f"ssl_cert_file={own}", f"ssl_key_file={own}", f"ssl_ca_file={self._files.ca}"]
        options = [part for setting in settings for part in ("-c", setting)]
        self._process = ServerProcess(
            "postgres",
            [*_not_root(), str(programs / "postgres"), "-D", str(cluster), *options],
            log_file=self.data_dir / "postgres.log",
            cwd=self.data_dir,
            detached=self.detached,
        )
        self._await(self._answers, START_TIMEOUT_S)

    def _answers(self) -> bool:
        engine = sa.create_engine(self.url, connect_args={"connect_timeout": 5})
        try:
            with engine.connect() as connection:
                return bool(connection.execute(sa.text("SELECT 1")).scalar())
        except sa.exc.OperationalError:
            return False
        finally:
            engine.dispose()


def _programs(root: Path, directory: Path) -> Path:
    """Scripts that run the tree's programs with the tree's libraries: initdb calls postgres by itself."""
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("initdb", "postgres"):
        loader, *rest = debian.command(root, f"usr/lib/postgresql/{VERSION}/bin/{name}")
        named = ["--argv0", str(directory / name)] if name == "initdb" else []
        script = directory / name
        script.write_text(f'#!/bin/sh\nexec {shlex.join([loader, *named, *rest])} "$@"\n')
        script.chmod(0o755)
    return directory


def _not_root() -> list[str]:
    """PostgreSQL refuses to run as root. In a user namespace root's own files belong to somebody else."""
    if os.geteuid() != 0:
        return []
    return ["unshare", "--user", "--map-user=1000", "--map-group=1000"]


def can_be_had() -> bool:
    """Whether this machine can run one."""
    has_server = debian.is_cached(PACKAGE, SUITE) or debian.is_available()
    return has_server and (os.geteuid() != 0 or shutil.which("unshare") is not None)


@contextmanager
def postgres_url() -> Iterator[str | None]:
    """FRESHET_TEST_POSTGRES (SQLAlchemy's URL of a database), else that of a process; None, if there can be none."""
    if given := os.environ.get("FRESHET_TEST_POSTGRES"):
        used["postgres"] = "given by FRESHET_TEST_POSTGRES"
        yield given
        return
    if not can_be_had():
        used["postgres"] = "NOT RUN: no FRESHET_TEST_POSTGRES, no apt-get to fetch a server with"
        yield None
        return
    used["postgres"] = f"a local process ({PACKAGE} of Debian {SUITE})"
    with (
        tempfile.TemporaryDirectory(prefix="freshet-postgres-") as directory,
        PostgresServer(Path(directory)) as server,
    ):
        yield server.url
