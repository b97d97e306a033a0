"""A doubt that ends while a read begins: the commit is demanded all the same, by its place or by the source's clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec
import pytest

from serving.client import FreshetClient, Session
from serving.client.cache import DictStore, ObjectCache, RowCache
from serving.client.cache.reading import Entries
from serving.client.session import Doubt, Plan, SessionState
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


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_doubt_that_ends_while_a_read_is_planned_is_demanded(read: Callable[[SessionState], Plan[Any]]) -> None:
    """The plan asks a front for another shard's epoch; meanwhile a connection tells the place, which has no epoch."""
    session = SessionState(Vector())
    session.observe("other/0", "MariaDB/0-1-1")
    session.doubt("shop/0", Doubt(7, 100.0))
    plan = read(session)
    assert "locations" in next(plan).path
    session.end_doubt("shop/0", 7, "MariaDB/0-1-6")
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
        self.end_doubt("shop/0", 7, "MariaDB/0-1-6")
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
