"""Planted bugs in the announcing of partitions and in the cache of locations: whom fronts and clients believe."""

from __future__ import annotations

from typing import Final

from consumers.process.announcing import Announcer
from lab.simulation.planted.planting import Replace, installation, leave_out, never
from serving.client.routing import partitions
from serving.client.routing.router import Router
from serving.locations.cache import LocationCache
from serving.locations.refreshing import Locations
from stream.kafka.locations import LocationsReader, supersedes

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
    installation(
        "earlier_owner_stands",
        "of two announcements of a partition the one of the earlier generation stands",
        Replace(supersedes, "(...) >= (...)", "new.generation < known.generation"),
    ),
    installation(
        "first_leader_stays",
        "who leads a partition is told from a table that keeps the first one",
        Replace(LocationCache._keep, "leaders[key] = any_leader", "leaders.setdefault(key, any_leader)"),
    ),
    installation(
        "client_gives_a_node_up",
        "a client never again asks a node first that did not answer once",
        leave_out(Router._revive, "self.cache.back(replica)"),
    ),
    installation(
        "node_does_not_tell_its_front",
        "a node announces its partitions without the URL of its read API",
        Replace(Announcer._announcement, "self._front", "''"),
    ),
)
