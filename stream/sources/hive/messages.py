"""One notification event of a Hive Metastore, parsed. Pure.

``get_next_notification`` returns rows whose message is JSON (``json-0.2``) or gzipped JSON in base64
(``gzip(json-2.0)``, the default of 4.x). A captured log may hold decoded messages. Tables inside a message are Thrift
structs in ``TJSONProtocol`` text: ``{"<field id>": {"<type>": value}}`` (``Table`` of hive_metastore.thrift).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stream.sources.hive.objects import image_of, plain_struct, with_binary_fields
from stream.sources.hive.structs import Struct, ThriftError, encode_struct, struct_of_json
from tokens.errors import FreshetError

FLAVOR: Final = "HiveEvent"
MESSAGE_BYTES_MAX: Final = 256 * 1024 * 1024
"""A larger decompressed message is refused."""

SET_BY_COMMITS: Final = ("_meta", "repl.last.id")
"""How the parameters of tables begin that a COMMIT may set (``TxnStore.TXN_KEY_START``, ``ReplConst``)."""

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")


class HiveMessageError(FreshetError, ValueError):
    """A notification event that cannot be parsed. The message names the field. Code ``bad_notification``."""

    code = "bad_notification"


@dataclass(frozen=True, slots=True)
class Notification:
    """One row of the log. ``db`` and ``table`` are lower case; for a rename they hold the new name."""

    event_id: int
    event_time: int
    """Seconds since 1970."""
    event_type: str
    catalog: str
    db: str
    table: str
    message: Mapping[str, Any]

    @property
    def position(self) -> str:
        """``HiveEvent/<event id>``."""
        return f"{FLAVOR}/{self.event_id}"

    @property
    def table_name(self) -> str:
        """``db.table``, or empty if the event names no table."""
        return f"{self.db}.{self.table}" if self.db and self.table else ""


@dataclass(frozen=True, slots=True)
class TableObject:
    """The parts of a Thrift ``Table`` that Freshet uses."""

    name: str
    """``db.table``, lower case."""
    table_id: int
    transactional: bool
    full_acid: bool
    image: bytes
    """The table as a compact JSON object with Thrift's field names, sorted."""
    struct: bytes | None = None
    """The whole table in the binary protocol."""
    partition_keys: tuple[str, ...] = ()
    """Names of the partition columns, lower case."""
    is_ambiguous: bool = False
    """Whether ``name`` may be another table's: its database has a dot in its own name."""
    columns: int = 0
    """A checksum of its columns and partition keys, with their types and comments; 0: they are not known."""
    is_materialized: bool = False
    """Whether it is a materialized view. A REBUILD changes what it was made from (``creationMetadata``), and no event
    says so (``HMSHandler.update_creation_metadata``): nothing that was read of it earlier is proved."""
    takes_commits: bool = False
    """Whether it has a parameter that a COMMIT may change (``CommitTxnRequest``'s ``keyValue`` and ``replLastIdInfo``):
    its event does not say so."""


def parse_notification(row: Mapping[str, Any]) -> Notification:
    """The event in ``row`` (``eventId``, ``eventTime``, ``eventType``, ``cat``, ``db``, ``table``, ``message``).

    Also takes the Thrift names ``catName``, ``dbName``, ``tableName``. Raises `HiveMessageError`.
    """
    message = decode_message(row.get("message"), str(row.get("messageFormat") or ""))
    return Notification(
        event_id=integer(row, "eventId"),
        event_time=integer(row, "eventTime"),
        event_type=str(row.get("eventType") or ""),
        catalog=lower_name(row.get("cat") or row.get("catName")),
        db=lower_name(row.get("db") or row.get("dbName")),
        table=lower_name(row.get("table") or row.get("tableName")),
        message=message,
    )


def parse_envelope(row: Mapping[str, Any]) -> Notification:
    """The event in ``row`` without its message, for a message that can't be parsed. Raises `HiveMessageError`."""
    return parse_notification({**row, "message": {}})


