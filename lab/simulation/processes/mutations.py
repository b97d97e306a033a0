"""Planted bugs that the world of processes must catch."""

from __future__ import annotations

from typing import Final

from consumers.fold import messages as fold
from consumers.fold import rows as row_fold
from consumers.fold import state
from consumers.store import store
from lab.simulation.mutations import Edit, Mutation


def _processes(name: str, what: str, *edits: Edit) -> Mutation:
    return Mutation(name, what, "processes", edits)


MUTATIONS: Final = (
    _processes(
        "offset_one_too_far",
        "the durable offset passes over a message",
        Edit(state.head_entries, "_json(head.offset)", "_json(head.offset + (1 if head.offset else 0))"),
    ),
    _processes(
        "watermarks_not_durable",
        "how far each shard is folded is lost in a crash",
        Edit(state.read_head, "head.lineages[key[len(LINEAGE_PREFIX) :].decode()] =", "_ ="),
    ),
    _processes(
        "layout_not_durable",
        "the layout is lost in a crash",
        Edit(state.read_head, "head.layout = value.decode()", "pass"),
    ),
    _processes(
        "committed_is_what_is_folded",
        "an owner says that what it has folded is durable",
        Edit(
            store.PartitionStore._write_frozen,
            "self.committed_offset = self._frozen_offset",
            "self.committed_offset = self.state.head.offset",
        ),
    ),
    _processes(
        "voids_not_durable",
        "the voids are lost in a crash",
        Edit(state.read_head, "head.voids[table.decode(), shard.decode()] =", "_ ="),
    ),
    _processes(
        "later_offset_with_earlier_entries",
        "the offset that is written is the one folded by then, not the entries' own",
        Edit(
            store.PartitionStore._write_frozen,
            "frozen = self._frozen\n",
            "frozen = {**self._frozen, **head_entries(self.state.head)}\n",
        ),
    ),
    _processes(
        "runs_fold_otherwise",
        "frames of one row that are taken together get the first one's time",
        Edit(row_fold.fold_singles, "stamp, seconds = timestamp, read", "stamp, seconds = timestamp, seconds or read"),
    ),
    _processes(
        "run_ends_too_early",
        "after frames of one row that were taken together one message is passed over",
        Edit(fold.fold_messages, "changes, at = run", "changes, at = run[0], min(run[1] + (run[1] - at > 2), end)"),
    ),
    _processes(
        "frozen_entries_not_read",
        "what is being committed cannot be seen meanwhile",
        Edit(store.PartitionStore.items, "newer = self._frozen | self._active", "newer = dict(self._active)"),
    ),
)
