"""What a request asks for, by its parameters: what contradicts itself is refused."""

from __future__ import annotations

from typing import Any

import pytest

from serving.errors import ReadError
from serving.http.query import PartitionsParameters, requested_partitions

NAMES = '[["2024-01-01"],["2024-01-02"]]'


@pytest.mark.parametrize(
    "more", [{"filter": "ds = '2024-01-01'"}, {"filter": "ds ="}, {"values": '["2024-01-01"]'}], ids=str
)
def test_partitions_are_chosen_by_name_or_otherwise(more: dict[str, Any]) -> None:
    """By both, the cache would give all those of the names, and the source those of them that pass."""
    with pytest.raises(ReadError) as refused:
        requested_partitions(PartitionsParameters(db="sales", table="t", names=NAMES, **more))
    assert (refused.value.code, "names" in str(refused.value)) == ("bad_parameter", True)


def test_what_is_empty_chooses_nothing() -> None:
    """So beside it the others count, as if it were not there."""
    named = requested_partitions(PartitionsParameters(db="sales", table="t", names=NAMES, filter="", values="[]"))
    assert (named.names, named.prefix, named.filter) == ((("2024-01-01",), ("2024-01-02",)), (), "")
    others = requested_partitions(
        PartitionsParameters(db="sales", table="t", names="[]", filter="hr = 1", values='["2024-01-01"]')
    )
    assert (others.names, others.prefix, others.filter) == ((), ("2024-01-01",), "hr = 1")
