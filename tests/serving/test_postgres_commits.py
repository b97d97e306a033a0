"""When a connection of psycopg may have committed, decided without a server: plans over scripted statuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from serving.client import FreshetClient, Session
from serving.client.sessions.commits import COMMIT, ROLLBACK, Asking
from serving.client.sessions.postgres import PostgresCommits, _runs
from serving.client.tracked import Statement

SHARD = "shop/0"
IDLE, ACTIVE, IN_TRANSACTION, IN_ERROR, UNKNOWN = range(5)


class Connection:
    """A connection that is idle."""

    autocommit = False
    pgconn = SimpleNamespace(pipeline_status=0, transaction_status=IDLE)


def new_session() -> Session:
    """A session that asks no front."""
    return FreshetClient("http://127.0.0.1:9").session()


def carried_out(plan: Asking) -> int:
    """How many questions a plan has. The same server answers all of them."""
    asked = 0
    try:
        next(plan)
        while True:
            asked += 1
            plan.send((7, 1, "", "1:0/5"))
    except StopIteration:
        return asked


@pytest.mark.parametrize(
    ("statement", "before", "is_told"),
    [
        (COMMIT, IDLE, False),
        (COMMIT, ACTIVE, True),
        (COMMIT, IN_TRANSACTION, True),
        (COMMIT, IN_ERROR, True),
        (COMMIT, UNKNOWN, False),
        (ROLLBACK, IN_TRANSACTION, False),
        (Statement("update", False), IDLE, True),
        (Statement("select", False), IDLE, False),
        (Statement("select", True), IDLE, True),
        (Statement("commit", False), IN_TRANSACTION, True),
        (Statement("release", False), IN_TRANSACTION, False),
        (None, IN_TRANSACTION, True),
    ],
)
def test_a_connection_that_is_idle_again_may_have_committed(
    statement: Statement | None, before: int, is_told: bool
) -> None:
    """``commit()`` after a pipeline too, of whose transaction nobody knew; not what was taken back or only read."""
    connection, session = Connection(), new_session()
    commits = PostgresCommits(connection, SHARD, lambda: session)
    if statement is None:
        carried_out(commits.ended(before))
    else:
        with _runs(connection, statement):
            carried_out(commits.ended(before))
    assert session.carried.unplaced == ({SHARD: "Postgres/1:0/5"} if is_told else {})
    assert session.carried.doubts == {}


def test_a_connection_that_is_wrapped_again_tells_another_session_of_another_shard() -> None:
    """A pool's connection serves one keyspace after another: the last one that wrapped it is meant."""
    one, other = new_session(), new_session()
    commits: Any = PostgresCommits(Connection(), SHARD, lambda: one)
    commits.retarget("other/1", lambda: other)
    assert carried_out(commits.ended(IN_TRANSACTION)) > 0
    assert (one.carried.unplaced, other.carried.unplaced) == ({}, {"other/1": "Postgres/1:0/5"})
