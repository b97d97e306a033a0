"""Planted bugs in the fold of catalog events, and in the write ids of a table."""

from __future__ import annotations

from typing import Final

from consumers.fold import catalog as catalog_fold
from consumers.fold.catalog_state import TableState
from lab.simulation.planted.planting import Replace, always, catalog, leave_out, never
from tokens.writeid_state import WriteIds

WRITE_IDS: Final = (
    catalog(
        "commit_leaves_the_id_open",
        "a COMMIT leaves its write id open",
        leave_out(WriteIds.commit, "self._drop_open(...)"),
    ),
    catalog(
        "abort_counts_as_commit",
        "an aborted write id is not recorded as aborted",
        leave_out(WriteIds.abort, "self._remember_aborted(...)"),
    ),
    catalog(
        "allocated_is_valid",
        "an allocated write id counts as valid before its COMMIT",
        leave_out(WriteIds.allocate, "insort(...)"),
    ),
    catalog(
        "jump_is_valid",
        "ids skipped by a jump of the high-water mark count as valid",
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
        "the image from before a write is served while the next image is awaited",
        never(TableState.waits_for, "self.image_ordinal < self.write_ordinal"),
    ),
    catalog(
        "lost_alloc_forgotten",
        "a write that names no transaction waits for none, although an ALLOC of the table may have been lost",
        never(catalog_fold._take_write, "_list_has_gaps(...)"),
    ),
    catalog(
        "write_pends_nobody",
        "a write that an ABORT does not undo does not wait for its writer",
        leave_out(catalog_fold._take_write, "any_state.pending = ..."),
    ),
    catalog(
        "write_of_nobody_waits_for_nobody",
        "a write that names no transaction does not wait for the open ones",
        Replace(
            catalog_fold._writers,
            "tuple(any_pair for any_each in any_state.ids.open)",
            "()",
        ),
    ),
    catalog(
        "abort_leaves_its_writer_pending",
        "a table waits forever for an aborted transaction",
        Replace(
            catalog_fold._end_in_table,
            "any_state.pending = any_left",
            "any_state.pending = any_left if committed else any_state.pending",
        ),
    ),
    catalog(
        "image_without_its_write",
        "a published write is folded with the image from before it",
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
        "a staged write replaces the committed image",
        never(catalog_fold._fold_image, 'any_event["staged"]'),
    ),
    catalog(
        "staged_write_survives_abort",
        "an ABORT promotes the staged write",
        Replace(catalog_fold._end_in_table, "if committed:\n    any_promotion", "any_promotion"),
    ),
    catalog(
        "commit_promotes_nothing",
        "a COMMIT does not promote the staged write",
        leave_out(catalog_fold._end_in_table, "_promote(...)"),
    ),
    catalog(
        "second_staged_write_discarded",
        "the first of two writes of a transaction is promoted",
        Replace(
            catalog_fold._stage,
            "StagedImage(any_txn, any_ordinal, any_image, any_struct)",
            "state.staged_by(any_txn) or StagedImage(any_txn, any_ordinal, any_image)",
        ),
    ),
    catalog(
        "promoted_image_is_of_its_commit",
        "an image staged before a void and committed after it is served",
        Replace(
            catalog_fold._promote,
            "_set_image(any_state, any_image, any_struct, any_lo, any_hi, any_staged.ordinal)",
            '_set_image(any_state, any_image, any_struct, any_lo, any_hi, event["ordinal"])',
        ),
    ),
)
TABLES: Final = (
    catalog(
        "duplicate_event_counts",
        "an event that was already folded is folded again",
        always(
            catalog_fold._load,
            '(any_event["epoch"], any_event["ordinal"]) > (any_state.epoch, any_state.ordinal)',
        ),
    ),
    catalog(
        "epoch_does_not_start_anew",
        "a table's state is carried over into a new epoch",
        never(catalog_fold._load, 'any_event["epoch"] > any_state.epoch'),
    ),
    catalog(
        "rename_keeps_the_old_name",
        "a renamed table is served under its old name",
        leave_out(catalog_fold._fold_binding, "any_state.name = ..."),
    ),
    catalog(
        "older_binding_wins",
        "a repeated older binding of a name replaces a newer one",
        never(catalog_fold._bind, "(any_before.epoch, any_before.ordinal) >= (any_bound.epoch, any_bound.ordinal)"),
    ),
)
EACH_TIME: Final = (
    catalog(
        "drop_is_where_the_create_was",
        "a dropped table keeps the place of its CREATE",
        Replace(catalog_fold._drop, 'any_event["ordinal"]', 'state.created or any_event["ordinal"]'),
    ),
    catalog(
        "promoted_image_is_read_at_its_first_write",
        "a promoted image counts as read at the table's last write, not at its COMMIT",
        Replace(
            catalog_fold._promote,
            "_set_image(any_state, any_image, any_struct, any_lo, any_hi, any_ordinal)",
            "_set_image(any_state, any_image, any_struct, state.write_position or any_lo, any_hi, any_ordinal)",
        ),
    ),
)
"""Every fold makes the same mistake, so only the naive fold shows it."""
BUGS: Final = (*WRITE_IDS, *WRITERS, *STAGED, *TABLES, *EACH_TIME)
