"""``python -m lab.mutation``: mistakes in the code, one at a time; exit code 1 if one is not noticed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from lab.mutation.mutants import ROOT, mutants
from lab.mutation.report import equivalents, table, write_page
from lab.mutation.results import RESULTS, Results
from lab.mutation.session import Options, try_mutants
from lab.mutation.trial import SURVIVED

FOLDER: Final = ROOT / "build" / "mutation"
MODULES: Final = (
    "tokens/",
    "consumers/fold/",
    "consumers/store/",
    "stream/publish/",
    "serving/reads/",
    "serving/client/session.py",
    "serving/client/tracked.py",
    "serving/client/wire.py",
    "consumers/owner/rows.py",
    "consumers/owner/tables.py",
    "consumers/owner/overlay.py",
    "consumers/owner/evidence.py",
    "consumers/owner/meaning.py",
)
"""What decides whether an answer is right. ``/`` at the end: every module below."""


def main() -> int:
    """Tries mutants and prints the survivors and the score. Returns the exit code."""
    options = _options()
    chosen = modules(options.modules or MODULES)
    known = equivalents()
    settings = Options(chosen, options.sample, options.seed, options.jobs, FOLDER, known, options.again)
    if options.told:
        code, results = 0, Results(FOLDER / RESULTS)
        for module in chosen:
            results.keep(module, {mutant.key for mutant in mutants(module)})
    else:
        code, results = try_mutants(settings, lambda line: print(line, flush=True))
    found = [result for result in results.all() if result.module in chosen]
    print("\n".join(table(found, [each for each in known if each.module in chosen])))
    if options.page:
        write_page(table(results.all(), known))
    survived = [
        result for result in found if result.verdict == SURVIVED and not any(each.is_one(result.key) for each in known)
    ]
    return code or int(bool(survived))


def modules(names: list[str] | tuple[str, ...]) -> list[str]:
    """The modules below folders, and modules named themselves."""
    found: list[Path] = []
    for name in names:
        path = ROOT / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [str(path.relative_to(ROOT)) for path in found if path.stat().st_size]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lab.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="files or folders below the root; default: what decides answers")
    parser.add_argument("--sample", type=int, default=0, help="mutants of each module, chosen by the seed; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="also try those that were caught before")
    parser.add_argument("--told", action="store_true", help="only tell what became of those that were tried before")
    parser.add_argument("--page", action="store_true", help="write the score into docs/internals/mutation.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
