"""A change log in a topic of a real Kafka: what a crash leaves, who may write it, and which topics are refused."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from serving.changelog import topic as log_topic
from serving.changelog.errors import ChangeLogError
from serving.changelog.files import Heading
from serving.changelog.records import own_framing
from serving.changelog.topic import BATCH_BYTES, LogTopic
from serving.changelog.writing import write_log
from serving.client import StreamChange, StreamEvent
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import end_offsets, read_range, start_offsets
from tests.patience import PATIENCE_S
from tests.serving.test_log_records import read
from tests.stream.committed import await_decided

TABLES = ["shop.items"]


def log(
    kafka: KafkaCluster,
    topic: str,
    keyspace: str = "shop",
    tables: list[str] = TABLES,
    included: list[str] | None = None,
) -> LogTopic:
    return LogTopic(kafka, topic, Heading(keyspace, tables, included=included), own_framing(), lambda _: {})


def make(kafka: KafkaCluster, topic: str, partitions: int, config: dict[str, str]) -> None:
    wanted = NewTopic(topic, num_partitions=partitions, replication_factor=1, config=config)
    admin = AdminClient(client_settings(kafka))
    [made] = admin.create_topics([wanted]).values()
    made.result(timeout=60)


def event(number: int, size: int = 0) -> StreamEvent:
    change = StreamChange("row", "shop.items", [number], "value", {"id": number, "text": "x" * size})
    return StreamEvent(
        "transaction", str(number), f"t{number}", "shop/0", 1, gtid=f"MariaDB/0-1-{number}", changes=[change]
    )


def values(kafka: KafkaCluster, topic: str) -> list[bytes]:
    """All that readers of committed records get, once no Kafka transaction is undecided."""
    await_decided(kafka, topic, [0])
    ends, starts = end_offsets(kafka, topic, [0]), start_offsets(kafka, topic, [0])
    found = read_range(kafka, topic, 0, starts[0], ends[0], timeout_s=PATIENCE_S)
    return [message.value() or b"" for message in found]


def records(kafka: KafkaCluster, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """The same, read."""
    return [read(value) for value in values(kafka, topic)]


def numbers(kafka: KafkaCluster, topic: str) -> list[int]:
    """Those of the transactions."""
    return [fields["changes"][0]["key"][0] for name, fields in records(kafka, topic) if name == "Transaction"]


class Killed(BaseException):
    """The process has gone."""


class Front:
    """A stream of numbered events, as `test_change_log.Front`, which kills its reader now and then."""

    def __init__(self, choose: random.Random, last: int) -> None:
        self.choose, self.last = choose, last

    def stream(self, _: str, begin: str, **__: Any) -> Iterator[StreamEvent]:
        at = 0 if begin == "earliest" else int(begin)
        while at < self.last:
            if self.choose.random() < 0.04:
                raise Killed
            at += 1
            yield event(at, self.choose.choice([10, 10, 10, BATCH_BYTES // 3]))
            if self.choose.random() < 0.2:
                yield StreamEvent("watermark", str(at), f"v{at}")
        yield StreamEvent("end", str(at), f"v{at}")


def test_each_event_is_in_the_topic_once_after_any_crashes(kafka: KafkaCluster, topic: str) -> None:
    """Killed between any two events, with records that wait and with transactions that are open."""
    choose, crashes = random.Random(3), 0
    front: Any = Front(choose, 100)
    while True:
        try:
            with log(kafka, topic) as into:
                write_log(front, "shop", into, "earliest", once=True)
            break
        except Killed:
            crashes += 1
            if choose.random() < 0.5:
                hang(kafka, topic, into)
    assert crashes > 1
    assert numbers(kafka, topic) == list(range(1, 101))
    assert records(kafka, topic)[-1][0] == "Watermark"
    with log(kafka, topic) as into:
        assert into.checkpoint == "100"


def hang(kafka: KafkaCluster, topic: str, into: LogTopic) -> None:
    """Leave what was appended in a Kafka transaction that nobody ends, as a process killed before its commit does."""
    [name] = into._producer.transactional_ids
    producer = Producer(client_settings(kafka, **{"transactional.id": name, "transaction.timeout.ms": 60_000}))
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce(topic, b"half", partition=0)
    producer.flush(60)


@pytest.mark.parametrize("waiting", [1, 2_000])
def test_a_second_process_fences_the_first(kafka: KafkaCluster, topic: str, waiting: int) -> None:
    """The later one goes on behind what the first one committed, and the first one ends, with nothing more written.

    Also where the first one hears of it while it hands over one of many records.
    """
    with ExitStack() as stack:
        first = stack.enter_context(log(kafka, topic))
        first.append(event(1))
        first.sync()
        for number in range(waiting):
            first.append(event(2 + number))
        second = stack.enter_context(log(kafka, topic))
        assert second.checkpoint == "1"
        with pytest.raises(ChangeLogError) as taken:
            first.sync()
        assert taken.value.code == "log_taken"
        second.append(event(2))
        second.sync()
    assert numbers(kafka, topic) == [1, 2]


def test_a_transaction_above_a_records_size_comes_in_parts_at_once(kafka: KafkaCluster, topic: str) -> None:
    """All parts are in one Kafka transaction: a reader sees all of them or none."""
    rows = [StreamChange("row", "shop.items", [n], "value", {"id": n, "text": "x" * 900_000}) for n in range(20)]
    with log(kafka, topic) as into:
        into.append(event(1))
        into.append(StreamEvent("transaction", "2", "t", "shop/0", 1, changes=rows))
        into.sync()
        assert into.checkpoint == "2"
    _, *parts = (fields for _, fields in records(kafka, topic))
    assert [part["part"] for part in parts] == list(range(len(parts)))
    assert [change["key"] for part in parts for change in part["changes"]] == [[n] for n in range(20)]
    assert all(change["row"]["text"] == "x" * 900_000 for part in parts for change in part["changes"])


def test_another_log_is_refused(kafka: KafkaCluster, topic: str) -> None:
    """Of other tables or of another keyspace: it would have gaps that nobody sees. So are records of others."""
    with log(kafka, topic, included=[]) as into:
        into.append(event(1))
        into.sync()
    for keyspace, tables, included in (("shop", [], []), ("bank", TABLES, []), ("shop", TABLES, ["keyless"])):
        with (
            pytest.raises(ChangeLogError, match=r"is the log of shop\.items of shop"),
            log(kafka, topic, keyspace, tables, included),
        ):
            pass
    producer = Producer(client_settings(kafka))
    producer.produce(topic, json.dumps("no log").encode(), partition=0)
    producer.flush(60)
    with pytest.raises(ChangeLogError, match="of no change log"), log(kafka, topic):
        pass


def test_a_log_of_a_version_that_did_not_say_what_it_tells_goes_on(kafka: KafkaCluster, topic: str) -> None:
    """With any words, which hold from then on."""
    with log(kafka, topic) as into:
        into.append(event(1))
        into.sync()
    with log(kafka, topic, included=["before"]) as into:
        into.append(event(2))
        into.sync()
    with pytest.raises(ChangeLogError, match=r"of shop, with --before$"), log(kafka, topic, included=[]):
        pass


def test_another_log_that_is_refused_leaves_the_running_one_alone(kafka: KafkaCluster, topic: str) -> None:
    """A mistaken command ends; the log goes on. Also with what is in a Kafka transaction that has not ended."""
    with log(kafka, topic) as into:
        into.append(event(1))
        into.sync()
        with pytest.raises(ChangeLogError, match=r"is the log of shop\.items") as refused, log(kafka, topic, tables=[]):
            pass
        assert refused.value.code == "log_refused"
        into.append(event(2))
        into.sync()
        hang(kafka, topic, into)
        with pytest.raises(ChangeLogError, match=r"is the log of shop\.items"), log(kafka, topic, tables=[]):
            pass
    with log(kafka, topic):
        pass  # which ends what hangs
    assert numbers(kafka, topic) == [1, 2]


def test_records_leave_room_for_the_names_of_many_tables(kafka: KafkaCluster, topic: str) -> None:
    """They are in the headers of each transaction's last record, which is as large as the topic takes, or void."""
    make(kafka, topic, 1, {"max.message.bytes": "1048588"})
    sizes = range(1_020_000, 1_048_000, 4_000)
    text = b64encode(random.Random(1).randbytes(sizes.stop)).decode()  # which the producer can't compress
    tables = [f"shop.{text[-60 * number - 60 :][:60]}" for number in range(300)]
    with log(kafka, topic, tables=tables) as into:
        for size in sizes:
            row = StreamChange("row", "shop.items", [size], "value", {"text": text[:size]})
            into.append(StreamEvent("transaction", str(size), "t", "shop/0", 1, changes=[row]))
            into.sync()
    ops = [fields["changes"][0]["op"] for _, fields in records(kafka, topic)]
    assert len(ops) == len(sizes)
    assert (ops[0], ops[-1]) == ("value", "void")


