"""How a bug is planted into the code, and how its snippets are matched."""

from __future__ import annotations

import pytest

from lab.simulation.planted.every import PLANTED_BUGS, planted_bugs
from lab.simulation.planted.planting import Begin, Change, PlantedBug, PlantedBugError, Replace, Return, Swap, leave_out
from tokens import decision


def sample(first: int, second: int) -> list[int]:
    """A function with an ordinary layout."""
    said: list[int] = []
    said.append(first)  # a comment
    total = (
        first
        + second
    )  # fmt: skip
    if total > 10 and "a":
        said.append(total)
    said.extend([first, second])
    return said


def planted(*changes: Change) -> list[int]:
    """What `sample` says of 4 and 7 with the changes in it."""
    with PlantedBug("bug", "…", "rows", changes).planted():
        return sample(4, 7)


def test_layout_comments_and_quotes_do_not_matter() -> None:
    """A formatter, a comment or other quotes in the code leave a bug as it is."""
    assert planted(Replace(sample, "first+second", "0")) == [4, 4, 7]
    assert planted(Replace(sample, "(any_sum > 10) and ('a')", "False")) == [4, 4, 7]


def test_a_wildcard_stands_for_one_expression_and_is_put_back() -> None:
    """A bug need not know the names of local variables."""
    assert planted(Replace(sample, "any_one + any_other", "any_other - any_one")) == [4, 4, 7]
    assert planted(Replace(sample, "if any_test and ...:\n    any_call", "any_call")) == [4, 11, 4, 7]


def test_a_wildcard_that_occurs_twice_stands_for_equal_expressions() -> None:
    """Two different operands are not taken for the same one."""
    with pytest.raises(PlantedBugError, match="found it 0 times"):
        planted(Replace(sample, "any_one + any_one", "0"))


class Base:
    """Says something."""

    def says(self) -> list[int]:
        """Something."""
        return [1]


class Derived(Base):
    """Says more, by ``super()``, which is a free variable of the method."""

    def says(self) -> list[int]:
        """More."""
        return [*super().says(), 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [(Replace(Derived.says, "2", "3"), [1, 3]), (Return(Derived.says, "[]"), [])],
)
def test_a_method_that_calls_super_can_be_changed(change: Change, said: list[int]) -> None:
    """Much of a source is in methods that go on with those of their base: bugs must fit in there."""
    with PlantedBug("bug", "…", "rows", (change,)).planted():
        assert Derived().says() == said
    assert Derived().says() == [1, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (leave_out(sample, "said.extend(...)"), [4, 11]),
        (Swap(sample, "said.append(first)", "said.extend([...])"), [4, 7, 11, 4]),
        (Begin(sample, "first = 1"), [1, 1, 7]),
        (Return(sample, "[first]"), [4]),
    ],
)
def test_every_kind_of_change_does_what_it_says(change: Change, said: list[int]) -> None:
    """Statements are left out, swapped and put first, or the whole body is replaced."""
    assert planted(change) == said


@pytest.mark.parametrize("snippet", ["no_such_name", "said.append(...)"])
def test_a_snippet_that_does_not_occur_exactly_once_is_an_error(snippet: str) -> None:
    """A bug that plants nothing, or something else, must not count as caught, nor as survived."""
    with pytest.raises(PlantedBugError, match=r"planted bug bug: .*sample: .*, found it [02] times") as raised:
        planted(leave_out(sample, snippet))
    assert raised.value.code == "mutation_outdated"


def test_a_planted_bug_leaves_no_trace() -> None:
    """After a planted bug the code is as before."""
    before = decision._judge_component.__code__
    with planted_bugs("stale_is_fresh")[0].planted():
        assert decision._judge_component.__code__ is not before
    assert decision._judge_component.__code__ is before


@pytest.mark.parametrize("bug", PLANTED_BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_fits_the_code(bug: PlantedBug) -> None:
    """Every planted bug still applies to the code."""
    with bug.planted():
        pass
