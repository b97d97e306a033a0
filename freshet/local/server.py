"""The base class of local servers: one child process on one data directory, whose ports it keeps."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

from freshet.local.errors import LocalServerError
from freshet.local.process import ServerProcess, free_ports, port_is_free

START_ATTEMPTS: Final = 3


class LocalServer(ABC):
    """A server that is a context manager. A subclass sets ``_process`` when it has launched one."""

    NAME: ClassVar[str]
    """The name in messages: Kafka, MariaDB."""
    PORTS: ClassVar[int] = 1
    """How many ports it needs. The first is the one that clients connect to."""
    PORT_TAKEN: ClassVar[tuple[str, ...]]
    """What its log says if another process has one of them."""

    def __init__(self, data_dir: Path | str, port: int | None, *, detached: bool) -> None:
        """``port``: the wanted one; None: that of the last start if it is free, else any free one."""
        self.data_dir = Path(data_dir).resolve()
        self.host = "127.0.0.1"
        self.detached = detached
        self._wanted_port = port
        self._ports: tuple[int, ...] = ()
        self._process: ServerProcess | None = None

    @property
    def port(self) -> int:
        """The server's port. Raises `LocalServerError` before the first start."""
        if not self._ports:
            raise LocalServerError(f"{self.NAME} has no port before its first start")
        return self._ports[0]

    def start(self, usual: int | None = None) -> Self:
        """Starts the server on its data directory, made if new, and returns when it answers.

        ``usual``: the port of a new server without a wanted one, if it is free. Other ports are tried if chosen ones
        were taken in the meantime. Raises `LocalServerError`, ``cannot_listen`` if another process has the wanted port.
        """
        self.data_dir.mkdir(parents=True, exist_ok=True)
        kept = self.data_dir / "ports.json"
        may_choose = not self._ports and self._wanted_port is None
        if not self._ports:
            self._ports = self._first_ports(kept, usual)
        for left in reversed(range(START_ATTEMPTS)):
            try:
                self._launch()
                break
            except BaseException as error:
                said = self._process.log() if self._process is not None else ""
                self.stop()
                is_taken = isinstance(error, LocalServerError) and any(words in said for words in self.PORT_TAKEN)
                if not may_choose or not is_taken or not left:
                    raise
                self._ports = tuple(free_ports(self.PORTS))
        kept.write_text(json.dumps(self._ports))
        return self

    def _first_ports(self, kept: Path, usual: int | None) -> tuple[int, ...]:
        """Those to try first: the wanted one, else those of the last start, else the usual one, else any."""
        port = self._wanted_port
        if port is not None and not port_is_free(port):
            raise LocalServerError(
                f"port {port} is in use", hint="choose another port, or none to use a free one", code="cannot_listen"
            )
        if port is None and kept.exists():
            ports = tuple(json.loads(kept.read_text()))
            if all(map(port_is_free, ports)):
                return ports
        elif port is None and usual is not None and port_is_free(usual):
            port = usual
        return tuple(free_ports(self.PORTS)) if port is None else (port, *free_ports(self.PORTS - 1))

    @abstractmethod
    def _launch(self) -> None:
        """Starts the process on its ports, with new data if there is none, and waits until it answers.

        Raises `LocalServerError`. What it has started is stopped then.
        """

    @property
    def is_running(self) -> bool:
        """Whether it was started, and neither stopped nor killed since."""
        return self._process is not None

    @property
    def pid(self) -> int:
        """The server's process id. Raises `LocalServerError` if it is not running."""
        return self._running().pid

    def stop(self) -> None:
        """Stops the server cleanly. Does nothing if it is not running."""
        if self._process is not None:
            self._process.stop()
            self._process = None

    def kill(self) -> None:
        """SIGKILL: the server loses whatever it has not written."""
        self._running().kill()
        self._process = None

    def restart(self) -> Self:
        """Stops the server if it runs, and starts it again on the same data and port."""
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _await(self, answers: Callable[[], bool], timeout_s: float) -> None:
        """Waits until the launched process listens on its port and ``answers``. Raises as `ServerProcess.wait_until`.

        Another process that has the port would answer too.
        """
        process = self._running()
        process.wait_until(lambda: process.listens(self.port) and answers(), timeout_s)

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise LocalServerError(f"{self.NAME} is not running")
        return self._process