def test_a_log_has_time_for_large_transactions_and_says_how_much(
    kafka: KafkaCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka gives up a transaction that takes longer, as if another process had taken the log."""
    monkeypatch.setattr(log_topic, "TRANSACTION_TIMEOUT_S", 1)
    with log(kafka, topic) as into, log(kafka, topic):
        into.append(event(1))
        with pytest.raises(ChangeLogError, match="within 1 s"):
            into.sync()


def test_a_log_whose_end_is_gone_is_refused(kafka: KafkaCluster, topic: str) -> None:
    """Retention has taken the last record: to begin anew would hide the gap."""
    with log(kafka, topic) as into:
        into.append(event(1))
        into.sync()
    admin = AdminClient(client_settings(kafka))
    [deleted] = admin.delete_records([TopicPartition(topic, 0, -1)]).values()
    deleted.result(timeout=60)
    with pytest.raises(ChangeLogError, match="has lost all its records"), log(kafka, topic):
        pass


@pytest.mark.parametrize(
    ("partitions", "config", "words"),
    [
        (2, {}, "2 partitions"),
        (1, {"cleanup.policy": "compact"}, "compacted"),
        (1, {"max.message.bytes": "500000"}, "500000 bytes"),
    ],
)
def test_a_topic_that_would_lose_records_or_their_order_is_refused(
    kafka: KafkaCluster, topic: str, partitions: int, config: dict[str, str], words: str
) -> None:
    """Before anything is written."""
    make(kafka, topic, partitions, config)
    with pytest.raises(ChangeLogError, match=words):
        log(kafka, topic)


@pytest.mark.parametrize("name", ["", "a b", "freshet.shop.events", "freshet.locations", "__transaction_state"])
def test_topics_that_are_not_the_logs_are_refused(name: str) -> None:
    """Freshet's own ones, and what is no name; without a word to Kafka."""
    with pytest.raises(ChangeLogError) as refused:
        log(KafkaCluster("127.0.0.1:1"), name)
    assert refused.value.code == "log_refused"
