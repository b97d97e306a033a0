"""The write ids of one table: aborts around the high-water mark, and the server's own list."""

from __future__ import annotations

import pytest

from tokens.writeid_state import ABORTED_RUNS_MAX, GAP_MAX, WriteIds


def _state() -> WriteIds:
    """High-water mark 5: ids 2 and 5 are open in transaction 3, 1 is aborted, 3 and 4 are valid."""
    return WriteIds(hwm=5, open=[(2, 3), (5, 3)], aborted_runs=[(1, 1)], committed=True)


@pytest.mark.parametrize(
    ("write_id", "expected"),
    [
        (8, WriteIds(hwm=8, open=[(2, 3), (5, 3), (6, 0), (7, 0)], aborted_runs=[(1, 1), (8, 8)], committed=True)),
        (6, WriteIds(hwm=6, open=[(2, 3), (5, 3)], aborted_runs=[(1, 1), (6, 6)], committed=True)),
        (5, WriteIds(hwm=5, open=[(2, 3)], aborted_runs=[(1, 1), (5, 5)], committed=True)),
        (2, WriteIds(hwm=5, open=[(5, 3)], aborted_runs=[(1, 2)], committed=True)),
        (3, _state()),
        (1, _state()),
    ],
)
def test_an_abort_takes_open_and_unseen_ids_and_no_valid_one(write_id: int, expected: WriteIds) -> None:
    """An id above the mark moves the mark, an open one at or below it is aborted, a valid one stays valid."""
    state = _state()
    state.abort(write_id)
    assert state == expected


def test_an_abort_at_the_mark_leaves_a_valid_id_alone() -> None:
    """The id at the mark was seen: if nothing holds it, it is valid and can't be aborted."""
    state = WriteIds(hwm=5, committed=True)
    state.abort(5)
    assert state == WriteIds(hwm=5, committed=True)


def test_an_abort_beyond_the_largest_gap_loses_the_list() -> None:
    """After a gap that is too large the list proves nothing, and the aborted id is not recorded."""
    state = _state()
    state.abort(5 + GAP_MAX + 1)
    assert (state.known, state.hwm, state.aborted) == (False, 5, [1])
    state = _state()
    state.abort(5 + GAP_MAX)
    assert (state.known, state.hwm, state.aborted) == (True, 5 + GAP_MAX, [1, 5 + GAP_MAX])


def test_the_servers_list_keeps_the_holders_of_ids_that_stay_open() -> None:
    """A later COMMIT of the transaction must still find its ids; the holder of a new id is unknown."""
    state = _state()
    state.replace(7, [5, 7], [2])
    assert (state.hwm, state.open, state.aborted) == (7, [(5, 3), (7, 0)], [2])
    assert state.held_by(3) == [5]


def test_the_servers_list_counts_only_up_to_its_mark() -> None:
    """Exceptions above the mark or below 1 are dropped, and one at the mark is kept."""
    state = WriteIds(known=False)
    state.replace(7, [8, 7, 0, -1], [9, 6, 8, 6, 0])
    assert (state.open, state.aborted, state.known) == ([(7, 0)], [6], True)
    state.replace(7, [8], [7, 8])
    assert (state.open, state.aborted) == ([], [7])


@pytest.mark.parametrize(
    ("open_ids", "aborted", "committed"),
    [
        ([], [], False),
        ([7], [], False),
        ([], [7], False),
        ([6], [], True),
        ([], [6], True),
        ([], [6, 7], True),
        ([8], [8], False),
    ],
)
def test_a_list_with_an_exception_below_its_mark_is_not_collapsed(
    open_ids: list[int], aborted: list[int], committed: bool
) -> None:
    """A collapsed list has its only exception at the mark; any other one shows a committed id."""
    state = WriteIds()
    state.replace(7, open_ids, aborted)
    assert state.committed is committed
    state.replace(7, open_ids, aborted, committed=not committed)
    assert state.committed is not committed


def test_an_id_that_a_list_names_twice_is_aborted_once() -> None:
    """An id that is both open and aborted in the server's list is printed once after its abort."""
    state = WriteIds()
    state.replace(7, [6], [6])
    state.abort(6)
    assert (state.open, state.aborted) == ([], [6])


