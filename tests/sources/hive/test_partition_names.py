"""Names of partitions are those that a metastore gives, and tell their values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.sources.hive.partition_names import DEFAULT, partition_name, told_by, values_of


@pytest.mark.parametrize(
    ("values", "name"),
    [
        (("2024-01-01", "7"), "ds=2024-01-01/hr=7"),
        (("b/c", "x=y"), "ds=b%2Fc/hr=x%3Dy"),
        (("100%", "%E4"), "ds=100%25/hr=%25E4"),
        (("{[^]}", "tab\t"), "ds=%7B%5B%5E%5D}/hr=tab%09"),
        (("it's", 'q"'), "ds=it%27s/hr=q%22"),
        (("é*:?", "日本"), "ds=é%2A%3A%3F/hr=日本"),
        (("back\\slash", "a b"), "ds=back%5Cslash/hr=a b"),
        (("x", ""), f"ds=x/hr={DEFAULT}"),
    ],
)
def test_names_are_written_as_hive_does(values: tuple[str, str], name: str) -> None:
    """Seen on a real metastore; an empty value has a name of its own."""
    assert partition_name(["DS", "hr"], values) == name
    assert values_of(name) == told_by(values) == tuple(value or DEFAULT for value in values)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=3))
def test_values_survive_their_name(values: list[str]) -> None:
    """Whatever they hold."""
    assert values_of(partition_name([f"k{number}" for number in range(len(values))], values)) == tuple(values)
