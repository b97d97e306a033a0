"""``python -m tests.fuzz.front_process PORT``: the front without owners, on the server of `freshet serve`."""

from __future__ import annotations

import asyncio
import logging
import sys

import structlog
import uvloop

from serving.http.front import make_front
from serving.http.server import make_server
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace, TableSpace
from stream.wire.keys import Layout


def main() -> None:
    """Serves until it is told to end."""
    logging.disable(logging.CRITICAL)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    front = make_front([RowSpace("shop", Layout(4), "shop"), TableSpace("hive", Layout(2))], Locations())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(make_server(front, "127.0.0.1", int(sys.argv[1])).serve())


if __name__ == "__main__":
    main()
