"""All worlds, by name."""

from __future__ import annotations

from importlib.util import find_spec

from lab.simulation.catalog.world import CatalogWorld
from lab.simulation.connectors.world import ConnectorsWorld
from lab.simulation.engine import World, share_of
from lab.simulation.files.world import FilesWorld
from lab.simulation.hive.world import HiveWorld
from lab.simulation.installation.world import InstallationWorld
from lab.simulation.processes.world import ProcessesWorld
from lab.simulation.replicas.world import ReplicasWorld
from lab.simulation.rows.world import RowsWorld
from lab.simulation.successions.world import SuccessionsWorld
from lab.simulation.warehouse.world import WarehouseWorld
from tokens.errors import FreshetError


class WorldNotFoundError(FreshetError):
    """There is no world of this name; code ``unknown_world``."""

    code = "unknown_world"


def all_worlds(*, motifs: bool = True) -> dict[str, World]:
    """Every world, by name. ``motifs``: whether histories may contain sequences of ops that chance finds too seldom.

    PostgreSQL's is there if its driver is, which is an extra.
    """
    worlds: list[World] = [
        RowsWorld(motifs=motifs),
        CatalogWorld(motifs=motifs),
        ProcessesWorld(),
        HiveWorld(),
        ReplicasWorld(),
        InstallationWorld(),
        WarehouseWorld(),
        FilesWorld(),
        SuccessionsWorld(),
        ConnectorsWorld(motifs=motifs),
    ]
    if find_spec("psycopg") is not None:
        from lab.simulation.postgres.world import PostgresWorld

        worlds.append(PostgresWorld())
    return {world.name: world for world in worlds}


def worlds_named(name: str, histories: int) -> list[tuple[World, int]]:
    """The world of this name, or all of them for ``all``, and how many histories to run of each.

    Raises `WorldNotFoundError`.
    """
    worlds = all_worlds()
    if name == "all":
        return [(world, share_of(world, histories)) for world in worlds.values()]
    if name not in worlds:
        raise WorldNotFoundError(f"unknown world {name}", hint=f"choose one of: all, {', '.join(worlds)}")
    return [(worlds[name], histories)]
