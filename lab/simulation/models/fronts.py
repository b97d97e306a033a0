"""What simulated fronts share: a real `Front` of a few parts, and the guard's answer to an error."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import MISSING, fields
from typing import Any, Final

from lab.simulation.models.network import METRICS
from serving.client.wire import HttpResponse
from serving.errors import ReadError
from serving.http.front import Front
from serving.http.limits import RequestLimits
from serving.http.responses import Response, problem_response
from stream.access.grants import Access

LIMITS: Final = RequestLimits(wait_ms_default=0)
"""Histories draw how long each read waits."""


def front_with(**parts: Any) -> Front:
    """A front that has only these ``parts``; its handlers need no others."""
    given = {"row_spaces": {}, "table_spaces": {}, "metrics": METRICS, "limits": LIMITS, "access": Access()}
    needed = [each.name for each in fields(Front) if each.default is MISSING and each.default_factory is MISSING]
    return Front(**{**dict.fromkeys(needed), "closers": (), **given, **parts})


async def answered(handling: Awaitable[Response]) -> HttpResponse:
    """Status and body of a handler's response, as the guard sends it."""
    try:
        response = await handling
    except ReadError as error:
        response = problem_response(error)
    return response.status, response.body
