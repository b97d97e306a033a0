"""Which tables are backfilled: those of the settings, and what was asked for since. Pure.

What was asked is kept in the source's state with the offset up to which requests were read, so each counts once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from stream.sources.mariadb.schema import TableFilter
from stream.wire.canonical import UNDECODABLE


class BackfillRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Read a table from the beginning, or don't. JSON on the wire; unknown fields are ignored.

    ``table``: ``db.table``; "" for every table of the shard.
    """

    start: bool
    table: str = ""


_request = msgspec.json.Decoder(BackfillRequest)


def read_request(value: bytes) -> BackfillRequest | None:
    """A request of the topic; None if it is not understood."""
    try:
        return _request.decode(value)
    except UNDECODABLE:
        return None


CHARS_MAX: Final = 2_500
"""Of all tables that are asked for by name."""
SHOWN_CHARS_MAX: Final = 500
"""Of the patterns in the settings."""
CHOICE: Final = "backfill_choice"
"""Name of the annotation in the source's state."""


@dataclass(slots=True)
class Choice:
    """Which tables are wanted. ``tables``: those of the settings; None: none."""

    tables: TableFilter | None = None
    asked: dict[str, bool] = field(default_factory=dict)
    """Table, or "" for every other one → whether it was started, or cancelled."""
    offset: int = 0
    """Where the next request is."""

    @classmethod
    def resume(cls, tables: TableFilter | None, annotations: Mapping[str, str]) -> Choice:
        """The settings, and what the source's state says was asked for."""
        offset, asked, *_ = json.loads(annotations.get(CHOICE, "[0, {}, null]"))
        return cls(tables, asked, offset)

    @classmethod
    def told(cls, annotations: Mapping[str, str]) -> Choice:
        """The choice of a source, as its state tells it to others."""
        offset, asked, include, *_ = json.loads(annotations.get(CHOICE, "[0, {}, null]"))
        return cls(None if include is None else TableFilter(include=tuple(include)), asked, offset)

    @property
    def annotations(self) -> Mapping[str, str]:
        """The words that `resume` and `told` take up."""
        include = None if self.tables is None else self.tables.include
        if include is not None and len(json.dumps(include, ensure_ascii=False)) > SHOWN_CHARS_MAX:
            include = ("*",)  # others are told about more tables than are wanted
        return {CHOICE: json.dumps([self.offset, self.asked, include], ensure_ascii=False)}

    def wants(self, table: str) -> bool:
        """Whether a table is to be read from the beginning."""
        settings = self.tables is not None and table in self.tables
        return self.asked.get(table, self.asked.get("", settings))

    def ask(self, table: str, start: bool) -> bool:
        """Take a request: for a table, or with "" for every table. False if there is no room to remember it."""
        asked = {**self.asked, table: start} if table else {"": start}
        if len(json.dumps(asked, ensure_ascii=False)) > CHARS_MAX:
            return False
        self.asked = asked
        return True
