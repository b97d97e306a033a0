"""The summary of a batch from its elements."""

from __future__ import annotations

import msgspec
import pytest

from serving.answers import RawRowAnswer
from serving.client.answers import FreshnessName, Problem, RowAnswer, ServedFrom
from serving.errors import ReadError
from serving.http.batches import row_batch_answer
from serving.reads.demands import ReadDemand
from tests.serving.fakes import demand_of, seen
from tokens import Vector

FAILED = ReadError("source_failed", "because")
SHOP, BANK = seen("shop/0", "0-1-5"), seen("bank/0", "0-2-9", epoch=3)


def element(served_from: ServedFrom, freshness: FreshnessName, token: Vector) -> RawRowAnswer:
    return RowAnswer(served_from, freshness, "why", str(token), True, msgspec.Raw(b'{"id":7}'))


def test_a_batch_is_as_weak_as_its_weakest_element() -> None:
    """Its token joins the elements' tokens and the demand, its freshness is the weakest, and one source counts."""
    fresh, eventual = element("source", "fresh", SHOP), element("cache", "eventual", BANK)
    elements: list[RawRowAnswer | ReadError] = [fresh, eventual, FAILED]
    for order in (elements, elements[::-1]):
        answer = row_batch_answer(order, demand_of(seen("till/0", "0-3-1")))
        joined = seen("till/0", "0-3-1").merge(SHOP).merge(BANK)
        assert (answer.token, answer.freshness, answer.served_from) == (str(joined), "eventual", "source")
        assert answer.why == "1 from the cache, 1 from the source, 1 failed"


@pytest.mark.parametrize("freshness", ["fresh", "eventual"])
def test_a_failed_element_does_not_weaken_the_others(freshness: FreshnessName) -> None:
    """The freshness of a batch is that of the elements that were answered."""
    answer = row_batch_answer([FAILED, element("cache", freshness, SHOP)], ReadDemand())
    assert (answer.freshness, answer.served_from, answer.token) == (freshness, "cache", str(SHOP))
    assert [isinstance(each, Problem) for each in answer.rows] == [True, False]


def test_a_lost_history_of_an_element_is_the_batchs() -> None:
    """`history_lost` of one element is raised for the whole batch, since its token replaces the session's."""
    lost = ReadError("history_lost", "gone", token=str(SHOP))
    with pytest.raises(ReadError) as caught:
        row_batch_answer([element("cache", "fresh", BANK), FAILED, lost], ReadDemand())
    assert caught.value is lost
