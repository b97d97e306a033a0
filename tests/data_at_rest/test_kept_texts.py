"""Tokens, dead letters, announcements and frames that others keep read the same forever, or are refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from consumers.owner.client import OwnerClient
from consumers.owner.framing import decode_request, encode_frame
from consumers.owner.protocol import (
    VERSION,
    Hello,
    OwnerError,
)
from serving.errors import ReadError
from serving.http.limits import RequestLimits
from serving.http.query import demand_of
from stream.kafka.connection import KafkaCluster
from stream.kafka.dead_letters import DeadLetter, _letter
from stream.kafka.locations import (
    Announcement,
    LocationsReader,
    decode_announcement,
    encode_announcement,
    supersedes,
)
from tests.consumers.owning import Owner
from tokens import EventToken, Position, TokenError, Vector

SEEN = Vector({"shop/0": (1, Position.parse("MariaDB/0-1-5,1-2-9")), "hive/0": (3, Position.parse("HiveEvent/190"))})
FIRST_SESSION_TOKEN = "v1.W1siaGl2ZS8wIiwzLCJIaXZlRXZlbnQvMTkwIl0sWyJzaG9wLzAiLDEsIk1hcmlhREIvMC0xLTUsMS0yLTkiXV0"
SESSION_TOKEN = "v2.AAZoaXZlLzADA74BAAZzaG9wLzABCQABBQECCSEgguI"
UUID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER_FLAVORS = Vector(
    {
        "müller/0": (2**63 - 1, Position.parse("FilePos/mysql-bin.000012:154")),
        "shop/-04": (1, Position.parse(f"MySQL56/{UUID}:1-5:8:blue:1-2")),
        "shop/04-08": (1, Position.parse(f"MySQL56/{UUID}:7")),
    }
)
OTHER_FLAVORS_TOKEN = (
    "v2.AAltw7xsbGVyLzD__________39wRmlsZVBvcy9teXNxbC1iaW4uMDAwMDEyOjE1NAAIc2hvcC8tMDQBCgA-Efp"
    "HccoR4Z4zyAqpQpViBAAEAQABAwRibHVlAAEFBTA0LTA4AQYBAgYAEivHpg"
)
EVENT_TOKEN = (
    "time=1700000000;shard=shop/0;epoch=2;position=MariaDB/0-1-5",
    EventToken(1_700_000_000, "shop/0", Position.parse("MariaDB/0-1-5"), epoch=2),
)
NEWER_TOKEN = "v3." + SESSION_TOKEN.removeprefix("v2.")
LETTER_HEADERS = [
    ("code", b"truncated"),
    ("reason", b"the body ends in field keys"),
    ("topic", b"freshet.shop.events"),
    ("partition", b"2"),
    ("offset", b"41"),
    ("size", b"20971520"),
]
LETTER = DeadLetter("freshet.shop.events", 2, 41, "truncated", "the body ends in field keys", b"\xc3\x01x", 20_971_520)
ANNOUNCEMENT = (
    b'{"keyspace":"shop","partition":3,"address":"127.0.0.1:9100","instance":"a-7","layout":"xxh3_64;partitions=4",'
    b'"topic_id":"t","started_at":1700000000,"positions":{"shop/0":"MariaDB/0-1-5"},"gone":false}'
)
ANNOUNCED = Announcement(
    keyspace="shop",
    partition=3,
    address="127.0.0.1:9100",
    instance="a-7",
    layout="xxh3_64;partitions=4",
    topic_id="t",
    started_at=1_700_000_000,
    positions={"shop/0": "MariaDB/0-1-5"},
)
FOLLOWER = (
    b'{"keyspace":"shop","partition":3,"address":"127.0.0.1:9200","instance":"b-1","layout":"","topic_id":"t",'
    b'"started_at":1700000000,"positions":{},"gone":true,"generation":0,"swap":0,"group":"freshet.next",'
    b'"role":"follower","zone":"east","epoch":12,"left":false}'
)
NO_FRONT, WITHOUT_FRONT = b'"epoch":12', b'"front":"","leaving":false,"epoch":12'
"""Of before there were nodes, and since owners say that they leave."""
NODE = (
    b'{"keyspace":"shop","partition":3,"address":"127.0.0.1:9100","instance":"a-7","layout":"","topic_id":"t",'
    b'"started_at":1700000000,"positions":{},"gone":false,"generation":7,"swap":0,"group":"freshet.main","role":"owner",'
    b'"zone":"east","front":"https://a:8480","epoch":0,"left":false}'
)
FOLLOWS = Announcement(
    keyspace="shop",
    partition=3,
    address="127.0.0.1:9200",
    instance="b-1",
    topic_id="t",
    started_at=1_700_000_000,
    generation=12,
    group="freshet.next",
    role="follower",
    zone="east",
)
HELLO = b"\x00\x00\x00\n\x94\xa5hello\x01\x01\xa0"
"""Of version 1. Later ones add fields at its end."""


class Record:
    """A record as Kafka's client gives it."""

    def __init__(self, key: bytes, value: bytes, headers: list[tuple[str, bytes]] | None = None) -> None:
        self._parts = key, value, headers

    def key(self) -> bytes:
        return self._parts[0]

    def value(self) -> bytes:
        return self._parts[1]

    def headers(self) -> list[tuple[str, bytes]] | None:
        return self._parts[2]

    def offset(self) -> int:
        return 0


