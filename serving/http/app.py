"""The read API as an ASGI application: the guard, Starlette's router, and the route table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import msgspec
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.errors import ReadError
from serving.http.admission.tracing import Traced
from serving.http.front import Front
from serving.http.guard import Guard
from serving.http.letters.forms import LETTER_FORMS
from serving.http.letters.routes import LETTERS_PAGE
from serving.http.openapi import describe
from serving.http.responses import Response
from serving.http.route import Resource, Route
from serving.http.routes import ROUTES
from serving.http.status.reference import reference_response
from serving.http.status.routes import PAGE
from stream import spans
from stream.access.grants import ANY


def make_app(front: Front) -> ASGIApp:
    """The application. When its lifespan ends, everything that ``front`` holds is closed."""

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        watching = asyncio.create_task(front.watch.run())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            for close in front.closers:
                await close()

    by_path: dict[str, list[Route[Any, Any]]] = {}
    forms = LETTER_FORMS if front.resolves_letters else ()
    for route in (*ROUTES, *PAGE, LETTERS_PAGE, *forms, _DESCRIPTION, _REFERENCE):
        by_path.setdefault(route.path, []).append(route)
    resources = [Resource(front, routes) for routes in by_path.values()]
    router = Router(resources, redirect_slashes=False, default=_unknown_path, lifespan=lifespan)
    guard = Guard(router, access=front.access, limits=front.limits, metrics=front.metrics, callers=front.callers)
    return Traced(guard) if spans.is_on else guard


async def _unknown_path(scope: Scope, _: Receive, __: Send) -> None:
    raise ReadError("unknown_path", f"there is nothing at {scope['path']}")


@cache
def _description() -> Response:
    return Response(200, msgspec.json.encode(describe(ROUTES)))


@cache
def _reference() -> Response:
    return reference_response(describe(ROUTES))


async def _get_description(_: Front, __: None, ___: None) -> Response:
    return _description()


async def _get_reference(_: Front, __: None, ___: None) -> Response:
    return _reference()


_DESCRIPTION: Route[None, None] = Route(
    method="GET",
    path="/openapi.json",
    handler=_get_description,
    role=ANY,
    name="getDescription",
    tag="operations",
    summary="The description of the API.",
    text="In OpenAPI's format.",
    returns="The description.",
)
"""Not listed in the description, as the page is not."""

_REFERENCE: Route[None, None] = Route(
    method="GET",
    path="/docs",
    handler=_get_reference,
    role=ANY,
    name="getReference",
    tag="page",
    summary="The description of the API, for people.",
    text="",
    returns="HTML.",
)
"""For browsers: not described."""
