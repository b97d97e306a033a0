"""What every test of an owner gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.consumers.histories import marker, start, value
from tests.consumers.owner.test_owner_objects import Catalog
from tests.consumers.owning import Owner, schema


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    """A partition with one row (ordinal 3) and a watermark at 3."""
    owner = Owner(tmp_path)
    owner.fold(start(), marker(1), schema(2), value(1, b'{"id":1}', 3), marker(3))
    return owner


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog in one partition."""
    found = Catalog(tmp_path)
    yield found
    found.partition.store.close()
