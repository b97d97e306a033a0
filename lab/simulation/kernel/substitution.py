"""Puts the kernel's twins where the product refers to threads, time and chance.

By identity: wherever a global, a default or a captured variable of the product *is* the real object, it is replaced,
and put back at the end. So the product needs no indirection, and nothing outside of it is touched.
"""

from __future__ import annotations

import concurrent.futures
import queue
import random
import secrets
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, Final

import serving.client.routing.router
import serving.client.sessions.postgres  # noqa: F401 - the product imports both late
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.threads import (
    SimulatedCondition,
    SimulatedEvent,
    SimulatedExecutor,
    SimulatedFuture,
    SimulatedLocal,
    SimulatedLock,
    SimulatedQueue,
    SimulatedSemaphore,
    SimulatedThread,
    wait_futures,
)

ROOMS: Final = ("tokens", "stream", "consumers", "serving")
Twins = Mapping[Any, Any]
"""Real object → what stands for it."""
Put = Callable[[Any], None]


class _Found:
    """Where the product refers to the objects of ``twins``. Found once, as long as no module is added."""

    def __init__(self) -> None:
        self.modules = 0
        self.real: frozenset[int] = frozenset()
        self.places: list[tuple[Put, Any]] = []

    def of(self, twins: Mapping[int, Any]) -> list[tuple[Put, Any]]:
        """(how to replace it, real object) of each place."""
        if self.modules != len(sys.modules) or self.real != twins.keys():
            self.modules, self.real = len(sys.modules), frozenset(twins)
            self.places = [place for module in _product() for place in _places(module, self.real)]
        return self.places


_found: Final = _Found()


@contextmanager
def installed(kernel: Kernel, *more: Twins) -> Iterator[None]:
    """While it lasts, the product's modules see the kernel's twins, and ``more``. Then the kernel's threads end."""
    pairs = [pair for twins in (_twins(kernel), *more) for pair in twins.items()]
    twins = {id(real): twin for real, twin in pairs}
    places = _found.of(twins)
    modules = {*_product()}
    for put, real in places:
        put(twins[id(real)])
    try:
        yield
    finally:
        kernel.close()
        for put, real in places:
            put(real)
    if late := sorted(module.__name__ for module in {*_product()} - modules):
        raise ImportError(f"{', '.join(late)}: imported amid a history, and saw real threads and time; import it here")


def _twins(kernel: Kernel) -> Twins:
    """The kernel's twins of the standard library's objects."""
    named: dict[ModuleType, dict[str, Any]] = {
        threading: {
            "Thread": partial(SimulatedThread, kernel),
            "Lock": partial(SimulatedLock, kernel),
            "RLock": partial(SimulatedLock, kernel, reentrant=True),
            "Condition": partial(SimulatedCondition, kernel),
            "Event": partial(SimulatedEvent, kernel),
            "get_ident": lambda: id(kernel.current_thread),
            "local": partial(SimulatedLocal, kernel),
            "BoundedSemaphore": partial(SimulatedSemaphore, kernel),
        },
        time: {
            "monotonic": lambda: kernel.now,
            "perf_counter": lambda: kernel.now,
            "time": lambda: kernel.time,
            "sleep": lambda seconds: kernel.park(max(seconds, 0.0)),
        },
        queue: {"SimpleQueue": partial(SimulatedQueue, kernel)},
        concurrent.futures: {
            "Future": partial(SimulatedFuture, kernel),
            "ThreadPoolExecutor": partial(SimulatedExecutor, kernel),
            "wait": partial(wait_futures, kernel),
        },
        secrets: {
            "randbits": kernel.rng.getrandbits,
            "token_hex": lambda length: f"{kernel.rng.getrandbits(8 * length):0{2 * length}x}",
        },
        random: {"random": kernel.rng.random, "uniform": kernel.rng.uniform},
        uuid: {"uuid4": lambda: uuid.UUID(int=kernel.rng.getrandbits(128), version=4)},
    }
    return {
        **{getattr(module, name): twin for module, twins in named.items() for name, twin in twins.items()},
        **{module: SimpleNamespace(**{**vars(module), **twins}) for module, twins in named.items()},
    }


def _product() -> Iterator[ModuleType]:
    for name, module in sorted(sys.modules.items()):
        if name.split(".", 1)[0] in ROOMS and isinstance(module, ModuleType):
            yield module


def _places(module: ModuleType, real: frozenset[int]) -> Iterator[tuple[Put, Any]]:
    for name, value in vars(module).items():
        if id(value) in real:
            yield partial(vars(module).__setitem__, name), value
        elif isinstance(value, FunctionType) and value.__module__ == module.__name__:
            yield from _in_function(value, real)
        elif isinstance(value, type) and value.__module__ == module.__name__:
            for each in vars(value).values():
                if isinstance(each, FunctionType):
                    yield from _in_function(each, real)


def _in_function(function: FunctionType, real: frozenset[int]) -> Iterator[tuple[Put, Any]]:
    """Defaults, and captured variables: a dataclass's default factory is one."""
    defaults, named = function.__defaults__ or (), function.__kwdefaults__ or {}
    for at, value in enumerate(defaults):
        if id(value) in real:
            yield partial(_put_default, function, at), value
    for name, value in named.items():
        if id(value) in real:
            yield partial(named.__setitem__, name), value
    for cell in function.__closure__ or ():
        try:
            value = cell.cell_contents
        except ValueError:  # empty
            continue
        if id(value) in real:
            yield partial(setattr, cell, "cell_contents"), value


def _put_default(function: FunctionType, at: int, value: object) -> None:
    defaults = function.__defaults__ or ()
    function.__defaults__ = (*defaults[:at], value, *defaults[at + 1 :])
