"""Many rows under one demand, over real servers and processes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import httpx2

from serving.client import Session
from tests.serving.stack import ServingStack, eventually, settled
from tokens import Position, Vector


def batch(stack: ServingStack, keys: list[tuple[str, str]], **demand: object) -> list[dict[str, object]]:
    """The elements of a batch's answer."""
    body = {"keys": [{"table": table, "pk": pk} for table, pk in keys], **demand}
    answer = httpx2.post(f"{stack.url}/v1/rows/{stack.keyspace}:batch", json=body, timeout=40).json()
    found: list[dict[str, object]] = answer["rows"]
    return found


def snapshots(stack: ServingStack, text: str = "") -> float:
    """How many snapshots of the source the front has taken."""
    lines = (text or stack.get("/metrics").text).splitlines()
    return float(next(line for line in lines if line.startswith("freshet_serve_source_snapshots_total")).split()[1])


def test_a_batch_is_one_demand(stack: ServingStack, session: Session) -> None:
    """A batch returns rows of several partitions and tables in order, with absences and errors in their places."""
    stack.run(*(f"REPLACE INTO accounts VALUES ({n}, {n}, 'batch')" for n in range(20, 40)))
    session.adopt(settled(stack))
    keys = [("accounts", (n,)) for n in range(20, 45)]
    rows = session.get_rows(stack.keyspace, keys)
    assert [row.found for row in rows] == [True] * 20 + [False] * 5
    assert [row.value["id"] for row in rows[:20] if row.value] == list(range(20, 40))
    assert {row.freshness for row in rows} == {"fresh"}
    body = httpx2.post(
        f"{stack.url}/v1/rows/{stack.keyspace}:batch",
        json={"keys": [{"table": "accounts", "pk": [20]}, {"table": "accounts", "pk": "x"}, {"table": "no", "pk": 1}]},
        timeout=40,
    ).json()
    assert body["rows"][0]["row"]["id"] == 20
    assert [element["code"] for element in body["rows"][1:]] == ["bad_key", "unknown_table"]


def test_a_cold_batch_is_answered_as_single_reads_are_and_kept(stack: ServingStack) -> None:
    """A batch of misses gives the answers of single reads, takes one snapshot, and fills the cache."""
    token = settled(stack)
    words = [("words", f"w{n}") for n in range(40)]
    keys = [("old", str(n)) for n in range(1, 61)] + words + [("words", "W7"), ("words", "w8 "), ("old", "x")]
    before = stack.get("/metrics").text
    cold = batch(stack, keys, token=token)
    assert snapshots(stack) - snapshots(stack, before) == 1
    for (table, pk), element in zip(keys, cold, strict=True):
        alone = stack.get(f"/v1/rows/{stack.keyspace}/{table}/{pk}", token=token).json()
        assert [element.get(each) for each in ("found", "row", "freshness", "code", "message")] == [
            alone.get(each) for each in ("found", "row", "freshness", "code", "message")
        ]
    assert {element["served_from"] for element in cold[:-1]} == {"source"}
    assert (cold[-1]["code"], cold[-2]["row"]) == ("bad_key", {"word": "w8", "n": 8})

    def kept() -> bool:
        answers = batch(stack, keys[:100], token=token)
        # The absence of a word is never cached: another spelling may exist.
        return all(element["served_from"] == "cache" or not element["found"] for element in answers)

    eventually(kept, what="the fills")


def test_every_row_of_the_largest_batch_is_kept(stack: ServingStack) -> None:
    """A thousand misses make a thousand fills, so the cache answers the next batch."""
    keys = [("many", str(n)) for n in range(1, 1001)]
    token = settled(stack)
    assert "source" in {element["served_from"] for element in batch(stack, keys, token=token)}
    eventually(
        lambda: {each["served_from"] for each in batch(stack, keys, token=token)} == {"cache"}, what="all the fills"
    )


def test_concurrent_batches_of_the_same_misses_share_one_read(stack: ServingStack) -> None:
    """Many concurrent batches of the same misses cost the source about one read."""
    token = settled(stack)
    keys = [("old", str(n)) for n in range(1001, 1101)]
    before = snapshots(stack)
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: batch(stack, keys, token=token), range(16)))
    assert all(element["found"] and element["freshness"] == "fresh" for rows in answers for element in rows)
    assert snapshots(stack) - before < 16


def test_a_batch_that_the_source_does_not_prove_is_refused_for_each_element(stack: ServingStack) -> None:
    """Elements whose demand the source does not reach fail with 503 after one shared wait."""
    known = Vector.parse(settled(stack)).get(stack.shard)
    assert known is not None
    beyond = str(Vector({stack.shard: (known.epoch, Position.parse("MariaDB/0-1-99999999"))}))
    began = time.monotonic()
    found = batch(stack, [("old", str(n)) for n in range(50)] + [("old", "x")], token=beyond, max_wait_ms=2_000)
    assert [element["code"] for element in found] == ["source_behind"] * 50 + ["bad_key"]
    assert 1.5 < time.monotonic() - began < 60  # fifty waits would take a hundred


def test_a_batch_follows_tables_that_are_altered_and_dropped(stack: ServingStack) -> None:
    """Keys are parsed by the table's new primary key, and a dropped table fails only its own elements."""
    stack.run(
        "CREATE TABLE turned (a INT PRIMARY KEY, b INT)",
        "INSERT INTO turned VALUES (1, 2), (2, 1)",
        "CREATE TABLE dropped (a INT PRIMARY KEY)",
        "INSERT INTO dropped VALUES (1)",
    )
    keys = [("turned", "1"), ("dropped", "1"), ("old", "5")]
    assert all(element["found"] for element in batch(stack, keys, token=settled(stack)))
    stack.run("DROP TABLE dropped", "ALTER TABLE turned DROP PRIMARY KEY, ADD PRIMARY KEY (b)")
    turned, dropped, old = batch(stack, keys, token=settled(stack))
    assert turned["row"] == {"a": 2, "b": 1}
    assert dropped["code"] == "unknown_table"
    assert old["found"]
