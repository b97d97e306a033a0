"""Spark as the commands and the demo start it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from freshet.local.artifacts import jars
from freshet.local.cache import cache_dir
from freshet.local.errors import JavaError
from freshet.local.java import find_java

if TYPE_CHECKING:
    from spark_jobs.session import SparkSettings


def spark_settings(master: str, driver_memory: str, log_file: Path | None) -> SparkSettings:
    """Spark as this machine has it: the connector's pinned jars, a fitting Java, a log file of its own."""
    from spark_jobs.session import SparkSettings

    if log_file is None:
        log_file = cache_dir() / "spark.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.write_bytes(b"")
    try:
        java_home = str(Path(find_java().path).resolve().parent.parent)
    except JavaError:
        java_home = ""  # the session looks at JAVA_HOME and PATH once more, and says what is wrong
    return SparkSettings(
        master=master, jars=jars("spark"), java_home=java_home, log_file=log_file, driver_memory=driver_memory
    )
