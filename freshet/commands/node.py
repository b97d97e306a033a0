"""``freshet node``: a consumer and a front in one process, so that an instance is one thing to start, stop and find."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import structlog
import typer

from consumers.process.run import ConsumerProcess
from freshet.access.reloading import owner_access, renewed
from freshet.commands.consume import consumption_settings, owner_settings
from freshet.commands.serve import open_front, run_server
from freshet.settings import Settings, load_settings
from freshet.settings_errors import SettingsError
from freshet.snapshots import no_address

log = structlog.get_logger(__name__)


def command(
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where the stores are; each node has its own.", metavar="DIR", parser=no_address),
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    group: Annotated[str | None, typer.Option(help="Consumer group that shares the partitions.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to serve on; only loopback needs no token.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to serve on; 0: any free one.", min=0, max=65535)] = None,
    owner_port: Annotated[
        int | None, typer.Option(help="Port for other nodes and fronts; 0: any.", min=0, max=65535)
    ] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Port for /metrics of the stores.", min=0, max=65535)] = None,
    zone: Annotated[str | None, typer.Option(help="Where it runs, any name.")] = None,
    follower: Annotated[
        bool, typer.Option("--follower", help="Follow the owners: answer beside them. Needs its own group.")
    ] = False,
) -> None:
    """Fold a share of the partitions, and serve reads of all over HTTP, until SIGTERM or Ctrl-C.

    Start one on each machine, or one a core, each with its own data directory and the same group: Kafka shares the
    partitions among them. Each serves all keyspaces of the settings: it asks the node that has the partition. The
    address of its read API is announced, so clients that name any node find the others (docs/operating/nodes.md).
    """
    from freshet.together.node import run_node

    settings = load_settings(
        flags={
            "data_dir": data_dir,
            "kafka": {"bootstrap": bootstrap},
            "serve": {"host": host, "port": port},
            "consumer": {
                "group": group,
                "owner_port": owner_port,
                "metrics_port": metrics_port,
                "follower": follower or None,
            },
            "zone": zone,
        }
    )
    if settings.consumer.workers != 1:
        raise SettingsError(
            "a node is one process, so consumer.workers does not apply to it",
            hint="set it to 1, and start one node for each core",
        )
    asked = owner_access(settings)

    def tell(now: Settings) -> None:
        renewed(asked, now.consumer.credentials, "owner")

    owner = dataclasses.replace(owner_settings(settings), access=asked)
    with settings.tracing.traced("node"), open_front(settings, tell) as server:

        def consumer_beside(url: str) -> ConsumerProcess:
            announced = dataclasses.replace(owner, front=settings.serve.announced or url)
            return ConsumerProcess(consumption_settings(settings), announced)

        run_server(server, lambda: run_node(server, consumer_beside))
    log.info("stopped", role="node")
