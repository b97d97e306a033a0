"""The policies: which entry leaves."""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from serving.bytecache.policy.admission import DAY_S, Share, WriteBudget, parse_admission
from serving.bytecache.policy.pools import POLICIES, Pools, Value
from serving.bytecache.policy.simulate import Shadow, Touch, simulate

YARDSTICK = {  # policy → hit ratio in percent, of zipf 0.8 over 20,000 keys with five scans, 2,000 entries
    "fifo": 26.0,
    "lru": 28.0,
    "lirs": 34.5,
    "s3fifo": 35.5,
}


def zipf(exponent: float, keys: int, length: int, seed: int) -> list[int]:
    """Keys by Zipf's law."""
    weights = list(itertools.accumulate(1 / rank**exponent for rank in range(1, keys + 1)))
    return random.Random(seed).choices(range(keys), cum_weights=weights, k=length)


def with_scans(trace: list[int], scans: int, length: int) -> Iterator[int]:
    """``scans`` passes over keys that never come again, between equal parts of ``trace``."""
    step, fresh = len(trace) // scans, itertools.count(10**9)
    for i in range(scans):
        yield from trace[i * step : (i + 1) * step]
        yield from itertools.islice(fresh, length)


@pytest.mark.parametrize("policy", YARDSTICK)
def test_each_policy_reaches_its_hit_ratio_on_a_trace_with_scans(policy: str) -> None:
    """A policy that lost its idea (a scan that throws all out, ghosts that are forgotten) falls below its ratio."""
    trace = [Touch(key) for key in with_scans(zipf(0.8, 20_000, 100_000, 7), 5, 5_000)]
    assert 100 * simulate(policy, 2_000, trace).ratio >= YARDSTICK[policy]


@pytest.mark.parametrize("policy", POLICIES)
@example([("e", 0, 1), ("i", 2, 1), ("i", 0, 1), ("i", 1, 1), ("e", 0, 1), ("x", 2, 1), ("e", 0, 1), ("e", 0, 1)])
@given(
    st.lists(st.tuples(st.sampled_from("ihrxe"), st.integers(0, 12), st.integers(1, 5)), max_size=120),
)
def test_a_policy_holds_exactly_what_was_put_in_and_not_taken_out(policy: str, ops: list[tuple[str, int, int]]) -> None:
    """No entry is lost or doubled, and the cost is the sum of all, after any operations."""
    tested, model = POLICIES[policy](), dict[int, int]()
    for op, key, cost in ops:
        match op:
            case "i" if key not in model:
                tested.insert(key, cost)
                model[key] = cost
            case "h":
                assert tested.hit(key) == (key in model)
            case "r" if key in model:
                tested.resize(key, cost)
                model[key] = cost
            case "x":
                assert tested.remove(key) == model.pop(key, 0)
            case "e":
                evicted = tested.evict()
                assert (evicted is None) == (not model)
                assert evicted is None or model.pop(evicted[0]) == evicted[1]
        assert len(tested) == len(model)
        assert tested.cost == sum(model.values())
        assert all((key in tested) == (key in model) for key in range(13))


def test_fifo_and_lru_differ_by_what_was_read() -> None:
    """LRU keeps what was read again, FIFO does not."""
    trace = [Touch(key) for key in (1, 2, 1, 3, 1)]
    assert (simulate("fifo", 2, trace).hits, simulate("lru", 2, trace).hits) == (1, 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_operation_walks_through_all_entries(policy: str) -> None:
    """Where hardly anything is hit, a policy takes as long per read for a large cache as for a small one.

    Counted in steps of the interpreter, not in time (IMPALA-10127 was 2,000 times slower here).
    """

    def steps(capacity: int) -> float:
        tested = POLICIES[policy]()
        for key in range(capacity):
            tested.insert(key, 1)
        count = 0

        def trace(*_: object) -> object:
            nonlocal count
            count += 1
            return trace

        sys.settrace(trace)  # type: ignore[arg-type]
        try:
            for key in range(capacity, capacity + 2_000):
                tested.evict()
                tested.insert(key, 1)
                tested.hit(key - 700)
        finally:
            sys.settrace(None)
        return count / 2_000

    assert steps(20_000) <= 4 * steps(1_000)


def test_a_scan_of_ten_times_the_cache_leaves_the_footers() -> None:
    """Data of value INDEX stays while data of lesser value passes by."""
    pools = Pools("s3fifo", 1_000)
    for key in range(100):
        pools.insert(key, 2, Value.INDEX)
    for key in range(1_000, 11_000):
        while pools.cost + 1 > pools.capacity:
            pools.evict()
        pools.insert(key, 1, random.Random(key).choice((Value.SCAN, Value.NORMAL)))
    assert sum(key in pools for key in range(100)) >= 95


def test_pinned_data_cannot_take_the_whole_cache() -> None:
    """A pool beyond its bound gives up its own entries first."""
    pools = Pools("s3fifo", 100)
    for key in range(40):
        pools.insert(key, 1, Value.NORMAL)
    for key in range(100, 200):
        while pools.cost + 1 > pools.capacity:
            pools.evict()
        pools.insert(key, 1, Value.PINNED)
    assert sum(key in pools for key in range(40)) == 40
    assert pools.costs()["pinned"] <= 60


def test_a_scope_keeps_within_its_quota_and_keeps_it() -> None:
    """One tenant cannot push out another, nor take more than its own."""
    pools = Pools("lru", 100, {"a": 20})
    for key in range(50):
        while pools.evict_surplus(Value.NORMAL, "a"):
            pass
        pools.insert(key, 1, Value.NORMAL, "a")
    assert pools.costs()["scope:a"] <= 21
    for key in range(100, 300):
        while pools.cost + 1 > pools.capacity:
            pools.evict()
        pools.insert(key, 1)
    assert pools.costs()["scope:a"] >= 20


def test_a_write_budget_is_kept_to_five_percent_over_an_hour() -> None:
    """The admission by budget lets through what the budget allows, not more and hardly less."""
    budget = WriteBudget(24 * 3_600 * 1_000)
    admitted = sum(1_000 for i in range(36_000) if budget.admits(i, 1_000, i / 10))
    assert abs(admitted - 3_600 * 1_000) <= 0.05 * 3_600 * 1_000
    assert DAY_S == 86_400


def test_other_admissions_are_a_function_of_the_key() -> None:
    """A share is the same keys each time; the second touch is admitted, the first is not."""
    share = Share(0.25)
    assert [share.admits(key, 1, 0) for key in range(50)] == [share.admits(key, 1, 9) for key in range(50)]
    assert 1_800 < sum(share.admits(key, 1, 0) for key in range(8_000)) < 2_200
    second = parse_admission("second")
    assert [second.admits(5, 1, 0), second.admits(6, 1, 0), second.admits(5, 1, 0)] == [False, False, True]
    assert not second.admits(5, 1, 0), "it was evicted, and counts anew"
    assert parse_admission("all").admits(1, 1, 0)
    for wrong in ("some", "share=2", "budget=0", "all=1"):
        with pytest.raises(ValueError, match="admission"):
            parse_admission(wrong)


def test_the_shadow_foretells_other_sizes_within_three_points() -> None:
    """The estimate from a sample of the keys is near what a cache of that size would have."""
    trace = zipf(0.8, 20_000, 60_000, 3)
    shadow = Shadow("s3fifo", 2_000, every=8)
    for key in trace:
        shadow.touch(key, 1)
    for size, estimated in shadow.ratios().items():
        real = simulate("s3fifo", int(2_000 * size), map(Touch, trace)).ratio
        assert abs(estimated - real) <= 0.03, size
