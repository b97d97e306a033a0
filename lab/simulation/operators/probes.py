"""Requests that operators and applications make without a client library, and what must come of each."""

from __future__ import annotations

from typing import Final, NamedTuple

ROW: Final = "/v1/rows/{keyspace}/{table}/{pk}"
RANGE: Final = "/v1/rows/{keyspace}/{table}"
STREAM: Final = "/v1/stream"


class Probe(NamedTuple):
    """A request. ``template``: its route as described; "": none. ``code``: the error that it must end with; "": any.

    ``row``: the id of the row that it reads without a demand; 0: none. ``unless``: the error in its place where a
    table's description is not to be had, or may be an old one: nobody can say then what is a key of it.
    """

    method: str
    path: str
    template: str
    code: str = ""
    row: int = 0
    unless: str = ""


PROBES: Final = (
    Probe("GET", "/readyz", "/readyz"),
    Probe("GET", "/metrics", "/metrics"),
    Probe("GET", "/healthz", "/healthz"),
    Probe("GET", "/v1/rows/shop/accounts/1", ROW, row=1),
    Probe("GET", "/v1/rows/shop/shop.accounts/2?include_event_token=yes", ROW, row=2),
    Probe("HEAD", "/v1/rows/shop/accounts/2", ROW),
    Probe("GET", "/v1/rows/shop/%61ccounts/3?max_staleness_ms=60000", ROW),
    Probe("GET", "/v1/rows/shop/accounts/1?max_wait_ms=1e3", ROW, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts/1?tokn=x", ROW, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts/1?max_wait_ms=1&max_wait_ms=1", ROW, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts/1?token=v2.AAAA", ROW, "bad_token"),
    Probe("GET", "/v1/rows/shop/accounts/1?compare_event_token=time", ROW, "bad_token"),
    Probe("GET", "/v1/rows/none/accounts/1", ROW, "unknown_keyspace"),
    Probe("POST", "/v1/rows/shop:batch", "/v1/rows/{keyspace}:batch", "bad_body"),
    Probe("POST", "/v1/tables:batch", "/v1/tables:batch", "bad_body"),
    Probe("GET", "/v1/tables/db/t?valid_write_ids=db.t", "/v1/tables/{db}/{table}", "bad_write_ids"),
    Probe("GET", "/v1/tables/db/t", "/v1/tables/{db}/{table}", "unknown_keyspace"),
    Probe("GET", "/v1/locations/shop/0", "/v1/locations/{keyspace}/{partition}"),
    Probe("GET", "/v1/locations/shop/9", "/v1/locations/{keyspace}/{partition}", "unknown_path"),
    Probe("DELETE", "/v1/rows/shop/accounts/1", "", "method_not_allowed"),
    Probe("GET", "/v1/row/shop/accounts/1", "", "unknown_path"),
    Probe("OPTIONS", "/v1/rows/shop/accounts/1", ""),
    Probe("GET", "/v1/rows/shop/%ff/1", ROW, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/a%00/1", ROW, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts/%ff", ROW, "bad_key", unless="source_unreachable"),
    Probe("GET", "/v1/rows/shop/accounts/1?%ff=1", ROW, "bad_parameter"),
    Probe("GET", f"/v1/rows/shop/accounts/1?{'&' * 1_000}a=1&" + "b=2&" * 1_000, ROW, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts/1?include_event_token=maybe", ROW, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts/1?max_staleness_ms=9&max_wait_ms=0", ROW),
    Probe("GET", "/v1/rows/shop/accounts/1,2", ROW),
    Probe("GET", "/v1/rows/shop/accounts/1.5", ROW),
    Probe("GET", "/v1/rows/shop/accounts/one", ROW),
    Probe("GET", "/v1/rows/shop/gone/1", ROW),
    Probe("GET", "/v1/rows/shop/orders/Zo%C3%AB%20,0", ROW),
    Probe("GET", "/v1/rows/shop/orders/Zo%C3%AB,10?include_event_token=1", ROW),
    Probe("GET", "/v1/rows/shop/orders/,0", ROW),
    Probe("GET", "/v1/rows/depot/stock/010", ROW),
    Probe("GET", "/v1/stream?keyspace=none", STREAM, "unknown_keyspace"),
    Probe("GET", "/v1/stream?keyspace=shop&from=yesterday", STREAM, "bad_token"),
    Probe("GET", "/v1/stream?keyspace=shop&from=c2.AAAA", STREAM, "bad_checkpoint"),
    Probe("GET", "/v1/stream?keyspace=shop&until=later", STREAM, "bad_parameter"),
    Probe("GET", "/v1/stream?keyspace=shop&key_range=80-40", STREAM, "bad_parameter"),
    Probe("GET", "/v1/stream?keyspace=shop&include_columns=version", STREAM, "bad_parameter"),
    Probe("GET", "/v1/stream?keyspace=shop&key=1", STREAM, "bad_parameter"),
    Probe("GET", "/v1/stream?keyspace=shop&key=1&tables=accounts,orders", STREAM, "bad_parameter"),
    Probe("GET", "/v1/stream?keyspace=shop&heartbeat_ms=1", STREAM, "bad_parameter"),
    Probe("GET", "/v1/stream?keyspace=shop&tables=gone&where.version=1", STREAM),
    Probe("GET", "/v1/rows/shop/accounts?limit=many", RANGE, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts?only=some", RANGE, "bad_parameter"),
    Probe("GET", "/v1/rows/shop/accounts?where.none=1", RANGE),
    Probe("GET", "/v1/rows/shop/accounts?order_by=none", RANGE),
    Probe("GET", "/v1/rows/shop/accounts?page=none", RANGE, "bad_page"),
    Probe("GET", "/v1/descriptions/shop/accounts", "/v1/descriptions/{keyspace}/{table}"),
    Probe("GET", "/v1/descriptions/shop/gone", "/v1/descriptions/{keyspace}/{table}"),
    Probe("GET", "/v1/routes/shop", "/v1/routes/{keyspace}"),
    Probe("GET", "/v1/routes/none", "/v1/routes/{keyspace}", "unknown_keyspace"),
    Probe("GET", "/v1/locations?entity=nobody", "/v1/locations", "bad_parameter"),
    Probe("POST", "/v1/locations:refresh", "/v1/locations:refresh"),
    Probe("GET", "/v1/dead-letters/shop", "/v1/dead-letters/{keyspace}"),
    Probe("GET", "/v1/dead-letters/none", "/v1/dead-letters/{keyspace}", "unknown_keyspace"),
    Probe("GET", "/v1/dead-letters/shop?letter=none", "/v1/dead-letters/{keyspace}"),
    Probe("GET", "/v1/databases/db", "/v1/databases/{db}", "unknown_keyspace"),
    Probe("GET", "/v1/tables/db/t/partitions", "/v1/tables/{db}/{table}/partitions", "unknown_keyspace"),
)
