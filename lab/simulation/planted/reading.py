"""Planted bugs between an owner's answer and the session that gets it: tokens of fronts, and own writes."""

from __future__ import annotations

from typing import Final

from lab.simulation.planted.planting import Replace, installation, leave_out
from serving.client.client import Session
from serving.client.session import SessionState
from serving.client.tracked import TrackedConnection
from serving.http import batches
from serving.reads.rows import RowReads
from tokens import decision

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
)
TIMES: Final = (
    installation(
        "times_are_not_judged",
        "a time that a read demands counts as proved",
        Replace(decision.decide, "demand.not_before_ms > tag.as_of_ms", "False"),
        Replace(RowReads._from_owner, "row.as_of_ms >= demand.not_before_ms", "True"),
    ),
)
OWN_WRITES: Final = (
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
)
BUGS: Final = (*TOKENS, *TIMES, *OWN_WRITES)
