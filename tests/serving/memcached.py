"""A real memcached as a local process: Debian unstable's, unpacked in the cache and not installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pymemcache.client.base import Client, PooledClient

from freshet.local import debian
from freshet.local.process import ServerProcess
from freshet.local.server import LocalServer

PACKAGE, SUITE = "memcached", "sid"
START_TIMEOUT_S = 60.0


def can_be_had() -> bool:
    """Whether this machine has one, or can fetch it."""
    return debian.is_cached(PACKAGE, SUITE) or debian.is_available()


class MemcachedServer(LocalServer):
    """One memcached on 127.0.0.1 with the smallest memory it takes."""

    NAME = "memcached"
    PORT_TAKEN = ("failed to listen on TCP port",)

    def __init__(self, data_dir: Path, *options: str) -> None:
        """``options``: more of them for the command."""
        super().__init__(data_dir, None, detached=False)
        self._options = options

    def client(self) -> Any:
        """A client for several threads."""
        return PooledClient((self.host, self.port), timeout=30, connect_timeout=30)

    def _launch(self) -> None:
        root = debian.unpacked(PACKAGE, SUITE)
        options = ["-l", self.host, "-p", str(self.port), "-U", "0", "-m", "16", "-t", "2", "-u", "root"]
        options += self._options
        self._process = ServerProcess(
            "memcached",
            [*debian.command(root, "usr/bin/memcached"), *options],
            log_file=self.data_dir / "memcached.log",
            cwd=self.data_dir,
            detached=self.detached,
        )
        self._await(self._answers, START_TIMEOUT_S)

    def _answers(self) -> bool:
        try:
            return bool(Client((self.host, self.port), timeout=5, connect_timeout=5).version())
        except OSError:
            return False
