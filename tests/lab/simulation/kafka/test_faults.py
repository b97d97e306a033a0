"""What goes wrong with the simulated Kafka shows where it would with a real one, and nowhere else."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition

from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.twins import twins
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import reader_settings
from tests.lab.simulation.kafka.alone import Alone, alone
from tests.lab.simulation.kafka.scripting import Rebalances, Seen, shown

KAFKA = KafkaCluster("simulated:9092")
PARTITIONS = 4
EOF = {"enable.partition.eof": True}


class World:
    """A cluster with one topic, and clients of several processes in turn."""

    def __init__(self, seed: int = 1) -> None:
        self.cluster: Cluster
        self.waits: Alone
        self.cluster, self.waits = alone(seed)
        self._twins = twins(self.cluster)
        self.cluster.create("t", PARTITIONS, {})
        self.waits.let_pass(1)

    def producer(self, process: str = "p", **settings: Any) -> Any:
        """A producer in a process."""
        self.waits.current = process
        return self._twins[Producer](client_settings(KAFKA, **settings))

    def publisher(self, process: str = "p") -> Any:
        """A transactional producer that has taken over."""
        found = self.producer(process, **{"transactional.id": "shard", "transaction.timeout.ms": 10_000})
        found.init_transactions(30)
        return found

    def consumer(self, process: str = "c", group: str = "", **settings: Any) -> Any:
        """A consumer in a process."""
        self.waits.current = process
        return self._twins[Consumer](reader_settings(KAFKA, group, settings))

    def member(self, process: str, watched: Rebalances, instance: str = "", **settings: Any) -> Any:
        """A member of the group."""
        more = {"session.timeout.ms": 10_000, **settings}
        if instance:
            more["group.instance.id"] = instance
        found = self.consumer(process, "group", **more)
        found.subscribe(["t"], **watched.callbacks())
        return found

    def write(self, count: int, tag: str = "") -> None:
        """Plain records in the first partition."""
        producer = self.producer("p", **{"enable.idempotence": True})
        for number in range(count):
            producer.produce("t", f"{tag}{number}", partition=0)
        assert producer.flush(60) == 0

    def spin(self, seconds: float, *consumers: Any) -> list[Message]:
        """Lets the consumers poll for a while."""
        found: list[Message] = []
        end = self.waits.now + seconds
        while self.waits.now < end:
            for each in consumers:
                message = each.poll(0.05)
                found += [] if message is None else [message]
        return found


def events(consumer: Any, count: int = 20, timeout_s: float = 0.5) -> Seen:
    """(offset, value or error) of what comes."""
    found: Seen = []
    for _ in range(count):
        message = consumer.poll(timeout_s)
        if message is None:
            break
        found.append((message.offset(), message.value() if message.error() is None else shown(message.error())))
    return found


def reading(world: World, offset: int = 0, epoch: int = -1) -> Any:
    """A consumer of the first partition."""
    found = world.consumer("c", "", **EOF)
    found.assign([TopicPartition("t", 0, offset, leader_epoch=epoch)])
    return found


def code(call: Any) -> Any:
    """The error of a call."""
    with pytest.raises(KafkaException) as raised:
        call()
    return shown(raised.value.args[0])


@pytest.fixture(params=range(3))
def world(request: pytest.FixtureRequest) -> World:
    """At several interleavings."""
    return World(request.param)


def test_a_lost_tail_is_noticed_by_its_leader_epoch(world: World) -> None:
    """The offset is there again after others have written: only the epoch tells that the history is another."""
    world.write(6, "old")
    consumer = reading(world)
    seen = [consumer.poll(1) for _ in range(6)]
    assert [message.leader_epoch() for message in seen] == [0] * 6
    consumer.close()
    world.cluster.elect_uncleanly("t", 0, 3)
    world.write(5, "new")
    same = reading(world, 3, 0)
    assert [value for _, value in events(same)] == [*(b"new%d" % number for number in range(5)), "_PARTITION_EOF"]
    other = reading(world, 6, 0)
    assert events(other) == [(None, "_AUTO_OFFSET_RESET")]
    blind = reading(world, 6)
    assert events(blind)[0] == (6, b"new3"), "without an epoch nobody can tell"


def test_a_reader_that_is_there_notices_a_lost_tail(world: World) -> None:
    """It has fetched the records that are lost, and learns of the new leader with its next fetch."""
    world.write(4)
    consumer = reading(world)
    assert len(events(consumer)) == 5
    world.cluster.elect_uncleanly("t", 0, 2)
    assert events(consumer) == [(None, "_AUTO_OFFSET_RESET")]


def test_a_transaction_whose_end_is_lost_is_open_again(world: World) -> None:
    """The control record is gone with the tail; the producer's next one ends what is left of it too."""
    publisher = world.publisher()
    for value in (b"a", b"b"):
        publisher.begin_transaction()
        publisher.produce("t", value, partition=0)
        publisher.commit_transaction(30)
    world.waits.let_pass(1)
    world.cluster.advance()
    world.cluster.elect_uncleanly("t", 0, 1)
    assert [value for _, value in events(reading(world))] == [b"a", "_PARTITION_EOF"]
    publisher.begin_transaction()
    publisher.produce("t", b"c", partition=0)
    publisher.commit_transaction(30)
    assert [value for _, value in events(reading(world))] == [b"a", b"b", b"c", "_PARTITION_EOF"]


