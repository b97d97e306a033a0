"""Rows of before a DDL, over real servers and processes."""

from __future__ import annotations

from serving.client import FreshetClient
from tests.serving.stack import ServingStack, settled


def test_a_row_of_before_a_ddl_is_read_by_the_columns_of_then(stack: ServingStack) -> None:
    """Only where it is asked for and nothing is demanded; else, and where there is none, the source answers."""
    stack.run("CREATE TABLE aged (id INT PRIMARY KEY, v INT)")
    settled(stack)
    stack.run("INSERT INTO aged VALUES (1, 10), (2, 20)")
    settled(stack)
    stack.run("ALTER TABLE aged ADD COLUMN w INT DEFAULT 7, CHANGE v u VARCHAR(5)")
    token = settled(stack)
    with FreshetClient(stack.url) as client:
        old = client.get_row(stack.keyspace, "aged", 1, last_known=True)
        assert (old.value, old.served_from, old.freshness) == ({"id": 1, "v": 10}, "cache", "eventual")
        assert "before a void" in old.why
        session = client.session(old.token)
        session.adopt(token)
        new = session.get_row(stack.keyspace, "aged", 1)
        assert (new.value, new.served_from, new.freshness) == ({"id": 1, "u": "10", "w": 7}, "source", "fresh")
        assert client.get_row(stack.keyspace, "aged", 2).value == {"id": 2, "u": "20", "w": 7}
        assert not client.get_row(stack.keyspace, "aged", 3, last_known=True).found
    place = f"/v1/rows/{stack.keyspace}/aged"
    assert stack.get(f"{place}/2?last_known=true&token={token}").json()["row"] == {"id": 2, "u": "20", "w": 7}
    stack.run("UPDATE aged SET w = 8")
    settled(stack)
    assert stack.get(f"{place}/2?last_known=true").json()["row"] == {"id": 2, "u": "20", "w": 8}
