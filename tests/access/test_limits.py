"""What one caller may take of a front: the pure core with time passed in, and the guard over real ASGI."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.types import Receive, Scope, Send

from freshet.sections.limits import LimitsSettings
from freshet.settings import load_settings
from serving.client.answers import ListsAnswer, ObjectsAnswer, RangeAnswer
from serving.errors import ReadError
from serving.http.admission.asked import asked_of
from serving.http.admission.callers import CALLERS_MAX, Callers, Kind
from serving.http.admission.connections import FILES_BESIDE, Connections, fitting
from serving.http.app import make_app
from serving.http.front import Front, make_front
from serving.http.guard import Guard
from serving.http.limits import REFUSAL_S, CallerLimits, ConnectionLimits, RequestLimits
from serving.http.query import RowBatchBody, TableBatchBody, row_batch, table_batch
from serving.http.route import body_of
from serving.locations.refreshing import Locations
from serving.metrics import FrontMetrics
from serving.reads.spaces import RowSpace, TableSpace
from stream.access.bucket import Bucket
from stream.access.grants import Access, Credential, Grant, digest_of
from stream.access.who import address_name, caller_name
from stream.wire.keys import Layout
from tests.serving.asking import ask_app, client_of
from tests.serving.fakes import FakeOwner, FakeRowSource, Network, seen
from tests.serving.test_guard import ask, code_of, hello, scope_of
from tokens import Position, Vector

READER = Grant("reader", frozenset({"read"}))
OTHER = Grant("other", frozenset({"read"}))
ACCESS = Access([Credential(each, digest_of(each.name.encode())) for each in (READER, OTHER)])


def refusal(callers: Callers, who: str, now: float, kind: Kind = "in_flight") -> ReadError | None:
    """Why a caller may not begin."""
    try:
        callers.enter(who, kind, now)
    except ReadError as error:
        return error
    return None


def test_a_bucket_gives_its_rate_and_no_more() -> None:
    """Over any time a caller gets what lies there and what came since, at whatever pace it asks."""
    bucket = Bucket(10, 20)
    taken = sum(bucket.take(step / 1000) for step in range(5_000))
    assert taken == 20 + 49  # five seconds, less the last token
    assert bucket.wait_s(5.0) == pytest.approx(0.0)
    assert Bucket(1).take(float(10**9))


def test_a_debt_is_waited_for() -> None:
    """What was owed must come back before anything else is given; a clock that stands still gives nothing."""
    bucket = Bucket(10, 20)
    bucket.owe(0.0, 120)
    assert bucket.wait_s(0.0) == pytest.approx(10.1)
    assert not bucket.take(10.0)
    assert not bucket.take(0.0)
    assert bucket.take(10.2)


def test_what_costs_more_than_a_full_bucket_needs_a_full_one() -> None:
    """A batch larger than the burst is not refused for ever, and is paid in full."""
    bucket = Bucket(10, 20)
    assert bucket.take(0.0, 100)
    assert bucket.wait_s(0.0, 100) == pytest.approx(10.0)
    assert not bucket.take(9.9, 100)
    assert bucket.take(10.1, 100)


def test_a_request_and_its_elements_are_one_cost() -> None:
    """A batch larger than the burst waits for a full bucket, though it has paid 1 before its elements are counted."""
    callers = Callers(CallerLimits(rate_per_s=10, burst=20))
    assert refusal(callers, "a", 0.0) is None
    callers.pay_more("a", 99, 0.001)
    with pytest.raises(ReadError) as refused:
        callers.pay_more("a", 1, 8.05)
    assert refused.value.code == "rate_limited"
    assert [refusal(callers, "a", 8.25) is None for _ in range(3)] == [True, True, False]  # nothing was given away


def test_a_rate_is_of_each_caller_and_says_when_to_come_again() -> None:
    """One who asks too much is told how long to wait; others are not concerned."""
    callers = Callers(CallerLimits(rate_per_s=0.5, burst=2))
    assert [refusal(callers, "a", 0.0) for _ in range(2)] == [None, None]
    refused = refusal(callers, "a", 0.0)
    assert refused is not None
    assert (refused.code, refused.status, refused.retry_after_s) == ("rate_limited", 429, 2)
    assert refusal(callers, "b", 0.0) is None
    assert refusal(callers, "a", 2.0) is None


@pytest.mark.parametrize(
    ("kind", "code"),
    [("in_flight", "too_many_requests"), ("streams", "too_many_streams"), ("files", "too_many_requests")],
)
def test_one_caller_leaves_room_for_others(kind: Kind, code: str) -> None:
    """A caller has its share of requests, streams and files at a time, each for itself, and gets a place back."""
    callers = Callers(CallerLimits(in_flight=2, streams=2, files=2))
    assert [refusal(callers, "a", 0.0, kind) for _ in range(2)] == [None, None]
    refused = refusal(callers, "a", 0.0, kind)
    assert refused is not None
    assert refused.code == code
    assert refusal(callers, "b", 0.0, kind) is None
    callers.leave("a", kind)
    assert refusal(callers, "a", 0.0, kind) is None


def test_by_default_a_caller_has_half() -> None:
    """A lone caller can't take all places, and the settings have the same numbers as the code."""
    every, mine, settings = RequestLimits(), CallerLimits(), LimitsSettings()
    assert mine.in_flight * 2 == every.in_flight_max == settings.in_flight
    assert settings.of_caller == mine
    given = LimitsSettings(rate_per_s=1, burst=2, in_flight_of_caller=3, streams_of_caller=4, files_of_caller=5)
    assert given.of_caller == CallerLimits(1.0, 2.0, in_flight=3, streams=4, files=5)
    assert settings.request_timeout_s == every.request_s_max
    assert settings.of_connections == ConnectionLimits()
    assert ConnectionLimits().of_address * 2 == ConnectionLimits().all


