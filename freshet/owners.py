"""Where the owners of a keyspace answer, for commands that ask them."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from consumers.owner.client import OwnerConnection
from freshet.keyspaces import naming_known
from freshet.settings import Settings, load_settings
from stream.kafka.locations import LocationError, LocationsReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from stream.kafka.connection import KafkaCluster

OWNERS_TIMEOUT_S = 5.0
"""How long to wait for owners that have just begun: they announce themselves a moment after they are ready."""


def owner_addresses(settings: Settings, keyspace: str, given: Sequence[str] = ()) -> dict[int, str]:
    """Partition → ``host:port`` as announced; the key -1 for each that is ``given``. Raises `FreshetError`."""
    if given:
        return {-1 - number: address for number, address in enumerate(given)}
    with naming_known(settings, keyspace):
        with LocationsReader(settings.kafka.cluster) as reader:
            found = {number: each.address for number, each in reader.owners(keyspace).items() if not each.gone}
        if not found:
            raise LocationError(
                f"nobody has announced a partition of {keyspace}",
                hint="start `freshet consume`, or name an owner with --owner HOST:PORT",
                code="owner_unknown",
            )
    return found


@contextmanager
def asking(settings: Settings, address: str) -> Iterator[OwnerConnection]:
    """A connection to an owner, with the token of the settings. Raises `OwnerError`."""
    token = settings.consumer.owner_token
    with OwnerConnection(address, token=token.get_secret_value() if token is not None else "") as connection:
        yield connection


def live_checkpoint(kafka: KafkaCluster, keyspace: str, owners: list[str]) -> Mapping[int, Path]:
    """Checkpoints that the owners of all partitions make now: partition → directory.

    Raises `LocationError` if one is not announced, and what `spark_jobs.verify.checkpoint_owners` does.
    """
    from spark_jobs.verify import checkpoint_owners
    from stream.kafka.topics import describe_topic, events_topic

    partitions = range(describe_topic(kafka, events_topic(keyspace)).partitions)
    if not owners:
        deadline = time.monotonic() + OWNERS_TIMEOUT_S
        with LocationsReader(kafka) as locations:
            left = (max(deadline - time.monotonic(), 0) for _ in partitions)
            found = [locations.wait_for(keyspace, each, wait_s) for each, wait_s in zip(partitions, left, strict=True)]
        owners = [each.address for each in found]
    token = load_settings().consumer.owner_token
    secret = "" if token is None else token.get_secret_value()
    return checkpoint_owners(owners, keyspace, partitions, token=secret)
