"""A real MySQL server as a local process: Debian unstable's, with the binary log that a source needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from freshet.local import debian
from freshet.local.cache import exclusive
from freshet.local.mariadb import PASSWORD, USER, MariaDBAddress, answers
from freshet.local.process import ServerProcess, run_tool
from freshet.local.server import LocalServer

PACKAGE, SUITE = "mysql-server-core", "sid"
START_TIMEOUT_S = 180.0


class MySQLServer(LocalServer):
    """One MySQL on 127.0.0.1 with GTIDs, a row binlog and full row metadata. A context manager.

    ``durable``: sync at each commit, as in production; without it a commit survives the death of the process but not
    of the machine. ``options``: server options without the leading dashes.
    """

    NAME = "MySQL"
    PORT_TAKEN = ("Address already in use", "Do you already have another mysqld server running on port")

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        server_id: int = 1,
        durable: bool = True,
        password: str = PASSWORD,
        options: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self.server_id = server_id
        self.durable = durable
        self.user = USER
        self.password = password
        self.options = dict(options or {})

    @property
    def address(self) -> MariaDBAddress:
        """The address and account to connect with."""
        return MariaDBAddress(self.host, self.port, self.user, self.password)

    @property
    def log_file(self) -> Path:
        """The server's error log."""
        return self.data_dir / "mysql.log"

    def connect(self, **options: Any) -> Any:
        """A new PyMySQL connection as the administrator."""
        return self.address.connect(**options)

    def _launch(self) -> None:
        root = debian.unpacked(PACKAGE, SUITE)
        data = self.data_dir / "data"
        if not data.exists():
            shutil.copytree(_empty_data_dir(root), self.data_dir / "data.new", dirs_exist_ok=True)
            (self.data_dir / "data.new" / "auto.cnf").unlink(missing_ok=True)  # each server has a UUID of its own
            (self.data_dir / "data.new").rename(data)
        self._process = ServerProcess(
            "MySQL",
            [*debian.command(root, "usr/sbin/mysqld"), *self._arguments(root, data)],
            log_file=self.log_file,
            cwd=self.data_dir,
            detached=self.detached,
        )
        self._process.wait_until(lambda: answers(self.address), START_TIMEOUT_S)

    def _arguments(self, root: Path, data: Path) -> list[str]:
        scratch = self.data_dir / "tmp"
        scratch.mkdir(exist_ok=True)
        init = self.data_dir / "init.sql"
        init.touch(mode=0o600)
        init.write_text(_accounts(self.password))
        options = {
            "basedir": str(root / "usr"),
            "plugin-dir": str(root / "usr" / "lib" / "mysql" / "plugin"),
            "datadir": str(data),
            "port": str(self.port),
            "bind-address": self.host,
            "socket": "mysql.sock",  # relative to the data directory: a socket's path is limited to 107 bytes
            "tmpdir": str(scratch),
            "pid-file": str(self.data_dir / "mysql.pid"),
            "init-file": str(init),
            "secure-file-priv": "NULL",
            "mysqlx": "OFF",
            "skip-name-resolve": "ON",
            "log-bin": "binlog",
            "gtid-mode": "ON",
            "enforce-gtid-consistency": "ON",
            "binlog-row-metadata": "FULL",
            "server-id": str(self.server_id),
            "sync-binlog": "1",
            "innodb-flush-log-at-trx-commit": "1" if self.durable else "2",
            "innodb-buffer-pool-size": "64M",
            "performance-schema-max-memory-classes": "0",
            "performance-schema": "OFF",
            **self.options,
        }
        return ["--no-defaults", *_as_user(), *(f"--{name}={value}" for name, value in options.items())]


def _empty_data_dir(root: Path) -> Path:
    """A data directory with only the system tables, made once and copied for each new server."""
    template = root.with_suffix(".empty-data")
    if not template.is_dir():
        with exclusive(root.with_suffix(".empty-data.lock")):
            if not template.is_dir():
                fresh = root.with_suffix(".empty-data.new")
                shutil.rmtree(fresh, ignore_errors=True)
                start = debian.command(root, "usr/sbin/mysqld")
                places = [f"--basedir={root / 'usr'}", f"--datadir={fresh}"]
                run_tool("mysqld", [*start, "--no-defaults", "--initialize-insecure", *places, *_as_user()])
                fresh.rename(template)
    return template


def _as_user() -> list[str]:
    """The server refuses to run as root unless an option says so."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _accounts(password: str) -> str:
    """SQL that the server runs before it listens, one statement a line: the administrator's accounts."""
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    lines = ["SET SESSION sql_log_bin=0;"]
    for host in ("127.0.0.1", "localhost"):
        lines.append(f"CREATE USER IF NOT EXISTS root@'{host}';")
        lines.append(f"ALTER USER root@'{host}' IDENTIFIED BY '{quoted}';")
        lines.append(f"GRANT ALL PRIVILEGES ON *.* TO root@'{host}' WITH GRANT OPTION;")
    return "\n".join(lines) + "\n"
