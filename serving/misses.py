"""Why the cache did not answer, in one word of a few: what the metrics and the page count. Pure."""

from __future__ import annotations

from typing import Final

from consumers.owner.protocol import SCHEMA_CHANGED, UNKNOWN_KEY, OwnerObjects, OwnerRow, OwnerTable, RangeRows
from stream.wire.events import VOID
from tokens.decision import Freshness

BEHIND: Final = "behind"
VOIDED: Final = "void"
NOT_FOLDED: Final = "not_folded"
NO_OWNER: Final = "no_owner"
NO_LIST: Final = "no_list"
OTHER_MEANING: Final = "other_meaning"
NEVER_CACHED: Final = "never_cached"
UNPROVED: Final = "unproved"
REASONS: Final = {
    BEHIND: "the marker that proves what the reader already knows did not come within its wait",
    VOIDED: "changed, but the log does not say to what: a statement, DDL, or an image too large",
    NOT_FOLDED: "no event of it was folded, and its table is not known to be whole",
    NO_OWNER: "no owner answered",
    NO_LIST: "an engine asked for a transactional table without a write-id list",
    OTHER_MEANING: "its table was changed, and owner and front do not describe it alike yet",
    NEVER_CACHED: "its table can't be cached",
    UNPROVED: "another one: `why` of the answer says it",
}
"""Reason → what it means, for people."""


def refusal_reason(code: str) -> str:
    """The reason for which an owner gave no answer but an error with this code, or nobody answered."""
    return NO_LIST if code == "missing_write_ids" else NO_OWNER


def miss_reason(answer: OwnerRow | OwnerTable | OwnerObjects | RangeRows | None) -> str:
    """The reason for which ``answer`` of an owner may not be given. None: nobody answered."""
    if answer is None:
        return NO_OWNER
    if answer.code == SCHEMA_CHANGED:
        return OTHER_MEANING
    if isinstance(answer, OwnerRow) and answer.kind in (VOID, UNKNOWN_KEY):
        return VOIDED if answer.kind == VOID else NOT_FOLDED
    return BEHIND if answer.freshness == Freshness.STALE.value else UNPROVED
