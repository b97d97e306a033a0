"""Planted bugs in the announcing of partitions and in the cache of locations: whom fronts and clients believe."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, installation, leave_out, never
from serving.client.routing import partitions
from serving.locations.cache import LocationCache
from serving.locations.refreshing import Locations
from stream.kafka.locations import LocationsReader

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
    installation(
        "follower_is_an_owner",
        "the announcement of a follower is read as an owner's",
        never(LocationsReader._apply, 'announced.role == "follower"'),
    ),
    installation(
        "refresh_is_under_way_for_ever",
        "the location cache does not note that a refresh has ended",
        leave_out(LocationCache._end, "self.queues.done(batch.keys, now)"),
    ),
    installation(
        "batches_are_never_over",
        "batches that have been read count as under way",
        leave_out(LocationCache._end, "self.limits.under_way -= 1"),
    ),
)
