"""``freshet inspect``: shows what a store holds, or what an owner answers for a key, and why."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from consumers.fold.catalog_state import CatalogStateError, decode_binding, decode_table
from consumers.fold.declared import table_descriptions
from consumers.fold.entry import ABSENT, VALUE, VOID, decode_entry
from consumers.fold.objects import decode_drops, decode_object, decode_set
from consumers.fold.shards import NO_KIN
from consumers.fold.state import CATALOG, DROPS, META, NAME_PREFIX, OBJECT, SCHEMA_PREFIX, SET, TABLE
from consumers.owner.protocol import UNKNOWN_KEY, Description, OwnerError, OwnerRow
from consumers.owner.rows import view_row
from consumers.store.store import StoreView
from freshet.keyspaces import full_table_name
from freshet.owners import owner_addresses, owner_connection
from freshet.settings import Settings, load_settings
from serving.reads.rowkey import RowKey, parse_row_key
from serving.sources.source import RowTable
from stream.wire.codec import CodecError, decode
from stream.wire.events import Column
from stream.wire.keys import Layout
from tokens.errors import FreshetError, printable

KINDS = {VALUE: "value", ABSENT: "absent", VOID: "void", UNKNOWN_KEY: "unknown"}
SHOWN_MAX = 100_000


class InspectError(FreshetError):
    """What cannot be shown; code ``cannot_inspect``."""

    code = "cannot_inspect"


def command(
    where: Annotated[
        str, typer.Argument(help="A store directory (also a checkpoint), or a keyspace.", metavar="STORE|KEYSPACE")
    ],
    table: Annotated[str, typer.Argument(help="Table: db.table, or without db as for curl.")] = "",
    key: Annotated[str, typer.Argument(help="Primary key: columns comma-separated, percent-encoded.")] = "",
    token: Annotated[str, typer.Option(help="Session token: the owner answers as it would to this session.")] = "",
    limit: Annotated[int, typer.Option(help="Of a store directory: show this many entries.", min=0, max=SHOWN_MAX)] = 0,
    digest: Annotated[
        bool, typer.Option("--digest", help="Of a store directory: compute the digest of its state.")
    ] = False,
    owner: Annotated[
        list[str] | None, typer.Option(help="Address of an owner. Default: as announced.", metavar="HOST:PORT")
    ] = None,
    bootstrap: Annotated[str | None, typer.Option(help="Kafka's address, host:port.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show a store directory (read-only, also while its owner runs), or what the owner of a key answers, and why."""
    directory = Path(where)
    if (directory / "manifest.json").exists():
        shown = inspect_store(directory, table, key, limit, digest)
    elif "/" in where or not table or not key:
        hint = "name a directory that holds manifest.json, or: freshet inspect KEYSPACE TABLE KEY"
        raise InspectError(f"{where!r} is not a store directory; to show a key give TABLE and KEY", hint=hint)
    else:
        settings = load_settings(flags={"kafka": {"bootstrap": bootstrap}})
        shown = inspect_key(settings, where, table, key, token, owner or [])
    if as_json:
        typer.echo(json.dumps(shown, ensure_ascii=False))
    else:
        _show(shown)


def inspect_store(directory: Path, table: str, key: str, limit: int, digest: bool) -> dict[str, Any]:
    """The state of a store directory, or one row of it if ``table`` is given."""
    with StoreView(directory) as view:
        if table:
            return _row_in(view, table, key)
        head = view.head
        shown: dict[str, Any] = {
            "store": str(directory),
            "manifest": {name: getattr(view.manifest, name) for name in view.manifest.__slots__},
            "offset": head.offset,
            "layout": head.layout,
            "shards": {name: each._asdict() for name, each in sorted(head.lineages.items())},
            "voids": [
                {"table": scope, "shard": shard} | void._asdict() for (scope, shard), void in sorted(head.voids.items())
            ],
        }
        if digest:
            shown["digest"], shown["entries"] = view.digest()
        if limit:
            rows = islice(view.items(b"\1"), limit)
            shown["first"] = [{"key": _text(each)} | describe(each, value) for each, value in rows]
        return shown


def _row_in(view: StoreView, table: str, key: str) -> dict[str, Any]:
    described = table_descriptions(view.head, view.get, table)
    if not described:
        raise InspectError(f"{view.directory} has no table {table}", hint="tables are named db.table")
    schema = max(described, key=lambda each: int(each["timestamp"]))
    columns = {each["name"]: Column(each["name"], each["kind"], each["exact"]) for each in schema["columns"]}
    found = _parse(table, [columns[name] for name in schema["primary_key"]], key)
    value = view.get(found.key)
    seen = view_row(view.head, found.key, value, prefix=schema["prefix"])
    return {
        "key": _text(found.key),
        "partition": view.manifest.partition,
        "reads_as": KINDS[seen.kind],
        "why": seen.why,
        "watermark": seen.watermark,
        "entry": describe(found.key, value) if value is not None else None,
    }


