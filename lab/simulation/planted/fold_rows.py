"""Planted bugs in the fold of rows, markers and voids."""

from __future__ import annotations

from typing import Final

from consumers.fold import backfills, markers, messages, shards, state
from consumers.fold import columns as column_fold
from consumers.fold import rows as row_fold
from consumers.owner import rows as owner_rows
from consumers.store import building
from consumers.store.memtable import Memtable
from lab.simulation.planted.planting import Begin, Replace, Return, always, leave_out, never, processes, rows
from stream.wire import codec, records
from stream.wire import columns as frame_columns

LATER: Final = "(any_new.epoch, any_new.ordinal) > (any_old.epoch, any_old.ordinal)"

EVENTS: Final = (
    rows(
        "watermark_without_marker",
        "rows move the watermark",
        Replace(
            row_fold.fold_rows,
            "any_lineage._replace(ordinal=any_last)",
            "any_lineage._replace(ordinal=any_last, watermark=(frame['positions'] or frame['gtids'])[-1])",
        ),
        Replace(
            row_fold.fold_run,
            "any_lineage._replace(ordinal=any_last)",
            "any_lineage._replace(ordinal=any_last, watermark=decode_entry([*entries.values()][-1]).position)",
        ),
    ),
    rows(
        "timestamps_order",
        "two events of a key are ordered by their timestamps",
        Replace(row_fold._settle, LATER, "(any_new.epoch, any_new.timestamp) > (any_old.epoch, any_old.timestamp)"),
    ),
    rows(
        "gtids_order",
        "two events of a shard are ordered by their GTIDs as sets",
        Replace(
            row_fold._settle,
            "any_old.shard == any_new.shard",
            "any_old.shard == any_new.shard and"
            " Position.parse(any_new.position).order(Position.parse(any_old.position)) is not Order.UNKNOWN",
        ),
        Replace(row_fold._row_tags, 'any_frame["positions"] or any_frame["gtids"]', 'any_frame["gtids"]'),
    ),
    rows(
        "duplicates_win",
        "an event that was already folded is folded again",
        always(row_fold._settle, LATER),
    ),
    rows(
        "tombstone_forgotten",
        "a deleted row leaves no tombstone",
        Replace(
            row_fold._checked_entries,
            "any_entries[any_key] = any_entry",
            "if operation == VALUE:\n    any_entries[any_key] = any_entry",
        ),
    ),
    rows(
        "other_shards_entry_replaced",
        "an event whose order to another shard's entry is unknown replaces it",
        Replace(row_fold._settle, "any_tag = encode_transaction_tag(...)", "return value"),
    ),
    rows(
        "bad_row_voids_nothing",
        "a row with an invalid operation is skipped",
        Replace(row_fold._settle_by_key, "any_operation = VOID", "continue"),
    ),
    rows(
        "bad_key_voids_nothing",
        "a row with an invalid key becomes a dead letter but voids nothing",
        leave_out(row_fold._settle_by_key, "any_voids[EVERY_TABLE, any_shard] = ..."),
    ),
    rows(
        "bad_key_voids_what_was_before_its_frame",
        "a row with an invalid key does not void the rows before it in its frame",
        Replace(row_fold._settle_by_key, "max(any_lineage.ordinal, any_ordinal)", "any_lineage.ordinal"),
    ),
    rows(
        "event_sets_ordinal_back",
        "a repeated event sets back the last folded ordinal, and with it the range of a void",
        Replace(messages._fold_event, "max(last, any_ordinal)", "any_ordinal"),
    ),
    rows(
        "columns_fold_otherwise",
        "rows that are folded by column all get the first one's time",
        Replace(building._gather, "any_columns.timestamps[any_rows]", "any_columns.timestamps[any_rows[:1]]"),
    ),
    processes(
        "runs_fold_otherwise",
        "single-row frames that are folded together all get the first one's time",
        Replace(
            row_fold.fold_run,
            "last_timestamp, seconds = timestamp, any_seconds",
            "last_timestamp, seconds = timestamp, seconds or any_seconds",
        ),
    ),
    processes(
        "run_ends_too_early",
        "the message after single-row frames that were folded together is skipped",
        Replace(
            messages.fold_messages,
            "any_changes, any_at = run",
            "any_changes, any_at = run[0], min(run[1] + (run[1] - any_at > 2), end)",
        ),
    ),
)
COLUMNS: Final = (
    processes(
        "columns_give_all_rows_one_gtid",
        "the GTIDs of rows that are folded by column are all the first one's",
        Replace(building._gather, "columns.transactions[rows]", "columns.transactions[rows] * 0"),
    ),
    rows(
        "columns_give_rows_their_gtids_position",
        "rows that are folded by column stand at their GTIDs, also where their positions are others",
        Replace(frame_columns._transactions, "fields['positions'].counts > 0", "fields['positions'].counts < 0"),
    ),
    processes(
        "columns_keep_the_first_row",
        "of several changes of a key that are folded by column the first one counts",
        Replace(
            Memtable.put,
            "self.entries.update(islice(any_rows, any_count))",
            "self.entries.update({k: n for k, n in list(islice(any_rows, any_count))[::-1]})",
        ),
    ),
    processes(
        "columns_end_too_late",
        "after a run that is folded by column a message is passed over",
        Replace(column_fold.fold_columns, "records[any_at][0] + 1", "records[any_at][0] + 1 + (any_at > 1)"),
    ),
    processes(
        "columns_pass_over_markers",
        "the markers between frames that are folded by column move no watermark",
        leave_out(column_fold._moved, "lineages |= each.lineages"),
    ),
    processes(
        "columns_keep_voids_waiting",
        "the markers between frames that are folded by column end no void's wait",
        leave_out(column_fold._moved, "voids |= each.voids"),
    ),
    processes(
        "columns_take_markers_too_early",
        "a marker after a frame that is not folded by column moves the watermark before that frame is folded",
        Replace(
            column_fold.fold_columns,
            "fold_columns(state, records[: any_places[any_read]], at)",
            "(lambda found: (found[0] and _moved("
            "head, found[0], [each for of in marks.values() for each in of.changes],"
            " {shard: each.ordinal for shard, each in found[0].lineages.items()}), found[1]))"
            "(fold_columns(state, records[: any_places[any_read]], at))",
        ),
    ),
)
MARKERS: Final = (
    rows(
        "older_marker_taken",
        "a repeated marker sets the watermark back and ends the wait of a later void",
        never(markers.fold_marker, "any_ordinal < any_lineage.watermark_ordinal"),
        always(markers._end_voids, "any_void.ordinal <= any_ordinal"),
    ),
    rows(
        "equal_marker_ignored",
        "a marker after transactions without events does not move the watermark",
        Replace(
            markers.fold_marker,
            "any_ordinal < any_lineage.watermark_ordinal",
            "any_ordinal <= any_lineage.watermark_ordinal and any_lineage.watermark",
        ),
    ),
    rows(
        "part_ends_voids",
        "a void's wait ends at the marker of a batch that ends inside a transaction",
        always(markers.fold_marker, 'any_marker["whole"]'),
    ),
    rows(
        "gap_in_the_log_passed_over",
        "a marker that follows another one than the last folded voids nothing",
        never(records.follows_a_gap, "bool(any_held and any_previous) and ..."),
    ),
    rows(
        "other_shards_marker_ends_voids",
        "a void's wait ends at another shard's marker",
        always(markers._end_voids, "any_scope[1] == any_shard"),
        always(markers._end_voids, "any_void.epoch == any_epoch"),
    ),
)
NEWER: Final = (
    rows(
        "newer_record_passed_over",
        "a record that this version does not have, and must not pass over, is passed over",
        leave_out(codec._decode_announced, "raise NewerWireError(...)"),
    ),
    rows(
        "remark_is_poison",
        "a record that may be passed over voids its partition",
        always(messages._read, "any_found is None"),
    ),
)
VOIDS: Final = (
    rows(
        "poison_voids_nothing",
        "an invalid message becomes a dead letter but voids nothing",
        Replace(
            messages._poison,
            "Changes(any_after, any_entries, any_moved, any_voids, rejections=any_rejections)",
            "Changes(any_after, any_entries, any_moved, {}, rejections=any_rejections)",
        ),
    ),
    rows(
        "poison_void_off_by_one",
        "the void of an invalid message ends one event too early",
        Replace(shards.void_everything, "any_lineage.ordinal", "any_lineage.ordinal - 1"),
    ),
    rows(
        "older_void_replaces",
        "a repeated void replaces a newer one",
        always(messages._fold_table_void, "any_before is None or ..."),
    ),
)
EPOCHS: Final = (
    rows(
        "epoch_voids_nothing",
        "a new epoch does not void the entries of the one before",
        leave_out(messages._fold_epoch_start, "any_voids = {(EVERY_TABLE, any_shard): Void(...)}"),
        Return(shards.arrival_voids, "{}"),
    ),
    rows(
        "older_epoch_folded",
        "an event of an epoch that has ended is folded",
        Replace(shards.lineage_for, "any_epoch == any_lineage.epoch and not any_over", "True"),
    ),
    rows(
        "epoch_start_counts_twice",
        "a repeated start of an epoch voids again, with a smaller range",
        never(messages._fold_epoch_start, "any_before is not None and any_before.epoch == any_epoch and any_more"),
    ),
)
HEADS: Final = (
    processes(
        "offset_one_too_far",
        "the durable offset skips a message",
        Replace(state.head_entries, "any_head.offset", "any_head.offset + (1 if any_head.offset else 0)"),
    ),
    processes(
        "watermarks_not_durable",
        "each shard's progress is lost in a crash",
        leave_out(state.read_head, "any_head.lineages[...] = ..."),
    ),
    processes(
        "layout_not_durable",
        "the layout is lost in a crash",
        leave_out(state.read_head, "any_head.layout = ..."),
    ),
    processes(
        "voids_not_durable",
        "the voids are lost in a crash",
        leave_out(state.read_head, "any_head.voids[...] = ..."),
    ),
    processes(
        "head_of_before_stays_durable",
        "a commit writes what is new in the head, and not what has changed",
        Replace(state._changed, "any_before.get(any_key) is not any_value", "any_key not in any_before"),
    ),
)
EACH_TIME: Final = (
    processes(
        "frame_has_one_time",
        "all rows of a frame get the time of its first transaction",
        Replace(
            row_fold._row_tags,
            'encode_transaction_tags(any_shard, any_epoch, any_positions, any_frame["timestamps"])',
            'encode_transaction_tags(any_shard, any_epoch, any_positions, [frame["timestamps"][0]] * len(positions))',
        ),
    ),
    processes(
        "watermark_keeps_its_first_time",
        "the time of a shard's first marker is kept",
        Replace(
            markers.fold_marker, 'any_marker["timestamp"]', 'lineage.watermark_timestamp or any_marker["timestamp"]'
        ),
    ),
    processes(
        "floor_is_the_low_water",
        "after a void, fills are accepted from the low-water on",
        Replace(
            markers._end_voids,
            'any_void._replace(floor=any_marker["position"])',
            'any_void._replace(floor=marker["low_water"])',
        ),
    ),
    processes(
        "low_water_outlives_its_epoch",
        "a new epoch keeps the low-water of the one before",
        Replace(
            messages._fold_epoch_start,
            "any_moved._replace(low_water=any_position)",
            "any_moved._replace(low_water=before.low_water if before else any_position)",
        ),
    ),
    processes(
        "stranger_voids_nothing",
        "a shard that nobody declared takes nothing from the others",
        Replace(shards.arrival_voids, "void_everything(...) if any_stranger else {}", "{}"),
    ),
    processes(
        "unknown_operation_is_kept",
        "an operation that does not exist is stored as it is",
        Replace(
            row_fold._settle_by_key,
            "any_operation not in any_kinds or (any_operation == VALUE and not any_image)",
            "any_operation == VALUE and not any_image",
        ),
    ),
)
"""Every fold makes the same mistake, so only the naive fold shows it."""
WHOLE: Final = (
    rows(
        "whole_over_a_void",
        "what is known of a whole table is kept over a void of it",
        never(backfills._whole, "any(...)"),
    ),
    rows(
        "whole_without_a_beginning",
        "a partition that began in the middle of a backfill calls the table whole",
        Begin(
            backfills.adopt_backfill,
            'if event["complete"] and (event["table"], event["shard"]) not in head.backfills:\n'
            '    place = event["epoch"], event["ordinal"]\n'
            '    held = Backfill(*place, place[1], event["position"], event["timestamp"])\n'
            '    return {(event["table"], event["shard"]): held}',
        ),
    ),
    rows(
        "whole_of_one_of_two_shards",
        "a table is called whole although the keyspace has another shard, of which nothing has been heard yet",
        never(backfills._telling_shards, "any_topology.shards != (any_shard,)"),
        never(
            shards.sole_lineage,
            "any_topology is not None and any(shard not in any_head.lineages for shard in any_topology.shards)",
        ),
    ),
    rows(
        "unknown_images_are_absent",
        "in a whole table a row whose image is unknown is called absent",
        Replace(owner_rows.view_row, "is_hidden = False", "is_hidden = kind == VOID"),
    ),
)
DROPPED: Final = (
    rows(
        "tombstone_of_an_incomplete_table_dropped",
        "a tombstone is dropped although its table is not complete",
        Replace(
            backfills.drop_lines,
            "whole_shards(any_head, any_table)",
            "[shard for name, shard in head.backfills if name == table and shard in head.lineages]",
        ),
    ),
    rows(
        "tombstone_dropped_before_its_marker",
        "a tombstone is dropped before a marker covers it",
        Replace(
            backfills.drop_lines,
            "Dropped(any_lineage.epoch, any_lineage.watermark_ordinal, any_lineage.watermark, *void)",
            "Dropped(any_lineage.epoch, any_lineage.ordinal, any_lineage.watermark, *void)",
        ),
    ),
    rows(
        "dropped_tombstone_is_no_deletion",
        "an earlier event that comes again brings a row back whose tombstone was dropped",
        Begin(row_fold._settle_over, "lines = {}"),
    ),
    rows(
        "dropped_forgotten_with_completeness",
        "what was dropped of a table is forgotten when the table is not whole any more",
        Return(backfills.lines_left_behind, "{}"),
    ),
)
BUGS: Final = (*EVENTS, *COLUMNS, *MARKERS, *NEWER, *VOIDS, *EPOCHS, *WHOLE, *DROPPED, *HEADS, *EACH_TIME)
