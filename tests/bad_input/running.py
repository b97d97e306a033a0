"""Runs `freshet` as a process, for its exit code and output."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from tests.patience import PATIENCE_S


def freshet_fails(*arguments: str) -> str:
    """Runs `freshet`, which must end by itself with exit code 1 and without a traceback; returns its stderr."""
    done = subprocess.run(
        [sys.executable, "-m", "freshet", "--log-format", "json", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error[") == 1
    return done.stderr


def source_arguments(kafka: KafkaCluster, mariadb: MariaDBAddress, database: str, keyspace: str) -> list[str]:
    """The arguments of `freshet source mariadb` for one database; the password is passed in the environment."""
    os.environ["FRESHET_MARIADB_PASSWORD"] = mariadb.password
    return [
        *("source", "mariadb", "--keyspace", keyspace, "--bootstrap", kafka.bootstrap, "--database", database),
        *("--host", mariadb.host, "--port", str(mariadb.port), "--user", mariadb.user),
        *("--server-id", str(random.randrange(10**6, 10**9))),
    ]
