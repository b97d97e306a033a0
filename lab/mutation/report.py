"""The equivalent mutants with their reasons, and the page that tells the score."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.mutation.mutants import ROOT
from lab.mutation.results import Key, Result
from lab.mutation.trial import NOT_PLANTED

EQUIVALENT: Final = Path(__file__).with_name("equivalent.toml")
PAGE: Final = ROOT / "docs/internals/mutation.md"
BEGIN: Final = "<!-- begin: written by `python -m lab.mutation --page` -->"
END: Final = "<!-- end -->"


@dataclass(frozen=True, slots=True)
class Equivalent:
    """A mutant that changes nothing. ``reason``: why. Without ``before`` and ``after``: all of the function."""

    module: str
    function: str
    reason: str
    before: str = ""
    after: str = ""
    twin: int = 1

    def is_one(self, key: Key) -> bool:
        """Whether the mutant of this key is meant."""
        return key == (self.module, self.function, self.before, self.after, self.twin) or (
            not self.before and key[:2] == (self.module, self.function)
        )


def equivalents() -> list[Equivalent]:
    """Every mutant that is known to be equivalent."""
    return [Equivalent(**each) for each in tomllib.loads(EQUIVALENT.read_text()).get("equivalent", [])]


def table(results: Iterable[Result], known: Sequence[Equivalent]) -> Iterator[str]:
    """The score of each module as lines of Markdown, and the survivors."""
    tried: Counter[str] = Counter()
    by_tests: Counter[str] = Counter()
    by_worlds: Counter[str] = Counter()
    named = Counter(each.module for each in known)
    survivors = []
    for result in results:
        if result.verdict == NOT_PLANTED or any(each.is_one(result.key) for each in known):
            continue
        tried[result.module] += 1
        if result.is_caught_by_world:
            by_worlds[result.module] += 1
        elif result.is_caught:
            by_tests[result.module] += 1
        else:
            survivors.append(result)
    yield "| module | tried | caught by tests | by the simulator alone | survived | score | equivalent |"
    yield "|---|---|---|---|---|---|---|"
    for module in sorted(tried):
        yield _row(f"`{module}`", tried[module], by_tests[module], by_worlds[module], named[module])
    yield _row("all", tried.total(), by_tests.total(), by_worlds.total(), named.total())
    yield ""
    yield "Survivors:" if survivors else "No mutant survived."
    yield ""
    for result in survivors:
        yield f"- {result}".replace("|", "\\|")


def _row(name: str, tried: int, by_tests: int, by_worlds: int, equivalent: int) -> str:
    caught = by_tests + by_worlds
    score = f"{100 * caught / tried:.1f} %" if tried else "–"
    return f"| {name} | {tried:,} | {by_tests:,} | {by_worlds:,} | {tried - caught:,} | {score} | {equivalent:,} |"


def write_page(lines: Iterable[str]) -> None:
    """Puts the lines into the page, between its marks."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))
