"""(f) Time from restart to ready of ``freshet consume`` with a million entries, and its memory.

It is restarted after SIGTERM, and after SIGKILL.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.deployed import Deployment
from benchmarks.spin import spin
from stream.kafka.connection import KafkaCluster

KEYSPACE: Final = "million"


def restart(kafka: KafkaCluster, rounds: int) -> dict[str, Any]:
    """Seconds from the process's start to its ready line, and how many messages are folded again."""
    with tempfile.TemporaryDirectory(prefix="freshet-bench-") as directory:
        deployed = Deployment(Path(directory), kafka, (KEYSPACE,))
        try:
            first = deployed.start_consumer()
            deployed.await_offsets(lambda offset, committed, _: offset == committed)
            built_rss = deployed.rss_mb()
            clean, killed, redone, spins = [], [], [], []
            for _ in range(rounds):
                spins.append(spin())
                deployed.stop_consumer()
                clean.append(deployed.start_consumer())
                offsets = deployed.await_offsets(lambda offset, committed, _: offset == committed)
                deployed.stop_consumer(kill=True)
                killed.append(deployed.start_consumer())
                taken = {
                    _number(record["partition"]): record["offset"] for record in deployed.logged("partition taken")
                }
                redone.append(sum(offsets[number] - taken[number] for number in offsets))
            entries = sum(record["entries"] for record in deployed.logged("ready"))
            return {
                "entries": entries,
                "first_start_s": first,
                "clean_s": median(clean),
                "clean_all_s": clean,
                "killed_s": median(killed),
                "killed_all_s": killed,
                "messages_redone": max(redone),
                "rss_mb_after_building": built_rss,
                "rss_mb_after_restart": deployed.rss_mb(),
                "disk_mb": sum(file.stat().st_size for file in Path(directory).rglob("*.sst")) / 1e6,
                "spins": spins,
            }
        finally:
            deployed.stop()


def _number(partition: str) -> int:
    return int(partition.rpartition("/")[2])
