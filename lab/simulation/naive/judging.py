"""Compares what an owner has folded with the naive fold of the same messages: state, progress and dead letters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from lab.simulation.models.owning import OwnedPartition
from lab.simulation.naive.facts import facts_of_bytes, facts_of_naive, first_difference
from lab.simulation.naive.partition import NaivePartition

SAME_STATE: Final = "same history, same state"
BY_THE_RULES: Final = "folded by the rules"


def check_fold(owned: OwnedPartition, complain: Callable[[str, str], None]) -> None:
    """Checks that an owner's state is what the rules make of the log up to its offset.

    The real fold is compared with itself elsewhere. Only this finds a mistake that it makes each time.
    """
    if owned.has_seen_what_was_lost:
        return
    naive = NaivePartition(owned.begin)
    for offset, value in enumerate(owned.topic.partitions[owned.number][owned.begin : owned.offset], owned.begin):
        naive.fold(offset, value)
    state = owned.entries()
    if owned.refolded_by_column() != state:
        complain(SAME_STATE, f"partition {owned.number}: folded by column the log gives another state")
    by_column, one_by_one = owned.crowded()
    if by_column != one_by_one:
        complain(SAME_STATE, f"partition {owned.number}: without its markers the log folds to another state by column")
    found = first_difference(facts_of_bytes(state), facts_of_naive(naive, owned.offset))
    if found:
        complain(BY_THE_RULES if state == owned.refolded() else SAME_STATE, f"partition {owned.number}: {found}")
    expected = Counter(letter for letter in naive.letters if letter[0] >= owned.first)
    if owned.letters != expected:
        what = f"dead letters are {[*owned.letters]}, the naive fold has {[*expected]}"
        complain(BY_THE_RULES, f"partition {owned.number}: {what}")
