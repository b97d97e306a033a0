"""Which worlds there are."""

from __future__ import annotations

from lab.simulation.catalog.world import CatalogWorld
from lab.simulation.engine import World
from lab.simulation.processes.world import ProcessesWorld
from lab.simulation.rows.world import RowsWorld
from tokens.errors import FreshetError


class WorldNotFoundError(FreshetError):
    """Code ``unknown_world``."""

    code = "unknown_world"


def all_worlds() -> dict[str, World]:
    """Every world, by name."""
    worlds: tuple[World, ...] = (RowsWorld(), CatalogWorld(), ProcessesWorld())
    return {world.name: world for world in worlds}


def worlds_named(name: str) -> list[World]:
    """The world of that name, or ``all``. Raises `WorldNotFoundError`."""
    worlds = all_worlds()
    if name == "all":
        return list(worlds.values())
    if name not in worlds:
        raise WorldNotFoundError(f"there is no world {name}", hint=f"worlds are: all, {', '.join(worlds)}")
    return [worlds[name]]
