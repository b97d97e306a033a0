"""What README has to paste: how everything is started, and the walk in the second terminal. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

_BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Walk(NamedTuple):
    """``prepare``: the lines before the one that starts everything; ``up``: that one; ``lines``: the walk."""

    prepare: list[str]
    up: str
    lines: list[str]


def walk_of(page: str) -> Walk:
    """The first two blocks of a shell on the page."""
    start, walk, *_ = _BLOCK.findall(page)
    *prepare, up = start.splitlines()
    return Walk(prepare, up, walk.splitlines())
