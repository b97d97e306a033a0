"""Which node a client asks: the one that holds the row, another if it does not answer, and none that it may not."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.client import AsyncClient, FreshetClient, Unreachable
from serving.client.answers import DescribedColumn, DescriptionAnswer, NodeAnswer, RouteAnswer, RoutesAnswer
from serving.client.routing.attempts import PATIENCE_S
from serving.client.routing.partitions import KeyColumns, Sharing, partition_of, sharing_of
from serving.client.routing.router import AWAY_S, ROUTES_S, Question, Router
from serving.client.wire import Place
from stream.wire.keys import Layout, row_key
from tests.serving.scripted_front import row, vector

LAYOUT = Layout(4)
HOME = "http://home"


def partition(number: int) -> int:
    """Of a row of the table that the fronts of these tests have."""
    return LAYOUT.partition_of(row_key("shop.items", [number]))


def number_in(wanted: int) -> int:
    """A row of a partition."""
    return next(number for number in range(1000) if partition(number) == wanted)


def route(number: int, leader: str, *followers: str, epoch: int = 5, zone: str = "") -> RouteAnswer:
    """A partition that these nodes hold; of a follower ``zone``."""
    named = [NodeAnswer(f"http://{name}", zone, name) for name in followers]
    return RouteAnswer(number, epoch, 0, NodeAnswer(f"http://{leader}", "", leader), named)


class Fronts:
    """Fronts that answer by their names. ``down``: those that don't; ``busy``: those that answer who waits for long;
    ``asked``: name and path of each request."""

    def __init__(self, *routes: RouteAnswer, knows_routes: bool = True, status: int = 404) -> None:
        """``status``: of the answer where no routes are known."""
        self.routes, self.knows_routes, self.status = list(routes), knows_routes, status
        self.down: set[str] = set()
        self.busy: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.params: list[dict[str, str]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        name, path = request.url.host, request.url.path
        self.asked.append((name, path))
        if name in self.down:
            raise httpx2.ConnectError("refused")
        if name in self.busy and request.extensions["timeout"]["read"] <= PATIENCE_S:
            raise httpx2.ReadTimeout("busy")
        if path.startswith("/v1/descriptions/"):
            columns = [DescribedColumn("id", "int"), DescribedColumn("v", "text")]
            return httpx2.Response(
                200, content=msgspec.json.encode(DescriptionAnswer("shop.items", columns, ["id"], cacheable=True))
            )
        if path.startswith("/v1/routes/"):
            if not self.knows_routes:
                return httpx2.Response(self.status, json={"code": "unknown_path", "message": "no", "hint": ""})
            return httpx2.Response(200, content=msgspec.json.encode(RoutesAnswer(str(LAYOUT), self.routes)))
        self.params.append(dict(request.url.params))
        status, body = row(vector(shop="1 0-1-5"))
        return httpx2.Response(status, content=body)

    def of_rows(self) -> list[str]:
        """Who was asked for rows."""
        return [name for name, path in self.asked if path.startswith("/v1/rows/")]


def read(kind: str, fronts: Fronts, *numbers: int, homes: Any = HOME, **options: Any) -> None:
    """Reads rows one after the other with a new client."""
    if kind == "blocking":
        with FreshetClient(homes, transport=httpx2.MockTransport(fronts), **options) as client:
            session = client.session()
            for number in numbers:
                session.get_row("shop", "items", number)
        return

    async def story() -> None:
        async with AsyncClient(homes, transport=httpx2.MockTransport(fronts), **options) as client:
            session = client.session()
            for number in numbers:
                await session.get_row("shop", "items", number)

    asyncio.run(story())


BOTH = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


@BOTH
def test_a_read_goes_to_the_node_that_holds_the_row(kind: str) -> None:
    """The client asks its home once for the routes and once for the table, then each row's node."""
    fronts = Fronts(*(route(number, f"n{number}") for number in range(4)))
    read(kind, fronts, *map(number_in, (0, 1, 2, 3, 0)), route=True)
    assert fronts.of_rows() == ["n0", "n1", "n2", "n3", "n0"]
    others = [(name, path) for name, path in fronts.asked if not path.startswith("/v1/rows/")]
    assert others == [("home", "/v1/descriptions/shop/items"), ("home", "/v1/routes/shop")]


