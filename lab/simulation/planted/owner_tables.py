"""Planted bugs in reads and fills of a catalog: its tables, its other objects, and what follows a live metastore."""

from __future__ import annotations

from typing import Final

from consumers.fold import catalog as fold_catalog
from consumers.fold import objects
from consumers.owner import tables
from consumers.owner.objects import answering, filter
from lab.simulation.planted.decisions import OTHER_TABLE_ID, REACHED_BY_MARK
from lab.simulation.planted.planting import Replace, Return, Swap, always, catalog, leave_out, never, warehouse
from serving.client.session import SessionState
from serving.reads import tables as front_tables
from serving.reads.objects import ObjectReads
from stream.sources.hive.foreign_keys import ForeignKeys
from stream.sources.hive.live import metastore, partitions, pointing
from stream.sources.hive.live.following import Following
from stream.sources.hive.live.images import Images
from stream.sources.hive.live.objects import Objects
from stream.sources.hive.object_events import ObjectEvents
from stream.sources.hive.recent_ids import RecentWriteIds
from stream.sources.hive.translator import HiveTranslator
from tokens import decision

VOIDED: Final = "(any_state.epoch, any_state.image_ordinal) <= (any_void.epoch, any_void.ordinal)"

DEMANDS: Final = (
    catalog(
        "recreated_table_by_name",
        "a table is found by its name, whatever id was requested",
        Replace(
            tables.answer_table,
            "any_state = any_store.get(table_key(table_id))",
            "table_id = bound or table_id\nany_state = any_store.get(table_key(table_id))",
        ),
        never(decision.decide, OTHER_TABLE_ID),
    ),
    catalog(
        "list_and_id_not_required",
        "a transactional table is served to a demand without its id",
        Return(tables.require_write_ids, "None"),
        never(decision.decide, OTHER_TABLE_ID),
    ),
    catalog(
        "external_table_needs_no_position",
        "an external table is fresh for every demand",
        Replace(
            tables.decide_table,
            "replace(any_demand, write_ids=None)",
            "replace(any_demand, write_ids=None, vector=type(any_demand.vector)())",
        ),
        Replace(decision._judge_component, REACHED_BY_MARK, "by_mark is not None"),
    ),
    catalog(
        "session_not_asked_of_a_table",
        "a folded table is fresh if the list is covered, whatever the session has seen",
        Replace(
            tables.answer_from_state,
            "decide_table(any_found, any_kind, any_list, any_id, any_demand, any_kin)",
            "decide_table(any_found, any_kind, any_list, any_id, "
            "Demand(write_ids=any_demand.write_ids, table_id=any_demand.table_id, given=True), kin)",
        ),
    ),
)
UNTOLD: Final = (
    warehouse(
        "ids_without_an_event_are_never_learnt",
        "a table whose write ids no event has told is read at the metastore for ever",
        Return(tables._has_more_ids, "False"),
    ),
    warehouse(
        "skipped_ids_are_not_asked_for",
        "write ids between those that events have told are valid to nobody",
        leave_out(HiveTranslator._allocate, "if allocation.skipped and any_test:\n    ..."),
    ),
)
TORN: Final = (
    catalog(
        "state_ahead_of_its_head",
        "a table that was folded after the voids were looked at is served by what they were",
        Return(tables.is_ahead, "False"),
        never(tables.list_position, "any_state.ordinal > any_lineage.watermark_ordinal"),
    ),
)
EVENTUAL: Final = (
    catalog(
        "covered_list_is_eventual",
        "a covered list proves nothing to a session that has seen nothing",
        leave_out(decision.decide, "if wanted_list is not None:\n    return any_covered"),
    ),
    catalog(
        "source_proves_no_list",
        "the source's answer is called eventual although it covers the list",
        Replace(front_tables.judge_table, "any_epoch is None and any_served", "any_served"),
    ),
)
STATES: Final = (
    catalog(
        "table_void_not_met",
        "a void is ignored when a table is read",
        never(tables.why_unservable, VOIDED),
    ),
    catalog(
        "table_void_off_by_one",
        "a void does not cover the event right before it",
        Replace(
            tables.why_unservable,
            VOIDED,
            "(any_state.epoch, any_state.image_ordinal) < (any_void.epoch, any_void.ordinal)",
        ),
    ),
    catalog(
        "table_watermark_after_its_state",
        "an owner takes the watermark after the table's state",
        Swap(tables.answer_table, "any_head = any_store.visible", "any_state = any_store.get(table_key(...))"),
    ),
)
FILLS: Final = (
    catalog(
        "demand_stored_as_tag",
        "a fill is stamped with the reader's list",
        Replace(
            tables.decide_answer,
            "ValidWriteIdList.parse(any_ids)",
            "demand.write_ids",
        ),
        Replace(tables.list_of, "any_state.kind != TRANSACTIONAL or ...", "any_state.kind != TRANSACTIONAL"),
    ),
)
FOLLOWING: Final = (
    warehouse(
        "list_is_not_brought_forward",
        "a fetched list is published without the events that were read since",
        Return(RecentWriteIds.brought_forward, "True"),
    ),
    warehouse(
        "holders_are_not_asked_for",
        "nobody asks whose write ids are that were open when the source began, nor reads their tables again",
        Return(Images._unknown_holders, "{}"),
        leave_out(Following._reconcile, "self._progress.touch(self._images.unheld)"),
    ),
    warehouse(
        "collapsed_list_taken_for_whole",
        "open ids that the server does not list, since none is committed yet, are unknown",
        Return(metastore.Metastore.without_collapse, "{}"),
    ),
    warehouse(
        "no_partition_columns_are_not_known",
        "of a table without partition columns nobody says that it has no partitions",
        Return(partitions._whole, "[]"),
    ),
    warehouse(
        "external_table_waits_for_writers",
        "a write of an external table waits for all who have write ids under its name",
        always(fold_catalog._take_write, "any_state.kind == TRANSACTIONAL"),
        never(fold_catalog._take_image, "any_state.kind != TRANSACTIONAL"),
    ),
    warehouse(
        "unfetched_object_is_forgotten",
        "an object whose fetch failed is not fetched again, and not looked at later either",
        leave_out(Objects.step, "self._single.add((kind, name))"),
        Return(Objects._compare_next, "False"),
    ),
    warehouse(
        "end_of_the_log_as_it_was_asked_for",
        "what is fetched counts as read before events that are published already",
        Replace(
            Following._read_to_end,
            "self._drain(self._metastore.last_event())",
            "asked = self._metastore.last_event()\nself._drain(asked)\nreturn asked",
        ),
    ),
    warehouse(
        "unlogged_abort_is_not_missed",
        "a transaction that ended without an event is open for ever",
        Replace(Following._reconcile, "sorted(any_ended)", "[]"),
    ),
    warehouse(
        "unlogged_alter_of_a_database_is_missed",
        "what a metastore changes of databases without an event is never looked for",
        leave_out(Objects._look, "self._to_compare = ..."),
    ),
    warehouse(
        "unlogged_alter_of_a_function_is_missed",
        "what a metastore changes of functions without an event is never looked for",
        leave_out(Objects._look, "for name, found in functions: ..."),
    ),
    warehouse(
        "image_of_a_materialized_view",
        "the image of a materialized view is published, which a REBUILD changes without an event",
        never(Images._publish_table, "any_table.is_materialized"),
    ),
    warehouse(
        "fill_of_a_materialized_view",
        "a materialized view that was read from the metastore is kept, until an event says that it was written",
        never(front_tables.fill_of, "not any_seen.is_logged"),
    ),
    warehouse(
        "unlogged_drop_is_missed",
        "a database or function that went without an event is shown for ever",
        leave_out(Objects._look, "self._single |= ..."),
    ),
    warehouse(
        "unlogged_drop_before_a_restart_is_missed",
        "what went without an event while the source was away is shown for ever",
        leave_out(Objects._look, "self._sets |= self._unlisted"),
    ),
    warehouse(
        "aborted_is_open",
        "aborted ids of the server's lists are taken for open ones, and open ones for aborted",
        Replace(metastore._by_bits, "any_raw[any_at // 8] >> any_bit & 1", "not raw[at // 8] >> (at % 8) & 1"),
    ),
    warehouse(
        "table_from_before_a_void_of_everything",
        "a table that was read before everything was voided is published after it",
        Replace(Images.take, "max(self.touched.get(any_name, 0), self.voided_at)", "self.touched.get(name, 0)"),
        leave_out(Following._note, "self._recent.forget(event_id)"),
    ),
)
ENTANGLED: Final = (
    warehouse(
        "cascade_is_not_suspected",
        "an altered table leaves its partitions as they were",
        Replace(ObjectEvents.of_altered_table, "voids if any_is else ()", "()"),
    ),
    warehouse(
        "altered_table_as_its_event_shows_it",
        "the table in an event is published as what the metastore has",
        Replace(HiveTranslator._written, "self._with_images and table.image and any_last", "table.image"),
    ),
    warehouse(
        "foreign_keys_follow_their_own_table_only",
        "constraints stay when the table changes that they point to",
        Return(ForeignKeys.changed_with, "[]"),
    ),
    warehouse(
        "foreign_keys_that_come_to_light_are_not_asked_for",
        "a foreign key that was not shown is unknown when the table that it points to gets its key again",
        Return(pointing.brought_to_light, "[]"),
    ),
    warehouse(
        "foreign_keys_are_forgotten_at_a_restart",
        "a restarted source does not know who points to a table",
        Replace(Following._cursor, "self._foreign_keys.told", "{}"),
    ),
    warehouse(
        "foreign_keys_from_before_the_other_tables_event",
        "constraints are published that were read before the table changed that they point to",
        Return(ForeignKeys.touched_at, "0"),
    ),
)
DROPPING: Final = (
    warehouse(
        "dropped_table_leaves_its_partitions",
        "what belongs to a dropped table stays",
        Return(objects.forget_objects, "()"),
    ),
    warehouse(
        "made_again_and_forgotten",
        "a partition that was made again goes when its earlier drop is forgotten",
        Replace(
            objects.fold_object,
            "(any_found.ordinal, any_found.write_position) if any_found is not None and _is_gone(any_found) else None",
            "(found.ordinal, found.write_position or event['gtid']) if found is not None else None",
        ),
    ),
    warehouse(
        "forgotten_partition_is_awaited",
        "a partition whose drop is forgotten waits for an image once a source says late that it is not there",
        Replace(objects.fold_object, "any_change == 'dropped' and any_value is None", "False"),
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
        "NOT IN is IN",
        Replace(filter._Parser._condition, "self._in(any_place, any_key, any_negated)", "self._in(place, key, False)"),
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
BUGS: Final = (
    *DEMANDS,
    *UNTOLD,
    *TORN,
    *EVENTUAL,
    *STATES,
    *FILLS,
    *FOLLOWING,
    *ENTANGLED,
    *DROPPING,
    *ANSWERING,
    *SESSIONS,
)
