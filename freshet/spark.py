"""Spark's settings for the commands and the demo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from freshet.local.artifacts import jars
from freshet.local.cache import cache_dir
from freshet.local.errors import JavaError
from freshet.local.java import find_java

if TYPE_CHECKING:
    from spark_jobs.session import SparkSettings


def spark_settings(
    master: str, driver_memory: str, log_file: Path | None, *, delta: bool = False, brief: bool = False
) -> SparkSettings:
    """Settings for a Spark session: the connector's pinned jars, a supported Java, and the log file (emptied).

    ``delta``: with Delta Lake. ``brief``: as `SparkSettings` has it. Under ``spark-submit`` its command decides all of
    that. Raises `SparkUnavailable` ``spark_missing`` before anything else is tried.
    """
    from spark_jobs.exporting.delta import SETTINGS
    from spark_jobs.session import SparkSettings, check_pyspark, is_submitted

    check_pyspark()
    if is_submitted():
        return SparkSettings()
    if log_file is None:
        log_file = cache_dir() / "spark.log"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        log_file.write_bytes(b"")
    try:
        java_home = str(Path(find_java().path).resolve().parent.parent)
    except JavaError:
        java_home = ""  # the session looks at JAVA_HOME and PATH itself, and reports the problem
    return SparkSettings(
        master=master,
        jars=[*jars("spark"), *(jars("delta") if delta else [])],
        java_home=java_home,
        log_file=log_file,
        driver_memory=driver_memory,
        extra=SETTINGS if delta else {},
        brief=brief,
    )


def register(session: Any, config: Path | str | None = None) -> None:
    """Registers the data source ``freshet`` in a Spark session, over the Kafka and the snapshots of the settings.

    ``config``: the settings file; None: as the commands find it. Raises `SettingsError`, `KafkaSettingsError`.
    """
    from freshet.settings import load_settings
    from spark_jobs.source.datasource import register_source

    settings = load_settings(Path(config) if config else None)
    places = {name: each.snapshots for name, each in settings.keyspaces.items() if each.snapshots}
    register_source(session, settings.kafka.cluster, places=places)
