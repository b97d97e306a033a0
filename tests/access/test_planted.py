"""Secrets of every kind are planted, everything is run with debug logs, also what fails; then what was left is read.

A credential may be nowhere but where it was put. What a row holds may be in stores and in answers, but in no log, no
metric and no list of processes.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, get_args

import httpx2
import psutil
import pytest
import tomli_w
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from pydantic import BaseModel, SecretStr

from freshet.local.mariadb import MariaDBAddress
from freshet.local.process import free_ports
from freshet.settings import Settings
from stream.access.grants import digest_of
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.dead_letters import read_letters
from stream.kafka.topics import events_topic
from tests.servers.databases import own_database
from tests.servers.secured import guarded_kafka
from tests.serving.stack import ServingStack, eventually

CREDENTIALS: Final = (
    *("kafka", "database", "owner", "bearer", "metrics", "client", "environment", "cloud"),
    *("header", "cookie", "basic", "token", "rotated"),
    *("connect", "registry", "metastore", "workload", "shard"),
)
DATA: Final = ("row", "key", "letter", "given")
ALL: Final = (*CREDENTIALS, *DATA)
IN_SETTINGS: Final = {
    "consumer.owner_token": "owner",
    "source.metrics_token": "metrics",
    "serve.bearer_token": "bearer",
    "client.token": "client",
    "schema_registry.password": "registry",
    "keyspaces.shards.password": "shard",
    "keyspaces.source.password": "database",
    "keyspaces.source.connect_password": "connect",
}
"""Each setting that is a secret → what is planted there. Of Hive and the workload: "metastore" and "workload"."""


class Planted:
    """Distinct secrets, and where they were found."""

    def __init__(self) -> None:
        self.of = {name: f"planted{secrets.token_hex(12)}" for name in ALL}

    def found_in(self, text: bytes, names: tuple[str, ...]) -> list[str]:
        """The names of those in a text, also as hexadecimal and escaped."""
        return [
            name
            for name in names
            if self.of[name].encode() in text or self.of[name].encode().hex().encode() in text.lower()
        ]


class Watcher:
    """Looks at the command lines of this process's descendants until it is stopped; `/proc/*/cmdline` is for all."""

    def __init__(self) -> None:
        self.seen: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """While the block runs, and once more at its end."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            for each in psutil.Process().children(recursive=True):
                try:
                    self.seen.add(" ".join(each.cmdline()))
                except psutil.Error:
                    continue
            self._stop.wait(0.2)


def settings_of(stack: ServingStack, planted: Planted, kafka: Mapping[str, str], ports: list[int]) -> None:
    """Writes the stack's settings anew, with a secret in each place that takes one."""
    settings, of = tomllib.loads(stack.config.read_text()), planted.of
    kafka_password = stack.directory / "kafka.password"
    kafka_password.write_text(of["kafka"] + "\n")
    extra = {name: value for name, value in kafka.items() if name != "sasl.password"}
    settings["kafka"] |= {"extra": extra, "extra_files": {"sasl.password": str(kafka_password)}}
    settings["keyspaces"]["shop"]["source"] |= {"user": "planted", "password": of["database"]}
    settings["consumer"] |= {"owner_token": of["owner"], "metrics_port": ports[0]}
    settings["source"] = {"metrics_token": of["metrics"], "metrics_port": ports[1]}
    settings["serve"] |= {
        "bearer_token": of["bearer"],
        "tokens": {"client": {"hash": digest_of(of["client"].encode()), "roles": ["admin"]}},
    }
    settings["client"] = {"token": of["client"]}
    settings["log"] = {"level": "debug"}
    del settings["consumer"]["group"]
    stack.config.write_text(tomli_w.dumps(settings))
    everything_of(stack).write_text(tomli_w.dumps(with_all_secrets(settings, planted)))


def everything_of(stack: ServingStack) -> Path:
    """The settings of the commands."""
    return stack.directory / "everything.toml"


def with_all_secrets(settings: dict[str, Any], planted: Planted) -> dict[str, Any]:
    """``settings`` with more keyspaces, so that there is one of each kind of source, and a registry: none answers."""
    of, [gone, registry] = planted.of, free_ports(2)
    mine = {name: settings["keyspaces"]["shop"]["source"][name] for name in ("host", "port", "user", "password")}
    connect = {"connect_url": f"http://127.0.0.1:{gone}", "connect_user": "u", "connect_password": of["connect"]}
    copy = {"kind": "debezium", "server": "mariadb", "databases": ["d"], "topic_prefix": "pre", **mine, **connect}
    metastore = {"kind": "hive", "uris": [f"thrift://127.0.0.1:{gone}"], "user": "u", "password": of["metastore"]}
    shards = {"-80": {"password": of["shard"]}, "80-": {}}
    more = {
        "copy": {"source": copy},
        "lake": {"kind": "catalog", "source": metastore},
        "load": {"kind": "catalog", "source": {"kind": "workload", **mine, "password": of["workload"]}},
        "wide": {"shards": shards, "source": {"kind": "mariadb", "databases": ["d"], **mine, "port": gone}},
    }
    where = {"url": f"http://127.0.0.1:{registry}", "user": "u", "password": of["registry"]}
    return settings | {"keyspaces": settings["keyspaces"] | more, "schema_registry": where}