def test_kept_tokens_read_the_same() -> None:
    """A kept session token of any format keeps its meaning, and is printed in the newest format."""
    assert Vector.parse(FIRST_SESSION_TOKEN) == SEEN
    assert str(Vector.parse(FIRST_SESSION_TOKEN)) == SESSION_TOKEN
    for text, vector in ((SESSION_TOKEN, SEEN), (OTHER_FLAVORS_TOKEN, OTHER_FLAVORS)):
        assert (Vector.parse(text), str(Vector(dict(vector.items())))) == (vector, text)
    text, token = EVENT_TOKEN
    assert (EventToken.parse(text), str(token)) == (token, text)


def test_a_token_of_a_newer_format_is_refused_by_its_number() -> None:
    """It is not reported as damaged, and the hint says what to do."""
    with pytest.raises(TokenError, match="format v3") as refused:
        Vector.parse(NEWER_TOKEN)
    assert refused.value.code == "bad_token"
    assert "newer Freshet" in refused.value.hint
    with pytest.raises(ReadError, match="format v3") as told:
        demand_of(NEWER_TOKEN, None, RequestLimits())
    assert told.value.status == 400
    assert "newer Freshet" in told.value.hint


@pytest.mark.parametrize("more", [[], [("later", b"a header of a newer version")]])
def test_a_kept_dead_letter_reads_the_same(more: list[tuple[str, bytes]]) -> None:
    """Dead letters outlive the version that wrote them; headers that a newer version adds are ignored."""
    message: Any = Record(b"freshet.shop.events/2/41", b"\xc3\x01x", [*LETTER_HEADERS, *more])
    assert _letter(message) == LETTER


@pytest.mark.parametrize("more", [{}, {"later": "b"}])
def test_a_kept_announcement_reads_the_same(more: dict[str, str]) -> None:
    """Old and new processes find each other's owners during a rolling upgrade."""
    value = msgspec.json.encode(msgspec.json.decode(ANNOUNCEMENT) | more) if more else ANNOUNCEMENT
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    message: Any = Record(b"shop/3", value)
    reader._learn([message])
    assert reader.owner_of("shop", 3) == ANNOUNCED
    since = b',"generation":0,"swap":0,"group":"","role":"owner","zone":"","front":"","leaving":false,'
    own = b'"epoch":0,"left":false}'
    assert encode_announcement(ANNOUNCED) == ANNOUNCEMENT.removesuffix(b"}") + since + own


