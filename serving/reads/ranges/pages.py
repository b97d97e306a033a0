"""What a request for rows by some columns means: the range of keys, its order, and the page where it goes on. Pure."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from typing import Final, NamedTuple, Self
from urllib.parse import quote

import msgspec
import xxhash

from consumers.owner.ranges.indexed import meaning_with
from consumers.owner.ranges.order import KeyColumn, Ranking, is_value
from consumers.store.index import Index, values_of
from serving.errors import ReadError
from serving.reads.demands import RequestedRange
from serving.reads.rowkey import parse_column
from serving.sources.source import RowTable
from stream.sources.learnt_indexes import is_plain
from stream.wire.events import Column
from stream.wire.keys import SEPARATOR, KeyFormatError, row_key, split_row_key
from tokens import Position, TokenError

LIMIT_DEFAULT = 100
UNORDERED: Final = {
    "enum": "its values have the order of their definition",
    "set": "its values have the order of their definition",
    "json": "no text compares with its values as they are ordered",
}
"""Kinds that a server orders in another way than it compares them with a value, as the next page would, and why."""


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
        """Where both stand; None if they are of different histories, or nothing says which one ends first."""
        if (self.shard, self.epoch, self.since.flavor) != (other.shard, other.epoch, other.since.flavor):
            return None
        first, last = (other, self) if self.until.at_or_past(other.until) else (self, other)
        if not last.until.at_or_past(first.until):
            return None
        return self._replace(since=self.since.join(other.since), until=first.until)


class Page(msgspec.Struct, array_like=True, frozen=True):
    """Where an answer has ended: behind the row ``last``. ``range``: a fingerprint of what was asked for.

    All rows up to there were the same from ``since`` to ``until``, of an epoch of a shard. ``values``: JSON, of the
    columns by which the rows come, in the last one.
    """

    version: int
    range: bytes
    last: bytes
    shard: str
    epoch: int
    since: str
    until: str
    values: bytes = b""

    def __str__(self) -> str:
        """As in an answer."""
        return urlsafe_b64encode(msgspec.msgpack.encode(self)).rstrip(b"=").decode()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises `ReadError` ``bad_page``."""
        try:
            found = _pages.decode(urlsafe_b64decode(text + "=" * (-len(text) % 4)))
            found.stretch.stands  # noqa: B018 - raises if its positions are none
        except (ValueError, RecursionError, TokenError) as error:
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
    with their values, of a range that is not one of keys; ``order``: columns by which rows come, before the key.
    ``meaning``: the fingerprint that owners compare.
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
    order: tuple[KeyColumn, ...] = ()

    @property
    def ranking(self) -> Ranking:
        """The order of the rows."""
        return Ranking(self.order, self.columns, len(self.leading))

    @property
    def columns(self) -> list[KeyColumn]:
        """The key's columns."""
        return [(column.name, column.kind, column.exact) for column in self.table.key]


def range_of(table: RowTable, wanted: RequestedRange, indexes: Sequence[Index] = ()) -> Range:
    """The range that a request names. ``indexes``: of the table.

    Raises `ReadError` ``no_index``, ``bad_key``, ``bad_page``.
    """
    names = [column.name for column in table.key]
    given = names[: len(wanted.columns)]
    if not names:
        raise ReadError("no_index", f"{table.name} has no primary key", hint="give the table a primary key")
    if set(given) != wanted.columns.keys():
        return _indexed_range(table, wanted, indexes)
    columns = [
        parse_column(table, column, quote(wanted.columns[column.name]).encode()) for column in table.key[: len(given)]
    ]
    leading = tuple(value for value, _ in columns)
    try:
        key = row_key(table.name, leading) if leading else table.name.encode() + SEPARATOR
    except KeyFormatError as error:
        raise ReadError("bad_key", str(error)) from error
    order, descending = _order(table, given, wanted)
    meaning = meaning_with(table.meaning, order, "order") if order else table.meaning
    fingerprint = xxhash.xxh3_64_digest(b"\0".join((key, meaning, b"-" if descending else b"+")))
    page = _page(table, order, wanted.page, fingerprint)
    exact = all(exact for _, exact in columns)
    return Range(table, leading, key, exact, descending, page, fingerprint, meaning, (), order)


