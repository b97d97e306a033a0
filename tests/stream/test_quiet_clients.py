"""librdkafka never writes to stderr, because our logs are structured."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from freshet.local.process import free_ports

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("stream", "consumers", "serving", "spark_jobs", "freshet", "lab", "tests", "benchmarks")

CLIENTS = """
import sys
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from stream.kafka.connection import KafkaCluster, client_settings
settings = client_settings(KafkaCluster(sys.argv[1]))
clients = Consumer(settings | {"group.id": "g"}), Producer(settings), AdminClient(settings)
clients[0].poll(0.5)
clients[1].poll(0.5)
"""


def test_clients_of_an_absent_broker_that_are_never_closed_write_nothing() -> None:
    """Clients with the shared settings write nothing for failed connections, also at process exit."""
    [port] = free_ports(1)
    command = [sys.executable, "-c", CLIENTS, f"127.0.0.1:{port}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


def test_every_client_takes_the_shared_settings() -> None:
    """No client is created from a dict of its own, which would make it write to stderr."""
    own = re.compile(r"\b(Consumer|Producer|AdminClient)\(\s*\{")
    files = [file for room in ROOMS for file in (ROOT / room).rglob("*.py")]
    assert [str(file) for file in files if own.search(file.read_text())] == []
