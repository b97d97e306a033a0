"""Planted bugs in handing shards over: where successors begin, and who is ended."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, Return, leave_out, successions
from stream.publish.handover import (
    WithoutImages,
    _joint,
    as_told,
    begins_at,
    check_goes_on,
    joint_position,
    take_over,
    told_before,
)
from stream.publish.publisher import Publisher

BUGS: Final = (
    successions(
        "joint_position_of_who_was_ahead",
        "what two ancestors have in common counts as far as one of them has published it",
        Replace(_joint, "min(mine[domain], theirs[domain], key=...)", "max(mine[domain], theirs[domain])"),
    ),
    successions(
        "joint_position_is_the_union",
        "of MySQL's positions what one ancestor has published counts for all",
        Replace(_joint, "union.difference(...)", "union"),
    ),
    successions(
        "successor_begins_where_the_first_one_ends",
        "a successor of two shards begins at the end of one of them",
        Replace(begins_at, "joint_position(...)", "points[0].position"),
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
        "lagging_server_begins",
        "a successor begins before its server has what its ancestors have published",
        Replace(joint_position, "str(reduce(_joint, map(Position.parse, positions)))", "''"),
    ),
    successions(
        "told_again_with_images",
        "what an ancestor has told comes again with its rows, which may have changed since",
        Return(told_before, "''"),
    ),
    successions(
        "told_before_counts_for_all",
        "transactions that nobody has told come without their rows",
        Replace(as_told, "told.contains(Position.parse(txn.gtid))", "True"),
    ),
    successions(
        "retold_with_images",
        "a row of a transaction that was told keeps its image",
        Replace(WithoutImages.__getitem__, "RowChange(change.key, VOID)", "change"),
    ),
    successions(
        "ended_shard_goes_on",
        "a source of a shard that was handed over publishes again",
        Return(check_goes_on, "None"),
    ),
    successions(
        "end_is_not_written",
        "who ends a shard does not say so in its last state",
        Replace(Publisher._bind, "self._topology.ends_for", "''"),
    ),
)