@BOTH
def test_a_client_that_looks_for_no_nodes_asks_its_homes_only(kind: str) -> None:
    """Without ``route`` nothing is asked but what the caller asks; a home that is down is passed over."""
    fronts = Fronts(route(0, "n0"))
    fronts.down = {"home"}
    read(kind, fronts, 1, 2, homes=[HOME, "http://second"])
    assert fronts.of_rows() == ["home", "second", "second"]
    assert len(fronts.asked) == 3


@BOTH
def test_a_node_that_does_not_answer_is_passed_over(kind: str) -> None:
    """Its follower is asked, then any front; all its rows go elsewhere at once."""
    held = number_in(0)
    fronts = Fronts(route(0, "n0", "f0"))
    fronts.down = {"n0"}
    read(kind, fronts, held, held, route=True)
    assert fronts.of_rows() == ["n0", "f0", "f0"]
    fronts = Fronts(route(0, "n0"))
    fronts.down = {"n0"}
    read(kind, fronts, held, held, route=True)
    assert fronts.of_rows() == ["n0", "home", "home"]


@BOTH
@pytest.mark.parametrize(
    "front", ["http://", "http:", "http://a:99999", "http://a:0", "http://[", "http://a..b", "http://\0", "http:///x"]
)
def test_a_node_that_is_announced_at_no_url_is_not_asked(kind: str, front: str) -> None:
    """Whatever stands in the topic of announcements: its follower is asked, and no other error comes of it."""
    told = route(0, "n0", "f0")
    told.leader = NodeAnswer(front, "", "n0")
    fronts = Fronts(told)
    read(kind, fronts, number_in(0), route=True)
    assert fronts.of_rows() == ["f0"]


@BOTH
def test_where_nobody_answers_the_error_names_the_last_one(kind: str) -> None:
    """Each front is tried once."""
    fronts = Fronts()
    fronts.down = {"home", "second"}
    with pytest.raises(Unreachable, match="second"):
        read(kind, fronts, 1, homes=[HOME, "http://second"])
    assert fronts.of_rows() == ["home", "second"]


@BOTH
@pytest.mark.parametrize("order", [["busy", "down"], ["down", "busy"], ["busy", "down", "busier"]])
def test_a_front_that_is_only_busy_is_waited_for_if_no_other_answers(kind: str, order: list[str]) -> None:
    """It had little time while there was another one to ask. One that refuses connections ends no request."""
    fronts = Fronts(route(0, "n0"))
    fronts.down, fronts.busy = {"down"}, {"busy", "busier"}
    read(kind, fronts, 1, homes=[f"http://{each}" for each in order])
    last_busy = [each for each in order if each != "down"][-1]
    assert fronts.of_rows() == (order if order[-1] == "busy" else [*order, last_busy])


@BOTH
def test_any_instance_may_answer_and_those_of_the_zone_go_first(kind: str) -> None:
    """With ``consistency=any`` nodes take turns, those of the client's zone; the front is told so, too."""
    held = number_in(0)
    fronts = Fronts(route(0, "n0", "f0", "g0", zone="here"))
    read(kind, fronts, *[held] * 4, route=True, consistency="any", zone="here")
    assert sorted(set(fronts.of_rows())) == ["f0", "g0"]
    assert {each["consistency"] for each in fronts.params} == {"any"}
    fronts = Fronts(route(0, "n0", "f0", zone="here"))
    read(kind, fronts, *[held] * 4, route=True, zone="here")
    assert set(fronts.of_rows()) == {"n0"}
    assert "consistency" not in fronts.params[0]


@BOTH
@pytest.mark.parametrize("status", [404, 401, 500, 503])
def test_a_front_that_tells_no_routes_is_asked_for_them_seldom(kind: str, status: int) -> None:
    """An older one, or one that can't now. Reads go to the home, and don't wait for the question again."""
    fronts = Fronts(knows_routes=False, status=status)
    read(kind, fronts, *range(20), route=True)
    assert fronts.of_rows() == ["home"] * 20
    assert len([path for _, path in fronts.asked if path.startswith("/v1/routes/")]) == 1


