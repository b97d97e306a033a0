"""Spark's preconditions are checked before a JVM is started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyspark
import pytest

from freshet import cli
from freshet.local.artifacts import read_pins
from spark_jobs.exporting.delta import PACKAGE, check_delta
from spark_jobs.session import (
    BRIEF_JAVA,
    CONNECTOR,
    JAVA_VARIABLES,
    SparkSettings,
    SparkUnavailable,
    _start_jvm,
    check_java,
    check_version,
    configuration,
)
from tests.patience import PATIENCE_S
from tests.spark_jobs.conftest import java_home


def fake_java(home: Path, script: str) -> str:
    """A JAVA_HOME whose ``java`` is a shell script."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return str(home)


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    """The error names the directory that was searched."""
    with pytest.raises(SparkUnavailable, match=str(tmp_path)) as refused:
        check_java(str(tmp_path))
    assert refused.value.code == "java_missing"
    assert "17" in refused.value.hint


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'openjdk version \"11.0.2\"' >&2", "is Java 11"),
        ("echo 'java version \"1.8.0_202\"' >&2", "is Java 8"),
        ("echo 'Module jdk.incubator.vector not found' >&2; exit 1", "lacks the module jdk.incubator.vector"),
        ("exit 3", "exit code 3"),
    ],
)
def test_a_java_that_cannot_run_spark_is_refused(tmp_path: Path, script: str, why: str) -> None:
    """Wrong versions and trimmed runtimes are told apart."""
    with pytest.raises(SparkUnavailable, match=why) as refused:
        check_java(fake_java(tmp_path, script))
    assert refused.value.code == "java_wrong"


def test_a_spark_of_another_minor_version_is_refused() -> None:
    """The connector would fail in the middle of a run, with a Java class that is not there."""
    check_version("4.2.7")
    for version in ("4.1.2", "4.20.0", "3.5.1", "5.0.0"):
        with pytest.raises(SparkUnavailable, match=f"Spark {version}, Freshet needs 4.2") as refused:
            check_version(version)
        assert refused.value.code == "spark_unfit"
        assert "pyspark==4.2.*" in refused.value.hint


