"""What real connectors wrote: messages of Debezium 3.5 for MySQL 9.7 and MariaDB 11.4, without their schemas.

``typed-*.json`` has the schema of a table with nearly all types, and the rows that were inserted into it.
``story-*.jsonl`` has the messages of a session that changes rows and tables in most of the ways that there are; the
offsets are real.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FIXTURES = Path(__file__).parent / "fixtures"
SERVERS = {"mysql": "MySQL", "mariadb": "MariaDB"}


class Sample(NamedTuple):
    """A message: the topic without its prefix, the offset, and the JSON."""

    topic: str
    offset: int
    value: bytes


def story(kind: str) -> list[Sample]:
    """The messages of a session, in the order of each topic."""
    lines = (FIXTURES / f"story-{kind}.jsonl").read_text().splitlines()
    return [Sample(each["topic"], each["offset"], wrapped(each["payload"])) for each in map(json.loads, lines)]


def wrapped(payload: Any, schema: Any = None) -> bytes:
    """A payload as the JSON converter writes it."""
    return json.dumps({"schema": schema or {"type": "struct"}, "payload": payload}).encode()


def typed(kind: str) -> tuple[bytes, dict[int, bytes]]:
    """The schema of the table of all types, and its rows by their key."""
    found = json.loads((FIXTURES / f"typed-{kind}.json").read_text())
    return json.dumps(found["schema"]).encode(), {row["id"]: json.dumps(row).encode() for row in found["rows"]}
