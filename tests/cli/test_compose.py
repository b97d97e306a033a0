"""``docker/compose.yaml``: what its containers would run starts, becomes healthy, and answers who has the token.

No container is run: the commands, the environment and the health checks of the file are, as processes of this machine.
Names of hosts and directories are replaced by what is there.
"""

from __future__ import annotations

import os
import random
import re
import socket
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import ServerProcess
from serving.client import FreshetClient
from stream.kafka.connection import KafkaCluster
from stream.kafka.locations import LocationsReader
from tests.patience import PATIENCE_S

DOCKER = Path(__file__).parents[2] / "docker"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
OURS = ("source", "consumer", "api")
NODES = ("node-1", "node-2", "node-3")
PORTS = ("8480", "8481", "9481", "9482")


def variables_of(text: str) -> str:
    """``text`` with the defaults of its variables, as Compose puts them in."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text)


def ports_of_all_addresses(count: int) -> list[int]:
    """Free ones, below those that the system gives to connections meanwhile (net.ipv4.ip_local_port_range)."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("0.0.0.0", port))
            found.append(port)
    return found


class Containers:
    """The services of the file as processes. ``places``: what stands in the file → what it is here."""

    def __init__(self, directory: Path, places: dict[str, str], more: dict[str, str]) -> None:
        self.directory, self.places = directory, places
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")} | more
        self.environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def here(self, text: str) -> str:
        """``text`` of the file as it is on this machine."""
        wanted = sorted(self.places, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, wanted)), lambda found: self.places[found[0]], variables_of(text))

    def environment_of(self, service: str) -> dict[str, str]:
        """The environment of a container, and ours: a database, a prefix of topics."""
        stated = SERVICES[service]["environment"]
        return {name: self.here(value) for name, value in stated.items()} | self.environment

    def run_once(self, service: str) -> None:
        """Runs a container that ends by itself."""
        command = [*SERVICES[service]["entrypoint"], self.here(SERVICES[service]["command"][0]).replace("$$", "$")]
        subprocess.run(command, env=self.environment, check=True, timeout=PATIENCE_S)

    @contextmanager
    def started(self, service: str) -> Iterator[ServerProcess]:
        """A container's command as a process."""
        command = [sys.executable, "-m", "freshet", *SERVICES[service]["command"]]
        log = self.directory / f"{service}.log"
        process = ServerProcess(service, command, log_file=log, env=self.environment_of(service))
        try:
            yield process
        finally:
            process.stop()

    def is_healthy(self, service: str) -> bool:
        """What its health check says."""
        _, *command = map(self.here, SERVICES[service]["healthcheck"]["test"])
        return subprocess.run(command, env=self.environment, capture_output=True, check=False).returncode == 0


def test_tokens_are_made_once_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    """A second start keeps the tokens of the first one; a file that was cut off is made anew."""
    containers = Containers(tmp_path, {"/run/freshet": str(tmp_path)}, {})
    containers.run_once("secrets")
    made = {name: (tmp_path / name).read_text() for name in ("api", "owner", "metrics")}
    assert len(set(made.values())) == 3
    assert all(len(secret) > 40 for secret in made.values())
    assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in made} == {0o600}
    (tmp_path / "api").write_text("")
    containers.run_once("secrets")
    again = {name: (tmp_path / name).read_text() for name in made}
    assert again["api"]
    assert again | {"api": made["api"]} == made


def test_prometheus_scrapes_what_listens() -> None:
    """Prometheus asks each service at the port where the file has its metrics, with a token that is made."""
    settings = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    asked = {
        target for job in settings["scrape_configs"] for each in job["static_configs"] for target in each["targets"]
    }
    listening = {
        f"source:{SERVICES['source']['environment']['FRESHET_SOURCE__METRICS_PORT']}",
        f"consumer:{SERVICES['consumer']['environment']['FRESHET_CONSUMER__METRICS_PORT']}",
        f"api:{SERVICES['api']['environment']['FRESHET_SERVE__PORT']}",
        *(f"{name}:{SERVICES[name]['environment']['FRESHET_CONSUMER__METRICS_PORT']}" for name in NODES),
        *(f"{name}:{SERVICES[name]['environment']['FRESHET_SERVE__PORT']}" for name in NODES),
    }
    assert asked == listening
    tokens = {job["authorization"]["credentials_file"] for job in settings["scrape_configs"]}
    assert tokens <= {f"/run/freshet/{name}" for name in ("api", "owner", "metrics")}
    assert (DOCKER / "prometheus" / settings["rule_files"][0]).is_file()


def settings_here(directory: Path, mariadb: MariaDBAddress, database: str) -> dict[str, str]:
    """What the environment of the file's services is on this machine."""
    return {
        "FRESHET_KAFKA__PREFIX": f"compose{time.monotonic_ns()}",
        "FRESHET_DATA_DIR": str(directory / "data"),
        "FRESHET_KEYSPACES__SHOP__SOURCE__HOST": mariadb.host,
        "FRESHET_KEYSPACES__SHOP__SOURCE__PORT": str(mariadb.port),
        "FRESHET_KEYSPACES__SHOP__SOURCE__USER": mariadb.user,
        "FRESHET_KEYSPACES__SHOP__SOURCE__PASSWORD": mariadb.password,
        "FRESHET_KEYSPACES__SHOP__SOURCE__DATABASES": database,
    }


