"""The client's session against a scripted front: what it sends, what it keeps, what it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import msgspec
import pytest

from serving.client import (
    AsyncSession,
    BadRequest,
    ClientError,
    HistoryLost,
    NotFoundError,
    ServerError,
    Session,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from serving.client.aio import AsyncClient
from serving.client.answers import ObjectsAnswer, RangeAnswer, RowAnswer, RowBatchAnswer, TableAnswer
from serving.client.client import FreshetClient
from serving.client.privileges.answers import PrivilegesAnswer, RoleGrantsAnswer, RolesAnswer
from serving.client.tracked import TrackedConnection
from serving.client.wire import HttpRequest, read_epochs
from serving.http.limits import RequestLimits
from serving.http.responses import read_response
from tests.serving.scripted_front import Front, problem, row, vector
from tokens import Vector


def test_a_session_demands_all_that_it_has_seen() -> None:
    """Monotonic reads: each request carries the join of all earlier answers."""
    front = Front(row(vector(shop="1 0-1-5")), row(vector(shop="1 0-1-3", bank="1 0-2-9")), row(vector()))
    session = Session(front, Vector())
    for _ in range(3):
        session.get_row("shop", "shop.orders", 7)
    sent = [Vector.parse(request.params["token"]) for request in front.requests]
    assert sent == [vector(), vector(shop="1 0-1-5"), vector(shop="1 0-1-5", bank="1 0-2-9")]


def test_an_own_write_is_in_the_next_demand() -> None:
    """Read your own writes: an observed commit goes into the token under the shard's known epoch."""
    front = Front(row(vector(shop="3 0-1-5")))
    session = Session(front, vector(shop="3 0-1-4"))
    session.observe("shop/0", "MariaDB/0-1-6")
    session.get_row("shop", "shop.orders", 7)
    assert Vector.parse(front.requests[0].params["token"]) == vector(shop="3 0-1-6")
    assert session.vector == vector(shop="3 0-1-6")


def test_an_own_write_is_never_placed_in_an_epoch_that_the_session_knows_to_be_over() -> None:
    """A front that is behind names an older one. In that epoch the write would be lost, as all else in it."""
    located = msgspec.json.encode({"token": str(vector(shop="2 0-1-1"))})
    front = Front((200, located), row(vector(shop="3 0-1-5")))
    session = Session(front, Vector())
    session.observe("shop/0", "MariaDB/0-1-5")
    session.adopt(str(vector(shop="3 0-1-4")))
    session.get_row("shop", "shop.orders", 7)
    assert Vector.parse(front.requests[1].params["token"]) == vector(shop="3 0-1-5")


def test_the_epoch_of_an_own_write_is_requested_once() -> None:
    """A session that has read nothing yet requests the shard's epoch once, before its first demand."""
    located = msgspec.json.encode({"token": str(vector(shop="2 0-1-1"))})
    front = Front((200, located), row(vector(shop="2 0-1-6")), row(vector(shop="2 0-1-6")))
    session = Session(front, Vector())
    session.observe("shop/0", "MariaDB/0-1-5")
    session.observe("shop/0", "MariaDB/0-1-6")
    session.get_row("shop", "shop.orders", 7)
    session.get_row("shop", "shop.orders", 7)
    assert front.requests[0].path == "/v1/locations/shop/0"
    assert Vector.parse(front.requests[1].params["token"]) == vector(shop="2 0-1-6")
    assert len(front.requests) == 3


def test_a_write_to_an_unknown_shard_makes_reads_fail() -> None:
    """A misspelled shard is an error at the next read, not a read that misses the write."""
    located = msgspec.json.encode({"token": str(vector(shop="2 0-1-1"))})
    session = Session(Front((200, located)), Vector())
    session.observe("shop/1", "MariaDB/0-1-5")
    with pytest.raises(ServerError, match="shop/1") as caught:
        session.get_row("shop", "shop.orders", 7)
    assert caught.value.code == "unknown_shard"


def test_absence_is_an_answer_with_a_token() -> None:
    """404 ``not_found`` with the fields of an answer is a `Row` with ``found`` false."""
    session = Session(Front(row(vector(shop="1 0-1-5"), None)), Vector())
    found = session.get_row("shop", "shop.orders", 7)
    assert (found.found, found.value, found.freshness) == (False, None, "fresh")
    assert session.vector == vector(shop="1 0-1-5")


