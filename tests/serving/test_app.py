"""The application without owners and sources: routing, error answers and the description, over real ASGI."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import httpx2
import pytest

from serving.http.app import make_app
from serving.http.front import make_front
from serving.http.limits import RequestLimits
from serving.http.lists import _names
from serving.http.routes import ROUTES
from serving.locations.refreshing import Locations
from serving.reads.spaces import RowSpace, TableSpace
from stream.access.grants import METRICS, Access, Credential, Grant, digest_of
from stream.wire.keys import Layout
from tests.serving.asking import ask_app
from tokens import Vector


def ask(method: str, path: str, *, bearer_token: str | None = None, **options: Any) -> httpx2.Response:
    """One request to a front that knows the keyspaces shop and hive, and no owner.

    ``bearer_token``: the one that the front requires.
    """
    front = make_front(
        [RowSpace("shop", Layout(4), "shop"), TableSpace("hive", Layout(2))],
        Locations(),
        access=Access.of_secret(bearer_token or ""),
        limits=RequestLimits(body_bytes_max=2_000, batch_keys_max=3),
    )
    return ask_app(make_app(front), method, path, **options)


def refused(response: httpx2.Response, status: int, code: str) -> str:
    """The message of an error answer, whose shape is checked."""
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code), body
    assert set(body) == {"code", "message", "hint", "type", "title", "status", "detail"}
    assert "\n" not in body["message"]
    assert (body["status"], body["detail"]) == (status, body["message"])
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["cache-control"] == "no-store"
    assert ("retry-after" in response.headers) is (status in (429, 503))
    return str(body["message"])


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v2", 404, "unknown_path"),
        ("GET", "/v1/rows/shop/orders", 503, "no_owner"),
        ("GET", "/v1/rows/shop/orders?customer=7&limit=0", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders?customer=7&where.customer=8", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders?only=sum", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders/7/8", 404, "unknown_path"),
        ("GET", "/v1/stream", 400, "bad_parameter"),
        ("GET", "/v1/stream?keyspace=hive", 404, "unknown_keyspace"),
        ("GET", "/v1/stream?keyspace=shop", 503, "stream_unavailable"),
        ("PATCH", "/v1/rows/shop/orders/7", 405, "method_not_allowed"),
        ("GET", "/v1/rows/shop:batch", 405, "method_not_allowed"),
        ("POST", "/v1/tables/db/t", 405, "method_not_allowed"),
        ("POST", "/healthz", 405, "method_not_allowed"),
        ("GET", "/v1/rows/bank/orders/7", 404, "unknown_keyspace"),
        ("GET", "/v1/rows/hive/orders/7", 404, "unknown_keyspace"),
        ("GET", "/v1/tables/db/t?catalog=other", 404, "unknown_keyspace"),
        ("GET", "/v1/locations/bank/0", 404, "unknown_keyspace"),
        ("GET", "/v1/locations/shop/4", 404, "unknown_path"),
        ("GET", "/v1/locations/shop/x", 400, "bad_parameter"),
        ("GET", "/v1/locations/shop/0", 503, "no_owner"),
        ("GET", "/v1/rows/shop/orders/7", 503, "no_owner"),
        ("GET", "/v1/tables/db/t", 503, "no_owner"),
        ("GET", "/readyz", 503, "not_ready"),
        ("GET", "/v1/rows/shop/orders/7?token=v1.%25%25", 400, "bad_token"),
        ("GET", "/v1/rows/shop/orders/7?token=garbage", 400, "bad_token"),
        ("GET", "/v1/rows/shop/orders/7?tokn=v1.W10", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders/7?token=v1.W10&token=v1.W10", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders/7?max_wait_ms=-1", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders/7?max_wait_ms=soon", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders/7?include_event_token=maybe", 400, "bad_parameter"),
        ("GET", "/v1/rows/shop/orders/7?compare_event_token=x", 400, "bad_token"),
        ("GET", "/v1/rows/shop/%FF/7", 400, "bad_parameter"),
        ("GET", "/v1/tables/db/t?valid_write_ids=db.t:x", 400, "bad_write_ids"),
        ("GET", "/v1/tables/db/t?valid_write_ids=", 400, "bad_write_ids"),
        ("GET", "/v1/tables/db/t?valid_write_ids=db.u:5:::", 400, "bad_write_ids"),
        ("GET", "/v1/tables/db/t?table_id=-3", 400, "bad_parameter"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(method: str, path: str, status: int, code: str) -> None:
    """Every error answer has a stable code, a one-line message and a hint."""
    assert refused(ask(method, path), status, code)


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/rows/shop:batch", b"{", 400, "bad_body"),
        ("/v1/rows/shop:batch", b'{"keys":[]}', 400, "bad_body"),
        ("/v1/rows/shop:batch", b'{"keys":[{"table":"t","pk":null}]}', 400, "bad_body"),
        ("/v1/rows/shop:batch", b'{"keys":[{"table":"t","pk":"1"}],"tokn":"x"}', 400, "bad_body"),
        ("/v1/rows/shop:batch", b'{"keys":[{"table":"t","pk":"1"}],"token":"x"}', 400, "bad_token"),
        ("/v1/rows/shop:batch", b'{"keys":[%b]}' % b",".join([b'{"table":"t","pk":1}'] * 4), 413, "too_many_keys"),
        ("/v1/rows/shop:batch", b" " * 3_000, 413, "body_too_large"),
        ("/v1/tables:batch", b'{"tables":[{"db":"d","table":"t","table_id":"7"}]}', 400, "bad_body"),
        ("/v1/tables:batch", b'{"tables":[{"db":"d","table":"t","valid_write_ids":"x:y"}]}', 400, "bad_write_ids"),
    ],
)
def test_a_wrong_body_is_refused(path: str, body: bytes, status: int, code: str) -> None:
    """Bodies are checked against their types and limits before any owner is asked."""
    assert refused(ask("POST", path, content=body), status, code)


def test_elements_of_a_batch_fail_on_their_own() -> None:
    """A key that cannot be read does not fail the others."""
    answer = ask("POST", "/v1/rows/shop:batch", json={"keys": [{"table": "t", "pk": "1"}], "token": str(Vector())})
    body = answer.json()
    assert answer.status_code == 200
    assert [element["code"] for element in body["rows"]] == ["no_owner"]
    assert (body["freshness"], body["token"]) == ("unknown", str(Vector()))


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"tables": ["d.t"], "catalog": "nope"}, 404, "unknown_keyspace"),
        ({"tables": ["nodot"]}, 400, "bad_parameter"),
        ({"tables": [], "txn": -1}, 400, "bad_body"),
    ],
)
def test_lists_are_asked_for_with_a_body_too(body: dict[str, Any], status: int, code: str) -> None:
    """As with a URL, which many tables do not fit into."""
    refused(ask("POST", "/v1/lists", json=body), status, code)


def test_tables_are_listed_as_hive_names_them() -> None:
    """In lower case, each once, however a query spells them: the metastore knows no other names."""
    assert _names(["D.T", "d.t", "d.U"]) == ["d.t", "d.u"]


def test_the_description_covers_every_route_and_resolves() -> None:
    """An outside client can be generated from /openapi.json."""
    described = ask("GET", "/openapi.json").json()
    assert set(described["paths"]) == {
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/locations",
        "/v1/locations:refresh",
        "/v1/locations/{keyspace}/{partition}",
        "/v1/routes/{keyspace}",
        "/v1/descriptions/{keyspace}/{table}",
        "/v1/dead-letters/{keyspace}",
        "/v1/status",
        "/v1/status/history",
        "/v1/status/backfills/{keyspace}",
        "/v1/status/rows/{keyspace}/{table}/{pk}",
        "/v1/rows/{keyspace}/{table}/{pk}",
        "/v1/rows/{keyspace}/{table}",
        "/v1/rows/{keyspace}:batch",
        "/v1/tables/{db}/{table}",
        "/v1/tables:batch",
        "/v1/table-ids/{table_id}",
        "/v1/tables/{db}/{table}/partitions",
        "/v1/lists",
        "/v1/bytes/{uri}",
        "/v1/stream",
        "/v1/statistics/{db}/{table}",
        "/v1/constraints/{db}/{table}",
        "/v1/databases",
        "/v1/databases/{db}",
        "/v1/roles",
        "/v1/roles/{role}/principals",
        "/v1/principals/{principal}/roles",
        "/v1/principals/{principal}/privileges",
        "/v1/privileges",
        "/v1/functions/{db}",
        "/v1/functions/{db}/{function}",
    }
    row = described["paths"]["/v1/rows/{keyspace}/{table}/{pk}"]["get"]
    assert {each["name"] for each in row["parameters"]} == {
        "keyspace",
        "table",
        "pk",
        "token",
        "max_wait_ms",
        "include_event_token",
        "compare_event_token",
        "max_staleness_ms",
        "consistency",
        "last_known",
        "Freshet-Token",
    }
    assert {"200", "400", "401", "404", "409", "429", "500", "503"} <= set(row["responses"])
    for reference in references(described):
        assert reference.removeprefix("#/components/schemas/") in described["components"]["schemas"]


def references(node: Any) -> list[str]:
    """Every ``$ref`` below ``node``."""
    if isinstance(node, dict):
        here = [node["$ref"]] if "$ref" in node else []
        return here + [found for value in node.values() for found in references(value)]
    return [found for value in node for found in references(value)] if isinstance(node, list) else []


def test_every_metric_has_a_help_sentence() -> None:
    """Each metric says in a sentence what it counts."""
    text = ask("GET", "/metrics").text
    helps = [line for line in text.splitlines() if line.startswith("# HELP freshet_")]
    assert len(helps) >= 8
    assert all(len(line.split()) >= 9 for line in helps), helps


def test_no_series_says_only_when_a_counter_began() -> None:
    """Each counter is one series: the library's ``_created`` would double what is stored."""
    text = ask("GET", "/metrics").text
    assert "freshet_serve_request_seconds_count" in text
    assert "_created" not in text


