"""The first three answers of the demo, each with its ``why``: from the source, from the cache, and at a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, Final

import pymysql

from lab.demo.stack import ROWS, Stack
from serving.client import FreshetClient, Row

TABLE: Final = "lamps"
KEY: Final = 7
SCHEMA: Final = f"CREATE TABLE {TABLE} (id INT PRIMARY KEY, colour VARCHAR(20)) ENGINE=InnoDB"
SHARD: Final = f"{ROWS}/0"
TRIES: Final = 30
"""The first read races with the cache, which wins now and then."""
CACHE_S: Final = 60.0
WAIT_MS: Final = 10_000


def first_answers(stack: Stack, say: Callable[[str], Any]) -> list[Row]:
    """Asks three times for a row that was just written, and tells what came. Returns the answers."""
    found = []
    with closing(stack.connect(ROWS)) as connection, FreshetClient(stack.url) as client:
        for asked, row in _asked(connection, client):
            say(f"\n{asked}\n  {row.served_from}, {row.freshness}: {row.value}\n  why: {row.why}")
            found.append(row)
    say("")
    return found


def _asked(connection: pymysql.connections.Connection[Any], client: FreshetClient) -> Iterator[tuple[str, Row]]:
    for number in range(TRIES):
        position = _write(connection, f"REPLACE INTO {TABLE} VALUES ({KEY}, 'red {number}')")
        row = _at(client, position, 0)
        if row.served_from == "source":
            break
    met = "the cache can't prove it yet" if row.served_from == "source" else "the cache was there already"
    yield f"written, and asked for at once by its writer, who waits for nothing: {met}", row
    deadline = time.monotonic() + CACHE_S
    row = client.session().get_row(ROWS, TABLE, KEY)
    while row.served_from != "cache" and time.monotonic() < deadline:
        row = client.session().get_row(ROWS, TABLE, KEY)
    yield "asked for by somebody who demands nothing: the cache has followed", row
    position = _write(connection, f"UPDATE {TABLE} SET colour = 'green' WHERE id = {KEY}")
    row = _at(client, position, WAIT_MS)
    yield (
        f"changed, and asked for with the token of that change, {position}: the cache waits until it can prove it",
        row,
    )


def _write(connection: pymysql.connections.Connection[Any], statement: str) -> str:
    """Commits a statement. Returns its position."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.execute("SELECT @@last_gtid")
        [gtid] = cursor.fetchone()
    return f"MariaDB/{gtid}"


def _at(client: FreshetClient, position: str, wait_ms: int) -> Row:
    session = client.session()
    session.observe(SHARD, position)
    return session.get_row(ROWS, TABLE, KEY, max_wait_ms=wait_ms)
