"""What became of mutants: one line of JSON each, in a file that grows while they are tried."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from lab.mutation.executed import WORLD
from lab.mutation.mutants import Mutant
from lab.mutation.trial import NOT_PLANTED, SURVIVED

RESULTS: Final = "results.jsonl"
Key = tuple[str, str, str, str, int]


@dataclass(frozen=True, slots=True)
class Result:
    """A mutant and who caught it: a test's name, ``world NAME: RULE``, or another verdict of `trial`."""

    module: str
    function: str
    operator: str
    before: str
    after: str
    twin: int
    line: int
    verdict: str
    seconds: float

    @classmethod
    def of(cls, mutant: Mutant, verdict: str, seconds: float) -> Result:
        """The result of a trial."""
        named = (mutant.module, mutant.function, mutant.operator, mutant.before, mutant.after, mutant.twin)
        return cls(*named, mutant.first, verdict, seconds)

    @property
    def key(self) -> Key:
        """As `Mutant.key`."""
        return self.module, self.function, self.before, self.after, self.twin

    @property
    def is_caught(self) -> bool:
        """Whether a test or a world noticed it."""
        return self.verdict not in (SURVIVED, NOT_PLANTED)

    @property
    def is_caught_by_world(self) -> bool:
        """Whether only the simulator noticed it."""
        return self.verdict.startswith(WORLD)

    def __str__(self) -> str:
        again = f" (number {self.twin} of its kind)" if self.twin > 1 else ""
        text = f"{self.module}:{self.line} {self.function}: `{self.before}` -> `{self.after}`{again}"
        return " ".join(text.split())


class Results:
    """All results, those of earlier runs too."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[Key, Result] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            for line in path.read_text().splitlines():
                result = Result(**json.loads(line))
                self._known[result.key] = result

    def of(self, mutant: Mutant) -> Result | None:
        """The last result of a mutant."""
        return self._known.get(mutant.key)

    def add(self, result: Result) -> None:
        """Keeps a result."""
        self._known[result.key] = result
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(result)) + "\n")

    def keep(self, module: str, keys: set[Key]) -> None:
        """Forgets mutants that the module no longer has."""
        self._known = {key: each for key, each in self._known.items() if key[0] != module or key in keys}

    def all(self) -> list[Result]:
        """Every result, by module and line."""
        return sorted(self._known.values(), key=lambda each: (each.module, each.line, each.before, each.after))