def environment_of(planted: Planted) -> dict[str, str]:
    """Variables that hold secrets, and the one that shows tracebacks."""
    return {
        "FRESHET_DEBUG": "1",
        "FRESHET_MARIADB_PASSWORD": planted.of["environment"],
        "AWS_SECRET_ACCESS_KEY": planted.of["cloud"],
    }


def allow_all(kafka: KafkaCluster) -> None:
    """The one user of the broker may do everything."""
    admin = AdminClient(client_settings(kafka))
    kinds = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.BROKER)
    literal, allow = ResourcePatternType.LITERAL, AclPermissionType.ALLOW
    names = {ResourceType.BROKER: "kafka-cluster"}
    rights = [
        AclBinding(kind, names.get(kind, "*"), literal, "User:all", "*", AclOperation.ALL, allow) for kind in kinds
    ]
    for done in admin.create_acls(rights).values():
        done.result(60)


@contextmanager
def running(stack: ServingStack, environment: Mapping[str, str]) -> Iterator[None]:
    """The three processes, with debug logs and secrets in their environment; once the front says that it is ready."""
    stack.environment = {name: value for name, value in environment.items() if name != "FRESHET_MARIADB_PASSWORD"}
    try:
        for role in ("source", "consume", "serve"):
            stack.start(role)
        eventually(lambda: is_ready(stack), what="the front")
        yield
    finally:
        stack.close()


def is_ready(stack: ServingStack) -> bool:
    """Whether the front says so."""
    try:
        return httpx2.get(f"{stack.url}/readyz", timeout=5, trust_env=False).status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False


def commands(stack: ServingStack, letter: str) -> list[tuple[list[str], bool]]:
    """What is run, and whether it shows rows to whoever asked for them."""
    nowhere = f"127.0.0.1:{free_ports(1)[0]}"
    return [
        (["lag", "shop"], False),
        (["cluster", "status"], False),
        (["dlq", "list", "shop"], False),
        (["dlq", "show", "shop", letter], True),
        (["inspect", "shop", f"{stack.database}.items", "7"], True),
        (["get", "shop", "items", "7"], True),
        (["get", "shop", "nothing", "7"], False),
        (["backfill", "status", "shop"], False),
        (["lag", "shop", "--bootstrap", nowhere], False),
        (["snapshots", "make", "shop", "--to", str(stack.directory / "stores" / "snapshots")], False),
        (["doctor"], False),
        *((["doctor", "--source", keyspace], False) for keyspace in ("shop", "copy", "lake", "load", "wide")),
        (["log", "shop", "--to-topic", "planted"], False),
        (
            ["source", "mariadb", "--keyspace", "shop"],
            False,
        ),  # the password of the environment wins, and is wrong
    ]


def run(stack: ServingStack, words: list[str], environment: Mapping[str, str]) -> bytes:
    """A command's whole output. What it ends with does not matter here, that it ends does."""
    command = [sys.executable, "-m", "freshet", "--config", str(everything_of(stack)), *words]
    variables = {**os.environ, **environment, "FRESHET_SOURCE__METRICS_PORT": "0"}  # the other one is taken
    done = subprocess.run(command, cwd=stack.directory, env=variables, capture_output=True, timeout=300, check=False)
    return done.stdout + done.stderr


def ask_badly(stack: ServingStack, planted: Planted) -> bytes:
    """Requests with secrets in each place of one, most of them refused; what is answered to probes and scrapes."""
    of, text = planted.of, b""
    good = {"authorization": f"Bearer {of['client']}"}
    with httpx2.Client(base_url=stack.url, timeout=40, trust_env=False) as client:
        for headers in (
            {"authorization": f"Bearer {of['header']}"},
            {"authorization": f"Basic {of['basic']}", "cookie": f"x={of['cookie']}"},
            good | {"cookie": f"freshet={of['cookie']}", "freshet-token": of["token"]},
        ):
            client.get(f"/v1/rows/shop/items/{of['key']}", headers=headers, params={"token": of["token"]})
        client.put("/v1/rows/shop/items/7", headers=good, json={"row": {"id": 7, "note": of["given"]}})
        client.get(f"/v1/bytes/s3://lake/{of['key']}", headers=good)
        client.post("/v1/rows/shop:batch", headers=good, json={"keys": [{"table": "items", "pk": of["key"]}]})
        for path in ("/metrics", "/v1/status", "/openapi.json", "/v1/status/history"):
            text += client.get(path, headers=good).content
        text += client.get("/readyz").content + client.get("/metrics").content
    return text


def secret_settings(section: type[BaseModel], place: str = "") -> set[str]:
    """Names of all that hold a `SecretStr`, without the names of keyspaces, shards and tokens."""
    found = set()
    for name, field in section.model_fields.items():
        kinds = list(parts_of(field.annotation))
        found |= {f"{place}{name}"} if SecretStr in kinds else set()
        for kind in kinds:
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                found |= secret_settings(kind, f"{place}{name}.")
    return found


