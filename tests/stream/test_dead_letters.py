"""Dead letters are kept with reason, offset and bytes, listed once, and put back when they can be decoded."""

from __future__ import annotations

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from freshet.cli import run
from stream.kafka import dead_letters
from stream.kafka.connection import KafkaCluster, KafkaRequestError, KafkaUnreachable, client_settings
from stream.kafka.dead_letters import (
    VALUE_BYTES_MAX,
    DeadLetter,
    DeadLetterError,
    DeadLetterPublisher,
    find_letter,
    read_letters,
    retry,
)
from stream.kafka.reader import end_offsets, read_range
from stream.kafka.topics import Topic, dead_letter_topic, ensure_topics, events_topic
from stream.wire.codec import decode, encode
from tests.patience import PATIENCE_S

GOOD = encode(
    "TableVoid",
    {
        "shard": "s/0",
        "epoch": 1,
        "ordinal": 1,
        "gtid": "MariaDB/0-1-1",
        "timestamp": 1,
        "position": "MariaDB/0-1-1",
        "table": "shop.items",
        "reason": "altered",
    },
)
OTHER = encode("TableVoid", {**decode(GOOD)[1], "ordinal": 2})
MARKER = encode(
    "Marker",
    {
        "shard": "s/0",
        "epoch": 1,
        "ordinal": 1,
        "position": "MariaDB/0-1-1",
        "timestamp": 1,
        "low_water": "MariaDB/0-1-0",
        "layout": "xxh3_64;partitions=2",
        "whole": True,
    },
)


@pytest.fixture
def keyspace(kafka: KafkaCluster, keyspace_name: str) -> str:
    """A keyspace whose topics exist."""
    ensure_topics(kafka, keyspace_name, 2)
    return keyspace_name


def _letters(kafka: KafkaCluster, keyspace: str) -> list[DeadLetter]:
    topic = events_topic(kafka, keyspace)
    return [
        DeadLetter(topic, 0, 17, "not_freshet", "starts with 7b22, not with c301", b'{"a":1}', 7),
        DeadLetter(topic, 1, 3, "unknown_schema", "fingerprint 0707… — newer?", GOOD, len(GOOD)),
    ]


def send_letters(kafka: KafkaCluster, keyspace: str, *letters: DeadLetter) -> None:
    """Keeps letters."""
    publisher = DeadLetterPublisher(kafka, keyspace)
    for letter in letters:
        publisher.send(letter)
    publisher.flush()


def test_a_letter_keeps_reason_offset_and_bytes(kafka: KafkaCluster, keyspace: str) -> None:
    """A message that could not be folded can be inspected later, byte for byte."""
    assert read_letters(kafka, keyspace) == []
    send_letters(kafka, keyspace, *_letters(kafka, keyspace))
    assert read_letters(kafka, keyspace) == _letters(kafka, keyspace)
    assert [(letter.value, letter.size) for letter in read_letters(kafka, keyspace, values=False)] == [
        (b"", 7),
        (b"", len(GOOD)),
    ]


def test_folding_the_same_message_again_adds_no_letter(kafka: KafkaCluster, keyspace: str) -> None:
    """Messages that are folded again after a crash still have one letter each."""
    letters = _letters(kafka, keyspace)
    publisher = DeadLetterPublisher(kafka, keyspace)
    assert [publisher.send(letter) for letter in (*letters, *letters)] == [True, True, False, False]
    publisher.flush()
    send_letters(kafka, keyspace, *letters)
    assert read_letters(kafka, keyspace) == letters


def test_of_a_huge_message_the_beginning_is_kept(kafka: KafkaCluster, keyspace: str) -> None:
    """A huge message is cut to fit the topic, keeps its full size, and is never put back incomplete."""
    huge = DeadLetter(events_topic(kafka, keyspace), 0, 1, "bad_field", "huge", bytes(20 << 20))
    send_letters(kafka, keyspace, huge)
    [kept] = read_letters(kafka, keyspace)
    assert (len(kept.value), kept.size, kept.is_complete) == (VALUE_BYTES_MAX, 20 << 20, False)
    [result] = retry(kafka, keyspace)
    assert "bytes were kept" in result.problem


