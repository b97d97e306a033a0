"""A catalog transaction of the client: one fetch past the cache, lists and ids with every read, a write id a table."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlencode

import pytest

from serving.client import AsyncSession, BadRequest, NotFoundError, Session
from serving.client.answers import ListsAnswer, TableList
from serving.client.transactions import with_own
from serving.client.wire import HttpRequest, HttpResponse
from tests.serving.scripted_front import problem
from tokens import Position, ValidWriteIdList, Vector

LISTS = {"d.t": (7, "d.t:11:7:7,8:"), "d.u": (8, "d.u:3:9223372036854775807::"), "d.outside": (9, None)}


class Front:
    """Answers a client, and keeps what it asked for."""

    def __init__(self) -> None:
        self.asked: list[HttpRequest] = []
        self.posts = True
        """Whether it takes POST of lists, as older ones do not."""
        self.logged = Vector()
        """What the metastore has logged."""

    def send(self, request: HttpRequest) -> HttpResponse:
        """Answers the lists of known tables, and a table for any other request."""
        self.asked.append(request)
        answer: dict[str, Any] = {"served_from": "source", "freshness": "fresh", "why": "", "token": ""}
        if request.body and not self.posts:
            return problem("method_not_allowed")
        if request.path == "/v1/lists":
            sent = json.loads(request.body) if request.body else request.params
            names = sent["tables"] if request.body else json.loads(sent["tables"])
            found = [(name, *LISTS.get(name, (0, None))) for name in names]
            answer["token"] = str(self.logged)
            answer["txns"] = sent.get("txns") or "20:9:9:"
            answer["tables"] = [{"name": name, "table_id": at, "write_ids": listed} for name, at, listed in found]
        elif request.path.startswith("/v1/tables/") and not request.path.endswith("/partitions"):
            answer |= {"found": True, "table_id": 7, "write_ids": None, "table": {}}
        else:
            answer |= {"names": [], "objects": [], "count": 0}
        return 200, json.dumps(answer).encode()

    async def send_later(self, request: HttpRequest) -> HttpResponse:
        """As `send`."""
        return self.send(request)

    def listed(self, number: int = -1) -> tuple[str | None, str | None]:
        """The list and the id of a request."""
        params = self.asked[number].params
        return params.get("valid_write_ids"), params.get("table_id")

    @property
    def fetches(self) -> list[dict[str, str]]:
        """The parameters of the calls past the cache."""
        return [each.params for each in self.asked if each.path == "/v1/lists"]


@pytest.fixture
def front() -> Front:
    """Where all requests end."""
    return Front()


@pytest.fixture
def session(front: Front) -> Session:
    """A session of that front."""
    return Session(front.send, Vector())


def test_lists_and_ids_are_fetched_once_and_go_with_every_read(front: Front, session: Session) -> None:
    """An engine that forgot one of them on one call would be refused, or answered for another table."""
    transaction = session.begin(["d.t", "d.u"], txn=20)
    transaction.get_table("D", "T")
    assert front.listed() == ("d.t:11:7:7,8:", "7")
    transaction.get_partitions("d", "u", filter="p = '1'")
    assert front.listed() == ("d.u:3:9223372036854775807::", "8")
    transaction.get_statistics("d", "t")
    assert front.listed() == ("d.t:11:7:7,8:", "7")
    transaction.get_constraints("d", "u")
    assert front.listed() == ("d.u:3:9223372036854775807::", "8")
    assert [(each["tables"], each["txn"]) for each in front.fetches] == [('["d.t","d.u"]', "20")]


@pytest.mark.parametrize(("count", "method"), [(10, "GET"), (1_000, "POST")])
def test_many_tables_do_not_make_a_long_url(front: Front, session: Session, count: int, method: str) -> None:
    """A front, or a proxy before it, would refuse it."""
    names = [f"d.{'t' * 60}{each}" for each in range(count)]
    session.begin(names, txn=20)
    [request] = front.asked
    sent = (
        json.loads(request.body) if request.body else {**request.params, "tables": json.loads(request.params["tables"])}
    )
    assert request.method == method
    assert (sent["tables"], int(sent["txn"]), sent["catalog"]) == (names, 20, "hive")
    assert len(urlencode(request.params)) < 4_000


def test_an_older_front_is_asked_by_a_long_url(front: Front, session: Session) -> None:
    """It answers POST with 405, and had always got a URL."""
    front.posts = False
    names = [f"d.{'t' * 60}{each}" for each in range(100)]
    session.begin(names, txn=20)
    assert [each.method for each in front.asked] == ["POST", "GET"]
    [_, sent] = front.fetches
    assert (json.loads(sent["tables"]), sent["txn"], sent["catalog"]) == (names, "20", "hive")


def test_a_table_that_was_not_named_is_listed_as_of_the_same_transactions(front: Front, session: Session) -> None:
    """A later list would show it what was committed after the transaction began."""
    transaction = session.begin(["d.t"], txn=20)
    for _ in range(2):
        transaction.get_table("d", "u")
        assert front.listed() == ("d.u:3:9223372036854775807::", "8")
    assert [each.get("txns") for each in front.fetches] == [None, "20:9:9:"]


def test_the_first_list_of_a_table_stays(front: Front, session: Session) -> None:
    """Two threads may ask for it at once: all reads of a transaction are of one state."""
    transaction = session.begin(["d.t"], txn=20)
    found = transaction.listed("d", "t")
    later = TableList("d.t", found.table_id, "d.t:99:9223372036854775807::")
    transaction._add(ListsAnswer("cache", "fresh", "why", "", transaction.txns, [later]))
    transaction.get_table("d", "t")
    assert front.listed() == (str(found.write_ids), str(found.table_id))


def test_an_external_table_has_no_list(front: Front, session: Session) -> None:
    """Hive fetches none for it."""
    session.begin(["d.outside"]).get_table("d", "outside")
    assert front.listed() == (None, "9")


def test_a_table_that_is_not_there_is_not_asked_for(front: Front, session: Session) -> None:
    """Without an id the front could not tell it from one that is made meanwhile."""
    transaction = session.begin(["d.nope"])
    with pytest.raises(NotFoundError) as caught:
        transaction.get_table("d", "nope")
    assert caught.value.code == "unknown_table"
    assert len(front.asked) == 1


def test_a_table_is_advanced_once_and_its_write_counts_as_committed(front: Front, session: Session) -> None:
    """However many writes the transaction makes: they share the id, and its next read must see them."""
    asked: list[tuple[int, str, str]] = []

    def allocate(txn: int, db: str, table: str) -> int:
        asked.append((txn, db, table))
        return 12

    transaction = session.begin(["d.t"], txn=20)
    assert [transaction.advance("d", "t", allocate) for _ in range(3)] == [12, 12, 12]
    assert asked == [(20, "d", "t")]
    transaction.get_table("d", "t")
    assert front.listed() == ("d.t:12:7:7,8:", "7")
    assert transaction.wrote("D", "T", 13) == transaction.write_id("D", "t") == 12, "the first one stays"
    with pytest.raises(BadRequest):
        transaction.wrote("d", "t", 0)


def test_a_table_is_advanced_once_among_threads(session: Session) -> None:
    """A second id would count as that of somebody else, who never commits it."""
    transaction, asked = session.begin(["d.t"], txn=20), threading.Semaphore(0)
    ids = iter(range(12, 20))

    def allocate(*_: object) -> int:
        asked.release()
        asked.acquire(timeout=0.05)
        asked.acquire(timeout=0.05)  # another one that asks
        return next(ids)

    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: transaction.advance("d", "t", allocate), range(4)))
    assert (found, next(ids)) == ([12] * 4, 13)


def test_own_writes_of_an_external_table_are_demanded(front: Front, session: Session) -> None:
    """It has no list that could say so: its reads demand what the metastore has logged by then."""
    transaction = session.begin(["d.outside", "d.t"], txn=20)

    def allocate(*_: object) -> int:
        raise AssertionError("an external table has no write ids")

    assert transaction.advance("d", "outside", allocate) == 0
    front.logged = Vector({"hive/0": (1, Position.parse("HiveEvent/7"))})
    transaction.get_table("d", "outside")
    assert front.asked[-1].params["token"] == str(front.logged)
    front.logged = Vector({"hive/0": (1, Position.parse("HiveEvent/9"))})
    transaction.get_table("d", "outside")
    assert front.asked[-1].params["token"] == str(front.logged), "it may have been written again"
    fetches = len(front.fetches)
    transaction.get_table("d", "t")
    assert len(front.fetches) == fetches, "one with a list needs no call"


def test_a_table_that_the_transaction_makes_has_write_ids(session: Session) -> None:
    """They are given out under its name before it is there."""
    assert session.begin([], txn=20).advance("d", "made", lambda *_: 1) == 1


def test_an_asynchronous_transaction_does_the_same(front: Front) -> None:
    """It has the same plans."""

    asked: list[object] = []

    async def allocate(*table: object) -> int:
        asked.append(table)
        await asyncio.sleep(0)
        return 12 + len(asked)

    async def work() -> None:
        transaction = await AsyncSession(front.send_later, Vector()).begin(["d.t"], txn=20)
        assert await asyncio.gather(*(transaction.advance("d", "t", allocate) for _ in range(3))) == [13, 13, 13]
        await transaction.get_table("d", "t")
        assert front.listed() == ("d.t:13:7:7,8,12:", "7")
        await transaction.get_partitions("d", "u")
        assert front.listed() == ("d.u:3:9223372036854775807::", "8")

    asyncio.run(work())


@pytest.mark.parametrize(
    ("listed", "own", "expected"),
    [
        ("d.t:11:7:7,8:", 8, "d.t:11:7:7:"),
        ("d.t:11:7:7,8:", 12, "d.t:12:7:7,8:"),
        ("d.t:11:7:7,8:", 14, "d.t:14:7:7,8,12,13:"),
        ("d.t:11:7:7:8", 8, "d.t:11:7:7:"),
        ("d.t:0:9223372036854775807::", 1, "d.t:1:9223372036854775807::"),
    ],
)
def test_ones_own_id_is_valid_and_no_other(listed: str, own: int, expected: str) -> None:
    """Ids that others got in between are not: nothing is known of them."""
    assert str(with_own(ValidWriteIdList.parse(listed), own)) == expected


def test_whatever_a_transaction_reads_may_be_bounded() -> None:
    """Each request says how old its answer may be, and how long it waits."""
    front = Front()
    begun = Session(front.send, Vector()).begin(["d.t"])
    bounds: dict[str, Any] = {"max_wait_ms": 7, "max_staleness_ms": 250}
    begun.get_table("d", "t", **bounds)
    begun.get_partitions("d", "t", **bounds)
    begun.get_statistics("d", "t", **bounds)
    begun.get_constraints("d", "t", **bounds)
    said = [{name: each.params.get(name) for name in bounds} for each in front.asked[1:]]
    assert said == [{"max_wait_ms": "7", "max_staleness_ms": "250"}] * 4


def test_functions_and_databases_may_be_bounded() -> None:
    """They belong to no table, and have no list."""
    front = Front()
    session = Session(front.send, Vector())
    session.get_functions("d", max_staleness_ms=0)
    session.get_databases("d", max_staleness_ms=0)
    assert [each.params["max_staleness_ms"] for each in front.asked] == ["0", "0"]
