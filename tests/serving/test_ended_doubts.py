"""A doubt that ends while a read begins: the commit is demanded all the same, by its place or by the source's clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest

from serving.client import FreshetClient, Session
from serving.client.cache import DictStore, ObjectCache, RowCache
from serving.client.cache.reading import Entries
from serving.client.session import Carried, Doubt, Plan, SessionState
from serving.client.sessions.commits import COMMIT, Asking, Commits
from serving.client.wire import HttpRequest
from tests.serving.scripted_front import Front, vector
from tokens import Vector

TABLE = "shop.items"
READS: dict[str, Callable[[SessionState], Plan[Any]]] = {
    "row": lambda session: session.plan_row("shop", TABLE, 7),
    "rows": lambda session: session.plan_rows("shop", [(TABLE, [7])]),
    "range": lambda session: session.plan_find("shop", TABLE, {"id": 7}),
    "table": lambda session: session.plan_table("d", "t", catalog="shop"),
    "partitions": lambda session: session.plan_partitions("d", "t", catalog="shop"),
    "databases": lambda session: session.plan_databases(catalog="shop"),
}


def run(plan: Asking, *answers: tuple[object, ...]) -> None:
    """What a connection does with these answers to its questions."""
    told: Iterator[tuple[object, ...]] = iter(answers)
    with suppress(StopIteration):
        next(plan)
        while True:
            plan.send(next(told))


@pytest.mark.parametrize("was_in_doubt", [False, True])
def test_a_question_that_was_asked_before_a_commit_does_not_end_the_doubt_about_it(was_in_doubt: bool) -> None:
    """Two connections of a session, side by side: what the server had committed by then is without the other commit."""
    session = SessionState(Vector())
    asking, broken = (Commits("shop/0", lambda: 100.0, whose=lambda: session) for _ in range(2))
    for thread, connection in enumerate([asking, broken]):
        run(connection.meet(), (thread, 1, "", "0-1-8"))
    if was_in_doubt:
        session.doubt("shop/0", Doubt(1, 99.0))
    question = asking.after(COMMIT, in_transaction=False, has_rows=False)
    next(question)
    run(broken.failed(COMMIT, can_ask=False))
    with suppress(StopIteration):
        question.send((0, 1, "0-1-9", "0-1-9"))
    assert session.carried == Carried("", {"shop/0": "MariaDB/0-1-9"}, {"shop/0": Doubt(1, 100.0)})
    run(broken.settle(), (1, 1, "0-1-10", "0-1-10"))
    assert session.carried.doubts == {}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_doubt_that_ends_while_a_read_is_planned_is_demanded(read: Callable[[SessionState], Plan[Any]]) -> None:
    """The plan asks a front for another shard's epoch; meanwhile a connection tells the place, which has no epoch."""
    session = SessionState(Vector())
    session.observe("other/0", "MariaDB/0-1-1")
    session.doubt("shop/0", Doubt(7, 100.0))
    plan = read(session)
    assert "locations" in next(plan).path
    session.end_doubt("shop/0", session.doubt_about("shop/0"), 7, "MariaDB/0-1-6")
    located = {"token": "", "shards": {"other/0": {"epoch": 1, "position": "MariaDB/0-1-1"}}}
    request = plan.send((200, msgspec.json.encode(located)))
    assert bound_of(request) == 0


def bound_of(request: HttpRequest) -> int:
    """The bound on staleness that a request names, in its body or beside its path; -1: none."""
    params = msgspec.json.decode(request.body) if request.body else request.params
    return int(params.get("max_staleness_ms", -1))


class Settling(Session):
    """A session whose connection tells where its commit is, in another thread, once the token was read."""

    @property
    def token(self) -> str:
        """As `Session.token`."""
        found = cast("str", Session.token.fget(self))  # type: ignore[attr-defined]
        self.end_doubt("shop/0", self.doubt_about("shop/0"), 7, "MariaDB/0-1-6")
        return found


class Asked(Exception):
    """Freshet was asked."""


def asked(*_: object, **__: object) -> Any:
    """A front that is not to answer."""
    raise Asked


def read_row(client: FreshetClient, session: Session) -> object:
    """Through a cache of rows."""
    return RowCache(client, DictStore(), "shop", {TABLE: ["id"]}).get_row(session, TABLE, 7)


def read_object(client: FreshetClient, session: Session) -> object:
    """Through a cache of objects."""
    return ObjectCache(client, DictStore(), "shop", {"item": {TABLE: ["id"]}}).get(session, "item", 7)


@pytest.mark.parametrize("read", [read_row, read_object])
def test_a_doubt_that_ends_while_the_token_is_read_is_given_nothing_kept(
    monkeypatch: pytest.MonkeyPatch, read: Callable[[FreshetClient, Session], object]
) -> None:
    """The token that was read names no commit, and no doubt is left: what is kept may be from before the commit."""
    monkeypatch.setattr(Entries, "may_be_used", asked_of_the_store)
    session = Settling(asked, vector(shop="1 0-1-5"))
    session.doubt("shop/0", Doubt(7, 100.0))
    with pytest.raises(Asked):
        read(cast("FreshetClient", Front()), session)
    assert session.vector == vector(shop="1 0-1-6")


def asked_of_the_store(*_: object) -> bool:
    """Fails: the store can't know."""
    raise AssertionError("what is kept was compared with a token that lacks the commit")