def test_a_letter_of_another_topic_is_not_put_back(kafka: KafkaCluster, keyspace: str) -> None:
    """Consumers may write letters and no events: one that was taken over has an operator write nothing elsewhere."""
    _, good = _letters(kafka, keyspace)
    other = dead_letter_topic(kafka, keyspace)
    send_letters(kafka, keyspace, replace(good, topic=other, partition=0))
    before = end_offsets(kafka, other, [0])
    [result] = retry(kafka, keyspace)
    assert f"it names the topic {other}" in result.problem
    assert len(read_letters(kafka, keyspace)) == 1
    assert end_offsets(kafka, other, [0]) == before


def publish(kafka: KafkaCluster, keyspace: str, *values: bytes) -> list[DeadLetter]:
    """Writes messages to partition 1 of the events, which is empty; their letters."""
    topic = events_topic(kafka, keyspace)
    producer = Producer(client_settings(kafka))
    for value in values:
        producer.produce(topic, value, partition=1)
    assert producer.flush(PATIENCE_S) == 0
    return [
        DeadLetter(topic, 1, offset, "unknown_schema", "newer?", value, len(value))
        for offset, value in enumerate(values)
    ]


def test_a_letter_that_the_topic_does_not_bear_out_is_not_put_back(kafka: KafkaCluster, keyspace: str) -> None:
    """A consumer that was taken over may write letters, but no event: not by the hand of an operator either."""
    first, second, *_, far = publish(kafka, keyspace, GOOD, OTHER, *[GOOD] * 1_500, OTHER)
    forged = replace(first, value=OTHER, size=len(OTHER))
    ahead, elsewhere = replace(second, offset=9_999), replace(second, partition=7)
    send_letters(kafka, keyspace, forged, second, far, ahead, elsewhere)
    found = {result.letter.id: bool(result.problem) for result in retry(kafka, keyspace)}
    assert found == {forged.id: True, second.id: False, far.id: False, ahead.id: True, elsewhere.id: True}
    [end] = end_offsets(kafka, events_topic(kafka, keyspace), [1]).values()
    assert end == 1_503 + 2


def test_only_what_can_be_decoded_is_put_back(kafka: KafkaCluster, keyspace: str) -> None:
    """Retrying puts back the messages that this version can decode, and keeps the others."""
    bad, _ = _letters(kafka, keyspace)
    [good] = publish(kafka, keyspace, GOOD)
    send_letters(kafka, keyspace, bad, good)
    assert [bool(result.problem) for result in retry(kafka, keyspace, dry_run=True)] == [True, False]
    assert read_letters(kafka, keyspace) == [bad, good]
    assert [bool(result.problem) for result in retry(kafka, keyspace)] == [True, False]
    assert read_letters(kafka, keyspace) == [bad]
    [end] = end_offsets(kafka, events_topic(kafka, keyspace), [1]).values()
    assert [message.value() for message in read_range(kafka, events_topic(kafka, keyspace), 1, 0, end)] == [GOOD] * 2


