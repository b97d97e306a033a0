"""The table maps of the log: which decoder takes the rows that follow, or why none does."""

from __future__ import annotations

from typing import Final, TypeAlias

import structlog

from stream.sources.mariadb.binlog.events import HEADER_SIZE
from stream.sources.mariadb.binlog.reading.foreign_keys import ForeignKeys
from stream.sources.mariadb.binlog.rows import SchemaDiffers, TableDecoder
from stream.sources.mariadb.binlog.table_map import BinlogFormatError, parse_table_map, table_name_of
from stream.sources.mariadb.live_schema import LiveSchema

log = structlog.get_logger(__name__)

MAPS_MAX: Final = 50_000
"""Table maps that are remembered. Of tables that are not published nobody says that they are gone."""


class Unpublished:
    """Takes the place of a decoder for a table that is not published. ``name`` as in the table map."""

    __slots__ = ("label", "name")

    def __init__(self, name: str) -> None:
        self.name, self.label = name, name.encode()


class Undecodable:
    """Takes the place of a decoder for a published table that can't be decoded, and says why."""

    __slots__ = ("label", "name", "reason")

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.label, self.reason = name, name.encode(), reason


class Keyless(TableDecoder):
    """Decodes a table without a primary key, whose rows are told as they are."""

    __slots__ = ()


Mapped: TypeAlias = TableDecoder | Undecodable | Unpublished


class TableMaps:
    """The tables that the current transaction has named, by the numbers that its rows name them by."""

    def __init__(self, schema: LiveSchema, keys: ForeignKeys) -> None:
        self._schema = schema
        self._keys = keys
        self.keeps_keyless = False
        """Whether rows of tables without a primary key are published."""
        self.by_id: dict[int, Mapped] = {}
        self.by_body: dict[bytes, Mapped] = {}
        """The same by table maps that were looked at, without header and number."""
        self._reread: set[bytes] = set()
        self.announced: dict[str, str] = {}
        """Tables to void and describe with the next published transaction, and why."""

    def forget_tables(self) -> None:
        """Have each table map looked at anew: a table's schema is, or may be, another one now."""
        self.by_body.clear()

    def forget_all(self) -> None:
        """As `forget_tables`, and read again the tables that don't fit their maps."""
        self.by_body.clear()
        self._reread.clear()

    def take(self, event: bytes) -> None:
        """Take a table map. Raises `BinlogFormatError`: then rows of its number have none."""
        table_id = int.from_bytes(event[HEADER_SIZE : HEADER_SIZE + 6], "little")
        body = event[HEADER_SIZE + 6 :]
        mapped = self.by_body.get(body)
        if mapped is None:
            self.by_id.pop(table_id, None)
            if len(self.by_body) >= MAPS_MAX:
                self.forget_tables()
            mapped = self.by_body[body] = self._map(body)
        self.by_id[table_id] = mapped
        if isinstance(mapped, Unpublished):
            self._keys.statement.named_unpublished(mapped.name)
        else:
            self._keys.statement.named(mapped.name)

    def _map(self, body: bytes) -> Mapped:
        database, table = table_name_of(body)
        name = f"{database}.{table}"
        if not self._schema.include(database, table) or self._schema.catalog.is_waiting(name):
            return Unpublished(name)
        try:
            return self._decoder(name, body)
        except (SchemaDiffers, BinlogFormatError) as error:
            reason = str(error)
        if body not in self._reread:
            self._reread.add(body)
            self._schema.reread(database, table)
            # Said with the next published transaction: the current one may never be committed.
            self.announced[name] = "its schema changed without a DDL in the binlog"
            self._keys.look_again()
        log.warning("table cannot be decoded", table=name, reason=reason)
        return Undecodable(name, reason)

    def _decoder(self, name: str, body: bytes) -> TableDecoder | Unpublished:
        info = self._schema.get(name)
        if info is None:
            raise SchemaDiffers(f"the server has no table {name}")
        if self.keeps_keyless and info.is_keyless:
            return Keyless(parse_table_map(body), info, self._schema.charsets)
        if not info.cacheable:
            return Unpublished(name)
        return TableDecoder(parse_table_map(body), info, self._schema.charsets)
