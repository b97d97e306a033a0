"""Planted bugs between an owner's answer and the session that gets it: fronts, batches, flights, own writes."""

from __future__ import annotations

from typing import Final

from consumers.owner import evidence
from lab.simulation.planted.planting import Replace, installation, leave_out
from serving.client.client import Session
from serving.client.session import SessionState
from serving.client.tracked import TrackedConnection
from serving.http import batches
from serving.reads.rows import RowReads
from serving.reads.tables import TableReads

CACHE_TOKEN: Final = "token_after(demand.token, any_row.shard, any_row.epoch, any_row.hi)"

TOKENS: Final = (
    installation(
        "cache_answer_moves_no_token",
        "an answer of the cache leaves the session's token where it was",
        Replace(RowReads._from_owner, CACHE_TOKEN, "demand.token"),
    ),
    installation(
        "cached_absence_moves_no_token",
        "an absence that the cache proves leaves the session's token where it was",
        Replace(RowReads._from_owner, CACHE_TOKEN, f"{CACHE_TOKEN} if any_row.image is not None else demand.token"),
    ),
    installation(
        "absence_at_the_source_moves_no_token",
        "an absence at the source leaves the session's token where it was",
        Replace(
            RowReads._from_source_row,
            "proof.token_after(any_hi)",
            "proof.token_after(any_hi) if found.image is not None else proof.demand.token",
        ),
    ),
    installation(
        "session_ignores_absences",
        "a session does not keep the token of a 404",
        Replace(
            SessionState.plan_row,
            "self._answered(row.token, demanded)",
            "row.found and self._answered(row.token, demanded)",
        ),
    ),
    installation(
        "session_ignores_batches",
        "a session does not keep the token of a batch",
        leave_out(SessionState.plan_rows, "self._answered(token, demanded)"),
    ),
    installation(
        "batch_has_the_last_token",
        "the token of a batch is that of its last element",
        Replace(batches._summary, "vector.merge(any_token)", "any_token"),
    ),
    installation(
        "batch_is_as_good_as_its_best",
        "a batch is marked by its best element",
        Replace(batches._summary, "max(any_weakest, any_index)", "min(any_weakest, any_index)"),
    ),
)
EPOCHS: Final = (
    installation(
        "rows_teach_no_epoch",
        "a front does not learn an epoch from an owner's answer",
        leave_out(RowReads._from_owner, "space.epochs.learn(row.shard, row.epoch)"),
    ),
    installation(
        "flight_across_epochs",
        "a read of the source that began in one epoch is shared by a reader of the next one",
        Replace(
            RowReads._from_source,
            "(any_space, any_key, any_meaning, proof.epoch)",
            "(any_space, any_key, any_meaning, 0)",
        ),
    ),
)
OWN_WRITES: Final = (
    installation(
        "own_write_is_offered",
        "a table as its reader sees it, with the reader's uncommitted write, is shared and offered as a fill",
        Replace(
            TableReads._fetch_one,
            "read_in_time(any_source, any_name)",
            "read_in_time(any_source, any_name, str(wanted.write_ids))",
        ),
    ),
    installation(
        "failed_commit_is_forgotten",
        "a commit whose connection broke counts as one that did not take place",
        leave_out(TrackedConnection._call, "if not is_read: ..."),
    ),
    installation(
        "closed_connection_is_forgotten",
        "a session forgets the unsettled commit of a connection that is closed",
        Replace(Session.wrap, "not any_known.is_done", "any_known.open"),
    ),
    installation(
        "unsettled_commit_is_not_asked_for",
        "a session reads on although a commit of its own is unsettled",
        leave_out(SessionState._plan_demand, "any_tracked.require_settled()"),
    ),
    installation(
        "first_of_two_unplaced_writes_is_lost",
        "of two writes before the first read only the last one is demanded",
        Replace(SessionState.observe, "any_one if any_before is None else any_join", "any_one"),
    ),
)
WAITS: Final = (
    installation(
        "any_shard_ends_a_wait",
        "a wait for several shards ends when one of them is there",
        Replace(
            evidence.has_reached,
            "if any_order not in any_enough: return False",
            "if any_order in any_enough: return True",
        ),
    ),
)
BUGS: Final = (*TOKENS, *EPOCHS, *OWN_WRITES, *WAITS)