def _parse(table: str, columns: list[Column], key: str) -> RowKey:
    return parse_row_key(RowTable(table, tuple(columns), True), key.encode())


def inspect_key(
    settings: Settings, keyspace: str, table: str, key: str, token: str, given: list[str]
) -> dict[str, Any]:
    """The answer of the owner of a row's partition."""
    table = full_table_name(settings, keyspace, table)
    addresses = owner_addresses(settings, keyspace, given)
    with owner_connection(settings, next(iter(addresses.values()))) as connection:
        described = connection.describe(keyspace, table)
    if not described.found:
        raise InspectError(f"keyspace {keyspace} has no table {table}", hint="tables are named db.table")
    found = _parse(table, _key_columns(described), key)
    partition = Layout.parse(described.layout).partition_of(found.key, described.prefix)
    if partition in addresses:
        return _ask(settings, addresses[partition], keyspace, partition, found.key, token)
    for address in addresses.values():
        try:
            return _ask(settings, address, keyspace, partition, found.key, token)
        except OwnerError as error:
            if error.code != "not_owner":
                raise
    raise InspectError(
        f"no owner answers for {keyspace}/{partition}", hint="`freshet lag` shows the owners of the keyspace"
    )


def _key_columns(described: Description) -> list[Column]:
    columns = {each.name: Column(each.name, each.kind, each.exact) for each in described.columns}
    return [columns[name] for name in described.primary_key]


def _ask(settings: Settings, address: str, keyspace: str, partition: int, key: bytes, token: str) -> dict[str, Any]:
    with owner_connection(settings, address) as connection:
        [row] = connection.get(keyspace, partition, [key], token)
    return {"key": _text(key), "partition": partition, "owner": address} | _plain(row)


def _plain(row: OwnerRow) -> dict[str, Any]:
    plain = msgspec.structs.asdict(row)
    plain["kind"] = KINDS.get(row.kind, str(row.kind))
    plain["image"] = _image(row.image) if row.image is not None else None
    plain["stamp"] = row.stamp.hex()
    plain["kin"] = msgspec.to_builtins(row.kin) if row.kin != NO_KIN else None
    return plain


_OF_CATALOG: Final[dict[bytes, tuple[str, Callable[[bytes], Any]]]] = {
    TABLE: ("table", decode_table),
    OBJECT: ("object", decode_object),
    SET: ("set", decode_set),
    DROPS: ("drops", decode_drops),
}


def describe(key: bytes, value: bytes) -> dict[str, Any]:
    """An item of a store, decoded as far as possible."""
    try:
        if key.startswith(SCHEMA_PREFIX):
            return {"schema": decode(value)[1]}
        if key.startswith(NAME_PREFIX):
            return {"binding": msgspec.to_builtins(decode_binding(value))}
        if key.startswith(CATALOG):
            what, decoded = _OF_CATALOG[key[1:2]]
            return {what: json.loads(msgspec.json.encode(decoded(value)))}
        if key.startswith(META):
            return {"text": value.decode()}
        entry = decode_entry(value)
    except (KeyError, ValueError, struct.error, CodecError, CatalogStateError) as error:
        return {"unreadable": f"{type(error).__name__}: {error}", "bytes": value.hex()}
    return entry._asdict() | {"kind": KINDS.get(entry.kind, str(entry.kind)), "image": _image(entry.image)}


def _image(image: bytes) -> Any:
    try:
        return json.loads(image) if image else None
    except (ValueError, RecursionError):
        return image.decode(errors="backslashreplace")


def _text(key: bytes) -> str:
    return key.replace(b"\0", b" ").replace(b"\1", b"table ").decode(errors="backslashreplace").strip()


def _show(shown: dict[str, Any]) -> None:
    told = {name: value for name, value in shown.items() if value not in (None, "")}
    width = max(map(len, told), default=0)
    for name, value in told.items():
        if isinstance(value, list) and value:
            typer.echo(f"{name}")
            for each in value:
                typer.echo(f"  {printable(json.dumps(each, ensure_ascii=False))}")
        else:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            typer.echo(f"{name:<{width}}  {printable(text)}")
