"""Planted bugs in `consumers.owner`: reads of rows and ranges, and fills of rows."""

from __future__ import annotations

from typing import Final

from consumers.fold import declared
from consumers.owner import evidence, meaning
from consumers.owner import rows as reading
from consumers.owner.overlay import Overlay
from consumers.owner.ranges import answering, ground, indexed
from consumers.store.indexing import Indexing
from consumers.store.store import PartitionStore
from lab.simulation.planted.planting import Replace, Return, always, never, rows

VOIDED: Final = "(any_entry.epoch, any_entry.ordinal) <= (any_void.epoch, any_void.ordinal)"
BELOW_LOW_WATER: Final = "not any_lo.at_or_past(Position.parse(any_lineage.low_water))"
BELOW_TOMBSTONE: Final = "not any_lo.at_or_past(Position.parse(any_row.lo))"
BELOW_FLOOR: Final = "not any_lo.at_or_past(Position.parse(any_void.floor))"
BEHIND_WATERMARK: Final = "any_lineage.watermark and not any_lo.at_or_past(Position.parse(any_lineage.watermark))"

FILL_TAKEN: Final = (
    "any_row.image, any_row.lo, any_row.hi, any_row.timestamp"
    " = any_fill.image, any_fill.lo, any_fill.hi, any_fill.timestamp"
)

