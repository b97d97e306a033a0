"""The checkers themselves: each one can find a bug."""

from __future__ import annotations

from typing import Final

import pytest

from consumers.fold import markers
from consumers.fold.catalog_state import TableState
from consumers.process.announcing import Announcer
from consumers.store import store
from lab.simulation.campaign import hunt
from lab.simulation.planted.every import planted_bugs
from lab.simulation.planted.planting import Change, PlantedBug, Replace, Return
from lab.simulation.worlds import all_worlds
from serving import answers
from serving.client.session import SessionState
from serving.reads import proof
from stream.sources.hive.translator import HiveTranslator
from stream.wire.batch import Framer
from tokens import decision

WORLDS = all_worlds()
HISTORIES_MAX = 5_000
MISCOUNTED = Replace(Framer.add, "any_txn.gtid, any_end, True", "any_txn.gtid, max(1, any_end - 1), True")
UNSEEN = Replace(store.PartitionStore.items, "self._frozen.built() | self._active.built()", "self._active.built()")
FIRST_TIME_KEPT: Final = Replace(
    markers.fold_marker, 'any_marker["timestamp"]', 'lineage.watermark_timestamp or any_marker["timestamp"]'
)
CRUDE: Final[dict[str, Change]] = {
    "publisher_miscounts": MISCOUNTED,
    "frozen_entries_left_out": UNSEEN,
    "answers_fail": Return(answers.raw_image, "1 // 0"),
    "answers_invented": Return(answers.raw_image, 'msgspec.Raw(b\'{"id": 0, "version": 77}\')'),
    "nobody_announced": Return(Announcer.announce, "None"),
    "token_kept_from_the_first_time": Replace(
        SessionState.plan_token, "any_demand.token", "self.__dict__.setdefault('first', any_demand.token)"
    ),
    "first_time_kept": FIRST_TIME_KEPT,
    "never_servable": Return(TableState.waits_for, "'an image'"),
    "translation_fails": Return(HiveTranslator._describe, "1 // 0"),
    "older_is_fresh": Return(decision._judge_component, "None"),
    "lists_are_not_judged": Return(decision._judge_list, "None"),
    "image_need_not_follow": Return(TableState.waits_for, "''"),
    "only_the_first_token": Replace(
        SessionState._answered, "any_token and any_token != any_demanded.token", "token and not demanded.vector"
    ),
    "token_never_advances": Return(proof.token_after, "str(Vector.parse(token) if token else Vector())"),
}
FIRED_BY: Final = {
    "installation": {
        "no stale answer": "token_kept_from_the_first_time",
        "read your writes": "failed_commit_is_forgotten",
        "monotonic reads": "batch_has_the_last_token",
        "no older than allowed": "times_are_not_judged",
        "nothing uncommitted": "answers_invented",
        "explanation true": "cache_answer_moves_no_token",
        "recovers by itself": "nobody_announced",
        "never raises": "answers_fail",
    },
    "rows": {
        "no stale answer": "later_epoch_ignored",
        "read your writes": "unplaced_write_forgotten",
        "monotonic reads": "lost_token_forgets_other_shards",
        "nothing lost, nothing twice": "delete_not_published",
        "recovers by itself": "fill_at_the_watermark_refused",
        "same history, same state": "frozen_entries_left_out",
        "folded by the rules": "first_time_kept",
        "explanation true": "lost_token_is_the_old_one",
        "never raises": "publisher_miscounts",
    },
    "catalog": {
        "no stale answer": "image_need_not_follow_the_write",
        "the list is covered": "open_ids_of_the_tag_ignored",
        "monotonic reads": "token_never_advances",
        "nothing uncommitted": "pending_writer_ignored",
        "nothing lost, nothing twice": "only_the_last_alloc",
        "recovers by itself": "opened_delta_lost",
        "same history, same state": "frozen_entries_left_out",
        "folded by the rules": "drop_is_where_the_create_was",
        "explanation true": "list_and_id_not_required",
        "never raises": "publisher_miscounts",
    },
    "processes": {
        "same history, same state": "watermarks_not_durable",
        "folded by the rules": "frame_has_one_time",
        "what is durable is a prefix": "committed_is_what_is_folded",
        "never raises": "publisher_miscounts",
    },
    "hive": {
        "no stale answer": "rename_may_be_unreadable",
        "nothing uncommitted": "dropped_ids_are_kept",
        "the list is the server's own": "rename_leaves_the_ids",
        "recovers by itself": "never_servable",
        "never raises": "translation_fails",
    },
    "warehouse": {
        "no stale answer": "token_kept_from_the_first_time",
        "read your writes": "image_need_not_follow",
        "monotonic reads": "only_the_first_token",
        "the list is covered": "lists_are_not_judged",
        "nothing uncommitted": "answers_invented",
        "explanation true": "session_forgets_objects",
        "recovers by itself": "nobody_announced",
        "folded by the rules": "first_time_kept",
        "never raises": "answers_fail",
    },
    "replicas": {
        "no stale answer": "older_is_fresh",
        "recovers by itself": "neighbours_are_not_merged",
        "the order is the truth": "tag_is_not_written",
        "equal texts, equal values": "damage_is_not_seen",
        "the list is covered": "allocation_opens_one_id",
        "never raises": "prefix_is_decimal",
    },
}
"""World → rule → a planted bug that this rule catches first."""


@pytest.mark.slow
@pytest.mark.parametrize(("world", "rule"), [(name, rule) for name, world in WORLDS.items() for rule in world.rules])
def test_every_rule_of_a_world_is_checked_by_its_own_checker(world: str, rule: str) -> None:
    """For each checker there is a planted bug that it is the first to catch."""
    name = FIRED_BY[world][rule]
    planted = PlantedBug(name, name, world, (CRUDE[name],)) if name in CRUDE else planted_bugs(name)[0]
    assert hunt(planted, 1, HISTORIES_MAX).rule == rule
