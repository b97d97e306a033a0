"""The base class of local servers: one child process on one data directory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from types import TracebackType
from typing import ClassVar, Self

from freshet.local.errors import LocalServerError
from freshet.local.process import ServerProcess


class LocalServer(ABC):
    """A server that is a context manager. A subclass sets ``_process`` when it has launched one."""

    NAME: ClassVar[str]
    """The name in messages: Kafka, MariaDB."""

    _process: ServerProcess | None = None

    @abstractmethod
    def start(self) -> Self:
        """Starts the server and returns when it answers. Raises `LocalServerError`."""

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

    def _running(self) -> ServerProcess:
        if self._process is None:
            raise LocalServerError(f"{self.NAME} is not running")
        return self._process