def test_lost_history_is_raised_once_and_adopted() -> None:
    """After `HistoryLost` the session continues with the new token, which need not cover the old one."""
    front = Front(problem("history_lost", str(vector(shop="2 0-1-3"))), row(vector(shop="2 0-1-3")))
    session = Session(front, vector(shop="1 0-1-9"))
    with pytest.raises(HistoryLost) as caught:
        session.get_row("shop", "shop.orders", 7)
    assert (caught.value.code, caught.value.status, str(caught.value)) == ("history_lost", 409, "because")
    session.get_row("shop", "shop.orders", 7)
    assert Vector.parse(front.requests[1].params["token"]) == vector(shop="2 0-1-3")


@pytest.mark.parametrize("batch", [False, True])
def test_what_is_seen_while_history_is_lost_elsewhere_stays_seen(batch: bool) -> None:
    """Only the lost shard is replaced, so another thread's write in the meantime stays in the demand."""
    lost = str(vector(shop="2 0-1-3", bank="1 0-2-4"))

    def front(request: HttpRequest) -> tuple[int, bytes]:  # noqa: ARG001 - one answer to all
        session.observe("bank/0", "MariaDB/0-2-9")
        if not batch:
            return problem("history_lost", lost)
        rows = [msgspec.Raw(problem("history_lost", lost)[1])]
        token = str(vector(bank="1 0-2-4"))
        return 200, msgspec.json.encode(RowBatchAnswer("source", "unknown", "why", token, rows))

    session = Session(front, vector(shop="1 0-1-9", bank="1 0-2-4"))
    with pytest.raises(HistoryLost):
        session.get_rows("shop", [("shop.orders", [7])]) if batch else session.get_row("shop", "shop.orders", 7)
    assert session.vector == vector(shop="2 0-1-3", bank="1 0-2-9")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("bad_key", BadRequest),
        ("unauthorized", Unauthorized),
        ("unknown_table", NotFoundError),
        ("too_many_requests", TooManyRequests),
        ("source_behind", Unavailable),
        ("internal", ServerError),
    ],
)
def test_errors_are_typed_and_keep_code_and_hint(code: str, kind: type[Exception]) -> None:
    """Each error has the type of its status and keeps its code."""
    with pytest.raises(kind) as caught:
        Session(Front(problem(code)), Vector()).get_row("shop", "shop.orders", 7)
    assert caught.value.code == code  # type: ignore[attr-defined]


@pytest.mark.parametrize(("status", "kind"), [(500, ServerError), (502, Unavailable)])
def test_a_response_of_another_server_is_a_clear_error(status: int, kind: type[ClientError]) -> None:
    """Not a decoder's error. What a proxy says while it has no front can be tried again."""
    with pytest.raises(kind, match="is not Freshet's") as caught:
        Session(Front((status, b"<html>")), Vector()).get_row("shop", "shop.orders", 7)
    assert type(caught.value) is kind
    assert (caught.value.code, caught.value.status) == ("bad_answer", status)


@pytest.mark.parametrize("image", [b'{"id":7,"name":"\xc3\xbc"}', None])
def test_an_answer_carries_the_image_as_it_is(image: bytes | None) -> None:
    """The image is embedded byte for byte, and the whole decodes to the described type."""
    why = 'a "quoted" reason'
    answer = RowAnswer("source", "stale", why, "v1.x", image is not None, msgspec.Raw(image or b"null"), "t", False)
    status, body, *_ = read_response(answer)
    found = msgspec.json.decode(body, type=RowAnswer[msgspec.Raw], strict=True)
    assert (found.served_from, found.freshness, found.why, found.token) == ("source", "stale", why, "v1.x")
    assert (image or b"null") in body
    assert bytes(found.value) == (image or b"null")
    assert (found.found, found.event_token, found.fresher) == (image is not None, "t", False)
    assert status == (200 if image else 404)


def test_a_batch_moves_the_session_to_its_token() -> None:
    """After a batch the session has seen what the whole batch holds, also where an element carries less."""
    rows = [msgspec.Raw(row(vector(shop="1 0-1-5"))[1])]
    token = vector(shop="1 0-1-7", bank="1 0-2-9")
    front = Front((200, msgspec.json.encode(RowBatchAnswer("source", "fresh", "why", str(token), rows))))
    session = Session(front, vector(till="1 0-3-1"))
    assert [found.value for found in session.get_rows("shop", [("shop.orders", [7])])] == [{"id": 7}]
    assert session.vector == vector(till="1 0-3-1", shop="1 0-1-7", bank="1 0-2-9")


