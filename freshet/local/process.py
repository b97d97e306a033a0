"""A server as a child process, which is killed when its parent ends."""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import IO, TypeAlias

import psutil

from freshet.local.errors import LocalServerError

POLL_S = 0.05
STOP_TIMEOUT_S = 20.0
LOG_TAIL_LINES = 15
KERNELS_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that the kernel gives to connections, and to whoever asks for any."""
PORTS_BELOW, FIRST_PORT = 12_000, 10_000
"""How many below those we use, if all of them are from this one on."""

DIE_WITH_PARENT = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)  # the parent ended before the call above
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""Runs in the child and becomes the server (same pid). Unlike a preexec_fn it is safe in a process with threads."""

_alive: set[ServerProcess] = set()


class ServerProcess:
    """One child process that writes its output to a log file.

    ``detached``: it survives its parent (``freshet local up``). Otherwise it is killed when the parent process ends,
    in whatever way. It always has a session of its own, so that Ctrl-C reaches only the parent, which then stops it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log_file: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        detached: bool = False,
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._log_start = log_file.stat().st_size if log_file.exists() else 0

        def launch() -> subprocess.Popen[bytes]:
            with log_file.open("ab") as log:
                return _popen(command, log, env, cwd, detached=detached)

        self._popen = _in_spawner_thread(launch)
        if not detached:
            _alive.add(self)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._popen.pid

    def running(self) -> bool:
        """Whether the process is alive."""
        return self._popen.poll() is None

    def listens(self, port: int) -> bool:
        """Whether it listens on TCP ``port`` itself; True where the system does not tell."""
        try:
            connections = psutil.Process(self.pid).net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            return False
        except psutil.AccessDenied:
            return True
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in connections)

    def wait_until(self, answers: Callable[[], bool], timeout_s: float) -> None:
        """Polls ``answers`` until it is true.

        Raises `LocalServerError` with the log's tail if the process ends, or does not answer in time and is killed.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.running():
                raise self._failed(f"{self.name} ended with exit code {self._popen.returncode} while starting")
            if answers():
                return
            if time.monotonic() > deadline:
                self.kill()
                raise self._failed(f"{self.name} did not answer within {timeout_s:.0f} s")
            time.sleep(POLL_S)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """SIGTERM, then SIGKILL after ``timeout_s``. Does nothing if the process has ended."""
        _alive.discard(self)
        if self._popen.poll() is not None:
            return
        self._popen.send_signal(signal.SIGTERM)
        try:
            self._popen.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and waits for the end of the process."""
        _alive.discard(self)
        self._popen.kill()
        self._popen.wait()

    def log(self) -> str:
        """What this run of the server has logged."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def log_tail(self) -> str:
        """The last lines that this run has logged."""
        return "\n".join(self.log().splitlines()[-LOG_TAIL_LINES:])

    def _failed(self, what: str) -> LocalServerError:
        tail = self.log_tail()
        return LocalServerError(f"{what}: {tail}" if tail else what, hint=f"see its log {self.log_file}")


def spawn(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """A process whose output, stderr included, is the pipe ``stdout``. It is killed when this process ends.

    Like a `ServerProcess` it has a session of its own, so that Ctrl-C does not reach it.
    """
    return _in_spawner_thread(lambda: _popen(command, subprocess.PIPE, env, cwd, detached=False))


def _popen(
    command: Sequence[str], output: IO[bytes] | int, env: Mapping[str, str] | None, cwd: Path | None, *, detached: bool
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command if detached else guarded(command),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        env=dict(env) if env is not None else None,
        cwd=cwd,
        start_new_session=True,
    )


def guarded(command: Sequence[str]) -> list[str]:
    """``command``, so that it is killed when the thread that starts it ends, or its process in whatever way."""
    if sys.platform != "linux":
        return list(command)
    return [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *command]


def run_tool(
    name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> str:
    """Runs a server's tool to its end and returns its output. Raises `LocalServerError` if it fails."""
    done = subprocess.run(
        guarded(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=cwd, check=False
    )
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-LOG_TAIL_LINES:])
        raise LocalServerError(f"{name} failed with exit code {done.returncode}: {tail}")
    return done.stdout


def free_ports(count: int) -> list[int]:
    """``count`` distinct TCP ports of 127.0.0.1 that are free now.

    Where the kernel says which ports it gives away itself, they are below those: nobody gets one by chance before its
    server listens, or while that is away. Each process walks through them from a random one on.
    """
    found: list[int] = []
    with _walk_lock:
        walked = 0
        while _walk and len(found) < count and walked < PORTS_BELOW:
            port, walked = next(_walk), walked + 1
            found += [port] if port_is_free(port) else []
    return found if len(found) == count else _any_ports(count)


def _any_ports(count: int) -> list[int]:
    """Ports that the kernel chooses."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for bound in sockets:
            bound.bind(("127.0.0.1", 0))
        return [int(bound.getsockname()[1]) for bound in sockets]
    finally:
        for bound in sockets:
            bound.close()


def _walk_below() -> Iterator[int] | None:
    """The ports below those that the kernel gives away, again and again from a random one on; None: there are none."""
    try:
        first = int(KERNELS_PORTS.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None  # not Linux
    if first - PORTS_BELOW < FIRST_PORT:
        return None
    ports, start = range(first - PORTS_BELOW, first), random.randrange(PORTS_BELOW)
    return itertools.cycle([*ports[start:], *ports[:start]])


_walk = _walk_below()
_walk_lock = threading.Lock()


def port_is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether nothing holds TCP ``port`` of an address of this machine."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


_Spawn: TypeAlias = Callable[[], "subprocess.Popen[bytes]"]
_requests: queue.SimpleQueue[tuple[_Spawn, Future[subprocess.Popen[bytes]]]] = queue.SimpleQueue()
_spawner_lock = threading.Lock()
_spawner: threading.Thread | None = None


def _in_spawner_thread(spawn: _Spawn) -> subprocess.Popen[bytes]:
    """Forks in one thread that lives as long as the process.

    The kernel sends the parent-death signal when the *thread* that forked ends. (An executor's thread
    would end before ``atexit`` runs, and take the servers down uncleanly.)
    """
    global _spawner
    with _spawner_lock:
        if _spawner is None or not _spawner.is_alive():  # not alive: this is a forked copy of the process
            _spawner = threading.Thread(target=_serve_spawns, name="freshet-spawn", daemon=True)
            _spawner.start()
    done: Future[subprocess.Popen[bytes]] = Future()
    _requests.put((spawn, done))
    return done.result()


def _serve_spawns() -> None:
    while True:
        spawn, done = _requests.get()
        try:
            done.set_result(spawn())
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            done.set_exception(error)


@atexit.register
def _stop_all() -> None:
    for process in list(_alive):
        process.stop()
