"""What the local MariaDB and the local MySQL have in common: account, data directory, binary log, error log."""

from __future__ import annotations

import os
import shutil
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freshet.local.process import ServerProcess
from freshet.local.server import LocalServer

START_TIMEOUT_S = 180.0
USER = "root"
PASSWORD = "freshet"
"""The default for local servers, which listen on 127.0.0.1 only."""


@dataclass(frozen=True, slots=True)
class MariaDBAddress:
    """How to connect to a MariaDB or MySQL; the fields are the keyword arguments of ``pymysql.connect``."""

    host: str
    port: int
    user: str
    password: str

    def connect(self, **options: Any) -> Any:
        """A new PyMySQL connection; ``options`` go to ``pymysql.connect`` (database, autocommit, …)."""
        import pymysql

        return pymysql.connect(host=self.host, port=self.port, user=self.user, password=self.password, **options)


class DatabaseServer(LocalServer):
    """One server on 127.0.0.1 with a row binlog and full row metadata. A context manager.

    ``durable``: sync at each commit, as in production; without it a commit survives the death of the process but not
    of the machine. ``options``: server options without the leading dashes. ``gtid_domain_id``: MySQL has none.
    """

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        server_id: int = 1,
        gtid_domain_id: int = 0,
        durable: bool = True,
        password: str = PASSWORD,
        options: Mapping[str, str] | None = None,
        detached: bool = False,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self.server_id = server_id
        self.gtid_domain_id = gtid_domain_id
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
        return self.data_dir / f"{self.NAME.lower()}.log"

    def connect(self, **options: Any) -> Any:
        """A new PyMySQL connection as the administrator."""
        return self.address.connect(**options)

    @abstractmethod
    def _program(self) -> list[str]:
        """The server's program, and what it is started with."""

    @abstractmethod
    def _empty_data(self) -> Path:
        """A data directory with only the system tables; it is copied for each new server."""

    @abstractmethod
    def _own_options(self) -> dict[str, str]:
        """The options that only this kind of server has, or has otherwise."""

    def _environment(self) -> Mapping[str, str] | None:
        """The environment to run in; None: this process's."""
        return None

    def _accounts(self) -> list[str]:
        """SQL that the server runs before it listens, one statement a line: the administrator's accounts."""
        quoted = self.password.replace("\\", "\\\\").replace("'", "\\'")
        lines = ["SET SESSION sql_log_bin=0;"]
        for host in ("127.0.0.1", "localhost"):
            lines.append(f"CREATE USER IF NOT EXISTS root@'{host}';")
            lines.append(f"ALTER USER root@'{host}' IDENTIFIED BY '{quoted}';")
            lines.append(f"GRANT ALL PRIVILEGES ON *.* TO root@'{host}' WITH GRANT OPTION;")
        return lines

    def _launch(self) -> None:
        data = self.data_dir / "data"
        if not data.exists():
            staging = self.data_dir / "data.new"
            shutil.copytree(self._empty_data(), staging, dirs_exist_ok=True)
            (staging / "auto.cnf").unlink(missing_ok=True)  # MySQL's UUID: each server has its own
            staging.rename(data)
        self._process = ServerProcess(
            self.NAME,
            [*self._program(), *self._arguments(data)],
            log_file=self.log_file,
            env=self._environment(),
            cwd=self.data_dir,
            detached=self.detached,
        )
        self._await(lambda: answers(self.address), START_TIMEOUT_S)

    def _arguments(self, data: Path) -> list[str]:
        scratch = self.data_dir / "tmp"  # not the system's: a starting server deletes temporary files of others there
        scratch.mkdir(exist_ok=True)
        init = self.data_dir / "init.sql"
        init.touch(mode=0o600)
        init.write_text("".join(f"{line}\n" for line in self._accounts()))
        name = self.NAME.lower()
        options = {
            "datadir": str(data),
            "port": str(self.port),
            "bind-address": self.host,
            "socket": f"{name}.sock",  # relative to the data directory: a socket's path is limited to 107 bytes
            "tmpdir": str(scratch),
            "pid-file": str(self.data_dir / f"{name}.pid"),
            "init-file": str(init),
            "skip-name-resolve": "ON",
            "log-bin": "binlog",
            "binlog-row-metadata": "FULL",
            "server-id": str(self.server_id),
            "sync-binlog": "1",
            "innodb-flush-log-at-trx-commit": "1",
            **({} if self.durable else {"innodb-flush-method": "nosync"}),
            **self._own_options(),
            **self.options,
        }
        return ["--no-defaults", *as_user(), *(f"--{name}={value}" for name, value in options.items())]


def answers(address: MariaDBAddress) -> bool:
    """Whether a MariaDB or MySQL answers a query at ``address``."""
    import pymysql

    try:
        with address.connect(connect_timeout=2, read_timeout=2) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return bool(cursor.fetchone() == (1,))
    except (pymysql.MySQLError, OSError):
        return False


def as_user() -> list[str]:
    """The option without which these servers refuse to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []
