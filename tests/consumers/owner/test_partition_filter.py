"""Filters of partitions: Hive's grammar over typed keys, and errors that point at the character."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.owner.objects.filter import DEFAULT_PARTITION, DEPTH_MAX, FilterError, PartitionKey, parse_filter
from consumers.owner.objects.statistics import is_stats_compliant
from tokens import ValidWriteIdList

KEYS = [
    PartitionKey("ds", "string"),
    PartitionKey("hr", "int"),
    PartitionKey("day", "date"),
    PartitionKey("at", "timestamp"),
    PartitionKey("price", "decimal(10,2)"),
    PartitionKey("order", "varchar(10)"),
]
ROW = ["a'b", "10", "2024-02-29", "2024-02-29 01:02:03", "1.50", "x"]


def passes(text: str, row: list[str] | None = None) -> bool:
    """Whether the row passes."""
    return parse_filter(text, KEYS)(row or ROW)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hr = 10", True),
        ("HR == 10", True),
        ("hr > 9", True),
        ("hr < '9'", False),
        ("9 < hr", True),
        ("11 <= hr", False),
        ("hr != -10", True),
        ("hr <> 10", False),
        ("hr between 10 and 11", True),
        ("hr not between 10 and 11", False),
        ("(hr) in (1, 10)", True),
        ("hr in (1, 2)", False),
        ("(hr) NOT IN (1, 10)", False),
        ('ds = "a\'b"', True),
        ("ds LIKE 'a%'", True),
        ("ds like '_'", False),
        ("ds = 5", False),
        ("day = '2024-02-29'", True),
        ("day >= date '2024-02-28' and day < 2024-03-01", True),
        ("at > 2024-02-29 01:02:02", True),
        ("at = TIMESTAMP '2024-02-29 01:02:03'", True),
        ("price = '1.50'", True),
        ("`order` = 'x' AND `ORDER` <> 'y'", True),
        ("hr = 1 OR hr = 10 AND ds = 'no'", False),
        ("(hr = 1 OR hr = 10) AND day = '2024-02-29'", True),
        ("((hr = 10))", True),
        ("(struct(hr, ds)) in (struct(10, 'b'), const struct(1, 'x'))", False),
        ("(STRUCT(hr,`order`)) IN (CONST STRUCT(10,'x'))", True),
        ("(STRUCT(hr,`order`)) NOT IN (STRUCT(10,'x'))", False),
        ("(STRUCT(hr,`order`)) NOT IN (STRUCT(10,'y'), STRUCT(11, 'x'))", True),
        (f"hr = '{DEFAULT_PARTITION}'", False),
    ],
)
def test_a_filter_selects_by_the_types_of_the_keys(text: str, expected: bool) -> None:
    """Numbers and days are compared as such, texts as texts; names and keywords are in any case."""
    assert passes(text) is expected


def test_the_default_partition_is_no_value_of_a_typed_key() -> None:
    """It passes no comparison of numbers or days; it is found by its name."""
    row = [DEFAULT_PARTITION, DEFAULT_PARTITION, DEFAULT_PARTITION, DEFAULT_PARTITION, "", ""]
    assert not passes("hr < 5 or hr >= 5", row)
    assert not passes("day <> '2024-01-01'", row)
    assert passes(f"hr = '{DEFAULT_PARTITION}' and ds = '{DEFAULT_PARTITION}'", row)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("day > '2024-01-01' or day <= '2024-01-01'", False),
        ("day > '2024'", True),
        ("day <> '2024-02-30'", True),
        ("day > '2024-01-01' and day <> 'never'", True),
        ("day > '2024-01-01' and at > timestamp '2024-01-01 00:00:00'", True),
        ("at = '2024-01-01'", False),
    ],
)
def test_a_filter_with_a_timestamp_or_a_date_that_is_none_compares_texts(text: str, expected: bool) -> None:
    """So the metastore does, for all dates of such a filter: the default partition is a text like others then."""
    keys = [PartitionKey("day", "date"), PartitionKey("at", "timestamp")]
    assert parse_filter(text, keys)([DEFAULT_PARTITION, "2024-01-01 12:30:00"]) is expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("day >= '2024-01-01'", ["2024-01-01", "2024-1-1", "2024-01-01 00:00:00", "2024-01-01T00:00:00.5"]),
        ("day <> '2023-01-01'", ["2024-01-01", "2024-1-1", "2024-01-01 00:00:00", "2024-01-01T00:00:00.5"]),
        ("day <> '2024-01-01'", []),
        ("day = '2024-01-01'", ["2024-01-01", "2024-01-01 00:00:00", "2024-01-01T00:00:00.5"]),
        ("'2024-01-01' = day", ["2024-01-01", "2024-01-01 00:00:00", "2024-01-01T00:00:00.5"]),
        ("(day) in ('2024-01-01')", ["2024-01-01", "2024-01-01 00:00:00", "2024-01-01T00:00:00.5"]),
        ("day between '2024-01-01' and '2024-01-01' and day < '2024-01-02' and day = '2024-01-02'", []),
        ("day = '2024-W01-1'", ["2024-W01-1"]),
        ("day = '2024-1-1'", ["2024-1-1"]),
    ],
)
def test_a_date_that_is_stored_in_another_way_is_that_date(text: str, found: list[str]) -> None:
    """So the metastore's databases read it; `=` and IN look at the partition's name too, which begins otherwise."""
    stored = ["2024-01-01", "2024-1-1", "2024-01-01 00:00:00", "2024-01-01T00:00:00.5", "2024-W01-1", "2024-13-1", "no"]
    matches = parse_filter(text, [PartitionKey("day", "date")])
    assert [value for value in stored if matches([value])] == found


def test_a_number_that_is_stored_with_zeros_before_it_is_that_number() -> None:
    """Of such a partition the metastore's `=` and IN find nothing, which helps nobody."""
    row = ["", "08", "", "", "", ""]
    assert passes("hr = 8 and hr >= 8 and (hr) in (7, 8) and hr < 9", row)
    assert not passes("hr <> 8 or (hr) not in (8)", row)


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 1),
        ("hr", 3),
        ("hr =", 5),
        ("hr = 1 and", 11),
        ("hr = 1 hr = 2", 8),
        ("nope = 1", 1),
        ("hr = x", 6),
        ("hr = 'x'", 6),
        ("day = date '2024-02-30'", 12),
        ("ds = 'open", 6),
        ("hr in ()", 8),
        ("hr in (1", 9),
        ("hr <=> 1", 4),
        ("hr ; 1", 4),
        ("price > 1", 7),
        ("(struct(hr, ds)) in (struct(10))", 28),
        ("hr not 1", 8),
        ("(" * 200 + "hr = 1" + ")" * 200, 102),
        ("hr = 99999999999999999999", 6),
        ("day = date '2024-W01-1'", 12),
        ("day = date '２０２４-01-01'", 12),
        ("at = timestamp '2024-01-01'", 16),
        ("at = timestamp '2024-01-01T00:00:00'", 16),
        ("at = timestamp '20240101'", 16),
        ("at = timestamp '2024-01-01 24:00:00'", 16),
        (r"ds like 'a\b'", 9),
        (r"ds like 'a\\\'", 9),
    ],
)
def test_a_filter_that_does_not_parse_names_the_character(text: str, at: int) -> None:
    """The reader finds the mistake in a long filter at once."""
    with pytest.raises(FilterError, match=f"^character {at} of the filter") as refused:
        parse_filter(text, KEYS)
    assert refused.value.at == at


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    """No text makes the owner raise anything else."""
    try:
        parse_filter(text, KEYS)(ROW)
    except FilterError as error:
        assert "\n" not in str(error)  # noqa: PT017


LITERALS = (
    "5", "-5", "'5'", "'05'", "'+5'", "'x'", "''", "'5.0'", "2024-01-01", "date '2024-02-29'", "'2024-01-01'",
    "'2024-1-1'", "'2024-01-01 00:00:00'", "'2024-02-30'", "'2024-W01-1'", "timestamp '2024-01-01 00:00:00'",
    f"'{DEFAULT_PARTITION}'", "99999999999999999999",
)  # fmt: skip
VALUES = (
    "5", "05", "+5", "-5", "-05", "5.0", "", "x", "2024-01-01", "2024-1-1", "2024-01-1", "2024-01-01 00:00:00",
    "2024-01-01T10:00", "2024-01-01x", "2024-02-29", "2024-02-30", "20240101", DEFAULT_PARTITION,
    "99999999999999999999",
)  # fmt: skip


def chosen(text: str, of_type: str) -> list[str] | None:
    """Which of `VALUES` pass, for a key ``k``; None: it is refused."""
    try:
        matches = parse_filter(text, [PartitionKey("k", of_type)])
    except FilterError:
        return None
    return [value for value in VALUES if matches([value])]


@given(
    st.sampled_from(["string", "int", "bigint", "date", "DATE", "timestamp", "decimal(10,2)", "varchar(10)"]),
    st.lists(st.sampled_from(LITERALS), min_size=1, max_size=4),
)
def test_in_is_equal_to_one_of_them_and_not_in_differs_from_each(of_type: str, literals: list[str]) -> None:
    """Whatever its values and the partitions' are read as, or cannot be."""
    listed = ", ".join(literals)
    assert chosen(f"k in ({listed})", of_type) == chosen(" or ".join(f"k = {each}" for each in literals), of_type)
    assert chosen(f"k not in ({listed})", of_type) == chosen(" and ".join(f"k != {each}" for each in literals), of_type)


class Looked(list[str]):
    """A partition's values that count how often one of them is looked at."""

    looks = 0

    def __getitem__(self, place: Any) -> Any:
        """One of them."""
        self.looks += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("negated", ["", "not "])
@pytest.mark.parametrize(("of_type", "value"), [("string", "'x{}'"), ("int", "1{}"), ("date", "'{:04}-01-01'")])
def test_in_looks_once_at_a_partition_however_many_values_it_has(of_type: str, value: str, negated: str) -> None:
    """Thousands of values for each of a hundred thousand partitions took a minute, in which nothing else was done."""
    listed = ",".join(value.format(number) for number in range(1, 3_001))
    matches = parse_filter(f"k {negated}in ({listed})", [PartitionKey("k", of_type)])
    row = Looked(["x"])
    matches(row)
    assert row.looks <= 2


def test_random_filters_agree_with_pythons_own_comparisons() -> None:
    """Parentheses, AND and OR bind as in SQL: 300 random expressions select what Python's do."""
    rng = Random(7)

    def draw(depth: int) -> tuple[str, str]:
        if not depth or rng.random() < 0.3:
            number, sign = rng.randint(0, 3), rng.choice(["=", "<>", "<", "<=", ">", ">="])
            return f"hr {sign} {number}", f"hr {({'=': '==', '<>': '!='}).get(sign, sign)} {number}"
        (left, left_py), (right, right_py) = draw(depth - 1), draw(depth - 1)
        word = rng.choice(["and", "OR"])
        if rng.random() < 0.5:
            return f"({left} {word} {right})", f"({left_py} {word.lower()} {right_py})"
        return f"{left} {word} {right}", f"{left_py} {word.lower()} {right_py}"

    for _ in range(300):
        text, python = draw(4)
        matches = parse_filter(text, KEYS)
        for hr in range(4):
            assert matches(["", str(hr), "", "", "", ""]) is eval(python, {"hr": hr})


@pytest.mark.parametrize(
    ("image", "listed", "expected"),
    [
        ({}, "d.t:5:5:5:", True),
        ({"writeId": 0}, "d.t:5:5:5:", True),
        ({"writeId": 3}, "d.t:5:9::", False),
        ({"writeId": 3, "parameters": {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}}, "d.t:5:9::", True),
        ({"writeId": 3, "parameters": {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}}, "d.t:5:3:3:", False),
        ({"writeId": 3, "parameters": {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}}, "d.t:5:9::3", False),
        ({"writeId": 6, "parameters": {"COLUMN_STATS_ACCURATE": '{"BASIC_STATS":"true"}'}}, "d.t:5:9::", False),
        ({"writeId": 3, "parameters": {"COLUMN_STATS_ACCURATE": '{"COLUMN_STATS":{}}'}}, "d.t:5:9::", False),
        ({"writeId": 3, "parameters": {"COLUMN_STATS_ACCURATE": "TRUE"}}, "d.t:5:9::", True),
        ({"writeId": 3, "parameters": {"COLUMN_STATS_ACCURATE": "{"}}, "d.t:5:9::", False),
    ],
)
def test_statistics_hold_as_hive_says(image: dict[str, object], listed: str, expected: bool) -> None:
    """As `isCurrentStatsValidForTheQuery`: the last write must be valid for the reader, and the basics accurate."""
    assert is_stats_compliant(image, ValidWriteIdList.parse(listed)) is expected


def test_a_pattern_matches_as_one_that_tries_every_place() -> None:
    """Taking the first place that fits for each part finds what trying all of them finds."""
    rng = Random(3)
    for _ in range(2_000):
        text, value = ("".join(rng.choices(letters, k=rng.randint(0, 7))) for letters in ("ab%_", "ab"))
        every = re.compile("".join({"%": ".*", "_": "."}.get(each, each) for each in text), re.DOTALL)
        matches = parse_filter(f"ds like '{text}'", KEYS)
        assert matches([value, "", "", "", "", ""]) is (every.fullmatch(value) is not None), (text, value)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"a\_b", ["a_b"]),
        (r"a\%b", ["a%b"]),
        (r"a\\b", [r"a\b"]),
        (r"a\\_b", [r"a\xb", r"a\_b"]),
        (r"a\\%b", [r"a\b", r"a\xb", r"a\_b"]),
        (r"%\_%", ["a_b", r"a\_b"]),
        ("a_b", ["a_b", "axb", "a%b", r"a\b"]),
    ],
)
def test_a_backslash_in_a_pattern_makes_the_sign_after_it_a_letter(pattern: str, found: list[str]) -> None:
    """The metastore's LIKE has ESCAPE, on any database."""
    matches = parse_filter(f"ds like '{pattern}'", KEYS)
    assert [value for value in ("a_b", "axb", "a%b", r"a\b", r"a\xb", r"a\_b") if matches([value])] == found


@pytest.mark.parametrize("pattern", ["%" * 30 + "x", "%a" * 2_000, "%" * 20_000])
def test_no_pattern_holds_the_interpreter(pattern: str) -> None:
    """Trying every place of every sign takes longer than anybody lives, and no other thread runs meanwhile."""
    assert not parse_filter(f"ds like '{pattern}b'", KEYS)(["a" * 2_000, "", "", "", "", ""])


def test_parentheses_beside_each_other_are_not_inside_each_other() -> None:
    """A query engine writes one pair for each of many partitions."""
    assert passes(" OR ".join(["(hr = 1)"] * (2 * DEPTH_MAX) + ["(hr = 10)"]))
    assert passes("(" * DEPTH_MAX + "hr = 10" + ")" * DEPTH_MAX)
    with pytest.raises(FilterError, match="inside each other"):
        passes("(" * (DEPTH_MAX + 1) + "hr = 10" + ")" * (DEPTH_MAX + 1))
