"""What a request for rows by some columns means: the range of keys, its order, and the page where it goes on. Pure."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import NamedTuple, Self
from urllib.parse import quote

import msgspec
import xxhash

from consumers.owner.ranges.indexed import meaning_with
from consumers.owner.ranges.order import KeyColumn
from consumers.store.index import Index, values_of
from serving.errors import ReadError
from serving.reads.demands import RequestedRange
from serving.reads.rowkey import parse_column
from serving.sources.source import RowTable
from stream.wire.keys import SEPARATOR, KeyFormatError, row_key, split_row_key
from tokens import Position, TokenError

LIMIT_DEFAULT = 100


class Stretch(NamedTuple):
    """The rows of a range are the same at each position from ``since`` to ``until``."""

    shard: str
    epoch: int
    since: Position
    until: Position

    @property
    def stands(self) -> bool:
        """Whether there is a position in it."""
        return self.until.at_or_past(self.since)

    def joined(self, other: Stretch) -> Stretch | None:
        """Where both stand; None if they are of different histories."""
        if (self.shard, self.epoch, self.since.flavor) != (other.shard, other.epoch, other.since.flavor):
            return None
        until = other.until if self.until.at_or_past(other.until) else self.until
        return self._replace(since=self.since.join(other.since), until=until)


class Page(msgspec.Struct, array_like=True, frozen=True):
    """Where an answer has ended: behind the row ``last``. ``range``: a fingerprint of what was asked for.

    All rows up to there were the same from ``since`` to ``until``, of an epoch of a shard.
    """

    version: int
    range: bytes
    last: bytes
    shard: str
    epoch: int
    since: str
    until: str

    def __str__(self) -> str:
        """As in an answer."""
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ReadError` ``bad_page``."""
        try:
            found = _pages.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            found.stretch.stands  # noqa: B018 - raises if its positions are none
        except (ValueError, TokenError) as error:
            raise ReadError("bad_page", f"page: {error}") from error
        if found.version != VERSION:
            raise ReadError("bad_page", f"page: it is of version {found.version}, this front reads {VERSION}")
        return found  # type: ignore[return-value]

    @property
    def stretch(self) -> Stretch:
        """Of all rows up to here."""
        return Stretch(self.shard, self.epoch, Position.parse(self.since), Position.parse(self.until))


VERSION = 1
_pages = msgspec.msgpack.Decoder(Page)


class Range(NamedTuple):
    """A range of a table's keys. ``key``: as `consumers.owner.protocol.GetRange.leading`, of the values ``leading``.

    ``exact``: no other spelling of the values names a row. ``page``: where to go on. ``where``: columns of an index
    with their values, of a range that is not one of keys; ``meaning``: the fingerprint that owners compare.
    """

    table: RowTable
    leading: tuple[object, ...]
    key: bytes
    exact: bool
    descending: bool
    page: Page | None
    fingerprint: bytes
    meaning: bytes
    where: tuple[tuple[str, object], ...] = ()

    @property
    def columns(self) -> list[KeyColumn]:
        """The key's columns."""
        return [(column.name, column.kind, column.exact) for column in self.table.key]


def range_of(table: RowTable, wanted: RequestedRange, indexes: Sequence[Index] = ()) -> Range:
    """The range that a request names. Raises `ReadError` ``no_index``, ``bad_key``, ``bad_page``."""
    names = [column.name for column in table.key]
    given = names[: len(wanted.columns)]
    if not names:
        raise ReadError("no_index", f"{table.name} has no primary key", hint="give the table a primary key")
    if set(given) != wanted.columns.keys():
        return _indexed_range(table, wanted, [index for index in indexes if index.table == table.name])
    columns = [
        parse_column(table, column, quote(wanted.columns[column.name]).encode()) for column in table.key[: len(given)]
    ]
    leading = tuple(value for value, _ in columns)
    try:
        key = row_key(table.name, leading) if leading else table.name.encode() + SEPARATOR
    except KeyFormatError as error:
        raise ReadError("bad_key", str(error)) from error
    descending = _is_descending(table, names, given, wanted.order_by)
    fingerprint = xxhash.xxh3_64_digest(b"\0".join((key, table.meaning, b"-" if descending else b"+")))
    page = _page(table, wanted.page, fingerprint)
    return Range(table, leading, key, all(exact for _, exact in columns), descending, page, fingerprint, table.meaning)


def _indexed_range(table: RowTable, wanted: RequestedRange, indexes: Sequence[Index]) -> Range:
    """The rows with given values in the columns of an index, in the order of the primary key."""
    index = next((each for each in indexes if set(each.columns) == wanted.columns.keys()), None)
    if index is None:
        asked, names = ", ".join(sorted(wanted.columns)), [column.name for column in table.key]
        known = ", ".join((_indexes(names), *(f"({', '.join(each.columns)})" for each in indexes)))
        raise ReadError("no_index", f"{table.name} has no index on ({asked}), only {known}")
    known_columns = {column.name: column for column in table.columns}
    missing = next((name for name in index.columns if name not in known_columns), "")
    if missing:
        raise ReadError("no_index", f"{table.name} has no column {missing}, although the settings name an index on it")
    columns = [known_columns[name] for name in index.columns]
    parsed = [parse_column(table, column, quote(wanted.columns[column.name]).encode()) for column in columns]
    where = tuple((column.name, value) for column, (value, _) in zip(columns, parsed, strict=True))
    meaning = meaning_with(table.meaning, [(column.name, column.kind, column.exact) for column in columns])
    key = table.name.encode() + SEPARATOR
    descending = _is_descending(table, [column.name for column in table.key], [], wanted.order_by)
    equal = values_of(value for _, value in where)
    fingerprint = xxhash.xxh3_64_digest(b"\0".join((key, meaning, equal, b"-" if descending else b"+")))
    page = _page(table, wanted.page, fingerprint)
    exact = all(exact for _, exact in parsed)
    return Range(table, (), key, exact, descending, page, fingerprint, meaning, where)


def _page(table: RowTable, text: str, fingerprint: bytes) -> Page | None:
    """The page that a request goes on from. Raises `ReadError` ``bad_page``."""
    page = Page.parse(text) if text else None
    if page is not None and (page.range != fingerprint or not _is_key(table, page.last)):
        raise ReadError("bad_page", "page: it belongs to other columns, another order, or an earlier form of the table")
    return page


def _is_key(table: RowTable, key: bytes) -> bool:
    """Whether these are the bytes of a row's key."""
    try:
        name, values = split_row_key(key)
        return (
            name == table.name
            and len(values) == len(table.key)
            and row_key(name, values) == key
            and all(
                isinstance(value, str | int | float) or b64decode(value["base64"], validate=True) is not None
                for value in values
            )
        )
    except (KeyFormatError, ValueError, TypeError, KeyError):
        return False


def _is_descending(table: RowTable, names: Sequence[str], given: Sequence[str], order_by: Sequence[str]) -> bool:
    """The direction of ``order_by``. Columns that are ``given`` have one value, so they may stand anywhere in it."""
    asked = [(name.removeprefix("-"), name.startswith("-")) for name in order_by]
    left = [(name, down) for name, down in asked if name not in given]
    directions = {down for _, down in left}
    if [name for name, _ in left] != list(names[len(given) : len(given) + len(left)]) or len(directions) > 1:
        why = (
            f"{table.name} cannot be ordered by {', '.join(order_by)} here, only by {_indexes(names)}, in one direction"
        )
        raise ReadError("no_index", why)
    return True in directions


def _indexes(names: Sequence[str]) -> str:
    return f"PRIMARY ({', '.join(names)})"
