"""The version before this one, out of the history of this checkout: what a rolling upgrade begins with."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

KEPT: Final = "fa9e2ccaa180"
"""The last commit of the fold version before this one, so that an upgrade makes the stores anew: the newest whose
stores are kept in tests/data_at_rest. Once there are releases, the last one's tag."""
_FIRST: Final = """
import msgspec
from stream.kafka import locations
msgspec.json.Decoder(locations._Written)
"""
"""Runs before all else of that version, whose threads may end the process otherwise (`tests.test_decoders`)."""
PACKAGES: Final = ("consumers", "freshet", "lab", "schemas", "serving", "spark_jobs", "stream", "tokens")


def kept_version(directory: Path) -> Path | None:
    """Its code in ``directory``, for PYTHONPATH; None if this is no checkout with its history."""
    root = Path(__file__).parents[2]
    try:
        taken = subprocess.run(["git", "-C", str(root), "archive", KEPT, *PACKAGES], capture_output=True, check=False)
    except OSError:
        return None
    if taken.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(taken.stdout)) as archive:
        archive.extractall(directory, filter="data")
    (directory / "sitecustomize.py").write_text(_FIRST)
    return directory
