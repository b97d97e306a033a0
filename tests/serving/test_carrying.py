"""A session is carried whole from request to request, by signed text that only its services can write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from http.cookies import SimpleCookie
from typing import Any

import httpx2
import pytest

from serving.client import AsyncClient, FreshetClient, Session
from serving.client.errors import ClientError
from serving.client.session import Doubt
from serving.client.sessions import HEADER, AsgiSessions, Carrier, WsgiSessions, current_session
from serving.client.sessions.carrying import CookieSettings, Exchange
from tokens import Position, Vector

SECRET = "0123456789abcdef"
NOW = 1_000_000.0
SEEN = str(Vector({"shop/0": (2, Position.parse("MariaDB/0-1-5"))}))

client = FreshetClient("http://127.0.0.1:9")


def carrier(*secrets: str) -> Carrier:
    """With one secret or several, at a fixed time."""
    return Carrier(list(secrets) or SECRET, clock=lambda: NOW)


def session(*observed: int, token: str = "") -> Session:
    """A session that has written these sequences."""
    made = client.session(token)
    for each in observed:
        made.observe("other/0", f"MariaDB/0-1-{each}")
    return made


def test_all_of_a_session_comes_back() -> None:
    """Its token, writes whose epoch is not known yet, and doubts."""
    before, after = session(7, token=SEEN), session(3)
    before.doubt("shop/0", Doubt(4, NOW - 10))
    assert carrier().take(after, carrier().carry(before))
    assert after.carried == before.carried
    assert carrier().carry(session()) == ""


def test_a_token_that_only_a_newer_version_reads_comes_back() -> None:
    """Also where it is all that the session has seen."""
    after = session()
    assert carrier().take(after, carrier().carry(session(token="v9.c29tZXRoaW5n")))
    assert after.token == "v9.c29tZXRoaW5n"


@pytest.mark.parametrize("change", [lambda text: text[:-1], lambda text: "s1.AAAA" + text[7:], lambda _: "", str.lower])
def test_text_that_was_changed_says_nothing(change: Callable[[str], str]) -> None:
    """Nobody but a service with the secret can have reads demand anything."""
    taking = session()
    assert not carrier().take(taking, change(carrier().carry(session(5))))
    assert carrier().carry(taking) == ""


def test_a_secret_can_be_replaced() -> None:
    """The first of several writes, and all read."""
    old, both, new = carrier("a" * 16), carrier("b" * 16, "a" * 16), carrier("b" * 16)
    assert both.take(session(), old.carry(session(5)))
    assert new.take(session(), both.carry(session(5)))
    assert not new.take(session(), old.carry(session(5)))


@pytest.mark.parametrize("secret", ["short", [], ["0123456789abcdef", ""]])
def test_a_weak_secret_is_refused(secret: str | list[str]) -> None:
    """A secret that can be guessed is none."""
    with pytest.raises(ClientError, match="less than 16 bytes"):
        Carrier(secret)


@pytest.mark.parametrize("since", [(NOW - 3_700, NOW - 10), (NOW - 10, NOW - 3_700)])
def test_of_two_doubts_the_later_one_is_carried_on(since: tuple[float, float]) -> None:
    """In whichever order they were heard of: the later write is not forgotten with the earlier one."""
    before, after = session(), session()
    for each in since:
        before.doubt("shop/0", Doubt(4, each))
    assert carrier().take(after, carrier().carry(before))
    assert after.carried.doubts == {"shop/0": Doubt(4, NOW - 10)}


@pytest.mark.parametrize(("doubted", "told", "ends"), [(4, 4, True), (4, 5, False), (0, 0, False), (0, 4, False)])
def test_only_the_server_that_committed_ends_a_doubt(doubted: int, told: int, ends: bool) -> None:
    """Another one, or one that nobody knows, may lack the commit that is in doubt."""
    doubtful = session()
    doubtful.doubt("shop/0", Doubt(doubted, NOW))
    doubtful.end_doubt("shop/0", doubtful.doubt_about("shop/0"), told, "MariaDB/0-1-5")
    assert doubtful.is_in_doubt("shop") is not ends


def test_no_server_ends_doubts_about_two_servers() -> None:
    """Each may lack the other's commit."""
    doubtful = session()
    for server in (4, 5):
        doubtful.doubt("shop/0", Doubt(server, NOW))
    for server in (4, 5):
        doubtful.end_doubt("shop/0", doubtful.doubt_about("shop/0"), server, "MariaDB/0-1-5")
    assert doubtful.is_in_doubt("shop")


