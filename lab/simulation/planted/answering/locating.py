"""Planted bugs in `serving.locations`: whom a front believes to own a partition."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, installation, leave_out
from serving.locations.cache import LocationCache
from serving.locations.refreshing import Locations

BUGS: Final = (
    installation(
        "owner_stays_down",
        "an owner that did not answer once is never asked again",
        leave_out(LocationCache.back, "self.down.pop(server, None)"),
    ),
    installation(
        "kept_location_is_fixed",
        "what an earlier process has kept is never asked for anew",
        Replace(Locations.restore, "Origin.SNAPSHOT", "Origin.FIXED"),
    ),
)
