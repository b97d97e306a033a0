"""What a publisher finds in the topic when it opens: where to resume, what is declared, and who else publishes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final

from stream.kafka.connection import KafkaCluster
from stream.kafka.reader import start_offsets
from stream.kafka.topics import Topic
from stream.publish.handover import check_goes_on, has_ended
from stream.publish.markers import Markers, check_tails, read_markers, sample_shards
from stream.publish.resume import ResumeError, read_declarations, read_tail
from stream.publish.topology import DeclaredTopology, TopologyError
from stream.wire.declarations import Declarations
from stream.wire.events import ResumePoint, Topology
from stream.wire.keys import Layout
from tokens.errors import FreshetError

HEALED_BY_A_NEW_EPOCH: Final = (
    "open_map_lost",
    "newer_records",
    "declarations_lost",
    "tail_lost",
    "topic_replaced",
    "ancestors_lost",
)
"""Codes of a `ResumeError` after which a publisher may begin anew by itself."""
TOPIC_ID: Final = "topic_id"
"""The annotation with Kafka's id of the topic that a state was written for."""


class LayoutMismatch(FreshetError):
    """The topic was published with another layout; code ``layout_changed``."""

    code = "layout_changed"


@dataclass(frozen=True, slots=True)
class Opening:
    """Everything that a publisher begins with."""

    layout: Layout
    point: ResumePoint | None
    """None if a new epoch must start."""
    declared: Declarations | None
    topology: Topology
    over: tuple[str, ...]
    """Shards that others have succeeded, or are to succeed."""
    epoch: int
    """The shard's highest epoch so far."""
    record_time_ms: int
    problem: ResumeError | TopologyError | None
    """Why an epoch ended."""


def read_opening(
    kafka: KafkaCluster, found: Topic, wanted: Layout, shard: str, declared_topology: DeclaredTopology, now_s: float
) -> Opening:
    """Read the ends of all partitions. Call it when no transaction of the shard is open.

    Raises `LayoutMismatch`, `TopologyError`, `TopicReadError`, `KafkaUnreachable`.
    """
    topic = found.name
    markers = read_markers(kafka, topic, range(wanted.partitions), shard)
    layout = _layout(topic, wanted, markers.layout)
    home = layout.home_partition(shard)
    tail = read_tail(kafka, topic, home, shard)
    point, declared = tail.point, None
    problem: ResumeError | TopologyError | None = tail.problem
    if point is not None:
        if not declared_topology.ends_for:
            check_goes_on(point)
        try:
            _check_same_topic(found, point)
            _check_tails(kafka, topic, layout, markers, point)
            declared = read_declarations(kafka, topic, home, point)
        except ResumeError as error:
            point, problem = None, error
    elif problem is None and tail.is_untruncated and markers.own:
        problem = ResumeError(f"{topic}/{home} has lost every state of {shard}", code="tail_lost")
    others = markers.others
    if declared is None or declared.topology is None:  # else it was looked for when that was published
        others = sample_shards(kafka, topic, home, shard) | others
        if declared_topology.takes_over:
            others |= _epochs_of(kafka, topic, layout, declared_topology.ancestors.keys() - others.keys())
    declared_topology = _with_ended(kafka, found, declared_topology, shard, others)
    declared_topology.check(topic, shard, others)
    if point is None and problem is None and declared_topology.takes_over:
        problem = _without_ancestors(kafka, topic, layout, shard, declared_topology, others)
    return Opening(
        layout=layout,
        point=point,
        declared=declared,
        topology=_topology(declared_topology, shard, declared, problem, others, now_s),
        over=declared_topology.over,
        epoch=max([tail.epoch, *(epoch for epoch, _ in markers.own.values())]),
        record_time_ms=tail.record_time_ms,
        problem=problem,
    )


