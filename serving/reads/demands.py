"""What a request asks for and what it demands, as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from serving.errors import ReadError
from tokens import EventToken, ValidWriteIdList, Vector

NO_VECTOR = Vector()
Consistency = Literal["leader", "bounded", "any"]
"""Who may answer from the cache. ``leader``: the owner. ``bounded``: a follower too, while the owner is away or slow.
``any``: owner and followers in turn, those of the front's zone first; the owner is asked what they can't prove."""


class ReadDemand(NamedTuple):
    """How fresh the answer must be. ``given``: the request has a token, if only an empty one.

    ``max_wait_ms``: how long to wait for the vector's position. ``not_before_ms``: the answer must hold all that the
    source had committed by then (`tokens.Demand`). ``last_known``: nothing is demanded, and an image of before a void
    will do.
    """

    vector: Vector = NO_VECTOR
    given: bool = False
    max_wait_ms: int = 0
    not_before_ms: int = 0
    consistency: Consistency = "bounded"
    last_known: bool = False

    @property
    def token(self) -> str:
        """The vector as text; "" if the request has no token."""
        return str(self.vector) if self.given else ""

    def has_passed(self, shard: str, epoch: int, position: str) -> bool:
        """Whether the vector has all up to ``position`` of this epoch, as far as a look tells; False: perhaps."""
        known = self.vector.get(shard)
        return known is not None and known.epoch == epoch and known.position.has_passed_text(position)


class RowOptions(NamedTuple):
    """Optional parts of a row's answer."""

    include_event_token: bool = False
    compare_event_token: EventToken | None = None


NO_OPTIONS = RowOptions()


class RequestedRow(NamedTuple):
    """A row as a request names it. ``pk``: the key as in a path, parsed by `serving.reads.rowkey`."""

    table: str
    pk: bytes


class RequestedRange(NamedTuple):
    """Rows as a request names them by some columns. ``columns``: name → value as text.

    ``order_by``: columns, each after a ``-`` for the other direction. ``limit``: of rows, or up to where they are
    ``counted`` (0: all). ``page``: where an earlier answer ended.
    """

    table: str
    columns: Mapping[str, str]
    order_by: Sequence[str] = ()
    limit: int = 0
    page: str = ""
    counted: bool = False


class RequestedTable(NamedTuple):
    """A catalog table as a request names it, with the reader's list and table id (0: not given).

    ``by_id``: it is asked by id alone. Its name is the owner's then, which may not have folded a rename yet.
    """

    catalog: str
    db: str
    table: str
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0
    by_id: bool = False

    @property
    def name(self) -> str:
        """``db.table`` in lower case, as Hive keeps names; "" of a table that is asked by id alone."""
        return f"{self.db}.{self.table}".lower() if self.table else ""

    def check_list(self) -> None:
        """Raises `ReadError` ``bad_write_ids`` if the list is of another table."""
        listed = self.write_ids.table if self.write_ids is not None else None
        if listed and self.name and listed != self.name:
            raise ReadError(
                "bad_write_ids", f"valid_write_ids is a list of {listed}, but the request is for {self.name}"
            )
