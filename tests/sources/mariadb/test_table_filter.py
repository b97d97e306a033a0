"""A source and a front share the choice of tables: only published tables are read through."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream.sources.mariadb.cascades import foreign_keys
from stream.sources.mariadb.charsets import Charsets
from stream.sources.mariadb.information_schema import tables
from stream.sources.mariadb.schema import TableFilter

names = st.text(st.sampled_from("abAB_*?[]é \t"), min_size=1, max_size=4)
databases = st.one_of(names, st.sampled_from(["mysql", "MySQL", "information_schema", "sys", "shop"]))
patterns = st.one_of(st.builds("{}.{}".format, databases, names), names, st.just("*"), st.just("shop.*"))
filters = st.builds(
    TableFilter,
    st.lists(databases, max_size=2).map(tuple),
    st.lists(patterns, max_size=2).map(tuple),
    st.lists(patterns, max_size=2).map(tuple),
)


@given(filters, databases, names)
def test_a_table_is_read_through_iff_it_is_published(tables: TableFilter, database: str, table: str) -> None:
    """For any choice of tables, the front's question and the source's question have the same answer."""
    assert (f"{database}.{table}" in tables) == tables(database, table)


@given(filters, databases, names, st.sampled_from([".", "\0"]))
def test_an_ambiguous_table_name_is_never_read_through(
    tables: TableFilter, database: str, table: str, separator: str
) -> None:
    """A name with a further dot, a NUL or a missing part is refused, whatever the patterns are."""
    for name in (f"{database}.{table}{separator}{table}", database, f"{database}.", f"{database}{separator}\0"):
        assert name not in tables


@given(names, st.sampled_from(["mysql", "MYSQL", "information_schema", "performance_schema", "sys"]))
def test_no_choice_includes_the_systems_tables(table: str, database: str) -> None:
    """System tables are never included, even if the database or a pattern names them."""
    assert f"{database}.{table}" not in TableFilter((database,), (f"{database}.*",))


def test_every_pattern_of_a_choice_counts() -> None:
    """Each table of a list of patterns is included or left out, not only the first or the last one."""
    published = ["a.x", "a.y", "a.z"]
    assert [name for name in published if name in TableFilter(exclude=("a.x", "a.y"))] == ["a.z"]
    assert [name for name in published if name in TableFilter(include=("a.x", "a.y"))] == ["a.x", "a.y"]


def test_a_table_that_is_included_and_excluded_is_left_out() -> None:
    """An exclusion wins over an inclusion, and both apply within the chosen databases."""
    tables = TableFilter(("a", "b"), ("a.*", "b.x", "c.*"), ("a.x",))
    assert [name for name in ("a.x", "a.y", "b.x", "b.y", "c.x") if name in tables] == ["a.y", "b.x"]


def test_only_the_tables_of_chosen_databases_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """MariaDB opens each table that it tells of: one that is locked, by whomever, would hold the source up."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    def fetch_all(_: object, sql: str, arguments: Sequence[str] = ()) -> list[tuple[str, ...]]:
        asked.append((sql, tuple(arguments)))
        return []

    monkeypatch.setattr(tables, "fetch_whole", fetch_all)
    server: Any = SimpleNamespace(get_server_info=lambda: "11.4.5-MariaDB")
    tables.read_tables(server, Charsets({}, {}), TableFilter(("a", "b")))
    assert len(asked) == 4
    assert [arguments for sql, arguments in asked if "_SCHEMA IN (%s, %s)" in sql] == [("a", "b")] * 4
    asked.clear()
    tables.read_tables(server, Charsets({}, {}), TableFilter())
    assert [arguments for sql, arguments in asked if "_SCHEMA NOT IN ('mysql'" in sql] == [()] * 4


def test_foreign_keys_are_asked_for_as_far_as_they_lead_to_chosen_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chosen table may be below another database's, and that below a third one's. What is below it is not asked."""
    parents = {"a.c": "b.p", "b.p": "c.g", "b.own": "b.p", "x.below": "a.c"}
    asked = []

    def fetch_all(_: object, sql: str, databases: Sequence[str] = ()) -> list[tuple[str, ...]]:
        asked.append(tuple(databases))
        mine = [(each, parents[each]) for each in parents if not databases or each.partition(".")[0] in databases]
        if "KEY_COLUMN_USAGE" in sql:
            return [(*child.split("."), "fk", "p", "id") for child, _ in mine]
        return [(*parent.split("."), *child.split("."), "fk", "CASCADE", "RESTRICT") for child, parent in mine]

    monkeypatch.setattr(foreign_keys, "fetch_whole", fetch_all)
    nobody: Any = None
    found = foreign_keys.read_cascades(nobody, ("a",))
    assert asked == [("a",), ("a",), ("b",), ("b",), ("c",), ("c",)]
    assert {key.child for key in found.keys} == {"a.c", "b.p", "b.own"}
    assert found.on_delete["c.g"] == {"b.p", "b.own", "a.c"}
    assert {key.child for key in foreign_keys.read_cascades(nobody).keys} == parents.keys()
