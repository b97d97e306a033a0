"""Both wheels, each in an environment of its own outside the repository."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from freshet import DISTRIBUTION
from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster
from tests.patience import PATIENCE_S
from tests.serving.stack import ServingStack

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
ROOMS = {"tokens", "stream", "consumers", "serving", "spark_jobs", "freshet", "lab"}
CLIENT_BYTES_MAX = 10_000_000

CLIENT_READS = """
import importlib.util, json, sys
from freshet_client import FreshetClient
url, keyspace, shard, gtid = sys.argv[1:]
with FreshetClient(url, route=True) as client:
    session = client.session()
    session.observe(shard, f"MariaDB/{gtid}")
    row = session.get_row(keyspace, "accounts", 7)
    missing = client.session(session.token).get_row(keyspace, "accounts", 8)
unwanted = [name for name in ("pymysql", "tokens", "serving") if importlib.util.find_spec(name)]
print(json.dumps([row.value, row.freshness, missing.found, missing.freshness, unwanted]))
"""
"""Runs in the client's environment: follows a write, and continues its session in another."""


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command without our environment's settings; fails the test with the output."""
    foreign = ("FRESHET_", "PYTHON", "MAKE", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What `make dist` builds, by distribution."""
    place = tmp_path_factory.mktemp("dist")
    run("make", "dist", f"DIST={place}", cwd=ROOT)
    return {wheel.name.split("-")[0]: wheel for wheel in place.glob("*.whl")}


def install(wheel: Path, place: Path) -> Path:
    """The interpreter of a new environment with the wheel and what it asks for, at the locked versions.

    uv links them from its cache, which `make setup` has filled.
    """
    python = place / "bin" / "python"
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "--quiet", "--python", sys.executable, place, cwd=place.parent)
    wanted = (*uv, "pip", "install", "--quiet", "--python", python, "--constraints", ROOT / "requirements.lock", wheel)
    try:
        run(*wanted, "--offline", cwd=place.parent)
    except AssertionError:
        run(*wanted, cwd=place.parent)
    return python


def files_of(wheel: Path) -> set[str]:
    """The files in a wheel, without its metadata."""
    return {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}


def test_the_wheels_hold_every_file_of_their_rooms(wheels: dict[str, Path]) -> None:
    """The wheels contain the data files beside the code: schemas, pins, log settings and type markers."""
    rooms = [file for room in [*ROOMS, "schemas"] for file in (ROOT / room).rglob("*")]
    ours = {str(file.relative_to(ROOT)) for file in rooms if file.is_file() and file.suffix != ".pyc"}
    application, client = files_of(wheels["freshet_cache"]), files_of(wheels["freshet_client"])
    assert application == ours - {"serving/client/pyproject.toml"}
    assert {f"{room}/py.typed" for room in ROOMS} | {"spark_jobs/log4j2.properties"} <= application
    assert {name.split("/")[0] for name in client} == {"freshet_client"}
    assert {"freshet_client/py.typed", "freshet_client/_tokens/__init__.py", "freshet_client/LICENSE"} <= client
    assert "freshet_client/routing/_locations/cache.py" in client
    assert not {"freshet_client/_tokens.py", "freshet_client/routing/_locations.py"} & client


def test_the_application_works_from_its_wheel(wheels: dict[str, Path], tmp_path: Path) -> None:
    """In an environment with only the wheel `freshet doctor` finds every package, and lazy imports work.

    PySpark is not among them; a command that needs it says so.
    """
    freshet = install(wheels["freshet_cache"], tmp_path / "environment").with_name("freshet")
    assert run(freshet, "--version", cwd=tmp_path).split() == ["freshet", importlib.metadata.version(DISTRIBUTION)]
    found: dict[str, Any] = json.loads(run(freshet, "doctor", "--json", cwd=tmp_path))
    assert [check["status"] for check in found["checks"] if check["name"] == "packages"] == ["ok"]
    assert "histories" in run(freshet, "simulate", "--histories", "1", cwd=tmp_path)
    assert [check["status"] for check in found["checks"] if check["name"] == "spark"] == ["warning"]
    rebuild = [str(freshet), "rebuild", "--keyspace", "shop", "--to", "rebuilt"]
    refused = subprocess.run(rebuild, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert "error[spark_missing]: this installation has no pyspark and no pandas" in refused.stderr


def test_the_client_follows_a_write_from_its_wheel(
    wheels: dict[str, Path],
    kafka: KafkaCluster,
    mariadb: MariaDBAddress,
    database: str,
    keyspace_name: str,
    tmp_path: Path,
) -> None:
    """An application with only `freshet-client`, without PyMySQL, reads its own write from a live front."""
    python = install(wheels["freshet_client"], tmp_path / "environment")
    with ServingStack(tmp_path, kafka, mariadb, keyspace_name, database) as stack:
        stack.run("CREATE TABLE accounts (id INT PRIMARY KEY, name VARCHAR(20))")
        with stack.connect() as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO accounts VALUES (7, 'Ada')")
            cursor.execute("SELECT @@last_gtid")
            gtid = cursor.fetchone()[0]
        said = run(python, "-c", CLIENT_READS, stack.url, keyspace_name, stack.shard, gtid, cwd=tmp_path)
    assert json.loads(said) == [{"id": 7, "name": "Ada"}, "fresh", False, "fresh", []]
    installed = sum(file.stat().st_size for file in (tmp_path / "environment" / "lib").rglob("*") if file.is_file())
    assert installed < CLIENT_BYTES_MAX
