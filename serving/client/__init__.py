"""The typed client of Freshet's read API; installed as the package ``freshet_client``."""

from ._tokens import FreshetError, TokenError
from .aio import AsyncClient, AsyncSession
from .answers import Objects, Page, Row, Table
from .client import FreshetClient, Session
from .errors import (
    AmbiguousRow,
    BadRequest,
    ClientError,
    Conflict,
    HistoryLost,
    NotFoundError,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Unreachable,
    WriteNotTracked,
)
from .sending.credentials import Tls
from .streaming import StreamChange, StreamColumn, StreamEnded, StreamEvent
from .tracked import TrackedConnection
from .transactions import AsyncCatalogTransaction, CatalogTransaction
from .wire import FileBytes

__all__ = [
    "AmbiguousRow",
    "AsyncCatalogTransaction",
    "AsyncClient",
    "AsyncSession",
    "BadRequest",
    "CatalogTransaction",
    "ClientError",
    "Conflict",
    "FileBytes",
    "FreshetClient",
    "FreshetError",
    "HistoryLost",
    "NotFoundError",
    "Objects",
    "Page",
    "Row",
    "ServerError",
    "Session",
    "StreamChange",
    "StreamColumn",
    "StreamEnded",
    "StreamEvent",
    "Table",
    "Tls",
    "TokenError",
    "TooManyRequests",
    "TrackedConnection",
    "Unauthorized",
    "Unavailable",
    "Unreachable",
    "WriteNotTracked",
]
