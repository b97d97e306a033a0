"""Planted bugs in `serving.locations`: whom a front believes to own a partition."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, installation, leave_out, never
from serving.locations import peers
from serving.locations.cache import LocationCache
from serving.locations.refreshing import Locations

BUGS: Final = (
    installation(
        "owner_stays_down",
        "an owner that did not answer once is never asked again",
        leave_out(LocationCache.back, "self.down.pop(server, None)"),
    ),
    installation(
        "location_goes_back",
        "an older saying replaces what is known, and so does what instances say that know less",
        never(LocationCache.install, "any_entry is not None and not supersedes(...)"),
        never(peers.judge, "any_said < any_known.version"),
    ),
    installation(
        "refusing_leader_is_kept",
        "an instance that refuses a partition stays its owner until another one announces itself",
        leave_out(LocationCache.report, "self._doubt(any_entry, any_now)\nself.renew_limited(any_key, any_now)"),
    ),
    installation(
        "kept_location_is_fixed",
        "what an earlier process has kept is never asked for anew",
        Replace(Locations.restore, "Origin.SNAPSHOT", "Origin.FIXED"),
    ),
)
