"""Routes: their matching, checks and errors agree with their description."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import httpx2
import msgspec
import pytest
from starlette.routing import Router

from serving.client.answers import STATUS_OF_CODE
from serving.errors import ReadError
from serving.http.front import Front, make_front
from serving.http.guard import OPEN_PATHS, Guard
from serving.http.limits import QUERY_FIELDS_MAX, RequestLimits
from serving.http.openapi import describe
from serving.http.query import RowBatchBody, RowParameters, TableParameters, row_batch
from serving.http.responses import Response
from serving.http.route import Resource, Route, body_of, parameters_of
from serving.http.routes import ROUTES
from serving.locations.refreshing import Locations
from stream.access.grants import Access
from tests.serving.asking import ask_app
from tests.serving.test_app import ask, refused

ROW_PATH = {"keyspace": "shop", "table": "t", "pk": "7"}
TABLE_PATH = {"db": "d", "table": "t"}


class Shelf(msgspec.Struct, forbid_unknown_fields=True):
    room: str
    book: str
    copies: Annotated[int, msgspec.Meta(ge=1, le=9)] = 1


class Loan(msgspec.Struct):
    reader: str


class Lent(msgspec.Struct):
    said: str


async def lend(_: Front, shelf: Shelf, loan: Loan) -> Response:
    return Response(200, msgspec.json.encode(Lent(f"{shelf.room}|{shelf.book}|{shelf.copies}|{loan.reader}")))


async def give_back(_: Front, shelf: Shelf, __: None) -> Response:
    raise ReadError("not_found", f"no book {shelf.book} in {shelf.room}")


TEXTS: Any = {"tag": "library", "summary": "s", "text": "t", "returns": "r"}
LIBRARY: tuple[Route[Any, Any], ...] = (
    Route(
        method="POST",
        path="/{room}/{book:raw}",
        handler=lend,
        parameters=Shelf,
        body=Loan,
        answer=Lent,
        name="lend",
        **TEXTS,
    ),
    Route(
        method="DELETE",
        path="/{room}/{book:raw}",
        handler=give_back,
        parameters=Shelf,
        answer=Lent,
        errors=("not_found",),
        name="giveBack",
        **TEXTS,
    ),
)


def library(method: str, path: str, **options: Any) -> httpx2.Response:
    """One request to an application of two routes that nothing else in the repository knows."""
    front = make_front([], Locations())
    router = Router([Resource(front, LIBRARY)])
    app = Guard(router, access=Access(), limits=RequestLimits(), metrics=front.metrics)
    return ask_app(app, method, path, **options)


def test_a_route_is_one_entry() -> None:
    """Matching, decoding, parsing, methods and description of a new route follow from its entry."""
    answer = library("POST", "/a%2Fb/c%2Cd?copies=3", json={"reader": "Ada"})
    assert (answer.status_code, answer.json()) == (200, {"said": "a/b|c%2Cd|3|Ada"})
    assert refused(library("POST", "/a/b?copies=10", json={"reader": "Ada"}), 400, "bad_parameter").startswith(
        "copies:"
    )
    assert refused(library("POST", "/a/b", json={}), 400, "bad_body")
    assert refused(library("DELETE", "/a/b"), 404, "not_found")
    wrong = library("GET", "/a/b")
    assert refused(wrong, 405, "method_not_allowed")
    assert wrong.headers["allow"] == "DELETE, OPTIONS, POST"

    described = describe(LIBRARY)["paths"]["/{room}/{book}"]
    assert set(described) == {"post", "delete"}
    assert {"400", "413"} <= set(described["post"]["responses"])
    assert "404" in described["delete"]["responses"]
    copies = next(each for each in described["post"]["parameters"] if each["name"] == "copies")
    assert copies["schema"] == {"type": "integer", "minimum": 1, "maximum": 9, "default": 1}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_an_unsupported_method_is_refused_with_the_supported_ones(route: Route[Any, Any]) -> None:
    """405 names the methods of the path in ``Allow``."""
    values = {"keyspace": "shop", "table": "t", "pk": "7", "db": "d", "partition": "0", "function": "f", "uri": "file"}
    path = route.template.format(**values, table_id="7", role="r", principal="p")
    answer = ask("PATCH", path)
    assert refused(answer, 405, "method_not_allowed")
    methods = {each.method for each in ROUTES if each.template == route.template} | {"OPTIONS"}
    assert answer.headers["allow"] == ", ".join(sorted(methods | {"HEAD"} if "GET" in methods else methods))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_the_codes_of_a_route_are_codes_of_the_api(route: Route[Any, Any]) -> None:
    """Every error code of a route has an HTTP status."""
    assert set(route.errors) <= set(STATUS_OF_CODE)


def test_every_open_path_is_a_route() -> None:
    """No path stays open without a token after its route is removed."""
    assert {route.path for route in ROUTES} >= OPEN_PATHS


def test_described_bounds_are_enforced() -> None:
    """Each parameter accepts the ends of its described range and refuses values beyond them by name."""
    found = 0
    for kind, path in ((RowParameters, ROW_PATH), (TableParameters, TABLE_PATH)):
        for name, schema in schema_of(kind).items():
            for end, step in (("minimum", -1), ("maximum", 1)):
                if end in schema:
                    found += 1
                    assert getattr(parameters_of(kind, path, f"{name}={schema[end]}".encode()), name) == schema[end]
                    with pytest.raises(ReadError, match=f"^{name}: ") as caught:
                        parameters_of(kind, path, f"{name}={schema[end] + step}".encode())
                    assert caught.value.code == "bad_parameter"
    assert found == 10


def schema_of(kind: type) -> dict[str, Any]:
    """The described fields of a Struct."""
    fields: dict[str, Any] = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return fields


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("tokn=x", "tokn"),
        ("token=x&token=x", "token"),
        ("pk=8", "pk"),
        ("max_wait_ms=", "max_wait_ms"),
        ("max_wait_ms=1_0", "max_wait_ms"),
        ("include_event_token=maybe", "include_event_token"),
        ("a%0Ab=x", r"a\nb"),
    ],
)
def test_a_parameter_that_is_refused_is_named(query: str, named: str) -> None:
    """The message names the offending parameter, and there is a hint."""
    with pytest.raises(ReadError) as caught:
        parameters_of(RowParameters, ROW_PATH, query.encode())
    assert (caught.value.code, caught.value.status) == ("bad_parameter", 400)
    assert named in str(caught.value)
    assert str(caught.value).isprintable()
    assert caught.value.hint


def test_an_unknown_parameter_is_refused_with_those_that_can_be_given() -> None:
    """The hint lists the query parameters without the names in the path."""
    with pytest.raises(ReadError) as caught:
        parameters_of(RowParameters, ROW_PATH, b"tokn=x")
    assert caught.value.hint == (
        "known: compare_event_token, consistency, include_event_token, last_known, max_staleness_ms, max_wait_ms, token"
    )


def test_a_parameter_that_is_missing_is_named() -> None:
    """A parameter without a default is required and described as required."""
    with pytest.raises(ReadError, match="book") as caught:
        parameters_of(Shelf, {"room": "a"}, b"copies=2")
    assert caught.value.code == "bad_parameter"
    required = [
        each["name"] for each in describe(LIBRARY)["paths"]["/{room}/{book}"]["post"]["parameters"] if each["required"]
    ]
    assert required == ["room", "book"]


@pytest.mark.parametrize("query", [b"token=%FF", b"token=\xff", b"&".join([b"token=x"] * (QUERY_FIELDS_MAX + 1))])
def test_a_query_that_cannot_be_read_is_refused(query: bytes) -> None:
    """A query that is not UTF-8 text or has too many fields is refused."""
    with pytest.raises(ReadError, match="query string") as caught:
        parameters_of(RowParameters, ROW_PATH, query)
    assert caught.value.code == "bad_parameter"


@pytest.mark.parametrize(
    ("text", "meant"), [("=1", True), ("=True", True), ("=yes", True), ("", True), ("=0", False), ("=no", False)]
)
def test_a_flag_has_the_usual_spellings(text: str, meant: Literal[True, False]) -> None:
    """Flags accept 1, True and yes, and a flag without a value is set."""
    query = f"include_event_token{text}".encode()
    assert parameters_of(RowParameters, ROW_PATH, query).include_event_token is meant


@pytest.mark.parametrize("text", ["1e3", "1.0", "-0", "+1", " 1", "0x1", "", "1_0", "\u0661"])
def test_an_integer_is_digits(text: str) -> None:
    """Another form is refused rather than rounded: a table id has up to 19 digits."""
    with pytest.raises(ReadError) as error:
        parameters_of(TableParameters, TABLE_PATH | {"table_id": text}, b"")
    assert error.value.code == "bad_parameter"
    assert str(error.value).startswith("table_id:")


def test_an_integer_keeps_all_its_digits() -> None:
    """Leading zeros are allowed, and nothing is rounded on the way."""
    assert parameters_of(TableParameters, TABLE_PATH, b"table_id=0009007199254740993").table_id == 9007199254740993


def test_a_batch_demands_what_it_says() -> None:
    """Of whoever may answer, and of rows that a DDL has voided, as a read of one row does."""
    body = body_of(RowBatchBody, b'{"keys":[{"table":"t","pk":1}],"consistency":"any","last_known":true}')
    wanted, demand = row_batch(body, RequestLimits(), 0)
    assert ([each.pk for each in wanted], demand.consistency, demand.last_known) == ([b"1"], "any", True)
    _, demand = row_batch(body_of(RowBatchBody, b'{"keys":[{"table":"t","pk":"1"}]}'), RequestLimits(), 0)
    assert (demand.consistency, demand.last_known) == ("bounded", False)
