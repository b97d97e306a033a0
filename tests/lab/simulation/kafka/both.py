"""The clients that a script runs with: real ones, or those of a simulated cluster."""

from __future__ import annotations

import time
import uuid
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from lab.simulation.kafka.twins import twins
from stream.kafka.connection import KafkaCluster, client_settings
from stream.kafka.reader import reader_settings
from tests.lab.simulation.kafka.alone import alone


class Real:
    """Clients of a real Kafka."""

    def __init__(self, kafka: KafkaCluster) -> None:
        self.name = f"script-{uuid.uuid4().hex[:12]}"
        self._kafka = kafka
        self._admin = AdminClient(client_settings(kafka))

    def consumer(self, group: str = "", **settings: Any) -> Any:
        """With the settings of Freshet's readers."""
        return Consumer(reader_settings(self._kafka, group, settings))

    def producer(self, **settings: Any) -> Any:
        """With the settings that all clients share."""
        return Producer(client_settings(self._kafka, **settings))

    def admin(self) -> Any:
        """One for all requests: without it, its unanswered requests would fail."""
        return self._admin

    def now(self) -> float:
        """Seconds."""
        return time.monotonic()


class Simulated:
    """Clients of a simulated Kafka, in a time of its own."""

    def __init__(self, seed: int = 1) -> None:
        self.name = "script"
        self.cluster, self.waits = alone(seed)
        self._kafka = KafkaCluster("simulated:9092")
        self._twins = twins(self.cluster)

    def consumer(self, group: str = "", **settings: Any) -> Any:
        """As `Real.consumer`."""
        return self._twins[Consumer](reader_settings(self._kafka, group, settings))

    def producer(self, **settings: Any) -> Any:
        """As `Real.producer`."""
        return self._twins[Producer](client_settings(self._kafka, **settings))

    def admin(self) -> Any:
        """As `Real.admin`."""
        return self._twins[AdminClient](client_settings(self._kafka))

    def now(self) -> float:
        """Virtual seconds."""
        return self.waits.now
