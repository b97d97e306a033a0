"""Primary keys that change while rows are read by them, over real servers and processes."""

from __future__ import annotations

import httpx2

from serving.client import (
    Session,
)
from tests.serving.stack import ServingStack, eventually, settled


def test_a_changed_primary_key_is_noticed(stack: ServingStack, session: Session) -> None:
    """After an ALTER of the primary key, keys are parsed by the new one."""
    stack.run(
        "CREATE TABLE moving (a INT, b VARCHAR(10), PRIMARY KEY (a))", "INSERT INTO moving VALUES (1, '7'), (7, 'x')"
    )
    session.adopt(settled(stack))
    assert session.get_row(stack.keyspace, "moving", 7).value == {"a": 7, "b": "x"}
    stack.run("ALTER TABLE moving DROP PRIMARY KEY, MODIFY b VARBINARY(10) NOT NULL, ADD PRIMARY KEY (b)")
    session.adopt(settled(stack))

    def reread() -> bool:
        row = session.get_row(stack.keyspace, "moving", "7")
        return row.value is not None and row.value["a"] == 1

    eventually(reread, what="the new key")


def test_a_key_of_a_new_shape_is_tried_on_the_table_as_it_is_now(stack: ServingStack) -> None:
    """A front that still has the old description does not refuse the new key, alone or in a batch."""
    tables = ("widened", "widened_too")
    for table in tables:
        stack.run(f"CREATE TABLE {table} (id INT PRIMARY KEY, b INT NOT NULL)", f"INSERT INTO {table} VALUES (1, 2)")
        assert stack.get(f"/v1/rows/{stack.keyspace}/{table}/1").status_code == httpx2.codes.OK
        assert stack.get(f"/v1/rows/{stack.keyspace}/{table}/9").status_code == httpx2.codes.NOT_FOUND  # of the source
    for table in tables:
        stack.run(f"ALTER TABLE {table} DROP PRIMARY KEY, ADD PRIMARY KEY (b, id)")
    assert stack.get(f"/v1/rows/{stack.keyspace}/widened/2,1").json()["row"] == {"id": 1, "b": 2}
    keys = [{"table": "widened_too", "pk": "2,1"}, {"table": "widened_too", "pk": "7"}]
    answer = httpx2.post(f"{stack.url}/v1/rows/{stack.keyspace}:batch", json={"keys": keys}, timeout=40).json()
    assert [each.get("row") or each["code"] for each in answer["rows"]] == [{"id": 1, "b": 2}, "bad_key"]


def test_a_key_is_accepted_at_once_after_its_table_got_a_primary_key_again(stack: ServingStack) -> None:
    """A description without a key is not held against a request that came after the DDL."""
    stack.run("CREATE TABLE rekeyed (id INT PRIMARY KEY, b INT NOT NULL)", "INSERT INTO rekeyed VALUES (1, 2)")
    place = f"/v1/rows/{stack.keyspace}/rekeyed/1"
    assert stack.get(place).status_code == httpx2.codes.OK
    for _ in range(5):
        stack.run("ALTER TABLE rekeyed DROP PRIMARY KEY")
        stack.get(place)
        stack.run("ALTER TABLE rekeyed ADD PRIMARY KEY (id)")
        assert stack.get(place).status_code == httpx2.codes.OK


def test_a_row_is_never_absent_after_a_collation_makes_its_key_match_more(
    stack: ServingStack, session: Session
) -> None:
    """From the DDL on, 'abc' names the row 'ABC'; the tombstone of the old spelling proves nothing any more."""
    stack.run(
        "CREATE TABLE spelt (k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PRIMARY KEY, v INT)",
        "INSERT INTO spelt VALUES ('abc', 1)",
    )
    session.adopt(settled(stack))
    assert session.get_row(stack.keyspace, "spelt", "abc").value == {"k": "abc", "v": 1}
    stack.run("ALTER TABLE spelt MODIFY k VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci NOT NULL")
    stack.run("UPDATE spelt SET k = 'ABC', v = 2 WHERE k = 'abc'")
    for wait in range(40):
        answer = stack.get(f"/v1/rows/{stack.keyspace}/spelt/abc")
        assert answer.status_code == httpx2.codes.OK, answer.text
        row = answer.json()["row"]
        assert row["v"] in (1, 2), row
        if wait == 20:
            session.adopt(settled(stack))
            assert session.get_row(stack.keyspace, "spelt", "abc").value == {"k": "ABC", "v": 2}


def test_a_key_that_now_means_another_row_is_never_answered_by_the_old_one(
    stack: ServingStack, session: Session
) -> None:
    """The primary key moves to another column of the same type: from the DDL on, pk 7 is the row with b = 7."""
    stack.run("CREATE TABLE swap (a INT, b INT, PRIMARY KEY (a))", "INSERT INTO swap VALUES (7, 1), (1, 7)")
    session.adopt(settled(stack))
    assert session.get_row(stack.keyspace, "swap", 7).value == {"a": 7, "b": 1}
    with session.wrap(stack.connect(), shard=stack.shard) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE swap DROP PRIMARY KEY, ADD PRIMARY KEY (b)")
    for _ in range(50):
        assert session.get_row(stack.keyspace, "swap", 7).value == {"a": 1, "b": 7}