class BeforeRoles(msgspec.Struct, kw_only=True):
    """An announcement as the last version before followers reads it. Its rule is `supersedes`, unchanged since."""

    keyspace: str
    partition: int
    address: str
    instance: str
    gone: bool = False
    generation: int = 0


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("before", [True, False])
def test_a_follower_is_no_owner_to_a_reader_that_knows_no_roles(left: bool, before: bool) -> None:
    """In a fleet of mixed versions the owner stands, whichever is read first; a kept follower reads the same."""
    text = FOLLOWER.replace(b'"left":false', b'"left":true') if left else FOLLOWER
    assert decode_announcement(text) == msgspec.structs.replace(FOLLOWS, gone=left)
    assert encode_announcement(msgspec.structs.replace(FOLLOWS, gone=left)) == text.replace(NO_FRONT, WITHOUT_FRONT)
    follower: Any = msgspec.json.decode(text, type=BeforeRoles)
    owner: Any = msgspec.json.decode(ANNOUNCEMENT, type=BeforeRoles)
    for generation in (0, 7):
        owner.generation, known = generation, None
        for each in (owner, follower) if before else (follower, owner):
            known = each if supersedes(each, known) else known
        assert known is owner
    known = follower if supersedes(follower, None) else None
    assert known is None or known.gone


def test_a_kept_announcement_of_a_node_reads_the_same_and_is_an_owners_to_readers_of_before() -> None:
    """A process that knows no fronts finds the owner; one that does finds its front as well."""
    found = decode_announcement(NODE)
    assert (found.address, found.front, found.generation) == ("127.0.0.1:9100", "https://a:8480", 7)
    assert encode_announcement(found) == NODE.replace(b'"epoch"', b'"leaving":false,"epoch"')
    before = msgspec.json.decode(NODE, type=BeforeRoles)
    assert (before.address, before.gone, before.generation) == ("127.0.0.1:9100", False, 7)


def test_an_announcement_of_an_unknown_role_is_not_read() -> None:
    """A newer version's instances neither replace the owner nor stop the reader."""
    reader = LocationsReader(KafkaCluster("127.0.0.1:1"))
    records: list[Any] = [
        Record(b"shop/3", text) for text in (ANNOUNCEMENT, FOLLOWER.replace(b'"follower"', b'"witness"'))
    ]
    reader._learn(records)
    assert (reader.owner_of("shop", 3), reader.followers("shop", 3)) == (ANNOUNCED, [])


def test_the_first_frame_of_the_owner_protocol_never_changes() -> None:
    """Without a fixed first frame a difference of versions could not be reported."""
    assert encode_frame(Hello(1, 1, ""))[5:14] == HELLO[5:]
    assert decode_request(HELLO[4:]) == Hello(1, 1, "")


@pytest.mark.parametrize("version", [0, VERSION + 1])
def test_another_version_of_the_owner_protocol_is_refused_by_its_code(tmp_path: Path, version: int) -> None:
    """It is refused with code and hint, and the owner continues to serve its own version."""
    owner = Owner(tmp_path)

    async def main() -> None:
        host, port = await owner.server.start()
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(encode_frame(Hello(7, version, "")))
        size = int.from_bytes(await reader.readexactly(4), "big")
        answer = msgspec.msgpack.decode(await reader.readexactly(size))
        assert answer[:3] == ["failure", 7, "version_mismatch"]
        assert f"asked for {version}" in answer[3]
        assert answer[4]
        writer.close()
        client = OwnerClient(f"{host}:{port}")
        try:
            assert await client.get("shop", 0, [], "", 0) == []
        except OwnerError as error:
            pytest.fail(f"{error.code}: {error}")
        finally:
            await client.close()
            await owner.server.stop()

    asyncio.run(asyncio.wait_for(main(), 20))
    owner.partition.store.close(commit=False)
