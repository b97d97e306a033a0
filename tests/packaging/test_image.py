"""The image: each step of ``docker/Dockerfile`` is run by buildah, without a Docker engine, and its commands are tried.

In `make soak` only: it installs an operating system and all packages. The base is FRESHET_TEST_BASE_IMAGE, else a
Debian that debootstrap makes. Where there are no such tools, or nobody who may use them, the summary says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.lengths import LONG
from tests.servers.choice import used

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = ("buildah", "debootstrap")
SUITE: Final = "bookworm"
"""Debian 12, as the base image that the Dockerfile names."""
NEEDED: Final = "python3,python3-venv,ca-certificates"
MEGABYTES_MAX: Final = 800
"""Of the application without Spark, Debian included: Spark alone is as much again."""
STEP_S: Final = 850
CERTIFICATES: Final = "/etc/ssl/certs"


class Images:
    """A store of images of its own, so that nothing is left on the machine."""

    def __init__(self, directory: Path) -> None:
        places = ["--root", str(directory / "storage"), "--runroot", str(directory / "run")]
        self._buildah = ["buildah", *places, "--storage-driver", "vfs"]

    def run(self, *arguments: str) -> str:
        """What a command of buildah's prints."""
        done = subprocess.run(
            [*self._buildah, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=STEP_S, check=False
        )
        assert done.returncode == 0, (arguments, done.stdout[-3_000:], done.stderr[-3_000:])
        return done.stdout

    def base(self, directory: Path) -> str:
        """The image that others begin with."""
        if given := os.environ.get("FRESHET_TEST_BASE_IMAGE"):
            return given
        debian = directory / "debian"
        command = ["debootstrap", "--variant=minbase", f"--include={NEEDED}", SUITE, str(debian)]
        subprocess.run(command, check=True, capture_output=True, timeout=STEP_S)
        container = self.run("from", "scratch").strip()
        self.run("copy", "--quiet", container, str(debian), "/")
        self.run("commit", "--quiet", "--rm", container, "localhost/base")
        shutil.rmtree(debian)
        return "localhost/base"


def lacking() -> str:
    """Why no image can be built here; "" if one can."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} here"
    return "" if os.geteuid() == 0 else "chroot is for root"


@pytest.fixture
def container(tmp_path: Path) -> Iterator[tuple[Images, str]]:
    """A container of the application's image."""
    if not LONG:
        pytest.skip("make soak builds the image")
    if reason := lacking():
        used["image"] = f"NOT BUILT: {reason}"
        pytest.skip(used["image"])
    with tempfile.TemporaryDirectory(prefix="freshet-image-", dir=tmp_path) as scratch:
        images = Images(Path(scratch))
        base = images.base(Path(scratch))
        passed = [f"--build-arg={name}" for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX") if name in os.environ]
        images.run(
            *("build", "--quiet", "--isolation=chroot", "--layers=false", f"--build-arg=BASE_IMAGE={base}", *passed),
            *(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro", "--target=application", "--tag=localhost/freshet"),
            *("--file=docker/Dockerfile", "."),
        )
        yield images, images.run("from", "localhost/freshet").strip()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(3 * STEP_S)
def test_the_image_is_built_and_its_commands_run(container: tuple[Images, str]) -> None:
    """As a user that is not root, without tools and without Spark; each service of the compose file has its command."""
    images, name = container

    def inside(*command: str) -> str:
        return images.run("run", "--isolation=chroot", name, "--", *command)

    assert inside("id", "-u").strip() == "10001"
    for command in ("source mariadb", "consume", "serve", "node", "lag"):
        assert "Usage: freshet" in inside("freshet", *command.split(), "--help")
    config = json.loads(images.run("inspect", "--type=image", "localhost/freshet"))["OCIv1"]["config"]
    assert (config["Entrypoint"], config["User"]) == (["freshet"], "freshet")
    absent = inside("python3", "-c", "import importlib.util as u; print(u.find_spec('pyspark'), u.find_spec('pytest'))")
    assert absent.split() == ["None", "None"]
    size = images.run("run", "--isolation=chroot", "--user=0", name, "--", "du", "-smx", "/")
    megabytes = int(size.split()[0])
    used["image"] = f"built by buildah, {megabytes} MB unpacked"
    assert megabytes < MEGABYTES_MAX
