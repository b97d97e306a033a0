"""The parameters of a change stream, and what they ask for."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from serving.errors import ReadError
from serving.http.front import Front
from serving.reads.rowkey import parse_row_key
from serving.reads.spaces import RowSpace
from serving.sources.source import RowTable
from serving.streams.choice import Choice, as_number
from serving.streams.reading import Begin, FromEarliest, FromNow, FromSecond, FromVector
from stream.changes.checkpoint import Checkpoint, CheckpointError
from stream.shards.map import IdRange, ShardMapError
from stream.wire.values import binary_json
from tokens import TokenError, Vector

SSE: Final = "text/event-stream"
NDJSON: Final = "application/x-ndjson"
HANDOVER: Final = "handover"
_NUMBERS: Final = frozenset({"int", "bit", "year", "decimal", "float", "double"})
"""The kinds of columns that are equal as numbers are."""
_SECONDS: Final = re.compile(r"-?[0-9]{1,15}", re.ASCII)


class StreamParameters(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Of a change stream."""

    keyspace: str
    begin: Annotated[
        str,
        Meta(
            description="`now`; `earliest`, all that the topic can tell; seconds since 1970, or ago if negative "
            "(`-60`); a token, after whose positions to begin; or a `checkpoint`, after whose event to go on."
        ),
    ] = msgspec.field(name="from", default="now")
    tables: Annotated[str, Meta(description="Tables, separated by commas; none: all.")] = ""
    until: Annotated[
        str,
        Meta(
            description="`now`: the stream ends, with an event `end`, when all has been told that Kafka had when it "
            "began. `handover`: it ends when all has been told of a shard that others have succeeded since. Without it "
            "a stream has no end."
        ),
    ] = ""
    key: (
        Annotated[
            str,
            Meta(
                description="Changes of this row only, of the one table in `tables`; written as in a path, `7,2`, and "
                "with the text that the row itself has, `35.00`."
            ),
        ]
        | UnsetType
    ) = UNSET
    """One that is empty is the key of a row, too: an empty text."""
    key_range: Annotated[
        str,
        Meta(
            description="Rows whose keyspace id is in a range: `40-80`, `-80`, `c0-`. "
            "Ranges that share a bound share no row."
        ),
    ] = ""
    include_rows: Annotated[bool, Meta(description="Adds `row`, the image after the transaction.")] = False
    include_columns: Annotated[str, Meta(description="Columns of `row`, separated by commas; none: all.")] = ""
    read_void: Annotated[
        bool,
        Meta(
            description="Reads rows that changed, and whose image the log has not: they come as `value` or `deleted`, "
            "with `read_at`, and are never older than the event. What can't be read comes as `void`. `include_rows` "
            "must be given."
        ),
    ] = False
    include_before: Annotated[
        bool,
        Meta(
            description="Adds `was`, what there was before the transaction (`value`, `absent`, `unmatched`), and "
            "`before`, its image; of keyspaces that have `before_images` set, and where the log has it."
        ),
    ] = False
    include_keyless: Annotated[
        bool,
        Meta(
            description="Adds changes of the kind `keyless`: rows of tables without a primary key, of keyspaces that "
            "have `keyless_rows` set. They are in no `key_range`, and have no `key`."
        ),
    ] = False
    columns: Annotated[
        dict[str, str],
        Meta(
            description="`where.NAME=value`: rows of which column NAME has another value come as `unmatched`, without "
            "image. Numbers are equal as numbers are, all else as it is written. `tables` must be given."
        ),
    ] = {}
    heartbeat_ms: Annotated[
        int, Meta(ge=100, le=60_000, description="A watermark comes at least this often, and about as often at most.")
    ] = 1_000
    accept: Annotated[str, Meta(description=f"As the header: `{SSE}` or, by default, `{NDJSON}`.")] = ""
    last_event_id: Annotated[
        str, Meta(description="As the header, which browsers send when they connect again; goes before `from`.")
    ] = ""


def ends_now(parameters: StreamParameters) -> bool:
    """Whether the stream ends with what is there now. Raises `ReadError` ``bad_parameter``."""
    if parameters.until not in ("", "now", HANDOVER):
        raise ReadError("bad_parameter", f"until: {parameters.until!r}", hint="write now or handover, or leave it out")
    return parameters.until not in ("", HANDOVER)


