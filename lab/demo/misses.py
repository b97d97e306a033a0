"""Why the cache did not answer a read of a row, in a few words: from the ``why`` of the source's answer. Pure."""

from __future__ import annotations

import re
from typing import Final

TEXTS: Final = {
    "no event of this key": "table is not whole",
    "voided at": "void",
    "by a foreign key, or to an image that is too large": "void row: a foreign key, or an image that is too large",
    "knows only that the value changed": "void",
    "has an unreadable position": "void row: its event has an unreadable position",
    "is never cached": "its table can't be cached, or not yet after DDL",
    "description has not been folded": "description is not folded yet",
    "description is changing": "description is changing",
    "description has changed": "owner and front describe the key differently",
    "the key is kept in partition": "owner and front describe the key differently",
    "another spelling of the key": "another spelling of the key may name a row",
    "to which the key does not belong": "the key is of another shard",
    "which it is not by the keyspace's map": "the key is of another shard",
    "proves no times": "demanded time is not proved",
    "max_staleness_ms": "demanded time is not proved",
    "up to which time": "demanded time is not proved",
    "cannot be compared": "position can't be compared",
    "the entry's shard is unknown": "shard is not known yet",
    "is not in the topology": "shard is not known yet",
    "in this partition is unknown": "no marker within {wait}",
    "has not arrived": "no marker within {wait}",
    "the session has seen": "no marker within {wait}",
    "has no owner": "no owner",
    "announced": "no owner",
    "does not answer": "no owner",
    "took longer than": "no owner",
    "is not known": "no owner",
}
"""Part of what is said of the cache → the reason. The first that is found counts."""
NUMBERS: Final = re.compile(r"\d+")


def reason_of(why: str, wait_ms: int | None) -> str:
    """The reason for which the source answered. One that is not in `TEXTS` is told as it is, without its numbers.

    ``wait_ms``: what the read said of its wait; None: it left it to the front.
    """
    _, _, of_cache = why.rpartition("the cache: ")
    reason = next((reason for part, reason in TEXTS.items() if part in of_cache), "")
    return reason.format(wait="the default wait" if wait_ms is None else f"{wait_ms} ms") or NUMBERS.sub("#", of_cache)