def test_a_commit_whose_answer_is_lost_is_made_once(world: World) -> None:
    """The client asks again, for each request, and nothing is written twice."""
    publisher = world.publisher()
    world.cluster.answers_to_lose["p"] = 3
    publisher.begin_transaction()
    publisher.produce("t", b"once", partition=0)
    publisher.commit_transaction(30)
    assert world.cluster.answers_to_lose == {"p": 0}
    assert events(reading(world)) == [(0, b"once"), (2, "_PARTITION_EOF")]


def test_the_outcome_of_a_commit_is_unknown_when_the_process_is_cut_off(world: World) -> None:
    """The call times out, can be repeated, and the transaction is committed or aborted as a whole."""
    publisher = world.publisher()
    publisher.begin_transaction()
    publisher.produce("t", b"a", partition=0)
    publisher.produce("t", b"b", partition=1)
    assert publisher.flush(30) == 0
    world.cluster.cut.add("p")
    assert code(lambda: publisher.commit_transaction(0.25)) == "_TIMED_OUT retriable"
    world.cluster.cut.discard("p")
    publisher.commit_transaction(10)
    assert events(reading(world))[0] == (0, b"a")


def test_no_coordinator_means_no_commit_but_reads_go_on(world: World) -> None:
    """Partitions have their leaders; what is committed is read."""
    world.write(1)
    publisher = world.publisher()
    world.cluster.coordinator_away = True
    publisher.begin_transaction()
    publisher.produce("t", b"late", partition=0)
    assert code(lambda: publisher.commit_transaction(1)) == "_TIMED_OUT retriable"
    consumer = reading(world)
    assert events(consumer) == [(0, b"0"), (1, "_PARTITION_EOF")]
    world.cluster.coordinator_away = False
    publisher.commit_transaction(10)
    assert events(consumer)[0] == (1, b"late")


def test_a_transaction_that_nobody_ends_hides_what_is_after_it(world: World) -> None:
    """Until the coordinator aborts it: after its timeout, and at most one round of cleaning later."""
    world.cluster.leave_open("t", 0, b"junk")
    began = world.waits.now
    world.write(1, "after")
    consumer = reading(world)
    assert events(consumer) == [(0, "_PARTITION_EOF")]
    message = consumer.poll(60)
    assert (message.offset(), message.value()) == (1, b"after0")
    assert 10 <= world.waits.now - began <= 21


def test_messages_that_cannot_be_sent_in_time_fail(world: World) -> None:
    """A transaction with such a message can't be committed any more."""
    publisher = world.publisher()
    world.cluster.down = True
    publisher.begin_transaction()
    publisher.produce("t", b"x", partition=0)
    assert code(lambda: publisher.commit_transaction(5)) == "_TIMED_OUT retriable"
    assert code(lambda: publisher.commit_transaction(20)) == "_INCONSISTENT abort"


def test_a_full_queue_refuses_messages(world: World) -> None:
    """It is bounded by number and by bytes."""
    producer = world.producer("p", **{"queue.buffering.max.messages": 2})
    for _ in range(2):
        producer.produce("t", b"x", partition=0)
    with pytest.raises(BufferError):
        producer.produce("t", b"x", partition=0)


def test_a_member_that_is_cut_off_loses_its_partitions_to_the_others(world: World) -> None:
    """It is told itself too, and gets its share again later."""
    one, two = Rebalances(), Rebalances()
    first, second = world.member("one", one), world.member("two", two)
    world.spin(20, first, second)
    share = sum(len(places) for what, places in one.seen if what == "assign")
    world.cluster.cut.add("one")
    world.spin(9 - 3, first, second)
    assert "lost" not in [what for what, _ in one.seen], "a session lasts for its timeout"
    world.spin(10, first, second)
    assert one.seen[-1][0] == "lost"
    assert two.seen[-1][0] == "assign"
    assert sum(len(places) * (1 if what == "assign" else -1) for what, places in two.seen) == PARTITIONS
    world.cluster.cut.discard("one")
    world.spin(20, first, second)
    assert one.seen[-1][0] == "assign"
    assert 0 < sum(len(places) * (1 if what == "assign" else -1) for what, places in one.seen) <= share


