"""Compares what a consumer has made durable with what the rules make of the log."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from consumers.store.errors import StoreError
from consumers.store.store import partition_directory
from consumers.store.view import StoreView
from lab.simulation.kafka.log import PartitionLog
from lab.simulation.naive.facts import facts_of_bytes, facts_of_naive, first_difference
from lab.simulation.naive.judging import BY_THE_RULES
from lab.simulation.naive.partition import NaivePartition


def check_store(
    data_dir: Path, keyspace: str, number: int, log: PartitionLog, complain: Callable[[str, str], None]
) -> bool:
    """Checks a partition's store. False: there is none, or its bits have flipped."""
    directory = partition_directory(data_dir, keyspace, number)
    if not directory.exists():
        return False
    with suppress(StoreError):
        with StoreView(directory) as view:
            head, entries = view.head, dict(view.items())
        naive = NaivePartition(head.begin)
        for record in log.committed(head.begin, head.offset):
            naive.fold(record.offset, record.value)
        found = first_difference(facts_of_bytes(entries), facts_of_naive(naive, head.offset))
        if found and entries:
            complain(BY_THE_RULES, f"{keyspace}/{number} at offset {head.offset}: {found}")
        return bool(entries)
    return False
