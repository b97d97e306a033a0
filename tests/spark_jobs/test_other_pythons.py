"""Workers of a real Spark that run another interpreter than the driver: each job ends before it folds anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.engine.executors import ExecutorError
from spark_jobs.export import ExportRequest, export
from spark_jobs.rebuild import RebuildRequest, rebuild
from tests.patience import PATIENCE_S
from tests.spark_jobs.test_live_verify import FRESHET, consuming
from tests.spark_jobs.topics import TestTopic, history

Topics = Callable[[int], TestTopic]


def interpreter(minors: Iterable[int]) -> str:
    """A Python 3 of one of these minor versions that starts, on PATH or beside this one; else the test is skipped."""
    for name in (f"python3.{minor}" for minor in minors if minor != sys.version_info.minor):
        beside = sorted(Path(sys.base_prefix).parent.glob(f"*/bin/{name}"))
        for path in filter(None, (shutil.which(name), *map(str, beside))):
            done = subprocess.run([path, "-c", "print(0)"], capture_output=True, text=True, timeout=60, check=False)
            if done.stdout == "0\n":
                return path
    pytest.skip(f"this machine has no other Python of the minor versions {[*minors]}")


@pytest.fixture(scope="module")
def another_python() -> str:
    """A Python of another minor version, with which PySpark's workers start."""
    return interpreter(range(10, 16))


@pytest.fixture(scope="module")
def old_python() -> str:
    """A Python that is too old for PySpark's workers: they end before they can say that it is another one."""
    return interpreter(range(6, 9))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """This Python without any package."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True, with_pip=False)
    return str(place / "bin" / "python")


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("another_python", r"\[PYTHON_VERSION_MISMATCH\] Python in worker has different version"),
        ("old_python", r"a worker of Spark can't run the tasks: \w+Error: "),
        ("bare_python", r"the executor on .* lacks .*rocksdict \(No module named 'rocksdict'\)"),
    ],
)
def test_workers_of_another_python_or_without_packages_fold_nothing(
    spark: Any,
    topic: Topics,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    python: str,
    said: str,
) -> None:
    """Rebuild and export raise `executor_unfit`, which says what is wrong and what to send; no store, no commit."""
    filled = topic(1)
    filled.write(0, history())
    monkeypatch.setattr(spark.sparkContext, "pythonExec", request.getfixturevalue(python))  # PYSPARK_PYTHON
    with pytest.raises(ExecutorError, match=said) as of_rebuild:
        rebuild(spark, RebuildRequest(filled.keyspace, filled.kafka, tmp_path / "rebuilt"))
    with pytest.raises(ExecutorError, match=said) as of_export:
        export(spark, ExportRequest(filled.keyspace, filled.kafka, tmp_path / "exported"))
    for refused in (of_rebuild.value, of_export.value):
        assert "\n" not in str(refused)
        assert "make environment" in refused.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.nightly
def test_the_commands_say_in_one_error_that_workers_have_another_python(
    topic: Topics, tmp_path: Path, another_python: str
) -> None:
    """With PYSPARK_PYTHON of another minor version each ends with 1 and one error, without a traceback."""
    filled = topic(1)
    filled.write(0, history())
    made = [tmp_path / "rebuilt", tmp_path / "exported"]
    with consuming(filled, tmp_path / "data"):
        for command in (["rebuild", "--to", str(made[0])], ["verify"], ["export", "--to", str(made[1])]):
            given = ["--keyspace", filled.keyspace, "--bootstrap", filled.kafka.bootstrap]
            done = subprocess.run(
                [*FRESHET, *command, *given, "--master", "local[1]", "--spark-log", str(tmp_path / "spark.log")],
                env=os.environ | {"PYSPARK_PYTHON": another_python},
                capture_output=True,
                text=True,
                timeout=PATIENCE_S * 4,
                check=False,
            )
            assert done.returncode == 1, done.stdout + done.stderr
            assert done.stderr.count("error[") == done.stderr.count("error[executor_unfit]: ") == 1, done.stderr
            assert "PYTHON_VERSION_MISMATCH" in done.stderr
            assert "Traceback" not in done.stderr
    assert not [file for each in made for file in each.rglob("*")]
