"""HDFS for tests, by WebHDFS: FRESHET_TEST_HDFS, else Hadoop's own small cluster (one name node, one data node)."""

from __future__ import annotations

import getpass
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from freshet.local import artifacts
from freshet.local.java import QUICK_START, find_java
from freshet.local.process import ServerProcess
from freshet.local.server import LocalServer
from tests.servers.choice import used

START_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class HdfsAddress:
    """Where WebHDFS answers, and as whom."""

    host: str
    port: int
    user: str

    @property
    def options(self) -> dict[str, Any]:
        """Of fsspec's ``webhdfs``."""
        return {"host": self.host, "port": self.port, "user": self.user}


class HdfsServer(LocalServer):
    """Name node and data node in one process on 127.0.0.1. It begins empty at each start."""

    NAME = "HDFS"
    PORTS = 2  # of WebHDFS, and the name node's own
    PORT_TAKEN = ("Address already in use",)

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, None, detached=False)

    @property
    def address(self) -> HdfsAddress:
        """Its own user may do everything."""
        return HdfsAddress(self.host, self.port, getpass.getuser())

    def _launch(self) -> None:
        told = self.data_dir / "details.json"  # it is written when both nodes answer
        told.unlink(missing_ok=True)
        command = [
            *(find_java().path, *QUICK_START, "-Xmx384m", "--add-opens", "java.base/java.lang=ALL-UNNAMED"),
            *("-cp", ":".join(map(str, artifacts.jars("hdfs"))), "org.apache.hadoop.test.MiniDFSClusterManager"),
            *("-format", "-datanodes", "1", "-httpport", str(self._ports[0]), "-nnport", str(self._ports[1])),
            *("-D", f"hdfs.minidfs.basedir={self.data_dir / 'nodes'}", "-writeDetails", str(told)),
        ]
        log = self.data_dir / "hdfs.log"
        self._process = ServerProcess(self.NAME, command, log_file=log, cwd=self.data_dir, detached=self.detached)
        self._process.wait_until(told.exists, START_TIMEOUT_S)


@contextmanager
def hdfs_address() -> Iterator[HdfsAddress]:
    """FRESHET_TEST_HDFS (``http://user@host:port`` of WebHDFS), else a process."""
    if given := os.environ.get("FRESHET_TEST_HDFS"):
        url = urlparse(given)
        used["hdfs"] = "given by FRESHET_TEST_HDFS"
        yield HdfsAddress(url.hostname or "127.0.0.1", url.port or 9870, url.username or getpass.getuser())
        return
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="freshet-hdfs-") as directory, HdfsServer(Path(directory)) as server:
        used["hdfs"] = f"local process (Hadoop's MiniDFSCluster, {time.monotonic() - began:.0f} s to start)"
        yield server.address