def _indexed_range(table: RowTable, wanted: RequestedRange, indexes: Sequence[Index]) -> Range:
    """The rows with given values in the columns of an index."""
    index = next((each for each in indexes if set(each.columns) == wanted.columns.keys()), None)
    if index is None:
        asked, names = ", ".join(sorted(wanted.columns)), [column.name for column in table.key]
        known = ", ".join((_indexes(names), *(f"({', '.join(each.columns)})" for each in indexes)))
        raise ReadError("no_index", f"{table.name} has no index on ({asked}), only {known}")
    known_columns = {column.name: column for column in table.columns}
    missing = next((name for name in index.columns if name not in known_columns), "")
    if missing:
        raise ReadError("no_index", f"{table.name} has no column {missing}, although an index on it is named")
    columns = [known_columns[name] for name in index.columns]
    parsed = [parse_column(table, column, quote(wanted.columns[column.name]).encode()) for column in columns]
    where = tuple((column.name, value) for column, (value, _) in zip(columns, parsed, strict=True))
    meaning = meaning_with(table.meaning, [(column.name, column.kind, column.exact) for column in columns])
    key = table.name.encode() + SEPARATOR
    order, descending = _order(table, index.columns, wanted)
    meaning = meaning_with(meaning, order, "order") if order else meaning
    equal = values_of(value for _, value in where)
    fingerprint = xxhash.xxh3_64_digest(b"\0".join((key, meaning, equal, b"-" if descending else b"+")))
    page = _page(table, order, wanted.page, fingerprint)
    exact = all(exact for _, exact in parsed)
    return Range(table, (), key, exact, descending, page, fingerprint, meaning, where, order)


def _page(table: RowTable, order: Sequence[KeyColumn], text: str, fingerprint: bytes) -> Page | None:
    """The page that a request goes on from. Raises `ReadError` ``bad_page``."""
    page = Page.parse(text) if text else None
    if page is not None and (
        page.range != fingerprint or not _is_key(table, page.last) or not _are_values(page.values, order)
    ):
        raise ReadError("bad_page", "page: it belongs to other columns, another order, or an earlier form of the table")
    return page


def _is_key(table: RowTable, key: bytes) -> bool:
    """Whether these may be the bytes of a row's key."""
    try:
        name, values = split_row_key(key)
        kinds = [column.kind for column in table.key]
        return (
            name == table.name
            and len(values) == len(kinds)
            and row_key(name, values) == key
            and all(map(is_value, kinds, values))
        )
    except KeyFormatError:
        return False


def _are_values(values: bytes, columns: Sequence[KeyColumn]) -> bool:
    """Whether these may be the bytes of the columns' values."""
    try:
        found = msgspec.json.decode(values, type=list) if values else []
    except (ValueError, RecursionError):
        return False
    return len(found) == len(columns) and all(
        value is None or is_value(kind, value) for (_, kind, _), value in zip(columns, found, strict=True)
    )


def _order(table: RowTable, given: Sequence[str], wanted: RequestedRange) -> tuple[tuple[KeyColumn, ...], bool]:
    """The columns by which rows come, and whether downwards. Raises `ReadError` ``no_index``.

    There are none if they come in the order of the key. Columns that are ``given`` have one value, so they may stand
    anywhere in it. What is counted has no order.
    """
    asked = [(name.removeprefix("-"), name.startswith("-")) for name in wanted.order_by]
    left = {name: down for name, down in asked if name not in given}
    known = {column.name: column for column in table.columns}
    if len(set(left.values())) > 1:
        by = ", ".join(wanted.order_by)
        raise ReadError("no_index", f"{table.name} cannot be ordered by {by}: all columns must have one direction")
    descending = True in left.values()
    following = [column.name for column in table.key if column.name not in given]
    if list(left) == following[: len(left)] or wanted.counted:
        return (), descending
    wrong = next((name for name in left if not _may_order(known.get(name))), None)
    if wrong is not None:
        why = UNORDERED.get(known[wrong].kind, "") if wrong in known else "there is none"
        why = why if is_plain(wrong) else "its name has quotes, commas, parentheses or control characters"
        raise ReadError("no_index", f"{table.name} cannot be ordered by column {wrong}: {why}")
    return tuple((name, known[name].kind, known[name].exact) for name in left), descending


def _may_order(column: Column | None) -> bool:
    return column is not None and column.kind not in UNORDERED and is_plain(column.name)


def _indexes(names: Sequence[str]) -> str:
    return f"PRIMARY ({', '.join(names)})"
