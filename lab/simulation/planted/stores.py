"""Planted bugs in `consumers.store`: what is durable, and what a reader sees meanwhile."""

from __future__ import annotations

from typing import Final

from consumers.store.store import PartitionStore
from lab.simulation.planted.planting import Replace, leave_out, processes, rows

LATER_HEAD: Final = Replace(
    PartitionStore._write_frozen,
    "any_frozen = self._frozen",
    "any_frozen = {**self._frozen, **head_entries(self.state.head)}",
)

BUGS: Final = (
    rows(
        "offset_outside_the_batch",
        "the offset that is written is the one folded by then, not the entries' own",
        LATER_HEAD,
    ),
    processes(
        "later_offset_with_earlier_entries",
        "the offset that is written is the one folded by then, not the entries' own",
        LATER_HEAD,
    ),
    rows(
        "offset_not_written",
        "a commit writes no offset: after a crash the tail is not the tail",
        leave_out(PartitionStore.freeze, "any_active.update(head_entries(...))"),
    ),
    rows(
        "cache_after_commit_is_empty",
        "a commit forgets what was folded while it was written",
        Replace(PartitionStore._write_frozen, "self._frozen = any_empty", "self._frozen, self._active = any_empty, {}"),
    ),
    rows(
        "frozen_not_looked_up",
        "what is being committed cannot be looked up meanwhile",
        Replace(PartitionStore.get, "self._frozen.get(any_key)", "None"),
    ),
    rows(
        "head_not_published",
        "what is folded becomes visible, and the head that covers it does not",
        Replace(
            PartitionStore.fold, "self.visible = any_copy", "self.visible = any_copy if rejections else self.visible"
        ),
    ),
    processes(
        "committed_is_what_is_folded",
        "an owner says that what it has folded is durable",
        Replace(
            PartitionStore._write_frozen,
            "self.committed_offset = any_offset",
            "self.committed_offset = self.state.head.offset",
        ),
    ),
    processes(
        "frozen_entries_not_read",
        "what is being committed cannot be seen meanwhile",
        Replace(PartitionStore.items, "self._frozen | self._active", "dict(self._active)"),
    ),
)
