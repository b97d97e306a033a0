"""Which cases are left out, and an order of files that leaves no long one for the end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import leave_cases_out, longest_first


def item(path: str, **markers: tuple[Any, ...]) -> Any:
    """A collected test, as far as its order needs it."""
    return SimpleNamespace(
        path=Path(path),
        config=SimpleNamespace(getini=lambda _: "900"),
        get_closest_marker=lambda marker: SimpleNamespace(args=markers[marker]) if marker in markers else None,
    )


def sorted_paths(*items: Any) -> list[str]:
    """Where the tests are, in the order in which they run."""
    found = [*items]
    longest_first(found)
    return [str(each.path) for each in found]


def test_of_slow_tests_every_third_case_is_kept_and_the_first_of_each() -> None:
    """A test whose cases were all left out would protect nothing; fast ones cost nothing."""
    names = [f"test_slow[{n}]" for n in range(7)] + [
        "test_one[a]",
        "test_other",
        *(f"test_fast[{n}]" for n in range(4)),
    ]
    items = [item("a", **({} if "fast" in name else {"integration": ()})) for name in names]
    for each, name in zip(items, names, strict=True):
        each.name = name
    gone: list[Any] = []

    def deselected(items: list[Any]) -> None:
        gone.extend(items)

    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=deselected))
    every = [*items]
    leave_cases_out(config, items, 1)
    assert items == every
    leave_cases_out(config, items, 3)
    assert [each.name for each in gone] == [f"test_slow[{n}]" for n in (1, 2, 4, 5)]
    assert [each.name for each in items] == [name for name in names if name not in {each.name for each in gone}]


def test_files_that_take_long_come_first_and_stay_whole() -> None:
    """The machine would wait for one that begins when all others are done."""
    limited, short = item("c", slow=(), timeout=(1800,)), item("b", slow=(), timeout=(600,))
    assert sorted_paths(item("a"), item("a"), short, item("c"), limited, item("b")) == ["c", "c", "b", "b", "a", "a"]


def test_the_first_and_the_last_folders_take_turns() -> None:
    """Tests of one folder need the same of the machine, at the same time if they were side by side."""
    assert sorted_paths(*map(item, ("a/1", "a/2", "b/1", "b/2"))) == ["a/1", "b/2", "a/2", "b/1"]
    in_file = [item("a"), item("a", slow=())]
    longest_first(in_file)
    assert [each.get_closest_marker("slow") is None for each in in_file] == [True, False]
