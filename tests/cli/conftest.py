"""A settings file of keyspaces on real servers."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from stream.kafka.connection import KafkaCluster

SETTINGS = """\
data_dir = "{data}"
[kafka]
bootstrap = "{kafka}"
prefix = "{prefix}"
[serve]
port = {front}
[keyspaces.shop.source]
kind = "mariadb"
host = "{host}"
port = {port}
user = "{user}"
password = "{password}"
databases = ["{database}"]
[keyspaces.away.source]
kind = "mariadb"
host = "127.0.0.1"
port = {nobody}
databases = ["away"]
"""


@pytest.fixture
def settings(tmp_path: Path, kafka: KafkaCluster, mariadb: MariaDBAddress, database: str) -> Path:
    """A settings file with a keyspace whose source answers and one whose doesn't."""
    front, nobody = free_ports(2)
    file = tmp_path / "freshet.toml"
    file.write_text(
        SETTINGS.format(
            data=tmp_path / "data",
            kafka=kafka.bootstrap,
            prefix=f"up{time.monotonic_ns()}",
            front=front,
            nobody=nobody,
            host=mariadb.host,
            port=mariadb.port,
            user=mariadb.user,
            password=mariadb.password,
            database=database,
        )
    )
    return file