def test_an_old_doubt_is_not_carried_on() -> None:
    """A doubt is kept for as long as the session; else its reads would go to the source for ever."""
    doubtful = session()
    doubtful.doubt("shop/0", Doubt(4, NOW - 3_700))
    late, early = carrier(), Carrier(SECRET, clock=lambda: NOW - 200)
    taken = session()
    assert late.take(taken, early.carry(doubtful))
    assert taken.carried.doubts == {}


def test_signed_text_that_cannot_be_read_says_nothing() -> None:
    """A newer service's text is passed over, and its cookie is left to it."""
    import serving.client.sessions.carrying as module

    signed = "s2.AAAA"
    text = f"{signed}.{module._signature(SECRET.encode(), signed)}"
    exchange = Exchange(carrier(), CookieSettings(), session(5))
    exchange.begin(None, [f"freshet-00000000={text}"])
    assert all("freshet-00000000" not in value for _, value in exchange.end())


class Browser:
    """Keeps cookies by name, as browsers do."""

    def __init__(self) -> None:
        self.cookies: dict[str, str] = {}

    def request(self) -> str:
        """The Cookie header."""
        return "; ".join(f"{name}={value}" for name, value in [("foreign", 'a"b,'), *self.cookies.items()])

    def answered(self, headers: Iterable[tuple[str, str]]) -> None:
        """Takes an answer's headers."""
        for name, value in headers:
            assert name == "Set-Cookie"
            for key, morsel in SimpleCookie(value).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(key, None)
                else:
                    self.cookies[key] = morsel.value


def exchange(cookie: str, *wrote: int) -> list[tuple[str, str]]:
    """The headers of an answer to a request that wrote these sequences."""
    made = Exchange(carrier(), CookieSettings(), session())
    made.begin(None, [cookie])
    for each in wrote:
        made.session.observe("other/0", f"MariaDB/{each}-1-1")
    return made.end()


def carried(browser: Browser) -> set[str]:
    """What the browser's next request brings, as the GTIDs of its writes."""
    made = Exchange(carrier(), CookieSettings(), session())
    made.begin(None, [browser.request()])
    return set(made.session.carried.unplaced.get("other/0", "/").split("/")[1].split(",")) - {""}


def test_answers_in_any_order_lose_nothing() -> None:
    """Several requests at a time: whichever answer comes last, the next request brings what all of them wrote."""
    browser = Browser()
    browser.answered(exchange(browser.request(), 1))
    sent = [(browser.request(), wrote) for wrote in ([2], [], [3])]
    for cookie, wrote in reversed(sent):
        browser.answered(exchange(cookie, *wrote))
    assert carried(browser) == {"1-1-1", "2-1-1", "3-1-1"}
    assert len(browser.cookies) > 1
    browser.answered(exchange(browser.request()))
    assert carried(browser) == {"1-1-1", "2-1-1", "3-1-1"}
    assert len(browser.cookies) == 1
    assert exchange(browser.request()) == []  # nothing new: no cookie


def test_a_cookie_whose_content_another_one_has_is_taken_away() -> None:
    """An answer that comes late brings an old one back. With each such answer there would be one more of them."""
    browser = Browser()
    late = exchange(browser.request(), 1)
    browser.answered(late)
    browser.answered(exchange(browser.request(), 2))
    browser.answered(late)
    assert len(browser.cookies) == 2
    browser.answered(exchange(browser.request()))
    assert (len(browser.cookies), carried(browser)) == (1, {"1-1-1", "2-1-1"})


def test_a_cookie_is_kept_from_scripts_and_other_sites() -> None:
    """And it is sent over HTTPS only, unless said otherwise."""
    [(_, value)] = exchange("", 1)
    assert all(word in value for word in ("HttpOnly", "Secure", "SameSite=Lax", "Path=/", "Max-Age=3600"))
    made = Exchange(carrier(), CookieSettings(prefix="shop", secure=False, domain="shop.test"), session(1))
    [(_, value)] = made.end()
    assert value.startswith("shop-")
    assert "Secure" not in value
    assert "Domain=shop.test" in value


