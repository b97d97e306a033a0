"""The look-alike of confluent_kafka's AdminClient. Its methods block until they have an answer: futures come done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Final, Self, TypeVar

from confluent_kafka import (
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    Node,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
    Uuid,
)
from confluent_kafka.admin import (
    BrokerMetadata,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    ListOffsetsResultInfo,
    MemberAssignment,
    MemberDescription,
    NewTopic,
    OffsetSpec,
    PartitionMetadata,
    TopicDescription,
    TopicMetadata,
)

from lab.simulation.kafka.brokers import DEFAULTS, Topic
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.connection import Connection, Settings, Unreachable, failure
from lab.simulation.kafka.log import PartitionLog, Refused

T = TypeVar("T")
K = TypeVar("K")
BROKER_ID: Final = 1
REQUEST_TIMEOUT_S: Final = 60.0
_NODE: Final = Node(BROKER_ID, "simulated", 9092)
_EARLIEST: Final = OffsetSpec.earliest()._value
_LATEST: Final = OffsetSpec.latest()._value


class SimulatedAdmin:
    """As `confluent_kafka.admin.AdminClient`, as far as Freshet and its tests use it."""

    def __init__(self, cluster: Cluster, settings: Settings) -> None:  # noqa: ARG002 - none of them matters here
        self._connection = Connection(cluster)
        self._cluster = cluster

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> ClusterMetadata:
        """All topics, or one, which then is there with its error if it is missing."""
        return metadata(self._connection, topic, timeout)

    def create_topics(
        self, new_topics: list[NewTopic], operation_timeout: float = 0.0, request_timeout: float = REQUEST_TIMEOUT_S
    ) -> dict[str, Future[None]]:
        """A future for each topic's name."""
        del operation_timeout  # the answer comes when the topic is there

        def create(new: NewTopic) -> None:
            self._cluster.create(new.topic, new.num_partitions, dict(new.config or {}), max(new.replication_factor, 1))

        return self._each({new.topic: partial(create, new) for new in new_topics}, request_timeout)

    def delete_topics(self, topics: list[str], request_timeout: float = REQUEST_TIMEOUT_S) -> dict[str, Future[None]]:
        """A future for each name."""
        return self._each({name: partial(self._cluster.delete, name) for name in topics}, request_timeout)

    def describe_topics(
        self, topics: TopicCollection, request_timeout: float = REQUEST_TIMEOUT_S
    ) -> dict[str, Future[TopicDescription]]:
        """A future for each name."""

        def describe(name: str) -> TopicDescription:
            topic = self._cluster.topic(name)
            if topic.known_at + self._cluster.behind_s > self._cluster.now:
                raise Refused(KafkaError.UNKNOWN_TOPIC_OR_PART)
            return _description(topic)

        return self._each({name: partial(describe, name) for name in topics.topic_names}, request_timeout)

    def describe_consumer_groups(
        self, group_ids: list[str], request_timeout: float = REQUEST_TIMEOUT_S
    ) -> dict[str, Future[ConsumerGroupDescription]]:
        """A future for each group's name."""

        def describe(name: str) -> ConsumerGroupDescription:
            group = self._cluster.group(name)
            members = [
                MemberDescription(
                    each.id,
                    "",
                    "",
                    MemberAssignment([TopicPartition(topic, number) for topic, number in sorted(given)]),
                    each.instance or None,
                )
                for each, given in group.described()
            ]
            state = ConsumerGroupState.STABLE if group.is_stable else ConsumerGroupState.PREPARING_REBALANCING
            return ConsumerGroupDescription(name, False, members, "cooperative-sticky", state, _NODE)

        return self._each({name: partial(describe, name) for name in group_ids}, request_timeout)

    def describe_configs(
        self, resources: list[ConfigResource], request_timeout: float = REQUEST_TIMEOUT_S
    ) -> dict[ConfigResource, Future[dict[str, ConfigEntry]]]:
        """A future for each topic."""

        def describe(name: str) -> dict[str, ConfigEntry]:
            topic = self._cluster.topic(name)
            return {each: ConfigEntry(each, topic.setting(each)) for each in DEFAULTS}

        return self._each({each: partial(describe, each.name) for each in resources}, request_timeout)

    def list_offsets(
        self,
        topic_partition_offsets: Mapping[TopicPartition, OffsetSpec],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        request_timeout: float = REQUEST_TIMEOUT_S,
    ) -> dict[TopicPartition, Future[ListOffsetsResultInfo]]:
        """A future for each place."""
        committed = isolation_level == IsolationLevel.READ_COMMITTED

        def find(place: TopicPartition, spec: OffsetSpec) -> ListOffsetsResultInfo:
            topic = self._cluster.topics.get(place.topic)
            if not self._cluster.led or (topic is not None and place.partition >= len(topic.logs)):
                raise Refused(KafkaError._NOENT, "Failed to query partition leaders: No leaders found")
            log = self._cluster.log(place.topic, place.partition)
            offset, timestamp = offset_of(log, spec._value, committed=committed)
            return ListOffsetsResultInfo(offset, timestamp, log.leader_epoch)

        wanted = topic_partition_offsets.items()
        return self._each({place: partial(find, place, spec) for place, spec in wanted}, request_timeout)

    def delete_records(
        self, topic_partition_offsets: list[TopicPartition], request_timeout: float = REQUEST_TIMEOUT_S
    ) -> dict[TopicPartition, Future[None]]:
        """A future for each place."""

        def delete(place: TopicPartition) -> None:
            self._cluster.log(place.topic, place.partition).delete_before(place.offset)

        return self._each({place: partial(delete, place) for place in topic_partition_offsets}, request_timeout)

    def poll(self, timeout: float = -1) -> int:
        """Nothing: futures are done when they are returned."""
        del timeout
        return 0

    def _each(self, requests: Mapping[K, Callable[[], T]], timeout_s: float) -> dict[K, Future[T]]:
        """Asks for each thing by itself; a refusal is its future's."""

        def attempt(request: Callable[[], T]) -> Callable[[], tuple[T | None, Refused | None]]:
            def attempted() -> tuple[T | None, Refused | None]:
                try:
                    return request(), None
                except Refused as refused:
                    return None, refused

            return attempted

        work = {key: attempt(request) for key, request in requests.items()}
        futures: dict[K, Future[T]] = {key: Future() for key in work}
        try:
            answers = self._ask(lambda: {key: request() for key, request in work.items()}, timeout_s)
        except Unreachable:
            for future in futures.values():
                future.set_exception(
                    failure(KafkaError._TIMED_OUT, "Failed while waiting for response from broker: Local: Timed out")
                )
            return futures
        for key, (answer, refused) in answers.items():
            if refused is not None:
                futures[key].set_exception(failure(refused.code, refused.reason))
            else:
                futures[key].set_result(answer)  # type: ignore[arg-type]
        return futures

    def _ask(self, request: Callable[[], T], timeout_s: float) -> T:
        timeout_s = timeout_s if timeout_s >= 0 else REQUEST_TIMEOUT_S
        return self._connection.ask(request, self._cluster.now + timeout_s)


