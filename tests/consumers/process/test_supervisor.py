"""What a supervisor makes of the words and the ends of its workers, without any process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from consumers import workers
from consumers.owner.overlay import Overlay
from consumers.owner.partitions import Ownership, Partition
from consumers.process.loop import ConsumptionSettings
from consumers.process.run import OwnerSettings
from consumers.workers import BACKOFF_S, SETTLED_S, Worker, WorkersCollector
from stream.kafka.connection import KafkaCluster
from stream.kafka.topics import Topic
from stream.monitoring import serve_monitoring
from tests.patience import PATIENCE_S
from tokens.errors import FreshetError


class Pipe:
    """What a worker has said, and nobody has heard yet."""

    def __init__(self, *words: tuple[str, ...]) -> None:
        self._words = [*words]
        self.closed = False

    def poll(self) -> bool:
        """Whether there is something."""
        return bool(self._words)

    def recv(self) -> tuple[str, ...]:
        """The next word."""
        return self._words.pop(0)

    def close(self) -> None:
        """It is read no more."""
        self.closed = True


def worker_of(data_dir: Path, *words: tuple[str, ...], lived_s: float = 1.0) -> Worker:
    """A worker that has ended after such a time, with these words."""
    consume = ConsumptionSettings(kafka=KafkaCluster("127.0.0.1:1"), keyspaces=("k",), data_dir=data_dir)
    process: Any = SimpleNamespace(join=lambda: None, exitcode=1)
    return Worker(
        0,
        consume,
        OwnerSettings(),
        process=process,
        told=Pipe(*words),
        metrics="127.0.0.1:1",
        started_at=time.monotonic() - lived_s,
    )


def test_a_worker_that_died_is_not_asked_where_it_was(tmp_path: Path) -> None:
    """Another process may listen there by now, and would be taken for it."""
    worker = worker_of(tmp_path)
    workers._note_end(worker)
    assert (worker.process, worker.metrics, worker.told.closed) == (None, "", True)
    assert WorkersCollector([worker]).not_ready() == "worker 0 does not answer"


def test_the_last_word_of_a_worker_is_heard(tmp_path: Path) -> None:
    """It is said just before the end: a worker whose settings are wrong would be started again and again."""
    worker = worker_of(tmp_path, ("metrics", "127.0.0.1:2"), ("error", "store_newer", "it is newer", "upgrade"))
    with pytest.raises(FreshetError, match="it is newer") as told:
        workers._note_end(worker)
    assert (told.value.code, told.value.hint) == ("store_newer", "upgrade")


def test_a_worker_that_dies_at_once_is_started_again_later_and_later(tmp_path: Path) -> None:
    """Until one has lived for long: then what it died of was something else."""
    worker = worker_of(tmp_path)
    process, pauses = worker.process, list[float]()
    for lived_s in (1.0, 1.0, 1.0, SETTLED_S + 1, 1.0):
        worker.process, worker.started_at = process, time.monotonic() - lived_s
        workers._note_end(worker)
        pauses.append(round(worker.start_at - time.monotonic(), 1))
    assert pauses == [BACKOFF_S, 2 * BACKOFF_S, 4 * BACKOFF_S, BACKOFF_S, 2 * BACKOFF_S]


def ownership_of(data_dir: Path, *, ready: Sequence[bool] = (), awaited: int = 0, unopened: int = 0) -> Ownership:
    """Of a process that has such partitions, and waits for so many topics and stores."""
    owned = Ownership(data_dir)
    store: Any = None
    for number, is_ready in enumerate(ready):
        owned.add(Partition("k", number, Topic("k", "id", 20), store, Overlay(0), ready=is_ready))
    owned.awaited_keyspaces = frozenset(f"k{number}" for number in range(awaited))
    owned.unopened = frozenset(("k", number) for number in range(10, 10 + unopened))
    return owned


def test_workers_are_ready_if_each_is_that_has_or_awaits_something(tmp_path: Path) -> None:
    """A rollout that waits for them would take away the ones before. There may be more workers than partitions."""
    made, owned = [worker_of(tmp_path), worker_of(tmp_path)], [ownership_of(tmp_path)] * 2
    with ExitStack() as stack:
        for number, worker in enumerate(made):

            def told(number: int = number) -> str:
                return owned[number].not_ready

            server = serve_monitoring(("127.0.0.1", 0), CollectorRegistry(), told, version="1")
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            worker.number, worker.metrics = number, f"127.0.0.1:{server.server_address[1]}"

        def not_ready(*states: dict[str, Any]) -> str:
            owned[:] = [ownership_of(tmp_path, **each) for each in states]
            return WorkersCollector(made).not_ready()

        ready = {"ready": [True, True]}
        assert not_ready({}, {}) == "no partitions"
        assert not_ready(ready, {}) == not_ready(ready, ready) == ""
        assert not_ready(ready, {"ready": [True, False]}) == "worker 1: partitions that have not caught up: 1"
        assert not_ready(ready, {"unopened": 2}) == "worker 1: partitions whose stores are not open yet: 2"
        assert not_ready(ready | {"awaited": 1}, {}) == ("worker 0: keyspaces without a topic or an assignment yet: 1")


def test_workers_that_hang_are_asked_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other they took longer than Prometheus waits: nothing was told, not even who answers."""
    made = [worker_of(tmp_path) for _ in range(4)]
    all_are_asked = Barrier(len(made))

    def hang(_: Worker) -> None:
        all_are_asked.wait(PATIENCE_S)

    monkeypatch.setattr(workers, "_scrape", hang)
    monkeypatch.setattr(workers, "_not_ready", hang)
    [up] = WorkersCollector(made).collect()
    assert [each.value for each in up.samples] == [0] * len(made)
    assert WorkersCollector(made).not_ready() == "worker 0 does not answer"
