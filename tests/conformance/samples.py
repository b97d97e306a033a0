"""The recorded answers of the real systems, row by row (``data/*.sample.jsonl``)."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"

Row = dict[str, Any]

_TAGGED = re.compile(r"(?:^|,)\s*[0-9a-f-]{36}:(?:[^,]*:)?[a-z_]\w*:", re.IGNORECASE)


def rows(name: str) -> list[Row]:
    """All rows of one sample file."""
    with (DATA / f"{name}.sample.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def row_id(row: Row) -> str:
    """A short name of a row for test ids."""
    return str(row.get("id") or f"{row['k']}-{row.get('n', row.get('s', ''))}")[:60]


def merged_mysql(canonical: str) -> str:
    """Vitess's canonical text of a MySQL set with its intervals merged, computed independently of `tokens`."""
    flavor, _, body = canonical.partition("/")
    if flavor != "MySQL56" or not body:
        return canonical
    merged = []
    for uuid_set in body.split(","):
        uuid, *texts = uuid_set.split(":")
        pairs = sorted((int(text.split("-")[0]), int(text.split("-")[-1])) for text in texts)
        joined: list[list[int]] = []
        for first, last in pairs:
            if joined and first <= joined[-1][1] + 1:
                joined[-1][1] = max(joined[-1][1], last)
            else:
                joined.append([first, last])
        intervals = ":".join(str(first) if first == last else f"{first}-{last}" for first, last in joined)
        merged.append(f"{uuid}:{intervals}")
    return f"{flavor}/{','.join(merged)}"


def numbers(text: str) -> Counter[tuple[str, int]]:
    """How often each (UUID, number) is in a MySQL set, written out one by one."""
    found: Counter[tuple[str, int]] = Counter()
    for uuid_set in text.removeprefix("MySQL56/").lower().split(","):
        uuid, *intervals = uuid_set.strip().split(":")
        for interval in filter(None, intervals):
            found.update(
                (uuid, number) for number in range(int(interval.split("-")[0]), int(interval.split("-")[-1]) + 1)
            )
    return found


def is_tagged(text: str) -> bool:
    """True for a MySQL set with tags (8.3 and later), which Vitess refuses."""
    flavor, _, body = text.rpartition("/")
    return flavor in ("", "MySQL56") and _TAGGED.search(body) is not None