_OBJECTS = ObjectsAnswer[object]("cache", "fresh", "why", str(vector(hive="1 0-1-7")), [], [], 0)
_PAGE = RangeAnswer[object]("cache", "fresh", "why", str(vector(hive="1 0-1-7")), [], count=0)
_TABLE = TableAnswer("cache", "fresh", "why", str(vector(hive="1 0-1-7")), True, 7, None, msgspec.Raw(b"{}"))
_ROLES = RolesAnswer("source", "eventual", "why", str(vector(hive="1 0-1-7")), ["admin"])
_GRANTS = RoleGrantsAnswer("source", "eventual", "why", str(vector(hive="1 0-1-7")), [])
_PRIVILEGES = PrivilegesAnswer("source", "eventual", "why", str(vector(hive="1 0-1-7")), [])
_READS: list[tuple[object, Callable[[Session], object]]] = [
    (_TABLE, lambda session: session.get_table("s", "t")),
    (_OBJECTS, lambda session: session.get_partitions("s", "t")),
    (_OBJECTS, lambda session: session.get_statistics("s", "t")),
    (_OBJECTS, lambda session: session.get_constraints("s", "t")),
    (_OBJECTS, Session.get_databases),
    (_OBJECTS, lambda session: session.get_functions("s")),
    (_ROLES, Session.get_roles),
    (_GRANTS, lambda session: session.get_role_principals("admin")),
    (_GRANTS, lambda session: session.get_roles_of("ada")),
    (_PRIVILEGES, lambda session: session.get_privileges("ada")),
    (_PRIVILEGES, lambda session: session.get_privilege_set("ada")),
    (_PAGE, lambda session: session.find("shop", "t")),
    (_PAGE, lambda session: session.count("shop", "t")),
    (_PAGE, lambda session: session.exists("shop", "t")),
]


@pytest.mark.parametrize(("answer", "read"), _READS)
def test_every_kind_of_answer_moves_the_session(answer: object, read: Callable[[Session], object]) -> None:
    """Tables, what belongs to them or to none, privileges, and ranges of rows: the next read is at least as new."""
    session = Session(Front((200, msgspec.json.encode(answer))), vector(till="1 0-3-1"))
    read(session)
    assert session.vector == vector(till="1 0-3-1", hive="1 0-1-7")


def test_a_front_that_can_not_count_is_told_from_an_empty_table() -> None:
    """One of before counts answers with rows: no number is made up."""
    answer = RangeAnswer[object]("cache", "fresh", "why", str(vector(shop="1 0-1-7")), [])
    session = Session(Front((200, msgspec.json.encode(answer))), vector(shop="1 0-1-1"))
    with pytest.raises(ServerError, match="no count"):
        session.count("shop", "t")


def test_a_table_request_carries_all_that_was_given() -> None:
    """Catalog, list, id, wait and token are sent, and slashes in names stay in the names."""
    answer = TableAnswer("cache", "fresh", "why", str(vector(hive="1 0-1-5")), True, 7, None, msgspec.Raw(b"{}"))
    front = Front(read_response(answer)[:2])
    session = Session(front, vector(hive="1 0-1-4"))
    session.get_table("d/b", "t/1", "d/b.t/1:5:::", 7, catalog="lake", max_wait_ms=250)
    [request] = front.requests
    assert (request.method, request.path) == ("GET", "/v1/tables/d%2Fb/t%2F1")
    assert request.params == {
        "catalog": "lake",
        "token": str(vector(hive="1 0-1-4")),
        "max_wait_ms": "250",
        "valid_write_ids": "d/b.t/1:5:::",
        "table_id": "7",
    }
    assert session.vector == vector(hive="1 0-1-5")


@pytest.mark.parametrize("known", [True, False])
def test_all_positions_of_a_shard_are_joined(known: bool) -> None:
    """Commits observed in any order are all in the token, before and after the shard's epoch is known."""
    located = (200, msgspec.json.encode({"token": str(vector(shop="2 0-1-1"))}))
    session = Session(Front(located), vector(shop="2 0-1-1") if known else Vector())
    for gtid in ("0-1-8", "1-1-3", "0-1-6"):
        session.observe("shop/0", f"MariaDB/{gtid}")
    assert session.token == str(vector(shop="2 0-1-8,1-1-3"))


class UnsettledConnection:
    """A wrapped connection that learns the GTID of its commit only when it is asked to settle."""

    is_done = False

    def __init__(self, gtid: str, observe: Callable[[str], None], _: object) -> None:
        self._gtid, self._observe = gtid, observe

    def require_settled(self) -> None:
        self._observe(self._gtid)


