"""The front: what a token may ask, of which keyspaces, and what it can learn of others. Real ASGI, no owner."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.types import Message

from serving.bytecache.shared.opening import close_caches
from serving.http.app import make_app
from serving.http.bytes.files import Files
from serving.http.front import Front, make_front
from serving.http.guard import Guard
from serving.http.letters.routes import LETTERS_PAGE
from serving.http.limits import RequestLimits
from serving.http.route import Route
from serving.http.routes import ROUTES
from serving.http.status.routes import PAGE
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.spaces import RowSpace, TableSpace
from stream.access.grants import Access, Credential, Grant, digest_of
from stream.wire.keys import Layout
from tests.serving.asking import ask_app

GRANTS = {
    "all": Grant("all", frozenset({"read"})),
    "shop": Grant("shop", frozenset({"read"}), frozenset({"shop"})),
    "filler": Grant("filler", frozenset({"fill"})),
    "scraper": Grant("scraper", frozenset({"metrics"})),
    "root": Grant("root", frozenset({"admin"})),
    "own": Grant("own", frozenset({"admin"}), frozenset({"shop"})),
}
ACCESS = Access([Credential(grant, digest_of(name.encode())) for name, grant in GRANTS.items()])


def front() -> Front:
    """Of two keyspaces of rows and a catalog."""
    spaces: list[RowSpace | TableSpace] = [
        RowSpace("shop", Layout(4), "shop"),
        RowSpace("bank", Layout(4), "bank"),
        TableSpace("hive", Layout(2)),
    ]
    return make_front(spaces, Locations(), access=ACCESS)


def ask(path: str, token: str = "", method: str = "GET", **options: Any) -> httpx2.Response:
    """One request."""
    headers = {"authorization": f"Bearer {token}"} if token else {}
    return ask_app(make_app(front()), method, path, headers=headers, **options)


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [
        ("/v1/rows/shop/orders/7", "", 401),
        ("/v1/rows/shop/orders/7", "wrong", 401),
        ("/v1/rows/shop/orders/7", "all", 503),
        ("/v1/rows/shop/orders/7", "shop", 503),
        ("/v1/rows/shop/orders/7", "filler", 403),
        ("/v1/rows/shop/orders/7", "scraper", 403),
        ("/v1/rows/shop/orders/7", "root", 503),
        ("/v1/rows/bank/orders/7", "shop", 404),
        ("/v1/rows/bank/orders", "shop", 404),
        ("/v1/tables/db/t", "shop", 404),
        ("/v1/databases", "shop", 404),
        ("/v1/stream?keyspace=bank", "shop", 404),
        ("/v1/locations/bank/0", "shop", 404),
        ("/v1/locations?entity=partition&keyspace=bank", "shop", 404),
        ("/v1/locations", "shop", 200),
        ("/v1/bytes/file:///etc/passwd", "shop", 404),
        ("/metrics", "", 401),
        ("/metrics", "shop", 403),
        ("/metrics", "all", 200),
        ("/metrics", "scraper", 200),
        ("/openapi.json", "", 401),
        ("/openapi.json", "scraper", 200),
        ("/healthz", "", 200),
        ("/readyz", "", 503),
        ("/readyz", "wrong", 503),
    ],
)
def test_a_role_of_a_keyspace_opens_its_paths_and_no_others(path: str, token: str, status: int) -> None:
    """503 is past the door: there is no owner here."""
    assert ask(path, token).status_code == status


NAMES = frozenset({"keyspace", "catalog"})
"""Fields by which a request names one."""
NEEDED: dict[str, Any] = {
    "putRow": {"row": {"id": 1}},
    "getRows": {"keys": [{"table": "t", "pk": "1"}]},
    "getTables": {"tables": [{"db": "d", "table": "t"}]},
    "postLists": {"tables": ["d.t"]},
    "getLists": {"tables": '["d.t"]'},
    "getLocations": {"entity": "partition"},
    "getKey": {"table": "t", "key": "1"},
    "getPrivilegeSet": {"user": "u"},
}
"""Route → what its body or query needs besides."""


def fields_of(kind: Any) -> set[str]:
    """Of a struct; of None none."""
    return set(getattr(kind, "__struct_fields__", ()))


NAMING = [
    route
    for route in (*ROUTES, *PAGE, LETTERS_PAGE)
    if NAMES & (fields_of(route.parameters) | fields_of(route.body) | {*route.path_names})
]


@pytest.mark.parametrize("hidden", ["bank", "hive"])
@pytest.mark.parametrize("route", NAMING, ids=lambda route: route.name)
def test_a_hidden_keyspace_is_like_none(route: Route[Any, Any], hidden: str) -> None:
    """On every route the answer to a keyspace that is there is, but for its name, the answer to one that is not."""

    def asked_for(name: str) -> httpx2.Response:
        needed = NEEDED.get(route.name, {})
        path = re.sub(r"\{(\w+)[^}]*\}", lambda found: name if found[1] in NAMES else "1", route.path)
        query = dict.fromkeys(fields_of(route.parameters) & NAMES - {*route.path_names}, name)
        body = dict.fromkeys(fields_of(route.body) & NAMES, name)
        if route.body is None:
            return ask(path, "own", route.method, params=query | needed)
        return ask(path, "own", route.method, params=query, json=body | needed)

    there, gone = asked_for(hidden), asked_for("nope")
    assert there.status_code == gone.status_code == (200 if route.name == "refreshLocations" else 404)
    assert there.text.replace(hidden, "nope") == gone.text


def test_the_routes_above_are_all_that_name_a_keyspace() -> None:
    """A rows route, a catalog's, a stream, locations, dead letters and a page are among them."""
    wanted = {
        "getRow",
        "putRow",
        "getTable",
        "getStream",
        "getLocation",
        "refreshLocations",
        "getDeadLetters",
        "getKey",
    }
    assert wanted <= {route.name for route in NAMING}