def test_an_outage_costs_the_membership_but_not_the_assignment(world: World) -> None:
    """The coordinator comes back with its group; a static member has its partitions again, in the same generation."""
    watched: Rebalances = Rebalances()
    errors: list[str] = []
    member = world.member("one", watched, "static", error_cb=lambda error: errors.append(error.name()))
    world.spin(5, member)
    generation = bytes(member.consumer_group_metadata())[7:11]
    world.cluster.down = True
    world.spin(15, member)
    world.cluster.down = False
    world.spin(5, member)
    assert [what for what, _ in watched.seen] == ["assign", "lost", "assign"]
    assert bytes(member.consumer_group_metadata())[7:11] == generation
    assert errors == ["_TRANSPORT", "_ALL_BROKERS_DOWN"]


def test_a_dead_process_is_expelled_after_its_session(world: World) -> None:
    """Nobody speaks for it any more, so the others get what it had."""
    one, two = Rebalances(), Rebalances()
    first, second = world.member("one", one, "1"), world.member("two", two, "2")
    world.spin(20, first, second)
    world.cluster.forget("one")
    world.spin(25, second)
    assert sum(len(places) * (1 if what == "assign" else -1) for what, places in two.seen) == PARTITIONS


def test_the_same_instance_twice_fences_the_first(world: World) -> None:
    """As with two processes on one data directory."""
    one, two = Rebalances(), Rebalances()
    first = world.member("one", one, "same")
    world.spin(5, first)
    second = world.member("two", two, "same")
    found = world.spin(5, first, second)
    assert [shown(message.error()) for message in found] == ["_FATAL fatal"]
    assert two.seen == [("assign", [0, 1, 2, 3])]


def test_an_application_that_does_not_poll_loses_its_membership(world: World) -> None:
    """Although its client sends heartbeats."""
    watched = Rebalances()
    member = world.member("one", watched, "", **{"max.poll.interval.ms": 60_000})
    world.spin(5, member)
    world.waits.let_pass(61)
    [message] = world.spin(5, member)
    assert shown(message.error()) == "_MAX_POLL_EXCEEDED"
    assert [what for what, _ in watched.seen] == ["assign", "lost", "assign"]


def test_a_callback_that_fails_has_its_partitions_assigned_nevertheless(world: World) -> None:
    """As in confluent_kafka: the poll raises its error, and librdkafka's state stays whole."""

    def fail(*_: Any) -> None:
        raise ValueError("no store")

    member = world.consumer("one", "group")
    member.subscribe(["t"], on_assign=fail)
    with pytest.raises(ValueError, match="no store"):
        world.spin(5, member)
    revoked: Seen = []
    member.subscribe(["t"], on_revoke=lambda _, places: revoked.append(len(places)))
    member.close()
    assert revoked == [PARTITIONS]


def test_compaction_keeps_the_last_record_of_each_key(world: World) -> None:
    """And the offsets of what it keeps."""
    producer = world.producer("p", **{"enable.idempotence": True})
    for number, key in enumerate(("a", "b", "a", "c", "b")):
        producer.produce("t", str(number), key, partition=0)
    assert producer.flush(60) == 0
    world.cluster.compact("t")
    assert events(reading(world)) == [(2, b"2"), (3, b"3"), (4, b"4"), (5, "_PARTITION_EOF")]


def test_slow_requests_take_their_time(world: World) -> None:
    """Each way."""
    producer = world.publisher()
    world.cluster.slow_s = 1.0
    began = world.waits.now
    producer.begin_transaction()
    producer.produce("t", b"x", partition=0)
    producer.commit_transaction(30)
    assert world.waits.now - began >= 6


def test_the_beginning_of_a_partition_can_get_lost(world: World) -> None:
    """Who has not read it yet hears so."""
    world.write(5)
    world.cluster.lose_beginning("t", 0, 3)
    assert events(reading(world)) == [(0, "_AUTO_OFFSET_RESET")]
    assert [offset for offset, _ in events(reading(world, 3))] == [3, 4, 5]


def test_a_replaced_topic_has_another_history(world: World) -> None:
    """A reader goes on in it as if nothing had happened, if its offset is there."""
    world.write(2, "old")
    consumer = reading(world)
    assert len(events(consumer)) == 3
    before = world.cluster.topics["t"].topic_id
    world.cluster.replace("t")
    world.waits.let_pass(1)
    assert world.cluster.topics["t"].topic_id != before
    world.write(4, "new")
    assert events(consumer)[:2] == [(2, b"new2"), (3, b"new3")]
