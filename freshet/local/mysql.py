"""A real MySQL server as a local process: Debian unstable's, with the binary log that a source needs."""

from __future__ import annotations

from pathlib import Path

from freshet.local import debian
from freshet.local.cache import made_once
from freshet.local.database import DatabaseServer, as_user
from freshet.local.process import run_tool

PACKAGE, SUITE = "mysql-server-core", "sid"


class MySQLServer(DatabaseServer):
    """One MySQL with GTIDs; options as in `DatabaseServer`."""

    NAME = "MySQL"
    PORT_TAKEN = ("Address already in use", "Do you already have another mysqld server running on port")

    def _program(self) -> list[str]:
        return debian.command(debian.unpacked(PACKAGE, SUITE), "usr/sbin/mysqld")

    def _empty_data(self) -> Path:
        root = debian.unpacked(PACKAGE, SUITE)

        def make(directory: Path) -> None:
            places = [f"--basedir={root / 'usr'}", f"--datadir={directory}"]
            run_tool("mysqld", [*self._program(), "--no-defaults", "--initialize-insecure", *places, *as_user()])

        return made_once(root.with_suffix(".empty-data"), make)

    def _own_options(self) -> dict[str, str]:
        root = debian.unpacked(PACKAGE, SUITE)
        return {
            "basedir": str(root / "usr"),
            "plugin-dir": str(root / "usr" / "lib" / "mysql" / "plugin"),
            "secure-file-priv": "NULL",
            "mysqlx": "OFF",
            "gtid-mode": "ON",
            "enforce-gtid-consistency": "ON",
            "innodb-buffer-pool-size": "64M",
            "performance-schema-max-memory-classes": "0",
            "performance-schema": "OFF",
        }