def test_the_status_lists_what_the_token_may_see() -> None:
    """Names of other keyspaces don't show, and not to probes either."""
    assert [each["name"] for each in ask("/v1/status", "shop").json()["keyspaces"]] == ["shop"]
    assert len(ask("/v1/status", "all").json()["keyspaces"]) == 3
    assert "bank" not in ask("/readyz").text


def test_a_batch_of_another_keyspace_is_not_found() -> None:
    """Bodies are as paths are."""
    body = {"tables": [{"db": "d", "table": "t"}]}
    assert ask("/v1/tables:batch", "shop", "POST", json=body).status_code == 404
    assert ask("/v1/rows/bank:batch", "shop", "POST", json={"keys": [{"table": "t", "pk": "1"}]}).status_code == 404


def test_every_route_says_what_it_needs() -> None:
    """Only probes need nothing, and only to read is given by default."""
    needed = {route.path: route.needed_role for route in ROUTES if route.method != "PUT"}
    assert {path for path, role in needed.items() if role is None} == {"/healthz", "/readyz"}
    assert set(needed.values()) == {None, "read", "metrics", "admin"}


@pytest.mark.parametrize(
    ("path", "ends"),
    [("/v1/stream", [{"type": "http.response.body", "body": b""}]), ("/v1/bytes/s3://lake/file", [])],
)
def test_a_stream_ends_soon_after_its_token_was_taken_away(
    path: str, ends: list[Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader of a stream gets a whole end, that of a file none, and 401 when it comes again."""
    monkeypatch.setattr("serving.http.guard.ACCESS_LOOK_S", 0.01)

    async def story() -> list[Message]:
        access = Access([Credential(GRANTS["all"], digest_of(b"all"))])
        begun, sent = asyncio.Event(), list[Message]()

        async def endless(_: Any, __: Any, send: Callable[[Message], Any]) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await asyncio.Event().wait()

        async def send(message: Message) -> None:
            sent.append(message)

        async def nothing() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        guard = Guard(endless, access=access, limits=RequestLimits(), metrics=FrontMetrics())
        headers = [(b"authorization", b"Bearer all")]
        scope = {"type": "http", "path": path, "query_string": b"", "headers": headers}
        running = asyncio.ensure_future(guard(scope, nothing, send))
        await begun.wait()
        access.replace([Credential(GRANTS["all"], digest_of(b"all"))])  # the same grant: it goes on
        await asyncio.sleep(0.05)
        assert not running.done()
        access.replace([Credential(GRANTS["shop"], digest_of(b"other"))])
        async with asyncio.timeout(5):
            await running
        await guard(scope, nothing, send)
        return sent

    first, *rest, refusal, _ = asyncio.run(story())
    assert (first["status"], rest, refusal["status"]) == (200, ends, 401)


def test_a_stream_ends_soon_after_its_token_was_given_fewer_keyspaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would go on telling rows of those that were taken away. One that was given more goes on."""
    monkeypatch.setattr("serving.http.guard.ACCESS_LOOK_S", 0.01)

    async def story() -> None:
        some, more = (
            Grant("mine", frozenset({"read"}), of) for of in (frozenset({"shop"}), frozenset({"shop", "bank"}))
        )
        access = Access([Credential(some, digest_of(b"mine"))])
        begun = asyncio.Event()

        async def endless(_: Any, __: Any, send: Callable[[Message], Any]) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            begun.set()
            await asyncio.Event().wait()

        async def send(_: Message) -> None:
            pass

        async def nothing() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        guard = Guard(endless, access=access, limits=RequestLimits(), metrics=FrontMetrics())
        headers = [(b"authorization", b"Bearer mine")]
        for grant, ends in ((more, False), (some, True)):
            scope = {"type": "http", "path": "/v1/stream", "query_string": b"", "headers": headers}
            begun.clear()
            running = asyncio.ensure_future(guard(scope, nothing, send))
            await begun.wait()
            access.replace([Credential(grant, digest_of(b"mine"))])
            done, _ = await asyncio.wait([running], timeout=5 if ends else 0.05)
            assert bool(done) is ends
            running.cancel()

    asyncio.run(story())


@pytest.mark.parametrize(("token", "status"), [("all", 200), ("shop", 404)])
def test_files_are_of_no_keyspace_so_who_sees_some_keyspaces_sees_none(tmp_path: Path, token: str, status: int) -> None:
    """A file may hold rows of any of them."""
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a").write_bytes(b"rows")
    files = Files([f"file://{tmp_path}/root"], {"dirs": [f"{tmp_path}/cache:64MiB"], "shards": 1})
    made = make_front([RowSpace("shop", Layout(1), "shop")], Locations(), access=ACCESS, files=files)
    try:
        path, headers = f"/v1/bytes/file://{tmp_path}/root/a", {"authorization": f"Bearer {token}"}
        answer = ask_app(make_app(made), "GET", path, headers=headers)
        assert (answer.status_code, answer.content == b"rows") == (status, status == 200)
    finally:
        asyncio.run(files.close())
        close_caches()