def _with_ended(
    kafka: KafkaCluster, topic: Topic, declared: DeclaredTopology, shard: str, others: dict[str, int]
) -> DeclaredTopology:
    """``declared``, with the shards of ``others`` that it does not name, but that were handed over: they are over."""
    ended = [name for name in declared.undeclared(shard, others) if has_ended(kafka, topic, name)]
    return replace(declared, over=(*declared.over, *ended)) if ended else declared


def _epochs_of(kafka: KafkaCluster, topic: str, layout: Layout, shards: Iterable[str]) -> dict[str, int]:
    """Shard → its epoch, of those that have a state in the topic. One that ended long ago may lie between samples."""
    found = {name: read_tail(kafka, topic, layout.home_partition(name), name).epoch for name in shards}
    return {name: epoch for name, epoch in found.items() if epoch}


def _without_ancestors(
    kafka: KafkaCluster, topic: str, layout: Layout, shard: str, declared: DeclaredTopology, others: Collection[str]
) -> ResumeError | TopologyError | None:
    """What to say of a shard that has nothing in the topic, and whose ancestors have nothing there; None: some have.

    Retention takes all of them while the sources are away for long. A shard that began long ago looks as if it had not.
    """
    names = declared.ancestors
    if names.keys() & set(others):
        return None
    lows = start_offsets(kafka, topic, {layout.home_partition(name) for name in names})
    if all(lows.values()):
        return ResumeError(f"{topic} no longer has anything of {shard}, or of what it succeeds", code="ancestors_lost")
    return declared.without_ancestors(shard)


def _layout(topic: str, wanted: Layout, published: str) -> Layout:
    """The layout of the topic. One from before buckets, with prefixes of its own, is kept as it is."""
    if not published:
        return wanted
    kept = Layout.parse(published)
    if kept.partitions == wanted.partitions and (not wanted.prefixes or wanted.prefixes == kept.prefixes):
        return kept
    if kept.partitions < wanted.partitions:  # the topic has as many as wanted
        raise LayoutMismatch(
            f"{topic} was published with {kept.partitions} partitions, and {wanted.partitions} are there",
            hint="some were added to it, which can't be undone: publish into a new keyspace",
        )
    raise LayoutMismatch(
        f"{topic} was published with layout {published}, not {wanted}",
        hint="a topic's layout cannot change: configure the old one, or publish into a new keyspace",
    )


def _check_same_topic(topic: Topic, point: ResumePoint) -> None:
    """Raise `ResumeError` ``topic_replaced`` if the state was written for another topic of this name.

    Its publisher went on in the new one before it noticed: what the old one held is gone.
    """
    written_for = point.annotations.get(TOPIC_ID, topic.topic_id)  # versions before this rule name none
    if written_for != topic.topic_id:
        raise ResumeError(
            f"{topic.name} was deleted and made anew: the last state of {point.shard} is of topic id {written_for}, "
            f"and the topic's id is {topic.topic_id}",
            code="topic_replaced",
        )


def _check_tails(kafka: KafkaCluster, topic: str, layout: Layout, markers: Markers, point: ResumePoint) -> None:
    """Raise `ResumeError` ``tail_lost`` if the partitions do not end together."""
    crowded = [partition for partition in range(layout.partitions) if partition not in markers.linked]
    own, gaps = markers.own, markers.gaps
    if crowded and point.continuity:  # a large batch, or other shards, have filled more than a window
        further = read_markers(kafka, topic, crowded, point.shard, is_known=True)
        own, gaps = own | further.own, gaps | further.gaps
    check_tails(topic, point, own, gaps, layout.partitions)


def _topology(
    wanted: DeclaredTopology,
    shard: str,
    declared: Declarations | None,
    problem: ResumeError | TopologyError | None,
    others: dict[str, int],
    now_s: float,
) -> Topology:
    if declared is not None:
        return wanted.resumed(shard, declared.topology)
    if problem is None:
        return wanted.first(shard, others)
    return wanted.of_a_new_history(shard, others, max(1, int(now_s)))  # epochs have the numbers of the clock's seconds