def begin_of(parameters: StreamParameters, now_s: float | None = None) -> Begin:
    """Where the stream begins. Raises `ReadError` ``bad_parameter``, ``bad_token``, ``bad_checkpoint``."""
    text = parameters.last_event_id or parameters.begin
    if text == "now":
        return FromNow()
    if text == "earliest":
        return FromEarliest()
    if _SECONDS.fullmatch(text):
        second = int(text)
        return FromSecond(second if second >= 0 else int(time.time() if now_s is None else now_s) + second)
    if Checkpoint.is_text(text):
        try:
            return Checkpoint.parse(text)
        except CheckpointError as error:
            raise ReadError("bad_checkpoint", f"from: {error}", hint=error.hint) from error
    try:
        return FromVector(Vector.parse_all(text))
    except TokenError as error:
        hint = "write now, earliest, seconds, a token, or a checkpoint"
        raise ReadError("bad_token", f"from: {error}", hint=hint) from error


async def choice_of(front: Front, space: RowSpace, parameters: StreamParameters) -> Choice:
    """What the reader wants.

    Raises `ReadError` ``bad_parameter``, ``bad_key``, ``unknown_column``, ``unknown_table``.
    """
    try:
        key_range = IdRange.parse(parameters.key_range) if parameters.key_range else None
    except ShardMapError as error:
        raise ReadError("bad_parameter", f"key_range: {error}", hint=error.hint) from error
    tables = frozenset(space.full_name(name) for name in parameters.tables.split(",") if name)
    key = await _key_of(front, space, tables, parameters.key) if parameters.key is not UNSET else None
    shown = frozenset(name for name in parameters.include_columns.split(",") if name)
    includes_rows = parameters.include_rows or bool(shown)
    if parameters.include_keyless and (key_range is not None or parameters.key is not UNSET):
        hint = "leave out include_keyless, or key_range and key"
        raise ReadError("bad_parameter", "rows without a key are in no range of keys", hint=hint)
    if parameters.read_void and not includes_rows:
        raise ReadError("bad_parameter", "read_void without rows", hint="add include_rows=true, or include_columns")
    if (shown or parameters.columns) and not tables:
        raise ReadError("bad_parameter", "columns are named, but no tables", hint="name the columns' tables")
    if shown or parameters.columns:
        described = await _described(front, space, tables, shown | parameters.columns.keys())
        where, numbers = _where(described, parameters.columns)
    else:
        where, numbers = (), frozenset()
    return Choice(
        tables or None,
        key_range,
        includes_rows,
        shown or None,
        where,
        SSE in parameters.accept.lower(),
        key,
        parameters.read_void,
        parameters.include_before,
        parameters.include_keyless,
        numbers,
    )


async def _key_of(front: Front, space: RowSpace, tables: frozenset[str], text: str) -> bytes:
    """The key that a row has as its table is described now. Raises `ReadError` ``bad_parameter``, ``bad_key``."""
    if len(tables) != 1:
        raise ReadError("bad_parameter", f"a key is named, but {len(tables)} tables", hint="name the key's table")
    table = await front.descriptions.get(space, *tables)
    return parse_row_key(table, quote(text, safe=",%").encode()).key


async def _described(front: Front, space: RowSpace, tables: frozenset[str], names: frozenset[str]) -> list[RowTable]:
    """The tables, each of which has all the columns. Raises `ReadError` ``unknown_column``."""
    found = [await front.descriptions.get(space, table) for table in sorted(tables)]
    for described in found:
        known = {column.name for column in described.columns}
        if unknown := sorted(names - known):
            hint = f"it has {', '.join(sorted(known))}"
            raise ReadError("unknown_column", f"{described.name} has no column {unknown[0]!r}", hint=hint[:400])
    return found


def _where(
    tables: Sequence[RowTable], columns: Mapping[str, str]
) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
    """What columns have to be, as `Choice` has it, and which are numbers. Raises `ReadError` ``bad_parameter``."""
    where, numbers = list[tuple[str, str]](), set[str]()
    for name, text in sorted(columns.items()):
        kinds = {column.kind for table in tables for column in table.columns if column.name == name}
        if kinds <= _NUMBERS:
            if as_number(text) is None:
                raise ReadError("bad_parameter", f"where.{name}: {text!r} is not a number")
            numbers.add(name)
        where.append((name, binary_json(text.encode()).decode() if kinds == {"binary"} else text))
    return tuple(where), frozenset(numbers)
