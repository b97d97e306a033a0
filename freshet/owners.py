"""The owners of a keyspace, for commands that send requests to them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consumers.owner.client import OwnerConnection
from consumers.owner.protocol import OwnerError
from freshet.keyspaces import explain_unknown_keyspace
from freshet.settings import Settings, load_settings
from stream.kafka.locations import LocationError, LocationsReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from consumers.owner.protocol import Verdict
    from stream.kafka.connection import KafkaCluster

OWNERS_TIMEOUT_S = 5.0
"""How long to wait for the announcements of owners that have just started."""


def owner_addresses(settings: Settings, keyspace: str, given: Sequence[str] = ()) -> dict[int, str]:
    """Partition → the owner's ``host:port`` as announced; -1, -2, … → addresses ``given``. Raises `FreshetError`."""
    if given:
        return {-1 - number: address for number, address in enumerate(given)}
    with explain_unknown_keyspace(settings, keyspace):
        with LocationsReader(settings.kafka.cluster) as reader:
            found = {number: each.address for number, each in reader.owners(keyspace).items()}
        if not found:
            raise LocationError(
                f"no owner has announced a partition of {keyspace}",
                hint="start `freshet consume`, or name an owner with --owner HOST:PORT",
                code="owner_unknown",
            )
    return found


@contextmanager
def owner_connection(settings: Settings, address: str) -> Iterator[OwnerConnection]:
    """A connection to an owner, with the owner token of the settings. Raises `OwnerError`."""
    with OwnerConnection(address, identity=settings.consumer.identity) as connection:
        yield connection


def partitions_of(kafka: KafkaCluster, keyspace: str) -> range:
    """All of the topic's, also those that nobody is announced for. Raises as `describe_topic`."""
    from stream.kafka.topics import describe_topic, events_topic

    return range(describe_topic(kafka, events_topic(kafka, keyspace)).partitions)


def asked_owners(kafka: KafkaCluster, keyspace: str, given: Sequence[str] = ()) -> dict[int, str]:
    """Partition → address of whose store counts: the announced owner's; of those ``given``, the first that has it.

    Others may have it too: a process that follows a keyspace may own one of its partitions. "": none of those given has
    it. Raises `LocationError` if a partition's owner is not announced, and `OwnerError`.
    """
    partitions = partitions_of(kafka, keyspace)
    if not given:
        return _announced(kafka, keyspace, partitions)
    found = dict.fromkeys(partitions, "")
    identity = load_settings().consumer.identity
    for address in given:
        with OwnerConnection(address, identity=identity) as owner:
            for each in owner.status(keyspace).partitions:
                found[each.partition] = found.get(each.partition) or address
    return found


def checkpointed(keyspace: str, asked: Mapping[int, str]) -> Mapping[int, Path]:
    """Has the `asked_owners` make checkpoints; returns partition → directory.

    Raises as `spark_jobs.verify.checkpoint_owners`.
    """
    from spark_jobs.verify import checkpoint_owners

    return checkpoint_owners(asked, keyspace, identity=load_settings().consumer.identity)


def live_checkpoint(kafka: KafkaCluster, keyspace: str, owners: Sequence[str]) -> Mapping[int, Path]:
    """`checkpointed` of the `asked_owners`. Raises as both."""
    return checkpointed(keyspace, asked_owners(kafka, keyspace, owners))


def tell_verdicts(keyspace: str, asked: Mapping[int, str], verdicts: list[Verdict]) -> None:
    """Tells each of the `asked_owners` what an audit found of its own store, so that the page can show it.

    One that can't be told keeps it from no other. Raises the first `OwnerError`; ``bad_request``: an owner is too old
    for it.
    """
    identity = load_settings().consumer.identity
    failed: list[OwnerError] = []
    for address in sorted({asked[each.partition] for each in verdicts}):
        try:
            with OwnerConnection(address, identity=identity) as owner:
                owner.tell_verdicts(keyspace, [each for each in verdicts if asked[each.partition] == address])
        except OwnerError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _announced(kafka: KafkaCluster, keyspace: str, partitions: Sequence[int]) -> dict[int, str]:
    """Partition → address of its owner. Raises `LocationError`."""
    deadline = time.monotonic() + OWNERS_TIMEOUT_S
    with LocationsReader(kafka) as locations:
        left = (max(deadline - time.monotonic(), 0) for _ in partitions)
        found = [locations.wait_for(keyspace, each, wait_s) for each, wait_s in zip(partitions, left, strict=True)]
    return {number: each.address for number, each in zip(partitions, found, strict=True)}