@pytest.mark.parametrize(
    "command",
    [["rebuild", "--keyspace", "shop", "--to", "out"], ["verify", "shop"], ["export", "--keyspace=shop", "--to=out"]],
)
def test_a_command_without_pyspark_names_the_extra(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """PySpark is half of an installation, so it may be absent; no traceback, and no Kafka is asked first."""
    monkeypatch.setitem(sys.modules, "pyspark", None)  # as if it could not be found
    assert cli.run([*command, "--bootstrap", "127.0.0.1:1"]) == 1
    said = capsys.readouterr().err
    assert "error[spark_missing]: this installation has no pyspark" in said
    assert "freshet-cache[spark]" in said


def test_a_session_without_delta_is_told_the_options_of_spark_submit() -> None:
    """Else the export would fail at its first commit."""
    other: Any = SimpleNamespace(conf={"spark.sql.extensions": "com.example.Other"})
    with pytest.raises(SparkUnavailable) as refused:
        check_delta(other)
    assert refused.value.code == "delta_missing"
    assert f"--packages …,{PACKAGE} --conf spark.sql.extensions=io.delta" in refused.value.hint
    check_delta(SimpleNamespace(conf={"spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,other"}))


def test_java_17_is_accepted(tmp_path: Path) -> None:
    """The version is read from java's stderr."""
    home = fake_java(tmp_path, "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2")
    assert check_java(home) == f"{home}/bin/java"


def test_given_jars_go_on_the_class_path_and_none_are_fetched() -> None:
    """With pinned jars Spark resolves nothing; without them it fetches the connector."""
    with_jars = configuration(SparkSettings(jars=[Path("a.jar"), Path("b.jar")]), submitted=False)
    assert with_jars["spark.driver.extraClassPath"] == "a.jar:b.jar"
    assert "spark.jars.packages" not in with_jars
    assert configuration(SparkSettings(), submitted=False)["spark.jars.packages"] == CONNECTOR


def test_the_connector_is_pinned_once_and_of_sparks_minor_version() -> None:
    """What is fetched, what is pinned and the PySpark in use fit each other."""
    pins = {pin.artifact: pin for pin in read_pins("spark")}
    group, artifact, version = CONNECTOR.split(":")
    assert (pins[artifact].group, pins[artifact].version) == (group, version)
    assert pins["spark-token-provider-kafka-0-10_2.13"].version == version
    assert version.split(".")[:2] == pyspark.__version__.split(".")[:2]


def test_on_a_cluster_the_jars_are_sent_along() -> None:
    """Executors on other machines lack the driver's class path."""
    remote = configuration(SparkSettings(master="spark://host:7077", jars=[Path("a.jar")]), submitted=False)
    assert remote["spark.jars"] == "a.jar"
    assert "spark.driver.bindAddress" not in remote


@pytest.fixture
def no_java_options(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment chooses nothing for a JVM; that of the tests does."""
    for name in JAVA_VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("no_java_options")
def test_only_a_brief_session_does_without_the_second_compiler() -> None:
    """An audit starts sooner; a rebuild of a long topic gets the faster code."""
    options = "spark.driver.extraJavaOptions"
    brief = configuration(SparkSettings(brief=True), submitted=False)[options].split()
    assert set(BRIEF_JAVA) <= set(brief)
    assert not set(BRIEF_JAVA) & set(configuration(SparkSettings(), submitted=False)[options].split())


@pytest.mark.usefixtures("no_java_options")
@pytest.mark.parametrize("name", JAVA_VARIABLES)
def test_a_collector_that_the_environment_chooses_stays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A JVM with two collectors does not start."""
    monkeypatch.setenv(name, "-Xss2m -XX:+UseG1GC")
    options = configuration(SparkSettings(brief=True), submitted=False)["spark.driver.extraJavaOptions"].split()
    assert [each for each in options if each.endswith("GC")] == []
    assert "-XX:TieredStopAtLevel=1" in options


KILLED = """
import os, signal, tempfile
from pathlib import Path
from freshet.local.artifacts import jars
from spark_jobs.session import SparkSettings, spark_session

settings = SparkSettings(master="local[1]", jars=jars("spark"), java_home=os.environ["JAVA"], driver_memory="512m",
                         log_file=Path("spark.log"))
try:
    with spark_session("first", settings) as session:
        os.kill(session.sparkContext._gateway.proc.pid, signal.SIGKILL)
        raise RuntimeError("of the job")
except RuntimeError as error:
    print(error)
[own] = Path(tempfile.gettempdir()).iterdir()
print(any(each.name.startswith("spark-") for each in (own / "held").iterdir()))
with spark_session("second", settings) as session:
    print(session.range(3).count())
"""


@pytest.mark.integration
@pytest.mark.nightly
def test_a_session_begins_after_one_whose_jvm_was_killed(tmp_path: Path) -> None:
    """A standing audit goes on after it: the job's own error is told, and the next session has a JVM.

    Nothing stays in the end, though a killed JVM removes none of its files.
    """
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=tmp_path,
        env=os.environ | {"JAVA": java_home(), "PYTHONPATH": os.getcwd(), "TMPDIR": str(tmp_path / "temporary")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.split("\n") == ["of the job", "True", "3", ""], done.stderr
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("submitted", [False, True])
def test_moments_are_written_in_a_form_that_every_reader_has(submitted: bool) -> None:
    """As INT96, which Spark writes by itself, pandas and PyArrow take the year 9999 for another one."""
    written = configuration(SparkSettings(), submitted=submitted)["spark.sql.parquet.outputTimestampType"]
    assert written == "TIMESTAMP_MICROS"


@pytest.mark.parametrize(("master", "name"), [("local[2]", "localhost"), ("spark://host:7077", None)])
def test_only_a_driver_whose_tasks_run_here_is_called_localhost(
    master: str, name: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Executors on other machines would look for the driver on their own."""
    monkeypatch.setenv("SPARK_LOCAL_HOSTNAME", "")
    monkeypatch.delenv("SPARK_LOCAL_HOSTNAME")
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path, "echo 'openjdk version \"17.0.15\"' >&2"))
    monkeypatch.setattr("pyspark.SparkContext._gateway", None)
    found: list[str | None] = []

    def launch(*_: object) -> None:
        found.append(os.environ.get("SPARK_LOCAL_HOSTNAME"))
        raise OSError("no JVM here")

    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", launch)
    with pytest.raises(SparkUnavailable, match="no JVM here"):
        _start_jvm(pyspark.SparkConf(loadDefaults=False), SparkSettings(master=master))
    assert found == [name]


def test_spark_submit_keeps_its_own_master() -> None:
    """Settings of the submitting command are not overridden."""
    assert (
        not {"spark.master", "spark.driver.memory", "spark.jars.packages"}
        & configuration(SparkSettings(), submitted=True).keys()
    )


STARTING = """
from pathlib import Path
from freshet.local.artifacts import jars
from spark_jobs.session import SparkSettings, spark_session

with spark_session("interrupted", SparkSettings(jars=jars("spark"), log_file=Path("spark.log"))):
    print("started", flush=True)
"""


def java_children(pid: int) -> list[int]:
    """The processes that run Spark's launcher or its JVM, below ``pid``."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and b"spark" in (entry / "cmdline").read_bytes():
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                found += [int(entry.name)] if parent == pid else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_jvm_starts_leaves_no_jvm(number: int, tmp_path: Path) -> None:
    """The JVM can't be told to end before it has started, so the signal waits for that."""
    environment = os.environ | {"JAVA_HOME": java_home(), "PYTHONPATH": str(Path(__file__).parents[2])}
    script = f"import signal; signal.signal(signal.SIGTERM, signal.default_int_handler)\n{STARTING}"
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + PATIENCE_S
    while not (jvm := java_children(process.pid)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(number)
    out, said = process.communicate(timeout=PATIENCE_S)
    assert b"KeyboardInterrupt" in said
    assert b"started" not in out
    while any(Path(f"/proc/{pid}").exists() for pid in jvm):
        assert time.monotonic() < deadline, "the JVM lives on"
        time.sleep(0.05)


def test_the_java_that_was_asked_for_goes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands look for one that fits; JAVA_HOME may be any."""
    good = fake_java(tmp_path / "good", "echo 'openjdk version \"21.0.2\"' >&2")
    monkeypatch.setenv("JAVA_HOME", fake_java(tmp_path / "old", "echo 'openjdk version \"11.0.2\"' >&2"))
    assert check_java(good) == f"{good}/bin/java"
    with pytest.raises(SparkUnavailable, match="is Java 11"):
        check_java()


@pytest.mark.parametrize("has_died", [False, True])
def test_a_jvm_that_has_died_since_is_replaced(has_died: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two audits, say: each later one would ask a process that is gone. One that lives is kept."""

    def waits(timeout: float) -> None:
        if not has_died:
            raise subprocess.TimeoutExpired("java", timeout)

    jvm = SimpleNamespace(wait=waits, returncode=-9 if has_died else None)
    old: Any = SimpleNamespace(proc=jvm, shutdown=lambda: None)
    launched: list[Any] = []
    monkeypatch.setattr(pyspark.SparkContext, "_gateway", old)
    monkeypatch.setattr(pyspark.SparkContext, "_jvm", None)
    monkeypatch.setattr(pyspark.SparkContext, "_active_spark_context", "of before")
    monkeypatch.setattr(pyspark.sql.SparkSession, "_instantiatedSession", "of before")
    monkeypatch.setattr(pyspark.SparkContext, "_ensure_initialized", lambda *, gateway: launched.append(gateway))
    monkeypatch.setattr("pyspark.java_gateway.launch_gateway", lambda *_: "another")
    monkeypatch.setattr("spark_jobs.session.check_java", lambda _: str(tmp_path / "jre" / "bin" / "java"))
    monkeypatch.setenv("JAVA_HOME", "of before")
    _start_jvm(pyspark.SparkConf(loadDefaults=False), SparkSettings())
    assert launched == (["another"] if has_died else [])
    held = pyspark.SparkContext._active_spark_context, pyspark.sql.SparkSession._instantiatedSession
    assert held == ((None, None) if has_died else ("of before", "of before")), "the next one would be taken for it"
