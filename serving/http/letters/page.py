"""The page of dead letters: what could not be folded, and the commands that resolve it."""

from __future__ import annotations

import json
from shlex import quote

from serving.errors import ReadError
from serving.http.letters.answers import LettersAnswer
from serving.http.responses import Response
from serving.http.status.page import environment, html_response


def letters_response(
    keyspaces: list[str], keyspace: str, found: LettersAnswer, problem: ReadError | None = None
) -> Response:
    """The page. ``problem``: why nothing was found out."""
    made = environment()
    made.filters["shell"] = quote
    made.filters["pretty"] = lambda record: json.dumps(record, indent=2, ensure_ascii=False)
    html = made.get_template("letters.html").render(
        keyspaces=keyspaces, keyspace=keyspace, found=found, problem=problem
    )
    return html_response(html, 200 if problem is None else problem.status)
