"""The rights at Kafka that docs/operating/security.md names: each process works with its own, as its own user."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from freshet.local.mariadb import MariaDBAddress
from stream.kafka.connection import KafkaCluster, KafkaDenied, client_settings
from stream.kafka.topics import ensure_topics
from tests.servers.databases import own_database
from tests.servers.secured import guarded_kafka
from tests.serving.stack import ServingStack, eventually

PAGE = Path(__file__).parents[2] / "docs/operating/security.md"
ROLES = {"source": "source", "consume": "consumer", "serve": "front"}
KINDS = {"--topic": "TOPIC", "--group": "GROUP", "--transactional-id": "TRANSACTIONAL_ID"}


def rights() -> list[AclBinding]:
    """Those of the page's commands."""
    found = []
    for line in re.findall(r"^acl (.*)$", PAGE.read_text(), re.MULTILINE):
        words = shlex.split(line)
        given = list(zip(words[::2], words[1::2], strict=True))
        one = dict(given)
        [kind] = KINDS.keys() & one.keys()
        pattern = one.get("--resource-pattern-type", "literal").upper()
        for name, operation in given:
            if name == "--operation":
                shouted = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).upper()
                found.append(
                    AclBinding(
                        ResourceType[KINDS[kind]],
                        one[kind],
                        ResourcePatternType[pattern],
                        one["--allow-principal"],
                        "*",
                        AclOperation[shouted],
                        AclPermissionType.ALLOW,
                    )
                )
    return found


@pytest.fixture
def users() -> Iterator[dict[str, KafkaCluster]]:
    """Ways into a broker, for the user of each role with its rights, and for one without any."""
    with guarded_kafka({name: f"{name}-secret" for name in (*ROLES.values(), "stranger")}) as (server, found):
        admin = AdminClient(client_settings(server.cluster))
        for done in admin.create_acls(rights()).values():
            done.result(60)
        yield found


@pytest.mark.slow
def test_each_process_works_with_its_own_rights_and_no_others(
    users: dict[str, KafkaCluster], mariadb: MariaDBAddress, tmp_path: Path
) -> None:
    """A row goes from the source to a reader; who lacks a right is told by code and hint which."""
    with pytest.raises(KafkaDenied) as denied:
        ensure_topics(users["stranger"], "shop", 2)
    assert denied.value.code == "kafka_denied"
    assert "stranger lacks a right on a topic" in denied.value.hint
    with own_database(mariadb, "CREATE TABLE items (id INT PRIMARY KEY, v INT)") as database:
        stack = ServingStack(tmp_path, users["source"], mariadb, "shop", database)
        settings = tomllib.loads(stack.config.read_text())
        del settings["consumer"]["group"]
        for role, user in ROLES.items():
            settings["kafka"]["extra"] = dict(users[user].extra)
            (tmp_path / f"{role}.toml").write_text(tomli_w.dumps(settings))
        with stack:
            connection = stack.connect()
            with connection.cursor() as cursor:
                cursor.execute("INSERT INTO items VALUES (7, 1)")
                cursor.execute("SELECT @@last_gtid")
                [gtid] = cursor.fetchone()
            with stack.client() as client:
                session = client.session()
                session.observe("shop/0", f"MariaDB/{gtid}")
                eventually(
                    lambda: session.get_row("shop", "items", 7).served_from == "cache", what="the row in the cache"
                )
                events = client.stream("shop")
                assert next(events)
            with urllib.request.urlopen(f"{stack.url}/v1/dead-letters/shop") as letters:
                assert json.load(letters) == {"number": 0, "letters": []}
            logs = "".join(stack.log_of(role) for role in ROLES)
        assert "kafka_denied" not in logs
        assert not [user for user in users if f"{user}-secret" in logs]
    for user in ("consumer", "front"):  # who answers reads can't write history
        said: list[KafkaException] = []
        producer = Producer(client_settings(users[user]))
        producer.produce("freshet.shop.events", b"x", on_delivery=lambda error, _, said=said: said.append(error))
        producer.flush(60)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(said[0].name())
