"""Everything that answers requests, in one value."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from serving.errors import ReadError
from serving.http.limits import RequestLimits
from serving.metrics import FrontMetrics
from serving.reads.locations import Locations
from serving.reads.readiness import Readiness
from serving.reads.rows import RowReads
from serving.reads.spaces import RowSpace, TableSpace
from serving.reads.tables import TableReads

Closer = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Front:
    """What the handlers of `serving.http.routes` work with; made by `serving.compose`."""

    row_spaces: dict[str, RowSpace]
    table_spaces: dict[str, TableSpace]
    rows: RowReads
    tables: TableReads
    locations: Locations
    readiness: Readiness
    metrics: FrontMetrics
    limits: RequestLimits = field(default_factory=RequestLimits)
    bearer_token: str | None = None
    closers: Sequence[Closer] = ()

    def row_space(self, name: str) -> RowSpace:
        """A keyspace of rows. Raises `ReadError` ``unknown_keyspace``."""
        space = self.row_spaces.get(name)
        if space is None:
            raise ReadError("unknown_keyspace", f"no keyspace {name!r} of rows is served here")
        return space

    def table_space(self, name: str) -> TableSpace:
        """A catalog. Raises `ReadError` ``unknown_keyspace``."""
        space = self.table_spaces.get(name)
        if space is None:
            raise ReadError("unknown_keyspace", f"no catalog {name!r} is served here")
        return space
