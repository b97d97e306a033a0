"""The rights at Kafka that docs/operating/security.md names: each process works with its own, as its own user."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster, KafkaDenied, client_settings
from stream.kafka.dead_letters import DeadLetter, DeadLetterPublisher
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import TopicError, ensure_locations_topic, ensure_topics
from stream.wire.codec import decode
from tests.access.rights import USERS, give, rights
from tests.consumers.histories import value
from tests.lengths import LONG
from tests.servers.databases import own_database
from tests.servers.secured import guarded_kafka
from tests.serving.stack import ServingStack, eventually, without_settings

ROLES = {"source": "source", "consume": "consumer", "serve": "front"}
COMMAND_TIMEOUT_S = 400


@pytest.fixture
def users() -> Iterator[dict[str, KafkaCluster]]:
    """Ways into a broker, for each user of the page with its rights, and for one without any."""
    with guarded_kafka({name: f"{name}-secret" for name in (*USERS, "stranger")}) as (server, found):
        give(AdminClient(client_settings(server.cluster)), rights())
        yield found


class Commands:
    """The commands that people run beside the processes, each with a user's settings."""

    def __init__(self, stack: ServingStack, users: dict[str, KafkaCluster]) -> None:
        self._stack = stack
        settings = tomllib.loads(stack.config.read_text())
        del settings["consumer"]["group"]
        for user, kafka in users.items():
            settings["kafka"]["extra"] = dict(kafka.extra)
            (stack.directory / f"as-{user}.toml").write_text(tomli_w.dumps(settings))

    def run(self, user: str, *command: str) -> str:
        """The output of a command that ends well."""
        config = str(self._stack.directory / f"as-{user}.toml")
        environment = without_settings() | {"PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            [sys.executable, "-m", "freshet", "--config", config, *command],
            cwd=self._stack.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, f"{command} as {user}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_each_process_works_with_its_own_rights_and_no_others(
    users: dict[str, KafkaCluster], mariadb: MariaDBAddress, tmp_path: Path
) -> None:
    """A row goes from the source to a reader, a letter back; who lacks a right is told by code and hint which."""
    with pytest.raises(KafkaDenied) as denied:
        ensure_topics(users["stranger"], "shop", 2)
    assert denied.value.code == "kafka_denied"
    assert "stranger lacks a right on a topic" in denied.value.hint
    with pytest.raises(TopicError) as early:  # who may not make the topic of locations waits until the source has
        ensure_locations_topic(users["consumer"])
    assert early.value.code == "topic_missing"
    with own_database(mariadb, "CREATE TABLE items (id INT PRIMARY KEY, v INT)") as database:
        stack = ServingStack(tmp_path, users["source"], mariadb, "shop", database)
        commands = Commands(stack, users)
        for role, user in ROLES.items():
            (tmp_path / f"{role}.toml").write_text((tmp_path / f"as-{user}.toml").read_text())
        with stack:
            _row_reaches_a_reader(stack)
            _operators_commands_work(stack, commands, users["consumer"])
            _sparks_commands_work(stack, commands)
            logs = "".join(stack.log_of(role) for role in ROLES)
        assert "kafka_denied" not in logs
        assert not [user for user in users if f"{user}-secret" in logs]
    for user in ("consumer", "front", "spark"):  # who answers reads can't write history
        said: list[KafkaException] = []
        producer = Producer(client_settings(users[user]))
        producer.produce("freshet.shop.events", b"x", on_delivery=lambda error, _, said=said: said.append(error))
        producer.flush(60)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(said[0].name())


def _row_reaches_a_reader(stack: ServingStack) -> None:
    connection = stack.connect()
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO items VALUES (7, 1)")
        cursor.execute("SELECT @@last_gtid")
        [gtid] = cursor.fetchone()
    with stack.client() as client:
        session = client.session()
        session.observe("shop/0", f"MariaDB/{gtid}")
        eventually(lambda: session.get_row("shop", "items", 7).served_from == "cache", what="the row in the cache")
        events = client.stream("shop")
        assert next(events)
    with urllib.request.urlopen(f"{stack.url}/v1/dead-letters/shop") as letters:
        assert json.load(letters) == {"number": 0, "letters": []}


def _operators_commands_work(stack: ServingStack, commands: Commands, consumer: KafkaCluster) -> None:
    """The source is asked for a backfill, and takes it; a letter that the consumer kept is put back."""
    assert json.loads(commands.run("operator", "backfill", "start", "shop", "items", "--json"))["taken"]
    topic, letters = "freshet.shop.events", DeadLetterPublisher(consumer, "shop")
    [end] = end_offsets(consumer, topic, [0]).values()
    known = next(each for each in read_range(consumer, topic, 0, 0, end) if decode(each.value())[0] == "TableSchema")
    letters.send(DeadLetter(topic, 0, known.offset(), "unknown_schema", "of a test", known.value()))
    letters.flush()
    assert "put back" in commands.run("operator", "dlq", "retry", "shop")
    letters.send(DeadLetter(topic, 0, end, "unknown_schema", "made up", value(1, b"{}", 1)))
    letters.flush()
    assert "dismissed" in commands.run("operator", "dlq", "dismiss", "shop", "--all")
    lag: dict[str, Any] = json.loads(commands.run("operator", "lag", "shop", "--json"))
    assert [each["partition"] for each in lag["partitions"]] == [0, 1]
    stack.wait_ready()


def _sparks_commands_work(stack: ServingStack, commands: Commands) -> None:
    """The jobs run to their end with the rights of Spark's user; it is Java's client that reads the topic."""
    made, log = stack.directory / "made", ("--spark-log", str(stack.directory / "spark.log"))
    assert "equal, byte for byte" in commands.run("spark", "verify", "shop", *log)
    for command, target in (("rebuild", "stores"), ("export", "files")) if LONG else ():
        wanted = (command, "--keyspace", "shop", "--to", str(made / target), "--json", *log)
        assert json.loads(commands.run("spark", *wanted))["rows"] > 0
