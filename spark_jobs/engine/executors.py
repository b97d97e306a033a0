"""Whether the executors can run the tasks: they need Freshet itself, and packages with native parts.

They are asked by a small Spark job before anything is read. The question is a local function, so PySpark sends its
code and not its name; it needs the standard library alone. So an executor that lacks everything can answer it.
Where tasks run on this machine, with this interpreter, nothing is asked: they lack what this process would lack.
Executors that join later are not asked; what they lack shows in their tasks (`unfit`). ``make environment`` makes what
they need (docs/operating/rebuild.md).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from consumers.fold.state import FOLD_VERSION
from spark_jobs.output import not_shared
from tokens.errors import FreshetError

PACKAGES: Final = {
    "confluent_kafka": "confluent-kafka",
    "fastavro": "fastavro",
    "fsspec": "fsspec",
    "msgspec": "msgspec",
    "numpy": "numpy",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "rocksdict": "rocksdict",
    "structlog": "structlog",
    "xxhash": "xxhash",
}
"""What a task imports beside Freshet and PySpark: module → distribution."""
OF_PLACES: Final = {"adlfs": "adlfs", "s3fs": "s3fs"}
"""What else opens a place of snapshots (``abfs://``, ``s3://``). `make environment` has it, and nobody is asked for it:
few jobs read a table from such a place."""
HINT: Final = (
    "send the archive of `make environment`: --archives dist/environment.tar.gz#environment, "
    "with PYSPARK_PYTHON=./environment/bin/python"
)
_HINT_OF_PLACES: Final = (
    "executors need what opens the place of the snapshots, as the driver does: send an archive that `make environment` "
    'makes now, add the package to the one that is sent, or read the topic instead (--snapshots "")'
)
_PLACE_LACKS: Final = re.compile(rf"No module named '({'|'.join(OF_PLACES)})\b|[Ii]nstall \w+ to access")
"""How a worker, or fsspec in it, says that it can't open a place."""
_LOCAL: Final = re.compile(r"local(\[.*\])?")
_SIGNS: Final = (
    r"\[PYTHON_VERSION_MISMATCH\][^\n]*",
    r"ModuleNotFoundError: [^\n]*",
    r"ImportError: [^\n]*",
    r'Cannot run program "[^\n]*?": [^\n,]*',
)
"""How Spark says that a worker has another Python, lacks a module or has no Python at all."""
_WORKERS_OWN: Final = re.compile(r"Error from python worker:\n(.*?)\n\s*PYTHONPATH was:", re.DOTALL)
"""What a worker wrote that could say nothing to Spark, such as a Python that is too old for PySpark's code."""

_fit: set[str] = set()
"""The Spark applications whose executors were asked."""


class ExecutorError(FreshetError):
    """An executor can't run the tasks; code ``executor_unfit``."""

    code = "executor_unfit"


def check_executors(session: Any) -> None:
    """Asks the executors of a Spark session, once. Raises `ExecutorError`; it names the executor and what it lacks."""
    context = session.sparkContext
    if context.applicationId in _fit or runs_here(context.master, context.pythonExec):
        return
    places = context.defaultParallelism
    try:
        found = context.parallelize(range(places), places).mapPartitions(question(tuple(PACKAGES), FOLD_VERSION))
        answers = sorted({answer for answer in found.collect() if answer})
    except Exception as error:
        raise unfit(error) or error from error
    if answers:
        raise ExecutorError(answers[0], hint=HINT)
    _fit.add(context.applicationId)


def check_shared(session: Any, directory: Path) -> None:
    """Raises `RebuildError` ``target_not_shared`` if an executor does not see what the driver makes in ``directory``.

    Executors that join later are not asked.
    """
    context = session.sparkContext
    if _LOCAL.fullmatch(context.master):
        return
    mark = directory / f".freshet-shared-{secrets.token_hex(8)}"
    mark.touch()
    try:
        places = context.defaultParallelism
        lacking = context.parallelize(range(places), places).mapPartitions(_lacks(str(mark))).collect()
    finally:
        mark.unlink(missing_ok=True)
    if lacking:
        raise not_shared(f"{lacking[0]} does not see {directory} as the driver does")


def _lacks(mark: str) -> Callable[[Iterator[int]], Iterator[str]]:
    """A task that answers with its machine's name if a file is not there."""

    def answer(_: Iterator[int]) -> Iterator[str]:
        import os
        import platform

        if not os.path.exists(mark):
            yield platform.node()

    return answer


def runs_here(master: str, python: str) -> bool:
    """Whether tasks run on this machine with the interpreter of this process; ``python`` is what workers run."""
    found = shutil.which(python)
    here = _LOCAL.fullmatch(master) is not None
    return here and found is not None and os.path.abspath(found) == os.path.abspath(sys.executable)


def unfit(error: Exception) -> ExecutorError | None:
    """The `ExecutorError` for an exception of Spark, if it comes from a worker that can't run a task."""
    for sign in _SIGNS:
        said = re.search(sign, str(error))
        if said is not None:
            return _unfit(said[0])
    own = _WORKERS_OWN.search(str(error))
    return None if own is None else _unfit(own[1].strip().rpartition("\n")[2].strip())


def _unfit(said: str) -> ExecutorError:
    hint = HINT if _PLACE_LACKS.search(said) is None else _HINT_OF_PLACES
    return ExecutorError(f"a worker of Spark can't run the tasks: {said[:300]}", hint=hint)


def question(modules: tuple[str, ...], fold_version: int) -> Callable[[Iterator[int]], Iterator[str]]:
    """A task that answers what its executor lacks; "" for nothing. Runs where this module is not installed."""

    def answer(_: Iterator[int]) -> Iterator[str]:
        import importlib
        import platform

        lacks = []
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception as error:  # noqa: BLE001 - a package of another platform may fail in any way
                lacks.append(f"{module} ({error})")
        found = None
        if not lacks:
            try:
                found = importlib.import_module("consumers.fold.state").FOLD_VERSION
            except ImportError as error:
                lacks.append(f"Freshet ({error})")
        if found not in (None, fold_version):
            lacks.append(f"this Freshet: it folds by version {found}, the driver by {fold_version}")
        where = f"the executor on {platform.node()} (Python {platform.python_version()})"
        yield f"{where} lacks {', '.join(lacks)}" if lacks else ""

    return answer


if __name__ == "__main__":
    print(*PACKAGES.values(), *OF_PLACES.values())
