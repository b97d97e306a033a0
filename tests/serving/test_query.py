"""What a request asks for, by its parameters: what contradicts itself is refused."""

from __future__ import annotations

from typing import Any

import pytest

from serving.errors import ReadError
from serving.http.query import PartitionsParameters, StatisticsParameters, requested_partitions, requested_statistics

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


def test_an_empty_value_names_the_default_partition() -> None:
    """As at a metastore, and in the cache a partition has one name. Of the first values an empty one still is any."""
    default = "__HIVE_DEFAULT_PARTITION__"
    named = requested_partitions(PartitionsParameters(db="sales", table="t", names='[["",""],["a","b"]]'))
    assert named.names == ((default, default), ("a", "b"))
    statistics = requested_statistics(StatisticsParameters(db="sales", table="t", partition='["a",""]'))
    assert statistics.names == (("a", default),)
    assert requested_partitions(PartitionsParameters(db="sales", table="t", values='["","b"]')).prefix == ("", "b")
