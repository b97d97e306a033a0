"""Azure's blob store for tests: FRESHET_TEST_AZURE, else Azurite (npm) as a process, installed in the cache."""

from __future__ import annotations

import base64
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from freshet.local.cache import cache_dir, exclusive
from freshet.local.errors import ArtifactError
from freshet.local.process import ServerProcess
from freshet.local.server import LocalServer
from tests.servers.choice import used

PACKAGE: Final = "azurite@3.37.0"
INSTALL_TIMEOUT_S: Final = 900
START_TIMEOUT_S: Final = 120.0
ACCOUNT: Final = "freshet"
SECRET: Final = base64.b64encode(b"a secret that is never shown").decode()


@dataclass(frozen=True, slots=True)
class AzureAddress:
    """A storage account, as a connection string."""

    connection: str

    @property
    def options(self) -> dict[str, Any]:
        """Of adlfs."""
        return {"connection_string": self.connection}

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it."""
        return {"AZURE_STORAGE_CONNECTION_STRING": self.connection}

    def new_container(self) -> str:
        """Makes a container; its name."""
        import adlfs

        name = f"freshet-{uuid.uuid4().hex[:12]}"
        adlfs.AzureBlobFileSystem(**self.options, skip_instance_cache=True).mkdir(name)
        return name


class AzuriteServer(LocalServer):
    """Azurite's blob service on 127.0.0.1. It keeps everything in memory."""

    NAME = "Azurite"
    PORT_TAKEN = ("EADDRINUSE",)

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, None, detached=False)

    @property
    def address(self) -> AzureAddress:
        """Its one account."""
        endpoint = f"http://{self.host}:{self.port}/{ACCOUNT}"
        parts = ("DefaultEndpointsProtocol=http", f"AccountName={ACCOUNT}", f"AccountKey={SECRET}")
        return AzureAddress(";".join((*parts, f"BlobEndpoint={endpoint}")))

    def _launch(self) -> None:
        options = ("--silent", "--skipApiVersionCheck", "--disableTelemetry", "--inMemoryPersistence")
        self._process = ServerProcess(
            self.NAME,
            [*_azurite(), *options, "--blobHost", self.host, "--blobPort", str(self.port)],
            log_file=self.data_dir / "azurite.log",
            cwd=self.data_dir,
            detached=self.detached,
            env=os.environ | {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{SECRET}"},
        )
        self._await(self._answers, START_TIMEOUT_S)

    def _answers(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), timeout=1).close()
        except OSError:
            return False
        return True


def can_be_had() -> bool:
    """Whether this machine can run one."""
    return shutil.which("node") is not None and (_home().is_dir() or shutil.which("npm") is not None)


def installed() -> Path:
    """Azurite's folder in the cache, filled on first use (1.5 minutes, 360 MB). Raises `ArtifactError`."""
    home = _home()
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(home.with_suffix(".lock")):
            if not home.is_dir():
                staging = home.with_suffix(".partial")
                shutil.rmtree(staging, ignore_errors=True)
                command = ["npm", "install", "--prefix", str(staging), "--ignore-scripts", "--no-audit", "--no-fund"]
                done = subprocess.run(
                    [*command, PACKAGE], capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False
                )
                if done.returncode:
                    raise ArtifactError(f"npm cannot install {PACKAGE}: {done.stderr[-500:]}", hint="check the network")
                staging.rename(home)
    return home


def _home() -> Path:
    return cache_dir() / "servers" / PACKAGE.replace("@", "-").replace(".", "_")


def _azurite() -> list[str]:
    return ["node", str(installed() / "node_modules/azurite/dist/src/blob/main.js")]


@contextmanager
def azure_address() -> Iterator[AzureAddress | None]:
    """FRESHET_TEST_AZURE (a connection string), else a process; None, if there can be none."""
    if given := os.environ.get("FRESHET_TEST_AZURE"):
        used["azure"] = "given by FRESHET_TEST_AZURE"
        yield AzureAddress(given)
        return
    if not can_be_had():
        used["azure"] = "NOT RUN: no FRESHET_TEST_AZURE, no node and npm to fetch Azurite with"
        yield None
        return
    used["azure"] = "local process (Azurite)"
    with tempfile.TemporaryDirectory(prefix="freshet-azure-") as directory, AzuriteServer(Path(directory)) as server:
        yield server.address