def test_every_wrapped_connection_is_settled_before_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commits of all connections that the session wraps are in its token."""
    monkeypatch.setattr("serving.client.client.TrackedConnection", UnsettledConnection)
    monkeypatch.setattr("serving.client.client.is_mysql", lambda _: False)
    session = Session(Front(), vector(shop="1 0-1-1", bank="1 0-2-1"))
    session.wrap("0-1-8", "shop/0")
    session.wrap("0-2-9", "bank/0")
    assert session.token == str(vector(shop="1 0-1-8", bank="1 0-2-9"))


def test_a_closed_connection_is_forgotten_with_the_next_one() -> None:
    """A session that outlives many connections does not keep them, nor ask them before each read."""

    class Closed(TrackedConnection):
        is_done = True

        def require_settled(self) -> None:
            raise AssertionError("it is done")

    session = Session(Front(), Vector())
    for connection in (
        Closed(SimpleNamespace(_sock=None), print),
        TrackedConnection(SimpleNamespace(_sock=None), print),
    ):
        session._watch(connection, "shop/0")
    assert session.token == str(Vector())


@pytest.mark.parametrize("kind", [FreshetClient, AsyncClient])
def test_the_client_waits_longer_than_the_front(kind: type[FreshetClient | AsyncClient]) -> None:
    """A request outlasts a front's longest wait by default, with as much time again to read the source."""
    timeout = kind("http://front")._http.timeout
    limit_s = RequestLimits().wait_ms_max / 1000
    assert timeout.read is not None
    assert timeout.read > 2 * limit_s


class AsyncFront(Front):
    """`Front` for an asynchronous session; ``gate`` holds its answers back."""

    def __init__(self, *answers: tuple[int, bytes]) -> None:
        super().__init__(*answers)
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, request: HttpRequest) -> tuple[int, bytes]:
        answer = self(request)
        await self.gate.wait()
        return answer


def test_an_asynchronous_session_behaves_like_a_blocking_one() -> None:
    """From the same responses both sessions send the same requests, keep the same vector and raise the same errors."""
    located = (200, msgspec.json.encode({"token": str(vector(shop="2 0-1-3"))}))
    answers = (located, row(vector(shop="2 0-1-9")), problem("history_lost", str(vector(shop="3 0-1-2"))))

    async def story() -> tuple[list[HttpRequest], str]:
        front = AsyncFront(*answers)
        session = AsyncSession(front.ask, Vector())
        session.observe("shop/0", "MariaDB/0-1-8")
        assert (await session.get_row("shop", "shop.orders", 7, max_wait_ms=5)).found
        with pytest.raises(HistoryLost):
            await session.get_rows("shop", [("orders", (7,)), ("orders", (8,))])
        return front.requests, await session.token()

    front = Front(*answers)
    session = Session(front, Vector())
    session.observe("shop/0", "MariaDB/0-1-8")
    assert session.get_row("shop", "shop.orders", 7, max_wait_ms=5).found
    with pytest.raises(HistoryLost):
        session.get_rows("shop", [("orders", (7,)), ("orders", (8,))])
    assert asyncio.run(story()) == (front.requests, session.token)
    assert session.token == str(vector(shop="3 0-1-2"))


def test_a_write_observed_during_the_request_for_the_epoch_is_kept() -> None:
    """A commit observed while the epoch is requested goes into the vector."""

    async def story() -> None:
        located = (200, msgspec.json.encode({"token": str(vector(shop="2 0-1-3"))}))
        front = AsyncFront(located, located, row(Vector()))
        session = AsyncSession(front.ask, Vector())
        session.observe("shop/0", "MariaDB/0-1-8")
        front.gate.clear()
        readers = [asyncio.create_task(session.token()) for _ in range(2)]
        await asyncio.sleep(0)
        session.observe("shop/0", "MariaDB/0-1-11")
        front.gate.set()
        assert set(await asyncio.gather(*readers)) == {str(vector(shop="2 0-1-11"))}

    asyncio.run(story())


