"""Traces of the reads, which some hosts keep, and what replaying them must say. Reckoned without the product's code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from serving.bytecache.policy.pools import POLICIES
from serving.bytecache.reading.replay import replayed, summary

EXTENT: Final = 1 << 20
ROOM: Final = 1 << 40
"""More than all files take."""
Line = tuple[str, int, int, int]
"""The path of a file, its size, and the range that was read."""


def told(trace: Path) -> list[dict[str, Any]]:
    """The whole lines of a trace."""
    text = trace.read_bytes() if trace.exists() else b""
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def wrong(trace: Path, must_have: set[Line]) -> str:
    """What is wrong with a trace that must have these reads, or with what a replay makes of it; "" if nothing is."""
    lines = told(trace)
    found = {
        (each["file"].partition("\0")[0].rpartition("://")[2], each["size"], each["start"], each["end"])
        for each in lines
    }
    if missing := must_have - found:
        return f"a trace lacks {sorted(missing)[:3]}"
    total = summary(trace)
    counted = (len(lines), len({each["file"] for each in lines}), sum(each["end"] - each["start"] for each in lines))
    if (total.reads, total.files, total.read_bytes) != counted or not 0 <= total.hit_bytes <= total.read_bytes:
        return f"a trace of {counted} is summed up as {total}"
    touched = [
        (each["file"], extent)
        for each in lines
        for extent in range(each["start"] // EXTENT, -(-each["end"] // EXTENT))
        if each["start"] < each["end"]
    ]
    for policy in POLICIES:
        outcome, ratios = replayed(trace, ROOM, policy)
        if (outcome.hits + outcome.misses, outcome.misses) != (len(touched), len(set(touched))):
            return f"with room for all {policy} makes {outcome} of {len(touched)} reads of {len(set(touched))} extents"
        if not all(0 <= ratio <= 1 for ratio in ratios.values()):
            return f"{policy} at other sizes has the ratios {ratios}"
    return ""
