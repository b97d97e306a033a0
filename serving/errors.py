"""The error of a read, as the reader gets it: a status, a stable code, one line and a hint."""

from __future__ import annotations

from serving.client.answers import STATUS_OF_CODE
from tokens.errors import FreshetError

HINTS: dict[str, str] = {
    "bad_token": "send the token of an earlier answer unchanged, percent-encoded; leave it out for a first read",
    "bad_request": "send HTTP/1.1, with names and values percent-encoded",
    "request_timeout": "send a request without long pauses",
    "head_too_large": "send long demands in the body of a batch",
    "bad_parameter": "the parameters of each path are described at /openapi.json",
    "bad_body": "the body is JSON in UTF-8, as described at /openapi.json",
    "not_found": "it is known not to exist at the source",
    "unknown_keyspace": "the keyspaces in the settings are served: is it spelled as in [keyspaces.…]?",
    "unknown_table": "spell it as the source does; tables that the source does not publish are not served",
    "method_not_allowed": "the methods of each path are described at /openapi.json",
    "body_too_large": "split the batch",
    "too_many_keys": "split the batch",
    "request_too_long": "send long demands in the body of a batch",
    "internal": "see the log of `freshet serve`",
    "not_ready": "`freshet lag` shows how far the partitions are",
    "stopping": "ask again: another front can answer, or this one after its restart",
    "source_failed": "the source refused the read: see the log of `freshet serve`",
    "bad_key": "composite keys are comma-separated, each column percent-encoded",
    "no_index": "name leading columns of the primary key, or all of an index, and order by columns in one direction",
    "sort_too_large": "order by the primary key or by an index of the source, or name columns that fewer rows share",
    "bad_page": "send the page of an earlier answer unchanged, with the same columns and order; begin again without it",
    "missing_write_ids": "a managed table is read with valid_write_ids, as the metastore gives the list to the reader",
    "bad_write_ids": "write the list as Hive does: db.table:hwm:minOpen:open,…:aborted,…",
    "bad_filter": "write the filter as Hive does: ds >= '2024-01-01' AND hr IN (1, 2)",
    "bad_checkpoint": "send the checkpoint of an event unchanged, to the keyspace that it is of",
    "unknown_column": "name columns as the table's description does",
    "checkpoint_lost": "the topic was replaced or lost its end: read anew, and start from a second or from now",
    "stream_too_old": "read anew what is older, and start at the second that the message names",
    "too_many_streams": "try again shortly, or at another front",
    "stream_unavailable": "Kafka does not answer, or the keyspace's topic is not there yet: try again shortly",
    "letters_unavailable": "Kafka does not answer, or denies the topic of dead letters to this front",
    "letter_refused": "`freshet dlq show` tells what it holds; an update may decode it, or it can be dismissed",
    "page_expired": "the objects changed between two pages: begin with the first page again",
    "not_served": "the settings name what is served (bytes.roots); write the URI as there, without . and ..",
    "file_not_found": "is the URI spelled as in the store? Folders are not served",
    "bad_range": "ask for ranges within the file, at most a hundred at a time",
    "precondition_failed": "the file was replaced: read it anew, without If-Match",
    "file_changed": "the file was replaced while it was read: read it again",
    "unauthorized": "send Authorization: Bearer <token>",
    "forbidden": "ask for a token with this role: [serve.tokens.NAME] roles",
    "unknown_path": "the paths are described at /openapi.json",
    "history_lost": "the source lost history that this token includes: continue with the token in this answer",
    "fill_lost": "drop what you have of the row, and read it",
    "table_id_changed": "the table was dropped and created again: ask the metastore for its id and write ids",
    "rate_limited": "try again after the seconds in Retry-After; a batch costs as much as its elements",
    "timed_out": "ask for less at a time, or with a smaller max_wait_ms",
    "too_many_requests": "try again shortly, with fewer requests at a time",
    "no_owner": "is `freshet consume` running for this keyspace? `freshet lag` shows its partitions",
    "bad_location": "name an entity of a keyspace that is served, with a partition from 0 on",
    "location_unknown": "is the keyspace's consumer running? `freshet cluster status` shows what is announced",
    "leader_unknown": "is `freshet consume` running for this keyspace? `freshet cluster status` shows who is announced",
    "location_timeout": "try again shortly: Kafka, or the instances that know it, do not answer",
    "location_queue_full": "try again shortly: too many locations are being refreshed",
    "location_limited": "try again shortly: those who know the locations have failed too often",
    "locations_closed": "ask again: another front can answer, or this one after its restart",
    "source_unreachable": "the cache cannot prove this answer and the source does not answer: try again shortly",
    "source_behind": "the source has not reached the token's position: try again, or with a larger max_wait_ms",
}
"""The default hint of each code."""


ASKED_IN_VAIN = frozenset({"source_behind", "source_failed", "unknown_table"})
"""Codes of errors for which the source was asked all the same."""


class ReadError(FreshetError):
    """A read that cannot be answered.

    ``code``: one of `serving.client.answers.STATUS_OF_CODE`; ``token``: the session's new vector, or None.
    """

    code = "internal"

    def __init__(self, code: str, message: str, *, hint: str = "", token: str | None = None) -> None:
        super().__init__(message, hint=hint or HINTS.get(code, ""), code=code)
        self.token = token
        self.page = ""
        """For a browser: the page that says it. Else it is told as JSON."""
        self.allow = ""
        """For ``method_not_allowed``: the methods that the path has, comma-separated."""
        self.file_bytes: int | None = None
        """For ``bad_range``: the file's length."""
        self.retry_after_s = 0
        """For ``rate_limited``: when there will be enough."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS_OF_CODE.get(self.code, 500)
