"""The Spark session of the jobs: the connector's version and all settings.

In a plain Python process the session starts its own JVM; under ``spark-submit`` it uses the existing one. Spark needs
Java 17 or 21 with the module ``jdk.incubator.vector``, which trimmed runtimes lack.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from consumers.snapshots.temporary import temporary_directory
from tokens.errors import FreshetError

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
"""Used as ``spark.jars.packages`` if no jars are given."""
PYTHON_PACKAGES = ("pyspark", "pandas")
"""The extra ``spark``. PySpark gives batches to tasks with pandas only."""
JAVA_VERSIONS = (17, 21)
JAVA_HINT = (
    "install a complete JRE 17 or 21 (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME to one"
)
SERIAL_COLLECTOR = "-XX:+UseSerialGC"
BRIEF_JAVA = ("-XX:TieredStopAtLevel=1", SERIAL_COLLECTOR)
"""Without the second compiler and a parallel collector, which a session of minutes pays back and one of seconds does
not."""
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
"""Whose options a JVM takes too. It does not start with two collectors."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
LOG_CONFIG = Path(__file__).with_name("log4j2.properties")


class SparkUnavailable(FreshetError):
    """Spark cannot run here. Codes: ``spark_missing``, ``java_missing``, ``java_wrong``, ``spark_unfit``,
    ``delta_missing``, ``spark_failed``.
    """

    code = "spark_failed"


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Settings of a session.

    ``jars``: the connector's jars on this machine; if empty, Spark fetches `CONNECTOR`. ``java_home``: if empty,
    JAVA_HOME or else the ``java`` on PATH. ``log_file``: for the JVM's stderr; None: this process's stderr.
    ``brief``: for one job of seconds, such as an audit: starts in less time, reads millions of small messages in more.
    ``batch_rows`` and ``batch_bytes`` bound what Spark gives to a Python worker at once (frames may be megabytes).
    """

    master: str = "local[2]"
    jars: Sequence[Path] = ()
    java_home: str = ""
    log_file: Path | None = None
    driver_memory: str = "1g"
    ui: bool = False
    brief: bool = False
    batch_rows: int = 10_000
    batch_bytes: int = 32 << 20
    extra: Mapping[str, str] = field(default_factory=dict)


def is_submitted() -> bool:
    """Whether ``spark-submit`` started this process; its JVM and master are used then."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def check_pyspark() -> None:
    """Raises `SparkUnavailable` ``spark_missing`` if the extra ``spark`` is not installed."""
    missing = [name for name in PYTHON_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkUnavailable(
            f"this installation has no {' and no '.join(missing)}",
            hint="install the extra `spark`: pip install 'freshet-cache[spark]'",
            code="spark_missing",
        )


def check_java(java_home: str = "") -> str:
    """The path of a ``java`` that runs Spark; raises `SparkUnavailable` ``java_missing`` or ``java_wrong``."""
    home = java_home or os.environ.get("JAVA_HOME", "")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if not path or not os.access(path, os.X_OK):
        where = f"no bin/java in {home}" if home else "no java on PATH, and JAVA_HOME is not set"
        raise SparkUnavailable(f"Spark needs Java 17 or 21: {where}", hint=JAVA_HINT, code="java_missing")
    command = [path, "--add-modules=jdk.incubator.vector", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    output = done.stderr + done.stdout
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    if done.returncode and "jdk.incubator.vector" in output:
        problem = "lacks the module jdk.incubator.vector"
    elif found is None:
        problem = f"does not print its version (exit code {done.returncode})"
    elif int(found[1]) not in JAVA_VERSIONS:
        problem = f"is Java {found[1]}"
    else:
        return path
    raise SparkUnavailable(f"Spark needs Java 17 or 21: {path} {problem}", hint=JAVA_HINT, code="java_wrong")


def configuration(settings: SparkSettings, *, submitted: bool) -> dict[str, str]:
    """The Spark properties of a session, without those that the ``spark-submit`` command decides."""
    properties = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(settings.batch_rows),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(settings.batch_bytes),
        "spark.sql.adaptive.enabled": "false",
        "spark.speculation": "false",
        "spark.sql.shuffle.partitions": "8",  # nothing of size is shuffled: kinds of rows are counted
        "spark.databricks.delta.snapshotPartitions": "4",  # of a table's log, which has a line for each file
        # Spark's own INT96 is read as nanoseconds, of which 64 bits end in 2262
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    }
    if not submitted:
        java = [f"-Dlog4j2.configurationFile={LOG_CONFIG}", *(_brief_java() if settings.brief else ())]
        properties |= {
            "spark.master": settings.master,
            "spark.driver.memory": settings.driver_memory,
            _JAVA_OPTIONS: " ".join(java),
            "spark.ui.enabled": str(settings.ui).lower(),
            "spark.ui.showConsoleProgress": "false",
            "spark.pyspark.python": sys.executable,
            "spark.pyspark.driver.python": sys.executable,
        }
        properties |= _connector(settings)
        if settings.master.startswith("local"):
            properties |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    return properties | dict(settings.extra)


def _brief_java() -> list[str]:
    chosen = " ".join(os.environ.get(name, "") for name in JAVA_VARIABLES)
    has_collector = re.search(r"-XX:\+Use\w+GC\b", chosen) is not None
    return [each for each in BRIEF_JAVA if each != SERIAL_COLLECTOR or not has_collector]


def _connector(settings: SparkSettings) -> dict[str, str]:
    if not settings.jars:
        return {"spark.jars.packages": CONNECTOR}
    jars = [str(jar) for jar in settings.jars]
    if settings.master.startswith("local"):
        # spark.jars would be copied through the driver's own file server
        return {"spark.driver.extraClassPath": os.pathsep.join(jars)}
    return {"spark.jars": ",".join(jars)}


@contextmanager
def spark_session(app: str, settings: SparkSettings | None = None) -> Iterator[Any]:
    """A ``SparkSession`` named ``app``, stopped at the end of the block.

    Raises `SparkUnavailable` if there is no suitable Java, or if Spark does not start.
    """
    settings = settings or SparkSettings()
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it logs a traceback for each interrupt and error
    logging.getLogger().addFilter(_not_py4j)
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    submitted = is_submitted()
    conf = SparkConf(loadDefaults=submitted)
    conf.setAppName(app).setAll(list(configuration(settings, submitted=submitted).items()))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the JVM plans data sources of Python with it
    if not submitted:
        _start_jvm(conf, settings)
    interrupt = signal.getsignal(signal.SIGINT)
    try:
        session = SparkSession(SparkContext(conf=conf))
    except Exception as error:
        raise _start_failed(error, settings) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt)  # Spark's handler calls the JVM during another call, and fails
    try:
        check_version(session.version)
        yield session
    finally:
        _stop(session)


