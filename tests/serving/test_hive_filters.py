"""Filters of partitions: the cache selects what a real metastore selects."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from random import Random

import pytest

from consumers.owner.objects.filter import DEFAULT_PARTITION, FilterError, PartitionKey, parse_filter
from stream.sources.hive.rpc.connection import MetastoreRefused
from stream.sources.hive.rpc.thrift import field, record, text, texts
from stream.sources.hive.structs import I16, LIST, STRUCT, ListValue
from tests.lengths import length
from tests.servers.hive_catalog import HiveCatalog, mapping

Values = tuple[str, ...]
KEYS = [
    PartitionKey("ds", "string"),
    PartitionKey("hr", "int"),
    PartitionKey("day", "date"),
    PartitionKey("at", "timestamp"),
]
ROWS: list[Values] = [
    ("2024-01-01", "1", "2024-01-01", "2024-01-01 00:00:00"),
    ("2024-01-02", "2", "2024-01-02", "2024-01-01 12:30:00"),
    ("2024-01-02", "10", "2024-02-01", "2023-05-05 01:02:03"),
    ("a_b", "-3", "2023-12-31", "2024-01-01 00:00:00"),
    ("acb", "7", "1999-05-05", "__HIVE_DEFAULT_PARTITION__"),
    ("A", "10", "2024-02-29", "2023-05-05 01:02:03"),
    ("a%b", "2147483647", "2024-03-01", "2024-01-01 00:00:00"),
    ("é", "5", "2024-01-15", "2024-01-01 12:30:00"),
    ("it's", "6", "2024-01-16", "2023-05-05 01:02:03"),
    (r"a\b", "9", "2024-01-17", "2023-05-05 01:02:03"),
    (
        "__HIVE_DEFAULT_PARTITION__",
        "__HIVE_DEFAULT_PARTITION__",
        "__HIVE_DEFAULT_PARTITION__",
        "__HIVE_DEFAULT_PARTITION__",
    ),
]
UNTIDY: list[Values] = [
    ("x", "08", "2023-5-5", "2023-05-05 01:02:03"),
    ("y", "11", "2023-06-06 00:00:00", "2023-05-05 01:02:03"),
]
"""Values as Hive itself does not write them."""
STORED = ROWS + UNTIDY
FILTERS = [
    "ds = '2024-01-02'",
    "ds >= '2024-01-02'",
    "ds < 'a'",
    "ds > 'A'",
    "DS = 'A'",
    "ds = 'a'",
    "ds <> '2024-01-02'",
    "ds != 'A'",
    "ds = 'é'",
    'ds = "it\'s"',
    "(ds) in ('A', 'é', 'nope')",
    "(ds) not in ('A', 'é')",
    "ds like 'a%'",
    "ds like 'a_b'",
    r"ds like 'a\_b'",
    r"ds like 'a\%b'",
    r"ds like 'a\\b'",
    "ds like '%02'",
    "ds between '2024' and '2025'",
    "ds not between '2024' and '2025'",
    "hr = 10",
    "hr = 7",
    "hr > 2",
    "hr >= 2 and hr < 100",
    "hr < 0",
    "hr != 10",
    "hr <> 10",
    "2 < hr",
    "(hr) in (1, 2, 10)",
    "(hr) not in (1, 2, 10)",
    "hr between 2 and 10",
    "hr not between 2 and 10",
    "hr = -3",
    "day = '2024-01-02'",
    "day > '2024-01-31'",
    "day >= date '2024-02-01' and day < date '2024-03-01'",
    "day between '2024-01-01' and '2024-01-31'",
    "(day) in ('2024-01-01', '2024-02-29')",
    "(day) not in ('2024-01-01', '2024-02-29')",
    "day != '2024-01-01'",
    "day not between '2024-01-01' and '2024-01-31'",
    "(struct(ds, hr)) in (const struct('A', 10), const struct('2024-01-01', 1))",
    "(struct(ds, hr)) not in (const struct('A', 10), const struct('2024-01-01', 1))",
    "hr > 6 and hr < 8",
    "ds >= '__H'",
    "ds = 'A' and hr = 10 and day = '2024-02-29'",
    "day like '2024%'",
    "day = 2024-01-02",
    "ds = '2024-01-02' and (hr = 2 or hr = 3)",
    "ds = 'A' or hr = 1 and day = '2024-01-02'",
    "(ds = 'A' or hr = 1) and day = '2024-01-01'",
    "ds = '__HIVE_DEFAULT_PARTITION__'",
    "hr < '__HIVE_DEFAULT_PARTITION__'",
    "at > timestamp '2024-01-01 00:00:00'",
    "at >= '2024-01'",
    "at = '2024-01-01'",
    "at <> 2024-01-01 12:30:00",
    "(at) not in ('2024-01-01 00:00:00')",
    "at between '2023' and '2024-01-01 12'",
    "at >= '2024' and day > '2000-01-01'",
    "day >= '2023-05-05' and day < '2023-07-01'",
    "day = '2023-05-05'",
    "day = '2023-06-06'",
    "(day) in ('2023-05-05', '2023-06-06')",
    "day <> '2023-06-06'",
    "day = '2023-W18-5'",
    "day >= '2024-02'",
    "day <> '2024-02-30'",
    "(day) not in ('2024-01-01', '1')",
    "day not between '1' and '2024-01-01'",
    "day >= timestamp '2024-01-15 12:30:00'",
]

REFUSED = [
    "ds not like 'a%'",
    "hr = 'x'",
    "nokey = 1",
    "ds = 'A",
    "ds = ",
    "day = date '2024-W01-1'",
    "at = timestamp '2024-01-01'",
    "at = timestamp '2024-01-01T00:00:00'",
    "at = timestamp '20240101'",
]
TAKEN_TOO: list[tuple[str, list[Values]]] = [
    ("hr in (1, 2)", ROWS[:2]),
    ("hr = '2'", [ROWS[1]]),
    ("hr like '21%'", [ROWS[6]]),
    ("at > '2024-01-01 00:00:00' and hr = 2", [ROWS[1]]),
]
COMPARISONS = ("=", "<>", "!=", "<", "<=", ">", ">=")


def drawn(rng: Random, depth: int = 2) -> str:
    """A filter by chance, of texts, numbers and dates. No text in it has a sign of a pattern or a backslash."""
    if depth and rng.random() < 0.5:
        left, right = drawn(rng, depth - 1), drawn(rng, depth - 1)
        both = f"{left} {rng.choice(['and', 'OR'])} {right}"
        return f"({both})" if rng.random() < 0.5 else both
    key = rng.choice(["ds", "hr", "day"])

    def literal() -> str:
        value = rng.choice(ROWS)[["ds", "hr", "day"].index(key)]
        if value == DEFAULT_PARTITION or not {"_", "%", "\\"}.isdisjoint(value):
            value = "1" if key == "hr" else "2024-01-05"
        return value if key == "hr" else f'"{value}"'

    match rng.randrange(5):
        case 0:
            return f"({key}) {rng.choice(['in', 'NOT IN'])} ({literal()}, {literal()})"
        case 1:
            return f"{key} {rng.choice(['between', 'not between'])} {literal()} and {literal()}"
        case 2:
            return f"{literal()} {rng.choice(COMPARISONS)} {key}"
        case _:
            return f"{key} {rng.choice(COMPARISONS)} {literal()}"


@pytest.fixture(scope="module")
def catalog(hive: tuple[str, int]) -> Iterator[HiveCatalog]:
    """A metastore with a table whose partition columns have three types."""
    with HiveCatalog(hive, f"db{uuid.uuid4().hex[:8]}") as client:
        client.create("plain", transactional=False, partitioned=True)
        struct = client.struct("plain")
        keys = [{1: text(key.name), 2: text(key.type)} for key in KEYS]
        made = {each: struct[each] for each in (2, 3, 7, 12)} | {1: text("t"), 8: (LIST, ListValue(STRUCT, keys))}
        made[7] = record({each: value for each, value in struct[7][1].items() if each != 2})
        made[9] = mapping({"EXTERNAL": "TRUE"})
        client.calls.call("create_table_req", {1: record({1: record(made)})})
        storage = {**client.struct("t")[7][1]}
        added = []
        for at, values in enumerate(STORED):
            place = record({**storage, 2: text(f"{field(storage, 2)}/{at}")})
            added.append({1: texts(values), 2: text(client.db), 3: text("t"), 6: place, 7: mapping({})})
        client.calls.call("add_partitions", {1: (LIST, ListValue(STRUCT, added))})
        yield client


def at_the_metastore(catalog: HiveCatalog, wanted: str) -> list[Values]:
    """What it selects. Raises `MetastoreRefused`."""
    arguments = {1: text(catalog.db), 2: text("t"), 3: text(wanted), 4: (I16, -1)}
    return sorted(tuple(field(each, 1)) for each in catalog.calls.call("get_partitions_by_filter", arguments))


def selected(wanted: str) -> list[Values]:
    """What the cache selects. Raises `FilterError`."""
    passes = parse_filter(wanted, KEYS)
    return sorted(values for values in STORED if passes(values))


@pytest.mark.parametrize("wanted", FILTERS)
def test_a_filter_selects_what_the_metastore_does(catalog: HiveCatalog, wanted: str) -> None:
    """Each operator over each type of key; the metastore compares in its database."""
    assert selected(wanted) == at_the_metastore(catalog, wanted)


@pytest.mark.long
def test_random_filters_select_what_the_metastore_selects(catalog: HiveCatalog) -> None:
    """Operators, parentheses and lists in any combination."""
    rng = Random(5)
    for _ in range(length(100, 3000)):
        wanted = drawn(rng)
        assert selected(wanted) == at_the_metastore(catalog, wanted), wanted


@pytest.mark.parametrize("wanted", REFUSED)
def test_what_the_metastore_refuses_is_refused(catalog: HiveCatalog, wanted: str) -> None:
    """A key that is none, a value of another type, an unfinished string."""
    with pytest.raises(MetastoreRefused):
        at_the_metastore(catalog, wanted)
    with pytest.raises(FilterError):
        selected(wanted)


@pytest.mark.parametrize(("wanted", "expected"), TAKEN_TOO)
def test_some_that_the_metastore_refuses_are_taken(catalog: HiveCatalog, wanted: str, expected: list[Values]) -> None:
    """IN without parentheses, and numbers and dates that are written as texts: what they mean is clear."""
    with pytest.raises(MetastoreRefused):
        at_the_metastore(catalog, wanted)
    assert selected(wanted) == expected


def test_a_sign_of_a_pattern_is_itself_in_a_comparison(catalog: HiveCatalog) -> None:
    """The metastore compares what is not to be equal with names of partitions, as with LIKE; the cache does not."""
    wanted = "ds <> 'a_b'"
    assert selected(wanted) == sorted(values for values in STORED if values[0] != "a_b")
    assert at_the_metastore(catalog, wanted) == sorted(values for values in STORED if values[0] not in ("a_b", "acb"))


@pytest.mark.parametrize("wanted", ["hr = 8", "(hr) in (8, 3)"])
def test_a_number_with_zeros_before_it_is_found_here_only(catalog: HiveCatalog, wanted: str) -> None:
    """The metastore compares what is to be equal with names of partitions; by < and > it finds the number too."""
    assert selected(wanted) == [UNTIDY[0]]
    assert at_the_metastore(catalog, wanted) == []
    assert selected("hr > 7 and hr < 9") == at_the_metastore(catalog, "hr > 7 and hr < 9") == [UNTIDY[0]]
