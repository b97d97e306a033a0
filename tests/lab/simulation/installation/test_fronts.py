"""Requests of the product's clients reach the product's front over the simulated network, and its faults reach them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest

from lab.simulation.kernel.fronts import async_client, blocking_client, listen
from lab.simulation.kernel.scheduler import Kernel
from lab.simulation.kernel.substitution import installed
from serving.client import FreshetClient, NotFoundError, Unreachable
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace
from stream.wire.keys import Layout


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    kernel = Kernel(Random(1))
    with installed(kernel):
        yield kernel
        kernel.close()


def start_front(kernel: Kernel, name: str, port: int) -> None:
    """A front of keyspace shop, which no owner serves."""
    kernel.run_task(name, lambda: listen(make_front([RowSpace("shop", Layout(1))], Locations()), port))
    assert kernel.run_until(lambda: False, 0.1) is False


def outcome(kernel: Kernel, work: Callable[[], Any], within_s: float = 100) -> Any:
    """The result or the error of ``work`` in a thread of process ``reader``."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except Exception as error:  # noqa: BLE001 - the test looks at it
            found.append(error)

    kernel.spawn("reader", run)
    assert kernel.run_until(lambda: bool(found), within_s)
    assert kernel.errors == []
    return found[0]


def test_a_thread_and_a_task_get_the_fronts_answer(kernel: Kernel) -> None:
    """Both clients: the request goes through connection, guard, routes and reads, and the problem comes back."""
    start_front(kernel, "front", 8080)
    blocking, awaiting = blocking_client(kernel, [8080]), async_client(kernel, [8080])
    refused = outcome(kernel, lambda: blocking.session().get_row("nobody", "shop.items", 7))
    assert (type(refused), refused.code) == (NotFoundError, "unknown_keyspace")
    found: list[Exception] = []

    async def read() -> None:
        try:
            await awaiting.session().get_rows("nobody", [("shop.items", [7])])
        except NotFoundError as error:
            found.append(error)

    kernel.run_task("reader", read)
    assert kernel.run_until(lambda: bool(found), 10)


def test_what_the_front_refuses_for_now_is_sent_again_in_virtual_time(kernel: Kernel) -> None:
    """503 with Retry-After: the client waits and asks again, and no real time passes."""
    start_front(kernel, "front", 8080)
    began = kernel.now
    refused = outcome(kernel, lambda: blocking_client(kernel, [8080]).get_row("shop", "shop.items", 7))
    assert refused.code == "no_owner"
    assert kernel.now - began > 1


def test_a_front_that_is_killed_or_silent_is_unreachable(kernel: Kernel) -> None:
    """A connection that breaks, one that nobody accepts, and one on which nothing arrives."""
    start_front(kernel, "front", 8080)
    client = blocking_client(kernel, [8080], timeout=5)
    kernel.network.cut("reader", "front")
    assert isinstance(outcome(kernel, lambda: read(client)), Unreachable)
    kernel.network.heal()
    kernel.kill("front")
    assert isinstance(outcome(kernel, lambda: read(client)), Unreachable)


def read(client: FreshetClient) -> object:
    return client.get_row("nobody", "shop.items", 7)


def test_two_fronts_behind_one_name_both_answer(kernel: Kernel) -> None:
    """Each request goes to one of them."""
    for name, port in (("one", 8080), ("two", 8081)):
        start_front(kernel, name, port)
    client = blocking_client(kernel, [8080, 8081], timeout=5)
    kernel.kill("one")
    kinds = {type(outcome(kernel, lambda: read(client))) for _ in range(20)}
    assert kinds == {NotFoundError, Unreachable}