def _stop(session: Any) -> None:
    """Stops it. One whose JVM has died is forgotten, so that the next session of this process starts another one."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    try:
        session.stop()
    except Exception:
        if not _has_died(gateway, wait_s=5):
            raise
        _forget_jvm(gateway)


def _has_died(gateway: Any, wait_s: float = 0) -> bool:
    """Whether the JVM that this process has started is gone, or goes within ``wait_s``."""
    jvm = getattr(gateway, "proc", None)
    if jvm is None:
        return False
    with suppress(subprocess.TimeoutExpired):
        jvm.wait(wait_s)
    return jvm.returncode is not None


def _forget_jvm(gateway: Any) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):
        gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None


def check_version(version: str) -> None:
    """Raises `SparkUnavailable` ``spark_unfit`` if Spark's ``version`` is of another minor one than the connector's."""
    wanted = CONNECTOR.rpartition(":")[2]
    if version.split(".")[:2] != wanted.split(".")[:2]:
        minor = wanted.rpartition(".")[0]
        raise SparkUnavailable(
            f"this is Spark {version}, Freshet needs {minor}",
            hint=f"use the spark-submit of a Spark {minor}, for example the one of `pip install pyspark=={minor}.*`",
            code="spark_unfit",
        )


def connector_missing() -> SparkUnavailable:
    """The error of a Spark that does not know the format ``kafka``."""
    return SparkUnavailable(
        "this Spark has no Kafka connector", hint=f"submit with --packages {CONNECTOR}", code="spark_unfit"
    )


def _not_py4j(record: logging.LogRecord) -> bool:
    """A log filter that drops py4j's records: it logs interrupts to the root logger, with a traceback."""
    return "py4j" not in record.pathname


def _start_jvm(conf: Any, settings: SparkSettings) -> None:
    """Starts the JVM for all sessions of this process, with its stderr in the log file."""
    from pyspark import SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    if _has_died(SparkContext._gateway):
        _forget_jvm(SparkContext._gateway)
    if SparkContext._gateway is not None:
        return
    java = check_java(settings.java_home)
    os.environ["JAVA_HOME"] = str(Path(java).resolve().parent.parent)
    if settings.master.startswith("local"):  # executors on other machines call the driver by its name
        os.environ.setdefault("SPARK_LOCAL_HOSTNAME", "localhost")
    with signals_deferred():
        try:
            temporary = shlex.quote(f"-Djava.io.tmpdir={_jvm_directory()}")
            conf.set(_JAVA_OPTIONS, f"{conf.get(_JAVA_OPTIONS, '')} {temporary}")
            if settings.log_file is None:
                gateway = launch_gateway(conf)
            else:
                with settings.log_file.open("ab") as log:
                    gateway = launch_gateway(conf, {"stdout": log, "stderr": log})
        except (PySparkRuntimeError, OSError) as error:
            raise _start_failed(error, settings) from error
        SparkContext._ensure_initialized(gateway=gateway)


@cache
def _jvm_directory() -> Path:
    """Where the JVM of this process has its temporary files, Spark's local ones among them, until this process ends."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(temporary_directory("spark"))


@contextmanager
def signals_deferred() -> Iterator[Sequence[int]]:
    """Has SIGINT and SIGTERM wait until the block ends, in whatever way; yields those that wait. Ignored ones stay so.

    An exception amid a call to the JVM leaves py4j's connection unusable.

    A JVM that is abandoned while it starts lives on: it fails to report its port, and waits. One that has started ends
    when this process does.
    """
    met: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield met
        return
    taken = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda got, _: met.append(got)) for number in taken}
    try:
        yield met
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if met:
            signal.raise_signal(met[0])


def _start_failed(error: Exception, settings: SparkSettings) -> SparkUnavailable:
    where = f"; see {settings.log_file}" if settings.log_file else ""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return SparkUnavailable(
        f"Spark did not start: {lines[0]}{where}", hint="run `freshet doctor` to see what is missing"
    )
