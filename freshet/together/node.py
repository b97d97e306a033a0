"""A front and a consumer in one event loop: the front listens first, since its address is announced with the stores.

Stopping goes the other way: the consumer commits, withdraws its announcements and leaves the group, while the front
still answers by asking who takes over; then the front ends the requests under way.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

import structlog

from consumers.process.run import ConsumerProcess, announced_host
from serving.http.server import FrontServer

log = structlog.get_logger(__name__)


async def run_node(server: FrontServer, consumer_beside: Callable[[str], ConsumerProcess]) -> None:
    """Runs both until SIGTERM or SIGINT. Raises `FreshetError` if either can't go on.

    ``consumer_beside``: the consumer to run with a front at this URL.
    """
    loop = asyncio.get_running_loop()
    stop, listening = asyncio.Event(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server.catches_signals = False
    tell = server.listens

    def listens(address: str) -> None:
        tell(address)
        listening.set()

    server.listens = listens
    serving = asyncio.create_task(server.serve())
    await _first(serving, listening.wait())
    if not listening.is_set():
        await serving  # raises why it does not listen
        return
    consumer = await asyncio.to_thread(consumer_beside, url_of(server))  # it may ask a source for its indexes
    try:
        address = await consumer.start()
        log.info("consuming", role="node", address=address, metrics=consumer.metrics_address)
        folding = asyncio.wrap_future(consumer.folding)
        folding.add_done_callback(lambda done: done.cancelled() or done.exception())  # `stop` raises it
        try:
            await _first(folding, serving, stop.wait())
        finally:
            await consumer.stop()
    finally:
        server.should_exit = True
        await serving


def url_of(server: FrontServer) -> str:
    """The URL of a front that listens."""
    host, port = server.address
    return f"{server.scheme}://{announced_host(host)}:{port}"


async def _first(*awaited: Any) -> None:
    """Waits until one of them is done. Those that are coroutines are cancelled then."""
    waiting = [each if isinstance(each, asyncio.Future) else asyncio.ensure_future(each) for each in awaited]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each, given in zip(waiting, awaited, strict=True):
            if each is not given:
                each.cancel()
