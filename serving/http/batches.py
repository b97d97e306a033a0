"""Many answers under one demand, combined into one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from serving.answers import RawRowAnswer, RawTableAnswer, encode, encode_problem
from serving.client.answers import (
    FreshnessName,
    RowBatchAnswer,
    ServedFrom,
    TableBatchAnswer,
)
from serving.errors import ASKED_IN_VAIN, ReadError
from serving.reads.demands import ReadDemand
from serving.turns import in_turns
from tokens import Vector

_STRONGEST_FIRST: tuple[FreshnessName, ...] = ("fresh", "eventual", "stale", "unknown")


async def row_batch_answer(elements: Sequence[RawRowAnswer | ReadError], demand: ReadDemand) -> RowBatchAnswer:
    """The answer to a batch of rows. Raises `ReadError` ``history_lost``."""
    encoded = [_encoded(each) async for each in in_turns(elements)]
    return RowBatchAnswer(*_summary(elements, demand), encoded)


async def table_batch_answer(elements: Sequence[RawTableAnswer | ReadError], demand: ReadDemand) -> TableBatchAnswer:
    """The answer to a batch of tables. Raises `ReadError` ``history_lost``."""
    encoded = [_encoded(each) async for each in in_turns(elements)]
    return TableBatchAnswer(*_summary(elements, demand), encoded)


def from_source(elements: Sequence[RawRowAnswer | RawTableAnswer | ReadError]) -> int:
    """How many elements the source was asked for."""
    return sum(not isinstance(each, ReadError) and each.served_from == "source" for each in elements)


def source_asked(elements: Sequence[RawRowAnswer | RawTableAnswer | ReadError]) -> int:
    """As `from_source`, with those for which it was asked in vain."""
    in_vain = sum(isinstance(each, ReadError) and each.code in ASKED_IN_VAIN for each in elements)
    return from_source(elements) + in_vain


def _encoded(element: RawRowAnswer | RawTableAnswer | ReadError) -> msgspec.Raw:
    return msgspec.Raw(encode_problem(element) if isinstance(element, ReadError) else encode(element))


def _summary(
    elements: Sequence[RawRowAnswer | RawTableAnswer | ReadError], demand: ReadDemand
) -> tuple[ServedFrom, FreshnessName, str, str]:
    """``served_from``, ``freshness``, ``why`` and ``token`` of the whole batch.

    Raises the first ``history_lost``: it concerns the whole session, so it is the answer to the whole batch.
    """
    vector, weakest, sources, failed = demand.vector, 0, from_source(elements), 0
    tokens: dict[str, None] = {}
    for element in elements:
        if isinstance(element, ReadError):
            if element.code == "history_lost":
                raise element
            failed += 1
            continue
        tokens[element.token] = None
        weakest = max(weakest, _STRONGEST_FIRST.index(element.freshness))
    for token in tokens:
        vector = vector.merge(Vector.parse(token)) if token else vector
    served = len(elements) - failed
    freshness = _STRONGEST_FIRST[weakest] if served else "unknown"
    why = f"{served - sources} from the cache, {sources} from the source, {failed} failed"
    return "source" if sources else "cache", freshness, why, str(vector)
