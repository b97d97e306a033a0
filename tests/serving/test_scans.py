"""All pages of a range, one after the other, by both clients: each is asked for as the first one was."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import msgspec
import pytest

from serving.client import AsyncClient, FreshetClient
from serving.client.answers import Page
from tests.serving.scripted_front import vector
from tokens import Vector

OPTIONS: dict[str, Any] = {"order_by": "-total", "limit": 2, "max_wait_ms": 7, "max_staleness_ms": 250}


class Pages:
    """A front that has three pages of a range, each further on in the source's history."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(dict(request.url.params))
        number = len(self.asked)
        token = str(vector(shop=f"1 0-1-{number}"))
        found = Page("cache", "fresh", "", token, [{"id": number}], page="" if number == 3 else f"behind {number}")
        return httpx2.Response(200, content=msgspec.json.encode(found))


def scanned(kind: str, pages: Pages) -> tuple[list[Page], Vector]:
    """The pages, and what the session has seen then."""
    transport = httpx2.MockTransport(pages)
    if kind == "blocking":
        with FreshetClient("http://front", transport=transport) as client:
            session = client.session()
            return list(session.scan("shop", "orders", {"customer": 7}, **OPTIONS)), session.vector

    async def story() -> tuple[list[Page], Vector]:
        async with AsyncClient("http://front", transport=transport) as client:
            session = client.session()
            return [page async for page in session.scan("shop", "orders", {"customer": 7}, **OPTIONS)], session.vector

    return asyncio.run(story())


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_each_page_is_asked_for_as_the_first_one(kind: str) -> None:
    """In the same order, of the same rows, as fresh; behind the page before it, and with what that has shown."""
    front = Pages()
    pages, seen = scanned(kind, front)
    assert [page.rows for page in pages] == [[{"id": 1}], [{"id": 2}], [{"id": 3}]]
    wanted = {"where.customer": "7", **{name: str(value) for name, value in OPTIONS.items()}}
    tokens = [str(Vector()), *(str(vector(shop=f"1 0-1-{number}")) for number in (1, 2))]
    behind = [{}, {"page": "behind 1"}, {"page": "behind 2"}]
    assert front.asked == [{**wanted, **page, "token": token} for page, token in zip(behind, tokens, strict=True)]
    assert seen == vector(shop="1 0-1-3")