def test_ids_that_are_allocated_again_take_only_their_own_transactions() -> None:
    """What other transactions hold open stays open: their writes are not committed."""
    state = WriteIds(hwm=5, open=[(1, 4), (2, 3), (4, 0), (5, 3)], aborted_runs=[(3, 3)], committed=True)
    state.allocate(3, 2, reallocated=True)
    assert state == WriteIds(hwm=5, open=[(1, 4), (2, 3), (4, 0)], aborted_runs=[(3, 3)], committed=True)
    state.allocate(0, 6, reallocated=True)
    assert state.open == [(1, 4), (2, 3), (4, 0), (6, 0)], "an unknown transaction names nobody's earlier ids"


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (WriteIds(hwm=5, open=[(2, 3)], aborted_runs=[(1, 1), (4, 4)]), "d.t:1:2::1"),
        (WriteIds(hwm=5, open=[(2, 3)], aborted_runs=[(4, 4)]), "d.t:2:2:2:"),
        (WriteIds(hwm=5, open=[(2, 3), (5, 4)], aborted_runs=[]), "d.t:2:2:2:"),
        (WriteIds(hwm=5, aborted_runs=[(3, 4)]), f"d.t:3:{2**63 - 1}::3"),
        (WriteIds(hwm=5, open=[(2, 3)], aborted_runs=[(1, 1)], committed=True), "d.t:5:2:2:1"),
        (WriteIds(hwm=5), f"d.t:5:{2**63 - 1}::"),
    ],
)
def test_a_list_without_a_commit_ends_at_its_first_exception(state: WriteIds, text: str) -> None:
    """The server prints it so: the lowest id that is not valid is the high-water mark, open or aborted."""
    assert state.text("d.t") == text


def test_a_commit_agrees_unless_the_id_is_aborted() -> None:
    """Open, unseen and valid ids may be committed; of an aborted one the log contradicts itself."""
    state = _state()
    assert [state.commit(write_id) for write_id in (2, 3, 8, 1)] == [True, True, True, False]
    assert state == WriteIds(hwm=8, open=[(5, 3), (6, 0), (7, 0)], aborted_runs=[(1, 1)], committed=True)


def test_the_holder_of_an_open_id_is_known() -> None:
    """None of one that is not open; 0 of one whose ALLOC was not seen."""
    state = WriteIds(hwm=9, open=[(2, 3), (5, 4), (7, 0)], aborted_runs=[(1, 1)], committed=True)
    assert [state.transaction_of(write_id) for write_id in range(1, 10)] == [
        None,
        3,
        None,
        None,
        4,
        None,
        0,
        None,
        None,
    ]


def test_aborted_ids_take_no_more_than_their_gaps() -> None:
    """A million aborts in a row are one run; whatever the order, the ids are those that were aborted."""
    state = WriteIds(committed=True)
    for write_id in (3, 1, 2, 7, 5, 6):
        state.allocate(9, write_id)
    for write_id in (3, 1, 7, 5, 6):
        state.abort(write_id)
    assert state.aborted_runs == [(1, 1), (3, 3), (5, 7)]
    assert state.aborted == [1, 3, 5, 6, 7]
    assert [each for each in range(9) if state.is_aborted(each)] == [1, 3, 5, 6, 7]
    state.allocate(10, 6)
    assert state.aborted_runs == [(1, 1), (3, 3), (5, 5), (7, 7)]


def test_too_many_runs_make_the_list_unknown_until_the_servers_own() -> None:
    """Forgetting an id silently would show readers rows that were never committed: the list says nothing instead."""
    state = WriteIds(committed=True)
    for write_id in range(1, 2 * ABORTED_RUNS_MAX + 3, 2):
        state.allocate(9, write_id)
        state.abort(write_id)
        state.commit(write_id + 1)
    assert not state.known
    assert len(state.aborted_runs) <= ABORTED_RUNS_MAX
    state.replace(9_000, [], [8_999])
    assert (state.known, state.aborted_runs) == (True, [(8_999, 8_999)])