def test_a_cookie_of_a_name_that_no_answer_gave_is_passed_over() -> None:
    """Some names can't be taken away again: whoever sets such a cookie would make each answer an error."""
    [(_, value)] = exchange("", 1)
    text = value.split(";")[0].partition("=")[2]
    [(_, answer)] = exchange(f"freshet-a[b={text}", 2)
    assert "a[b" not in answer


def test_a_session_that_no_cookie_holds_is_an_error() -> None:
    """A browser would drop it, and the user would miss what they wrote."""
    large = session()
    for shard in range(200):
        large.observe(f"other/{shard}", "MariaDB/0-1-5")
    with pytest.raises(ClientError) as raised:
        Exchange(carrier(), CookieSettings(), large).end()
    assert raised.value.code == "session_too_long"
    by_header = Exchange(carrier(), CookieSettings(), large)
    by_header.begin("", [])
    [(name, text)] = by_header.end()
    assert name == HEADER
    assert carrier().take(session(), text)


def wrote() -> str:
    """A view: writes, and says what the session had written before."""
    before = current_session().carried.unplaced.get("other/0", "")
    current_session().observe("other/0", f"MariaDB/0-1-{int(before.rpartition('-')[2] or 0) + 1}")
    return before


def wsgi(kind: str) -> Any:
    """An application of each shape that WSGI allows; all commit as late as can be."""

    def late(_: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [wrote().encode()]

    def generator(_: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        yield wrote().encode()
        current_session()  # the session is there while the answer is made
        yield b""

    def writes(_: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])(wrote().encode())
        return []

    return {"late": late, "generator": generator, "writes": writes}[kind]


def test_what_ends_an_answer_has_its_session() -> None:
    """Frameworks run what an application does at the end of a request there: it may read, or give a connection back."""
    ended: list[Session] = []

    class Body:
        def __iter__(self) -> Iterator[bytes]:
            return iter([b"answer"])

        def close(self) -> None:
            ended.append(current_session())

    def application(_: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        start("200 OK", [])
        ended.append(current_session())
        return Body()

    transport = httpx2.WSGITransport(WsgiSessions(application, client, SECRET))
    with httpx2.Client(transport=transport, base_url="http://shop.test") as browser:
        assert browser.get("/").text == "answer"
    assert len(ended) == 2
    assert ended[0] is ended[1]


@pytest.mark.parametrize("kind", ["late", "generator", "writes"])
def test_wsgi_carries_a_session(kind: str) -> None:
    """From answer to request, by cookies, or by the header where the request has it; and it is over after each."""
    transport = httpx2.WSGITransport(WsgiSessions(wsgi(kind), client, SECRET, secure=False))
    with httpx2.Client(transport=transport, base_url="http://shop.test") as browser:
        assert [browser.get("/").text for _ in range(3)] == ["", "MariaDB/0-1-1", "MariaDB/0-1-2"]
        assert len(browser.cookies) == 1
    with httpx2.Client(transport=transport, base_url="http://shop.test") as service:
        first = service.get("/", headers={HEADER: ""})
        second = service.get("/", headers={HEADER: first.headers[HEADER]})
        assert (second.text, len(service.cookies)) == ("MariaDB/0-1-1", 0)
    with pytest.raises(ClientError):
        current_session()


def test_asgi_carries_a_session() -> None:
    """As WSGI; also with a blocking client, for views that block."""

    async def app(scope: Any, _: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = wrote().encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def main() -> None:
        transport = httpx2.ASGITransport(AsgiSessions(app, client, SECRET, secure=False))
        async with httpx2.AsyncClient(transport=transport, base_url="http://shop.test") as browser:
            assert [(await browser.get("/")).text for _ in range(3)] == ["", "MariaDB/0-1-1", "MariaDB/0-1-2"]
            answer = await browser.get("/", headers={HEADER: ""})
            assert (answer.text, "set-cookie" in answer.headers) == ("", False)
        async with AsyncClient("http://127.0.0.1:9") as asynchronous:
            await AsgiSessions(app, asynchronous, SECRET)({"type": "lifespan"}, None, None)  # type: ignore[arg-type]

    asyncio.run(main())
    with pytest.raises(ClientError):
        current_session()
