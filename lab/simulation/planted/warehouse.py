"""Planted bugs in what follows a live metastore, and in what answers for partitions, databases and functions."""

from __future__ import annotations

from typing import Final

from consumers.owner.objects import answering, filter
from lab.simulation.planted.planting import Replace, Return, leave_out, never, warehouse
from serving.client.session import SessionState
from serving.reads.objects import ObjectReads
from stream.sources.hive.live import metastore
from stream.sources.hive.live.following import Following
from stream.sources.hive.live.images import Images
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.translator import HiveTranslator

FOLLOWING: Final = (
    warehouse(
        "old_image_under_the_new_name",
        "a renamed table has its new name before its image is awaited",
        Replace(
            HiveTranslator._alter,
            "any_lists + any_written + any_names + any_objects",
            "any_lists + any_names + any_written + any_objects",
        ),
    ),
    warehouse(
        "list_is_not_brought_forward",
        "a fetched list is published without the events that were read since",
        Return(RecentWriteIds.brought_forward, "True"),
    ),
    warehouse(
        "holders_are_not_asked_for",
        "nobody asks whose write ids are that were open when the source began",
        Return(Images._unknown_holders, "{}"),
    ),
    warehouse(
        "unlogged_abort_is_not_missed",
        "a transaction that ended without an event is open for ever",
        Replace(Following._reconcile, "sorted(any_ended)", "[]"),
    ),
    warehouse(
        "aborted_is_open",
        "aborted ids of the server's lists are taken for open ones, and open ones for aborted",
        Replace(metastore._by_bits, "any_raw[any_at // 8] >> any_bit & 1", "not raw[at // 8] >> (at % 8) & 1"),
    ),
)
ANSWERING: Final = (
    warehouse(
        "pages_of_two_moments",
        "the second page of a set that has changed is given",
        never(answering._take_list, "any_request.version and any_request.version != any_found.version"),
    ),
    warehouse(
        "partitions_of_an_open_writer",
        "partitions are served while a transaction that wrote their table is open",
        Replace(answering._why_unservable, "why_unservable(any_table, ...)", "''"),
    ),
    warehouse(
        "awaited_partition_is_shown",
        "a partition that was written is shown as it was",
        never(answering._take_list, "any_state.is_awaited or any_state.image_ordinal <= any_floor"),
    ),
    warehouse(
        "filter_knows_no_not",
        "NOT IN and NOT BETWEEN are IN and BETWEEN",
        Return(filter._negated, "matches"),
    ),
    warehouse(
        "filter_compares_from_the_left_only",
        "a value before the key is compared as if it stood behind it",
        Replace(filter._Parser._condition, "_REVERSED.get(any_sign, any_sign)", "sign"),
    ),
)
SESSIONS: Final = (
    warehouse(
        "objects_not_in_the_token",
        "objects from the cache leave the session's token as it was",
        Replace(ObjectReads.read, "token_after(any_token, ...)", "any_token"),
    ),
    warehouse(
        "session_forgets_objects",
        "a session does not keep the token of objects that it has read",
        leave_out(SessionState._plan_objects, "self._answered(found.token, demanded)"),
    ),
)
BUGS: Final = (*FOLLOWING, *ANSWERING, *SESSIONS)
"""All planted bugs."""
