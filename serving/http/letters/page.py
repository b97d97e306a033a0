"""The page of dead letters: what could not be folded, and what resolves it: commands, and buttons if that is set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote

from serving.errors import ReadError
from serving.http.front import Front
from serving.http.letters.answers import LettersAnswer
from serving.http.status.page import environment


def letters_page(
    front: Front, keyspace: str, found: LettersAnswer | None, *, done: str = "", problem: ReadError | None = None
) -> str:
    """The page. ``found`` None: nothing is listed. ``done``: what was done; ``problem``: why something was not."""
    made = environment()
    made.filters["shell"] = quote
    made.filters["pretty"] = lambda record: json.dumps(record, indent=2, ensure_ascii=False)
    return made.get_template("letters.html").render(
        keyspaces=[*front.row_spaces, *front.table_spaces],
        keyspace=keyspace,
        found=found,
        done=done,
        problem=problem,
        has_buttons=front.resolves_letters,
    )


@contextmanager
def told_on_the_page(front: Front, keyspace: str) -> Iterator[None]:
    """A `ReadError` of the body is told on the page of dead letters."""
    try:
        yield
    except ReadError as problem:
        problem.page = letters_page(front, keyspace, None, problem=problem)
        raise
