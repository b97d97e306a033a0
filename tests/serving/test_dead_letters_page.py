"""Dead letters through a front: shown to admins only, with the commands that resolve them, and never changed."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.access.grants import ADMIN, READ, Access, Credential, Grant, digest_of
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter, read_letters
from stream.kafka.topics import ensure_topics, events_topic
from stream.wire.keys import Layout
from tests.serving.asking import client_of
from tests.stream.test_dead_letters import GOOD, send_letters


def asked(
    keyspace: str, path: str, kafka: KafkaCluster | None, *, access: Access | None = None, **parameters: str
) -> httpx2.Response:
    """One request to a front of this keyspace."""
    front = make_front([RowSpace(keyspace, Layout(2))], Locations(), kafka=kafka, access=access)

    async def story() -> httpx2.Response:
        async with client_of(make_app(front)) as client:
            return await client.get(path, params=parameters, auth=("me", "some") if access else None)

    return asyncio.run(story())


@pytest.fixture
def letters(kafka: KafkaCluster, keyspace_name: str) -> list[DeadLetter]:
    """Two letters in Kafka: one that can't be decoded, whose reason is markup, and one that can."""
    ensure_topics(kafka, keyspace_name, 2)
    topic = events_topic(kafka, keyspace_name)
    found = [
        DeadLetter(topic, 0, 17, "not_freshet", "starts with <b>", b'{"a":1}', 7),
        DeadLetter(topic, 1, 3, "unknown_schema", "newer?", GOOD, len(GOOD)),
    ]
    send_letters(kafka, keyspace_name, *found)
    return found


def test_letters_are_told_and_stay(kafka: KafkaCluster, keyspace_name: str, letters: list[DeadLetter]) -> None:
    """All of them without content, one with it; looking resolves none."""
    bad, good = letters
    path = f"/v1/dead-letters/{keyspace_name}"
    found = asked(keyspace_name, path, kafka).json()
    assert found["number"] == 2
    assert found["letters"] == [
        {"id": bad.id, "code": "not_freshet", "reason": "starts with <b>", "size": 7},
        {"id": good.id, "code": "unknown_schema", "reason": "newer?", "size": len(GOOD)},
    ]
    [one] = asked(keyspace_name, path, kafka, letter=good.id).json()["letters"]
    assert (one["record"]["name"], one.get("problem"), one["start"][:4]) == ("TableVoid", None, "c301")
    [other] = asked(keyspace_name, path, kafka, letter=bad.id).json()["letters"]
    assert other["problem"]
    assert asked(keyspace_name, path, kafka, letter="no/0/1").status_code == 404
    assert read_letters(kafka, keyspace_name) == letters


def test_the_page_has_the_commands_and_no_markup_of_letters(
    kafka: KafkaCluster, keyspace_name: str, letters: list[DeadLetter]
) -> None:
    """What a message says is text; the commands can be pasted."""
    listed = asked(keyspace_name, "/dead-letters", kafka).text
    assert "starts with &lt;b&gt;" in listed
    page = asked(keyspace_name, "/dead-letters", kafka, letter=letters[1].id).text
    assert f"freshet dlq retry {keyspace_name} {letters[1].id}" in page
    assert "it can be put back" in page
    empty = asked(keyspace_name, "/dead-letters", kafka, letter="no/0/1")
    assert (empty.status_code, 'role="alert"' in empty.text) == (404, True)


def test_a_keyspace_without_letters_and_one_without_topics(kafka: KafkaCluster, keyspace_name: str) -> None:
    """Nothing there is good news; a topic that is not there is said."""
    assert asked(keyspace_name, f"/v1/dead-letters/{keyspace_name}", kafka).json()["code"] == "letters_unavailable"
    ensure_topics(kafka, keyspace_name, 1)
    assert "No dead letters" in asked(keyspace_name, "/dead-letters", kafka).text


def test_only_an_admin_sees_them() -> None:
    """A reader gets 403; a keyspace that is not there is 404; without Kafka it is said."""
    reader = Access([Credential(Grant("some", frozenset({READ}), None), digest_of(b"some"))])
    admin = Access([Credential(Grant("some", frozenset({ADMIN}), None), digest_of(b"some"))])
    for path in ("/dead-letters", "/v1/dead-letters/shop"):
        assert asked("shop", path, None, access=reader).status_code == 403
        refused = asked("shop", path, None, access=admin)
        assert (refused.status_code, "letters_unavailable" in refused.text) == (503, True)
    assert asked("shop", "/v1/dead-letters/payroll", None).status_code == 404
