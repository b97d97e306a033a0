"""All planted bugs."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted import (
    decisions,
    fold_catalog,
    fold_rows,
    owner_rows,
    owner_tables,
    publishing,
    sources,
    stores,
    successions,
)
from lab.simulation.planted.answering import (
    applications,
    engines,
    files,
    fronts,
    locating,
    operators,
    reading,
    sinks,
    streams,
)
from lab.simulation.planted.capturing import connecting, postgres, statistics
from lab.simulation.planted.planting import PlantedBug, PlantedBugError

PLANTED_BUGS: Final = (
    *decisions.BUGS,
    *sources.BUGS,
    *publishing.BUGS,
    *fold_rows.BUGS,
    *fold_catalog.BUGS,
    *stores.BUGS,
    *successions.BUGS,
    *connecting.BUGS,
    *postgres.BUGS,
    *statistics.BUGS,
    *owner_rows.BUGS,
    *owner_tables.BUGS,
    *fronts.BUGS,
    *reading.BUGS,
    *streams.BUGS,
    *locating.BUGS,
    *operators.BUGS,
    *sinks.BUGS,
    *applications.BUGS,
    *engines.BUGS,
    *files.BUGS,
)


def planted_bugs(name: str) -> list[PlantedBug]:
    """The planted bug, or wrong source, of this name; all planted bugs for ``all``.

    Raises `PlantedBugError` ``unknown_mutation``.
    """
    found = [bug for bug in PLANTED_BUGS if name in ("all", bug.name)]
    found = found or [wrong for wrong in sources.WRONG_SOURCES if wrong.name == name]
    if not found:
        names = ", ".join(bug.name for bug in PLANTED_BUGS)
        raise PlantedBugError(
            f"unknown planted bug {name}", hint=f"choose one of: all, {names}", code="unknown_mutation"
        )
    return found
