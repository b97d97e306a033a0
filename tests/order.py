"""Which cases run, and the order of files whose tests run side by side: long ones first, beside those that differ."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import pytest


def leave_cases_out(config: pytest.Config, items: list[pytest.Item], every: int) -> None:
    """Of the cases of a test that is slow or needs servers, keeps the first and each ``every``-th after it."""
    seen: Counter[tuple[Path, str]] = Counter()
    left = []
    for item in items:
        name = item.name.partition("[")[0]
        is_long = any(item.get_closest_marker(marker) for marker in ("slow", "integration"))
        if is_long and seen[item.path, name] % every:
            left.append(item)
        seen[item.path, name] += is_long
    if left:
        gone = {id(item) for item in left}
        items[:] = [item for item in items if id(item) not in gone]
        config.hook.pytest_deselected(items=left)


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts tests file by file: first the files whose tests have more time than others, then those with slow ones.

    So none of them begins when all others are done. Of files that are alike in that, the first and the last folders
    take turns: what a folder's tests need of the machine is alike, too, and jobs of Spark leave nothing of it.
    """
    kinds: dict[Path, int] = {}
    for item in items:
        kinds[item.path] = max(kinds.get(item.path, 0), _kind_of(item))
    files = sorted(kinds, key=lambda path: (-kinds[path], path))
    alike = [[*group] for _, group in groupby(files, kinds.__getitem__)]
    place = {path: number for number, path in enumerate(path for each in alike for path in _from_both_ends(each))}
    items.sort(key=lambda item: place[item.path])


def _kind_of(item: pytest.Item) -> int:
    limit = item.get_closest_marker("timeout")
    if limit is not None and limit.args[0] > float(item.config.getini("timeout")):
        return 2
    return int(item.get_closest_marker("slow") is not None)


def _from_both_ends(files: list[Path]) -> Iterator[Path]:
    left = deque(files)
    while left:
        yield left.popleft()
        if left:
            yield left.pop()
