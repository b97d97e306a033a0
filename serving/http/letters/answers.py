"""The answers of the routes of dead letters."""

from __future__ import annotations

from typing import Any

import msgspec


class LetterAnswer(msgspec.Struct, omit_defaults=True):
    """A message that could not be folded. ``id``: topic/partition/offset. ``size``: in bytes.

    Of one letter that is asked for by its id: ``problem``, why this version can't decode it ("": it can); ``record``,
    its content; ``start``, its first bytes as hex.
    """

    id: str
    code: str
    reason: str
    size: int
    problem: str = ""
    record: dict[str, Any] | None = None
    start: str = ""


class LettersAnswer(msgspec.Struct):
    """The unresolved letters of a keyspace, oldest first. ``number``: of all; ``letters`` has 500 at most."""

    number: int
    letters: list[LetterAnswer]
