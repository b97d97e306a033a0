"""Which object of confluent_kafka a simulated one stands for."""

from __future__ import annotations

from functools import partial
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from lab.simulation.kafka.admin import SimulatedAdmin
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.consumer import SimulatedConsumer
from lab.simulation.kafka.producer import SimulatedProducer


def twins(cluster: Cluster) -> dict[Any, Any]:
    """Real object → what takes its place in the product's modules. What holds no connection stays real."""
    return {
        Consumer: partial(SimulatedConsumer, cluster),
        Producer: partial(SimulatedProducer, cluster),
        AdminClient: partial(SimulatedAdmin, cluster),
    }
