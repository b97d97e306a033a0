"""Runs ``freshet consume`` and ``freshet serve`` as processes, for the measurements that need them."""

from __future__ import annotations

import json
import os
import re
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2
import psutil

from consumers.owner.client import OwnerConnection
from freshet.local.process import ServerProcess, free_ports
from stream.kafka.connection import KafkaCluster

POLL_S: Final = 0.005
TIMEOUT_S: Final = 120.0


@dataclass(slots=True)
class Deployment:
    """One consumer and optionally one front for ``keyspaces``, with their data in ``directory``.

    ``more``: further lines of the settings file; ``authority``: a file with who signed the front's certificate, if it
    has one.
    """

    directory: Path
    kafka: KafkaCluster
    keyspaces: tuple[str, ...]
    workers: int = 1
    consumer: ServerProcess | None = None
    front: ServerProcess | None = None
    source: ServerProcess | None = None
    more: str = ""
    authority: str = ""
    owner: str = ""
    log: Path = field(init=False)
    _log_at: int = 0
    port: int = 0
    """The front's."""

    def __post_init__(self) -> None:
        self.log = self.directory / "consume.log"
        self.port = free_ports(1)[0]
        sections = [f"[kafka]\nbootstrap = {json.dumps(self.kafka.bootstrap)}\n[serve]\nport = {self.port}\n"]
        sections += [f'[keyspaces.{name}]\nkind = "rows"\npartitions = 4\n' for name in self.keyspaces]
        head = f"data_dir = {json.dumps(str(self.directory / 'stores'))}\n"
        (self.directory / "freshet.toml").write_text(head + "".join(sections) + self.more)

    @property
    def url(self) -> str:
        """Base URL of the front."""
        return f"{'https' if self.authority else 'http'}://127.0.0.1:{self.port}"

    def start_consumer(self, until: str = "ready", count: int = 1) -> float:
        """Starts the consumer. Returns the seconds until ``count`` of its log lines are ``until``."""
        self._log_at = self.log.stat().st_size if self.log.exists() else 0
        began = time.perf_counter()
        self.consumer = self._start("consume", self.log)
        while len(self.logged(until)) < count:
            self._check(self.consumer, began)
        seconds = time.perf_counter() - began
        self.owner = next((each["address"] for each in self.logged("ready")), "")
        return seconds

    def start_source(self, kind: str, keyspace: str) -> ServerProcess:
        """Starts a keyspace's source."""
        self.source = self._start(f"source {kind} --keyspace {keyspace}", self.directory / "source.log")
        return self.source

    def start_front(self) -> None:
        """Starts the front and waits until it is ready."""
        began = time.perf_counter()
        self.front = self._start("serve", self.directory / "serve.log")
        while not self._front_ready():
            self._check(self.front, began)

    def _front_ready(self) -> bool:
        try:
            trusted = ssl.create_default_context(cafile=self.authority) if self.authority else True
            return httpx2.get(f"{self.url}/readyz", timeout=2, verify=trusted).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    def _start(self, command: str, log: Path) -> ServerProcess:
        config = str(self.directory / "freshet.toml")
        line = [sys.executable, "-m", "freshet", "--config", config, "--log-format", "json", *command.split()]
        if command == "consume" and self.workers > 1:
            line += ["--workers", str(self.workers)]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        return ServerProcess(command, line, log_file=log, env=environment, cwd=self.directory)

    def _check(self, process: ServerProcess, began: float) -> None:
        if not process.running() or time.perf_counter() - began > TIMEOUT_S:
            raise AssertionError(f"{process.name} did not become ready: {process.log_tail()}")
        time.sleep(POLL_S)

    def logged(self, event: str) -> list[dict[str, Any]]:
        """The consumer's log records with this event since its last start."""
        if not self.log.exists():
            return []
        with self.log.open("rb") as file:
            file.seek(self._log_at)
            lines = file.read().splitlines()
        return [record for record in _records(lines) if record.get("event") == event]

    def stop_consumer(self, *, kill: bool = False) -> None:
        """Stops the consumer with SIGTERM, or SIGKILL if ``kill``, and waits until it has exited."""
        assert self.consumer is not None
        if kill:
            self.consumer.kill()
        else:
            self.consumer.stop()

    def rss_mb(self) -> float:
        """Resident memory of the consumer in MB."""
        assert self.consumer is not None
        return float(psutil.Process(self.consumer.pid).memory_info().rss / 1e6)

    def processor_seconds(self) -> dict[str, float]:
        """Processor time of the front, of the consumer and of the source until now."""
        running = {"front": self.front, "owner": self.consumer, "source": self.source}
        return {name: processor_s(psutil.Process(each.pid)) for name, each in running.items() if each is not None}

    def await_offsets(self, done: Callable[[int, int, int], bool]) -> dict[int, int]:
        """Waits until ``done(offset, committed, entries)`` holds for each partition. Returns partition → offset."""
        deadline = time.monotonic() + TIMEOUT_S
        with OwnerConnection(self.owner) as owner:
            while time.monotonic() < deadline:
                statuses = owner.status().partitions
                if statuses and all(done(each.offset, each.committed, each.entries) for each in statuses):
                    return {each.partition: each.offset for each in statuses}
                time.sleep(0.05)
        raise AssertionError("the consumer did not commit in time")

    def stop(self) -> None:
        """Stops all processes."""
        for process in (self.front, self.consumer, self.source):
            if process is not None:
                process.stop()


def _records(lines: list[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            continue  # a partial line, or a library's line


def processor_s(*processes: psutil.Process) -> float:
    """Seconds of processor time that these processes have had together."""
    times = [each.cpu_times() for each in processes]
    return float(sum(each.user + each.system for each in times))


def threads_processor_s(pid: int) -> dict[str, float]:
    """Seconds of processor time that a process's threads have had, by their names without numbers (Linux)."""
    found: dict[str, float] = {}
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    for task in Path(f"/proc/{pid}/task").iterdir():
        name = re.sub(r"\d+", "", (task / "comm").read_text().strip())
        fields = (task / "stat").read_text().rpartition(")")[2].split()
        found[name] = found.get(name, 0.0) + (int(fields[11]) + int(fields[12])) * tick_s
    return found