def test_all_letters_together_may_be_more_than_the_memory_holds(
    kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bytes of a few are held at a time, of those that can't be decoded too. The last ones go back first."""
    large = [encode("TableVoid", {**decode(GOOD)[1], "ordinal": at, "reason": "x" * 900_000}) for at in range(1, 41)]
    letters = publish(kafka, keyspace, *large)
    bad = [replace(letter, partition=0, value=b"x" * 900_000, size=0) for letter in letters]
    send_letters(kafka, keyspace, *letters, *bad)
    del large, letters, bad
    monkeypatch.setattr(dead_letters, "PORTION_BYTES", 3 << 20)
    put_back, held = dead_letters._put_back, list[int]()

    def with_so_much(*asked: Any) -> None:
        gc.collect()  # what a closed reader leaves are cycles
        held.append(tracemalloc.get_traced_memory()[0])
        put_back(*asked)

    monkeypatch.setattr(dead_letters, "_put_back", with_so_much)
    tracemalloc.start()
    try:
        results = retry(kafka, keyspace)
    finally:
        tracemalloc.stop()
    assert [bool(result.problem) for result in results] == [False] * 40 + [True] * 40
    assert len(held) == 14
    assert max(held) < 16 << 20
    assert len(read_letters(kafka, keyspace, values=False)) == 40
    back = read_range(kafka, events_topic(kafka, keyspace), 1, 40, 80)
    assert [decode(message.value() or b"")[1]["ordinal"] for message in back] == [*range(40, 0, -1)]


def test_a_letter_whose_message_goes_meanwhile_stays(
    kafka: KafkaCluster, keyspace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka may delete it between the two looks at the topic: nothing is written in its place."""
    send_letters(kafka, keyspace, *publish(kafka, keyspace, GOOD, OTHER))
    borne_out = dead_letters._borne_out
    looks: list[int] = []

    def second_is_gone(*asked: Any) -> list[tuple[str, bytes]]:
        looks.append(len(looks))
        return [each for each in borne_out(*asked) if not looks[-1] or not each[0].endswith("/0")]

    monkeypatch.setattr(dead_letters, "_borne_out", second_is_gone)
    assert [bool(result.problem) for result in retry(kafka, keyspace)] == [True, False]
    assert [letter.offset for letter in read_letters(kafka, keyspace)] == [0]
    [end] = end_offsets(kafka, events_topic(kafka, keyspace), [1]).values()
    assert end == 3


def test_what_says_how_far_a_shard_is_is_never_put_back(kafka: KafkaCluster, keyspace: str) -> None:
    """A marker or a source's state of long ago must not stand behind newer ones."""
    send_letters(
        kafka,
        keyspace,
        DeadLetter(events_topic(kafka, keyspace), 0, 3, "unknown_schema", "newer?", MARKER, len(MARKER)),
    )
    [result] = retry(kafka, keyspace)
    assert "Marker cannot be written again" in result.problem
    [end] = end_offsets(kafka, events_topic(kafka, keyspace), [0]).values()
    assert end == 0


def test_a_letter_that_is_not_there_is_an_error(kafka: KafkaCluster, keyspace: str) -> None:
    """A letter id that does not exist is an error."""
    with pytest.raises(DeadLetterError) as missing:
        find_letter(kafka, keyspace, "no/0/1")
    assert missing.value.code == "no_such_letter"


def test_the_command_lists_shows_and_retries(
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Dead letters can be listed, shown and retried from the command line, also as JSON."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRESHET_KAFKA__BOOTSTRAP", kafka.bootstrap)
    bad, _ = _letters(kafka, keyspace)
    [good] = publish(kafka, keyspace, GOOD)
    send_letters(kafka, keyspace, bad, good)

    assert run(["dlq", "list", keyspace, "--json"]) == 0
    listed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(each["id"], each["code"]) for each in listed] == [(bad.id, bad.code), (good.id, good.code)]

    assert run(["dlq", "show", keyspace, good.id, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["decodes"], shown["record"]["name"]) == (True, "TableVoid")
    assert run(["dlq", "show", keyspace, bad.id]) == 0
    assert "not_freshet" in capsys.readouterr().out

    assert run(["dlq", "retry", keyspace]) == 1
    assert "put back" in capsys.readouterr().out
    assert run(["dlq", "show", keyspace, good.id]) == 1
    assert "no_such_letter" in capsys.readouterr().err


def test_letters_can_be_dismissed(
    kafka: KafkaCluster,
    keyspace: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What nobody will put back need not be listed for ever; nothing is written to the events topic."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FRESHET_KAFKA__BOOTSTRAP", kafka.bootstrap)
    bad, good = _letters(kafka, keyspace)
    send_letters(kafka, keyspace, bad, good)
    before = end_offsets(kafka, events_topic(kafka, keyspace), [0])
    assert run(["dlq", "dismiss", keyspace]) == 2
    assert run(["dlq", "dismiss", keyspace, "no/0/1"]) == 1
    assert run(["dlq", "dismiss", keyspace, bad.id]) == 0
    assert [letter.id for letter in read_letters(kafka, keyspace)] == [good.id]
    capsys.readouterr()
    assert run(["dlq", "dismiss", keyspace, "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": good.id, "dismissed": True}
    assert read_letters(kafka, keyspace) == []
    assert end_offsets(kafka, events_topic(kafka, keyspace), [0]) == before


def test_a_cluster_brings_its_client_settings_along() -> None:
    """A `KafkaCluster` carries its security settings to every client, also after pickling."""
    import pickle

    cluster = KafkaCluster("a:1", {"security.protocol": "SSL"})
    for each in (cluster, pickle.loads(pickle.dumps(cluster))):
        settings = client_settings(each)
        assert (settings["bootstrap.servers"], settings["security.protocol"]) == ("a:1", "SSL")


class Written:
    """A record of the dead-letter topic."""

    def __init__(self, reason: str, **more: str) -> None:
        told = {"topic": "t", "partition": "0", "offset": "7", "code": "bad_key", "reason": reason, "size": "1"} | more
        self._headers = [(name, text.encode()) for name, text in told.items()]

    def key(self) -> bytes:
        """Of the message."""
        return b"t/0/7"

    def value(self) -> bytes:
        """The message."""
        return b"x"

    def headers(self) -> list[tuple[str, bytes]]:
        """The letter."""
        return self._headers


def test_of_two_letters_about_a_message_the_first_one_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was folded again after a crash, perhaps by another version, and rejected again. What is no letter is none."""
    records = [Written("foreign", offset="seven"), Written("first"), Written("again")]
    monkeypatch.setattr("stream.kafka.dead_letters._messages", lambda *_: iter(records))
    assert [each.reason for each in read_letters(KafkaCluster("127.0.0.1:1"), "shop")] == ["first"]


class Refusing:
    """A producer whose first record a broker refuses."""

    def __init__(self, _: object) -> None:
        self.delivered: list[Callable[[KafkaError | None, None], None]] = []

    def produce(self, *_: object, on_delivery: Callable[[KafkaError | None, None], None], **__: object) -> None:
        """Takes a record."""
        self.delivered.append(on_delivery)

    def poll(self, _: float) -> int:
        """Nothing has come."""
        return 0

    def flush(self, _: float) -> int:
        """The answers come."""
        for number, told in enumerate(self.delivered):
            told(None if number else KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), None)
        return 0


def test_a_letter_that_is_refused_is_not_forgotten_with_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets of both would be committed: a message would be gone that was neither folded nor kept."""
    monkeypatch.setattr("stream.kafka.dead_letters.Producer", Refusing)
    publisher = DeadLetterPublisher(KafkaCluster("127.0.0.1:1"), "shop")
    for offset in (7, 8):
        assert publisher.send(DeadLetter("t", 0, offset, "bad_key", "", b"x"))
    with pytest.raises(KafkaRequestError):
        publisher.flush()


def test_letters_are_borne_out_in_whichever_partition_most_of_them_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions are read side by side, and have letters at one place or at several far from each other."""
    places = [(0, 2), (0, 5_000), (0, 5_001), (1, 3), (2, 9)]
    digest = sha256(b"x").digest()
    letters = [DeadLetter("t", *place, "bad_key", "", digest=digest) for place in places]

    def read_ranges(_: object, __: str, ranges: Mapping[int, tuple[int, int]]) -> Iterator[object]:
        for partition, (start, end) in ranges.items():
            assert start > 0, "Kafka would refuse what has expired"
            for offset in range(start, end):
                found = {"partition": partition, "offset": offset, "value": b"x"}
                yield SimpleNamespace(**{name: lambda each=each: each for name, each in found.items()})

    monkeypatch.setattr(dead_letters, "describe_topic", lambda *_: Topic("t", "id", 3))
    monkeypatch.setattr(dead_letters, "start_offsets", lambda *_: dict.fromkeys(range(3), 1))
    monkeypatch.setattr(dead_letters, "end_offsets", lambda *_: dict.fromkeys(range(3), 9_000))
    monkeypatch.setattr(dead_letters, "read_ranges", read_ranges)
    gone = [DeadLetter("t", *place, "bad_key", "", digest=digest) for place in ((0, 0), (2, 9_000), (7, 5))]
    found = dead_letters._true_letters(KafkaCluster("127.0.0.1:1"), "t", [*letters, *gone])
    assert found == {letter.id for letter in letters}


def test_a_message_that_no_broker_takes_back_keeps_its_letter(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be in no list any more, and in no topic."""
    kafka, letter = KafkaCluster("127.0.0.1:1"), DeadLetter("freshet.shop.events", 0, 7, "bad_key", "", b"x")
    silent = SimpleNamespace(produce=lambda *_, **__: None, poll=lambda _: 0, flush=lambda _: 1)
    monkeypatch.setattr(dead_letters, "Producer", lambda _: silent)
    monkeypatch.setattr(dead_letters, "_unresolved", lambda *_: [(letter, "")])
    monkeypatch.setattr(dead_letters, "_borne_out", lambda *_: [(letter.id, b"x")])
    monkeypatch.setattr(dead_letters, "_not_folded", lambda *_: {letter.place})
    monkeypatch.setattr(dead_letters, "nothing_left_behind", lambda *_: {letter.place})
    monkeypatch.setattr(DeadLetterPublisher, "resolve", lambda *_: pytest.fail("it is not resolved"))
    with pytest.raises(KafkaUnreachable):
        dead_letters.retry(kafka, "shop", letter.id)


def test_a_letter_waits_for_room_in_the_queue_and_not_for_what_never_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many at once fill it for a moment. One that librdkafka refuses is told, or its message would be lost."""
    errors: list[Exception] = [BufferError("full"), BufferError("full")]
    done: list[str] = []

    def produce(*_: object, **__: object) -> None:
        if errors:
            raise errors.pop()
        done.append("produce")

    producer = SimpleNamespace(produce=produce, poll=lambda _: done.append("poll"))
    monkeypatch.setattr(dead_letters, "Producer", lambda _: producer)
    publisher = DeadLetterPublisher(KafkaCluster("127.0.0.1:1"), "shop")
    assert publisher.send(DeadLetter("t", 0, 7, "bad_key", "", b"x"))
    assert done == ["poll", "poll", "produce", "poll"]
    errors.append(KafkaException(KafkaError(KafkaError._INVALID_ARG)))
    with pytest.raises(DeadLetterError, match="t/0/8 cannot be written"):
        publisher.send(DeadLetter("t", 0, 8, "bad_key", "", b"x"))


class Value(bytearray):
    """Bytes of a message that tell when nobody holds them any more."""


def test_very_many_letters_are_put_back_and_resolved_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """All at once are more than a producer's queue takes, and none was resolved if one failed. Nor are the bytes of two
    portions held at once."""
    kafka = KafkaCluster("127.0.0.1:1")
    letters = [DeadLetter("freshet.shop.events", 0, offset, "bad_key", "", size=10) for offset in range(7)]
    done: list[list[str]] = []
    full: list[BufferError] = []
    read: list[ref[Value]] = []

    def borne_out(_: object, __: object, portion: list[DeadLetter]) -> Iterator[tuple[str, Value]]:
        assert all(each() is None for each in read)
        for letter in portion:
            value = Value(b"x")
            read.append(ref(value))
            yield letter.id, value

    def produce(*_: object, **__: object) -> None:
        if not full:
            full.append(BufferError("full"))
            raise full[0]
        full.clear()

    def flush(_: float) -> int:
        done.append([])
        return 0

    producer = SimpleNamespace(produce=produce, poll=lambda _: 0, flush=flush)
    monkeypatch.setattr(dead_letters, "Producer", lambda _: producer)
    monkeypatch.setattr(dead_letters, "_unresolved", lambda *_: [(letter, "") for letter in letters])
    monkeypatch.setattr(dead_letters, "_borne_out", borne_out)
    monkeypatch.setattr(dead_letters, "_not_folded", lambda *_: set())
    monkeypatch.setattr(dead_letters, "nothing_left_behind", lambda _, __, places, ___: set(places))
    monkeypatch.setattr(dead_letters, "PORTION_BYTES", 30)
    monkeypatch.setattr(DeadLetterPublisher, "resolve", lambda _, letter, **__: done[-1].append(letter))
    monkeypatch.setattr(DeadLetterPublisher, "flush", lambda _: None)
    assert not any(result.problem for result in dead_letters.retry(kafka, "shop"))
    assert [len(portion) for portion in done] == [3, 3, 1]
    monkeypatch.setattr(dead_letters, "PORTION_LETTERS", 2)
    assert [len(portion) for portion in dead_letters._portions(letters)] == [2, 2, 2, 1]