VIEWS: Final = (
    rows(
        "void_not_met",
        "a table's void is ignored when a row is read",
        never(reading.view_row, VOIDED),
    ),
    rows(
        "void_off_by_one",
        "a void covers only what is older than the event before it",
        Replace(
            reading.view_row,
            VOIDED,
            "(any_entry.epoch, any_entry.ordinal + 2) <= (any_void.epoch, any_void.ordinal)",
        ),
    ),
    rows(
        "epoch_of_the_head",
        "an entry of a new epoch is assigned to the old one while the new head is not visible",
        Replace(reading.view_row, "max(any_found.epoch, any_entry.epoch)", "any_found.epoch"),
        never(
            meaning.why_other_meaning,
            "any_lineage is None or (any_found.epoch, any_found.ordinal) > (any_lineage.epoch, any_lineage.ordinal)",
        ),
    ),
    rows(
        "watermark_before_value",
        "an owner takes the watermark after the entry",
        Replace(
            reading.answer_row,
            "any_head = any_store.visible\n"
            "any_view = view_row(any_head, any_key, any_store.get(any_key), any_last, any_prefix)",
            "value = any_store.get(any_key)\nany_head = any_store.visible\n"
            "any_view = view_row(any_head, any_key, value, any_last, any_prefix)",
        ),
    ),
    rows(
        "watermark_of_another_partition",
        "a watermark counts for every partition of its topic",
        Replace(
            reading.answer_row,
            "any_view = view_row(any_head, any_key, any_value, any_last, any_prefix)",
            'marks = getattr(partition, "topic", partition).__dict__.setdefault("marks", {})\n'
            "for name, each in any_head.lineages.items():\n"
            "    if name not in marks or (each.epoch, each.watermark_ordinal) > marks[name][:2]:\n"
            "        marks[name] = each.epoch, each.watermark_ordinal, each.watermark\n"
            "any_view = view_row(any_head, any_key, any_value, any_last, any_prefix)\n"
            "if any_view.shard in marks and marks[any_view.shard][0] == any_view.epoch:\n"
            "    any_view.watermark = marks[any_view.shard][2]",
        ),
    ),
    rows(
        "unknown_is_servable",
        "a row whose freshness is unknown is served",
        Replace(reading.decide_row, "any_decision.may_be_served", "any_decision.freshness is not Freshness.STALE"),
    ),
    rows(
        "wait_ends_at_any_watermark",
        "a wait ends at any comparable watermark",
        Replace(evidence.has_reached, "any_order not in (Order.NEWER, Order.SAME)", "any_order is Order.UNKNOWN"),
    ),
    rows(
        "wait_ignores_the_epoch",
        "a wait ends when the position is reached in another history",
        never(evidence.has_reached, "any_lineage.epoch != any_epoch"),
    ),
)
FILLS: Final = (
    rows(
        "fill_outside_the_scope",
        "a table that its source does not publish any more is filled by its last description",
        Return(declared.is_in_scope, "True"),
    ),
    rows(
        "fill_of_another_shards_table",
        "a table that another shard still publishes is filled in a shard that does not",
        Replace(meaning.folded_meaning, "(any_shard,) if any_shard else any_all", "any_all"),
    ),
    rows(
        "any_partition_is_right",
        "an owner takes gets and fills of keys that another partition keeps",
        never(meaning.check_partition, "any_home != any_number"),
    ),
    rows(
        "no_watermark_over_an_old_epoch",
        "a fill over an entry of an ended epoch gets no watermark, and its readers wait in vain",
        Replace(reading.view_row, "any_found.epoch >= any_entry.epoch", "any_found.epoch == any_entry.epoch"),
    ),
    rows(
        "fill_survives_a_change",
        "a fill is still served after its key has changed",
        never(Overlay.get, "any_kept.over[0] != any_stamp"),
    ),
    rows(
        "fill_survives_a_void",
        "a fill is still served after its table was voided",
        Return(reading._all_voids, "()"),
    ),
    rows(
        "stamp_without_ordinal",
        "a fill's stamp lacks the ordinal of the entry that it replaces",
        Replace(
            reading.view_row,
            "Stamp(any_shard, any_epoch, any_entry.ordinal, any_voids)",
            "Stamp(any_shard, any_epoch, 0, any_voids)",
        ),
    ),
    rows(
        "fill_without_cas",
        "a fill is accepted although its key changed since the look-up",
        never(reading.fill_row, "any_view.stamp != any_request.stamp"),
        never(reading.judge_fill, BELOW_TOMBSTONE),
    ),
    rows(
        "fill_older_than_the_tombstone",
        "a lagging replica's fill is accepted over a newer tombstone",
        never(reading.judge_fill, BELOW_TOMBSTONE),
        never(evidence.fill_refusal, BELOW_FLOOR),
        never(evidence.fill_refusal, BEHIND_WATERMARK),
    ),
    rows(
        "fill_older_than_an_unread_row",
        "a fill may be older than an invalid row",
        never(reading.judge_fill, BELOW_TOMBSTONE),
    ),
    rows(
        "fill_below_the_floor",
        "a fill may be older than the void of its table",
        never(evidence.fill_refusal, BELOW_FLOOR),
        never(evidence.fill_refusal, BEHIND_WATERMARK),
    ),
    rows(
        "fill_older_than_a_void",
        "a fill may be older than the void of its table while the marker is awaited",
        never(evidence.fill_refusal, BELOW_FLOOR),
    ),
    rows(
        "fill_before_the_marker",
        "a fill does not wait for the marker that follows a void",
        never(evidence.fill_refusal, "not any_void.floor"),
        Replace(evidence.fill_refusal, BELOW_FLOOR, f"any_void.floor and {BELOW_FLOOR}"),
        Replace(
            reading._all_voids,
            "tuple(any_void for any_scope in any_scopes if any_test)",
            'tuple(any_void._replace(floor="") for any_scope in any_scopes if any_test)',
        ),
    ),
    rows(
        "low_water_exclusive",
        "a fill at the low-water is refused",
        Replace(
            evidence.fill_refusal,
            BELOW_LOW_WATER,
            'any_lo.order(Position.parse(any_lineage.low_water)).name != "NEWER"',
        ),
    ),
    rows(
        "floor_exclusive",
        "a fill at the floor of a void is refused",
        Replace(
            evidence.fill_refusal,
            BELOW_FLOOR,
            'any_lo.order(Position.parse(any_void.floor)).name != "NEWER"',
        ),
    ),
    rows(
        "fill_at_the_watermark_refused",
        "a fill at the watermark is refused",
        Replace(
            evidence.fill_refusal,
            BEHIND_WATERMARK,
            'any_lineage.watermark and any_lo.order(Position.parse(any_lineage.watermark)).name != "NEWER"',
        ),
    ),
    rows(
        "newer_fill_replaced_by_older",
        "a late fill replaces a newer one and claims its position",
        Replace(
            reading.fill_row,
            "if any_before is not None and any_newer:\n    ...",
            "if any_before is not None and any_newer:\n    request.lo = any_before.lo",
        ),
    ),
    rows(
        "lo_and_hi_swapped",
        "a fill's freshness is judged by its hi instead of its lo",
        Replace(
            reading.answer_row,
            FILL_TAKEN,
            FILL_TAKEN.replace("any_fill.lo", "any_fill.hi"),
        ),
    ),
    rows(
        "session_takes_lo",
        "a session advances to a fill's lo instead of its hi",
        Replace(
            reading.answer_row,
            FILL_TAKEN,
            FILL_TAKEN.replace("any_fill.hi", "any_fill.lo"),
        ),
    ),
)
RANGES: Final = (
    rows(
        "range_of_an_incomplete_table",
        "a range is answered although rows of the table may not have been published yet",
        Replace(
            ground.ground_of,
            "whole_at(any_head, any_table, any_shard)",
            "whole_at(any_head, any_table, any_shard) or next("
            "(held._replace(position=held.position or head.lineages[of].low_water)"
            " for (name, of), held in head.backfills.items() if (name, of) == (table, shard) and of in head.lineages),"
            " None)",
        ),
    ),
    rows(
        "range_without_its_deletions",
        "a deletion does not count as the last change of a range",
        Replace(answering._look, "ordinal > newest", "ordinal > newest and kind != ABSENT"),
    ),
    rows(
        "range_of_voided_rows",
        "entries from before the table's void are rows of a range",
        always(answering._live_entries, "any_ordinal > any_voided"),
    ),
    rows(
        "range_ends_at_the_completion",
        "the last change of a range is taken to be the completion of its table",
        Replace(answering._look, "decode_entry(any_newest).position if newest > known else ''", "''"),
    ),
    rows(
        "page_begins_at_its_last_row",
        "a page has the row again after which it goes on",
        Replace(answering._look, "ranked > after", "ranked >= after"),
    ),
)
INDEXES: Final = (
    rows(
        "index_gives_what_a_row_had",
        "an index gives a row by a value that it has no more",
        Return(indexed._has, "True"),
    ),
    rows(
        "index_from_the_completion_on",
        "rows by an index are taken to be the same since the table is complete",
        Return(indexed.changes_known, "(0, ())"),
    ),
    rows(
        "index_without_the_memtable",
        "an index gives only rows that are durable",
        Replace(PartitionStore.having, "(active.hints, frozen.hints)", "(frozen.hints,)"),
    ),
    rows(
        "index_not_durable",
        "a commit writes rows without their entries of indexes",
        Replace(Indexing.to_write, "dict.fromkeys(any_keys, any_value)", "{}"),
    ),
    rows(
        "index_over_a_restart_without_doubt",
        "what an index had in between before a restart is taken as known",
        Return(Indexing.changes_known_since, "''"),
    ),
)
BEFORE_VOIDS: Final = (
    rows(
        "image_of_before_a_void_for_anybody",
        "an image of before a void is given to a read that demands something",
        Replace(
            reading.answer_rows,
            "any_request.last_known and any_row.kind == VOID and any_demand == NO_DEMAND",
            "any_row.kind == VOID",
        ),
    ),
    rows(
        "image_of_before_a_void_called_fresh",
        "an image of before a void is called fresh",
        Replace(reading.last_known_row, "Freshness.EVENTUAL", "Freshness.FRESH"),
    ),
)
BUGS: Final = (*VIEWS, *FILLS, *RANGES, *INDEXES, *BEFORE_VOIDS)
