"""Many reads under one demand, put together into one answer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from serving.client.answers import (
    FreshnessName,
    RowBatchAnswer,
    ServedFrom,
    TableBatchAnswer,
)
from serving.errors import ReadError
from serving.http.answers import encode, problem_bytes
from serving.reads.demands import ReadDemand
from serving.reads.rows import FoundRow
from serving.reads.tables import FoundTable
from tokens import Vector

_FROM_STRONG_TO_WEAK: tuple[FreshnessName, ...] = ("fresh", "eventual", "stale", "unknown")


def row_batch_answer(elements: Sequence[FoundRow | ReadError], demand: ReadDemand) -> RowBatchAnswer:
    """One answer of rows. Raises `ReadError` ``history_lost``."""
    return RowBatchAnswer(*_together(elements, demand), [_encoded(each) for each in elements])


def table_batch_answer(elements: Sequence[FoundTable | ReadError], demand: ReadDemand) -> TableBatchAnswer:
    """One answer of tables. Raises `ReadError` ``history_lost``."""
    return TableBatchAnswer(*_together(elements, demand), [_encoded(each) for each in elements])


def _encoded(element: FoundRow | FoundTable | ReadError) -> msgspec.Raw:
    return msgspec.Raw(problem_bytes(element) if isinstance(element, ReadError) else encode(element))


def _together(
    elements: Sequence[FoundRow | FoundTable | ReadError], demand: ReadDemand
) -> tuple[ServedFrom, FreshnessName, str, str]:
    """What all answers begin with. A lost history concerns the whole session, so it is the whole answer."""
    vector, weakest, sources, failed = demand.vector, 0, 0, 0
    for element in elements:
        if isinstance(element, ReadError):
            if element.code == "history_lost":
                raise element
            failed += 1
            continue
        vector = vector.merge(Vector.parse(element.token)) if element.token else vector
        weakest = max(weakest, _FROM_STRONG_TO_WEAK.index(element.freshness))
        sources += element.served_from == "source"
    served = len(elements) - failed
    freshness = _FROM_STRONG_TO_WEAK[weakest] if served else "unknown"
    why = f"{served - sources} from the cache, {sources} from the source, {failed} failed"
    return "source" if sources else "cache", freshness, why, str(vector)
