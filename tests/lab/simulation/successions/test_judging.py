"""The judges of shards that become others: what readers of the topic are told, and what readers of ranges get."""

from __future__ import annotations

import pytest

from lab.simulation.engine import Outcome
from lab.simulation.successions.judging import first_wrong
from lab.simulation.successions.reading import WHOLE_RANGES, ReadingRun
from stream.wire.events import VALUE, RowChange, SourceTransaction

KEY = b"k"
WRITTEN = {KEY: [b"0", b"1", b"2"]}


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ([b"0", b"1", b"2"], ""),
        ([b"0", None, b"2"], ""),
        ([None, b"2"], ""),
        ([b"0", b"2"], "b'k' is not told write 1"),
        ([None, b"0", b"2"], "b'k' is not told write 1"),
        ([b"1", b"0"], "b'k' is told its writes in the order [1, 0]"),
        ([b"3"], "b'k' is told with an image that nobody has written"),
    ],
)
def test_a_void_stands_for_the_writes_that_it_hides_and_for_no_others(told: list[bytes | None], wrong: str) -> None:
    """One that came before the last image that was told does not excuse what is left out behind that."""
    assert first_wrong({KEY: told}, WRITTEN) == wrong


def lot_of(wrote: list[tuple[int, int]]) -> ReadingRun:
    """A run in which the application has written rows of the first lot, each in a transaction of its own."""
    run = ReadingRun((1, 0, 0, 5), Outcome(), False)
    for count, (row, _) in enumerate(wrote):
        key = run.table.keys[row]
        shard = run.map.shard_of(run.table.ids[key])
        image = b'{"lot":0,"id":%d,"at":"%s-%d"}' % (row, shard.encode(), count)
        run.written[key].append(image)
        run.servers[shard].append(SourceTransaction(f"0-1-{count}", "", 100, [RowChange(key, VALUE, image)]))
    return run


def test_rows_of_a_lot_are_of_one_state() -> None:
    """A lot that has a row's second write must have what the same server wrote before."""
    run = lot_of([(0, 0), (1, 0), (0, 1)])
    lot, first, second = run.table.in_lot(0), run.table.keys[0], run.table.keys[1]
    later = {"lot": 0, "id": 0, "at": run.written[first][1].decode().split('"')[7]}
    other = {"lot": 0, "id": 1, "at": run.written[second][0].decode().split('"')[7]}
    run._judge_state({first: later, second: other}, lot, "the lot")
    assert run.outcome.violations == []
    run._judge_state({first: later}, lot, "the lot")
    assert [each.rule for each in run.outcome.violations] == [WHOLE_RANGES]


def test_a_page_has_rows_that_are_asked_for_in_their_order() -> None:
    """None of another lot, and none that a page before had."""
    run = lot_of([])
    [first, second], foreign = run.table.in_lot(0), run.table.keys[5]
    run._judge_page(0, {first: {}}, {second: {}}, [first, second])
    assert run.outcome.violations == []
    for key in (first, foreign):
        run._judge_page(0, {second: {}}, {key: {}}, [first, second])
    assert [each.rule for each in run.outcome.violations] == [WHOLE_RANGES] * 2
