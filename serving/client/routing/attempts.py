"""Which fronts a request tries, and how long each may take. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ..wire import HttpRequest

QUESTION_S: Final = 2.0
"""How long the answer to a question of the router's own may take."""
PATIENCE_S: Final = 3.0
"""How long a node may take beyond the wait that the request allows, if there is another one to ask."""
ATTEMPTS_MAX: Final = 4
"""Fronts; one of them may be asked twice."""


class Attempt(NamedTuple):
    """A front to ask, and how long it may take."""

    url: str
    timeout_s: float
    is_last: bool


def attempts(
    urls: Sequence[str], request: HttpRequest, timeout_s: float, slow: Sequence[str] = ()
) -> Iterator[Attempt]:
    """The fronts to ask one after the other, for a request that may take ``timeout_s``.

    All but the last have little time beyond the wait that the request allows: a node that is stopped answers nothing.
    ``slow``: those that took a connection and did not answer in that time; the caller adds to it. If all others fail,
    the last of them is asked once more, and has all the time: it may only be busy.
    """
    wait = request.params.get("max_wait_ms", "")
    wait_ms = int(wait) if wait.isdigit() else request.wait_ms
    patience_s = min(timeout_s, PATIENCE_S + wait_ms / 1000)
    chosen = urls[:ATTEMPTS_MAX]
    for number, url in enumerate(chosen, 1):
        is_last = number == len(chosen) and not slow
        yield Attempt(url, timeout_s if is_last else patience_s, is_last)
    if slow:
        yield Attempt(slow[-1], timeout_s, True)
