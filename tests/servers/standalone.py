"""A Spark standalone cluster as processes, from PySpark's own jars: a master, and workers with one core each."""

from __future__ import annotations

import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pyspark

from freshet.local.java import find_java
from freshet.local.process import ServerProcess, free_ports

SPARK_HOME: Final = Path(pyspark.__file__).parent
START_TIMEOUT_S: Final = 120.0
EXECUTOR: Final = "CoarseGrainedExecutorBackend"
DEPLOY: Final = "org.apache.spark.deploy"


@dataclass(frozen=True, slots=True)
class Standalone:
    """A running cluster. ``url``: its master; ``workers``: the workers' processes, which are the executors' parents."""

    url: str
    workers: tuple[ServerProcess, ...]

    def executors(self) -> list[psutil.Process]:
        """The processes of the executors' JVMs that run now."""
        found = []
        for worker in self.workers:
            for child in psutil.Process(worker.pid).children(recursive=True):
                try:
                    found += [child] if any(EXECUTOR in word for word in child.cmdline()) else []
                except psutil.Error:
                    continue  # it has just ended
        return found


def spark_environment() -> dict[str, str]:
    """The environment of Spark's programs here: a Java that it takes, and this machine as the only host."""
    home = str(Path(find_java().path).resolve().parent.parent)
    here = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
    return os.environ | here | {"JAVA_HOME": home}


@contextmanager
def standalone(workers: int = 2) -> Iterator[Standalone]:
    """Starts a cluster, and stops it at the end of the block."""
    environment = spark_environment() | {"SPARK_HOME": str(SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"}
    environment["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"  # it wants a fixed port
    port, page = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="freshet-cluster-") as directory, ExitStack() as stack:
        environment["SPARK_LOCAL_DIRS"] = directory  # of executors: those that are killed leave theirs
        started = []

        def start(name: str, *arguments: str) -> None:
            command = [str(SPARK_HOME / "bin" / "spark-class"), f"{DEPLOY}.{arguments[0]}", *arguments[1:]]
            log = Path(directory) / f"{name}.log"
            process = ServerProcess(name, command, log_file=log, env=environment, cwd=Path(directory))
            stack.callback(process.stop)
            started.append(process)

        start("master", "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        url = f"spark://127.0.0.1:{port}"
        for number in range(workers):
            place = ["--host", "127.0.0.1", "--webui-port", "0", "--work-dir", f"{directory}/work-{number}"]
            start(f"worker-{number}", "worker.Worker", *place, "--cores", "1", "--memory", "2g", url)
        started[0].wait_until(lambda: _alive(page) == workers, START_TIMEOUT_S)
        yield Standalone(url, tuple(started[1:]))


def _alive(page: int) -> int:
    """How many workers the master knows."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError):  # the page answers, in HTML, before its JSON does
        return 0
