"""Planted bugs in `serving.locations` and `serving.client.routing`: whom fronts and clients believe to hold a row."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, installation, leave_out
from serving.client.routing import partitions
from serving.locations.cache import LocationCache
from serving.locations.refreshing import Locations

BUGS: Final = (
    installation(
        "client_takes_another_partition",
        "a client shares keys among partitions without their buckets",
        Replace(
            partitions.partition_of,
            "any_number % any_sharing.buckets * any_sharing.partitions // any_sharing.buckets",
            "any_number % any_sharing.partitions",
        ),
    ),
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
