"""Invalid messages in the topic of a running consumer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from consumers.owner.client import OwnerConnection
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.dead_letters import read_letters
from stream.kafka.topics import events_topic
from stream.wire.codec import encode
from tests.consumers.consuming import ConsumeProcess, Feed, accounted_for, assert_equal_to_uninterrupted, gtid, until
from tests.consumers.histories import encode_version_1
from tests.patience import PATIENCE_S
from tokens import Position, Vector

MIB = 1 << 20


def row(feed: Feed, number: int, **changes: Any) -> dict[str, Any]:
    """A frame of one row, key ``number``; the feed's ordinal is used up."""
    feed.ordinal += 1
    frame = {
        "shard": feed.shard,
        "epoch": 1,
        "ordinal": feed.ordinal - 1,
        "keys": [b"shop.items\0[%d]" % number],
        "images": [b'{"n":%d}' % number],
        "operations": b"\1",
        "ordinals": [1],
        "transactions": [1],
        "gtids": [gtid(feed.ordinal)],
        "positions": [],
        "timestamps": [1_700_000_000],
        "origins": [],
    }
    return frame | changes


def hostile(feed: Feed) -> list[tuple[str, bytes]]:
    """(code, message) for every kind of message that cannot be folded."""
    whole = encode("RowFrame", row(feed, 1))
    end = {"shard": feed.shard, "epoch": 1, "ordinal": feed.ordinal, "gtid": gtid(9), "timestamp": 1, "txn": 7}
    marker = {"shard": feed.shard, "epoch": 1, "ordinal": 1, "timestamp": 1, "low_water": "", "whole": True}
    return [
        ("truncated", whole[: len(whole) // 2]),
        ("truncated", whole[:9]),
        ("trailing_bytes", whole + b"\0"),
        ("not_freshet", b'{"schema": "somebody else\'s"}'),
        ("not_freshet", b"\0\0\0\0\7" + whole),
        ("not_freshet", os.urandom(300).replace(b"\xc3\x01", b"")),
        ("unknown_schema", b"\xc3\x01" + bytes(8) + whole[10:]),
        ("bad_field", encode_version_1("RowFrame", row(feed, 2, transactions=[2]))),
        ("bad_field", encode("RowFrame", row(feed, 2, epoch=-1))),
        ("bad_operation", encode("RowFrame", row(feed, 2, operations=b"\x09"))),
        ("bad_field", encode("Marker", marker | {"position": "MariaDB/none", "layout": feed.layout})),
        ("bad_field", encode("CommitTxn", end | {"write_ids": [{"table_id": 5, "write_id": -1}]})),
    ]


def letters(kafka: KafkaCluster, keyspace: str) -> list[dict[str, Any]]:
    """The output of `freshet dlq list --json`."""
    said = subprocess.run(
        [sys.executable, "-m", "freshet", "dlq", "list", keyspace, "--json"],
        env=os.environ | {"FRESHET_KAFKA__BOOTSTRAP": kafka.bootstrap},
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    return [json.loads(line) for line in said.stdout.splitlines()]


@contextmanager
def consuming(kafka: KafkaCluster, feed: Feed, directory: Path) -> Iterator[tuple[ConsumeProcess, str]]:
    """A consumer that has folded all that was fed, and committed it with its dead letters; its owner's address."""
    feed.flush()
    with ConsumeProcess(kafka, feed.keyspace, directory / "data") as process:
        address = process.ready()
        until(lambda: accounted_for(kafka, feed.keyspace, address), "all of it committed")
        yield process, address


def value_of(address: str, feed: Feed, number: int, epoch: int = 1) -> tuple[str, bytes | None]:
    """Freshness and image of a key for a session that has seen everything."""
    with OwnerConnection(address) as owner:
        seen = Vector({feed.shard: (epoch, Position.parse(gtid(feed.ordinal)))})
        [found] = owner.get(feed.keyspace, 0, [b"shop.items\0[%d]" % number], str(seen), 10_000)
        return found.freshness, found.image


def test_every_invalid_message_is_a_dead_letter_and_the_stream_goes_on(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """Each kind of invalid message becomes a dead letter with its code, and later rows are served fresh."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    codes = []
    for code, message in hostile(feed):
        codes.append(code)
        feed.put(0, message)
    feed.put(0, encode("RowFrame", row(feed, 5)))
    feed.mark()
    with consuming(kafka, feed, tmp_path) as (process, address):
        assert value_of(address, feed, 5) == ("fresh", b'{"n":5}')
        assert process.terminate() == 0
        assert not any("Traceback" in line["event"] for line in process.lines())
    found = letters(kafka, keyspace_name)
    assert [each["code"] for each in found] == codes
    assert all(each["reason"] and "\n" not in each["reason"] for each in found)
    for letter in read_letters(kafka, keyspace_name):
        problem = letter.problem()  # what `freshet dlq show` says of it now; of a frame's row the fold knows better
        assert problem is None or problem.code == letter.code or letter.code in ("bad_operation", "bad_key")
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")


def test_an_unreadable_message_voids_what_it_may_have_changed(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """A key folded before an unreadable message is not served from the cache, since the message may have changed it."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    feed.put(0, encode("RowFrame", row(feed, 5)))
    feed.mark()
    feed.put(0, b"garbage")
    feed.put(0, encode("RowFrame", row(feed, 6)))
    feed.mark()
    with consuming(kafka, feed, tmp_path) as (_, address):
        assert value_of(address, feed, 5) == ("unknown", None)
        assert value_of(address, feed, 6) == ("fresh", b'{"n":6}')


def test_a_message_of_twenty_megabytes_is_a_dead_letter_too(
    kafka: KafkaCluster, keyspace_name: str, tmp_path: Path
) -> None:
    """A message that is too large once decompressed becomes a dead letter, and the stream goes on."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    compressing = Producer(
        client_settings(kafka, **{"compression.type": "lz4", "message.max.bytes": 64 * MIB, "linger.ms": 0})
    )
    compressing.produce(events_topic(kafka, keyspace_name), bytes(20 * MIB), partition=0)
    assert compressing.flush(60) == 0
    feed.put(0, encode("RowFrame", row(feed, 5)))
    feed.mark()
    with consuming(kafka, feed, tmp_path) as (_, address):
        assert value_of(address, feed, 5) == ("fresh", b'{"n":5}')
    [letter] = letters(kafka, keyspace_name)
    assert (letter["code"], letter["size"]) == ("not_freshet", 20 * MIB)


def test_an_event_older_than_the_state_changes_nothing(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """A duplicate and an event of an old epoch leave the newer value; only the latter is a dead letter."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    old = row(feed, 5, images=[b'{"n":"old"}'])
    new = row(feed, 5)
    end = {"shard": feed.shard, "epoch": 2, "ordinal": feed.ordinal, "position": gtid(feed.ordinal), "timestamp": 1}
    feed.put(0, encode("RowFrame", old | {"epoch": 2}))
    feed.put(0, encode("RowFrame", new | {"epoch": 2}))
    feed.put(0, encode("RowFrame", old | {"epoch": 2}))
    feed.put(0, encode("RowFrame", old | {"epoch": 1, "ordinal": 10_000}))
    feed.put(0, encode("Marker", end | {"low_water": gtid(0), "layout": feed.layout, "whole": True}))
    with consuming(kafka, feed, tmp_path) as (_, address):
        assert value_of(address, feed, 5, epoch=2) == ("fresh", b'{"n":5}')
    assert [each["code"] for each in letters(kafka, keyspace_name)] == ["older_epoch"]


def test_a_commit_without_its_transaction_is_folded(kafka: KafkaCluster, keyspace_name: str, tmp_path: Path) -> None:
    """A commit names its write ids, so it is folded although its transaction was never seen open."""
    feed = Feed(kafka, keyspace_name, partitions=1)
    for pairs in ([], [{"table_id": 5, "write_id": 3}]):
        feed.ordinal += 1
        feed.send(0, "CommitTxn", gtid=gtid(feed.ordinal), timestamp=1, txn=77, write_ids=pairs)
    feed.put(0, encode("RowFrame", row(feed, 5)))
    feed.mark()
    with consuming(kafka, feed, tmp_path) as (process, address):
        assert value_of(address, feed, 5) == ("fresh", b'{"n":5}')
        assert process.terminate() == 0
    assert letters(kafka, keyspace_name) == []
    assert_equal_to_uninterrupted(kafka, feed, tmp_path / "data", tmp_path / "scratch")
