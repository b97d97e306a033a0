"""The routes of locations: who answers for what, as this front knows it, and having it known anew."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from serving.client.answers import LocationAnswer, LocationsAnswer, RefreshAnswer, RoutesAnswer
from serving.http.front import Front
from serving.http.query import TokenParameter, demand_of
from serving.http.responses import Response, answer_response, plain_response
from serving.http.route import Route
from serving.reads.locations import Entity
from stream.access.grants import ADMIN


class LocationParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a partition's location."""

    keyspace: str
    partition: int
    token: TokenParameter = ""
    wait_ms: Annotated[int, Meta(ge=0, le=10_000, description="How long to wait until there is an owner.")] = 0


class EntityParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of the locations that a front knows."""

    entity: Annotated[
        Entity | Literal["all"],
        Meta(description="`all` shows what this front knows, and asks nobody. Any other is asked for, if need be."),
    ] = "all"
    keyspace: str = ""
    partition: int = 0
    force: Annotated[bool, Meta(description="As of now, whatever is known.")] = False


class RoutesParameters(msgspec.Struct, forbid_unknown_fields=True):
    """Of a keyspace's routes."""

    keyspace: str


class RefreshBody(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a refresh. What is left out is not chosen by: `{}` means all locations."""

    keyspace: str = ""
    partition: Annotated[int, Meta(ge=-1)] = -1
    server: str = ""
    flush: bool = False


async def get_location(front: Front, parameters: LocationParameters, _: None) -> Response:
    """One `LocationAnswer`."""
    seen = demand_of(parameters.token, 0, front.limits).vector
    found = await front.locations.read(parameters.keyspace, parameters.partition, seen, parameters.wait_ms)
    return answer_response(found)


async def get_locations(front: Front, parameters: EntityParameters, _: None) -> Response:
    """One `LocationsAnswer`."""
    entity = parameters.entity
    if entity == "all":
        return plain_response(front.locations.dump())
    place = parameters.keyspace, parameters.partition
    return plain_response(await front.locations.locate(entity, *place, force=parameters.force))


async def get_routes(front: Front, parameters: RoutesParameters, _: None) -> Response:
    """One `RoutesAnswer`."""
    return plain_response(front.locations.routes(parameters.keyspace))


async def refresh_locations(front: Front, _: None, body: RefreshBody) -> Response:
    """One `RefreshAnswer`."""
    chosen = body.keyspace, body.partition, body.server
    return plain_response(front.locations.refresh(*chosen, flush=body.flush))


_ERRORS: Final = ("location_unknown", "location_timeout", "location_queue_full", "location_limited", "locations_closed")

LOCATIONS: tuple[Route[Any, Any], ...] = (
    Route(
        method="GET",
        path="/v1/locations",
        handler=get_locations,
        parameters=EntityParameters,
        answer=LocationsAnswer,
        errors=("unknown_keyspace", "unknown_path", "bad_location", *_ERRORS),
        name="getLocations",
        tag="locations",
        summary="Show locations, or find one",
        text="What this front knows of who answers for what, and why. `entity` finds one: a `partition`, all instances "
        "of a `keyspace`, the broker that leads a partition of its `events` or `dead_letters`, the `local` front, the "
        "`distributed` instances, or the `root`: the broker that leads the topic of announcements.",
        returns="The locations.",
    ),
    Route(
        method="POST",
        path="/v1/locations:refresh",
        handler=refresh_locations,
        body=RefreshBody,
        role=ADMIN,
        answer=RefreshAnswer,
        errors=("location_queue_full",),
        name="refreshLocations",
        tag="locations",
        summary="Have locations known anew",
        text="Refreshes in the background what the body chooses: a partition, a keyspace, all that name the address "
        "`server`, or all. `flush` forgets it instead; then only what is announced is known.",
        returns="How many.",
    ),
    Route(
        method="GET",
        path="/v1/routes/{keyspace}",
        handler=get_routes,
        parameters=RoutesParameters,
        answer=RoutesAnswer,
        errors=("unknown_keyspace",),
        name="getRoutes",
        tag="locations",
        summary="Find the read APIs of a keyspace's nodes",
        text="How keys are shared among partitions, and at which URLs the nodes that hold these answer reads. A client "
        "that asks there saves a step; any front answers for all.",
        returns="The routes.",
    ),
    Route(
        method="GET",
        path="/v1/locations/{keyspace}/{partition}",
        handler=get_location,
        parameters=LocationParameters,
        answer=LocationAnswer,
        errors=("bad_token", "unknown_keyspace", "unknown_path", "no_owner"),
        name="getLocation",
        tag="locations",
        summary="Find the owner of a partition",
        text="The owner's address, and the partition's watermarks as `token` and as `shards`: epoch and position.",
        returns="The owner of the partition.",
    ),
)
