"""Several consuming processes of one group under one supervisor: one core each, one port of metrics and health for all.

Each worker is what `run_consumer` runs, with a data directory, a member id and an announced address of its own. A
worker that dies is started again. One that ends with an error that waiting can't help ends them all, as it ends a
single process. Workers end by themselves when their supervisor is gone.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import connection, get_context, resource_tracker
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.error import HTTPError

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from consumers.owner.partitions import NO_PARTITIONS
from consumers.owner.protocol import OwnerError
from consumers.process.loop import ConsumptionSettings
from consumers.process.run import CHECKPOINTS_NAME, OwnerSettings, announced_host, monitoring_options, run_consumer
from stream.access.direct import direct
from stream.monitoring import serve_monitoring
from tokens.errors import FreshetError

T = TypeVar("T")

log = structlog.get_logger(__name__)

BACKOFF_S: Final = 1.0
"""A worker that died is started again after this time, then after twice as long each time,"""
BACKOFF_S_MAX: Final = 30.0
"""but no longer than this."""
SETTLED_S: Final = 60.0
"""One that has lived so long starts with the shortest pause again."""
STOP_TIMEOUT_S: Final = 60.0
"""Workers that have not ended so long after SIGTERM are killed."""
SCRAPE_TIMEOUT_S: Final = 3.0
_BUILD: Final = "freshet_build_info"


@dataclass(slots=True)
class Worker:
    """One consuming process, or the place of one that is to be started at ``start_at``."""

    number: int
    consume: ConsumptionSettings
    owner: OwnerSettings
    process: Any = None
    told: Any = None
    """What the process tells: where its metrics are, and why it ended."""
    metrics: str = ""
    start_at: float = 0.0
    started_at: float = 0.0
    backoff_s: float = BACKOFF_S


def worker_settings(
    number: int, consume: ConsumptionSettings, owner: OwnerSettings
) -> tuple[ConsumptionSettings, OwnerSettings]:
    """The settings of worker ``number``.

    The first one keeps the data directory; the others have theirs in it. Checkpoints of all are in the first one's, so
    that a copy has all partitions. Ports count up from the given ones. Memory for fills is as for one process: each
    partition has its share of it by the topic's number of partitions, whichever worker has it.
    """
    place = consume.data_dir / f".worker-{number}" if number else consume.data_dir
    host, _, port = owner.announced.rpartition(":")
    return (
        replace(consume, data_dir=place, checkpoints=consume.data_dir / CHECKPOINTS_NAME),
        replace(
            owner,
            port=owner.port + number if owner.port else 0,
            announced=f"{host}:{int(port) + number}" if port else "",
            metrics_port=None if owner.metrics_port is None else 0,
            metrics_host="127.0.0.1",
        ),
    )


def run_workers(
    count: int, consume: ConsumptionSettings, owner: OwnerSettings, configure: Callable[[], None] = lambda: None
) -> None:
    """Consumes in ``count`` processes until SIGTERM or SIGINT. Raises `FreshetError` if retrying can't help.

    ``configure``: called first in each of them. It must be picklable.
    """
    workers = [Worker(number, *worker_settings(number, consume, owner)) for number in range(count)]
    signalled, wake = socket.socketpair()
    wake.setblocking(False)
    woken_before = signal.set_wakeup_fd(wake.fileno())  # first: a signal between the two would be lost
    before = {each: signal.signal(each, lambda *_: None) for each in (signal.SIGTERM, signal.SIGINT)}
    metrics = _serve_metrics(workers, owner) if owner.metrics_port is not None else None
    try:
        with owner.follow(owner.access):
            _keep_running(workers, signalled, configure)
        log.info("stopping", workers=count)
    finally:
        _stop(workers)
        if metrics is not None:
            metrics.shutdown()
            metrics.server_close()
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        signalled.close()
        wake.close()
    log.info("stopped", workers=count)


def _keep_running(workers: list[Worker], signalled: socket.socket, configure: Callable[[], None]) -> None:
    """Until SIGTERM or SIGINT. Raises the error that a worker ended with."""
    _start_due(workers, configure)
    while not _next_news(workers, signalled):
        _start_due(workers, configure)


def _start_due(workers: list[Worker], configure: Callable[[], None]) -> None:
    for worker in workers:
        if worker.process is None and time.monotonic() >= worker.start_at:
            try:
                _start(worker, configure)
            except OSError as error:  # no memory, too many processes or open files: the others go on
                in_s = _start_later(worker)
                log.error(
                    "worker cannot be started, trying again",
                    worker=worker.number,
                    code="worker_not_started",
                    reason=str(error),
                    in_s=in_s,
                )


def _start(worker: Worker, configure: Callable[[], None]) -> None:
    """Raises ``OSError``."""
    context = get_context("spawn")
    worker.told, theirs = context.Pipe()
    with theirs:
        process = context.Process(
            target=_work, args=(worker.consume, worker.owner, theirs, configure), name=f"worker-{worker.number}"
        )
        resource_tracker.ensure_running()  # it would let SIGINT through when it is started
        # Ctrl-C reaches the workers, too. One that is still imported would tell of it with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    worker.process, worker.started_at = process, time.monotonic()
    log.info("worker started", worker=worker.number, pid=process.pid)


def _start_later(worker: Worker) -> float:
    """After so many seconds."""
    in_s = worker.backoff_s
    worker.start_at = time.monotonic() + in_s
    worker.backoff_s = min(in_s * 2, BACKOFF_S_MAX)
    return in_s


def _next_news(workers: list[Worker], signalled: socket.socket) -> bool:
    """Waits until something happens. True after SIGTERM or SIGINT. Raises the error that a worker ended with."""
    running = [each for each in workers if each.process is not None]
    due = [each.start_at for each in workers if each.process is None]
    timeout_s = max(0.0, min(due) - time.monotonic()) if due else None
    pipes = [each.told for each in running if not each.told.closed]
    found = connection.wait([signalled, *pipes, *(each.process.sentinel for each in running)], timeout_s)
    for worker in running:
        if worker.told in found:
            _listen(worker)
        if worker.process.sentinel in found:
            _note_end(worker)
    return signalled in found and not {signal.SIGTERM, signal.SIGINT}.isdisjoint(signalled.recv(4_096))


def _listen(worker: Worker) -> None:
    try:
        said, *rest = worker.told.recv()
    except (EOFError, OSError):
        worker.told.close()
        return
    if said == "metrics":
        [worker.metrics] = rest
        return
    code, what, hint = rest
    raise FreshetError(f"worker {worker.number}: {what}", hint=hint, code=code)


def _note_end(worker: Worker) -> None:
    while not worker.told.closed and worker.told.poll():
        _listen(worker)
    worker.told.close()
    worker.process.join()
    lived_s = time.monotonic() - worker.started_at
    worker.backoff_s = BACKOFF_S if lived_s >= SETTLED_S else worker.backoff_s
    in_s = _start_later(worker)
    log.error("worker died, starting it again", worker=worker.number, exit=worker.process.exitcode, in_s=in_s)
    worker.process, worker.metrics = None, ""


def _stop(workers: list[Worker]) -> None:
    running = [each.process for each in workers if each.process is not None]
    for process in running:
        if process.is_alive():
            process.terminate()
    deadline = time.monotonic() + STOP_TIMEOUT_S
    for process in running:
        process.join(max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            log.error("worker did not end, killing it", worker=process.name)
            process.kill()
            process.join()


def _work(consume: ConsumptionSettings, owner: OwnerSettings, told: Any, configure: Callable[[], None]) -> None:
    """A worker's process, which was started with SIGINT blocked. Until it consumes, its supervisor ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    configure()
    Thread(target=_end_with_supervisor, args=(told,), name="supervisor", daemon=True).start()
    try:
        run_consumer(consume, owner, lambda metrics: told.send(("metrics", metrics)))
    except FreshetError as error:
        told.send(("error", error.code, str(error), error.hint))
        sys.exit(1)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # another one, when all is done