def parts_of(annotation: Any) -> Iterator[Any]:
    """The types in an annotation, at any depth."""
    yield annotation
    for each in get_args(annotation):
        yield from parts_of(each)


def test_every_secret_of_the_settings_is_planted() -> None:
    """So the test below looks for a new one too."""
    assert secret_settings(Settings) == IN_SETTINGS.keys()
    assert set(IN_SETTINGS.values()) <= set(CREDENTIALS)


@pytest.mark.slow
def test_planted_secrets_are_found_nowhere(mariadb: MariaDBAddress, tmp_path: Path) -> None:
    """Logs, errors, metrics, command lines and stores hold no credential; logs, metrics and errors no data."""
    planted, watcher, ports = Planted(), Watcher(), free_ports(2)
    table = "CREATE TABLE items (id INT PRIMARY KEY, note VARCHAR(80))"
    with guarded_kafka({"all": planted.of["kafka"]}) as (server, ways), own_database(mariadb, table) as database:
        make_user(mariadb, planted.of["database"])
        allow_all(server.cluster)
        stack = ServingStack(tmp_path, ways["all"], mariadb, "shop", database)
        settings_of(stack, planted, ways["all"].extra, ports)
        everything = environment_of(planted)
        with watcher.watching(), running(stack, everything):
            letter = spoil(server.cluster, planted)
            stack.run(f"INSERT INTO items VALUES (7, '{planted.of['row']}')")
            eventually(lambda: shows_row(stack, planted), what="the row in the cache")
            told: list[tuple[str, bytes, tuple[str, ...]]] = [("answers", ask_badly(stack, planted), ALL)]
            rotate(stack, planted)
            asked = commands(stack, letter)
            with ThreadPoolExecutor(2) as pool:
                outputs = list(pool.map(lambda each: run(stack, each[0], everything), asked))
            for (words, shows_rows), output in zip(asked, outputs, strict=True):
                told += [(" ".join(words), output, CREDENTIALS if shows_rows else ALL)]
            pages = [httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=40) for port in ports]
            told += [("metrics", page.content, ALL) for page in pages]
            stack.kill("consume")
    told += [("command lines", "\n".join(watcher.seen).encode(), ALL), *left_in(tmp_path, stack)]
    assert {name: found for name, text, names in told if (found := planted.found_in(text, names))} == {}
    assert [name for name, text, _ in told if b"Usage:" in text] == []
    logs = b"".join(text for name, text, _ in told if name.endswith(".log"))
    assert all(code in logs for code in (b"unauthorized", b"ready"))
    for path in (tmp_path / "stores").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, f"{path} can be read by others"


def make_user(mariadb: MariaDBAddress, password: str) -> None:
    """The source's user at the database."""
    with mariadb.connect(autocommit=True) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE USER planted@'%%' IDENTIFIED BY %s", (password,))
        cursor.execute("GRANT SELECT, REPLICATION SLAVE, BINLOG MONITOR ON *.* TO planted@'%'")


def rotate(stack: ServingStack, planted: Planted) -> None:
    """Another token is added while the front runs, and used."""
    settings = tomllib.loads(stack.config.read_text())
    settings["serve"]["tokens"]["later"] = {"hash": digest_of(planted.of["rotated"].encode())}
    stack.config.write_text(tomli_w.dumps(settings))
    headers = {"authorization": f"Bearer {planted.of['rotated']}"}
    eventually(
        lambda: httpx2.get(f"{stack.url}/v1/status", headers=headers, timeout=40).is_success, what="the new token"
    )


def spoil(kafka: KafkaCluster, planted: Planted) -> str:
    """A message that nobody can read goes into the topic; the id of its dead letter."""
    producer = Producer(client_settings(kafka))
    producer.produce(events_topic(kafka, "shop"), planted.of["letter"].encode(), planted.of["key"].encode(), 0)
    assert producer.flush(60) == 0
    return eventually(lambda: list(read_letters(kafka, "shop", values=False)), what="the dead letter")[0].id


def shows_row(stack: ServingStack, planted: Planted) -> bool:
    """Whether the owner has the row; so what is looked for can be found, where it may be."""
    return bool(planted.found_in(run(stack, ["inspect", "shop", f"{stack.database}.items", "7"], {}), ("row",)))


def left_in(place: Path, stack: ServingStack) -> Iterator[tuple[str, bytes, tuple[str, ...]]]:
    """Each file that was left, but for those where the secrets were put: name, bytes, what must not be in it."""
    for path in sorted(each for each in place.rglob("*") if each.is_file()):
        name = path.relative_to(place).as_posix()
        if path in (stack.config, everything_of(stack)) or name == "kafka.password":
            continue
        holds_rows = name.startswith("stores/")
        yield name, path.read_bytes(), CREDENTIALS if holds_rows else ALL
