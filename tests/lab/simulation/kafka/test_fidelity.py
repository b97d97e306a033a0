"""The simulated Kafka shows an application what a real one shows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stream.kafka.connection import KafkaCluster
from tests.consumers.process.test_topic_losses import lose_tail
from tests.lab.simulation.kafka.both import Real, Simulated
from tests.lab.simulation.kafka.scripting import Clients, Seen
from tests.lab.simulation.kafka.scripts_of_faults import AFTER_A_LOST_TAIL, NO_BROKERS, after_a_lost_tail, no_brokers
from tests.lab.simulation.kafka.scripts_of_messages import OF_MESSAGES
from tests.lab.simulation.kafka.scripts_of_topics import OF_TOPICS

Script = Callable[[Clients], Seen]
SCRIPTS = OF_MESSAGES | OF_TOPICS
every_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)


@every_script
@pytest.mark.parametrize("seed", range(5))
def test_the_simulated_cluster_shows_it(script: Script, seed: int) -> None:
    """Offsets, errors with their flags, positions, ends, callbacks: as a real Kafka's, at any interleaving."""
    assert script(Simulated(seed)) == SCRIPTS[script]


@every_script
def test_a_real_cluster_shows_it(script: Script, kafka: KafkaCluster) -> None:
    """What the simulated cluster is compared with is true."""
    assert script(Real(kafka)) == SCRIPTS[script]


def test_requests_that_nobody_answers_end_alike() -> None:
    """With the same errors and flags, whether there is no Kafka or the simulated one is down."""
    simulated = Simulated()
    simulated.cluster.down = True
    assert no_brokers(simulated) == NO_BROKERS
    assert no_brokers(Real(KafkaCluster("127.0.0.1:1"))) == NO_BROKERS


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_tail_shows(seed: int) -> None:
    """By the offset while that is not there, and by the leader epoch when it is there again."""
    simulated = Simulated(seed)
    found = after_a_lost_tail(simulated, lambda name: simulated.cluster.elect_uncleanly(name, 0, 2))
    assert found == AFTER_A_LOST_TAIL


@pytest.mark.slow
def test_a_real_lost_tail_shows(new_kafka: Callable[..., Any]) -> None:
    """What the simulated one is compared with is true."""
    server = new_kafka()
    assert after_a_lost_tail(Real(server.cluster), lambda name: lose_tail(server, name)) == AFTER_A_LOST_TAIL
