"""Planted bugs in handing shards over: where successors begin, and who is ended."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, leave_out, never, successions
from stream.publish.handover import (
    _not_begun,
    as_told,
    begins_at,
    take_over,
)
from tokens import decision

BUGS: Final = (
    successions(
        "successor_begins_where_the_first_one_ends",
        "a successor of two shards begins at the end of one of them",
        Replace(begins_at, "joint_position(...)", "ended[0].point.position"),
    ),
    successions(
        "history_of_a_split_is_its_halves_own",
        "what came up in a split shard later, and one half has told, is taken for that half's own by a merge",
        Return(_not_begun, "set()"),
    ),
    successions(
        "ancestor_is_not_ended",
        "a successor begins, and its ancestor goes on publishing",
        leave_out(take_over, "end(each.point.shard)"),
    ),
    successions(
        "end_is_not_read_again",
        "a successor begins where its ancestor was before it was ended",
        Replace(
            take_over,
            "if going_on:\n    found = [read_ancestor(kafka, topic, name) for name in names]\n    can_begin(...)",
            "pass",
        ),
    ),
    successions(
        "told_again_with_images",
        "a successor tells what one of its ancestors has told with the images that the rows had then",
        Return(as_told, "txn"),
    ),
    successions(
        "ancestors_demand_nothing",
        "what a session has seen in a shard before it was split is not demanded of those that succeed it",
        never(decision._judge_vector, "shard in tag.ancestors"),
    ),
)