@pytest.mark.parametrize(
    ("given", "in_flight", "files", "connections"),
    [
        ({"in_flight": 200, "connections": 100}, 100, 32, 50),
        ({"in_flight": 40, "connections": 9}, 20, 10, 4),
        ({"in_flight": 1, "connections": 1}, 1, 1, 1),
        ({"in_flight": 4_000, "connections": 20_000}, 256, 32, 4_096),
        ({"in_flight": 40, "in_flight_of_caller": 30, "files_of_caller": 31}, 30, 31, 4_096),
        ({"connections": 100, "connections_of_address": 90}, 256, 32, 90),
        ({"in_flight": 256, "in_flight_of_caller": 256}, 256, 32, 4_096),
        ({"in_flight": 40, "files_of_caller": 32}, 20, 32, 4_096),
        ({"connections": 4_096, "connections_of_address": 4_096}, 256, 32, 4_096),
    ],
)
def test_of_fewer_places_a_caller_has_half(
    given: dict[str, Any], in_flight: int, files: int, connections: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who lowers only what there is for all leaves none to one caller. Any number that is set counts."""
    monkeypatch.chdir(tmp_path)
    limits = load_settings(flags={"serve": {"limits": given}}).serve.limits
    assert (limits.of_caller.in_flight, limits.of_caller.files) == (in_flight, files)
    assert limits.of_connections == ConnectionLimits(given.get("connections", 8_192), connections)


def test_what_is_refused_by_the_rate_is_not_under_way() -> None:
    """Nobody ends it: each refusal would take a place for good, until the caller is refused whatever it waits."""
    callers = Callers(CallerLimits(rate_per_s=1, burst=1, in_flight=1))
    assert refusal(callers, "reader", 0.0) is None
    callers.leave("reader", "in_flight")
    refused = refusal(callers, "reader", 0.5)
    assert refused is not None
    assert refused.code == "rate_limited"
    assert refusal(callers, "reader", 9.0) is None


def test_callers_without_number_take_no_memory_without_bound() -> None:
    """Addresses cost a caller nothing: the idle ones are forgotten, who has something under way is not."""
    kinds: tuple[Kind, ...] = ("in_flight", "streams", "files")
    callers = Callers(CallerLimits(rate_per_s=1, in_flight=1, streams=1, files=1))
    for kind in kinds:
        callers.enter(kind, kind, 0.0)
    for number in range(2 * CALLERS_MAX):
        callers.enter(str(number), "in_flight", number / 1000)
        callers.leave(str(number), "in_flight")
    assert len(callers._callers) <= CALLERS_MAX
    for kind in kinds:
        assert refusal(callers, kind, 100.0, kind) is not None
        callers.leave(kind, kind)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("a socket: of a kind", "a socket: of another", False),
    ],
)
def test_an_address_is_one_caller(one: str, other: str, same: bool) -> None:
    """A host with a network of IPv6 addresses is one caller, and so is one seen by both families."""
    assert (address_name(one) == address_name(other)) is same


def test_a_token_is_one_caller_wherever_it_comes_from() -> None:
    """A name of a token can't be mistaken for an address."""
    assert caller_name(READER, "10.0.0.1") == caller_name(READER, "10.0.0.2") != address_name("reader")


def test_connections_of_an_address_leave_room_for_others() -> None:
    """Half of the places is not one address's; what ends makes room, and leaves nothing behind."""
    held = Connections(ConnectionLimits(all=4, of_address=2))
    assert [held.enter("10.0.0.1") for _ in range(3)] == [True, True, False]
    assert [held.enter(f"10.0.0.{last}") for last in (2, 3, 4)] == [True, True, False]
    held.leave("10.0.0.1")
    assert held.enter("10.0.0.4")
    for address in ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"):
        held.leave(address)
    assert (held._all, held._addresses) == (0, {})


def test_connections_fit_the_files_that_the_process_may_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A front keeps open files for its owners and its source, however many connections come."""
    raised: list[Any] = []
    monkeypatch.setattr("resource.getrlimit", lambda _: (256, FILES_BESIDE + 100))
    monkeypatch.setattr("resource.setrlimit", lambda _, limits: raised.append(limits))
    assert fitting(ConnectionLimits()) == ConnectionLimits(100, 50)
    assert raised == [(FILES_BESIDE + 100, FILES_BESIDE + 100)]
    assert fitting(ConnectionLimits(80, 60)) == ConnectionLimits(80, 60)
    assert fitting(ConnectionLimits(), beside=40) == ConnectionLimits(60, 30)


def bearer(name: str) -> dict[str, Any]:
    """A request's scope with a token."""
    return scope_of(headers=[(b"authorization", b"Bearer " + name.encode())])


def test_requests_of_one_token_at_a_time() -> None:
    """The guard refuses one more of the same token, answers those of another, and forgets what ended, in any way."""

    async def story() -> None:
        gate = asyncio.Event()

        async def slow(scope: Scope, receive: Receive, send: Send) -> None:
            await gate.wait()
            if scope["path"].endswith("bad"):
                raise ZeroDivisionError
            await hello(scope, receive, send)

        metrics, limits = FrontMetrics(), CallerLimits(in_flight=2)
        app = Guard(slow, access=ACCESS, limits=RequestLimits(), metrics=metrics, callers=limits)
        bad = bearer("reader") | {"path": "/v1/bad"}
        under_way = [asyncio.create_task(ask(app, each)) for each in (bearer("reader"), bad)]
        await asyncio.sleep(0)
        status, body = await ask(app, bearer("reader"))
        assert (status, code_of(body)) == (429, "too_many_requests")
        other = asyncio.create_task(ask(app, bearer("other")))
        await asyncio.sleep(0)
        gate.set()
        assert [found[0] for found in await asyncio.gather(*under_way, other)] == [200, 500, 200]
        assert [(await ask(app, bearer("reader")))[0] for _ in range(4)] == [200] * 4

    asyncio.run(story())


def test_a_wrong_token_spends_what_its_address_has() -> None:
    """Guessing is slow, and does not take from a token that is used from the same address."""

    async def story() -> None:
        app = Guard(
            hello,
            access=ACCESS,
            limits=RequestLimits(),
            metrics=FrontMetrics(),
            callers=CallerLimits(rate_per_s=0.001, burst=2),
        )
        here = {"client": ("10.0.0.1", 5)}
        assert [(await ask(app, bearer("wrong") | here))[0] for _ in range(3)] == [401, 401, 429]
        assert (await ask(app, bearer("reader") | here))[0] == 200
        assert (await ask(app, bearer("wrong") | {"client": ("10.0.0.2", 5)}))[0] == 401

    asyncio.run(story())


def test_a_request_that_takes_too_long_ends() -> None:
    """A request has a time, also if the source or an owner hangs; a time-out within it is no end of it."""

    async def hangs(_: Scope, __: Receive, ___: Send) -> None:
        await asyncio.Event().wait()

    async def fails(_: Scope, __: Receive, ___: Send) -> None:
        raise TimeoutError

    limits = RequestLimits(request_s_max=0.01)
    for app, expected in ((hangs, (503, "timed_out")), (fails, (500, "internal"))):
        guard = Guard(app, access=Access(), limits=limits, metrics=FrontMetrics())
        status, body = asyncio.run(ask(guard, scope_of()))
        assert (status, code_of(body)) == expected


def front(monkeypatch: pytest.MonkeyPatch, rate: float, burst: float) -> Front:
    """Of one keyspace whose owner has no row, so that its source answers."""
    owner = FakeOwner(watermarks=seen("shop/0", "0-1-9"))
    Network(monkeypatch, {"a:1": owner})
    space = RowSpace("shop", Layout(1), "shop", FakeRowSource(b'{"id":7}', "0-1-9"))
    limits = CallerLimits(rate_per_s=rate, burst=burst)
    return make_front([space], Locations(fixed={("shop", 0): "a:1"}), callers=limits)


def test_a_batch_costs_as_much_as_its_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand keys are not one request; what can't be paid is refused before anything is asked."""
    app = make_app(front(monkeypatch, 0.001, 10))
    keys = [{"table": "items", "pk": number} for number in range(9)]

    async def story() -> list[Any]:
        async with client_of(app) as client:
            return [await client.post("/v1/rows/shop:batch", json={"keys": keys}) for _ in range(2)]

    first, second = asyncio.run(story())
    assert first.status_code == 200
    assert (second.status_code, second.json()["code"]) == (429, "rate_limited")
    assert int(second.headers["retry-after"]) > 5_000


def test_a_batch_with_a_token_of_many_shards_is_short() -> None:
    """Each of its answers has such a token: a thousand of them would be a hundred times the request, and its work."""
    token = str(Vector({f"shop/{number}": (1, Position.parse("HiveEvent/1")) for number in range(1_000)}))

    def batch(keys: int, tables: int, token: str) -> None:
        rows = {"keys": [{"table": "t", "pk": 1}] * keys, "token": token}
        row_batch(body_of(RowBatchBody, json.dumps(rows).encode()), RequestLimits(), 0)
        named = {"tables": [{"db": "d", "table": "t"}] * tables, "token": token}
        table_batch(body_of(TableBatchBody, json.dumps(named).encode()), RequestLimits(), 0)

    batch(100, 100, token)
    batch(1_000, 1_000, "")
    for keys, tables in ((101, 1), (1, 101)):
        with pytest.raises(ReadError, match="101 in one batch with a token of 1000 shards, at most 100") as refused:
            batch(keys, tables, token)
        assert refused.value.code == "too_many_keys"


@pytest.mark.parametrize("elements", [0, 9], ids=["before its body is read", "by its elements"])
def test_a_refusal_by_the_rate_takes_its_time(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """So who honours none costs others little: to read and refuse a body takes longer than many answers."""
    app = make_app(front(monkeypatch, 0.001, 1 + elements))
    keys = [{"table": "items", "pk": number} for number in range(max(elements, 1))]

    async def story() -> float:
        loop = asyncio.get_running_loop()
        async with client_of(app) as client:
            assert (await client.post("/v1/rows/shop:batch", json={"keys": keys})).status_code == 200
            began = loop.time()
            assert (await client.post("/v1/rows/shop:batch", json={"keys": keys})).status_code == 429
            return loop.time() - began

    assert asyncio.run(story()) > 0.9 * REFUSAL_S


def test_what_the_source_was_asked_for_is_paid_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that reads past the cache again and again is soon refused; one whose rows are cached is not."""
    app = make_app(front(monkeypatch, 0.001, 25))

    async def story(path: str) -> list[int]:
        async with client_of(app) as client:
            return [(await client.get(path)).status_code for _ in range(6)]

    found = asyncio.run(story("/v1/rows/shop/items/7"))
    assert found == [found[0]] * 3 + [429] * 3  # three times ten is more than 25
    assert found[0] in (200, 404)
    assert asyncio.run(story("/v1/status"))[0] == 429  # the debt is the caller's, not the path's
    other = make_app(front(monkeypatch, 0.001, 25))
    answers = [ask_app(other, "GET", "/v1/descriptions/shop/items").status_code for _ in range(6)]
    assert answers == [200] * 6


def test_what_the_source_was_asked_for_in_vain_is_paid_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of the future costs the source a read, whatever the answer: alone, and as an element of a batch."""
    token = str(seen("shop/0", "0-1-99"))

    async def story(app: Any) -> list[int]:
        async with client_of(app) as client:
            alone = [await client.get("/v1/rows/shop/items/7", params={"token": token}) for _ in range(2)]
            assert alone[0].json()["code"] == "source_behind"
            batch = {"keys": [{"table": "items", "pk": 7}], "token": token}
            more = [await client.post("/v1/rows/shop:batch", json=batch) for _ in range(2)]
            return [each.status_code for each in (*alone, *more)]

    assert asyncio.run(story(make_app(front(monkeypatch, 0.001, 25)))) == [503, 503, 200, 429]


NAMES = [f"d.t{number}" for number in range(9)]
NAMING: dict[str, tuple[str, str, dict[str, Any]]] = {
    "tables": ("GET", "/v1/lists", {"params": {"tables": json.dumps(NAMES)}}),
    "tables in a body": ("POST", "/v1/lists", {"json": {"tables": NAMES}}),
    "partitions": ("GET", "/v1/tables/d/t/partitions", {"params": {"names": json.dumps([[each] for each in NAMES])}}),
    "groups": ("GET", "/v1/privileges", {"params": {"user": "ada", "groups": json.dumps(NAMES)}}),
}
LISTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a range": ("GET", "/v1/rows/shop/items", {}),
    "partitions by a filter": ("GET", "/v1/tables/d/t/partitions", {"params": {"filter": "a > 1"}}),
    "all partitions": ("GET", "/v1/tables/d/t/partitions", {}),
}


def spent(request: tuple[str, str, dict[str, Any]], burst: float, code: str = "") -> tuple[list[int], int]:
    """The statuses of a request that is made three times, and how often a source was asked, which fails with ``code``.

    Without one it answers at once, with nine of whatever it was asked for.
    """
    told = {"served_from": "source", "freshness": "eventual", "why": "", "token": ""}
    asked: list[object] = []

    def reads(answer: object) -> Any:
        async def read(*given: object) -> Any:
            asked.append(given)
            if code:
                raise ReadError(code, "in vain")
            return answer

        return SimpleNamespace(read=read, read_lists=read)

    front: Any = make_front(
        [RowSpace("shop", Layout(1), "shop"), TableSpace("hive", Layout(1))],
        Locations(fixed={("shop", 0): "a:1"}),
        callers=CallerLimits(rate_per_s=0.001, burst=burst),
    )
    front.tables = reads(ListsAnswer(**told, txns="", tables=[]))  # type: ignore[arg-type]
    found = [["1"]] * 9, [msgspec.Raw(b"{}")] * 9
    front.objects = reads(ObjectsAnswer(**told, names=found[0], objects=found[1], count=9))  # type: ignore[arg-type]
    front.privileges = reads((told, {}, []))
    front.ranges = reads(RangeAnswer(**told, rows=[msgspec.Raw(b"{}")] * 9))  # type: ignore[arg-type]
    app, (method, path, options) = make_app(front), request

    async def story() -> list[int]:
        async with client_of(app) as client:
            return [(await client.request(method, path, **options)).status_code for _ in range(3)]

    return asyncio.run(story()), len(asked)


@pytest.mark.parametrize("request_", [*NAMING.values(), *LISTS.values()], ids=[*NAMING, *LISTS])
def test_each_of_what_a_request_names_is_paid(
    request_: tuple[str, str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine names, rows or partitions that the source is asked for cost as nine reads past the cache."""
    monkeypatch.setattr("serving.http.guard.REFUSAL_S", 0.0)
    assert spent(request_, burst=100) == ([200, 200, 429], 2)  # 90 each: the second is owed


@pytest.mark.parametrize("request_", NAMING.values(), ids=[*NAMING])
def test_what_a_request_names_is_paid_before_anything_is_read(
    request_: tuple[str, str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand names are not one request; asked in vain they cost the source as much as those that it finds."""
    monkeypatch.setattr("serving.http.guard.REFUSAL_S", 0.0)
    assert spent(request_, burst=17, code="no_owner") == ([503, 429, 429], 1)
    assert spent(request_, burst=100, code="source_failed") == ([503, 503, 429], 2)


@pytest.mark.parametrize(
    ("path", "query", "told"),
    [
        ("/v1/rows/shop/users/me@example.org", b"token=x", ("GET /v1/rows", "shop")),
        ("/v1/rows/shop:batch", b"", ("GET /v1/rows", "shop")),
        ("/v1/stream", b"keyspace=bank", ("GET /v1/stream", "bank")),
        ("/v1/tables/db/t", b"catalog=hive", ("GET /v1/tables", "hive")),
        ("/v1/locations:refresh", b"", ("GET /v1/locations", "")),
        ("/v1/bytes/s3://lake/customers/me", b"", ("GET /v1/bytes", "")),
        ("/metrics", b"", ("GET /metrics", "")),
        ("/secret/path", b"", ("GET another path", "")),
    ],
)
def test_the_audit_is_told_no_keys(path: str, query: bytes, told: tuple[str, str]) -> None:
    """Of a path only what kind of thing it is and its keyspace; the rest is data."""
    assert asked_of(scope_of(path) | {"method": "GET", "query_string": query}) == told
