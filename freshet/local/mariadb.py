"""A real MariaDB 11.4 server as a local process, with the binary log that a source needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from freshet.local.artifacts import unpacked
from freshet.local.cache import exclusive
from freshet.local.process import ServerProcess, run_tool
from freshet.local.server import LocalServer

START_TIMEOUT_S = 180.0
TOOLS = ("bin", "scripts")
USER = "root"
PASSWORD = "freshet"
"""The default for local servers, which listen on 127.0.0.1 only."""


@dataclass(frozen=True, slots=True)
class MariaDBAddress:
    """How to connect to a MariaDB server; the fields are the keyword arguments of ``pymysql.connect``."""

    host: str
    port: int
    user: str
    password: str

    def connect(self, **options: Any) -> Any:
        """A new PyMySQL connection; ``options`` go to ``pymysql.connect`` (database, autocommit, …)."""
        import pymysql

        return pymysql.connect(host=self.host, port=self.port, user=self.user, password=self.password, **options)


class MariaDBServer(LocalServer):
    """One MariaDB on 127.0.0.1 with a row binlog and full row metadata. A context manager.

    ``durable``: sync at each commit, as in production; without it a commit survives the death of the process but not
    of the machine. ``options``: server options without the leading dashes.
    """

    NAME = "MariaDB"
    PORT_TAKEN = ("Address already in use",)

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
        return self.data_dir / "mariadb.log"

    def connect(self, **options: Any) -> Any:
        """A new PyMySQL connection as the administrator."""
        return self.address.connect(**options)

    def _launch(self) -> None:
        base = server_home()
        data = self.data_dir / "data"
        if not data.exists():
            shutil.copytree(_empty_data_dir(base), self.data_dir / "data.new", dirs_exist_ok=True)
            (self.data_dir / "data.new").rename(data)
        self._process = ServerProcess(
            "MariaDB",
            [str(base / "bin" / "mariadbd"), *self._arguments(base, data)],
            log_file=self.log_file,
            env=_environment(base),
            cwd=self.data_dir,
            detached=self.detached,
        )
        self._process.wait_until(lambda: answers(self.address), START_TIMEOUT_S)

    def _arguments(self, base: Path, data: Path) -> list[str]:
        scratch = self.data_dir / "tmp"  # not the system's: a starting server deletes temporary files of others there
        scratch.mkdir(exist_ok=True)
        init = self.data_dir / "init.sql"
        init.touch(mode=0o600)
        init.write_text(_accounts(self.password))
        options = {
            "basedir": str(base),
            "datadir": str(data),
            "port": str(self.port),
            "bind-address": self.host,
            "socket": "mariadb.sock",  # relative to the data directory: a socket's path is limited to 107 bytes
            "tmpdir": str(scratch),
            "pid-file": str(self.data_dir / "mariadb.pid"),
            "init-file": str(init),
            "skip-name-resolve": "ON",
            "ssl": "OFF",  # else 11.4 generates an RSA key at each start: up to 10 s
            "character-set-server": "utf8mb4",
            "log-bin": "binlog",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "binlog-row-metadata": "FULL",
            "server-id": str(self.server_id),
            "gtid-domain-id": str(self.gtid_domain_id),
            "sync-binlog": "1",
            "debug-no-sync": "0" if self.durable else "1",
            "gtid-strict-mode": "1",
            "innodb-flush-log-at-trx-commit": "1" if self.durable else "2",
            **self.options,
        }
        return ["--no-defaults", *_as_user(), *(f"--{name}={value}" for name, value in options.items())]


def server_home() -> Path:
    """The server's base directory in the cache, downloaded and unpacked on first use."""
    root = unpacked("mariadb")
    [daemon] = root.glob("**/bin/mariadbd")
    base = daemon.parent.parent
    if not os.access(daemon, os.X_OK):  # Python's zipfile does not restore file modes
        for directory in TOOLS:
            for tool in (base / directory).iterdir():
                tool.chmod(0o755)
    return base


def client_command(address: MariaDBAddress, database: str) -> tuple[list[str], dict[str, str]]:
    """The bundled ``mariadb`` client on a server: arguments and environment. The password is in the environment."""
    base = server_home()
    to = [f"--host={address.host}", f"--port={address.port}", f"--user={address.user}", "--protocol=tcp"]
    environment = {**_environment(base), "MYSQL_PWD": address.password}
    return [str(base / "bin" / "mariadb"), "--no-defaults", *to, "--skip-ssl", database], environment


def answers(address: MariaDBAddress) -> bool:
    """Whether a MariaDB answers a query at ``address``."""
    import pymysql

    try:
        with address.connect(connect_timeout=2, read_timeout=2) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 1")
            return bool(cursor.fetchone() == (1,))
    except (pymysql.MySQLError, OSError):
        return False


def _empty_data_dir(base: Path) -> Path:
    """A data directory with only the system tables, made once and copied for each new server."""
    template = base.parent / "empty-data"
    if not template.is_dir():
        with exclusive(base.parent / "empty-data.lock"):
            if not template.is_dir():
                fresh = base.parent / "empty-data.new"
                shutil.rmtree(fresh, ignore_errors=True)
                run_tool(
                    "mariadb-install-db",
                    [
                        str(base / "scripts" / "mariadb-install-db"),
                        "--no-defaults",
                        f"--basedir={base}",
                        f"--datadir={fresh}",
                        *_as_user(),
                        "--auth-root-authentication-method=normal",
                        "--skip-test-db",
                    ],
                    env=_environment(base),
                    cwd=base,
                )
                fresh.rename(template)
    return template


def _as_user() -> list[str]:
    """The server refuses to run as root unless an option says so."""
    return ["--user=root"] if os.geteuid() == 0 else []


def _environment(base: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(base / "libs")}


def _accounts(password: str) -> str:
    """SQL that the server runs before it listens: the administrator's accounts, kept out of the binary log."""
    quoted = password.replace("\\", "\\\\").replace("'", "\\'")
    lines = ["SET SESSION sql_log_bin=0;"]
    for host in ("127.0.0.1", "localhost"):
        lines.append(f"CREATE USER IF NOT EXISTS root@'{host}';")
        lines.append(f"ALTER USER root@'{host}' IDENTIFIED BY '{quoted}';")
        lines.append(f"GRANT ALL PRIVILEGES ON *.* TO root@'{host}' WITH GRANT OPTION;")
    lines.append("DELETE FROM mysql.global_priv WHERE User='' OR Host NOT IN ('127.0.0.1', 'localhost');")
    lines.append("FLUSH PRIVILEGES;")
    return "\n".join(lines) + "\n"
