"""A history of whole processes: its kernel, Kafka, network and disks, and what befalls any process."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, MutableMapping, MutableSet, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from types import ModuleType
from typing import Any, Final, NoReturn, Protocol

import structlog

from consumers.store.errors import StoreCorruptError
from lab.simulation.engine import Outcome, TracedRun
from lab.simulation.kafka.cluster import Cluster
from lab.simulation.kafka.twins import twins as kafka_twins
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import Twins, installed
from lab.simulation.operators.looking import Looking
from lab.simulation.whole_processes.disk import Disk
from lab.simulation.whole_processes.words import DURABLE, LOG_IS_ANOTHER, NEVER_RAISES
from tokens.errors import FreshetError

PAUSES_S: Final = (0.03, 0.2, 1.0, 4.0, 15.0)
"""How long an op lets the world go on."""
CLIENT: Final = "client"
OPERATOR: Final = "operator"
RESTART_S: Final = 2.0
REBUILT: Final = "rebuilding it from the topic"
"""What a consumer logs, at the end of a line, that sets a store aside, or misses one."""
Bound = tuple[ModuleType | Callable[..., Any], str, Any]
"""A module, or a function, a name in it, and a value."""


class Crashing(Protocol):
    """A database server that may crash, or not be reached. ``cut``: by these processes. ``product``: its name."""

    product: str
    cut: set[str]

    @property
    def down(self) -> bool:
        """Whether it has crashed."""

    def kill(self) -> None:
        """It crashes."""

    def start(self) -> None:
        """It comes back."""

    def forget(self, process: str) -> None:
        """A process ends, and its connections."""


class WholeProcesses(TracedRun):
    """The servers that every such world has, and the ops that make sense in each of them."""

    processes: Sequence[str]
    """Those that ops start, kill and hold."""
    states: Mapping[str, Callable[[Any], bool]]
    """Of the coverage."""

    def __init__(self, seed: int, outcome: Outcome, trace: bool) -> None:
        """``seed``: of the scheduler."""
        super().__init__(outcome, trace)
        self.kernel = Kernel(Random(seed))
        self.kafka = Cluster(self.kernel, self.kernel.rng)
        self.disk = Disk(self.kernel)
        self.looking = Looking(self.kernel, self.complain)
        self.wanted: list[str] = []
        """The processes that run when all is well."""
        self.struck: set[str] = set()
        """The faults until now, whatever state they met."""

    # --- what each world has of its own ---

    @abstractmethod
    def start(self, name: str) -> None:
        """Starts a process, unless it runs."""

    @abstractmethod
    def twins(self) -> Twins:
        """Real object → what takes its place in the product's modules, of the world's own servers."""

    @abstractmethod
    def bounds(self) -> Sequence[Bound]:
        """Bounds of the product that are so small in this world that few things are many."""

    def logged(self, event: Mapping[str, Any]) -> None:
        """A process writes a log line."""

    # --- running ---

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While it lasts, the product's modules are the simulation's, and what they log is judged.

        What applications' clients warn of goes nowhere: it is of the simulated time.
        """
        config, clients = structlog.get_config(), logging.getLogger("freshet_client")
        before = [(module, name, getattr(module, name)) for module, name, _ in self.bounds()]
        structlog.configure(processors=[self._log], wrapper_class=structlog.BoundLogger)
        were_silent, clients.disabled = clients.disabled, True
        try:
            for module, name, bound in self.bounds():
                setattr(module, name, bound)
            more = (self.twins(), self.disk.twins(), self.looking.ports.twins())
            with installed(self.kernel, kafka_twins(self.kafka), *more):
                yield
        finally:
            structlog.configure(**config)
            clients.disabled = were_silent
            for module, name, bound in before:
                setattr(module, name, bound)
            self.disk.close()

    def _log(self, _: Any, level: str, event: MutableMapping[str, Any]) -> NoReturn:
        if not self.kernel.is_over:
            self.logged(event)
            self._judge_rebuilt(event)
            if event.get("exc_info"):
                self.complain(NEVER_RAISES, f"{self.kernel.current} logged an error: {event}")
            if self.tracing:
                said = ", ".join(str(event[name]) for name in ("partition", "reason", "error") if name in event)
                self.say(f"  {self.kernel.now:.3f} {self.kernel.current}: {level}: {event['event']} {said}")
        raise structlog.DropEvent

    def _judge_rebuilt(self, event: Mapping[str, Any]) -> None:
        """A store is rebuilt only if a bit of it has flipped, or the log does not have what was folded."""
        if not event["event"].endswith(REBUILT):
            return
        is_damaged = event.get("code") == StoreCorruptError.code and self.kernel.current in self.disk.damaged
        if not is_damaged and not self.struck & LOG_IS_ANOTHER:
            where = f"{event['keyspace']}/{event['partition']}"
            self.complain(DURABLE, f"{self.kernel.current} rebuilds {where}: {event['reason']}")

    def say(self, text: str) -> None:
        """See `TracedRun.say`. The place of the files is another one each time."""
        super().say(text.replace(str(self.disk.root), "") if self.tracing else text)

    def complain(self, rule: str, what: str) -> None:
        """See `TracedRun.complain`."""
        super().complain(rule, what.replace(str(self.disk.root), ""))

    def gave_up(self, name: str, error: FreshetError) -> None:
        """A supervisor starts a process again that has ended with an error."""
        self.say(f"{name} ends: {error.code}: {error}")
        self.outcome.answers[f"process ended: {error.code}"] += 1
        self.kernel.call_at(self.kernel.now + RESTART_S, partial(self.start, name))
        self.kernel.kill(name)

    def let(self, seconds: float) -> None:
        """Lets the world go on. Errors that nobody caught are violations."""
        self.run_until(lambda: False, seconds)

    def run_until(self, ready: Callable[[], bool], within_s: float) -> bool:
        """Lets the world go on until ``ready()``, at most so long. An error that ended a thread is a violation."""

        def has_failed() -> bool:
            return bool(self.kernel.errors or self.outcome.violations)

        self.kernel.run_until(lambda: ready() or has_failed(), within_s)
        for where, error in self.kernel.errors:
            self.complain(NEVER_RAISES, f"{where} ended with {type(error).__name__}: {error}")
        return ready()

    def count_fault(self, fault: str) -> None:
        """Counts a fault under every state that holds now."""
        self.struck.add(fault)
        for state, holds in self.states.items():
            if holds(self):
                self.outcome.met[fault, state] += 1

    def close(self) -> None:
        """See `engine.HistoryRun.close`.

        Python runs the ``finally`` and ``except`` blocks of a thread that is ended, also those of a process that was
        killed long ago, where no operating system would. What they find must not count.
        """
        self.outcome = Outcome()
        self.kernel.close()

    # --- ops ---

    def pause(self, pause: int) -> None:
        """Lets the world go on for one of `PAUSES_S`."""
        self.let(PAUSES_S[pause % len(PAUSES_S)])

    def op_let(self, pause: int) -> None:
        """Time passes."""
        self.pause(pause)

    def op_start(self, process: int) -> None:
        """A process starts (again)."""
        name = self.processes[process % len(self.processes)]
        if not self.kernel.is_running(name):
            self.say(f"{name} starts")
            self.start(name)

    def op_kill(self, process: int, pause: int) -> None:
        """A process dies at any place."""
        name = self.processes[process % len(self.processes)]
        if self.kernel.is_running(name):
            self.count_fault("kill")
            self.say(f"{name} is killed")
            self.kernel.kill(name)
            self.pause(pause)

    def op_hold(self, process: int, pause: int) -> None:
        """A process is held for a while, as by its machine, and goes on. Its heartbeats are held too."""
        name = self.processes[process % len(self.processes)]
        if self.kernel.is_running(name):
            self.count_fault("pause")
            self.say(f"{name} is held")
            self.kernel.pause(name)
            self.kafka.cut.add(name)
            self.pause(pause)
            self.kafka.cut.discard(name)
            self.kernel.resume(name)

    def op_kafka(self, down: int, pause: int) -> None:
        """Kafka goes away, or comes back."""
        self.kafka.down = bool(down % 2)
        if self.kafka.down:
            self.count_fault("Kafka down")
            self.say("Kafka is down")
        self.pause(pause)

    def crash_or_return(self, server: Crashing, down: int, pause: int) -> None:
        """A database server crashes, or comes back."""
        if down % 2 and not server.down:
            self.count_fault(f"{server.product} down")
            self.say(f"{server.product} crashes")
            server.kill()
        elif not down % 2 and server.down:
            self.say(f"{server.product} is back")
            server.start()
        self.pause(pause)

    def cut_off(self, name: str, which: int, server: Crashing, pause: int) -> None:
        """A process does not reach Kafka, or a database server, for a while."""
        fault = ("cut from Kafka", f"cut from {server.product}")[which % 2]
        cut: MutableSet[str] = (self.kafka.cut, server.cut)[which % 2]
        self.count_fault(fault)
        self.say(f"{name}: {fault}")
        cut.add(name)
        self.pause(pause)
        cut.discard(name)
