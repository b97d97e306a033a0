"""Lists followed from the log alone are the server's own, in random histories of a naive metastore."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.process.replay import Replay
from lab.simulation.hive.metastore import Metastore
from tokens import ValidWriteIdList

NAMES = [f"{db}.{table}" for db in ("s", "w") for table in ("a", "b", "c")]


def _step(server: Metastore, rng: random.Random, *, may_keep: bool) -> None:
    """One call to the metastore that its state allows."""
    opened = [txn for txn, state in server.txns.items() if state == "open"]
    name = rng.choice(NAMES)
    exists = name in server.tables
    kind = rng.random()
    if kind < 0.15 or not opened:
        server.open_txns(rng.randint(1, 3))
    elif kind < 0.18:
        server.open_read_only()
    elif kind < 0.40:
        server.allocate(name, rng.sample(opened, rng.randint(1, min(3, len(opened)))), reallocate=rng.random() < 0.2)
    elif kind < 0.60:
        server.end(rng.choice(opened), commit=rng.random() < 0.65)
    elif not exists:
        server.create(name, rng.choice(["full", "insert_only", "external"]))
    elif kind < 0.75:
        server.alter(name, rng.choice([0, *opened]))
    elif kind < 0.80:
        server.drop(name, keep=may_keep and rng.random() < 0.5)
    elif kind < 0.90:
        to = rng.choice(NAMES)
        if to not in server.tables:
            server.rename(name, to)
    elif kind < 0.97:
        if server.tables[name][1] == "external":
            server.convert(name)
    elif rng.random() < 0.3:
        server.drop_database(name.partition(".")[0])


def _replayed(server: Metastore, folded: Replay, done: int) -> int:
    """Feeds what the log has beyond ``done``."""
    for row in server.log[done:]:
        folded.feed(row)
    return len(server.log)


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_the_replayed_list_equals_the_servers(seed: int) -> None:
    """After every event each existing transactional table has the list, and the id, that the metastore answers."""
    rng = random.Random(seed)
    server, folded, done = Metastore(), Replay(), 0
    for _ in range(60):
        _step(server, rng, may_keep=False)
        done = _replayed(server, folded, done)
        shown = folded.tables()
        assert {name: table.table_id for name, table in shown.items()} == {
            name: table_id for name, (table_id, _) in server.tables.items()
        }
        for name, (_, kind) in server.tables.items():
            expected = server.valid_write_ids(name) if kind != "external" else None
            assert shown[name].write_ids == expected, (seed, server.log[-1])
    assert not folded.rejections


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_a_drop_that_may_have_kept_the_ids_never_claims_too_much(seed: int) -> None:
    """Where the log can't tell whether a DROP kept the write ids, no id counts as valid that isn't at the server."""
    rng = random.Random(seed)
    server, folded, done = Metastore(), Replay(), 0
    for _ in range(60):
        _step(server, rng, may_keep=True)
        done = _replayed(server, folded, done)
        for name, table in folded.tables().items():
            if table.write_ids is not None:
                assert ValidWriteIdList.parse(server.valid_write_ids(name)).covers(
                    ValidWriteIdList.parse(table.write_ids)
                ), (seed, name)


def _calls(server: Metastore, calls: list[tuple[str, dict[str, Any]]]) -> Replay:
    for call, arguments in calls:
        getattr(server, call)(**arguments)
    folded = Replay()
    _replayed(server, folded, 0)
    return folded


NAMED_HISTORIES: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "rename moves the ids of an open writer": [
        ("create", {"name": "s.a", "kind": "full"}),
        ("open_txns", {"count": 2}),
        ("allocate", {"name": "s.a", "txns": [1, 2]}),
        ("end", {"txn": 2, "commit": True}),
        ("rename", {"old": "s.a", "new": "w.b"}),
        ("end", {"txn": 1, "commit": True}),
    ],
    "a reallocated id counts as valid": [
        ("create", {"name": "s.a", "kind": "full"}),
        ("open_txns", {"count": 3}),
        ("allocate", {"name": "s.a", "txns": [1, 2]}),
        ("end", {"txn": 2, "commit": True}),
        ("allocate", {"name": "s.a", "txns": [1], "reallocate": True}),
    ],
    "an ALLOC before its CREATE waits, and may be decided by then": [
        ("open_txns", {"count": 2}),
        ("allocate", {"name": "s.a", "txns": [1]}),
        ("allocate", {"name": "s.a", "txns": [2]}),
        ("end", {"txn": 1, "commit": True}),
        ("create", {"name": "s.a", "kind": "insert_only"}),
    ],
    "conversion to full ACID seeds the next id": [
        ("create", {"name": "s.a", "kind": "external"}),
        ("convert", {"name": "s.a"}),
        ("open_txns", {"count": 2}),
        ("allocate", {"name": "s.a", "txns": [1, 2]}),
    ],
    "a drop that kept the ids shows in the next ALLOC": [
        ("create", {"name": "s.a", "kind": "full"}),
        ("open_txns", {"count": 3}),
        ("allocate", {"name": "s.a", "txns": [1, 2]}),
        ("end", {"txn": 1, "commit": True}),
        ("drop", {"name": "s.a", "keep": True}),
        ("create", {"name": "s.a", "kind": "full"}),
        ("end", {"txn": 2, "commit": False}),
        ("allocate", {"name": "s.a", "txns": [3]}),
    ],
    "a dropped database takes the ids with it": [
        ("create", {"name": "s.a", "kind": "full"}),
        ("open_txns", {"count": 1}),
        ("allocate", {"name": "s.a", "txns": [1]}),
        ("drop_database", {"db": "s"}),
        ("create", {"name": "s.a", "kind": "full"}),
        ("end", {"txn": 1, "commit": True}),
    ],
}


@pytest.mark.parametrize("story", NAMED_HISTORIES)
def test_what_was_seen_on_real_metastores(story: str) -> None:
    """Each surprise of the recorded runs ends with the server's own list."""
    server = Metastore()
    folded = _calls(server, NAMED_HISTORIES[story])
    shown = folded.tables()
    assert shown.keys() == server.tables.keys()
    for name, table in shown.items():
        assert table.write_ids == server.valid_write_ids(name)