@pytest.mark.integration
def test_the_services_start_and_answer(
    tmp_path: Path, kafka: KafkaCluster, mariadb: MariaDBAddress, database: str
) -> None:
    """With the environment of the file each service gets healthy; a row is read with the token, and not without."""
    secrets, ports = tmp_path / "secrets", ports_of_all_addresses(len(PORTS))
    secrets.mkdir()
    places = {"/run/freshet": str(secrets), "kafka:9092": kafka.bootstrap, "consumer:": "127.0.0.1:"}
    places |= {port: str(own) for port, own in zip(PORTS, ports, strict=True)}
    more = settings_here(tmp_path, mariadb, database)
    containers = Containers(tmp_path, places, more)
    containers.run_once("secrets")
    with mariadb.connect(database=database) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with ExitStack() as stack:
        running = {name: stack.enter_context(containers.started(name)) for name in OURS}
        for name, process in running.items():
            process.wait_until(lambda name=name: containers.is_healthy(name), PATIENCE_S)  # type: ignore[misc]
        with mariadb.connect(database=database, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t VALUES (1, 7)")
        url = f"http://127.0.0.1:{ports[0]}"
        with FreshetClient(url, (secrets / "api").read_text().strip()) as client:
            row = client.session().get_row("shop", f"{database}.t", 1, max_wait_ms=5_000)
        assert row.value == {"id": 1, "v": 7}
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{url}/v1/rows/shop/{database}.t/1")
        assert refused.value.code == 401
        for port, name in ((ports[2], "metrics"), (ports[3], "owner"), (ports[0], "api")):
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
            asked.add_header("Authorization", f"Bearer {(secrets / name).read_text().strip()}")
            with urllib.request.urlopen(asked) as answer:
                assert b"# HELP freshet_" in answer.read()


@pytest.mark.integration
def test_three_nodes_start_share_the_partitions_and_each_answers_for_all(
    tmp_path: Path, kafka: KafkaCluster, mariadb: MariaDBAddress, database: str
) -> None:
    """Those of the profile ``nodes``, each with its own environment: all rows are read at each of them."""
    secrets, source_port, *ports = tmp_path / "secrets", *ports_of_all_addresses(1 + 3 * len(NODES))
    secrets.mkdir()
    more = settings_here(tmp_path, mariadb, database)
    shared = {"/run/freshet": str(secrets), "kafka:9092": kafka.bootstrap}
    source = Containers(tmp_path, shared | {"9481": str(source_port)}, more)
    source.run_once("secrets")
    urls, owners, containers = dict[str, str](), dict[str, str](), dict[str, Containers]()
    for name, front, owner, metrics in zip(NODES, ports[::3], ports[1::3], ports[2::3], strict=True):
        urls[name], owners[name] = f"http://127.0.0.1:{front}", f"127.0.0.1:{owner}"
        places = {
            f"http://{name}:8480": urls[name],
            f"{name}:8481": owners[name],
            "8480": str(front),
            "8481": str(owner),
            "9482": str(metrics),
        }
        containers[name] = Containers(tmp_path, shared | places, more | {"FRESHET_DATA_DIR": str(tmp_path / name)})
    with mariadb.connect(database=database, autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    with ExitStack() as stack:
        stack.enter_context(source.started("source")).wait_until(lambda: source.is_healthy("source"), PATIENCE_S)
        for name in NODES:
            process = stack.enter_context(containers[name].started(name))
            process.wait_until(lambda name=name: containers[name].is_healthy(name), PATIENCE_S)  # type: ignore[misc]
        with mariadb.connect(database=database, autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute("INSERT INTO t SELECT seq, 7 FROM seq_1_to_20")
        own = KafkaCluster(kafka.bootstrap, prefix=more["FRESHET_KAFKA__PREFIX"])
        reader = stack.enter_context(LocationsReader(own))
        deadline = time.monotonic() + PATIENCE_S
        while {each.address for each in reader.owners("shop").values()} != set(owners.values()):
            assert time.monotonic() < deadline, reader.owners("shop")
            time.sleep(0.1)
        assert {each.front for each in reader.owners("shop").values()} == set(urls.values())
        for port in ports[2::3]:
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/metrics")
            asked.add_header("Authorization", f"Bearer {(secrets / 'owner').read_text().strip()}")
            with urllib.request.urlopen(asked) as answer:
                assert b"freshet_consumer_ready{" in answer.read()
        for url in urls.values():
            with FreshetClient(url, (secrets / "api").read_text().strip()) as client:
                session = client.session()
                rows = [session.get_row("shop", f"{database}.t", each, max_wait_ms=5_000) for each in range(1, 21)]
            assert [row.value for row in rows] == [{"id": each, "v": 7} for each in range(1, 21)]