@pytest.mark.parametrize("status", [404, 503])
def test_routes_that_nobody_tells_are_not_asked_for_with_each_request(status: int) -> None:
    """Nor with every other one: each question would wait for a front that answers none. After a while they are."""
    now = [100.0]
    fronts = Fronts(knows_routes=False, status=status)
    with FreshetClient(HOME, transport=httpx2.MockTransport(fronts), route=True) as client:
        client._router = Router([HOME], finds=True, clock=lambda: now[0])
        asked = []
        for _ in range(16):
            client.get_row("shop", "items", 1)
            now[0] += 0.2
            asked.append(len([path for _, path in fronts.asked if path.startswith("/v1/routes/")]))
    assert asked[0] == 1
    assert asked[7] <= 2 <= asked[15]


def test_a_moved_partition_is_learnt_and_never_unlearnt() -> None:
    """Routes that are used are asked for again; an older answer that comes later changes nothing."""
    now = [100.0]
    fronts = Fronts(route(0, "n0", epoch=5))
    with FreshetClient(HOME, transport=httpx2.MockTransport(fronts), route=True) as client:
        client._router = Router([HOME], finds=True, clock=lambda: now[0])
        for leader, epoch, asked in (("n0", 5, "n0"), ("n1", 6, "n1"), ("n0", 5, "n1")):
            fronts.routes = [route(0, leader, epoch=epoch)]
            now[0] += ROUTES_S
            client.get_row("shop", "items", number_in(0))
            assert fronts.of_rows()[-1] == asked


@pytest.mark.parametrize("body", [b'{"table":"\xff","routes":[{"leader":"\xff"}]}', b'{"later":' + b"[" * 100_000])
def test_an_answer_that_nobody_can_read_is_none(body: bytes) -> None:
    """As of something else behind the URL. It is learnt after a read, which would fail though its row is there."""
    router, place = Router([HOME], finds=True), Place("shop", "items", (number_in(0),))
    questions = [router.question(place) for _ in range(2)]
    for question in questions:
        assert question is not None
        router.learn(question, 200, body)


def test_a_hundred_threads_that_know_nothing_ask_two_questions() -> None:
    """One for the table and one for the routes, whoever comes first; the others ask a home meanwhile."""
    router, place = Router([HOME], finds=True), Place("shop", "items", (number_in(0),))
    begin = threading.Barrier(100)

    def ask(_: int) -> Question | None:
        begin.wait(60)
        return router.question(place)

    with ThreadPoolExecutor(100) as threads:
        for expected in (["/v1/descriptions/shop/items", "/v1/routes/shop"], []):
            asked = [each.request.path for each in threads.map(ask, range(100)) if each is not None]
            assert sorted(asked) == expected
            assert router.order(place) == [HOME]


def test_a_node_that_was_away_is_tried_again() -> None:
    """After a moment, by one request."""
    now = [100.0]
    fronts = Fronts(route(0, "n0"))
    with FreshetClient(HOME, transport=httpx2.MockTransport(fronts), route=True) as client:
        client._router = Router([HOME], finds=True, clock=lambda: now[0])
        fronts.down = {"n0"}
        client.get_row("shop", "items", number_in(0))
        fronts.down = set()
        client.get_row("shop", "items", number_in(0))
        now[0] += AWAY_S
        client.get_row("shop", "items", number_in(0))
    assert fronts.of_rows() == ["n0", "home", "home", "n0"]


def test_a_node_without_tls_is_not_shown_the_token_of_a_client_that_uses_tls() -> None:
    """Whoever announces http:// to clients of https:// is not asked."""
    fronts = Fronts(route(0, "n0"))
    read("blocking", fronts, number_in(0), homes="https://home", route=True)
    assert fronts.of_rows() == ["home"]


