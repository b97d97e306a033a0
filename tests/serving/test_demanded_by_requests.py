"""What a request demands reaches whoever reads for it, whatever its route: how fresh, by whom, and in what time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serving.errors import ReadError
from serving.http.app import make_app
from serving.http.front import make_front
from serving.locations.refreshing import Locations
from serving.reads.demands import ReadDemand
from serving.reads.spaces import RowSpace, TableSpace
from stream.wire.keys import Layout
from tests.serving.asking import ask_app
from tests.serving.fakes import seen

NOW_S = 1_700_000_000.0
SEEN, OTHER = seen("shop/0", "0-1-5"), seen("till/0", "0-3-1")
ROW, RANGE, BATCH = "/v1/rows/shop/items/7", "/v1/rows/shop/items", "/v1/rows/shop:batch"
KEYS = [{"table": "items", "pk": 7}]
TABLES = [{"db": "d", "table": "t"}]
OF_CATALOGS = (
    "/v1/tables/d/t",
    "/v1/table-ids/4",
    "/v1/tables/d/t/partitions",
    "/v1/statistics/d/t",
    "/v1/constraints/d/t",
    "/v1/databases",
    "/v1/databases/d",
    "/v1/functions/d",
    "/v1/functions/d/f",
)


def demanded(method: str, path: str, **options: Any) -> ReadDemand:
    """What whoever reads is asked for, in a front whose clock stands still. It answers with an error."""
    front: Any = make_front(
        [RowSpace("shop", Layout(1), "shop"), TableSpace("hive", Layout(1))], Locations(fixed={("shop", 0): "a:1"})
    )
    front.clock = lambda: NOW_S
    asked: list[ReadDemand] = []

    async def read(*given: Any) -> Any:
        asked.extend(each for each in given if isinstance(each, ReadDemand))
        raise ReadError("no_owner", "nobody is there")

    for name in ("rows", "ranges", "tables", "objects"):
        setattr(front, name, SimpleNamespace(read=read, read_many=read, read_lists=read))
    assert ask_app(make_app(front), method, path, **options).json()["code"] == "no_owner"
    [found] = asked
    return found


@pytest.mark.parametrize(
    ("staleness_ms", "not_before_ms"), [(None, 0), (0, 1_700_000_000_000), (250, 1_699_999_999_750)]
)
@pytest.mark.parametrize("is_leader", [False, True])
@pytest.mark.parametrize("path", [ROW, RANGE, BATCH])
def test_a_read_of_rows_is_as_fresh_as_it_was_demanded(
    path: str, is_leader: bool, staleness_ms: int | None, not_before_ms: int
) -> None:
    """By the token, by the source's clock, and by who may answer: one row, a batch of rows, and a range."""
    wanted: dict[str, Any] = {"token": str(SEEN), "max_wait_ms": 7}
    wanted |= {"consistency": "leader"} if is_leader else {}
    wanted |= {"max_staleness_ms": staleness_ms} if staleness_ms is not None else {}
    found = (
        demanded("POST", path, json={"keys": KEYS, **wanted}) if path == BATCH else demanded("GET", path, params=wanted)
    )
    assert found == ReadDemand(SEEN, True, 7, not_before_ms, "leader" if is_leader else "bounded")


@pytest.mark.parametrize(("staleness_ms", "not_before_ms"), [(0, 1_700_000_000_000), (250, 1_699_999_999_750)])
@pytest.mark.parametrize("path", [*OF_CATALOGS, "/v1/tables:batch"])
def test_a_read_of_a_catalog_may_demand_a_time(path: str, staleness_ms: int, not_before_ms: int) -> None:
    """By a token or without one, of whatever kind of object."""
    wanted = {"max_staleness_ms": staleness_ms, "max_wait_ms": 7}
    if path == "/v1/tables:batch":
        found = demanded("POST", path, json={"tables": TABLES, **wanted})
    else:
        found = demanded("GET", path, params=wanted)
    assert found == ReadDemand(max_wait_ms=7, not_before_ms=not_before_ms)


@pytest.mark.parametrize("path", [ROW, BATCH])
def test_the_image_of_before_a_void_is_given_to_whoever_asks_for_it(path: str) -> None:
    """And to nobody else: it has the columns of then."""
    wanted: dict[str, Any] = {"last_known": True}
    found = (
        demanded("POST", path, json={"keys": KEYS, **wanted})
        if path == BATCH
        else demanded("GET", path, params="last_known=true")
    )
    assert (found.last_known, found.given) == (True, False)
    found = demanded("POST", path, json={"keys": KEYS}) if path == BATCH else demanded("GET", path)
    assert not found.last_known


@pytest.mark.parametrize("path", [ROW, RANGE, *OF_CATALOGS])
def test_a_token_in_the_header_is_demanded_beside_that_of_the_url(path: str) -> None:
    """A proxy may add what the session has seen elsewhere. None of the two is passed over, and the wait is its own."""
    found = demanded("GET", path, params={"token": str(SEEN), "max_wait_ms": 7}, headers={"freshet-token": str(OTHER)})
    assert (found.vector, found.given, found.max_wait_ms) == (SEEN.merge(OTHER), True, 7)


def test_a_batch_of_tables_is_as_fresh_as_it_was_demanded() -> None:
    """As one table is."""
    body = {"tables": TABLES, "token": str(SEEN), "max_wait_ms": 7}
    assert demanded("POST", "/v1/tables:batch", json=body) == ReadDemand(SEEN, True, 7)


@pytest.mark.parametrize("in_body", [False, True])
def test_a_transaction_that_begins_waits_for_nothing(in_body: bool) -> None:
    """Its lists are read past the cache, at or behind what the session has seen."""
    if in_body:
        found = demanded("POST", "/v1/lists", json={"tables": ["d.t"], "token": str(SEEN)})
    else:
        found = demanded("GET", "/v1/lists", params={"tables": '["d.t"]', "token": str(SEEN)})
    assert found == ReadDemand(SEEN, True, 0)
