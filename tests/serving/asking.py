"""Requests to an application in this process, over real ASGI."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
from starlette.types import ASGIApp


def client_of(app: ASGIApp) -> httpx2.AsyncClient:
    """A client of the application, to be used in one event loop."""
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://front")


def ask_app(app: ASGIApp, method: str, path: str, **options: Any) -> httpx2.Response:
    """One request, in an event loop of its own."""

    async def story() -> httpx2.Response:
        async with client_of(app) as client:
            return await client.request(method, path, **options)

    return asyncio.run(story())
