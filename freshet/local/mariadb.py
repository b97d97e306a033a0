"""A real MariaDB 11.4 server as a local process, with the binary log that a source needs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from freshet.local.artifacts import unpacked
from freshet.local.cache import made_once
from freshet.local.database import PASSWORD, USER, DatabaseServer, MariaDBAddress, as_user
from freshet.local.errors import LocalServerError
from freshet.local.process import run_tool

__all__ = ["PASSWORD", "USER", "MariaDBAddress", "MariaDBServer", "client_command", "server_home"]

TOOLS = ("bin", "scripts")
MACHINES: Final = ("x86_64", "AMD64")
"""For which it is built, as Python names them."""
HINT_MACHINE: Final = "use a server of your own (docs/start/own-mariadb.md), or a machine or container of x86-64"


class MariaDBServer(DatabaseServer):
    """One MariaDB; options as in `DatabaseServer`."""

    NAME = "MariaDB"
    PORT_TAKEN = ("Address already in use",)

    def _program(self) -> list[str]:
        return [str(server_home() / "bin" / "mariadbd")]

    def _environment(self) -> Mapping[str, str]:
        return _environment(server_home())

    def _empty_data(self) -> Path:
        base = server_home()

        def make(directory: Path) -> None:
            # The script splits a path at its spaces, its own too: from the base there are none.
            tool = ["scripts/mariadb-install-db", "--no-defaults", *as_user()]
            places = ["--basedir=.", f"--datadir={os.path.relpath(directory, base)}"]
            less = ["--auth-root-authentication-method=normal", "--skip-test-db"]
            run_tool("mariadb-install-db", [*tool, *places, *less], env=_environment(base), cwd=base)

        return made_once(base.parent / "empty-data", make)

    def _own_options(self) -> dict[str, str]:
        return {
            "basedir": str(server_home()),
            "ssl": "OFF",  # else 11.4 generates an RSA key at each start: up to 10 s
            "character-set-server": "utf8mb4",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "gtid-domain-id": str(self.gtid_domain_id),
            "debug-no-sync": "0" if self.durable else "1",
            "gtid-strict-mode": "1",
        }

    def _accounts(self) -> list[str]:
        others = "DELETE FROM mysql.global_priv WHERE User='' OR Host NOT IN ('127.0.0.1', 'localhost');"
        return [*super()._accounts(), others, "FLUSH PRIVILEGES;"]


def runs_here() -> bool:
    """Whether it is built for this machine."""
    return platform.machine() in MACHINES


def server_home() -> Path:
    """The server's base directory in the cache, downloaded and unpacked on first use. Raises `LocalServerError`."""
    if not runs_here():
        raise LocalServerError(
            f"the local MariaDB is built for x86-64, and this machine is {platform.machine()}", hint=HINT_MACHINE
        )
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


def _environment(base: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(base / "libs")}
