"""An S3-compatible server for tests: FRESHET_TEST_S3, else moto's server as a process (PyPI ``moto``)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlparse

from tests.patience import PATIENCE_S
from tests.servers.choice import used


@dataclass(frozen=True, slots=True)
class S3Address:
    """An S3 endpoint with a key and its secret."""

    endpoint: str
    key: str
    secret: str

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to use it, as every client of AWS takes it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def new_bucket(self) -> str:
        """Makes a bucket; its name."""
        import s3fs

        name = f"freshet-{uuid.uuid4().hex[:12]}"
        files = s3fs.S3FileSystem(key=self.key, secret=self.secret, client_kwargs={"endpoint_url": self.endpoint})
        files.mkdir(name)
        return name


@contextmanager
def s3_address() -> Iterator[S3Address]:
    """FRESHET_TEST_S3 (``http://key:secret@host:port``), else a process."""
    if given := os.environ.get("FRESHET_TEST_S3"):
        url = urlparse(given)
        used["s3"] = "given by FRESHET_TEST_S3"
        host = f"{url.hostname}:{url.port}" if url.port else str(url.hostname)
        yield S3Address(f"{url.scheme}://{host}", unquote(url.username or ""), unquote(url.password or ""))
        return
    used["s3"] = "local process (moto's server)"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = S3Address(f"http://127.0.0.1:{port}", "AKIATESTKEY", "a-secret-that-is-never-shown")
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not _answers(address.endpoint):
            assert process.poll() is None, "the S3 server has ended"
            assert time.monotonic() < deadline, "the S3 server does not answer"
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def _answers(endpoint: str) -> bool:
    try:
        with urllib.request.urlopen(endpoint, timeout=1):
            return True
    except OSError:
        return False
