"""The simulated Kafka shows an application what a real one shows it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stream.kafka.connection import KafkaCluster
from tests.lab.simulation.kafka.both import Real, Simulated
from tests.lab.simulation.kafka.scripts import SCRIPTS, Clients, Seen

Script = Callable[[Clients], Seen]
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
