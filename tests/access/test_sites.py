"""A front without tokens, and what pages of other sites have a browser on this machine send to it."""

from __future__ import annotations

import asyncio

import pytest

from serving.http.guard import Guard
from serving.http.limits import RequestLimits
from serving.metrics import FrontMetrics
from stream.access.grants import Access
from tests.serving.test_guard import ask, code_of, hello, scope_of


def status_of(access: Access, method: str = "GET", **headers: str) -> int:
    """Of a request with these headers."""
    guard = Guard(hello, access=access, limits=RequestLimits(), metrics=FrontMetrics())
    sent = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    status, body = asyncio.run(ask(guard, scope_of(headers=sent) | {"method": method}))
    assert status == 200 or code_of(body) == "forbidden"
    return status


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8480", 200),
        ("[::1]:8480", 200),
        ("localhost:8480", 200),
        ("LOCALHOST", 200),
        ("localhost.:8480", 200),
        ("freshet.localhost:8480", 200),
        ("front", 200),
        ("192.168.1.4", 200),
        ("", 200),
        ("rebound.example.org:8480", 403),
        ("rebound.example.org.", 403),
        ("127.0.0.1.example.org", 403),
        ("localhost.example.org", 403),
        ("127.0.0.1@example.org", 403),
    ],
)
def test_a_page_of_elsewhere_reads_and_changes_nothing(host: str, status: int) -> None:
    """By a name that leads here it could read all rows; with tokens it has none to show, and any name will do."""
    assert status_of(Access(), host=host) == status
    with_tokens = Access.of_secret("secret")
    assert status_of(with_tokens, host=host, authorization="Bearer secret") == 200


def test_what_another_site_sends_changes_nothing() -> None:
    """It can't read the answers; a link from it leads here, and the front's own page may send what it likes."""
    assert status_of(Access(), "POST", host="127.0.0.1", sec_fetch_site="cross-site") == 403
    assert status_of(Access(), "PUT", host="127.0.0.1", sec_fetch_site="same-site") == 403
    assert status_of(Access(), "GET", host="127.0.0.1", sec_fetch_site="cross-site") == 200
    for site in ("same-origin", "none"):
        assert status_of(Access(), "POST", host="127.0.0.1", sec_fetch_site=site) == 200


def test_a_name_that_a_proxy_passes_on_can_be_allowed() -> None:
    """By `serve.hosts`, in whatever case."""
    access = Access(names=["Cache.example.org"])
    assert status_of(access, host="cache.EXAMPLE.org:443") == 200
    assert status_of(access, host="cache.example.org.") == 200
    assert status_of(access, host="other.example.org") == 403
