"""What a read asks for and brings, as plain values."""

from __future__ import annotations

from typing import NamedTuple

from tokens import EventToken, ValidWriteIdList, Vector

NO_VECTOR = Vector()


class ReadDemand(NamedTuple):
    """What a read brings. ``given``: it brought a token, even an empty vector. ``max_wait_ms``: for the position."""

    vector: Vector = NO_VECTOR
    given: bool = False
    max_wait_ms: int = 0

    @property
    def token(self) -> str:
        """The vector as text; "" where the read brought none."""
        return str(self.vector) if self.given else ""


class RowOptions(NamedTuple):
    """What else a row's answer is to say."""

    include_event_token: bool = False
    compare_event_token: EventToken | None = None


class RowWanted(NamedTuple):
    """A row of a batch: ``pk`` is the path segment of `serving.reads.rowkey`."""

    table: str
    pk: bytes


class TableWanted(NamedTuple):
    """A catalog table and the list and id that it is wanted with (0: not given)."""

    catalog: str
    db: str
    table: str
    write_ids: ValidWriteIdList | None = None
    table_id: int = 0

    @property
    def name(self) -> str:
        """``db.table``."""
        return f"{self.db}.{self.table}"
