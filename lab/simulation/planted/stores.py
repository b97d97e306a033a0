"""Planted bugs in `consumers.store` and `consumers.snapshots`: durability, reads during a commit, other beginnings."""

from __future__ import annotations

from typing import Final

from consumers.process.committing import Committer
from consumers.snapshots import pruning, restoring, writing
from consumers.store import directory
from consumers.store.dropping import Dropping
from consumers.store.store import PartitionStore
from lab.simulation.planted.planting import Replace, Return, installation, leave_out, processes, rows, warehouse

LATER_HEAD: Final = Replace(
    PartitionStore._write_frozen,
    "any_frozen = self._frozen",
    "any_frozen = {**self._frozen, **head_entries(self.state.head)}",
)

SNAPSHOTS: Final = (
    installation(
        "store_of_all_files_but_one",
        "a store is made of all files of a snapshot but the last",
        Replace(restoring._ingest, "rocks.ingest_files(any_files)", "rocks.ingest_files(any_files[:-1] or any_files)"),
    ),
    installation(
        "snapshot_without_its_end",
        "a snapshot leaves out what does not fill a file",
        leave_out(writing._chunks, "if chunk:\n    yield chunk"),
    ),
)
DURABILITY: Final = (
    installation(
        "manifest_after_the_database",
        "a new store has no manifest before its first commit: if its process dies first, it is folded anew",
        leave_out(directory.prepare_directory, "write_manifest(any_directory, wanted)"),
    ),
    warehouse(
        "time_makes_no_commit_due",
        "a few rows are committed when their process ends in order, and not before",
        Replace(Committer._is_due, "self._interval_s * (1 if ... else ...)", "self._interval_s * 1_000"),
    ),
)
PRUNING: Final = (
    installation(
        "oldest_snapshots_stay",
        "of the snapshots of a history the oldest ones are kept",
        Replace(pruning.judge, "held.sort(key=any_key, reverse=True)", "held.sort(key=any_key)"),
    ),
)
BUGS: Final = (
    *SNAPSHOTS,
    *DURABILITY,
    *PRUNING,
    rows(
        "dropped_tombstone_leaves_no_position",
        "an absent row is told with the position of the completion, although it was deleted later",
        Return(Dropping.last, "None"),
    ),
    rows(
        "swept_over_a_newer_row",
        "a sweep drops the key of a tombstone that the same commit replaces",
        Replace(
            Dropping._candidates,
            "if any_key not in any_frozen:\n    yield any_key, any_entry",
            "yield any_key, any_entry",
        ),
    ),
    rows(
        "offset_outside_the_batch",
        "a commit writes the offset that is folded by then instead of its entries' own",
        LATER_HEAD,
    ),
    processes(
        "later_offset_with_earlier_entries",
        "a commit writes the offset that is folded by then instead of its entries' own",
        LATER_HEAD,
    ),
    rows(
        "offset_not_written",
        "a commit writes no offset, so a crash folds from a wrong one",
        leave_out(PartitionStore.freeze, "any_active.put(head_entries(...))"),
    ),
    rows(
        "cache_after_commit_is_empty",
        "a commit drops the entries that were folded while it was written",
        Replace(
            PartitionStore._write_frozen,
            "self._frozen = any_empty",
            "self._frozen, self._active = any_empty, Memtable()",
        ),
    ),
    rows(
        "frozen_not_looked_up",
        "entries that are being committed cannot be looked up",
        Replace(PartitionStore.get, "self._frozen.get(any_key)", "None"),
    ),
    rows(
        "head_not_published",
        "folded entries become visible before the head that covers them",
        Replace(
            PartitionStore.fold, "self.visible = any_copy", "self.visible = any_copy if rejections else self.visible"
        ),
    ),
    processes(
        "committed_is_what_is_folded",
        "an owner reports folded messages as durable",
        Replace(
            PartitionStore._write_frozen,
            "self.committed_offset = any_offset",
            "self.committed_offset = self.state.head.offset",
        ),
    ),
    processes(
        "frozen_entries_not_read",
        "entries that are being committed are missing in a scan",
        Replace(PartitionStore.items, "any_frozen.built().items()", "{}.items()"),
    ),
)
