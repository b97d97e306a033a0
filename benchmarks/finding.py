"""What readers meet over HTTP: a row by its key, by a unique column, and a hundred rows by a prefix of their key.

The table is whole, and its rows lie in all partitions, so who looks for one by another column than the key asks all of
them. One reader asks for one thing after the other, in a session that demands what it has seen. Part of
`benchmarks.backfill`.
"""

from __future__ import annotations

import time
from collections import defaultdict
from random import Random
from statistics import median
from typing import Any, Final

from freshet_client import FreshetClient, Session

from benchmarks.deployed import Deployment
from benchmarks.percentiles import percentiles_ms

KEYSPACE: Final = "shop"
TABLE: Final = f"{KEYSPACE}.lines"
ORDERS: Final = 200
LINES: Final = 100
"""Of each order."""
COLUMNS: Final = """(order_id INT, line INT, code INT NOT NULL UNIQUE, note VARCHAR(100) NOT NULL,
    PRIMARY KEY (order_id, line)) ENGINE=InnoDB"""
FILL: Final = f"""INSERT INTO {TABLE} SELECT seq DIV {LINES}, seq MOD {LINES}, 7 * seq,
    RPAD('The quick brown fox jumps over the lazy dog ', 60, 'and on ') FROM seq_0_to_{ORDERS * LINES - 1}"""
SETTINGS: Final = f'indexes = ["{TABLE}(code)"]\n'
ROUNDS: Final = 5
ASKED: Final = 200
"""Requests of each kind in a round."""


def _by_key(session: Session, number: int) -> bool:
    row = session.get_row(KEYSPACE, TABLE, number // LINES, number % LINES)
    return row.found and row.served_from == "cache"


def _by_code(session: Session, number: int) -> bool:
    page = session.find(KEYSPACE, TABLE, {"code": 7 * number}, limit=2)
    return len(page.rows) == 1 and page.served_from == "cache"


def _by_prefix(session: Session, number: int) -> bool:
    page = session.find(KEYSPACE, TABLE, {"order_id": number // LINES}, limit=LINES)
    return len(page.rows) == LINES and page.served_from == "cache"


KINDS: Final = {"key": _by_key, "unique": _by_code, "prefix": _by_prefix}


def found(deployed: Deployment) -> dict[str, Any]:
    """Of each kind: percentiles, and µs of processor time of front and owner. Raises ``AssertionError``.

    The kinds take turns. What comes from the source, or lacks a row, is an error.
    """
    times: dict[str, list[float]] = defaultdict(list)
    costs: dict[str, list[dict[str, float]]] = defaultdict(list)
    draw = Random(5)
    with FreshetClient(deployed.url) as client:
        session = client.session()
        for number in range(ROUNDS + 1):  # the first one is for warmth
            for kind, ask in KINDS.items():
                before = deployed.processor_seconds()
                for _ in range(ASKED):
                    began = time.perf_counter()
                    is_right = ask(session, draw.randrange(ORDERS * LINES))
                    times[kind].append(time.perf_counter() - began)
                    if number and not is_right:
                        raise AssertionError(f"{kind}: a row is missing, or came from the source")
                used = deployed.processor_seconds()
                costs[kind].append({name: 1e6 * (used[name] - before[name]) / ASKED for name in ("front", "owner")})
    return {
        kind: percentiles_ms(times[kind][ASKED:])
        | {f"{name}_us": median(each[name] for each in costs[kind][1:]) for name in ("front", "owner")}
        for kind in KINDS
    }