def test_metrics_are_of_all_keyspaces_whoever_asks() -> None:
    """A token of one keyspace, whose owner had caught up, had the front told as ready, and another one had no owner."""
    of_one = Credential(Grant("watch", frozenset({METRICS}), frozenset({"bank"})), digest_of(b"secret"))
    front = make_front([RowSpace("shop", Layout(4), "shop")], Locations(), access=Access([of_one]))
    answer = ask_app(make_app(front), "GET", "/metrics", headers={"authorization": "Bearer secret"})
    assert "freshet_serve_ready 0.0" in answer.text


GUARDED = [(route.method, route.template) for route in ROUTES if route.path not in ("/healthz", "/readyz")]


@pytest.mark.parametrize(("method", "path"), [*GUARDED, ("GET", "/openapi.json"), ("GET", "/nothing/here")])
def test_only_the_probes_are_open(method: str, path: str) -> None:
    """Every route but the probes, metrics and the description included, needs the bearer token."""
    assert refused(ask(method, path, bearer_token="secret"), 401, "unauthorized")
    headers = {"authorization": "Bearer secret"}
    assert ask(method, path, bearer_token="secret", headers=headers).status_code != 401


def test_healthz_is_answered_without_owners() -> None:
    """Liveness says nothing about owners or sources."""
    assert ask("GET", "/healthz").json() == {"status": "ok"}


def test_the_front_starts_without_an_http_client() -> None:
    """The front shares the types of the answers with the client, and does not load the client's HTTP library."""
    code = "import sys, serving.http.server; sys.exit('httpx2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