def _end_with_supervisor(told: Any) -> None:
    """Nothing is ever said to a worker, so reading ends when the supervisor does."""
    try:
        told.recv()
    except (EOFError, OSError):
        os.kill(os.getpid(), signal.SIGTERM)


class WorkersCollector:
    """Collects from the workers' own ports. ``worker`` says which one each series is from."""

    def __init__(self, workers: list[Worker]) -> None:
        self._workers = workers

    def describe(self) -> list[Metric]:
        """Empty, so that registration collects nothing."""
        return []

    def collect(self) -> Iterator[Metric]:
        """All families of all workers, as of now."""
        families: dict[str, Metric] = {}
        alive = Metric("freshet_consumer_worker_up", "1 while the worker's process answers.", "gauge")
        for worker, found in zip(self._workers, self._asked(_scrape), strict=True):
            number = {"worker": str(worker.number)}
            alive.add_sample(alive.name, number, int(found is not None))
            for family in found or ():
                if family.name != _BUILD:
                    kept = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                    for sample in family.samples:
                        kept.add_sample(sample.name, sample.labels | number, sample.value)
        yield alive
        yield from families.values()

    def _asked(self, ask: Callable[[Worker], T]) -> list[T]:
        """All of them at a time: a few that hang must not take longer than whoever scrapes waits."""
        with ThreadPoolExecutor(len(self._workers)) as threads:
            return list(threads.map(ask, self._workers))

    def not_ready(self) -> str:
        """Why the workers are not ready; empty if all answer, and all that have or await something are ready."""
        told = set()
        for worker, why in zip(self._workers, self._asked(_not_ready), strict=True):
            if why is None:
                return f"worker {worker.number} does not answer"
            if why not in ("", NO_PARTITIONS):  # there may be more workers than partitions
                return f"worker {worker.number}: {why}"
            told.add(why)
        return "" if "" in told else NO_PARTITIONS


def _scrape(worker: Worker) -> list[Metric] | None:
    """What a worker's port shows; None if it does not answer."""
    if not worker.metrics:
        return None
    try:
        with direct().open(f"http://{worker.metrics}/metrics", timeout=SCRAPE_TIMEOUT_S) as answer:
            return list(text_string_to_metric_families(answer.read().decode()))
    except (OSError, ValueError):
        return None


def _not_ready(worker: Worker) -> str | None:
    """Why a worker is not ready, as it says itself; empty if it is, None if it does not answer."""
    if not worker.metrics:
        return None
    with suppress(OSError, ValueError):
        try:
            with direct().open(f"http://{worker.metrics}/readyz", timeout=SCRAPE_TIMEOUT_S):
                return ""
        except HTTPError as refused:
            with refused:
                return refused.read().decode(errors="replace").strip()
    return None


def _serve_metrics(workers: list[Worker], owner: OwnerSettings) -> Any:
    registry = CollectorRegistry()
    collector = WorkersCollector(workers)
    registry.register(collector)
    try:
        server = serve_monitoring(
            (owner.host, owner.metrics_port or 0),
            registry,
            collector.not_ready,
            **monitoring_options(owner, owner.host),
        )
    except OSError as error:
        raise OwnerError(
            f"cannot listen on {owner.host}:{owner.metrics_port} for metrics: {error.strerror or error}",
            hint="set consumer.metrics_port to a free port",
            code="cannot_listen",
        ) from error
    log.info("metrics", address=f"{announced_host(owner.host)}:{server.server_address[1]}")
    return server
