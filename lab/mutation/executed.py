"""Which tests and which worlds of the simulator execute which lines, measured once and kept until files change."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from coverage import Coverage

from lab.mutation.mutants import ROOT

MEASURED: Final = ("tokens", "stream", "consumers", "serving")
"""Rooms whose lines are measured."""
PRODUCT: Final = (*MEASURED, "schemas", "lab/simulation")
WORLD: Final = "world "
"""Begins the name of a world among the names of tests."""
SLOW_S: Final = 6.0
"""Measuring makes a test a few times slower."""
FIXTURE: Final = "fixture "
"""Begins the name of what only a shared fixture executed."""


@dataclass(slots=True)
class Executed:
    """``lines``: module → line → the names of the tests and worlds that execute it.

    ``seconds``: name → processor time. ``files``: file of tests → its digest.
    """

    product: str = ""
    files: dict[str, str] = field(default_factory=dict)
    lines: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def by(self, module: str, first: int, last: int) -> list[str]:
        """Who executes one of these lines, fastest first, without tests that take longer than `SLOW_S`."""
        lines = self.lines.get(module, {})
        names = {name for line in range(first, last + 1) for name in lines.get(str(line), ())}
        quick = (name for name in names if name.startswith(WORLD) or self.seconds.get(name, 0.0) <= SLOW_S)
        return sorted(quick, key=lambda name: (self.seconds.get(name, 0.0), name))

    def add(self, other: Executed) -> None:
        """Adds what was measured elsewhere."""
        self.seconds.update(other.seconds)
        for module, lines in other.lines.items():
            mine = self.lines.setdefault(module, {})
            for line, names in lines.items():
                mine[line] = sorted({*mine.get(line, ()), *names})

    def forget(self, file: str) -> None:
        """Forgets what was measured of a file's tests."""
        prefix = f"{file}::"
        self.seconds = {name: took for name, took in self.seconds.items() if not name.startswith(prefix)}
        for lines in self.lines.values():
            for line, names in lines.items():
                lines[line] = [name for name in names if not name.startswith(prefix)]

    def save(self, path: Path) -> None:
        """Writes it as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self)))


def load(path: Path) -> Executed:
    """What was kept. Raises OSError and ValueError."""
    return Executed(**json.loads(path.read_text()))


def product_digest() -> str:
    """A digest of the code that is measured, and of the simulator."""
    return digest(found for room in PRODUCT for found in sorted((ROOT / room).rglob("*.py")))


def digest(files: Iterable[Path]) -> str:
    """A digest of files."""
    made = hashlib.sha256()
    for file in files:
        made.update(file.read_bytes())
    return made.hexdigest()[:16]


class Measuring:
    """Measures the lines of the product. `running` names who executes them."""

    def __init__(self, file: Path) -> None:
        include = [f"{ROOT}/{room}/*" for room in MEASURED]
        self._coverage = Coverage(data_file=str(file), config_file=False, include=include, messages=False)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measures within the context."""
        self._coverage.start()
        try:
            yield
        finally:
            self._coverage.stop()

    def running(self, name: str) -> None:
        """From now on ``name`` executes what is executed."""
        self._coverage.switch_context(name)

    def lines(self) -> dict[str, dict[str, list[str]]]:
        """What was executed, as in `Executed`."""
        data = self._coverage.get_data()
        found: dict[str, dict[str, list[str]]] = {}
        for file in data.measured_files():
            lines: defaultdict[str, list[str]] = defaultdict(list)
            for line, names in data.contexts_by_lineno(file).items():
                lines[str(line)] += sorted(name for name in names if name)
            found[str(Path(file).relative_to(ROOT))] = dict(lines)
        return found
