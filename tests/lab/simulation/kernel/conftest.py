"""The kernel that the tests run on."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from lab.simulation.kernel.scheduler import Kernel


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    """A kernel of seed 1."""
    made = Kernel(Random(1))
    yield made
    made.close()
    assert made.errors == []
