"""What the columns of a key allow to be kept in the overlay. No socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.owner.evidence import FillVerdict
from consumers.owner.protocol import Fill
from consumers.owner.rows import answer_row, fill_row
from tests.consumers.histories import gtid, key, marker, start
from tests.consumers.owning import COLUMNS, KEYSPACE, Owner, schema
from tokens import Demand


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    """A partition without rows."""
    owner = Owner(tmp_path)
    owner.fold(start(), marker(1))
    yield owner
    owner.partition.store.close(commit=False)


@pytest.mark.parametrize(
    ("primary_key", "why"),
    [
        (["id", "name"], "a collation compares key column name: absence can't be kept"),
        (["name", "id"], "a collation compares key column name: absence can't be kept"),
        (["id", "name", "code"], "a collation compares key column name: absence can't be kept"),
        (["id", "gone"], "a collation compares key column gone: absence can't be kept"),
        (["id", "code"], "filled"),
    ],
)
def test_absence_is_kept_only_if_every_column_of_the_key_is_exact(
    owner: Owner, primary_key: list[str], why: str
) -> None:
    """Of a composite key each column counts, not only the first; a value is kept under any key."""
    columns = [*COLUMNS, {"name": "code", "kind": "int", "exact": True}]
    owner.fold(schema(2, columns=columns, primary_key=primary_key), marker(2))

    def fill(image: bytes | None) -> FillVerdict:
        stamp = answer_row(owner.partition, key(7), Demand()).stamp
        return fill_row(owner.partition, Fill(1, KEYSPACE, 0, key(7), image, gtid(5), gtid(5), 0, stamp))

    assert fill(None).why == why
    assert fill(b"{}").accepted
