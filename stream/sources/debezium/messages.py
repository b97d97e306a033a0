"""What Debezium's JSON messages say, as typed values. Pure.

Three kinds of topics are read: one for each table, ``<prefix>`` with the DDL, and ``<prefix>.transaction`` with the
ends of transactions. Each message carries its schema beside its payload.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import msgspec

from stream.sources.debezium.errors import DebeziumError
from stream.sources.mariadb.gtid import Gtid, MysqlGtid, MysqlGtidSet, PostgresCommit, ServerGtid
from stream.wire.canonical import UNDECODABLE
from stream.wire.values import NULL
from tokens.errors import TokenError
from tokens.mariadb import parse_gtid

POSTGRES: Final = "PostgreSQL"
CONNECTORS: Final = {"mysql": "MySQL", "mariadb": "MariaDB", "postgresql": POSTGRES}
"""What a message's source calls the connector, and the server that it reads."""
VERSIONS: Final = ("2", "3")
"""Debezium's, whose messages are read. They are alike; 3.5 is the one that tests run."""
_SNAPSHOTS: Final = frozenset({None, False, "false", "incremental"})
"""Of `source.snapshot`: the record is no part of a snapshot that a connector begins with."""

_LAST: Final = (1 << 64) - 1
"""Behind every commit."""


class Malformed(ValueError):
    """A message that can't be read: it voids what it may have been about."""


@dataclass(slots=True)
class RowMessage:
    """A row event, or PostgreSQL's TRUNCATE. ``schema``: the JSON of the message's schema.

    ``before``, ``after``: JSON objects, or b"" for none.

    ``transaction``: its GTID. ``order``: its number among all events of the transaction. ``version``: Debezium's.
    """

    table: str
    transaction: ServerGtid
    order: int
    operation: str
    schema: bytes
    before: bytes
    after: bytes
    timestamp: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement that is a transaction of its own: DDL, or a TRUNCATE.

    ``tables``: those of ``database`` that it names, or some of them.
    """

    gtid: ServerGtid
    sql: str
    database: str
    tables: tuple[str, ...]
    timestamp: int
    version: str = ""


@dataclass(frozen=True, slots=True)
class End:
    """The end of a transaction. ``counts``: table → the number of its row events, of all captured tables."""

    gtid: ServerGtid
    counts: tuple[tuple[str, int], ...]
    timestamp: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A sign that the connector began anew with a snapshot, at ``place`` in the log."""

    place: str


class _Source(msgspec.Struct):
    version: str = ""
    connector: str = ""
    ts_ms: int = 0
    snapshot: str | bool | None = None
    db: str | None = None
    schema: str | None = None
    table: str | None = None
    gtid: str | None = None
    file: str | None = None
    pos: int | None = None
    lsn: int | None = None
    sequence: str | None = None


class _InTransaction(msgspec.Struct):
    id: str
    total_order: int


class _Row(msgspec.Struct):
    op: str
    source: _Source
    before: msgspec.Raw = msgspec.Raw()
    after: msgspec.Raw = msgspec.Raw()
    transaction: _InTransaction | None = None


class _Ddl(msgspec.Struct):
    source: _Source
    ddl: str | None = None
    databaseName: str | None = None


class _Count(msgspec.Struct):
    data_collection: str
    event_count: int


class _Boundary(msgspec.Struct):
    status: str
    id: str
    ts_ms: int = 0
    event_count: int | None = None
    data_collections: list[_Count] | None = None


class _Message(msgspec.Struct):
    payload: msgspec.Raw
    schema: msgspec.Raw = msgspec.Raw()


_MESSAGE: Final = msgspec.json.Decoder(_Message)
_ROW: Final = msgspec.json.Decoder(_Row)
_DDL: Final = msgspec.json.Decoder(_Ddl)
_BOUNDARY: Final = msgspec.json.Decoder(_Boundary)
_SCHEMAS_HINT: Final = "set value.converter = org.apache.kafka.connect.json.JsonConverter and schemas.enable = true"


def gtid_of(text: str) -> ServerGtid:
    """The GTID of a transaction: ``0-1-5``, or MySQL's ``uuid:5`` or ``uuid:tag:5``. Raises `Malformed`."""
    try:
        if ":" not in text:
            return Gtid(*parse_gtid(text), 0)
        [((uuid, tag), [(first, last)])] = MysqlGtidSet.of(text).sources.items()
    except (TokenError, ValueError) as error:
        raise Malformed(f"{text!r} is no GTID") from error
    if first != last:
        raise Malformed(f"{text!r} is more than one GTID")
    return MysqlGtid(uuid, tag, first)


def read_row(value: bytes, server: str, *, tells_ends: bool = True) -> RowMessage | Statement | Snapshot | None:
    """A message of a table's topic; None if it says nothing. Raises `Malformed`, `DebeziumError`.

    ``tells_ends``: its connector says which transaction a row belongs to. Whoever uses it calls `check_version`.
    """
    message = _unwrapped(value)
    try:
        row = _ROW.decode(message.payload)
    except UNDECODABLE as error:
        raise Malformed(f"no row event of Debezium: {error}") from error
    _check_server(row.source, server)
    try:
        return _read_row(row, server, bytes(message.schema), tells_ends=tells_ends)
    except (Malformed, DebeziumError):
        check_version(row.source.version)
        raise


