"""The read API as it runs, with real owners and a real source: garbage, and whatever its description allows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from tests.fuzz.mutate import Rng
from tests.fuzz.targets import http
from tests.lengths import length
from tests.serving.stack import ServingStack

pytestmark = pytest.mark.long

SEED = 7
ATTACKS = length(share=200, whole=400)
EXAMPLES = length(share=15, whole=40)
"""Of each operation of the API."""
CHECKS = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", 400, 404, 409]  # a text of the right type may still be no token, key or list

[parameters]
"path.keyspace" = ["{keyspace}"]
"path.table" = ["t", "{database}.t", "missing"]
"path.partition" = [0, 1, 2]

[[operations]]
include-path = "/v1/stream"  # one that is found has no end
parameters = {{ "query.keyspace" = ["missing"] }}
"""


@pytest.fixture
def stack(
    tmp_path: Path, kafka: KafkaCluster, mariadb: MariaDBAddress, database: str, keyspace_name: str
) -> Iterator[ServingStack]:
    """A keyspace of rows with a table ``t``."""
    with mariadb.connect(database=database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, name VARCHAR(40)) CHARACTER SET utf8mb4")
        cursor.execute("INSERT INTO t VALUES (0, 'zero'), (1, 'eins'), (7, 'sieben')")
    with ServingStack(tmp_path, kafka, mariadb, keyspace_name, database) as made:
        yield made


def test_garbage_on_sockets_is_refused_and_everybody_else_is_served(stack: ServingStack) -> None:
    """Each malformed request gets a refusal with code, line and hint, or nothing; a reader beside it gets its row."""
    address = ("127.0.0.1", stack.port)
    for number in range(ATTACKS):
        http.attack(address, http.mutated(Rng(f"api/{SEED}/{number}")))
        if number % 50 == 0:
            assert stack.get(f"/v1/rows/{stack.keyspace}/t/7").json()["row"] == {"id": 7, "name": "sieben"}
    log = stack.log_of("serve")
    assert "Traceback" not in log
    assert "incident" not in log


def test_the_running_api_is_as_it_is_described(stack: ServingStack, tmp_path: Path) -> None:
    """schemathesis finds no status, content type or body that /openapi.json does not name, and no server error."""
    config = tmp_path / "schemathesis.toml"
    config.write_text(CHECKS.format(keyspace=stack.keyspace, database=stack.database))
    command = [str(Path(sys.executable).parent / "schemathesis"), "--config-file", str(config), "run"]
    options = ["--checks", "all", "--max-examples", str(EXAMPLES), "--seed", str(SEED), "--no-color"]
    done = subprocess.run(
        [*command, f"{stack.url}/openapi.json", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert httpx2.get(f"{stack.url}/readyz", timeout=40).status_code == 200
    assert "Traceback" not in stack.log_of("serve")