@pytest.mark.parametrize("wait_ms", [None, 0, 250])
def test_row_requests_carry_all_that_was_given(wait_ms: int | None) -> None:
    """One row or many: the wait, also one of 0, and what is asked about event tokens."""
    token = vector(shop="1 0-1-5")
    batch = (
        200,
        msgspec.json.encode(RowBatchAnswer("source", "fresh", "why", str(token), [msgspec.Raw(row(token)[1])])),
    )
    front = Front(row(token), row(token), batch)
    session = Session(front, token)
    waits = {} if wait_ms is None else {"max_wait_ms": str(wait_ms)}
    session.get_row("shop", "shop.orders", 7, max_wait_ms=wait_ms)
    session.get_row(
        "shop", "shop.orders", 7, max_wait_ms=wait_ms, include_event_token=True, compare_event_token="time=5"
    )
    session.get_rows("shop", [("shop.orders", [7])], max_wait_ms=wait_ms)
    plain, compared, many = front.requests
    assert plain.params == {"token": str(token), **waits}
    asked = {"include_event_token": "true", "compare_event_token": "time=5"}
    assert compared.params == {"token": str(token), **waits, **asked}
    sent = {**many.params, **msgspec.json.decode(many.body or b"{}")}
    assert ("max_wait_ms" in sent) is (wait_ms is not None)
    assert str(sent.get("max_wait_ms")) == str(wait_ms)
    assert sent["token"] == str(token)


def test_a_404_of_another_server_is_no_absence() -> None:
    """Only Freshet's own answer says that there is no row: a wrong path or proxy says nothing of rows."""
    for body in (b"<html>", b"[]", b'{"error":"no such page"}', b"[" * 100_000):
        with pytest.raises(ClientError, match="HTTP status 404 is not Freshet's") as caught:
            Session(Front((404, body)), Vector()).get_row("shop", "shop.orders", 7)
        assert caught.value.code == "bad_answer"


def test_a_lost_history_without_a_token_leaves_the_session_as_it_is() -> None:
    """There is nothing to continue with: the application decides."""
    session = Session(Front(problem("history_lost")), vector(shop="1 0-1-9"))
    with pytest.raises(HistoryLost) as caught:
        session.get_row("shop", "shop.orders", 7)
    assert caught.value.token == ""
    assert session.vector == vector(shop="1 0-1-9")


@pytest.mark.parametrize("left", [vector(), vector(bank="1 0-2-9"), vector(bank="1 0-2-9", shop="2 0-1-3")])
def test_a_shard_that_the_new_token_leaves_out_is_forgotten(left: Vector) -> None:
    """A renamed shard has no new history: a session that kept it would get the same error for ever."""
    session = Session(Front(problem("history_lost", str(left))), vector(shop="1 0-1-9", bank="1 0-2-4"))
    with pytest.raises(HistoryLost):
        session.get_row("shop", "shop.orders", 7)
    assert session.vector == left


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"served_from":', b'{"served_from":"cache"}', b'{"rows":[1]}', b"[" * 9_999]
)
def test_an_answer_that_cannot_be_read_is_the_servers_error(body: bytes) -> None:
    """Whichever request it answers, the application gets an error of the client with a hint, never a decoder's."""
    session = Session(Front(*[(200, body)] * 4), Vector())
    for read in (
        lambda: session.get_row("shop", "shop.orders", 7),
        lambda: session.get_rows("shop", [("shop.orders", [7])]),
        lambda: session.get_table("db", "t"),
        lambda: read_epochs(200, body),
    ):
        with pytest.raises(ServerError, match="is not Freshet's") as caught:
            read()
        assert caught.value.hint


@pytest.mark.parametrize("element", [b'{"served_from":"cache"}', b'{"code":1}', b"[]"])
def test_an_element_that_cannot_be_read_is_the_servers_error(element: bytes) -> None:
    """A batch has the rest of its elements, but no row may be passed over."""
    answer = RowBatchAnswer("cache", "fresh", "why", str(vector(shop="1 0-1-5")), [msgspec.Raw(element)])
    with pytest.raises(ServerError, match="is not Freshet's"):
        Session(Front((200, msgspec.json.encode(answer))), Vector()).get_rows("shop", [("shop.orders", [7])])


def test_two_threads_may_lose_the_same_shard() -> None:
    """The second one finds it gone already; it raises the same error and takes nothing else away."""
    lost = problem("history_lost", str(vector(bank="1 0-2-4")))
    answers = [lost, lost]

    def front(_: HttpRequest) -> tuple[int, bytes]:
        answer = answers.pop()
        if answers:
            with pytest.raises(HistoryLost):
                session.get_row("shop", "shop.orders", 8)
            session.observe("bank/0", "MariaDB/0-2-10")
        return answer

    session = Session(front, vector(shop="1 0-1-9", bank="1 0-2-4"))
    with pytest.raises(HistoryLost):
        session.get_row("shop", "shop.orders", 7)
    assert session.vector == vector(bank="1 0-2-10")