def _read_row(row: _Row, server: str, schema: bytes, *, tells_ends: bool) -> RowMessage | Statement | Snapshot | None:
    source = row.source
    if row.op == "r":
        return None if source.snapshot in _SNAPSHOTS else Snapshot(_place(source))
    if row.op == "m":
        return None
    table = f"{source.schema if server == POSTGRES else source.db}.{source.table}"
    if row.op == "t" and server != POSTGRES:
        if source.gtid is None:
            raise _without_gtids()
        sql = f"TRUNCATE TABLE `{_quoted(source.db)}`.`{_quoted(source.table)}`"
        return Statement(gtid_of(source.gtid), sql, source.db or "", (), source.ts_ms // 1000, source.version)
    if not (tells_ends and _is_known(source.version)):
        row.transaction = _InTransaction("0:0" if server == POSTGRES else source.gtid or "file=", 0)
    if row.transaction is None:
        raise xa_transaction(table)  # of MySQL; the configuration says that all others are named
    gtid = _transaction_gtid(row.transaction.id, server)
    if isinstance(gtid, PostgresCommit) and tells_ends:
        gtid = replace(gtid, lsn=_after_last_commit(source))
    return RowMessage(
        table,
        gtid,
        row.transaction.total_order,
        row.op,
        schema,
        _object(row.before),
        _object(row.after),
        source.ts_ms // 1000,
        source.version,
    )


def read_statement(value: bytes, server: str) -> Statement | Snapshot | None:
    """A message of the topic with the DDL. Raises `Malformed`, `DebeziumError`."""
    message = _unwrapped(value)
    try:
        ddl = _DDL.decode(message.payload)
    except UNDECODABLE as error:
        raise Malformed(f"no schema change of Debezium: {error}") from error
    source = ddl.source
    _check_server(source, server)
    if source.snapshot not in _SNAPSHOTS:
        return Snapshot(_place(source))
    if not ddl.ddl:
        return None
    if source.gtid is None:
        raise _without_gtids()
    database = ddl.databaseName or source.db or ""
    # A statement that names several tables comes in a message for each, and each names all of them.
    tables = tuple(table for table in (source.table or "").split(",") if table)
    return Statement(gtid_of(source.gtid), ddl.ddl, database, tables, source.ts_ms // 1000, source.version)


def read_end(value: bytes, server: str = "") -> End | None:
    """A message of the topic of transactions; None for a beginning. Raises `Malformed`, `DebeziumError`."""
    message = _unwrapped(value)
    try:
        found = _BOUNDARY.decode(message.payload)
    except UNDECODABLE as error:
        raise Malformed(f"no boundary of a transaction: {error}") from error
    if found.status != "END":
        return None
    counts = tuple((each.data_collection, each.event_count) for each in found.data_collections or ())
    return End(_transaction_gtid(found.id, server), counts, found.ts_ms // 1000)


def xa_transaction(what: str) -> DebeziumError:
    """The error for rows whose transaction has no end: Debezium tells them at XA PREPARE, and then nothing more."""
    return DebeziumError(
        f"{what} was changed in an XA transaction, and the connector does not tell whether it is committed",
        hint="use the binlog (freshet source mysql, or mariadb) where there are XA transactions; once none is prepared"
        " (XA RECOVER), this source can begin again with --new-epoch",
        code="debezium_xa_transaction",
    )


def _unwrapped(value: bytes) -> _Message:
    if value[:1] == b"\0":
        raise DebeziumError("a message is Avro or Protobuf, not JSON", hint=_SCHEMAS_HINT)
    try:
        message = _MESSAGE.decode(value)
    except UNDECODABLE as error:
        if isinstance(error, msgspec.ValidationError) and value[:1] == b"{":
            raise DebeziumError("a message has no schema beside its payload", hint=_SCHEMAS_HINT) from error
        raise Malformed(f"no message of Debezium: {error}") from error
    if bytes(message.schema) in (b"", NULL):
        raise DebeziumError("a message has no schema beside its payload", hint=_SCHEMAS_HINT)
    return message


def check_version(version: str) -> None:
    """Raises `DebeziumError` if a message is of a version of Debezium that is not known."""
    if not _is_known(version):
        raise DebeziumError(
            f"the messages are of Debezium {version}, which is not known here",
            hint=f"upgrade the connector, or Freshet: it reads those of Debezium {' and '.join(VERSIONS)}",
        )


def _is_known(version: str) -> bool:
    return not version or version.partition(".")[0] in VERSIONS


def _check_server(source: _Source, server: str) -> None:
    named = CONNECTORS.get(source.connector)
    if named != server:
        raise DebeziumError(
            f"the messages are of Debezium's connector for {source.connector or 'an unknown server'}, not for {server}",
            hint="name the right topic_prefix, and the right server: mysql, mariadb or postgres",
        )


def _transaction_gtid(text: str, server: str) -> ServerGtid:
    if server == POSTGRES:
        xid, colon, lsn = text.partition(":")
        if not colon or not xid.isdecimal() or not lsn.isdecimal():
            raise Malformed(f"{text!r} is no transaction of PostgreSQL")
        return PostgresCommit(int(xid), int(lsn))
    if text.startswith("file="):
        raise _without_gtids()
    return gtid_of(text)


def _without_gtids() -> DebeziumError:
    return DebeziumError(
        "the connector's events have no GTID",
        hint="set gtid_mode = ON at the MySQL server; of MariaDB read its own connector (MariaDbConnector)",
        code="debezium_bad_connector",
    )


def _after_last_commit(source: _Source) -> int:
    """A place behind the commit that comes before the row's own: it is at the row's own commit, or before."""
    try:
        last, _ = msgspec.json.decode(source.sequence or "", type=tuple[int | None, int | None], strict=False)
    except UNDECODABLE as error:
        raise Malformed(f"{source.sequence!r} does not tell the last commit") from error
    return _LAST if last is None else last + 1


def _place(source: _Source) -> str:
    return f"{source.file}:{source.pos}" if source.lsn is None else str(source.lsn)


def _object(found: msgspec.Raw) -> bytes:
    return bytes(found) if bytes(found) != NULL else b""


def _quoted(name: str | None) -> str:
    return (name or "").replace("`", "``")
