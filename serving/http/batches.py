"""Many answers under one demand, combined into one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from serving.answers import RawRowAnswer, RawRowBatch, RawTableAnswer, RawTableBatch, problem_of
from serving.client.answers import FreshnessName, Problem, RowBatchAnswer, ServedFrom, TableBatchAnswer
from serving.errors import ASKED_IN_VAIN, ReadError
from serving.reads.demands import ReadDemand
from tokens import Vector

Answer = TypeVar("Answer", RawRowAnswer, RawTableAnswer)

_STRONGEST_FIRST: tuple[FreshnessName, ...] = ("fresh", "eventual", "stale", "unknown")


def row_batch_answer(elements: Sequence[RawRowAnswer | ReadError], demand: ReadDemand) -> RawRowBatch:
    """The answer to a batch of rows. Raises `ReadError` ``history_lost``."""
    return RowBatchAnswer(*_summary(elements, demand), _told(elements))


def table_batch_answer(elements: Sequence[RawTableAnswer | ReadError], demand: ReadDemand) -> RawTableBatch:
    """The answer to a batch of tables. Raises `ReadError` ``history_lost``."""
    return TableBatchAnswer(*_summary(elements, demand), _told(elements))


def from_source(elements: Sequence[RawRowAnswer | RawTableAnswer | ReadError]) -> int:
    """How many elements the source was asked for."""
    return sum(not isinstance(each, ReadError) and each.served_from == "source" for each in elements)


def source_asked(elements: Sequence[RawRowAnswer | RawTableAnswer | ReadError]) -> int:
    """As `from_source`, with those for which it was asked in vain."""
    in_vain = sum(isinstance(each, ReadError) and each.code in ASKED_IN_VAIN for each in elements)
    return from_source(elements) + in_vain


def _told(elements: Sequence[Answer | ReadError]) -> list[Answer | Problem]:
    return [problem_of(each) if isinstance(each, ReadError) else each for each in elements]


def _summary(
    elements: Sequence[RawRowAnswer | RawTableAnswer | ReadError], demand: ReadDemand
) -> tuple[ServedFrom, FreshnessName, str, str]:
    """``served_from``, ``freshness``, ``why`` and ``token`` of the whole batch.

    Raises the first ``history_lost``: it concerns the whole session, so it is the answer to the whole batch.
    """
    answers = [each for each in elements if not isinstance(each, ReadError)]
    errors = [each for each in elements if isinstance(each, ReadError)]
    lost = next((each for each in errors if each.code == "history_lost"), None)
    if lost is not None:
        raise lost
    vector, sources = demand.vector, from_source(answers)
    for token in dict.fromkeys(each.token for each in answers):
        vector = vector.merge(Vector.parse(token)) if token else vector
    freshness: FreshnessName = max({each.freshness for each in answers}, key=_STRONGEST_FIRST.index, default="unknown")
    why = f"{len(answers) - sources} from the cache, {sources} from the source, {len(errors)} failed"
    return "source" if sources else "cache", freshness, why, str(vector)
