"""The product's publishers and readers over the simulated Kafka, in processes of the kernel."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeVar

import pytest

from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.twins import twins
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import installed
from stream.kafka.connection import KafkaCluster
from tests.stream.publishing import assert_exactly_once

T = TypeVar("T")
KAFKA = KafkaCluster("simulated:9092")
KEYSPACE = "ks"
TOPIC = f"freshet.{KEYSPACE}.events"
PARTITIONS = 3
every_seed = pytest.mark.parametrize("seed", range(6))


class World:
    """The kernel, a cluster, and the product on them."""

    def __init__(self, seed: int) -> None:
        self.kernel = Kernel(Random(seed))
        self.cluster = Cluster(self.kernel, self.kernel.rng)

    def run(self, process: str, work: Callable[[], T], within_s: float = 300.0) -> T:
        """What ``work`` returns, done in a process of its own."""
        found: list[T] = []
        self.kernel.spawn(process, lambda: found.append(work()))
        assert self.kernel.run_until(lambda: bool(found or self.kernel.errors), within_s), self.kernel.waits()
        assert self.kernel.errors == []
        return found[0]


def simulated(seed: int, history: Callable[[World], None]) -> None:
    """Runs a history on a seed."""
    world = World(seed)
    with installed(world.kernel, twins(world.cluster)):
        history(world)


def start() -> tuple[str, int]:
    """Where a new epoch begins."""
    return "MariaDB/0-1-0", 1_700_000_000


def assert_published_once(last: int) -> None:
    """Every change up to transaction ``last`` is in the topic once."""
    assert_exactly_once(KAFKA, KEYSPACE, PARTITIONS, last)
