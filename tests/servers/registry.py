"""A schema registry for tests: FRESHET_TEST_REGISTRY, else Apicurio Registry as a local process, in memory."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx2

from freshet.local.artifacts import prepared
from freshet.local.java import QUICK_START, find_java
from freshet.local.process import ServerProcess
from freshet.local.server import LocalServer
from tests.servers.choice import used
from tokens.errors import FreshetError

START_TIMEOUT_S: Final = 300.0
ARTIFACT: Final = "apicurio-registry-app"


class RegistryServer(LocalServer):
    """One Apicurio Registry on 127.0.0.1, which forgets all when it ends."""

    NAME = "registry"
    PORT_TAKEN = ("Port(s) already bound", "Address already in use")

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, None, detached=False)

    @property
    def url(self) -> str:
        """Where Confluent's interface is."""
        return f"http://{self.host}:{self.port}/apis/ccompat/v7"

    def _launch(self) -> None:
        home = prepared("registry", _unpack)
        [jar] = home.glob(f"{ARTIFACT}-*-runner.jar")
        environment = {"QUARKUS_HTTP_HOST": self.host, "QUARKUS_HTTP_PORT": str(self.port)}
        self._process = ServerProcess(
            "registry",
            [find_java().path, *QUICK_START, "-Xmx400m", "-jar", str(jar)],
            log_file=self.data_dir / "registry.log",
            cwd=self.data_dir,
            env=os.environ | environment,
            detached=self.detached,
        )
        self._process.wait_until(self._answers, START_TIMEOUT_S)

    def _answers(self) -> bool:
        try:
            return httpx2.get(f"{self.url}/subjects", timeout=10).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False


def _unpack(files: dict[str, Path], home: Path) -> None:
    with tarfile.open(files[ARTIFACT]) as archive:
        archive.extractall(home, filter="data")


@contextmanager
def registry_url() -> Iterator[str | None]:
    """FRESHET_TEST_REGISTRY (the root of Confluent's interface), else that of a process; None if it can't be had."""
    if given := os.environ.get("FRESHET_TEST_REGISTRY"):
        used["registry"] = "given by FRESHET_TEST_REGISTRY"
        yield given
        return
    try:
        prepared("registry", _unpack)
    except FreshetError as error:
        used["registry"] = f"NOT RUN: no FRESHET_TEST_REGISTRY, and none can be fetched ({error})"
        yield None
        return
    used["registry"] = "a local process (Apicurio Registry)"
    with (
        tempfile.TemporaryDirectory(prefix="freshet-registry-") as directory,
        RegistryServer(Path(directory)) as server,
    ):
        yield server.url
