"""The guard in front of every request, over plain ASGI messages."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from starlette.types import Message, Receive, Scope, Send

from serving.client.answers import Problem
from serving.errors import ReadError
from serving.http.guard import (
    METER,
    Guard,
    read_body,
)
from serving.http.limits import CallerLimits, RequestLimits
from serving.metrics import FrontMetrics
from stream.access.grants import Access
from stream.access.who import asking


def scope_of(path: str = "/v1/rows/shop/t/1", headers: list[tuple[bytes, bytes]] | None = None) -> dict[str, Any]:
    return {"type": "http", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers or []}


async def ask(app: Any, scope: dict[str, Any], body: list[bytes] | None = None) -> tuple[int, bytes]:
    """Status and body of one request."""
    sent: list[Message] = []
    chunks = list(body or [b""])

    async def receive() -> Message:
        return {"type": "http.request", "body": chunks.pop(0), "more_body": bool(chunks)}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def hello(_: Scope, __: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def guard(app: Any = hello, token: str | None = None, limits: RequestLimits | None = None) -> Guard:
    return Guard(app, access=Access.of_secret(token or ""), limits=limits or RequestLimits(), metrics=FrontMetrics())


def code_of(body: bytes) -> str:
    return msgspec.json.decode(body, type=Problem).code


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"Bearer geheim", 200),
        (b"bearer geheim", 200),
        (b"Bearer geheim1", 401),
        (b"Bearer gehei", 401),
        (b"Bearer ", 401),
        (b"Bearer falsch", 401),
        (b"geheim", 401),
        (b"", 401),
    ],
)
def test_a_bearer_token_is_required(header: bytes, status: int) -> None:
    """Only the exact token is accepted; the case of the scheme does not matter."""
    found = asyncio.run(ask(guard(token="geheim"), scope_of(headers=[(b"authorization", header)])))
    assert found[0] == status
    assert status == 200 or code_of(found[1]) == "unauthorized"


def test_no_header_at_all_is_unauthorized() -> None:
    """A request without the header is refused."""
    assert asyncio.run(ask(guard(token="geheim"), scope_of()))[0] == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token(path: str) -> None:
    """Health probes are answered without a bearer token."""
    assert asyncio.run(ask(guard(token="geheim"), scope_of(path)))[0] == 200


@pytest.mark.parametrize(("rate_per_s", "is_metered"), [(0.0, False), (9.0, True)])
def test_what_a_caller_spends_is_counted_where_there_is_a_rate(rate_per_s: float, is_metered: bool) -> None:
    """Without one nobody needs to know what a request costs."""
    found: list[bool] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(METER in scope)
        await hello(scope, receive, send)

    limits, callers = RequestLimits(), CallerLimits(rate_per_s=rate_per_s)
    guarded = Guard(app, access=Access.of_secret(""), limits=limits, metrics=FrontMetrics(), callers=callers)
    assert asyncio.run(ask(guarded, scope_of()))[0] == 200
    assert found == [is_metered]


def test_what_callers_share_further_down_is_told_who_asks() -> None:
    """The sessions of a source and the waits at an owner are shared by token, or else by address."""
    found: list[str] = []

    async def tell(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(asking.get())
        await hello(scope, receive, send)

    for app, headers in ((guard(tell, "geheim"), [(b"authorization", b"Bearer geheim")]), (guard(tell), [])):
        assert asyncio.run(ask(app, scope_of(headers=headers) | {"client": ("10.0.0.1", 1)}))[0] == 200
    assert found == ["token secret", "10.0.0.1"]


def test_requests_beyond_the_bound_are_turned_away() -> None:
    """Requests beyond the in-flight limit are refused at once instead of queueing."""

    async def story() -> None:
        gate = asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            await gate.wait()
            await hello(scope, receive, send)

        app = guard(slow, limits=RequestLimits(in_flight_max=2))
        under_way = [asyncio.create_task(ask(app, scope_of())) for _ in range(2)]
        await asyncio.sleep(0)
        status, body = await ask(app, scope_of())
        assert (status, code_of(body)) == (429, "too_many_requests")
        gate.set()
        assert [status for status, _ in await asyncio.gather(*under_way)] == [200, 200]
        assert (await ask(app, scope_of()))[0] == 200

    asyncio.run(story())


def test_an_unexpected_error_is_an_incident_not_a_traceback() -> None:
    """The reader gets an incident id that is in the log, and no internal details."""

    async def broken(_: Scope, __: Receive, ___: Send) -> None:
        raise ZeroDivisionError("secret detail")

    status, body = asyncio.run(ask(guard(broken), scope_of()))
    problem = msgspec.json.decode(body, type=Problem)
    assert (status, problem.code) == (500, "internal")
    assert "incident" in problem.message
    assert b"secret" not in body


def test_a_request_that_a_stop_cuts_short_gets_a_code() -> None:
    """A request that outlasts the stop timeout is answered 503 ``stopping`` without a traceback in the log."""

    async def story() -> None:
        begun = asyncio.Event()

        async def endless(_: Scope, __: Receive, ___: Send) -> None:
            begun.set()
            await asyncio.Event().wait()

        request = asyncio.create_task(ask(guard(endless), scope_of()))
        await begun.wait()
        request.cancel()  # as uvicorn does to what is left after its timeout
        status, body = await request
        assert status == 503
        assert code_of(body) == "stopping"

    asyncio.run(story())


def test_a_read_error_keeps_its_status_and_token() -> None:
    """409 history_lost carries the token to go on with."""

    async def lost(_: Scope, __: Receive, ___: Send) -> None:
        raise ReadError("history_lost", "gone", token="new")

    status, body = asyncio.run(ask(guard(lost), scope_of()))
    assert status == 409
    assert msgspec.json.decode(body, type=Problem).token == "new"


def test_a_long_url_is_refused() -> None:
    """A URL beyond the limit is refused with 414."""
    status, body = asyncio.run(ask(guard(limits=RequestLimits(url_bytes_max=30)), scope_of("/v1/" + "x" * 40)))
    assert (status, code_of(body)) == (414, "request_too_long")


@pytest.mark.parametrize("headers", [[], [(b"content-length", b"12")]])
def test_a_large_body_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    """A body beyond the limit is refused by its announced length, or as soon as it exceeds the limit."""

    async def reader(scope: Scope, receive: Receive, send: Send) -> None:
        await read_body(scope, receive, 10)
        await hello(scope, receive, send)

    status, body = asyncio.run(ask(guard(reader), scope_of(headers=headers), [b"123456", b"123456"]))
    assert (status, code_of(body)) == (413, "body_too_large")


def test_a_body_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits counts as under way, so each pause in its body has an end."""
    monkeypatch.setattr("serving.http.guard.BODY_TIMEOUT_S", 0.01)
    pieces: list[Message] = [{"type": "http.request", "body": b"{", "more_body": True}]

    async def receive() -> Message:
        if pieces:
            return pieces.pop()
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(ReadError) as refused:
        asyncio.run(read_body(scope_of(), receive, 10))
    assert refused.value.code == "request_timeout"


@pytest.mark.parametrize("path", ["/v1/stream", "/v1/bytes/file:///x"])
def test_a_stream_or_file_that_has_ended_is_watched_no_more(path: str) -> None:
    """A connection serves many of them: what looks whether its token still counts ends with each."""

    async def story() -> None:
        app = guard(token="geheim")
        scope = scope_of(path, [(b"authorization", b"Bearer geheim")])
        for _ in range(3):
            assert (await ask(app, {**scope}))[0] == 200
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(story())