@given(
    st.sampled_from([Layout(1), Layout(7), Layout(4, buckets=0), Layout(6, buckets=64)]),
    st.integers(0, 2),
    st.lists(st.one_of(st.integers(-(1 << 63), 1 << 64), st.text(), st.binary()), min_size=2, max_size=3),
)
def test_the_client_and_the_fronts_put_a_key_into_the_same_partition(
    layout: Layout, prefix: int, values: list[int | str | bytes]
) -> None:
    """The rule is written twice, since the client has no room of ours: it must be one."""
    from base64 import b64encode

    kinds = tuple({int: "int", str: "text", bytes: "binary"}[type(value)] for value in values)
    canonical = [{"base64": b64encode(each).decode()} if isinstance(each, bytes) else each for each in values]
    sharing = sharing_of(str(layout))
    assert sharing is not None
    try:
        expected = layout.partition_of(row_key("shop.items", canonical), prefix)
    except ValueError:
        return
    assert partition_of(sharing, KeyColumns("shop.items", kinds, prefix), values) == expected


def test_what_a_client_cannot_place_it_asks_any_front_for() -> None:
    """Another kind of value, another number of columns, a layout of a later version."""
    key = KeyColumns("shop.items", ("decimal",), 0)
    assert partition_of(Sharing(4, 4096), key, ["7"]) is None
    assert partition_of(Sharing(4, 4096), KeyColumns("shop.items", ("int",), 0), ["7"]) is None
    assert partition_of(Sharing(4, 4096), KeyColumns("shop.items", ("int", "int"), 0), [7]) is None
    assert sharing_of("other;partitions=4") is None
    assert sharing_of("xxh3_64;partitions=4;prefix=shop.a:1") is None
    assert sharing_of("xxh3_64;buckets=4096;partitions=4;x-later=1") == Sharing(4, 4096)


def test_a_front_that_stays_away_is_tried_by_one_request_now_and_then() -> None:
    """A try may cost all of a request's patience: after the second failure, too, others are spared it."""
    now, homes = [100.0], [HOME, "http://second"]
    fronts = Fronts()
    fronts.down = {"home"}
    with FreshetClient(homes, transport=httpx2.MockTransport(fronts)) as client:
        client._router = Router(homes, clock=lambda: now[0])
        for _ in range(3):
            for _ in range(2):
                client.get_row("shop", "items", 1)
            now[0] += AWAY_S
    assert fronts.of_rows() == ["home", "second", "second"] * 3


@BOTH
def test_a_home_that_answers_no_question_is_asked_last_from_then_on(kind: str) -> None:
    """The request itself, and the next question, would wait for it once more each."""
    fronts = Fronts(route(0, "n0"))
    fronts.down = {"home"}
    read(kind, fronts, number_in(0), homes=[HOME, "http://second"], route=True)
    assert [name for name, _ in fronts.asked].count("home") == 1


class Interrupted(Fronts):
    """Fronts whose first caller leaves while he asks for routes."""

    is_left = False

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        answer = super().__call__(request)
        if request.url.path.startswith("/v1/routes/") and not self.is_left:
            self.is_left = True
            raise asyncio.CancelledError
        return answer


@BOTH
def test_routes_whose_question_was_cut_off_are_asked_for_again(kind: str) -> None:
    """Else no caller of this client would ever learn them, and each read would go a step further."""
    now, fronts = [100.0], Interrupted(route(0, "n0"))
    router = Router([HOME], finds=True, clock=lambda: now[0])
    options: Any = {"transport": httpx2.MockTransport(fronts), "route": True}

    async def get_row(client: Any) -> None:
        client._router = router
        found = client.get_row("shop", "items", number_in(0))
        if kind == "asyncio":
            await found

    async def story() -> None:
        async with AsyncClient(HOME, **options) as asynchronous:
            with FreshetClient(HOME, **options) as blocking:
                client = asynchronous if kind == "asyncio" else blocking
                with pytest.raises(asyncio.CancelledError):
                    await get_row(client)
                now[0] += 2 * ROUTES_S
                await get_row(client)

    asyncio.run(story())
    assert fronts.of_rows() == ["n0"]
