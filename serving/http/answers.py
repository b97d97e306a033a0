"""What the front sends: an answer or a problem, as a status and JSON."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from serving.client.answers import Problem, RowAnswer, RowBatchAnswer, TableAnswer, TableBatchAnswer
from serving.errors import ReadError

_encode = msgspec.json.Encoder().encode


class Reply(NamedTuple):
    """Status and JSON of one answer."""

    status: int
    body: bytes


def reply_to(answer: RowAnswer | TableAnswer | RowBatchAnswer | TableBatchAnswer | ReadError) -> Reply:
    """200, or 404 for what is known not to exist, which is an answer too. Raises the `ReadError` that it is."""
    if isinstance(answer, ReadError):
        raise answer
    found = answer.found if isinstance(answer, RowAnswer | TableAnswer) else True
    return Reply(200 if found else 404, _encode(answer))


def problem_bytes(error: ReadError) -> bytes:
    """A `Problem`."""
    return _encode(Problem(error.code, str(error), error.hint, error.token))
