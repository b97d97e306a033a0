"""The checkers themselves: each one can find a bug."""

from __future__ import annotations

from typing import Final

import pytest

from consumers.owner import rows as owner_rows
from consumers.store import store
from lab.simulation.campaign import hunt
from lab.simulation.planted.every import PLANTED_BUGS
from lab.simulation.planted.kept import kept_catches
from lab.simulation.planted.planting import Change, PlantedBug, Replace, Return
from lab.simulation.worlds import all_worlds
from serving import answers
from serving.client.session import SessionState
from serving.reads.locations import LocationReads
from serving.reads.ranges.reading import RangeReads
from stream.publish.publisher import Publisher
from stream.sources.hive.translator import HiveTranslator
from stream.wire.batch import Framer
from tokens import decision

WORLDS = all_worlds()
SEEDS: Final = (3, 2, 5, 7)
"""With one of them each crude bug breaks its own rule first."""
HISTORIES_MAX = 5_000
MISCOUNTED = Replace(Framer.add, "any_txn.gtid, any_end, True", "any_txn.gtid, max(1, any_end - 1), True")
UNSEEN = Replace(store.PartitionStore.items, "frozen.built()", "dict()")
FIRST_TOKEN_KEPT: Final = Replace(
    SessionState.plan_token, "any_demand.token", "self.__dict__.setdefault('first', any_demand.token)"
)
ONLY_THE_FIRST_TOKEN: Final = Replace(
    SessionState._answered, "any_token and any_token != any_demanded.token", "token and not demanded.vector"
)
CRUDE: Final[dict[tuple[str, str], Change]] = {
    ("catalog", "same history, same state"): UNSEEN,
    ("catalog", "never raises"): MISCOUNTED,
    ("hive", "never raises"): Return(HiveTranslator._describe, "1 // 0"),
    ("replicas", "no stale answer"): Return(decision._judge_component, "None"),
    ("installation", "no stale answer"): FIRST_TOKEN_KEPT,
    ("installation", "never raises"): Return(answers.raw_image, "1 // 0"),
    ("installation", "locations never go back"): Replace(
        LocationReads._place, "version.epoch, any_term, any_a, any_b", "-version.epoch, any_term, any_a, any_b"
    ),
    ("warehouse", "monotonic reads"): ONLY_THE_FIRST_TOKEN,
    ("warehouse", "never raises"): Return(answers.raw_image, "1 // 0"),
    ("successions", "no stale answer"): Return(answers.raw_image, "msgspec.Raw(b'{}')"),
    ("successions", "monotonic reads"): ONLY_THE_FIRST_TOKEN,
    ("successions", "whole ranges"): Replace(RangeReads._answer, "any_found.number", "any_found.number + 1000"),
    ("successions", "explanation true"): Replace(
        owner_rows.decide_row, "HISTORY_LOST if decision.history_lost else ''", "HISTORY_LOST"
    ),
    ("successions", "recovers by itself"): Return(Publisher.publish, "None"),
    ("successions", "never raises"): Return(Publisher.flush, "1 // 0"),
    ("connectors", "never raises"): Return(Publisher.flush, "1 // 0"),
    ("postgres", "recovers by itself"): Return(Publisher.publish, "None"),
    ("postgres", "never raises"): Return(Publisher.flush, "1 // 0"),
}
"""World and rule → a bug for a rule that no planted bug breaks first. They are too crude to be planted."""
CAUGHT_BY: Final[dict[tuple[str, str], list[tuple[int, int]]]] = {
    ("installation", "no stale answer"): [(3, 19)],
    ("installation", "locations never go back"): [(2, 69)],
    ("successions", "monotonic reads"): [(2, 317)],
}
"""World and rule → seed and number of a history that its crude bug breaks first: the hunt begins there.

If histories change, the hunt from the beginning finds another one, which takes minutes: then put its number here.
"""
KEPT: Final = kept_catches()
PLANTED: Final = {(bug.world, KEPT[bug.name].rule) for bug in PLANTED_BUGS if bug.name in KEPT}
RULES: Final = [(name, rule) for name, world in WORLDS.items() for rule in world.rules]


def test_every_rule_of_a_world_is_checked_by_its_own_checker() -> None:
    """For each there is a planted bug whose kept history (`test_planted_bugs`) breaks it first, or a crude one."""
    assert [each for each in RULES if each not in PLANTED and each not in CRUDE] == []
    assert [each for each in CRUDE if each not in RULES or each in PLANTED] == []


@pytest.mark.slow
@pytest.mark.parametrize(("world", "rule"), CRUDE)
def test_a_rule_is_broken_first_by_its_crude_bug(world: str, rule: str) -> None:
    """A rule that no planted bug breaks first can still complain."""
    crude = PlantedBug("crude", "...", world, (CRUDE[world, rule],))
    places = [*CAUGHT_BY.get((world, rule), []), *((seed, 0) for seed in SEEDS)]
    assert any(hunt(crude, seed, HISTORIES_MAX, first=first).rule == rule for seed, first in places)
