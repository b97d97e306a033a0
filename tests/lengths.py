"""How long random tests are: a share of their length in `make test`, all of it in `make soak`."""

from __future__ import annotations

import os
from typing import Final

LONG: Final = bool(os.environ.get("FRESHET_TEST_LONG"))
"""Whether such tests run in their whole length. `make soak` sets it, and runs those with the marker `long`."""


def length(share: int, whole: int) -> int:
    """How much a test does: ``share``, or ``whole`` if that is wanted. Such a test has the marker `long`."""
    return whole if LONG else share