def offset_of(log: PartitionLog, spec: int, *, committed: bool) -> tuple[int, int]:
    """(offset, timestamp) that ListOffsets answers for ``spec``: earliest, latest, or a time in milliseconds."""
    if spec == _EARLIEST:
        return log.start, -1
    if spec == _LATEST:
        return (log.stable if committed else log.end), -1
    return log.offset_at(spec)


def _description(topic: Topic) -> TopicDescription:
    replicas = [Node(BROKER_ID + number, "simulated", 9092) for number in range(topic.replicas)]
    partitions = [TopicPartitionInfo(number, _NODE, replicas, replicas) for number in range(len(topic.logs))]
    return TopicDescription(topic.name, Uuid(*topic.topic_id), False, partitions)


def metadata(connection: Connection, wanted: str | None, timeout_s: float) -> ClusterMetadata:
    """All topics, or one, as a broker knows them."""
    cluster = connection.cluster

    def ask() -> ClusterMetadata:
        found = ClusterMetadata()
        broker = found.brokers[BROKER_ID] = BrokerMetadata()
        broker.id = BROKER_ID
        for name in [wanted] if wanted is not None else sorted(cluster.topics):
            topic = cluster.topics.get(name)
            if wanted is not None or (topic is not None and topic.known_at <= cluster.now):
                leader = BROKER_ID if cluster.led else -1
                found.topics[name] = _topic_metadata(name, topic, cluster.now, leader)
        return found

    try:
        return connection.ask(ask, cluster.now + (timeout_s if timeout_s >= 0 else REQUEST_TIMEOUT_S))
    except Unreachable:
        raise failure(KafkaError._TRANSPORT, "Failed to get metadata: Local: Broker transport failure") from None


def _topic_metadata(name: str, topic: Topic | None, now: float, leader: int) -> TopicMetadata:
    found = TopicMetadata()
    found.topic = name
    if topic is None:
        found.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
    elif topic.known_at > now:
        found.error = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
    else:
        for number in range(len(topic.logs)):
            partition = found.partitions[number] = PartitionMetadata()
            partition.id, partition.leader = number, leader
    return found
