"""Planted bugs in what catalog events go through: `consumers.fold` and the write ids of a table."""

from __future__ import annotations

from typing import Final

from consumers.fold import catalog as catalog_fold
from consumers.fold.catalog_state import TableState
from lab.simulation.planted.planting import Replace, always, catalog, leave_out, never
from tokens.writeid_state import WriteIds

WRITE_IDS: Final = (
    catalog(
        "commit_leaves_the_id_open",
        "a COMMIT does not take its write id out of the open ones",
        leave_out(WriteIds.commit, "self._drop_open(...)"),
    ),
    catalog(
        "abort_counts_as_commit",
        "an aborted write id is taken out of the exceptions",
        leave_out(WriteIds.abort, "insort(...)"),
    ),
    catalog(
        "allocated_is_valid",
        "an allocated write id counts as valid before its COMMIT",
        leave_out(WriteIds.allocate, "insort(...)"),
    ),
    catalog(
        "jump_is_valid",
        "ids that a jump of the high-water mark passes over count as valid",
        leave_out(WriteIds._reach, "self.open.extend(...)"),
    ),
)
WRITERS: Final = (
    catalog(
        "pending_writer_ignored",
        "a table is servable although a transaction that wrote it is open",
        leave_out(TableState.waits_for, "if self.pending:\n    ..."),
    ),
    catalog(
        "image_need_not_follow_the_write",
        "the image of before a write answers, while the one that follows is awaited",
        never(TableState.waits_for, "self.image_ordinal < self.write_ordinal"),
    ),
    catalog(
        "lost_alloc_forgotten",
        "a write that names nobody waits for nobody, though an ALLOC of the table may have been lost",
        never(catalog_fold._take_write, "_list_has_gaps(...)"),
    ),
    catalog(
        "write_pends_nobody",
        "a write that nothing undoes does not wait for its writer",
        leave_out(catalog_fold._take_write, "any_state.pending = ..."),
    ),
    catalog(
        "write_of_nobody_waits_for_nobody",
        "a write that names no transaction waits for none",
        Replace(
            catalog_fold._writers,
            "tuple(any_pair for any_each in any_state.ids.open)",
            "()",
        ),
    ),
    catalog(
        "abort_leaves_its_writer_pending",
        "a table waits for ever for a transaction that aborted",
        Replace(
            catalog_fold._end_in_table,
            "any_state.pending = any_left",
            "any_state.pending = any_left if committed else any_state.pending",
        ),
    ),
    catalog(
        "image_without_its_write",
        "a write that was published is folded with the image before it",
        Replace(
            catalog_fold._take_write,
            'any_event["image"] is not None',
            'state.image is None and any_event["image"] is not None',
        ),
        leave_out(catalog_fold._take_write, "any_state.write_ordinal, any_state.write_position = ..."),
    ),
)
STAGED: Final = (
    catalog(
        "staged_write_is_the_table",
        "a write that its ABORT will undo takes the committed image's place",
        never(catalog_fold._fold_image, 'any_event["staged"]'),
    ),
    catalog(
        "staged_write_survives_abort",
        "an ABORT promotes what was staged",
        Replace(catalog_fold._end_in_table, "if committed:\n    any_promotion", "any_promotion"),
    ),
    catalog(
        "commit_promotes_nothing",
        "a COMMIT leaves the table as it was before",
        leave_out(catalog_fold._end_in_table, "_promote(...)"),
    ),
    catalog(
        "second_staged_write_discarded",
        "of two writes of a transaction the first one is promoted",
        Replace(
            catalog_fold._stage,
            "StagedImage(any_txn, any_ordinal, any_image)",
            "state.staged_by(any_txn) or StagedImage(any_txn, any_ordinal, any_image)",
        ),
    ),
    catalog(
        "promoted_image_is_of_its_commit",
        "an image that was staged before a void, and committed after it, answers",
        Replace(
            catalog_fold._promote,
            "_set_image(any_state, any_image, any_lo, any_hi, any_staged.ordinal)",
            '_set_image(any_state, any_image, any_lo, any_hi, event["ordinal"])',
        ),
    ),
)
TABLES: Final = (
    catalog(
        "duplicate_event_counts",
        "an event that was folded before is folded once more",
        always(
            catalog_fold._load,
            '(any_event["epoch"], any_event["ordinal"]) > (any_state.epoch, any_state.ordinal)',
        ),
    ),
    catalog(
        "epoch_does_not_start_anew",
        "a table's state goes on in a new epoch",
        never(catalog_fold._load, 'any_event["epoch"] > any_state.epoch'),
    ),
    catalog(
        "rename_keeps_the_old_name",
        "a renamed table answers to the name that it had",
        leave_out(catalog_fold._fold_binding, "any_state.name = ..."),
    ),
    catalog(
        "older_binding_wins",
        "a name that is bound once more, as before, is bound as before",
        never(catalog_fold._bind, "(any_before.epoch, any_before.ordinal) >= (any_bound.epoch, any_bound.ordinal)"),
    ),
)
BUGS: Final = (*WRITE_IDS, *WRITERS, *STAGED, *TABLES)
