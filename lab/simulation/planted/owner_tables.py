"""Planted bugs in `consumers.owner`: reads and fills of catalog tables."""

from __future__ import annotations

from typing import Final

from consumers.owner import tables
from lab.simulation.planted.decisions import OTHER_TABLE_ID, REACHED_BY_MARK
from lab.simulation.planted.planting import Replace, Return, Swap, catalog, leave_out, never
from serving.reads import tables as front_tables
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
        Replace(tables.decide_table, "any_demand.vector", "type(any_demand.vector)()"),
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
TORN: Final = (
    catalog(
        "state_ahead_of_its_head",
        "a table that was folded after the voids were looked at is served by what they were",
        Return(tables.is_ahead, "False"),
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
BUGS: Final = (*DEMANDS, *TORN, *EVENTUAL, *STATES, *FILLS)
