"""The spans of an owner: one for each read that a front asks below a span of its own (`stream.spans`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from consumers.owner.protocol import (
    Answer,
    Failure,
    Get,
    GetObjects,
    GetRange,
    GetTable,
    OwnerObjects,
    OwnerRow,
    OwnerTable,
    RangeRows,
    Request,
    Rows,
)
from stream import spans

TRACED: Final = (Get, GetRange, GetTable, GetObjects)
"""Requests that carry the front's span."""


def begin_answer(request: Request) -> Any:
    """The span of the answer to ``request``; None if its front has none."""
    if not isinstance(request, TRACED) or not request.trace:
        return None
    name = type(request).__name__
    told: dict[str, str | int | bool] = {"keyspace": request.keyspace, "kind": name}
    if isinstance(request, Get | GetRange):
        told["partition"] = request.partition
    if isinstance(request, Get):
        told["keys"] = len(request.keys)
    return spans.begin(f"owner {name}", request.trace, told)


def end_answer(span: Any, answer: Answer) -> Answer:
    """Ends the span with what ``answer`` decides; returns the answer."""
    if isinstance(answer, Failure):
        spans.end(span, {}, failed=answer.code)
        return answer
    decided: Sequence[OwnerRow | OwnerTable | RangeRows | OwnerObjects] = ()
    if isinstance(answer, Rows):
        decided = answer.rows
    elif isinstance(answer, OwnerTable | RangeRows | OwnerObjects):
        decided = [answer]
    freshness = ",".join(sorted({each.freshness for each in decided}))
    spans.end(span, {"served": sum(each.served for each in decided), "freshness": freshness})
    return answer
