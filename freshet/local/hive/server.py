"""One real Hive Metastore as a local process, with the notification log that a source needs."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from freshet.local.hive.home import classpath, init_schema, metastore_home
from freshet.local.hive.site import DerbyDatabase, MetastoreDatabase, write_site
from freshet.local.java import QUICK_START, find_java
from freshet.local.process import ServerProcess
from freshet.local.server import LocalServer

if TYPE_CHECKING:
    from stream.sources.hive.rpc.transport import Access

START_TIMEOUT_S = 180.0


class HiveServer(LocalServer):
    """A metastore on 127.0.0.1. ``start`` returns when it has answered a call.

    Its tables are in Derby in the data directory, or in ``database``, which metastores can share (then with the same
    ``warehouse``). ``settings``: properties on top of those in `freshet.local.hive.site`; ``access``: what they ask of
    clients. ``quick_start``: as in `KafkaServer`. A context manager.
    """

    NAME = "Hive Metastore"
    PORT_TAKEN = ("Address already in use", "Could not create ServerSocket")

    def __init__(
        self,
        data_dir: Path | str,
        *,
        port: int | None = None,
        database: MetastoreDatabase | None = None,
        warehouse: Path | None = None,
        settings: Mapping[str, str] | None = None,
        access: Access | None = None,
        heap: str = "384m",
        detached: bool = False,
        quick_start: bool = True,
    ) -> None:
        super().__init__(data_dir, port, detached=detached)
        self.quick_start = quick_start
        self.database = database or DerbyDatabase(self.data_dir / "derby")
        self.warehouse = warehouse or self.data_dir / "warehouse"
        self.settings = dict(settings or {})
        self.access = access
        self.heap = heap

    @property
    def log_file(self) -> Path:
        """The metastore's log."""
        return self.data_dir / "hive.log"

    def _make_tables(self, home: Path) -> None:
        database = self.database
        if isinstance(database, DerbyDatabase):
            if not database.directory.exists():
                staging = database.directory.with_suffix(".new")
                shutil.copytree(home / "derby.empty", staging, dirs_exist_ok=True)
                staging.rename(database.directory)
        elif not _has_tables(database):
            init_schema(home, self.data_dir / "schema" / "conf", database)

    def _launch(self) -> None:
        home = metastore_home()
        self._make_tables(home)
        conf = self.data_dir / "conf"
        write_site(conf, self.database, self.warehouse, self.settings)
        self._process = ServerProcess(
            self.NAME,
            [
                find_java().path,
                *(QUICK_START if self.quick_start else ()),
                f"-Xmx{self.heap}",
                "-XX:+ExitOnOutOfMemoryError",
                f"-Dderby.stream.error.file={self.data_dir / 'derby.log'}",
                "-cp",
                classpath(home, conf),
                "org.apache.hadoop.hive.metastore.HiveMetaStore",
                "-p",
                str(self.port),
            ],
            log_file=self.log_file,
            cwd=self.data_dir,
            detached=self.detached,
        )
        self._await(lambda: answers(self.host, self.port, access=self.access), START_TIMEOUT_S)


def answers(host: str, port: int, timeout_s: float = 10.0, *, access: Access | None = None) -> bool:
    """Whether a metastore answers a call at ``host:port``. An open port is not enough: its first call takes longest."""
    from stream.sources.hive.rpc.connection import MetastoreConnection, MetastoreError
    from stream.sources.hive.rpc.transport import OPEN
    from stream.sources.hive.structs import ThriftError

    with MetastoreConnection(((host, port),), timeout_s=timeout_s, access=access or OPEN) as connection:
        try:
            connection.call("get_current_notificationEventId", {})
        except (MetastoreError, ThriftError):
            return False
    return True


def _has_tables(database: MetastoreDatabase) -> bool:
    """Whether the metastore's tables are there; makes the database if it is not. ``VERSION`` is filled last."""
    with database.address.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE IF NOT EXISTS `{database.name}` CHARACTER SET latin1")
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema=%s AND table_name='VERSION'",
            (database.name,),
        )
        return bool(cursor.fetchone() == (1,))