def decode_message(message: Any, message_format: str = "") -> Mapping[str, Any]:
    """Decode a message: a mapping, JSON text, or gzipped JSON in base64. Raises `HiveMessageError`."""
    if isinstance(message, Mapping):
        return message
    if not isinstance(message, str):
        raise HiveMessageError(f"message is {type(message).__name__}, not text")
    text = message.strip()
    if not text.startswith("{"):
        text = _unzip(text, message_format)
    try:
        decoded = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise HiveMessageError(f"message is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise HiveMessageError("message is not a JSON object")
    return decoded


def _unzip(text: str, message_format: str) -> str:
    try:
        packed = base64.b64decode(text, validate=True)
        unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        raw = unzip.decompress(packed, MESSAGE_BYTES_MAX)
        if unzip.unconsumed_tail:
            raise HiveMessageError(f"message is larger than {MESSAGE_BYTES_MAX} bytes")
        if not unzip.eof:
            raise HiveMessageError("the gzipped message is truncated")
        return raw.decode()
    except HiveMessageError:
        raise
    except (ValueError, zlib.error) as error:
        named = f" ({message_format})" if message_format else ""
        raise HiveMessageError(f"message is neither JSON nor gzipped JSON{named}: {error}") from error


def lower_name(value: Any) -> str:
    """A metastore name in lower case; "" for a missing one. Raises `HiveMessageError` for an invalid name."""
    if not value:
        return ""
    if not isinstance(value, str) or "\0" in value or not _is_utf8(value):
        raise HiveMessageError(f"{value!r} is not a name")
    return value.lower()


def _is_utf8(text: str) -> bool:
    """Whether ``text`` can be encoded: JSON text may hold half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def has_dot(db: str) -> bool:
    """Whether ``db.table`` does not tell which table it is: Hive takes a dot in the name of a database, too."""
    return "." in db


def is_listable(name: str) -> bool:
    """Whether Hive can list the write ids of ``db.table``.

    It cuts the name at each dot, and so gives the list of another table; the text of a list ends its name at a colon.
    """
    return not {".", ":"} & {*name.partition(".")[2]}


def integer(fields: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """The integer field ``name``, which may be written as text. Raises `HiveMessageError`."""
    value = fields.get(name)
    if value is None and default is not None:
        return default
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
        raise HiveMessageError(f"{name} is {value!r}, not an integer")
    return value


def integers(fields: Mapping[str, Any], name: str) -> list[int]:
    """The list of integers in field ``name``; empty if absent or null. Raises `HiveMessageError`."""
    values = fields.get(name)
    if values is None:
        return []
    if not isinstance(values, list):
        raise HiveMessageError(f"{name} is {type(values).__name__}, not a list")
    return [integer({name: value}, name) for value in values]


def parse_table(message: Mapping[str, Any], field: str) -> TableObject:
    """The Thrift ``Table`` in ``message[field]``. Raises `HiveMessageError`."""
    return table_of(parse_struct(message.get(field), field, "Table"), field)


def table_of(found: Struct, field: str) -> TableObject:
    """The Thrift ``Table`` that ``found`` is; ``field`` names it in errors. Raises `HiveMessageError`."""
    plain = plain_struct(found, "Table")
    parameters = plain.get("parameters") or {}
    db = lower_name(plain.get("dbName"))
    name = f"{db}.{lower_name(plain.get('tableName'))}"
    table_id = integer(plain, "id", 0)
    if not isinstance(plain.get("sd") or {}, dict):
        raise HiveMessageError(f"{field} of {name} is not a table: its storage descriptor is no struct")
    if not isinstance(parameters, dict) or name.startswith(".") or name.endswith("."):
        raise HiveMessageError(f"{field} has no valid table name or parameters")
    if table_id < 1:
        raise HiveMessageError(f"{field} of {name} has no table id", hint="metastores before Hive 4.0 do not log it")
    transactional = str(parameters.get("transactional", "")).lower() == "true"
    insert_only = str(parameters.get("transactional_properties", "")).lower() == "insert_only"
    keys = plain.get("partitionKeys") or ()
    try:
        partition_keys = tuple(str(each["name"]).lower() for each in keys)
    except (TypeError, KeyError) as error:
        raise HiveMessageError(f"{field} of {name} has no valid partition keys") from error
    image, struct = image_of(found, "Table"), encode_struct(found)
    full_acid = transactional and not insert_only
    shown = repr([(plain.get("sd") or {}).get("cols"), keys]).encode("utf-8", "surrogatepass")
    return TableObject(
        name,
        table_id,
        transactional,
        full_acid,
        image,
        struct,
        partition_keys,
        has_dot(db),
        columns=zlib.crc32(shown) or 1,
        is_materialized=plain.get("tableType") == "MATERIALIZED_VIEW",
        takes_commits=any(str(each).startswith(SET_BY_COMMITS) for each in parameters),
    )


def parse_struct(text: Any, field: str, name: str) -> Struct:
    """The Thrift struct ``name`` that ``text`` is in TJSON, as text or decoded. Raises `HiveMessageError`."""
    try:
        fields = json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError) as error:
        raise HiveMessageError(f"{field} is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise HiveMessageError(f"{field} is missing or not a JSON object")
    try:
        found = with_binary_fields(struct_of_json(fields), name)
        encode_struct(found)
    except ThriftError as error:
        raise HiveMessageError(f"{field}: {error}") from error
    return found
