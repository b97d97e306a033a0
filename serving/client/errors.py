"""The client's errors, by kind, each with the server's code, message and hint."""

from __future__ import annotations

from ._tokens import FreshetError


class ClientError(FreshetError):
    """A request that failed. ``status`` is the HTTP status; 0 if there was no response."""

    code = "client_error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None, status: int = 0) -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status


class BadRequest(ClientError):
    """The request is wrong (400, 413, 414, 416): ``bad_token``, ``bad_key``, ``missing_write_ids``, …"""


class Unauthorized(ClientError):
    """No bearer token, or a wrong one (401, 403)."""


class NotFoundError(ClientError):
    """404 for a keyspace, table or path. A row that does not exist is an answer, not an error."""


class HistoryLost(ClientError):
    """409 ``history_lost``: the source lost what the session had seen. The session has already adopted ``token``."""

    token: str = ""


class Conflict(ClientError):
    """The demand and the source disagree (other 409, 412): ``table_id_changed``, ``precondition_failed``, …"""


class TooManyRequests(ClientError):
    """429: try again shortly."""


class Unavailable(ClientError):
    """503: neither the cache nor the source can prove an answer now, or the front is not ready. Try again."""


class Unreachable(ClientError):
    """The front did not answer; code ``unreachable``."""

    code = "unreachable"


class ServerError(ClientError):
    """500, or a response that is not one of Freshet's."""


class AmbiguousRow(ClientError):
    """Several rows have what `get_by` asks for; code ``ambiguous_row``. The columns are not unique."""

    code = "ambiguous_row"


class WriteNotTracked(ClientError):
    """A transaction may have been committed without its GTID becoming known; code ``write_not_tracked``.

    The session refuses to read, since the answer might not include that write.
    """

    code = "write_not_tracked"
